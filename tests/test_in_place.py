"""Writing to arrays inside a traced function means what it means in NumPy."""

from __future__ import annotations

import operator
import pickle
import random
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import zeros

import eqsat
from eqsat.errors import EqsatError, ReadOnlyError, SharedMemoryError, UnsupportedOpError, VerificationError
from eqsat.frontends.boxes import Box, Write, assembled, common, evenly, frame_for, place, positions
from eqsat.frontends.registry import FUNCTIONS
from eqsat.frontends.trace import trace
from eqsat.ir import build, views
from eqsat.ir.evaluate import evaluate, evaluate_nodes
from tests.sweeps import a_part

RNG = np.random.default_rng(0)
REAL_ZEROS = np.zeros
QUICK: Any = {"cache": False, "backend": "numpy"}  # what is meant does not depend on the kernels
TYPES = (np.float64, np.float32, np.int64, np.int32, np.bool_)


def traced(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn`` traced, and evaluated by the reference."""
    made = trace(fn, args, {})
    return made.rebuild(evaluate(made.graph, made.given(args)), [np.array(a) for a in args])


# boxes


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    starts, steps, sizes = [], [], []
    for n in shape:
        start, step = draw(st.integers(0, n - 1)), draw(st.integers(1, 4))
        starts.append(start)
        steps.append(step)
        sizes.append(draw(st.integers(1, (n - 1 - start) // step + 1)))
    return Box(tuple(starts), tuple(steps), tuple(sizes))


def slices_of(box: Box) -> tuple[slice, ...]:
    parts = zip(box.starts, box.steps, box.sizes, strict=True)
    return tuple(slice(start, start + step * size, step) for start, step, size in parts)


@given(*[st.integers(0, 12), st.integers(1, 6), st.integers(1, 9)] * 2)
def test_common_positions_of_two_ranges(s: int, t: int, n: int, start: int, step: int, size: int) -> None:
    want = [k for k in range(n) if (s + t * k) in range(start, start + step * size, step)]
    found = common(s, t, n, start, step, size)
    assert want == ([] if found is None else [found[0] + found[1] * i for i in range(found[2])])


@given(st.data())
def test_writes_are_put_together_in_their_order(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * data.draw(st.integers(0, 3))))
    base = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    want, writes = base.copy(), []
    for number in range(data.draw(st.integers(0, 5))):
        box = data.draw(boxes(shape))
        value = 1000 * (number + 1) + np.arange(np.prod(box.sizes, dtype=int)).reshape(box.sizes)
        writes.append(Write(box, build.const(value)))
        want[slices_of(box)] = value
    (found,) = evaluate_nodes([assembled(build.const(base), writes)], {})
    np.testing.assert_array_equal(found, want)


@st.composite
def numpy_views(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """A view of an arange: its elements are their positions."""
    whole = view = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        found = a_view(view, random.Random(draw(st.integers(0, 10**6))))
        view = found if np.shares_memory(found, whole) else view  # a reshape may copy
    return view


@given(st.data())
def test_views_as_boxes(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 6)] * data.draw(st.integers(1, 3))))
    view = data.draw(numpy_views(shape))
    item = view.itemsize
    map = views.strided(view.shape, [s // item for s in view.strides], int(view.reshape(-1)[0]))
    np.testing.assert_array_equal(positions(map), view)
    even = evenly(np.asarray(view))
    assert even is not None and (positions(even) == view).all()
    frames: list[tuple[int, ...]] = [shape]
    made = frame_for(map, int(np.prod(shape)))
    frames += [made] if made is not None else []
    for frame in frames:
        placed = place(map, frame)
        if placed is None:
            continue
        memory = np.arange(np.prod(frame)).reshape(frame)
        (seen,) = evaluate_nodes([placed.as_view(build.const(memory[slices_of(placed.box)]))], {})
        np.testing.assert_array_equal(seen, view)
        (back,) = evaluate_nodes([placed.as_box(build.const(seen))], {})
        np.testing.assert_array_equal(back, memory[slices_of(placed.box)])


# random programs


def an_index(shape: tuple[int, ...], rng: random.Random, *, scalar: bool = True) -> tuple[Any, ...]:
    """A basic index: ints, slices of either direction, an Ellipsis, Nones."""
    items: list[Any] = []
    for n in shape[: rng.randint(0, len(shape))]:
        kind = rng.random()
        if kind < 0.3 and n and scalar:
            items.append(rng.randrange(-n, n))
        elif kind < 0.4:
            items.append(slice(None))
        else:
            ends = [rng.choice([None, rng.randint(-n - 1, n + 1)]) for _ in range(2)]
            items.append(slice(*ends, rng.choice([None, 1, 1, 2, 3, -1, -2])))
    if rng.random() < 0.3:
        items.insert(rng.randint(0, len(items)), None)
    if rng.random() < 0.3:
        at = rng.randint(0, len(items))
        used = [i for i in items if i is not None]
        after = sum(1 for i in items[at:] if i is not None)
        # what follows an Ellipsis indexes the last axes
        items[at:] = [..., *[slice(None, None, rng.choice([1, -1])) for _ in range(min(after, len(shape)))]]
        assert len(used) <= len(shape)
    return tuple(items)


def a_view(x: Any, rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return x.T
    if kind == 1 and x.ndim:
        return x.reshape(-1)
    if kind == 2 and x.ndim > 1:
        return x.swapaxes(rng.randrange(x.ndim), rng.randrange(x.ndim))
    if kind == 3 and x.ndim and x.shape[0] % 2 == 0 and x.size:
        return x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    if kind == 4 and x.ndim:
        return np.flip(x, rng.randrange(x.ndim))
    if kind == 5 and x.ndim:
        return np.split(x, [rng.randint(0, x.shape[0])])[rng.randrange(2)]
    return x[an_index(x.shape, rng, scalar=False)] if x.ndim else x[...]


def a_value(shape: tuple[int, ...], dtype: Any, env: list[Any], rng: random.Random) -> Any:
    """Something that broadcasts to a shape: a number, an array of the program, or one made of it."""
    number: Any = rng.choice([0, 1, 2, 3, True])
    if dtype.kind == "f" and rng.random() < 0.5:
        number = rng.choice([0.5, -1.25, 2.0])
    if rng.random() < 0.3:
        return number

    def fitting(given: tuple[int, ...]) -> bool:
        tail = shape[len(shape) - len(given) :]
        return len(given) <= len(shape) and all(n in (1, m) for n, m in zip(given, tail, strict=True))

    fits = [e for e in env if fitting(e.shape)]
    if fits and rng.random() < 0.5:
        return rng.choice(fits)
    source = rng.choice(env)
    if not source.size:
        return number
    few = source.reshape(-1)[rng.randrange(source.size)]
    small = tuple(rng.choice([n, n, 1]) for n in shape)[rng.randint(0, len(shape)) :]
    return np.broadcast_to(few, small) + np.arange(np.prod(small, dtype=int)).reshape(small).astype(source.dtype)


def a_statement(env: list[Any], k: Any, rng: random.Random) -> None:
    x = rng.choice(env)
    kind = rng.randrange(14)
    ops: list[Any] = [np.add, np.multiply, np.subtract, np.maximum]
    if x.dtype == np.bool_:
        ops = [np.logical_and, np.logical_or, np.logical_xor]
    op = rng.choice(ops)
    if kind <= 1:
        env.append(a_view(x, rng))
    elif kind <= 3:
        index = an_index(x.shape, rng)
        shape = np.empty(x.shape, bool)[index].shape
        x[index] = a_value(shape, x.dtype, env, rng)
    elif kind == 4:
        index = an_index(x.shape, rng)
        target = x[index]
        if x.dtype == np.bool_:
            target |= a_value(target.shape, x.dtype, [x], rng) == 1
        else:
            target += a_value(target.shape, x.dtype, [x], rng)
        x[index] = target
    elif kind == 5 and x.ndim:
        x[...] = op(x, x[::-1])
    elif kind == 6:
        op(x, x, out=x)
    elif kind == 7 and x.ndim:
        x[x > rng.choice([0, 1])] = rng.choice([0, 1])
    elif kind == 8 and x.ndim and x.shape[0]:
        rows = [rng.randrange(-x.shape[0], x.shape[0]) for _ in range(rng.randint(0, 4))]
        x[rows] = a_value((len(rows), *x.shape[1:]), x.dtype, env, rng)
    elif kind == 9 and x.ndim and x.shape[0]:
        x[k % x.shape[0]] = a_value((*k.shape, *x.shape[1:]), x.dtype, env, rng)
    elif kind == 10 and x.ndim and x.shape[0] and x.dtype != np.bool_:
        np.add.at(x, k % x.shape[0], x.dtype.type(1))
    elif kind == 11:
        x.fill(1)
    elif kind == 12:
        np.copyto(x, op(x, x), where=x > 0)
    elif kind == 13:
        env.append(x.copy() if rng.random() < 0.5 else op(x, x))


def program(seed: int, length: int) -> Callable[..., Any]:
    def run(x: Any, y: Any, k: Any) -> Any:
        rng = random.Random(seed)
        env = [x * x.dtype.type(1), y * y.dtype.type(1), np.zeros_like(x)]
        for _ in range(length):
            a_statement(env, k, rng)
        return env

    return run


@settings(max_examples=a_part(150))
@given(st.integers(0, 10**9), st.integers(1, 12), st.sampled_from(TYPES), st.data())
def test_random_programs_of_writes(seed: int, length: int, dtype: Any, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))  # results without axes are scalars, which nothing is written to
    shape = data.draw(st.tuples(*[st.integers(0, 5)] * rank))
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-3, 4, s).astype(dtype) for s in (shape, shape[::-1]))
    k = rng.integers(0, 5, data.draw(st.sampled_from([(), (3,), (2, 2)])))
    run = program(seed, length)
    with np.errstate(all="ignore"):
        want = run(x.copy(), y.copy(), k.copy())
        try:
            got = traced(run, x, y, k)
        except SharedMemoryError:
            return
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def factored(size: int, draw: Callable[[Any], Any]) -> tuple[int, ...]:
    """A shape of so many elements."""
    found = []
    while size > 1 and len(found) < 3:
        found.append(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
        size //= found[-1]
    return (*found, size)


@settings(max_examples=a_part(200))
@given(st.data())
def test_reshapes_share_memory_where_numpys_do(data: st.DataObject) -> None:
    shape = factored(data.draw(st.sampled_from([24, 30, 36, 60])), data.draw)
    steps: list[tuple[str, Any]] = []
    view = np.zeros(shape)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["reshape", "reshape", "slice", "transpose", "ravel"]))
        if kind == "reshape":
            what: Any = factored(view.size, data.draw)
        elif kind == "ravel":
            what = data.draw(st.sampled_from("CAK"))
        elif kind == "slice":
            ranges = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in view.shape]
            what = tuple(slice(*ends, data.draw(st.integers(1, 2))) for ends in ranges)
        else:
            what = tuple(data.draw(st.permutations(range(view.ndim))))
        steps.append((kind, what))
        view = view[what] if kind == "slice" else getattr(view, kind)(what)
        if not view.size:
            break
    changed = data.draw(st.integers(0, len(steps)))

    def run(x: Any) -> Any:
        views = [x]
        for kind, what in steps:
            views.append(views[-1][what] if kind == "slice" else getattr(views[-1], kind)(what))
        views[changed] += 1
        return views

    x = np.arange(np.prod(shape)).reshape(shape)
    try:
        found = traced(run, x.copy())
    except (SharedMemoryError, UnsupportedOpError):  # after a transpose that moves nothing the order is not followed
        return
    for got, want in zip(found, run(x.copy()), strict=True):
        np.testing.assert_array_equal(got, want)


# arguments


def changes(x: Any, y: Any) -> Any:
    x[1:] += y[:-1]
    row = x[0]
    row *= 3
    np.multiply(x, 2, out=y)
    return x


def held(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compiled and plain on copies of the arguments: results and what became of the arguments are the same.

    The second call is of a program that is there already.
    """
    f = eqsat.optimize(fn, **{**QUICK, **options})
    for _ in range(2):
        ours, theirs = copies(args), copies(args)
        got, want = f(*ours), fn(*theirs)
        same(got, want)
        same(ours, theirs)
        assert [got is a for a in ours] == [want is a for a in theirs]
    return f


def copies(args: Any) -> list[Any]:
    return [np.array(a) if isinstance(a, np.ndarray) else a for a in args]


def same(got: Any, want: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            precision = 1e-5 if want.dtype == np.float32 else 1e-11
            np.testing.assert_allclose(got, want, rtol=precision, atol=precision)
        else:
            np.testing.assert_array_equal(got, want)
    else:
        assert got == want


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda f, x: f(x),
    "an axis": lambda f, x: f(x, 0),
    "two axes": lambda f, x: f(x, 0, 1),
    "an order": lambda f, x: f(x, (1, 0)),
    "a shape": lambda f, x: f(x, (4, 4)),
    "a count": lambda f, x: f(x, 2),
    "a keyword": lambda f, x: f(x, axis=0),
    "not copied": lambda f, x: f(x, copy=False),
    "labels": lambda f, x: f("ij->ji", x),
    "a diagonal": lambda f, x: f("ii->i", x),
    "its type": lambda f, x: f(x, x.dtype),
}


def numpys_views() -> list[Any]:
    """Functions that are traced, and methods, whose result shares memory with their argument when NumPy runs them."""
    functions = {f"{f.__module__}.{f.__name__}": f for f in FUNCTIONS if type(f) is type(np.ravel)}
    found = []
    for name, function in sorted(functions.items()):
        ways = 0
        for way, call in WAYS.items():
            x = np.arange(16.0).reshape(4, 4)
            try:
                with np.errstate(all="ignore"):
                    views = leaves(call(function, x))
            except Exception:
                continue
            shared = any(np.shares_memory(view, x) for view in views) and all(view.dtype == x.dtype for view in views)
            ways += shared
            if shared and ways <= 2:  # as many as are worth their time
                found.append(pytest.param(function, call, id=f"{name}, {way}"))
    return found


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for inner in value for part in leaves(inner)]
    return [value] if getattr(value, "ndim", 0) else []


@pytest.mark.parametrize(("function", "call"), numpys_views())
def test_views_are_those_of_numpy(function: Any, call: Any) -> None:
    def written(x: Any) -> Any:
        views = leaves(call(function, x))
        x += 1
        return [view * 2 for view in views]

    def write(x: Any) -> Any:
        for view in leaves(call(function, x))[:1]:
            view[...] = 7
        return x * 1

    x = np.arange(16.0).reshape(4, 4)
    held(written, x, strict=True)
    view = leaves(call(function, x))[0]
    if view.flags.writeable and function not in (np.broadcast_arrays, np.meshgrid):  # NumPy means to forbid these
        held(write, x, strict=True)


def test_an_empty_part_says_nothing_of_the_order_of_other_arrays() -> None:
    def fn(x: Any, table: Any, rows: Any) -> Any:
        x[2:, :, 1:] = 0.5
        found = table[rows]
        flat = found.ravel()
        found[0] += 1
        return flat

    held(fn, np.ones((4, 3, 1)), np.arange(5.0), np.array([[4, 0], [1, 1]]), strict=True)


def test_arguments_are_changed_as_by_numpy() -> None:
    x, y = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 3))
    held(changes, x, y)
    held(changes, x, y, backend="numba_cpu")
    held(lambda x: x.sort(), RNG.standard_normal(7))
    held(lambda x, i: x.__setitem__(i, 7), np.zeros(5), np.array([1, 3, 3]))
    held(lambda x, s: (operator.iadd(x, s), operator.iadd(s, 1))[0], np.zeros(3), np.float64(2))
    held(lambda x, s: operator.iadd(s, x.sum()), np.ones(3), np.array(2.0))
    held(lambda x: x.reshape(-1).__setitem__(3, 9), np.asfortranarray(np.ones((3, 4))))
    held(lambda x: (x * 2).reshape(-1).__setitem__(3, 9), np.asfortranarray(np.ones((3, 4))))


def test_containers_of_arguments_that_are_changed() -> None:
    def step(state: dict[str, Any], more: list[Any]) -> None:
        state["p"] += 0.5 * state["v"]
        more[0][::2] = state["p"][:2]

    def made() -> tuple[dict[str, Any], list[Any]]:
        return {"p": np.arange(4.0), "v": np.ones(4)}, [np.zeros(4)]

    f, ours, theirs = eqsat.optimize(step, **QUICK), made(), made()
    for _ in range(3):
        assert f(*ours) is None is step(*theirs)
        same([*ours[0].values(), *ours[1]], [*theirs[0].values(), *theirs[1]])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("write", [lambda a, x: np.copyto(a.ravel(), x), lambda a, x: np.put(a, [1, 3], x)])
def test_windows_show_what_is_written_behind_them(known: bool, write: Callable[[Any, Any], None]) -> None:
    """Also where no argument is in the array before: NumPy's windows belong to no array that owns memory."""

    def program(x: Any) -> Any:
        a = np.zeros((3, 4)) + (2 if known else x)
        windows = np.lib.stride_tricks.sliding_window_view(a, 2, axis=1)
        write(a, x)
        return windows, windows[..., ::2]

    x = np.array(5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = eqsat.optimize(program, **QUICK)(x)
    for one, right in zip(got, program(x), strict=True):
        np.testing.assert_array_equal(one, right)


def test_what_shares_memory_with_a_changed_argument_is_numpys() -> None:
    f = eqsat.optimize(changes, **QUICK)
    for shape in ((4, 4), (5, 3)):
        for pair in (lambda a: (a, a), lambda a: (a[1:], a[:-1]), lambda a: (a, a[::-1])):
            ours, theirs = (pair(np.arange(1.0, 1 + np.prod(shape)).reshape(shape)) for _ in range(2))
            same(f(*ours), changes(*theirs))
            same(ours, theirs)
    apart = np.ones((2, 5, 3))
    same(f(apart[0], apart[1]), changes(np.ones((5, 3)), np.ones((5, 3))))  # they touch, and share nothing


def test_arguments_that_are_not_to_be_written_to() -> None:
    def fn(x: Any) -> Any:
        x[0] = 1  # the write
        return x

    locked = np.ones(3)
    locked.flags.writeable = False
    for array in (locked, np.broadcast_to(np.ones(1), (3,))):
        with pytest.raises(ValueError, match="assignment destination is read-only") as caught:
            eqsat.optimize(fn, **QUICK)(array)
        assert isinstance(caught.value, ReadOnlyError) and caught.value.where is not None
        assert "# the write" in caught.value.where.text
    f = eqsat.optimize(fn, **QUICK)
    f(np.ones(3))
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        f(locked)
    with pytest.raises(ReadOnlyError, match="const="):
        eqsat.optimize(fn, const="x", strict=True, **QUICK)(np.ones(3))
    one = np.lib.stride_tricks.as_strided(np.ones(2), (3,), (0,))
    with pytest.raises(ReadOnlyError, match="share memory"):
        eqsat.optimize(fn, strict=True, **QUICK)(one)


def test_verification_timing_and_explaining_change_no_argument() -> None:
    x, y = np.ones((4, 3)), np.ones((4, 3))
    f = eqsat.optimize(changes)
    f.compile(x, y)
    f.explain(x, y)
    assert (x == 1).all() and (y == 1).all()


def test_an_argument_that_numpy_changes_otherwise_is_caught() -> None:
    """Negative control: the plain function's arguments are held against what the trace makes of them."""

    def fn(x: Any) -> None:
        x[0] = 1 if type(x) is np.ndarray else 2

    with pytest.raises(VerificationError, match="other values"):
        eqsat.optimize(fn, strict=True, **QUICK)(np.zeros(3))


# arrays that the function makes, and captures

TABLE = RNG.standard_normal((6, 4))
ROWS = np.array([2, 0, 1])


def made_by_a_helper(n: int) -> Any:
    out = zeros(n)
    out[0] = 1
    return out


def table_of(n: int, scale: Any = TABLE[0]) -> Any:
    return made_by_a_helper(n) * scale[:n]


def known_loops() -> Any:
    out = np.zeros((3, 3))
    for i in range(3):
        for j in np.arange(3):
            out[i, j] = i * j
    return out


def views_of_known(x: Any) -> Any:
    whole = np.zeros((4, 4))
    column = whole.T[1]
    column[0] = x[0, 0]
    rest = whole[1:]
    whole += 1
    return whole, column, rest


CREATED: dict[str, Callable[..., Any]] = {
    "zeros": lambda x, k: [a := np.zeros((4, 3)), a.__setitem__(slice(1, 3), x[:2, :3]), a][-1],
    "imported by name": lambda x, k: [a := zeros(4), a.__setitem__(2, x[0, 0]), a][-1],
    "a helper's": lambda x, k: [a := made_by_a_helper(4), a.__setitem__(2, x[0, 0]), a][-1],
    "a default": lambda x, k: [a := table_of(3), a.__setitem__(k % 3, x[0, 0]), a][-1],
    "ones": lambda x, k: [a := np.ones(4, np.float32), a.__iadd__(x[0].astype(np.float32)), a][-1],
    "full": lambda x, k: [a := np.full((2, 4), x[0]), a.__setitem__((0, 0), 5), a][-1],
    "full of a number": lambda x, k: [a := np.full(4, 7), a.__setitem__(k, 1), a][-1],
    "eye": lambda x, k: [a := np.eye(4), a.__setitem__((slice(None), 1), x[1]), a][-1],
    "array": lambda x, k: np.array([[x[0, 0], 1.0], [2, x[1, 1]]]),
    "array of rows": lambda x, k: [a := np.array([x[0], x[1] * 2]), a.__setitem__(0, 3), (a, x)][-1],
    "array copied if needed": lambda x, k: [a := np.array(x * 2, copy=np._CopyMode.IF_NEEDED), a + 1][-1],
    "array of one": lambda x, k: [a := np.array(x), a.__setitem__(0, 3), (a, x)][-1],
    "asarray": lambda x, k: [a := np.asarray(x), a is x, a * 2][1:],
    "linspace": lambda x, k: np.linspace(x[0, 0], x[1, 1], 7),
    "arange": lambda x, k: [a := np.arange(4.0), a.__setitem__(slice(None, None, 2), x[0, :2]), a][-1],
    "like": lambda x, k: [a := np.zeros_like(x), b := np.empty_like(x[0]), a.__setitem__(0, 1), b.fill(2), (a, b)][-1],
    "empty": lambda x, k: [a := np.empty(4), a.__setitem__(slice(None), x[0]), a][-1],
    "a copy of a table": lambda x, k: [a := TABLE.copy(), a.__setitem__(k, x[0]), a][-1],
    "a table at traced rows": lambda x, k: TABLE[k] + TABLE.T[:, k].T + np.take(TABLE, k, axis=0),
    "rows at a table": lambda x, k: x[ROWS] + x[ROWS[::-1]],
    "known values": lambda x, k: [*(int(i) + 1 for i in np.arange(3)), bool(np.ones(2).all()), float(np.eye(2)[0, 0])],
    "a known mask": lambda x, k: x[:, np.arange(4) % 2 == 0],
    "known loops": lambda x, k: known_loops() @ x[:3],
    "of no traced type": lambda x, k: x[0].sum() * float(np.zeros(3, complex).real.sum() + np.ones(2, np.uint8).sum()),
    "meshgrid": lambda x, k: [g := np.meshgrid(np.arange(4), np.arange(4)), g[0].__setitem__((0, 0), 9), g[0] + x][-1],
    "views of known": lambda x, k: views_of_known(x),
    "zeros of a type": lambda x, k: [a := np.zeros(4, np.int32), np.add.at(a, k, 1), a][-1],
}  # fmt: skip


@pytest.mark.parametrize("name", CREATED)
def test_arrays_made_in_the_function(name: str) -> None:
    held(CREATED[name], RNG.standard_normal((4, 4)), np.array([1, 3, 1]))


@pytest.mark.filterwarnings("ignore::eqsat.EqsatWarning")
@pytest.mark.parametrize(
    ("dtype", "number"), [("uint64", 3), ("uint64", -1), ("uint32", -1), ("uint8", 300), ("int8", 300)]
)
def test_ufunc_at_takes_python_numbers_as_arrays(dtype: str, number: int) -> None:
    """Unlike operators, for which ``uint64`` and 3 are ``uint64``, and 300 does not fit an ``int8``."""

    def add(x: Any, k: Any) -> Any:
        y = x.copy()
        np.add.at(y, k, number)
        return y

    x, k = np.array([(1 << 63) + 1025, 7, 200], np.uint64).astype(dtype), np.array([0, 2, 0])
    np.testing.assert_array_equal(eqsat.optimize(add, cache=False)(x, k), add(x, k))


def test_other_threads_see_numpy_as_it_is() -> None:
    inside, seen = threading.Event(), threading.Event()
    found: list[Any] = []

    def look() -> None:
        inside.wait(60)
        found.extend([np.zeros, type(np.zeros(3)), np.array([1.0]), pickle.loads(pickle.dumps(np.zeros)) is REAL_ZEROS])
        seen.set()

    def fn(x: Any) -> Any:
        if type(x) is not np.ndarray:
            inside.set()
            assert seen.wait(60)
            assert type(np.zeros(3)) is not np.ndarray
        out = np.zeros(3)
        out[1] = x[0]
        return out

    thread = threading.Thread(target=look)
    thread.start()
    held(fn, np.ones(3))
    thread.join()
    assert found[0] is REAL_ZEROS and found[1] is np.ndarray and type(found[2]) is np.ndarray and found[3]
    assert type(np) is types.ModuleType


def test_libraries_get_their_own_arrays_while_a_function_is_traced() -> None:
    """C code and installed packages take the memory of what ``np.empty`` returns."""

    def fn(x: Any) -> Any:
        drawn = np.random.default_rng(3).standard_normal(x.shape)
        assert type(drawn) is np.ndarray and type(np.percentile([1.0, 2.0], 50)) is not np.ndarray
        return x + drawn

    held(fn, np.ones(5))


def test_a_captured_array_is_not_written_to() -> None:
    def fn(x: Any) -> Any:
        TABLE[0] = x
        return x

    with pytest.raises(ReadOnlyError, match="from outside") as caught:
        eqsat.optimize(fn, strict=True, **QUICK)(np.ones(4))
    assert caught.value.where is not None and "TABLE[0] = x" in caught.value.where.text


def test_known_arrays_outlive_their_trace() -> None:
    kept: list[Any] = []

    def fn(x: Any) -> Any:
        if not kept:
            kept.append(np.tri(3))
        return kept[0] @ x

    f = eqsat.optimize(fn, **QUICK)
    same(f(np.ones(3)), fn(np.ones(3)))
    same(f(np.ones((3, 2))), fn(np.ones((3, 2))))
    same(np.asarray(kept[0]) + 1, np.tri(3) + 1)
    assert type(kept[0] + 1) is np.ndarray


def test_variables_that_the_function_sets_are_its_own() -> None:
    count = 0

    def fn(x: Any) -> Any:
        nonlocal count
        count += 1
        return x[ROWS]

    f = eqsat.optimize(fn, **QUICK)
    f(np.arange(3.0))
    assert count >= 1


def test_functions_are_returned_as_they_were_given() -> None:
    f = eqsat.optimize(lambda x: (x * 2, made_by_a_helper), **QUICK)
    assert f(np.ones(2))[1] is made_by_a_helper


# functions that write, and what they refuse

WRITERS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, k: np.sum(x, axis=0, out=x[0]),
    "dot": lambda x, k: np.dot(x, x, out=x),
    "matmul": lambda x, k: np.matmul(x, x.T, out=x),
    "take": lambda x, k: np.take(x, [2, 1, 0, 3], axis=0, out=x),
    "concatenate": lambda x, k: np.concatenate([x[2:] * 2, x[:2]], out=np.zeros((4, 4))),
    "stack": lambda x, k: np.stack([x[2] + 0, x[0] * 2], out=x[:2]),
    "cumsum": lambda x, k: np.cumsum(x, axis=1, out=x),
    "mean": lambda x, k: x.mean(axis=1, out=x[:, 2]),
    "round": lambda x, k: x.round(1, out=x),
    "where": lambda x, k: np.sqrt(x, out=x, where=x > 0),
    "where of another": lambda x, k: np.add(x, 1, out=np.zeros((4, 4)), where=x > 0),
    "divmod": lambda x, k: np.divmod(x, 2, out=(x, x.copy())),
    "iteration": lambda x, k: [row.__imul__(i) for i, row in enumerate(x)].pop(),
    "a chain": lambda x, k: x[1:][::-1][0].__setitem__(slice(None, None, 2), 5),
    "columns swapped": lambda x, k: [x.__setitem__((slice(None), i), x[:, 1 - i]) for i in (0, 1)].pop(),
    "shifted by itself": lambda x, k: x[1:].__iadd__(x[:-1]),
    "a diagonal": lambda x, k: np.fill_diagonal(x, x[0]),
    "a wide diagonal": lambda x, k: np.fill_diagonal(x[:2], 7),
    "a tall diagonal": lambda x, k: [np.fill_diagonal(x[:, :2], 7), np.fill_diagonal(x[:, :1], [1, 2], wrap=True)][0],
    "flat": lambda x, k: [x.flat.__setitem__(slice(1, None, 3), [1, 2]), x.T.flat.__setitem__(5, 3)][0],
    "all of flat": lambda x, k: setattr(x, "flat", 3),
    "a view": lambda x, k: [x.view().__setitem__(0, 1), x[1:].view(x.dtype).fill(2), x.view(np.ndarray)[3].fill(4)][0],
    "a type that it has": lambda x, k: [
        x.astype(x.dtype, copy=False)[0].fill(1),
        np.astype(x, np.float64, copy=False)[1].fill(2),
        x.astype(np.float64)[2].fill(3),
    ][0],
    "reshaped": lambda x, k: [
        x.reshape(2, 8, copy=True).fill(1),
        np.reshape(x, 16, copy=False)[3:5].fill(2),
        x.T.reshape(16)[:5].fill(3),
    ][0],
    "real": lambda x, k: setattr(x[1], "real", 3),
    "put": lambda x, k: [np.put(x, [1, -1], [3, 4]), x.put(k, [5, 6]), np.put(x.T, [90], 1, mode="clip")][0],
    "putmask": lambda x, k: [np.putmask(x, x > 0, [1, 2, 3]), np.putmask(x[0], np.arange(4) > 1, x[1])][0],
    "copyto": lambda x, k: [np.copyto(x[0], 4), np.copyto(x[1:], x[0], where=x[1:] > 0)][0],
    "along an axis": lambda x, k: np.put_along_axis(x, np.argmax(x, axis=1)[:, None], 9, axis=1),
    "along a known axis": lambda x, k: np.put_along_axis(x, np.array([[0, 1, 2, 3]]), [[5, 6, 7, 8]], axis=0),
    "at": lambda x, k: [np.add.at(x, (k, slice(None)), x[0]), np.multiply.at(x, ([0, 0], [1, 1]), 2)][0],
    "at a slice": lambda x, k: [np.subtract.at(x, slice(1, 3), 1), np.negative.at(x, [0, 2])][0],
    "at a mask": lambda x, k: [np.add.at(x, x > 0, 2), np.add.at(x[0], k, [1, 2, 3])][0],
    "a traced row": lambda x, k: [x.__setitem__(k[0], x[0]), x.__setitem__((k[1], k[0]), 4), x[:, k[2]].__iadd__(1)][0],
    "a view of a traced row": lambda x, k: [r := x[k[0]], r.__iadd__(1), x.__imul__(2), r[1:].fill(3), r * 2][-1],
    "a view of a traced column": lambda x, k: [c := x[1:, k[0]], np.exp(c, out=c), x[1].fill(1), c * x[1:, k[1]]][-1],
    "rows and columns": lambda x, k: [x.__setitem__((k, [0, 1, 2]), [7, 8, 9]), x.__setitem__((k[:, None], k), 1)][0],
    "between slices": lambda x, k: x.reshape(2, 2, 4).__setitem__((slice(None), k % 2, slice(1, 3)), 6),
    "selected": lambda x, k: x.__setitem__(x > 0, (x[x > 0] * 2 + 1).astype(np.float64)),
    "selected in place": lambda x, k: [m := x < 0, s := x[m], s.__iadd__(5), x.__setitem__(m, s), x.sum()][-1],
    "rows selected": lambda x, k: [m := x[:, 0] > 0, x.__setitem__(m, x[0]), x.__setitem__((m, 1), 3), x[m].mean()][-1],
    "sums selected": lambda x, k: [
        x[x > 0].sum(),
        x[x > 9].sum(),
        (x[x > 0] > 1).any(),
        np.prod(x[x < 0]),
        x[x > 0].mean(),
    ],
}


@pytest.mark.parametrize("name", WRITERS)
def test_functions_that_write(name: str) -> None:
    x = RNG.standard_normal((4, 4))
    if name in ("sum", "stack", "mean", "divmod", "iteration", "shifted by itself"):
        f = WRITERS[name]
        held(lambda x, k: [f(x, k), x][1], x, np.array([1, 3, 1]))  # what they return are views
    else:
        held(WRITERS[name], x, np.array([1, 3, 1]))


WRONG: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "shape": (lambda x: x.__setitem__(0, np.ones(3)), ValueError, r"from shape \(3,\) into shape \(4,\)"),
    "traced shape": (lambda x: x.__setitem__((slice(2), 0), x[0]), ValueError, r"from shape \(4,\) into shape \(2,\)"),
    "index": (lambda x: x.__setitem__(5, 1), IndexError, "index 5 is out of bounds for axis 0 with size 4"),
    "index list": (lambda x: x.__setitem__([0, 5], 1), IndexError, "index 5 is out of bounds for axis 0 with size 4"),
    "many indices": (lambda x: x.__setitem__((0, 0, 0), 1), IndexError, "too many indices"),
    "mask": (lambda x: x.__setitem__(x[0] > x[:, :1], 1) or x.__setitem__(x[:3] > 0, 1), IndexError, "did not match"),
    "same kind": (lambda x: x.astype(int).__iadd__(1.5), TypeError, "same_kind"),
    "out's kind": (lambda x: np.add(x, 1.5, out=np.zeros((4, 4), int)), TypeError, "same_kind"),
    "out's shape": (lambda x: np.add(x, x, out=x[0]), ValueError, "non-broadcastable output"),
    "unary at": (lambda x: np.negative.at(x, [0, 0]), NotImplementedError, "comes twice"),
    "reshape's copy": (lambda x: x.T.reshape(16, copy=False), ValueError, "Unable to avoid creating a copy"),
    "copyto's kind": (lambda x: np.copyto(x.astype(int), 1.5), TypeError, "Cannot cast"),
    "broadcast": (lambda x: np.broadcast_to(x, (2, 4, 4)).__setitem__(0, 1), ValueError, "destination is read-only"),
    "diagonal": (lambda x: np.diagonal(x).__setitem__(0, 1), ValueError, "destination is read-only"),
    "known broadcast": (lambda x: np.broadcast_to(np.ones(4), (2, 4)).__setitem__(0, x[0]), ValueError, "read-only"),
    "put": (lambda x: np.put(x, 99, 1), IndexError, "out of bounds"),
    "another mask": (lambda x: x.__setitem__(x > 0, x[x > 1]), NotImplementedError, "np.where"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_writes_are_refused_at_their_line(name: str) -> None:
    fn, kind, message = WRONG[name]
    x = RNG.standard_normal((4, 4))
    with pytest.raises(kind, match=message) as caught:
        trace(fn, (x,), {})
    assert isinstance(caught.value, EqsatError) and caught.value.where is not None
    assert caught.value.where.file == __file__ and f'"{name}"' in caught.value.where.text
    if kind is not NotImplementedError:  # NumPy refuses it, too
        with pytest.raises(kind):
            fn(x)


@pytest.mark.parametrize("dtype", [np.int64, "i4", np.recarray])
def test_bits_are_not_read_as_another_type(dtype: Any) -> None:
    with pytest.raises(UnsupportedOpError, match="view of another type"):
        trace(lambda x: x.view(dtype), (np.zeros((4, 4)),), {})


def test_an_integer_that_does_not_fit() -> None:
    with pytest.raises(OverflowError):
        trace(lambda x: x.__setitem__(0, 2**40), (np.zeros(3, np.int32),), {})


def test_an_index_out_of_range_when_run_changes_nothing() -> None:
    def fn(x: Any, k: Any) -> None:
        x[0] = 1
        x[k] = 2

    f, x = eqsat.optimize(fn, **QUICK), np.zeros(3)
    f(x, np.array([1]))
    with pytest.raises(IndexError, match="out of bounds"):
        f(x, np.array([7]))
    np.testing.assert_array_equal(x, [1, 2, 0])


def test_an_optimized_function_inside_captures_arrays_as_well() -> None:
    inner = eqsat.optimize(lambda k: [a := zeros(3), a.__setitem__(0, TABLE[k].sum()), a][-1], **QUICK)
    held(lambda x, k: inner(k) * x, np.ones(3), np.array([1, 4]))


def test_scalars_have_no_memory_to_share() -> None:
    """NumPy's results without axes are scalars: what looks like a view of one is an array of its own."""

    def fn(x: Any) -> Any:
        low, total = np.argmin(x), x.sum()
        rows, flat, more = np.expand_dims(low, 0), np.ravel(total), total[None]
        rows.fill(9)
        flat[0] = 3
        more *= 2
        return low, total, rows, flat, more, np.reshape(total, (1, 1))

    held(fn, np.arange(5.0)[::-1].copy())

    def all_of_it(x: Any) -> Any:
        total, first = x.sum(), x[0]
        array, own = total[...], first[...]
        np.reshape(array, -1).fill(1)
        own += 2
        return total, array + 0 * x, first, own + 0 * x

    held(all_of_it, np.arange(5.0))


@pytest.mark.parametrize(
    ("written", "added"),
    [("float32", "int64"), ("float32", "float64"), ("int8", "int16"), ("int32", "int64"), ("float64", "float32")],
)
def test_what_is_added_at_places_is_cast_to_what_is_there(written: str, added: str) -> None:
    def fn(x: Any, places: Any, values: Any) -> None:
        np.add.at(x, places, values)
        np.multiply.at(x, places[:2], values[1:3])

    held(fn, np.arange(6).astype(written), np.array([1, 1, 5, 0]), np.array([3, 4, 5, 100]).astype(added))


def test_an_index_array_without_axes_copies() -> None:
    last = np.array(-1, np.int16)

    def fn(x: Any) -> Any:
        y = np.tanh(x)
        row, column = y[last], y[:, last]
        row[1:] = 9
        column += 1
        y[last, 1:] -= 2
        y[:, last] *= 3
        return y, row, column

    held(fn, np.arange(20.0).reshape(4, 5))


@pytest.mark.filterwarnings("error")
def test_a_write_to_no_element_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """NumPy refuses it on a read-only array, on which functions are run that leave their argument as it is."""

    def fn(x: Any, y: Any) -> Any:
        x[:-1] *= 2
        y.fill(0)
        return x + 1

    held(fn, np.ones(1), np.ones(3), strict=True)
    held(lambda x: (x.__setitem__(slice(0, 0), 3), x * 2)[1], np.ones(4), strict=True)
    assert "does not run" not in caplog.text


def test_results_of_one_long_axis_lie_in_order_whatever_else_does_not() -> None:
    def fn(x: Any) -> Any:
        turned = np.clip(x.T, -1, 1)
        sums = np.clip(turned.sum(axis=0, keepdims=True), -3, 2)
        pairs = sums.reshape(-1, 2)
        pairs[1] = 9
        return turned, sums

    held(fn, np.arange(12.0).reshape(4, 3), strict=True)


def test_an_element_takes_what_is_wider_and_is_cast_back() -> None:
    """``x[i] += y`` is ``x[i] = x[i] + y``: of scalars, in the wider type, which is then written to the array."""

    def fn(x: Any, k: Any, n: Any, by: Any) -> Any:
        x[1] += by[0]
        x[k[0]] *= by[1]
        n[-2] += by[2]
        n[0] -= x[2]
        last = x[-1]
        last += by[3]
        for i in range(3):
            x[i] -= by[i] / 3
        return last

    x, n = np.linspace(0, 1, 5, dtype=np.float32), np.array([7, -9, 3, 2], np.int16)
    held(fn, x, np.array([3]), n, np.array([1.7, -2.9, 0.1, 1e-9]), strict=True)
    with pytest.raises(UnsupportedOpError, match="0-d result"):
        held(lambda x, by: (total := x.sum(), total.__iadd__(by[0])), x, np.array([1.7]), strict=True)


@pytest.mark.parametrize("copied", [lambda x: x.astype(x.dtype), lambda x: x.astype("f4"), lambda x: x.copy(), np.copy])
def test_copies_of_arrays_of_no_axes_are_no_scalars(copied: Any) -> None:
    """What is written through a view of a scalar's copy is lost, of an array's it is not."""

    def through_a_view(x: Any) -> Any:
        y = copied(x)
        view = y[...]
        view -= 2
        return y

    f = eqsat.optimize(through_a_view, strict=True)
    for x in (np.float64(3.0), np.array(2.0), np.float64(4.0), np.array(5.0)):
        expected = through_a_view(x)
        np.testing.assert_array_equal(f(x), expected, strict=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (1, 4), (4, 1), (3, 5), (5, 3), (4, 4), (3, 3, 3)])
def test_diagonals_of_what_is_computed_are_filled(shape: tuple[int, ...], dtype: type) -> None:
    x = RNG.integers(-9, 9, shape).astype(dtype)

    def filled(x: Any, value: Any, wrap: bool) -> Any:
        y = x + x
        kept = y[1:]
        np.fill_diagonal(y, value, wrap=wrap)
        return y, kept, y.T

    for value in (1, [2], [1, 0, 1], np.array(0, dtype)):
        for wrap in (False, True):
            for got, want in zip(traced(filled, x, value, wrap), filled(x, value, wrap), strict=True):
                np.testing.assert_array_equal(got, want)
                assert got.dtype == want.dtype


def test_a_diagonal_is_chosen_where_it_is_computed() -> None:
    def similarity(x: Any) -> Any:
        s = x @ x.T
        np.fill_diagonal(s, 0)
        return s

    x = RNG.standard_normal((300, 8))
    optimized = eqsat.optimize(similarity, cache=False, check_speed=False)
    compiled = optimized.compile(x)
    np.testing.assert_allclose(compiled(x), similarity(x), atol=1e-12)
    assert len(compiled.report["steps"]) == 1


@pytest.mark.parametrize(
    "made", [np.array, lambda x: x * 1, lambda x: x.copy(order="K")], ids=["array", "times", "copy"]
)
def test_what_reshape_copied_may_be_a_view_of_arguments_in_another_order(made: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        y = made(x)
        y.T.reshape(-1)[:2].fill(7)
        return y

    x = np.arange(12.0).reshape(3, 4)
    optimized = eqsat.optimize(f, strict=True)
    for order in (x, np.asfortranarray(x), x[:, ::-1]):
        np.testing.assert_array_equal(optimized(order), f(order))
