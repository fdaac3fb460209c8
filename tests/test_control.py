"""``scan``, ``fori_loop``, ``while_loop`` and ``cond``: traced they mean what they mean outside of tracing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.explain.listing import program
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import Loop, of_loop
from eqsat.ir.node import Graph
from tests.sweeps import a_part

Array = np.ndarray
F = np.float32
BACKENDS = pytest.mark.parametrize("backend", ["numba_cpu", "numpy"])


def normal(*shape: int, seed: int = 0) -> Array:
    return (0.3 * np.random.default_rng((seed, *shape)).standard_normal(shape)).astype(F)


@dataclass
class State:
    position: Array
    speed: Array


def leaves(value: Any) -> list[Array]:
    if isinstance(value, State):
        return [value.position, value.speed]
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in leaves(v)]
    if isinstance(value, tuple | list):
        return [leaf for v in value for leaf in leaves(v)]
    return [] if value is None else [np.asarray(value)]


def loops(graph: Graph) -> list[Loop]:
    return list(dict.fromkeys(found for node in graph.nodes() if (found := of_loop(node)) is not None))


def agree(got: Any, expected: Any) -> None:
    assert len(leaves(got)) == len(leaves(expected))
    for one, other in zip(leaves(got), leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def recurrent(xs: Array, w: Array) -> Any:
    def step(h: Array, x: Array) -> Any:
        h = np.tanh(x + h @ w)
        return h, (h * 2, x.sum())

    return eqsat.scan(step, np.zeros(w.shape[0], F), xs)


def backwards(xs: Array, w: Array) -> Any:
    return eqsat.scan(lambda h, x: (h * F(0.5) + x[0], {"h": h @ w}), xs[0], (xs,), reverse=True)


def spring(x: Array) -> Any:
    def step(s: State, _: None) -> tuple[State, None]:
        speed = s.speed - F(0.1) * s.position
        return State(s.position + F(0.1) * speed, speed), None

    return eqsat.scan(step, State(x, x * 0), None, length=25)


def counted(x: Array) -> Any:
    return eqsat.scan(lambda c, r: ((c[0] + r, c[1] + 1), c), (0.0, 0), x)


def neighbours(x: Array) -> Any:
    """Elements at the loop's own number, before and behind it."""
    return eqsat.fori_loop(1, x.shape[0] - 1, lambda i, s: s + x[i + 1] * x[i] - x[:, 0][i - 1], x[0])


def backward_index(x: Array) -> Any:
    return eqsat.fori_loop(0, x.shape[0], lambda i, s: s * F(0.5) + x[-1 - i], x[0])


def in_place(x: Array) -> Any:
    def step(i: Any, y: Array) -> Array:
        y[1:] += F(0.5) * y[:-1]
        y[0] = x[i, 0]
        return y

    return eqsat.fori_loop(0, x.shape[0], step, x[0])


def nested(x: Array, w: Array) -> Any:
    def outer(c: Array, row: Array) -> Any:
        inner = eqsat.fori_loop(0, 9, lambda j, v: np.sin(v) @ w + row + c[j % 2], row)
        return c * F(0.9) + inner, inner

    return eqsat.scan(outer, x[0], x)


def halves(x: Array) -> Any:
    return eqsat.while_loop(lambda c: np.abs(c[0]).max() > F(1e-3), lambda c: (c[0] * F(0.5), c[1] + 1), (x, 0))


def never(x: Array) -> Any:
    return eqsat.while_loop(lambda c: c.sum() > F(1e9), lambda c: np.sin(c) * c, x)


def up_to(x: Array, n: Any) -> Any:
    return eqsat.fori_loop(0, n, lambda i, c: np.cos(c) + x[i % 3], x[0])


def either(x: Array) -> Any:
    return eqsat.cond(x.sum() > 0, lambda a: (a + 1, a.max()), lambda a: (np.exp(a), a.min()), x)


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (recurrent, (normal(30, 8), normal(8, 8))),
    (backwards, (normal(12, 3, 5), normal(5, 5))),
    (spring, (normal(7),)),
    (counted, (normal(20),)),
    (neighbours, (normal(15, 15),)),
    (backward_index, (normal(15, 4),)),
    (in_place, (normal(9, 6),)),
    (nested, (normal(6, 4), normal(4, 4))),
    (halves, (normal(9),)),
    (never, (normal(9),)),
    (up_to, (normal(4, 5), np.int64(7))),
    (either, (normal(9),)),
]


@BACKENDS
@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_traced_as_plain(fn: Callable[..., Any], args: tuple[Any, ...], backend: str) -> None:
    copies = [np.array(a) for a in args]
    expected = fn(*args)
    compiled = eqsat.optimize(fn, backend=backend)
    for _ in range(2):
        agree(compiled(*args), expected)
    for before, after in zip(copies, args, strict=True):
        np.testing.assert_array_equal(before, after)
    graph = trace(fn, args).graph
    assert bool(loops(graph)) == (fn is not either)


@BACKENDS
@pytest.mark.parametrize("trips", [0, 1, 2])
def test_few_trips(trips: int, backend: str) -> None:
    def f(xs: Array) -> Any:
        return eqsat.scan(lambda c, x: (np.sin(c) + x, c * 2), np.ones(3, F), xs, reverse=True)

    xs = normal(trips, 3)
    agree(eqsat.optimize(f, backend=backend)(xs), f(xs))


def test_results_that_are_not_changed_are_copies() -> None:
    x = normal(9)
    result = eqsat.optimize(never)(x)
    assert not np.shares_memory(result, x)


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("begin", [np.array(4, np.int32), np.int32(4)], ids=["array", "scalar"])
def test_what_is_carried_without_axes_is_a_scalar(begin: Any, trips: int) -> None:
    """Views of arrays without axes would write to them, copies of scalars do not: in all trips, and behind the last."""

    def counted(x: Any) -> Any:
        def step(i: Any, v: Any) -> Any:
            before = v * 1
            v.ravel().fill(0)
            return np.asarray(v + before)

        return eqsat.fori_loop(0, trips, step, x)

    def asked(x: Any) -> Any:
        after = eqsat.while_loop(lambda c: c[0] < trips, lambda c: (c[0] + 1, np.asarray(c[1] * 2)), (np.int64(0), x))
        after[1].ravel().fill(0)
        return after[1]

    def scanned(x: Any) -> Any:
        after, rows = eqsat.scan(lambda c, y: (np.asarray(c + c), np.asarray(c)), x, np.arange(trips))
        after.ravel().fill(0)
        return after, rows

    for fn in (counted, asked, scanned):
        expected = fn(begin.copy())
        last = expected[0] if isinstance(expected, tuple) else expected
        assert isinstance(last, np.int32) and last == 4 << trips
        agree(eqsat.optimize(fn, strict=True)(begin.copy()), fn(begin.copy()))


@pytest.mark.parametrize("sign", [-1, 1])
def test_branches_return_arrays_of_their_own(sign: int) -> None:
    def asked(x: Array, sign: Any) -> Any:
        y = x + 1
        z = eqsat.cond(sign > 0, lambda a: a[1:], lambda a: a[:-1], y)
        z[0] = 5
        return y, z

    def known(x: Array, sign: Any) -> Any:
        y = x + 1
        z = eqsat.cond(x.shape[0] > 3, lambda a: a, lambda a: a * 2, y)
        z[0] = 5
        return y, z

    for fn in (asked, known):
        x = normal(5)
        np.testing.assert_array_equal(fn(x, np.int64(sign))[0], x + 1)
        agree(eqsat.optimize(fn, strict=True)(x, np.int64(sign)), fn(x, np.int64(sign)))


WRITES: dict[str, Callable[[Any], object]] = {
    "fill": lambda c: c.fill(2.0),
    "put": lambda c: np.put(c, 0, 5.0),
    "flat": lambda c: c.flat.__setitem__(0, 5.0),
    "real": lambda c: np.real(c).fill(4.0),
    "no copy": lambda c: c.astype(float, copy=False).fill(4.0),
    "array": lambda c: np.asarray(c).__setitem__(..., 5.0),
    "copyto": lambda c: np.copyto(np.asarray(c), 7.0),
    "result": lambda c: (c * 1).fill(9.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_scalars_are_lost_or_refused(name: str) -> None:
    """Nothing is held against NumPy that a loop of unknown length computes."""

    def f(x: Any, trips: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            WRITES[name](c)
            return c + 1

        return eqsat.fori_loop(0, trips, step, x)

    try:
        found = eqsat.optimize(f, strict=True)(np.float64(3), np.int64(4))
    except eqsat.errors.UnsupportedOpError as error:
        assert "scalar is written to" in str(error)
    else:
        assert found == f(np.float64(3), np.int64(4)) == 7.0


def test_what_is_carried_shares_memory_with_nothing() -> None:
    outer = np.arange(3.0)

    def one_array_twice(x: Array, trips: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            a, b = c
            a += 1
            b = b * 2
            return b, b

        return eqsat.fori_loop(0, trips, step, (x, x))

    def from_outside(x: Array, trips: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            c += 1
            return outer

        return eqsat.fori_loop(0, trips, step, x)

    def turned(x: Array, trips: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            c.reshape(-1)[:3].fill(i + 7.0)
            return c.T

        return eqsat.fori_loop(0, trips, step, np.outer(x, x))

    def asked_in_place(x: Array, trips: Any) -> Any:
        def more(c: Any) -> Any:
            c += 1
            return c.sum() < 10 * trips

        return eqsat.while_loop(more, lambda c: c * 2, x)

    for fn in (one_array_twice, from_outside, turned, asked_in_place):
        for trips in map(np.int64, (0, 1, 2, 5)):
            x = np.arange(3.0) + 2
            agree(eqsat.optimize(fn, strict=True)(x.copy(), trips), fn(x, trips))
            np.testing.assert_array_equal(x, np.arange(3.0) + 2)
    np.testing.assert_array_equal(outer, np.arange(3.0))
    rows = np.ones((3, 2))
    last = eqsat.scan(lambda c, row: (row, c), np.zeros(2), rows)[0]
    last[0] = 9
    np.testing.assert_array_equal(rows, np.ones((3, 2)))


def test_loops_without_a_trip_do_not_fail() -> None:
    x = np.zeros(0)
    assert eqsat.while_loop(lambda c: c[1] != 0, lambda c: (c[1], c[0] % c[1]), (17, 0)) == (17, 0)
    assert eqsat.fori_loop(0, len(x), lambda i, s: s + x[i], np.float64(2)) == 2
    assert eqsat.fori_loop(0, len(x), lambda i, s: s + x[i], 2) == 2
    assert eqsat.fori_loop(0, 0, lambda i, s: s + np.float32(1), 2).dtype == np.float32
    with pytest.raises(IndexError):
        eqsat.fori_loop(0, 1, lambda i, s: s + x[i], 2)


def test_numbers_and_complex_ones_are_carried_alike() -> None:
    z = normal(4).astype(np.complex64) * 1j + 2

    def squared(z: Array) -> Any:
        return eqsat.scan(lambda c, row: (c * row + 1j, (c, row.real)), 1j, z, reverse=True)

    def turned(z: Array) -> Any:
        return eqsat.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * (0.6 + 0.8j)), (0, z))

    def truth(z: Array) -> Any:
        return eqsat.fori_loop(0, 3, lambda i, v: ~v, True)

    for fn in (squared, turned, truth):
        expected = leaves(fn(z))
        for one, other in zip(leaves(eqsat.optimize(fn, strict=True)(z)), expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
    "given", [np.ma.masked_array([1.0, 2.0], [0, 1]), np.asmatrix(np.eye(2))], ids=["masked", "matrix"]
)
def test_arrays_that_mean_something_else_are_not_carried(given: Any) -> None:
    with pytest.raises(eqsat.errors.UnsupportedDTypeError, match=r"mask would be lost|operators are not an array's"):
        eqsat.fori_loop(0, 2, lambda i, v: v * v, given)
    with pytest.raises(eqsat.errors.UnsupportedDTypeError, match=r"eqsat\.scan"):
        eqsat.scan(lambda c, row: (c + row, None), 0.0, given)
    assert type(eqsat.cond(True, lambda a: a, lambda a: a, given)) is type(given)


UNTAKEN: dict[str, Callable[[Array, Any], Any]] = {
    "index": lambda x, n: eqsat.cond(n < 3, lambda: x[n], lambda: x[0]),
    "write": lambda x, n: eqsat.cond(n < 3, lambda: written(x, n), lambda: x),
    "take": lambda x, n: eqsat.cond(n < 3, lambda: np.take(x, n), lambda: x[-1]),
    "power": lambda x, n: eqsat.cond(n >= 0, lambda: np.arange(3) ** n, lambda: np.arange(3)),
    "nested": lambda x, n: eqsat.cond(
        n < 3, lambda: eqsat.cond(n >= 0, lambda: x[n], lambda: x[n + 5]), lambda: x[n - 5]
    ),
    "in a loop": lambda x, n: eqsat.fori_loop(0, 6, lambda i, s: eqsat.cond(i < n, lambda: s + x[i], lambda: s), 0.0),
    "a loop": lambda x, n: eqsat.cond(
        n < 3, lambda: eqsat.fori_loop(0, 4, lambda i, s: s * 2 + x[n], 0.0), lambda: x[1]
    ),
    "for ever": lambda x, n: eqsat.cond(
        n > 0, lambda: eqsat.while_loop(lambda v: v < 10, lambda v: v + n, np.int64(0)), lambda: n * 2
    ),
}


def written(x: Array, n: Any) -> Array:
    y = x.copy()
    y[n] = 5
    return y


@pytest.mark.parametrize("name", UNTAKEN)
def test_a_branch_that_is_not_taken_neither_fails_nor_runs_for_ever(name: str) -> None:
    fn, x = UNTAKEN[name], np.arange(1.0, 4.0)
    optimized = eqsat.optimize(fn, strict=True)
    for n in map(np.int64, (2, 0, 1, 7, -2)):
        try:
            expected = fn(x, n)
        except IndexError:
            with pytest.raises(IndexError):
                optimized(x, n)
        else:
            agree(optimized(x, n), expected)


def test_what_was_computed_before_a_branch_fails_as_it_did() -> None:
    def f(x: Array, n: Any) -> Any:
        y = x[n]
        return eqsat.cond(n < 3, lambda: y * 2, lambda: x[0])

    optimized = eqsat.optimize(f, strict=True)
    assert optimized(np.arange(3.0), np.int64(1)) == 2.0
    with pytest.raises(IndexError):
        optimized(np.arange(3.0), np.int64(4))


@given(st.integers(1, 12), st.integers(0, 5), st.booleans(), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=a_part(40), deadline=None)
def test_scans_are_python_loops(trips: int, extent: int, reverse: bool, kept: int, read: int) -> None:
    xs, w = normal(trips, extent), normal(extent, 3, seed=1)

    def f(xs: Array, w: Array) -> Any:
        def step(c: tuple[Array, Array], x: Array) -> Any:
            a, b = c
            a, b = (b + x, a * F(0.5)) if read else (a - b, b + x[::-1])
            return (a, b), [None, a, (a, x), (w.sum(0), b)][kept]

        return eqsat.scan(step, (np.zeros(extent, F), xs[0]), xs, reverse=reverse)

    expected = leaves(f(xs, w))
    for one, other in zip(evaluate(trace(f, (xs, w)).graph, (xs, w)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_body_is_traced_once_however_many_trips() -> None:
    calls = []

    def f(x: Array) -> Array:
        def step(i: Any, v: Array) -> Array:
            calls.append(i)
            return np.sin(v) + x

        found: Array = eqsat.fori_loop(0, 100_000, step, x)
        return found

    graph = trace(f, (normal(4),)).graph
    assert len(calls) == 1 and len(graph.nodes()) < 10


def test_elements_at_the_loops_own_number_are_windows() -> None:
    graph = trace(neighbours, (normal(15, 15),)).graph
    (found,) = loops(graph)
    assert sorted(set(found.steps)) == [1, 15]
    assert not any(node.op == "gather" for node in found.body.nodes())


def add(c: Any, x: Any) -> Any:
    return c + x, None


def test_what_is_beside_a_loop_of_unknown_length_is_held_against_numpys() -> None:
    def differs(x: Array) -> tuple[Array, Array]:
        loop = eqsat.while_loop(lambda c: np.abs(c).max() > F(1e-3), lambda c: c * F(0.5), x)
        return loop, x + (1 if type(x) is np.ndarray else 2)

    with pytest.raises(eqsat.VerificationError, match="output 1 has other values when NumPy runs the function"):
        eqsat.optimize(differs, strict=True, cache=False)(normal(3))


WRONG: list[tuple[str, Callable[[Array], Any], str]] = [
    (
        "carry is float32\\[\\] before a trip, and float64\\[\\] after",
        lambda x: eqsat.scan(add, F(0), x.astype(float)),
        "CarryError",
    ),
    ("float32\\[3\\]", lambda x: eqsat.scan(lambda c, r: (np.stack([c, c, c]), None), F(0), x), "CarryError"),
    ("before a trip, and tuple", lambda x: eqsat.scan(lambda c, r: ((c, c), None), F(0), x), "CarryError"),
    ("not a carry and a result", lambda x: eqsat.scan(lambda c, r: c, F(0), x), "CarryError"),
    ("different numbers: 4, 9", lambda x: eqsat.scan(add, F(0), x, length=4), "ShapeError"),
    ("neither xs nor length", lambda x: eqsat.scan(add, F(0)), "ShapeError"),
    ("no rows", lambda x: eqsat.scan(add, F(0), x[0]), "ShapeError"),
    ("condition has shape", lambda x: eqsat.while_loop(lambda c: c > 0, lambda c: c, x), "ShapeError"),
    ("condition has shape", lambda x: eqsat.cond(x > 0, np.sin, np.cos, x), "ShapeError"),
    ("one branch returns", lambda x: eqsat.cond(x[0] > 9, lambda: x, lambda: x[1:]), "CarryError"),
]


@pytest.mark.parametrize(("said", "fn", "error"), WRONG, ids=[f"{n} {said}" for n, (said, _, _) in enumerate(WRONG)])
def test_mistakes_are_told_at_the_users_line(said: str, fn: Callable[[Array], Any], error: str) -> None:
    for run in (eqsat.optimize(fn, strict=True), fn):
        if run is fn and "branch" in said:
            continue  # a branch that is not taken is not seen
        with pytest.raises(getattr(eqsat.errors, error), match=said) as caught:
            run(normal(9))
        assert caught.value.where is not None and "test_control" in str(caught.value.where)


def test_arrays_from_outside_are_not_written_to() -> None:
    def traced(x: Array) -> Any:
        total = x * 0

        def step(i: Any, v: Array) -> Array:
            total[0] += v[i]
            return v

        return eqsat.fori_loop(0, 4, step, x)

    def known(x: Array) -> Any:
        total = np.zeros_like(x)

        def step(i: Any, v: Array) -> Array:
            total[0] += 1
            return v

        return eqsat.fori_loop(0, 4, step, x)

    def row(xs: Array) -> Any:
        def step(c: Array, x: Array) -> Any:
            x[0] = 1
            return c + x, None

        return eqsat.scan(step, np.zeros(3, F), xs)

    for fn in (traced, known):
        with pytest.raises(eqsat.errors.UnsupportedOpError, match="writes to an array from outside"):
            eqsat.optimize(fn, strict=True)(normal(9))
    with pytest.raises(eqsat.errors.ReadOnlyError, match="row"):
        eqsat.optimize(row, strict=True)(normal(4, 3))


def test_what_a_body_has_does_not_leave_it() -> None:
    def f(x: Array) -> Any:
        found = []

        def step(i: Any, v: Array) -> Array:
            found.append(np.sin(v))
            return v + 1

        eqsat.fori_loop(0, 4, step, x)
        return found[0]

    with pytest.raises(eqsat.errors.ConcretizationError, match="outside of it"):
        eqsat.optimize(f, strict=True)(normal(9))


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_the_program_that_a_failure_prints_runs(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    graph = trace(fn, args).graph
    source = program(graph)
    space: dict[str, Any] = {}
    exec(source[: source.index("\n\nargs = ")], space)
    for one, other in zip(evaluate(graph, list(map(np.asarray, args))), space["f"](*args), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_explanations_count_trips() -> None:
    def f(x: Array) -> Array:
        found: Array = eqsat.fori_loop(0, 1000, lambda i, v: np.sin(v) + x, x)
        return found

    told = eqsat.optimize(f).explain(normal(50))
    assert "× 1,000 trips" in str(told)
    assert told.naive.flops == told.optimized.flops == 1000 * 2 * 50
    assert told.naive.kernels == 2000 and told.optimized.kernels == sum(step.trips for step in told.steps)


@pytest.mark.parametrize("trips", [(3, 4, 5), (4, 3, 6), (2, 2, 1)])
def test_several_loops_in_the_body_of_one(trips: tuple[int, int, int]) -> None:
    one, other, outer = trips

    def body(i: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = carry
        first: Array = eqsat.fori_loop(0, one, lambda j, v: np.sin(v) + b, a)
        second: Array = eqsat.fori_loop(0, other, lambda j, v: v * 0.5 + a, b)
        return first, second

    def f(x: Array, y: Array) -> tuple[Array, Array]:
        found: tuple[Array, Array] = eqsat.fori_loop(0, outer, body, (x, y))
        return found

    x, y = np.arange(5.0), np.ones(5)
    for got, want in zip(eqsat.optimize(f, strict=True)(x, y), f(x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
