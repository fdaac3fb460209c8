"""Index maps: composition agrees with NumPy, and equal maps are equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.ir import views
from eqsat.ir.views import ViewMap
from tests.sweeps import a_part

Step = tuple[ViewMap, Callable[[np.ndarray], np.ndarray]]


def read(map: ViewMap, x: np.ndarray) -> np.ndarray:
    """The view by brute force, one flat index per element."""
    index = np.asarray(map.offset)
    for atoms in map.axes:
        axis = np.zeros(1, int)
        for n, stride in atoms:
            axis = (axis[:, None] + np.arange(n) * stride).reshape(-1)
        index = index[..., None] + axis
    return x.reshape(-1)[index]


@st.composite
def step(draw: st.DrawFn, shape: tuple[int, ...]) -> Step:
    kind = draw(st.sampled_from(["transpose", "reshape", "broadcast", "slice"]))
    if kind == "transpose":
        order = draw(st.permutations(range(len(shape))))
        return views.transpose(shape, order), lambda x: x.transpose(order)
    if kind == "reshape":
        left, target = math.prod(shape), []
        while left > 1 and len(target) < 5:
            target.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
            left //= target[-1]
        target = list(draw(st.permutations([*target, left] if left != 1 else target)))
        return views.reshape(shape, target), lambda x: x.reshape(target)
    if kind == "broadcast":
        wide = [draw(st.integers(1, 3)), *(draw(st.sampled_from([1, 4])) if n == 1 else n for n in shape)]
        return views.broadcast(shape, wide), lambda x: np.broadcast_to(x, wide)
    cuts = []
    for n in shape:
        start, step = draw(st.integers(0, n - 1)), draw(st.sampled_from([1, 2, -1, -2]))
        cuts.append(slice(start, None, step))
    found = [s.indices(n) for s, n in zip(cuts, shape, strict=True)]
    sizes = [len(range(*f)) for f in found]
    return views.slices(shape, [f[0] for f in found], [f[2] for f in found], sizes), lambda x: x[tuple(cuts)]


@settings(max_examples=a_part(400), deadline=None)
@given(st.data())
def test_composition_is_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3)))
    x = np.arange(math.prod(shape)).reshape(shape)
    map, seen = views.identity(shape), x
    for _ in range(data.draw(st.integers(1, 4))):
        outer, apply = data.draw(step(seen.shape))
        both = views.compose(map, outer)
        if both is None or seen.size > 300:
            break
        map, seen = both, apply(seen)
        assert map.shape == seen.shape
        assert (read(map, x) == seen).all()
        one_to_one = sorted(seen.reshape(-1).tolist()) == list(range(x.size))
        # Flips read every element once too, but not from offset 0 upwards.
        assert one_to_one if map.is_one_to_one(x.size) else True
        assert map.overlaps or np.unique(seen).size == seen.size
        assert map.overlaps or not map.repeats


def test_broadcasts_and_windows_read_elements_again() -> None:
    rows, windows = views.strided((4, 3), (3, 1)), views.strided((4, 3), (1, 1))
    assert not rows.overlaps and windows.overlaps and not windows.repeats
    assert not views.strided((3, 2), (2, 5)).overlaps and views.strided((3, 2), (2, 4)).overlaps
    assert views.strided((4, 3), (0, 1)).repeats


def test_equal_maps_are_equal() -> None:
    swap = views.transpose((2, 3, 4), (1, 0, 2))
    assert views.compose(swap, views.transpose((3, 2, 4), (1, 0, 2))) == views.identity((2, 3, 4))
    assert views.reshape((6, 4), (24,)) == views.reshape((2, 12), (24,))
    assert views.identity((5, 1)).is_identity((5, 1)) and not views.identity((1, 5)).is_identity((5, 1))


def test_refuses_what_is_not_of_the_form() -> None:
    """A slice of an axis merged from transposed atoms would carry between digits."""
    merged = views.compose(views.transpose((4, 6), (1, 0)), views.reshape((6, 4), (24,)))
    assert merged is not None
    assert views.compose(merged, views.slices((24,), (0,), (1,), (5,))) is None


@given(st.data())
def test_views_that_continue_each_other_are_one(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
    outer, _ = data.draw(step(shape))
    if not outer.shape:
        return
    axis = data.draw(st.integers(0, len(outer.shape) - 1))
    extent = outer.shape[axis]
    ends = sorted({extent, *data.draw(st.lists(st.integers(1, extent), max_size=3))})
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        starts = [start if a == axis else 0 for a in range(len(outer.shape))]
        sizes = [end - start if a == axis else n for a, n in enumerate(outer.shape)]
        parts.append(views.compose(outer, views.slices(outer.shape, starts, [1] * len(starts), sizes)))
    x = np.arange(math.prod(shape)).reshape(shape)
    if None in parts:
        return
    found = views.joined([part for part in parts if part is not None], axis)
    assert found is not None or any(len(atoms) > 1 for atoms in outer.axes)
    if found is not None:
        assert found.shape == outer.shape
        assert (read(found, x) == read(outer, x)).all()


def test_views_that_do_not_continue_each_other_stay_apart() -> None:
    rows = [views.slices((6, 4), (i, 0), (1, 1), (1, 4)) for i in range(6)]
    assert views.joined(rows, 0) == views.identity((6, 4))
    assert views.joined(rows[::2], 0) == views.slices((6, 4), (0, 0), (2, 1), (3, 4))
    assert views.joined([rows[0], rows[2], rows[3]], 0) is None
    assert views.joined([rows[0], views.slices((6, 4), (1, 1), (1, 1), (1, 3))], 0) is None
    assert views.joined([views.slices((6, 4), (0, 0), (2, 1), (2, 4)), rows[3]], 0) is None


def test_empty() -> None:
    assert views.broadcast((0, 3), (2, 0, 3)).shape == (2, 0, 3)
    assert views.compose(views.identity((4, 0)), views.transpose((4, 0), (1, 0))) is not None


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_refinement_serves_every_cut(parts: list[int], data: st.DataObject) -> None:
    extent = math.prod(parts)
    places = data.draw(st.lists(st.integers(0, len(parts)), max_size=2))
    cuts = [[math.prod(parts[:p]), math.prod(parts[p:])] for p in places]
    refined = views.common_refinement(extent, cuts)
    assert refined is not None and math.prod(refined) == extent
    for sizes in cuts:
        atoms, step = [], 1
        for n in reversed([n for n in sizes if n > 1]):
            atoms.append((n, step * 7))
            step *= n
        assert views.recut(tuple(reversed(atoms)), refined) is not None
