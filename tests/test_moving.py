"""Views that move over a value inside of a loop, against the views that they stand for."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from eqsat.ir import build, views
from eqsat.ir.evaluate import evaluate
from eqsat.ir.moving import moving
from eqsat.ir.node import Graph
from eqsat.ir.types import TensorType, int64
from tests.sweeps import a_part


@given(st.data())
@settings(max_examples=a_part(150), deadline=None)
def test_a_view_that_moves_is_taken_from_where_it_is(data: st.DataObject) -> None:
    """Slices in any steps, of any axes, split or broadcast, moved along one axis: the same elements on every trip."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3), label="shape"))
    starts, steps, sizes = [], [], []
    for n in shape:
        start, stop = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
        step = data.draw(st.integers(1, 3)) * (1 if stop >= start else -1)
        starts.append(start)
        steps.append(step)
        sizes.append(abs(stop - start) // abs(step) + 1)
    map = views.slices(shape, starts, steps, sizes)
    if data.draw(st.booleans(), label="transposed"):
        both = views.compose(map, views.transpose(sizes, range(len(sizes))[::-1]))
        assert both is not None
        map = both
    axis = data.draw(st.integers(0, len(shape) - 1))
    step = data.draw(st.sampled_from([-2, -1, 1, 2])) * int(np.prod(shape[axis + 1 :]))
    trips = data.draw(st.integers(2, 4))
    x = np.arange(np.prod(shape)).reshape(shape)
    found = moving(map, shape, step, trips)
    event("found" if found else "none")
    places = build.input_node(0, TensorType(shape, int64))
    for trip in range(trips if found is not None else 0):
        wanted = views.view_map(map.axes, map.offset + trip * step)
        graph = Graph(
            (places,), (build.view(places, wanted), found.of(places, build.const([found.first + trip * found.by])))
        )
        one, other = evaluate(graph, [x])
        np.testing.assert_array_equal(one, other)


def test_what_leaves_its_axis_is_no_view_that_moves() -> None:
    """Offsets that grow past the end of a row, or by what is no multiple of an axis's stride on the way."""
    row = views.slices((4, 6), (0, 1), (1, 1), (1, 3))
    assert moving(row, (4, 6), 1, 3) is not None
    assert moving(row, (4, 6), 1, 4) is None
    assert moving(row, (4, 6), 6, 4) is not None
    assert moving(row, (4, 6), 6, 5) is None
    assert moving(row, (4, 6), 7, 2) is None
    assert moving(views.reshape((4, 6), (24,)), (4, 6), 1, 2) is None
