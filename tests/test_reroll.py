"""Loops found again in traces: the same values as the unrolled program, by every way of running it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.compiled import Compiled
from eqsat.deadline import Deadline, OutOfTime
from eqsat.explain.listing import program
from eqsat.frontends import trace as tracing
from eqsat.frontends.trace import trace
from eqsat.ir import build, reroll
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import Loop, loop, of_loop, window
from eqsat.ir.node import Graph
from eqsat.ir.reroll import rerolled
from eqsat.ir.serialize import nodes_from_json, nodes_to_json
from eqsat.ir.types import TensorType, float32
from tests.sweeps import a_part, crossed

Array = np.ndarray


pytestmark = pytest.mark.usefixtures("loops_stay")


def normal(*shape: int, seed: int = 0) -> Array:
    return (0.3 * np.random.default_rng((seed, *shape)).standard_normal(shape)).astype(np.float32)


def rnn(x: Array, w: Array, u: Array, b: Array) -> Array:
    h = np.zeros((x.shape[1], w.shape[1]), np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w + h @ u + b)
    return h


def lstm(x: Array, wi: Array, wh: Array, b: Array) -> tuple[Array, Array]:
    n = wh.shape[0]
    h, c, out = np.zeros((x.shape[0], n), np.float32), np.zeros((x.shape[0], n), np.float32), []
    for t in range(x.shape[1]):
        g = x[:, t] @ wi + h @ wh + b
        i, f, o = (1 / (1 + np.exp(-g[:, k * n : (k + 1) * n])) for k in range(3))
        c = f * c + i * np.tanh(g[:, 3 * n :])
        h = o * np.tanh(c)
        out.append(h)
    return np.stack(out, 1), c


def heat(u: Array) -> Array:
    for _ in range(60):
        inner = u[1:-1, 1:-1]
        u = np.pad(inner + 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner), 1)
    return u


def wave(before: Array, now: Array) -> Array:
    for k in range(100):
        bent = np.roll(now, 1) - 2 * now + np.roll(now, -1)
        before, now = now, 2 * now - before + np.float32(0.1 * np.sin(0.1 * k)) * bent
    return now


def gains(z: Array) -> tuple[Array, Array]:
    """Numbers that are repeated along an axis and alternate."""
    x, p = np.zeros(z.shape[1], z.dtype), np.ones(z.shape[1], z.dtype)
    out = np.empty_like(z)
    for t in range(z.shape[0]):
        p[:] = 0.5 if t % 2 else 0.25
        x = x + p * (z[t] - x)
        out[t] = x
    return x, out


def nested(x: Array) -> Array:
    for _ in range(12):
        y = x
        for _ in range(80):
            y = np.sin(y) * np.float32(0.5) + x
        x = y - x
    return x


def backwards(x: Array) -> Array:
    total = x[0] * 0
    for t in range(x.shape[0] - 1, -1, -1):
        total = total * np.float32(0.9) + x[t] * np.exp(np.tanh(total))
    return total


def rows(a: Array) -> Array:
    out = []
    for row in a:
        e = np.exp(row - row.max())
        out.append(e / e.sum())
    return np.stack(out)


def to_and_fro(a: Array, b: Array) -> tuple[Array, Array]:
    """Jacobi's method: each half of a trip reads what the other one wrote, and leaves its borders."""
    a, b = a.copy(), b.copy()
    for _ in range(40):
        for u, v in ((a, b), (b, a)):
            v[1:-1, 1:-1] = np.float32(0.25) * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return a, b


def two_steps_back(now: Array, before: Array) -> Array:
    for _ in range(41):
        new = np.zeros_like(now)
        new[1:-1] = 2 * now[1:-1] - before[1:-1] + np.float32(0.2) * (now[:-2] - 2 * now[1:-1] + now[2:])
        before, now = now, new
    return now


def fibonacci(a: Array, b: Array) -> list[Array]:
    """Every value is wanted, and reads two trips back."""
    found = [a, b]
    for _ in range(90):
        found.append(np.cos(found[-1]) - np.float32(0.5) * found[-2])
    return found[2:]


def shortest_paths(a: Array) -> Array:
    """Floyd's: each trip reads a row and a column of what the trip before made."""
    a = a.copy()
    for k in range(a.shape[0]):
        a[:] = np.minimum(a[:], np.add.outer(a[:, k], a[k, :]))
    return a


def along(x: Array) -> Array:
    """Reads parts of what is carried that move, forwards and backwards, along both axes."""
    for t in range(40):
        moved = x[60 - t : 63 - t].max(axis=0) * x[2 * t + 5, ::-1]
        x = np.tanh(x * np.float32(0.9) + moved + x[5:85:9, 3:5].sum())
    return x


def pooled(x: Array) -> Array:
    """Loops inside of one another over windows of an argument, each result written to its place."""
    out = np.empty((x.shape[0] // 2, x.shape[1] // 3, x.shape[2]), x.dtype)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].max(axis=(0, 1))
    return out


def by_blocks(a: Array, b: Array) -> Array:
    """Three loops inside of one another; the innermost adds up."""
    n, c = 4, np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for i in range(0, a.shape[0], n):
        for j in range(0, b.shape[1], n):
            for k in range(0, a.shape[1], n):
                c[i : i + n, j : j + n] += a[i : i + n, k : k + n] @ b[k : k + n, j : j + n]
    return c


PROGRAMS: list[tuple[Callable[..., Any], tuple[Array, ...]]] = [
    (shortest_paths, (normal(60, 60),)),
    (along, (normal(90, 7),)),
    (rnn, (normal(60, 4, 8), normal(8, 8, seed=1), normal(8, 8), normal(8))),
    (lstm, (normal(4, 32, 8), normal(8, 64), normal(16, 64), normal(64))),
    (heat, (normal(20, 33),)),
    (wave, (normal(50), normal(50, seed=1))),
    (gains, (normal(90, 6),)),
    (nested, (normal(10),)),
    (to_and_fro, (normal(70, 80), normal(70, 80, seed=1))),
    (two_steps_back, (normal(5000), normal(5000, seed=1))),
    (backwards, (normal(100, 5),)),
    (rows, (normal(100, 7),)),
    (fibonacci, (normal(3, 3), normal(3, 3, seed=1))),
    (pooled, (normal(24, 30, 3),)),
    (by_blocks, (normal(32, 36), normal(36, 40, seed=1))),
]
EACH = pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])


def unrolled(fn: Callable[..., Any], args: tuple[Array, ...], monkeypatch: pytest.MonkeyPatch) -> Graph:
    with monkeypatch.context() as context:
        context.setattr(tracing, "rerolled", lambda graph, *_, **__: graph)
        return trace(fn, args).graph


def loops(graph: Graph) -> list[Loop]:
    return list(dict.fromkeys(found for node in graph.nodes() if (found := of_loop(node)) is not None))


def leaves(result: Any) -> list[Array]:
    return [np.asarray(a) for a in result] if isinstance(result, tuple | list) else [np.asarray(result)]


@EACH
def test_a_loop_stands_for_its_iterations(
    fn: Callable[..., Any], args: tuple[Array, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = unrolled(fn, args, monkeypatch), trace(fn, args).graph
    assert loops(after) and not loops(before)
    assert 8 * len(after.nodes()) < len(before.nodes()) or fn is fibonacci
    for double in (False, True):
        expected, got = evaluate(before, args, double=double), evaluate(after, args, double=double)
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("fn", [to_and_fro, two_steps_back])
def test_large_values_go_to_and_fro_without_copies(fn: Callable[..., Any]) -> None:
    """No trip returns what it was given, whole or as a view, and no more than two values are carried."""
    (args,) = (args for name, args in PROGRAMS if name is fn)
    (found,) = loops(trace(fn, args).graph)
    assert found.trips == (40 if fn is to_and_fro else 20)
    assert not found.stacks
    assert found.carries == 2
    assert all(node.op == "concat" for node in found.body.outputs)


@crossed(case=PROGRAMS, threads=[1, 2])
def test_loops_are_compiled(case: tuple[Callable[..., Any], tuple[Array, ...]], threads: int) -> None:
    fn, args = case
    compiled = eqsat.optimize(fn, threads=threads)
    expected = leaves(fn(*(a.astype(np.float64) for a in args)))
    for _ in range(2):
        for one, other in zip(expected, leaves(compiled(*args)), strict=True):
            np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-5)
    plan = compiled.compile(*args)
    assert plan.executable.direct is not None or fn is fibonacci  # type: ignore[union-attr]


def test_steps_of_a_loop_are_timed() -> None:
    """Also where its trips read a table of constants, which kernels alone need otherwise."""
    optimized = eqsat.optimize(wave, cache=False, check_speed=False)
    args = (normal(50), normal(50, seed=1))
    optimized(*args)
    assert "measured" in str(optimized.explain(*args))


@EACH
def test_loops_run_by_numpy(fn: Callable[..., Any], args: tuple[Array, ...]) -> None:
    compiled = eqsat.optimize(fn, backend="numpy")
    for one, other in zip(leaves(fn(*args)), leaves(compiled(*args)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


@EACH
def test_loops_are_written_out_and_read(fn: Callable[..., Any], args: tuple[Array, ...]) -> None:
    graph = trace(fn, args).graph
    arrays = {node.attrs.digest: node.attrs for node in graph.nodes() if node.op == "const"}  # type: ignore[attr-defined]
    for found in loops(graph):
        arrays |= {node.attrs.digest: node.attrs for node in found.body.nodes() if node.op == "const"}  # type: ignore[attr-defined]
    again = nodes_from_json(nodes_to_json(graph.outputs), arrays.__getitem__)
    assert tuple(again) == graph.outputs  # interned


def test_programs_that_differ_in_a_loop_alone_have_other_keys() -> None:
    keys = set()
    for trips in (60, 61):
        for factor in (0.5, 0.25):

            def f(x: Array, trips: int = trips, factor: float = factor) -> Array:
                for _ in range(trips):
                    x = np.sin(x) * np.float32(factor) - np.cos(x) + x
                return x

            keys.add(trace(f, (normal(4),)).graph.key())
    assert len(keys) == 4


def test_short_programs_stay_as_they_are() -> None:
    def f(x: Array) -> Array:
        total = x[:-30] * 0
        for k in range(30):
            total = total + x[k : k + total.shape[0]] * np.float32(k)
        return total

    assert not loops(trace(f, (normal(200),)).graph)


def test_an_iteration_that_is_unlike_the_others_ends_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Array) -> Array:
        for t in range(120):
            x = np.sin(x) * np.float32(0.5) + x[::-1]
            if t == 70:
                x = np.abs(x)
        return x

    args = (normal(9),)
    graph = trace(f, args).graph
    assert sorted(found.trips for found in loops(graph)) != [120]
    assert len(loops(graph)) >= 1
    for one, other in zip(evaluate(unrolled(f, args, monkeypatch), args), evaluate(graph, args), strict=True):
        np.testing.assert_array_equal(one, other)


STEPS: list[Callable[..., Array]] = [
    lambda x, y, t, xs: np.sin(x) + y,
    lambda x, y, t, xs: x * np.float32(0.5) - xs[t],
    lambda x, y, t, xs: np.maximum(y, xs[2 * t + 1]) * x,
    lambda x, y, t, xs: np.where(x > y, x, xs[-1 - t]),
    lambda x, y, t, xs: x + np.float32(0.01 * t) * y,
    lambda x, y, t, xs: x[::-1] + np.float32(t % 3),
    lambda x, y, t, xs: np.tanh(x @ xs[:, 0][: x.shape[0]] + y),
    lambda x, y, t, xs: np.concatenate([x[1:], y[:1]]),
    lambda x, y, t, xs: np.concatenate([x[:1], np.cos(x[1:]) - y[1:]]),
    lambda x, y, t, xs: np.where(x[::-1] > y, y[::-1], x),
    lambda x, y, t, xs: np.cumsum(x)[: x.shape[0]] * np.float32(0.1),
]


@pytest.mark.parametrize("passed", [1, reroll.PASSED_BYTES])
@given(st.data())
@settings(max_examples=a_part(60), deadline=None)
def test_random_recurrences(passed: int, data: st.DataObject) -> None:
    """Two values, each made by a random step of both, of the trip, and of rows of a table; some of them are kept."""
    chosen = data.draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=5))
    trips, extent = data.draw(st.integers(25, 60)), data.draw(st.integers(1, 5))
    kept = data.draw(st.sampled_from([0, 1, 2, 7]))
    odd = data.draw(st.sampled_from([None, 0, 3, 17, trips - 1]))

    def f(x: Array, y: Array, xs: Array) -> tuple[Array, ...]:
        found = []
        for t in range(trips):
            for n, step in enumerate(chosen):
                x, y = (step(x, y, t, xs), x) if n % 2 else (y, step(x, y, t, xs))
            if t == odd:
                x = -x
            if kept and t % kept == 0:
                found.append(x)
        return (*found, x, y)

    args = (normal(extent), normal(extent, seed=1), normal(2 * trips + 1, extent))
    with pytest.MonkeyPatch.context() as monkeypatch:
        before = unrolled(f, args, monkeypatch)
        monkeypatch.setattr(reroll, "PASSED_BYTES", passed)
        graph = trace(f, args).graph
    for one, other in zip(evaluate(before, args), evaluate(graph, args), strict=True):
        np.testing.assert_array_equal(one, other)


def depth(graph: Graph) -> int:
    """How many loops are inside of one another."""
    return max((1 + depth(found.body) for found in loops(graph)), default=0)


@given(st.data())
@settings(max_examples=a_part(40), deadline=None)
def test_random_loops_inside_of_loops(data: st.DataObject) -> None:
    """Windows of arguments that two loops move, forwards or backwards, results that each writes, sums of a third."""
    n, m = data.draw(st.integers(8, 12)), data.draw(st.integers(8, 12))
    by, across = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    back, transposed, summed = (data.draw(st.booleans()) for _ in range(3))
    odd = data.draw(st.sampled_from([None, (0, 0), (3, 4), (n - 1, m - 1), (n // 2, 0)]))

    def f(x: Array, w: Array) -> tuple[Array, Array]:
        out = np.zeros((m, n) if transposed else (n, m), x.dtype)
        total = w[0]
        for i in range(n):
            for j in range(m):
                k = m - 1 - j if back else j
                part = x[by * i : by * i + 2, across * k : across * k + 3] * w
                if (i, j) == odd:
                    part = -part
                value = part.sum() + x[i, j]
                if summed:
                    total = total * np.float32(0.5) + part[1]
                out[(j, i) if transposed else (i, j)] = value
        return out, total

    args = (normal(2 * n * by + 2, 2 * m * max(across, 1) + 3), normal(2, 3))
    with pytest.MonkeyPatch.context() as monkeypatch:
        before = unrolled(f, args, monkeypatch)
        graph = trace(f, args).graph
    assert odd is not None or not across or depth(graph) == 2
    for one, other in zip(evaluate(before, args), evaluate(graph, args), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("step", [0, 1, 3, -2])
def test_windows_move(step: int) -> None:
    whole = np.arange(20)
    seen = [window(whole, step, 5, trip) for trip in range(5)]
    assert all(s.size == 20 - 4 * abs(step) for s in seen)
    assert [int(b[0] - a[0]) for a, b in pairwise(seen)] == [step] * 4
    assert min(int(s.min()) for s in seen) == 0 and max(int(s.max()) for s in seen) == 19


def test_loops_that_do_not_fit_are_refused() -> None:
    x = build.input_node(0, TensorType((4,), float32))
    body = Graph((x,), (build.call("sin", x),))
    assert [n.shape for n in loop(Loop(3, body, 1, ()), [x])] == [(4,)]
    assert [n.shape for n in loop(Loop(3, body, 0, (0,)), [x])] == [(3, 4)]
    with pytest.raises(ValueError, match="operands for a loop"):
        loop(Loop(3, body, 1, ()), [x, x])
    with pytest.raises(ValueError, match="its body takes"):
        loop(Loop(3, body, 0, (1,)), [x])
    with pytest.raises(ValueError, match="window"):
        loop(Loop(9, body, 0, (1,)), [x])
    short = Graph((x,), (build.take_range(x, 0, 0, 2),))
    with pytest.raises(ValueError, match="carries"):
        loop(Loop(3, short, 1, ()), [x])


def test_one_order_of_operators_gives_one_loop() -> None:
    graph = trace(*PROGRAMS[2]).graph
    assert graph.key() == trace(*PROGRAMS[2]).graph.key()
    assert rerolled(graph, ()) is graph


@EACH
def test_the_program_that_a_failure_prints_has_loops_that_run(fn: Callable[..., Any], args: tuple[Array, ...]) -> None:
    graph = trace(fn, args).graph
    source = program(graph)
    assert "    for t" in source
    space: dict[str, Any] = {}
    exec(source[: source.index("\n\nargs = ")], space)  # compiles nothing, and captures no array
    if " = rng." in source[: source.index("args = ")]:
        return  # another table
    for one, other in zip(evaluate(graph, args), space["f"](*args), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_no_loop_copies_rows_alone() -> None:
    """What a filter multiplies by is known, and settles after a while: its steps are a few loops, whose rows go out."""

    def channels(z: Array) -> Array:
        x, p, out = np.zeros(z.shape[1]), np.ones(z.shape[1]), np.empty_like(z)
        for t in range(len(z)):
            p += 0.01
            k = p / (p + 0.5)
            x += k * (z[t] - x)
            p *= 1 - k
            out[t] = x
        return out

    z = np.random.default_rng(1).standard_normal((1000, 3))
    graph = trace(channels, (z,)).graph
    found = loops(graph)
    assert 1 <= len(found) <= 4
    assert all(any(node.inputs and node.op != "view" for node in each.body.nodes()) for each in found)
    (got,) = evaluate(graph, [z])
    np.testing.assert_allclose(got, channels(z), rtol=1e-12)


@pytest.mark.parametrize(
    ("product", "copies"),
    [
        (lambda x, w: (x @ w) @ x, 0),
        (lambda x, w: x.T @ (x @ w), 0),
        (lambda x, w: np.einsum("ij,i->j", x, x @ w), 0),
        (lambda x, w: (x.T * (x @ w)).sum(axis=1), 1),  # element by element
        (lambda x, w: x[::20].T @ (x[::20] @ w), 2),  # a small part of it
        (lambda x, w: (x.T @ np.stack([x @ w, x @ w + 1], axis=1)).sum(axis=1), 1),  # of two columns
    ],
)
def test_products_with_vectors_read_the_matrix_itself(product: Callable[[Array, Array], Array], copies: int) -> None:
    """Views that stay the same are made once for all trips, unless a product reads each element once, in any order."""

    def steps(x: Array, w: Array) -> Array:
        for _ in range(40):
            w = np.tanh(product(x, w) * 0.01) + w * 0.5 - 0.1
        return w

    args = (normal(40, 30), normal(30, seed=1))
    graph = trace(steps, args).graph
    (operands,) = {node.inputs for node in graph.nodes() if of_loop(node) is not None}
    assert sum(node.op == "view" and node.type.ndim == 2 for node in operands) == copies
    expected = steps(*(a.astype(np.float64) for a in args))
    np.testing.assert_allclose(evaluate(graph, args)[0], expected, rtol=1e-3, atol=1e-4)


def few_blurs(x: Array) -> Array:
    for _ in range(6):
        y = x.copy()
        y[1:-1, 1:-1] = np.float32(0.2) * (x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1])
        x = y
    return x


def few_maxima(x: Array) -> Array:
    z = x
    for _ in range(8):
        z = np.maximum(z * np.float32(0.5) + x, x)
    return z


def test_of_a_short_repetition_the_better_form_is_taken(own_cache: Path) -> None:
    """A stencil's steps as a loop, over arrays; one that goes element by element across its iterations, in one pass."""
    x = np.random.default_rng(0).standard_normal((600, 800)).astype(np.float32)
    for fn, looped in ((few_blurs, True), (few_maxima, False)):
        assert trace(fn, (x,)).rolled is not None
        for cached in (False, True):  # the second time it is remembered
            compiled = eqsat.optimize(fn, threads=1, check_speed=False).compile(x)
            assert isinstance(compiled, Compiled)
            assert (compiled.cached, bool(loops(compiled.traced.graph))) == (cached, looped)
            np.testing.assert_allclose(compiled(x), fn(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def triangle(c: Array, a: Array) -> Array:
    """Loops of as many lengths as there are rows, each of which reads the row before."""
    c = c.copy()
    for i in range(c.shape[0]):
        c[i] += 0.5 * c[i - 1] if i else 0.0
        for k in range(a.shape[1]):
            c[i, : i + 1] += a[i, k] * a[: i + 1, k]
    return c


def test_loops_of_other_lengths_are_found_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    find = reroll._find
    monkeypatch.setattr(reroll, "_find", lambda *given: rounds.append(found := find(*given)) or found)
    c, a = normal(16, 16).astype(np.float64), normal(16, 70, seed=1).astype(np.float64)
    graph = trace(triangle, (c, a)).graph
    assert sum(of_loop(node) is not None for node in graph.nodes()) == 16
    assert len([found for found in rounds if found]) <= 3
    np.testing.assert_allclose(evaluate(graph, [c, a])[0], triangle(c, a), rtol=1e-12)


def test_a_deadline_holds_while_loops_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = PROGRAMS[0]
    with pytest.raises(OutOfTime, match="rolling loops"):
        rerolled(unrolled(fn, args, monkeypatch), deadline=Deadline(0.0))
