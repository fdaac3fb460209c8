"""Verification: wrong rules and wrong kernels are found, right ones are not accused; what runs without a kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import eqsat
import eqsat_backends.numba_cpu.printing.emit as emitters
from eqsat import compiled, nn, rules
from eqsat.deadline import NEVER
from eqsat.errors import VerificationError
from eqsat.explain.listing import program
from eqsat.frontends.trace import trace
from eqsat.ir.evaluate import evaluate, evaluate_nodes
from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.node import ConstArray
from eqsat.ir.types import float32
from eqsat.plan import fallback
from eqsat.rules import rewrite, tensors
from eqsat.verify import draws
from eqsat.verify.bounds import compare, gross_errors
from eqsat.verify.draws import Draws
from eqsat.verify.judge import Judge
from eqsat.verify.operators import OPERATORS
from eqsat.verify.programs import Program
from eqsat.verify.strategies import programs
from eqsat.verify.ties import nearly_right
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from tests.reports import one_line
from tests.sweeps import a_part

a, b = tensors("a b")
rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


@contextmanager
def added(rule: rules.Rule) -> Iterator[None]:
    rules.add(rule, check=False)
    try:
        yield
    finally:
        rules.remove(rule.id)


UNSOUND = {
    "exp is free": (rewrite(np.exp(a), a, id="wrong.exp"), lambda x, y: np.exp(x) + y),
    "a product is its factor": (rewrite(a @ b, b, id="wrong.matmul"), lambda x, y: (x @ y) + 1),
    "less than turned round": (rewrite(np.exp(a) < b, a > b, id="wrong.less"), lambda x, y: np.exp(x) < y),
    "off by a thousandth": (rewrite(np.tanh(a), a * 0.999, id="wrong.tanh"), lambda x, y: np.tanh(x * 0.01) * y),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_rule_is_found(name: str) -> None:
    rule, fn = UNSOUND[name]
    x, y = normal(12, 12), normal(12, 12)
    with added(rule):
        f = eqsat.optimize(fn)
        for _ in range(2):  # nothing wrong is kept
            with pytest.raises(VerificationError) as caught:
                f(x, y)
        unchecked = eqsat.optimize(fn, verify=False)
        wrong = unchecked(x, y)
        assert not np.allclose(wrong, fn(x, y), rtol=1e-5)
        assert unchecked.compile(x, y).report["search"]["matches"][rule.id]["fired"]
        right = eqsat.optimize(fn, disable=rule.id)
        np.testing.assert_allclose(right(x, y), fn(x, y), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(eqsat.optimize(fn)(x, y), fn(x, y), rtol=1e-4, atol=1e-4)
    names: dict[str, Any] = {}
    with added(rule), pytest.raises(VerificationError):  # the program to paste fails alike
        exec(caught.value.program, names)
    exec(caught.value.program, names)  # without the rule it runs, and is the function
    given_args = names["args"]
    np.testing.assert_allclose(names["f"](*given_args)[0], fn(*given_args), rtol=1e-4, atol=1e-4)


SMALL_BESIDE_LARGE = {
    "joined": lambda x, y: np.concatenate([x * 1e6, np.tanh(y)]),
    "one row": lambda x, y: np.concatenate([x[:1] * 1e5, np.tanh(y)]),
    "double": lambda x, y: np.concatenate([x * 1e20, np.tanh(y.astype(np.float64))]),
}


@pytest.mark.parametrize("name", SMALL_BESIDE_LARGE)
def test_a_wrong_small_value_is_found_beside_large_ones(name: str) -> None:
    fn = SMALL_BESIDE_LARGE[name]
    x, y = normal(12, 12), normal(12, 12)
    np.testing.assert_allclose(eqsat.optimize(fn)(x, y), fn(x, y), rtol=1e-5, atol=1e-5)
    with added(rewrite(np.tanh(a), a, id="wrong.tanh")), pytest.raises(VerificationError):
        eqsat.optimize(fn)(x, y)


def overflowing(n: Any, x: Any) -> Any:
    """``log(exp(y))`` is infinite where ``exp`` overflows, ``y`` is not; the inverse makes finite numbers of both."""
    y = np.log(np.exp(np.einsum("a,bcd->bcd", n, x)))
    return np.linalg.inv(np.swapaxes(y, -1, -2) @ y + 2 * np.eye(1))


@pytest.mark.parametrize("doubtful", ["log_exp", "view_view"], ids=["inexact", "exact"])
def test_what_is_refused_is_compiled_without_inexact_rules(monkeypatch: pytest.MonkeyPatch, doubtful: str) -> None:
    x, n = rng.uniform(-56, 56, (40, 1, 1)), rng.integers(-6, 7, 40).astype(np.int32)
    tried: list[tuple[str, ...]] = []

    def refusing(*args: Any) -> Any:
        tried.append(args[2].disable)
        if doubtful not in args[2].disable:  # as verification does on some of the values that it draws
            error = VerificationError("output 0 is off by inf")
            error.rules = frozenset({doubtful})
            raise error
        return compiled.Compiled(*args)

    monkeypatch.setattr("eqsat.making.Compiled", refusing)
    with np.errstate(over="ignore"):
        with pytest.raises(VerificationError):
            eqsat.optimize(overflowing, strict=True)(n, x)
        assert tried == [()]
        optimized = eqsat.optimize(overflowing, check_speed=False)
        if doubtful == "view_view":  # a fault in what is exact is told, and NumPy runs the function
            with pytest.warns(eqsat.EqsatWarning, match="off by inf"):
                optimized(n, x)
        np.testing.assert_allclose(optimized(n, x), overflowing(n, x), rtol=1e-9)
    assert tried == [(), (), *([("log_exp",)] if doubtful == "log_exp" else [])]


def test_what_rounding_leaves_of_a_cancellation_is_no_gross_error() -> None:
    for fn in (
        lambda x, y: (x + 1e4 * y) - 1e4 * y,
        lambda x, y: (x - x.mean()).sum() + 0 * y,
        lambda x, y: (x @ y) - (x @ (y + 1)) + x.sum(axis=1, keepdims=True),
        lambda x, y: np.floor((x * y - y * x) * 1e6 + y),
        lambda x, y: np.var(x * 1e-3 + 100, axis=0) * y,
    ):
        for dtype in (np.float32, np.float64):
            eqsat.optimize(fn)(normal(24, 24).astype(dtype), normal(24, 24).astype(dtype))


def test_gross_errors_are_in_units_of_the_element() -> None:
    exact = np.concatenate([np.logspace(-6, 6, 200), [0.0]])
    reference = (exact * (1 + 1e-7)).astype(np.float32)
    assert not gross_errors(reference, exact, reference).any()
    for n in (0, 50, 150, 199):
        ours = reference.copy()
        ours[n] *= 1.1
        assert np.flatnonzero(gross_errors(ours, exact, reference)).tolist() == [n]


def _sabotaged(expr: Expr) -> Expr:
    if isinstance(expr, Call):
        fn = {"add": "sub", "maximum": "minimum"}.get(expr.fn, expr.fn)
        return replace(expr, fn=fn, args=tuple(_sabotaged(arg) for arg in expr.args))
    return expr


def test_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = emitters.emit_group

    def wrong(group: KernelGroup, nest: Any, machine: Any, *more: Any) -> Emitted:
        kernels = [
            replace(s.kernel, body=_sabotaged(s.kernel.body), epilogue=_sabotaged(s.kernel.epilogue))
            for s in group.stages
        ]
        stages = tuple(replace(s, kernel=k) for s, k in zip(group.stages, kernels, strict=True))
        return emit(replace(group, stages=stages), nest, machine)

    def fn(x: Any, y: Any) -> Any:
        return np.maximum(x + y, 0.25) * 3

    x, y = normal(7, 5), normal(7, 5)
    with monkeypatch.context() as patch:
        patch.setattr(emitters, "emit_group", wrong)
        with pytest.raises(VerificationError, match="NumPy's own error"):
            eqsat.optimize(fn, strict=True)(x, y)
    np.testing.assert_allclose(eqsat.optimize(fn)(x, y), fn(x, y), rtol=1e-6)


# What is no error


JUMPS: dict[str, Callable[..., Any]] = {
    "sign of a product": lambda x, w: (x @ w) > 0,
    "choice": lambda x, w: np.where(x @ w > 0, 1.0, -1.0),
    "floor": lambda x, w: np.floor(x @ w * 50),
    "integers": lambda x, w: (x @ w * 1000).astype(np.int32),
    "argmax": lambda x, w: (x @ w).round(1).argmax(axis=1),
    "cancelling sum": lambda x, w: (x - x.mean()).sum() + w.sum() * 0.0,
}


@pytest.mark.parametrize("name", JUMPS)
def test_rounding_that_jumps_is_no_error(name: str) -> None:
    fn = JUMPS[name]
    x, w = normal(300, 64), normal(64, 200)
    f = eqsat.optimize(fn)
    found, expected = f(x, w), fn(x, w)
    assert np.mean(np.asarray(found) != expected) < 0.02 or np.allclose(found, expected, atol=1.01)
    assert all(e.ok for e in f.compile(x, w).errors)


finite = st.floats(-100, 100, width=32)


@given(st.lists(finite, min_size=1, max_size=20), st.integers(0, 19), st.floats(0.01, 10))
def test_compare_sees_one_wrong_element(values: list[float], at: int, factor: float) -> None:
    exact = np.array(values)
    reference = exact.astype(np.float32)
    assert compare(reference.copy(), exact, reference).ok
    wrong = reference.copy()
    wrong[at % len(values)] += np.float32(factor * (1 + abs(exact).max()))
    assert not compare(wrong, exact, reference).ok
    noisy = [reference * np.float32(1 + 1e-6), reference * np.float32(1 - 1e-6)]
    assert not compare(wrong, exact, reference, noisy).ok
    wrong[at % len(values)] = np.nan
    assert not compare(wrong, exact, reference, noisy).ok


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_compare_wants_the_same_special_values(special: float) -> None:
    exact = np.array([1.0, special, 2.0])
    reference = exact.astype(np.float32)
    assert compare(reference.copy(), exact, reference).ok
    for other in {0.0, np.inf, -np.inf} - {special}:
        wrong = reference.copy()
        wrong[1] = other
        assert not compare(wrong, exact, reference).ok


def test_compare_of_integers_types_and_shapes() -> None:
    whole = np.arange(5)
    assert compare(whole, whole, whole).ok
    assert not compare(whole + 1, whole, whole).ok
    assert not compare(whole.astype(np.int32), whole, whole).ok
    assert not compare(whole[None], whole, whole).ok
    jump = np.array([0, 1, 2, 3, 5])
    assert not compare(jump, whole, whole, [whole]).ok
    assert compare(jump, whole, whole, [whole, jump]).ok  # noise on the reference moves it as far


def positions(x: Any, w: Any) -> Any:
    return np.argmax(np.tanh(x @ w), axis=1, keepdims=True)


def test_positions_among_near_ties_are_no_error() -> None:
    """A saturated tanh ties hundreds of values, and another order of summation picks another of them."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((200, 65), (65, 129)))
    optimized = eqsat.optimize(positions, cache=False)
    chosen = np.take_along_axis(np.tanh(x @ w), optimized(x, w), 1)
    np.testing.assert_allclose(chosen[:, 0], np.tanh(x @ w).max(1), rtol=1e-6)


def test_positions_that_are_no_near_tie_are_errors() -> None:
    rng = np.random.default_rng(0)
    traced = trace(positions, (np.zeros((20, 8), np.float32), np.zeros((8, 30), np.float32)))
    graph = traced.graph
    bound = {
        node: rng.standard_normal(node.type.shape).astype(np.float32) / 4 for node in graph.inputs
    }  # no saturation
    (right,) = evaluate_nodes(graph.outputs, bound)
    near = nearly_right(graph.outputs[0], right, bound, 16.0, 16.0)
    far = nearly_right(graph.outputs[0], (right + 1) % 30, bound, 16.0, 16.0)
    outside = nearly_right(graph.outputs[0], right + 30, bound, 16.0, 16.0)
    assert near is not None
    assert near.all()
    assert far is not None
    assert not far.any()
    assert outside is not None
    assert not outside.any()
    poisoned = {node: np.where(np.arange(value.shape[1]) == 3, np.nan, value) for node, value in bound.items()}
    excused = nearly_right(graph.outputs[0], right, poisoned, 16.0, 16.0)
    assert excused is not None
    assert not excused.any()
    plain = trace(lambda x: np.argmax(x.T, axis=0), (np.zeros((20, 8), np.float32),)).graph
    given_as_they_are = nearly_right(plain.outputs[0], right[:, 0], {plain.inputs[0]: np.zeros((20, 8))}, 16.0, 16.0)
    assert given_as_they_are is not None  # of equals it is the first
    assert not given_as_they_are.any()


def test_a_position_between_two_that_tie_is_an_error() -> None:
    """The greatest two of a row of a product lie at its ends; what lies between is far smaller."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal((1, 50)).astype(np.float32)
    w = np.concatenate([np.full((50, 1), 0), rng.standard_normal((50, 20)), np.zeros((50, 1))], axis=1)
    w[:, 0] = w[:, -1] = row[0] * (1 + 1e-8 * rng.standard_normal(50))
    w = w.astype(np.float32)
    w[0, -1] = np.nextafter(w[0, -1], np.float32(2))
    programs: dict[str, Callable[[Any, Any], Any]] = {
        "argmax": lambda x, w: np.argmax(x @ w, axis=1),
        "argmin": lambda x, w: np.argmin(-(x @ w), axis=1),
        "argsort": lambda x, w: np.argsort(x @ w, axis=1),
        "after a step": lambda x, w: np.argmax(np.round(x @ w), axis=1),
        "masked": lambda x, w: np.argmax(np.where(np.arange(22) == 5, np.float32(-np.inf), x @ w), axis=1),
    }
    for name, fn in programs.items():
        graph = trace(fn, (row, w)).graph
        (right,) = evaluate_nodes(graph.outputs, dict(zip(graph.inputs, (row, w), strict=True)))

        def seen(ours: Any, graph: Any = graph) -> Any:
            drawn = Draws(graph, graph.inputs, (row, w))
            return Judge(graph, {}, lambda given: [ours], drawn, "reassociates", "", 1 << 28, NEVER).examine(draws.OWN)

        last = right[..., -1:]
        assert last[0] in (0, 21), name
        seen(right)
        other, wrong = right.copy(), right.copy()
        if name == "argsort":
            other[0, -2:] = right[0, :-3:-1]
            wrong[0, -1] = right[0, 3]
        else:
            other[:], wrong[:] = 21 - last, 9
        seen(other)
        with pytest.raises(VerificationError, match="off by"):
            seen(wrong)


def test_positions_of_what_is_given_are_those_that_numpy_finds() -> None:
    x = np.array([[1.0, 0.0, np.nextafter(np.float32(1), np.float32(2))]], np.float32)
    graph = trace(lambda x: np.argmax(x, axis=1), (x,)).graph
    for wrong in (0, 1):
        ours = np.array([wrong])
        judge = Judge(
            graph, {}, lambda given, ours=ours: [ours], Draws(graph, graph.inputs, (x,)), "exact", "", 1 << 28, NEVER
        )
        with pytest.raises(VerificationError, match="off by"):
            judge.examine(draws.OWN)


def ranking(x: Any) -> Any:
    return np.argsort(np.tanh(x @ x.T), axis=1)


def test_orders_among_near_ties_are_no_error() -> None:
    x = np.random.default_rng(1).standard_normal((120, 40)).astype(np.float32) * 2
    order = eqsat.optimize(ranking, cache=False)(x)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(120), (120, 120)))
    sorted_by_it = np.take_along_axis(np.tanh(x @ x.T), order, 1)
    np.testing.assert_allclose(sorted_by_it, np.sort(np.tanh(x @ x.T), axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shown", [lambda p: p, lambda p: p[:, ::-1], lambda p: p.T[:4]])
def test_orders_that_are_no_near_tie_are_errors(shown: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    graph = trace(lambda x: shown(ranking(x)), (np.zeros((9, 4), np.float32),)).graph
    (node,) = graph.inputs
    bound = {node: rng.standard_normal(node.type.shape).astype(np.float32) / 4}  # no saturation
    (right,) = evaluate_nodes(graph.outputs, bound)

    def judged(ours: Any) -> Any:
        found = nearly_right(graph.outputs[0], ours, bound, 16.0, 16.0)
        assert found is not None
        return found

    assert judged(right).all()
    wrong = right.copy()
    wrong[0, 0], wrong[0, -1] = right[0, -1], right[0, 0]
    assert not judged(wrong).all()
    assert judged(wrong)[1:].all() or shown(np.zeros((2, 3))).shape != (2, 3)
    twice = right.copy()
    twice[2, 1] = right[2, 0]
    assert not judged(twice).all()
    assert not judged(right + 9).any()
    tied = {node: np.zeros_like(bound[node])}
    (any_order,) = evaluate_nodes(graph.outputs, tied)
    other = any_order.max() - any_order  # as good, where all is equal
    assert nearly_right(graph.outputs[0], other, tied, 16.0, 16.0).all()  # type: ignore[union-attr]
    named_twice = nearly_right(graph.outputs[0], np.zeros_like(other), tied, 16.0, 16.0)
    assert named_twice is not None
    assert not named_twice.any()


# Plans of constants


def test_a_plan_is_verified_for_each_value_of_its_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding uses the values: a rule may be right for those that were verified and wrong for others."""

    def fn(x: Any, w: Any) -> Any:
        return x @ np.abs(w)

    rule = rewrite(np.abs(a), a, id="wrong.abs")
    x, first, other = normal(5, 6), np.abs(normal(6, 7)), normal(6, 7)
    verified = []
    real = compiled.verify
    monkeypatch.setattr(compiled, "verify", lambda *given, **more: verified.append(1) or real(*given, **more))
    with added(rule):
        for weights, count in ((first, 1), (first.copy(), 1), (first + 1, 2), (first, 2)):
            program = eqsat.optimize(fn, const="w").compile(x, weights)
            assert len(verified) == count
            assert program.cached == (weights is not first or count > 1)
        with pytest.raises(VerificationError):
            eqsat.optimize(fn, const="w")(x, other)
        np.testing.assert_allclose(eqsat.optimize(fn, const="w")(x, first), fn(x, first), rtol=1e-5, atol=1e-5)


# Operators without a kernel


def softmax_of_product(x: Any, w: Any) -> Any:
    y = x @ w
    e = np.exp(y - y.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _kinds(f: Any, *args: Any) -> set[str]:
    return {step.kind for step in f.explain(*args).steps}


@pytest.mark.parametrize("failure", ["emitter", "compiler"])
@pytest.mark.parametrize("most", [1, 0])
def test_kernel_that_cannot_be_generated(
    failure: str, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    emit = emitters.emit_group

    def fails(group: KernelGroup, nest: Any, machine: Any, *more: Any) -> Emitted:
        if len(group.stages) <= most:
            return emit(group, nest, machine, *more)
        if failure == "emitter":
            raise NotImplementedError("no such loop")
        return replace(
            emit(group, nest, machine, *more), source="def phase(args, tid, nt):\n    open(args)\n", phases=("phase",)
        )

    x, w = normal(6, 9), normal(9, 11)
    f = eqsat.optimize(softmax_of_product)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "eqsat"):
        patch.setattr(emitters, "emit_group", fails)
        np.testing.assert_allclose(f(x, w), softmax_of_product(x, w), rtol=1e-5, atol=1e-7)
    assert "no kernel could be generated" in caplog.text
    assert _kinds(f, x, w) <= ({"stages", "kernel"} if most else {"reference"})
    words = "one kernel per stage" if most else "through the NumPy reference"
    assert words in one_line(f.explain(x, w))
    again = eqsat.optimize(softmax_of_product)  # such a plan is not kept
    np.testing.assert_allclose(again(x, w), softmax_of_product(x, w), rtol=1e-5, atol=1e-7)
    assert not again.compile(x, w).cached and _kinds(again, x, w) == {"kernel"}


def test_index_out_of_range_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(group: KernelGroup, nest: Any, machine: Any, *more: Any) -> Emitted:
        raise NotImplementedError

    monkeypatch.setattr(emitters, "emit_group", fails)
    f = eqsat.optimize(lambda table, ids: table[ids] + 1)
    table = normal(5, 2)
    np.testing.assert_allclose(f(table, np.array([1, -1])), table[[1, -1]] + 1)
    with pytest.raises(IndexError):
        f(table, np.array([1, 5]))


def test_operators_that_run_through_the_reference() -> None:
    def fn(x: Any) -> Any:
        y = np.sort(x * 2, axis=-1) + 1
        return y, np.cumsum(y, axis=0), x

    x = normal(5, 6)
    f = eqsat.optimize(fn)
    for found, expected in zip(f(x), fn(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert not np.shares_memory(found, x)
    assert "reference" in _kinds(f, x)
    assert "through the NumPy reference" in one_line(f.explain(x))


@given(
    st.integers(1, 7), st.integers(1, 6), st.integers(1, 5), st.integers(1, 40), st.sampled_from(["sum", "max", None])
)
@settings(max_examples=a_part(40))
def test_interpreting_in_pieces(m: int, n: int, k: int, points: int, combine: Any) -> None:
    operands = (Operand(float32, m * k), Operand(float32, k * n))
    inner = (k,) if combine else ()
    body = Call(
        "mul",
        (Load(0, 0, (k, 0, 1)[: 2 + len(inner)], float32), Load(1, 0, (0, 1, n)[: 2 + len(inner)], float32)),
        float32,
    )
    kernel = Kernel((m, n, *inner), 2, combine, body, Acc(float32), operands, Operand(float32, m * n), 0, (n, 1))
    twice = Kernel(
        (n, m), 2, None, Call("neg", (Load(0, 0, (1, n), float32),), float32), Acc(float32),
        (Operand(float32, m * n),), Operand(float32, m * n), 0, (m, 1),
    )  # fmt: skip
    group = KernelGroup(
        (Stage(kernel, (0, 1), None), Stage(twice, (FromStage(0),), 2)), 0, (*operands, twice.out), (2,)
    )
    x, y = normal(m, k), normal(k, n)
    products = x[:, None, :] * y.T[None]
    value = {"sum": products.sum(-1), "max": products.max(-1), None: products[..., 0]}[combine]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback, "POINTS", points)
        out = np.zeros(m * n, np.float32)
        fallback.interpret(group, [x.reshape(-1), y.reshape(-1), out])
        np.testing.assert_allclose(out.reshape(n, m), -value.T, rtol=1e-5, atol=1e-5)
        made: list[Any] = []
        parts = fallback.split(group, (7, 8, 9), lambda type: made.append(type) or 10)
        assert [p.tensors for p in parts] == [(7, 8, 10), (10, 9)]
        buffers = {7: x.reshape(-1), 8: y.reshape(-1), 9: np.zeros(m * n, np.float32), 10: np.zeros(m * n, np.float32)}
        for part in parts:
            fallback.interpret(part.group, [buffers[t] for t in part.tensors])
        np.testing.assert_array_equal(buffers[9], out)


PRINTED = tuple(
    name
    for name, builder in OPERATORS.items()
    if builder.__module__.endswith((".operators", ".shape_operators", ".write_operators"))
    and name not in ("parts", "compound")
)
"""Loops, steps of libraries and complex numbers are listed only."""


@given(programs(2, 12, PRINTED))
@settings(max_examples=a_part(40), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_graph_as_a_program_is_that_graph(drawn: Program) -> None:
    """What a failure prints to paste: traced again it computes the same, bit by bit."""
    arrays = drawn.arrays()
    function = drawn.function({"nn": nn, "eqsat": eqsat}, {i.name: arrays[i.name] for i in drawn.inputs if i.captured})
    given_to = tuple(arrays[name] for name in drawn.parameters)
    assume(all(a.dtype.kind != "c" for a in arrays.values()))
    with np.errstate(all="ignore"):
        traced = trace(function, given_to)
        text = program(traced.graph)
        names: dict[str, Any] = {}
        compile(text, "<listing>", "exec")
        exec(text[: text.index("\nargs = ")], names)
        large = [n.attrs.array for n in traced.graph.nodes() if isinstance(n.attrs, ConstArray)]
        names.update((f"c{k}", array) for k, array in enumerate(a for a in large if a.size > 32))
        leaves = [np.asarray(a, order="C") for a in given_to]
        want = evaluate(traced.graph, leaves)
        again = trace(names["f"], tuple(leaves))
        for got in (evaluate(again.graph, leaves), names["f"](*leaves)):
            for g, w in zip(got, want, strict=True):
                assert (np.asarray(g).dtype, np.shape(g)) == (w.dtype, w.shape), text
        for g, w in zip(evaluate(again.graph, leaves), want, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=text)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0 + 1,
        lambda x: x / x,
        lambda x: (x - x).sum(axis=-1),
        lambda x: np.isnan(x / x),
        lambda x: np.where(x * 0 < 1, x, -x).max(),
    ],
)
@pytest.mark.parametrize("type", [np.float32, np.float64, np.int64])
def test_what_approximates_may_lose_is_not_held_against_it(function: Callable[[Any], Any], type: Any) -> None:
    x = np.array([[0, 1, 2, 3], [-1, 0, 5, 7]], type)
    if x.dtype.kind == "f":
        x[0, 1:3] = np.nan, np.inf
    with np.errstate(all="ignore"):
        got = eqsat.optimize(function, numerics="approximates", cache=False)(x)
        expected = np.asarray(function(x))
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if got.dtype.kind == "f":
        sure = np.isfinite(expected)
        np.testing.assert_allclose(got[sure], expected[sure])


@pytest.mark.parametrize("divisor", [0.5, 1.0, -0.5, -1.0, 0.25])
@pytest.mark.parametrize("seed", range(4))
def test_what_rounding_moves_over_the_edge_of_a_jump_is_no_error(divisor: float, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((1, 3))
    d = np.float32(divisor)  # whose own rounding would hide that of the difference
    function = eqsat.optimize(lambda x, d: np.remainder(x - (x + 1), d), backend="numpy", cache=False)
    off = np.abs(function(x, np.asarray(d)))
    assert (np.minimum(off, abs(divisor) - off) < 1e-12).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_may_lie_beyond_samples_by_half_of_what_noise_does(dtype: type) -> None:
    info = np.iinfo(dtype)
    reference = np.array([10, 10, 10, 10, 10, 7, info.max - 1, info.min], dtype)
    samples = [reference, np.array([14, 14, 14, 14, 14, 7, info.max - 5, info.min + 1], dtype)]
    ours = np.array([16, 8, 17, 7, 12, 8, info.max, info.max], dtype)

    def held(i: int, ordered: bool) -> bool:
        one = slice(i, i + 1)
        exact, seen = reference[one].astype(np.float64), [sample[one] for sample in samples]
        return compare(ours[one], exact, reference[one], seen, ordered=ordered).ok

    found = [held(i, False) for i in range(8)]
    assert found == [True, True, False, False, True, False, True, False]
    assert not held(0, True)
