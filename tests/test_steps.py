"""Python's ``for`` over many steps: one is traced for all that are like it, and what comes out is NumPy's result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.frontends import steps
from eqsat.frontends.loop_code import attributes
from eqsat.frontends.trace import Traced, trace
from eqsat.ir.absorb import absorbed
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import of_loop
from tests.sweeps import a_part

pytestmark = pytest.mark.usefixtures("loops_stay")

Array = np.ndarray
N = 300
"""Steps: more than are observed, few enough to be traced one by one."""
STOOD: list[int] = []
"""Steps that others stood for, in loops that were traced so to the end."""


@pytest.fixture(autouse=True)
def stood(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    close = steps._Iterator._close

    def noted(self: steps._Iterator, standing: Any, frame: FrameType) -> None:
        close(self, standing, frame)
        STOOD.append(standing.trips * standing.period)

    monkeypatch.setattr(steps._Iterator, "_close", noted)
    STOOD.clear()
    yield
    STOOD.clear()


def _copies(args: tuple[Any, ...]) -> list[Any]:
    return [a.copy() if isinstance(a, Array) else a for a in args]


def run(fn: Callable[..., Any], *args: Any, alike: bool) -> Traced:
    """Trace, and compare results and the arguments after the call with NumPy's; ``alike``: whether steps stood."""
    traced = trace(fn, tuple(_copies(args)))
    mine, others = _copies(args), _copies(args)
    leaves = [a for a in mine if isinstance(a, Array)]
    got, want = traced.rebuild(evaluate(traced.graph, traced.given(leaves)), leaves), fn(*others)
    for x, y in zip((got, *mine), (want, *others), strict=True):
        _agree(x, y)
    found = [loop for node in traced.graph.nodes() if (loop := of_loop(node))]
    assert bool(STOOD) == alike
    if alike:
        assert max(loop.trips for loop in found) * 3 > N - 40
    return traced


def _agree(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            _agree(x, y)
    elif want is not None:
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        assert np.asarray(got).dtype == np.asarray(want).dtype


def normal(*shape: int) -> Array:
    return 0.3 * np.random.default_rng(shape).standard_normal(shape)


# Steps that are alike


def heat(u: Array, n: int) -> Array:
    for _ in range(n):
        u = u.copy()
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


def in_place(u: Array, n: int) -> None:
    for _ in range(n):
        u[1:-1] += 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2])


def in_turn(u: Array, v: Array, n: int) -> Array:
    for _ in range(n):
        v[1:-1] = 0.5 * (u[2:] + u[:-2])
        u, v = v, u
    return u


def three_in_turn(a: Array, b: Array, c: Array, n: int) -> tuple[Array, Array]:
    for _ in range(n):
        c[...] = 0.5 * a + 0.4 * b
        a, b, c = b, c, a
    return a, b


def recurrent(x: Array, w: Array, n: int) -> tuple[Array, Array, int]:
    h = np.zeros(x.shape)
    step = -1
    for step in range(0, 2 * n, 2):  # noqa: B007
        z = np.tanh(h @ w + x)
        h = 0.5 * h + 0.5 * z
    return h, z, step


def through_helpers(x: Array, n: int) -> Array:
    scale = 0.5

    def half(v: Array) -> Array:
        return scale * v

    def inner(v: Array, times: int) -> Array:
        for _ in range(times):
            v = np.sin(v) + half(v)
        return v

    return inner(x, n)


def nested(u: Array, n: int) -> Array:
    for _ in range(3):
        for _ in range(n):
            u = 0.9 * u + 0.1 * u[::-1]
        u = u + 1
    return u


def nested_under_one_name(u: Array, n: int) -> Array:
    for _ in range(n):
        for _ in range(3):
            u = 0.9 * u + 0.1 * u[::-1]
    return u


def in_containers(x: Array, n: int) -> Array:
    state = {"pos": [x, x + 1], "dt": 0.01}
    for _ in range(n):
        p, v = state["pos"]
        state["pos"] = [p + state["dt"] * v, v - state["dt"] * p]
    return state["pos"][0]


def aliased(x: Array, n: int) -> tuple[Array, Array, Array]:
    first = x
    part = x[1:]
    for _ in range(n):
        x[:-1] += 0.1 * part
    return first, part, x


def backwards(x: Array, n: int) -> Array:
    for _ in range(n, 0, -1):
        x = 0.5 * x + 1
    else:
        x = x * 2
    return x


def constant_scratch(x: Array, n: int) -> Array:
    mask = np.arange(x.size) % 2 == 0
    for _ in range(n):
        w = np.full(x.size, 0.5)
        w[0] = 0.25
        x = np.where(mask, w * x, x - 0.1)
    return x


def the_same(x: Array, n: int) -> Array:
    y = x
    for _ in range(n):
        y = np.sin(x)
    return y


def exchanged(x: Array, y: Array, n: int) -> tuple[Array, Array]:
    x, y = x + 1, y + 1
    for _ in range(n):
        x, y = y, x
    return x, y


def left_behind(x: Array, n: int) -> tuple[Array, Array]:
    old = x
    for _ in range(n):
        old = x
        x = 0.7 * x + 0.2
    return old, x


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (heat, (normal(6, 7), N)),
        (in_place, (normal(9), N)),
        (in_turn, (normal(9), normal(9), N)),
        (in_turn, (normal(9), normal(9), N + 1)),
        *((three_in_turn, (normal(4), normal(5)[:4].copy(), normal(6)[:4].copy(), N + k)) for k in range(3)),
        (recurrent, (normal(5), normal(5, 5), N)),
        (through_helpers, (normal(4), N)),
        (nested, (normal(5), N)),
        (nested_under_one_name, (normal(5), N)),
        (in_containers, (normal(3), N)),
        (aliased, (normal(6), N)),
        (backwards, (normal(4), N)),
        (constant_scratch, (normal(5), N)),
        (left_behind, (normal(5), N)),
    ],
)
def test_one_step_stands_for_those_like_it(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    run(fn, *args, alike=True)


def test_tracing_takes_no_longer_for_more_steps() -> None:
    few, many = (len(trace(heat, (normal(6, 7), n)).graph.nodes()) for n in (N, 1_000_000))
    assert few == many
    assert sum(STOOD) > 1_000_000 - 50


def test_steps_before_and_after_are_trips() -> None:
    traced = trace(heat, (normal(6, 7), N))
    (loop,) = (of_loop(node) for node in traced.graph.nodes() if of_loop(node))
    assert loop is not None
    assert loop.trips == N
    assert absorbed(traced.graph) is traced.graph


def test_trips_are_not_absorbed_where_their_values_are_wanted() -> None:
    traced = run(left_behind, normal(5), N, alike=True)
    assert len({of_loop(node) for node in traced.graph.nodes() if of_loop(node)}) == 1


def test_steps_that_change_nothing() -> None:
    run(exchanged, normal(3), normal(4)[:3].copy(), N, alike=False)
    trace(the_same, (normal(3), N))
    x = normal(3)
    traced = trace(the_same, (x, N))
    np.testing.assert_array_equal(evaluate(traced.graph, [x])[0], np.sin(x))
    assert len(traced.graph.nodes()) == 2


def test_names_that_have_a_state_are_not_plain() -> None:
    assert not {"random", "seed", "seterr", "append", "isscalar", "nditer", "vectorize", "pop", "send"} & attributes()


def test_few_steps_are_all_traced() -> None:
    trace(heat, (normal(6, 7), steps.LEAST_STEPS - 1))
    assert not STOOD


# Steps that are not


def at_one_step(x: Array, n: int) -> Array:
    for t in range(n):
        x = 0.5 * x + (1 if t == n - 7 else 0)
    return x


def by_table(x: Array, n: int) -> Array:
    table = [k % 7 for k in range(n)]
    for t in range(n):
        x = 0.5 * x + table[t]
    return x


def by_number(x: Array, n: int) -> Array:
    for t in range(n):
        x = 0.5 * x + t * 0.01
    return x


def by_array(x: Array, n: int) -> Array:
    for t in range(n):
        x = 0.5 * x + np.array([t, t + 1.0, 1.0])
    return x


def counted(x: Array, n: int) -> tuple[Array, int]:
    k = 0
    for _ in range(n):
        k += 1
        x = 0.5 * x + k
    return x, k


def counted_apart(x: Array, n: int) -> Array:
    count = [0]

    def next_count() -> int:
        count[0] += 1
        return count[0]

    for _ in range(n):
        x = 0.5 * x + next_count()
    return x


def counted_nonlocal(x: Array, n: int) -> Array:
    count = 0

    def next_count() -> int:
        nonlocal count
        count += 1
        return count

    for _ in range(n):
        x = 0.5 * x + next_count()
    return x


class _Counter:
    count = 0

    def more(self) -> int:
        self.count += 1
        return self.count


def counted_by_method(x: Array, n: int) -> Array:
    counter = _Counter()
    for _ in range(n):
        x = 0.5 * x + counter.more()
    return x


def counted_by_attribute(x: Array, n: int) -> Array:
    def f() -> None: ...

    f.count = 0  # type: ignore[attr-defined]
    for _ in range(n):
        f.count += 1  # type: ignore[attr-defined]
        x = 0.5 * x + f.count  # type: ignore[attr-defined]
    return x


def appended(x: Array, n: int) -> Array:
    found = []
    for _ in range(n):
        x = 0.9 * x
        found.append(x)
    return np.stack(found)


def iterated(x: Array, n: int) -> Array:
    numbers = iter(range(n + 5))
    for _ in range(n):
        x = 0.5 * x + next(numbers)
    return x


def generated(x: Array, n: int) -> Array:
    def numbers() -> Iterator[int]:
        k = 0
        while True:
            k += 1
            yield k

    made = numbers()
    for _, k in zip(range(n), made, strict=False):
        x = 0.5 * x + k
    for _ in range(n):
        for k in made:
            x = 0.5 * x + k
            break
    return x


def drawn(x: Array, n: int) -> Array:
    rng = random.Random(3)
    for _ in range(n):
        x = 0.5 * x + rng.random()
    return x


def drawn_by_numpy(x: Array, n: int) -> Array:
    rng = np.random.default_rng(3)
    for _ in range(n):
        x = 0.5 * x + rng.normal()
    return x


def comprehended(x: Array, n: int) -> Array:
    return np.stack([x * 2 for _ in range(n)])


def yielded(x: Array, n: int) -> Array:
    def some() -> Iterator[Array]:
        y = x
        for _ in range(n):
            y = 0.9 * y
            yield y

    return np.stack(list(some()))


def broken(x: Array, n: int) -> tuple[Array, int]:
    k = 0
    for t in range(n):
        x = 0.5 * x + 1
        k = t
        if t > 200:
            break
    else:
        x = x * 2
    return x, k


def returned(x: Array, n: int) -> Any:
    for t in range(n):
        x = 0.5 * x + 1
        if t == 222:
            return x, t
    return x


def caught(x: Array, n: int) -> Array:
    for t in range(n):
        try:
            x = 0.5 * x + [1, 2, 3][t]
        except IndexError:
            x = 0.25 * x
    return x


def remembered(x: Array, n: int) -> Array:
    last = 0
    for t in range(n):
        x = 0.5 * x + last
        last = t
    return x


def formatted(x: Array, n: int) -> Array:
    for t in range(n):
        x = 0.5 * x + len(f"{t}")
    return x


def hashed(x: Array, n: int) -> Array:
    special = {17: 5.0, 250: 7.0}
    for t in range(n):
        if t in special:
            x = x + special[t]
        x = 0.5 * x
    return x


def known_state(x: Array, n: int) -> Array:
    k = np.zeros(3)
    for _ in range(n):
        k += 1.0
        x = 0.5 * x + k
    return x


def growing(x: Array, n: int) -> Array:
    for _ in range(n):
        x = np.concatenate([x, x[:1] * 0.5])
    return x


def shrinking_view(x: Array, n: int) -> Array:
    y = x
    for _ in range(n):
        y = y[1:] if len(y) > 2 else y
        y = y * 0.99
    return y


def fibonacci(x: Array, n: int) -> Array:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, (a + b) % 1000
        x = 0.5 * x + a
    return x


def unequal_types(x: Array, n: int) -> Array:
    for t in range(n):
        x = 0.5 * x + (1 if isinstance(t, int) else 2) + np.isscalar(t)
    return x


def printed(x: Array, n: int) -> Array:
    for _ in range(n):
        print(end="")
        x = 0.5 * x
    return x


OUTSIDE = {"count": 0.0}


def by_global(x: Array, n: int) -> Array:
    OUTSIDE["count"] = 0.0
    for _ in range(n):
        OUTSIDE["count"] += 0.25
        x = 0.5 * x + OUTSIDE["count"]
    return x


UNLIKE = (
    at_one_step, by_table, by_number, by_array, counted, counted_apart, counted_nonlocal, counted_by_method,
    counted_by_attribute, appended, iterated, generated, drawn, drawn_by_numpy, comprehended, yielded, broken, returned,
    caught, remembered, formatted, hashed, known_state, growing, fibonacci, unequal_types, by_global, printed,
)  # fmt: skip


@pytest.mark.parametrize("fn", UNLIKE)
def test_steps_that_differ_are_all_traced(fn: Callable[..., Any]) -> None:
    run(fn, normal(3), N, alike=False)


def test_steps_that_differ_at_first_only() -> None:
    run(shrinking_view, normal(8), N, alike=True)


def test_a_loop_inside_of_steps_that_differ() -> None:
    def fn(x: Array, n: int) -> Array:
        for t in range(200):
            if t % 100 == 99:
                for _ in range(n):
                    x = 0.5 * x + 1
            x = x + t
        return x

    run(fn, normal(3), N, alike=True)


def test_what_range_is_otherwise() -> None:
    def fn(x: Array, n: int) -> tuple[Array, int, list[int], int]:
        some = range(n)
        total = 0
        for t in some[:5]:
            total += t
        for t in reversed(range(n)):
            total += t
        assert isinstance(some, range)
        return x * 2, total, list(range(3)), len(range(2, n, 5))

    run(fn, normal(3), N, alike=False)


def test_ranges_of_nothing_and_wrong_ones() -> None:
    def empty(x: Array, n: int) -> Array:
        for _ in range(n, 0):
            x = x * 2
        return x

    run(empty, normal(3), N, alike=False)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        trace(heat, (normal(6, 7), 1e3))


def test_an_error_of_the_last_step_is_the_users() -> None:
    def fn(x: Array, n: int) -> Array:
        for t in range(n):
            if t == n - 1:
                raise LookupError("at the end")
            x = x * 0.5
        return x

    with pytest.raises(LookupError, match="at the end"):
        trace(fn, (normal(3), N))
    assert not STOOD


OPERATIONS: dict[str, Callable[..., Any]] = {
    "damp": lambda a, b: 0.5 * a + 0.1,
    "mix": lambda a, b: 0.4 * a + 0.3 * b,
    "turn": lambda a, b: 0.9 * a[::-1],
    "wave": lambda a, b: np.sin(a) + 0.2 * b,
    "least": lambda a, b: np.minimum(a, b) + 0.01,
    "scaled": lambda a, b: a / (1 + np.abs(b).sum()),
}


@settings(max_examples=a_part(40), deadline=None)
@given(
    body=st.lists(
        st.one_of(
            st.tuples(st.just("new"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(sorted(OPERATIONS))),
            st.tuples(st.just("write"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(sorted(OPERATIONS))),
            st.tuples(st.just("part"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(sorted(OPERATIONS))),
            st.tuples(st.just("swap"), st.integers(0, 2), st.integers(0, 2), st.just("damp")),
            st.tuples(st.just("name"), st.integers(0, 2), st.integers(0, 2), st.just("damp")),
            st.tuples(st.just("at"), st.integers(0, 2), st.integers(0, 299), st.just("damp")),
        ),
        min_size=1,
        max_size=5,
    ),
    n=st.integers(130, 140),
)
def test_random_bodies(body: list[tuple[str, int, int, str]], n: int) -> None:
    """Arrays made anew, written to as a whole and in part, that swap places, get two names, or change at one step."""

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array, Array]:
        kept = a
        state = [a, b, c]
        for t in range(n):
            for kind, i, j, name in body:
                if kind == "new":
                    state[i] = OPERATIONS[name](state[i], state[j])
                elif kind == "write":
                    state[i][...] = OPERATIONS[name](state[i], state[j])
                elif kind == "part":
                    state[i][1:3] = OPERATIONS[name](state[i], state[j])[:2]
                elif kind == "swap":
                    state[i], state[j] = state[j], state[i]
                elif kind == "name":
                    state[i] = state[j]
                elif t == j:
                    state[i] = state[i] + 1
        return kept, state[0], state[1], state[2]

    args = normal(4), normal(5)[:4].copy(), normal(6)[:4].copy()
    traced = trace(fn, tuple(_copies(args)))
    mine, others = _copies(args), _copies(args)
    got, want = traced.rebuild(evaluate(traced.graph, traced.given(mine)), mine), fn(*others)
    for x, y in zip((*got, *mine), (*want, *others), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_compiled() -> None:
    for fn, args in ((heat, (normal(6, 7), N)), (in_turn, (normal(9), normal(9), N + 1)), (in_place, (normal(9), N))):
        mine, others = _copies(args), _copies(args)
        compiled = eqsat.optimize(fn, cache=False, check_speed=False)
        got, want = compiled(*mine), fn(*others)
        if want is not None:
            np.testing.assert_allclose(got, want, rtol=1e-9)
        for x, y in zip(mine, others, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9)
