"""Operators of one's own: what they compute, that rules name them, what is refused where they are defined."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special

import eqsat
from eqsat import rules
from eqsat.egraph.check import check_rule
from eqsat.errors import OptionError, UnsupportedDTypeError
from eqsat.ir.build import call
from eqsat.ir.defined import Applied
from eqsat.ir.table import OPS, having
from eqsat.rules import op, rewrite, tensors
from eqsat.verify.own_operators import own_softsign

a, b, u, v = tensors("a b u v")
X = np.random.default_rng(0).standard_normal((3, 5))


@eqsat.op(name="test_correlate")
def correlate(x: Any, w: Any, *, step: int = 1) -> Any:
    """The correlation of two vectors."""
    d = eqsat.axis(w.shape[0])
    n = (x.shape[0] - w.shape[0]) // step + 1
    return eqsat.compute((n,), lambda i: eqsat.sum(x[step * i + d] * w[d], over=d))


@eqsat.elementwise(name="test_softsign", odd=True, increasing=True)
def softsign(x: Any) -> Any:
    return np.sign(x) * (1 - 1 / (1 + np.abs(x)))


@eqsat.elementwise(name="test_cauchy", even=True)
def cauchy(x: Any, /) -> Any:
    return 1 / (1 + x * x)


@eqsat.elementwise(name="test_logistic_loss", decreasing=True, reference=lambda x: -special.log_expit(x))
def loss(x: Any) -> Any:
    return np.maximum(-x, 0) + np.log1p(np.exp(-np.abs(x)))


@eqsat.elementwise(name="test_smoothed")
def smoothed(x: Any, width: Any) -> Any:
    return np.sqrt(x * x + width * width)


def test_what_they_compute() -> None:
    """On arrays, and all in one program with rules over them."""
    x, w = np.arange(9.0), np.array([1.0, -2.0, 3.0])

    def program(x: Any, w: Any, y: Any) -> Any:
        return (
            correlate(x, w), correlate(x, w, step=2), softsign(-y), cauchy(-y), loss(y).max(), softsign(y).min(axis=0),
            smoothed(y, 2.0), smoothed(y, y[:1]),
        )  # fmt: skip

    exact = np.correlate(x, w)
    z = X / (1 + np.abs(X))
    expected = (
        exact, exact[::2], -z, 1 / (1 + X**2), np.log1p(np.exp(-X)).max(), z.min(axis=0),
        np.sqrt(X**2 + 4), np.sqrt(X**2 + X[:1] ** 2),
    )  # fmt: skip
    for found in (program(x, w, X), eqsat.optimize(program, strict=True)(x, w, X)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
    single = eqsat.optimize(lambda y: smoothed(y, 2), strict=True)(X.astype(np.float32))
    assert single.dtype == smoothed(X.astype(np.float32), 2).dtype == np.float32
    assert softsign(np.array([1, -3])).tolist() == [0.5, -0.75]
    infinite = np.where(np.arange(20) == 5, np.inf, np.arange(20.0) - 9)
    lowest = eqsat.optimize(lambda y: (softsign(y).min(), softsign(-y).max()), strict=True)
    assert lowest(infinite) == (softsign(-9.0), softsign(9.0))


def test_types_are_the_same_on_arrays_and_in_programs() -> None:
    """Python numbers beside float32, integers, lists; complex numbers and names are refused by both."""
    for given in (np.arange(4, dtype=np.float32), np.arange(4), np.float64(2), np.arange(3, dtype=np.uint8)):
        for fn in (lambda x: smoothed(x, 2), lambda x: smoothed(x, np.pi), lambda x: smoothed(3, x)):
            eager, traced = fn(given), eqsat.optimize(fn, strict=True)(given)
            assert eager.dtype == traced.dtype
            np.testing.assert_allclose(eager, traced, rtol=1e-6)
    assert cauchy([1, 3]).tolist() == [0.5, 0.1]
    complex_numbers = np.arange(4) + 1j
    with pytest.raises(ValueError, match="test_cauchy is not supported for complex numbers"):
        cauchy(complex_numbers)
    with pytest.raises(UnsupportedDTypeError, match="test_cauchy is not supported for complex numbers"):
        eqsat.optimize(lambda x: cauchy(x).real, strict=True)(complex_numbers)
    with pytest.raises(OptionError, match="given by place"):
        smoothed(1.0, width=2.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_without_axes_they_give_scalars_as_ufuncs_do(dtype: type) -> None:
    """A reshaped one is then an array of its own, in programs as on arrays."""

    def filled(x: Any) -> Any:
        y = cauchy(x)
        y.reshape(1, -1).fill(3)
        return y

    x = np.array(1, dtype)
    assert isinstance(cauchy(x), np.generic) and cauchy(x).dtype == np.sqrt(x).dtype
    assert isinstance(cauchy(x[()]), np.generic) and isinstance(cauchy(x.reshape(1)), np.ndarray)
    assert eqsat.optimize(filled, strict=True)(x) == filled(x) == cauchy(x)


def test_floats_of_16_bits_are_rounded_once() -> None:
    """On arrays as in programs: step by step in float16, small results of 1 - 1/(1 + x) had one digit or none."""
    x = np.random.default_rng(1).uniform(-2, 2, (8, 8, 8, 8)).astype(np.float16)
    found = own_softsign(x)
    exact = own_softsign(x.astype(np.float64))
    assert found.dtype == np.float16 and (abs(found - exact) <= 2.0**-11 * abs(exact) + 1e-6).all()
    np.testing.assert_array_equal(eqsat.optimize(lambda x: own_softsign(x), strict=True)(x), found)


def test_rules_name_them() -> None:
    both = rewrite(
        correlate(a, u) + correlate(a, v), correlate(a, u + v), id="t.both",
        where=lambda m: m.u.type == m.v.type and m.root.dtype.is_float,
    )  # fmt: skip
    assert str(both).startswith("t.both: (test_correlate(a, u) + test_correlate(a, v)) -> test_correlate(a, (u + v))")
    assert eqsat.check(both, seconds=1.5).word == "proved"
    wrong = rewrite(correlate(a, u), correlate(u, a), id="t.wrong", where=lambda m: m.a.type == m.u.type)
    assert check_rule(rewrite(softsign(a), cauchy(a), id="t.other")).counterexample is not None
    assert check_rule(wrong, seconds=1).counterexample is None  # of equal lengths it commutes
    built = rewrite(softsign(abs(a)), lambda m: call("abs", softsign(m.a)), id="t.built")
    assert check_rule(built, enough=5).counterexample is None
    other_step = rewrite(correlate(a, u, step=2), a, id="t.step")
    assert "step=2" in str(other_step)


def test_rules_of_the_library_know_their_traits() -> None:
    """Their rules have ways for an operator from where it is defined."""
    assert {"test_softsign"} <= set(having("odd")) & set(having("increasing"))
    for id, name in (
        ("odd_functions", "test_softsign"), ("even_functions", "test_cauchy"),
        ("max_of_monotone", "test_softsign"), ("max_of_decreasing", "test_logistic_loss"),
    ):  # fmt: skip
        rule = rules.get(id)
        of_it = [way for way in rule.ways if name in repr(way.left)]
        assert of_it, id
        result = check_rule(rules.Rule(**{**vars(rule), "ways": tuple(of_it)}), enough=5)
        assert result.fired and result.counterexample is None
    report = eqsat.optimize(lambda x: loss(x).max(), strict=True).explain(X)
    assert "max_of_decreasing" in str(report)


def raising(x: Any) -> Any:
    raise RuntimeError("no")


def writing(x: Any) -> Any:
    x *= 0
    return x


@pytest.mark.parametrize(
    ("says", "function", "options"),
    [
        ("not elementwise", lambda x: x - x.max(), {}),
        ("not elementwise", lambda x: np.sort(x, axis=-1), {}),
        ("where an element is", lambda x: x + np.arange(x.shape[-1] if x.ndim else 1, dtype=x.dtype), {}),
        ("where an element is", lambda x: x + np.array([1, 2, 3], dtype=x.dtype), {}),
        ("makes bool", lambda x: x > 0, {}),
        ("is nan", lambda x: x / (1 + np.abs(x)), {"increasing": True}),
        ("not increasing: f", lambda x: np.where(np.isinf(x), 0, x), {"increasing": True}),
        ("not increasing: f\\(nan", lambda x: np.where(np.isnan(x), np.zeros_like(x), x), {"increasing": True}),
        ("not odd: f", lambda x: x * x, {"odd": True}),
        ("not odd: f\\(nan", lambda x: np.where(np.isnan(x), np.ones_like(x), x), {"odd": True}),
        ("not even: f", lambda x: x * x * x, {"even": True}),
        ("not increasing: f", lambda x: np.minimum(np.abs(x), 9), {"increasing": True}),
        ("not decreasing: f", lambda x: x, {"decreasing": True}),
        ("is nan", lambda x: np.log(x), {"increasing": True}),
        ("one argument", lambda x, y: x + y, {"odd": True}),
        ("reference", lambda x: np.log(x + np.sqrt(x * x + 1)), {"reference": np.arcsinh}),
        ("float32", lambda x: np.exp(x + 80) / np.exp(80.0), {"reference": np.exp, "domain": (0, 20)}),
        ("takes one array or more", lambda *x: x[0], {}),
        ("own", lambda x: x, {"name": "exp"}),
        ("does not take 1 arrays: RuntimeError: no", lambda x: x, {"reference": raising}),
        (r"shape \(2,\) for one of \(809,\)", lambda x: x, {"reference": lambda x: np.ones(2)}),
        (r"shape \(\) for one", lambda x: x, {"reference": lambda x: 3.0}),
        ("returns object", lambda x: x, {"reference": lambda x: None}),
        ("returns complex128", lambda x: x, {"reference": lambda x: x + 0j}),
        ("writes to its arguments", lambda x: x * 0, {"reference": writing}),
        ("does not take 1 arrays: TypeError", lambda x: x, {"reference": lambda x, y: x}),
        ("does not take 1 arrays", lambda x: x, {"ufunc": np.add}),
        ("one of NumPy's or SciPy's", lambda x: x, {"ufunc": abs}),
        ("f\\(1e\\+300\\)", lambda x: x, {"reference": lambda x: x * 2, "domain": (1e300, 1.1e300)}),
        *(("the lower one first", lambda x: x, {"domain": d}) for d in ((3, 1), (np.nan, 1), "ab", (1, 2, 3), 5)),
        *(("0 or more", lambda x: x, {"tolerance": t}) for t in (-1, np.nan, np.inf, "x")),
        *(("one of Python's", lambda x: x, {"name": name}) for name in ("a b", "class", 5, "", 'a"b')),
        ("arguments are known", 3, {}),
        ("arguments are known", max, {}),
        ("positional|cannot|truth|condition|is not known", lambda x: x if x.sum() > 0 else -x, {}),
    ],
)  # fmt: skip
def test_mistakes_are_refused_where_they_are_defined(says: str, function: Any, options: dict[str, Any]) -> None:
    before = list(OPS)
    with pytest.raises(OptionError, match=rf"(?s){says}.*test_operators\.py"):
        eqsat.elementwise(function, **{"name": "test_refused", **options})
    assert list(OPS) == before


def test_any_callable_is_a_function() -> None:
    """Also one without a name, and with defaults, which programs know."""
    first = eqsat.elementwise(functools.partial(lambda x, k: x * k, k=2), name="test_any_partial")
    assert first(3.0) == 6
    assert eqsat.elementwise(np.sin, name="test_any_ufunc")(0.5) == np.sin(0.5)
    second = eqsat.elementwise(lambda x, y=2.0: x + y, name="test_any")
    try:
        assert second(1.0) == 3 and eqsat.optimize(lambda x: second(x) * 1, strict=True)(np.ones(3)).tolist() == [3] * 3
        assert repr(second(a)) == "test_any(a, 2.0)"
        for args in ((), (1.0, 2.0, 3.0)):
            with pytest.raises(OptionError, match=f"test_any takes 2 arrays, not {len(args)}"):
                second(*args)
    finally:
        del OPS["test_any"], OPS["test_any_partial"], OPS["test_any_ufunc"]


def test_settings_are_alike_on_arrays_and_in_programs() -> None:
    assert correlate(X[0], X[1][:2], step=np.int64(2)).tolist() == correlate(X[0], X[1][:2], step=2).tolist()
    with pytest.raises(OptionError, match="no arrays: step"):
        eqsat.optimize(lambda x: correlate(x, x, step=np.ones(2)), strict=True)(X[0])
    with pytest.raises(OptionError, match="no arrays: step"):
        correlate(X[0], X[0], step=np.ones(2))


def test_a_name_is_one_modules() -> None:
    scope: dict[str, Any] = {"__name__": "another", "eqsat": eqsat}
    with pytest.raises(OptionError, match=r"(?s)'test_cauchy' is defined already, at .*test_operators\.py"):
        exec("@eqsat.elementwise\ndef test_cauchy(x): return x", scope)


def test_defined_anew_it_is_another_operator() -> None:
    """As when a cell of a notebook runs again."""
    first = eqsat.elementwise(lambda x: x + 1, name="test_again")
    rule = rewrite(first(a), a, id="t.again")
    second = eqsat.elementwise(lambda x: x + 2, name="test_again")
    try:
        found = eqsat.optimize(lambda x: (first(x), second(x)), strict=True)(X)
        np.testing.assert_array_equal(found[0], X + 1)
        np.testing.assert_array_equal(found[1], X + 2)
        assert Applied(first.definition) != Applied(second.definition) == OPS["test_again"].attrs
        assert check_rule(rewrite(second(a), first(a) + 1, id="t.second"), enough=3).counterexample is None
        assert rule.ways[0].left[0].attrs == Applied(first.definition)  # type: ignore[attr-defined]
    finally:
        del OPS["test_again"]


def test_a_ufunc_is_the_operator() -> None:
    """One that programs had as a step that SciPy runs."""
    from eqsat.frontends.ufuncs import UFUNCS

    def rel_entr(x: Any, y: Any) -> Any:
        inside = np.where((x > 0) & (y > 0), x * np.log(x / y), np.inf)
        return np.where((x == 0) & (y >= 0), 0, inside)

    eqsat.elementwise(rel_entr, name="test_rel_entr", ufunc=special.rel_entr, domain=(0.01, 100))
    try:
        optimized = eqsat.optimize(lambda x, y: special.rel_entr(x, y) + 1, strict=True)
        x, y = np.abs(X) + 0.1, np.abs(X[:1]) + 0.2
        np.testing.assert_allclose(optimized(x, y), special.rel_entr(x, y) + 1, rtol=1e-12)
        assert not any("rel_entr" in step.name for step in optimized.explain(x, y).steps if hasattr(step, "name"))
    finally:
        del OPS["test_rel_entr"], UFUNCS[special.rel_entr]


def test_their_content_is_the_same_in_every_process() -> None:
    """So that plans are remembered."""
    code = "from tests.test_operators import cauchy; print(cauchy.definition.digest)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == cauchy.definition.digest


def test_numbers_are_settings_of_operators_of_tensors() -> None:
    def program(x: Any) -> Any:
        return correlate(x, 2.0)

    with pytest.raises(ValueError, match="by keyword"):
        eqsat.optimize(program, strict=True)(X[0])
    with pytest.raises(OptionError, match="no arrays: step"):
        correlate(a, u, step=b)
    with pytest.raises(OptionError, match="test_correlate has no setting stride; its settings are step"):
        correlate(a, u, stride=2)
    with pytest.raises(
        rules.RuleError, match=r"test_operators\.py:\d+: test_cauchy takes 1 tensor in a pattern, not 2"
    ):
        cauchy(a, b)
    with pytest.raises(rules.RuleError, match="takes 1 tensor"):
        op("test_cauchy", a, b)
    assert repr(op("test_cauchy", a)) == "test_cauchy(a)"


def test_random_programs_have_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On their domains, and as scripts that run where they are pasted."""
    from eqsat.verify import fuzz, fuzz_command, strategies
    from eqsat.verify.operators import OPERATORS
    from eqsat.verify.user_operators import draw_those_of

    monkeypatch.setattr("eqsat.verify.user_operators.OPERATORS", own := dict(OPERATORS))
    monkeypatch.setattr(strategies, "OPERATORS", own)
    names = draw_those_of([__name__])
    assert {"test_softsign", "test_smoothed"} <= set(names) and "test_correlate" not in names
    monkeypatch.setattr(strategies, "FALLBACK", tuple(names))
    wanted = {name: own[name] for name in names}
    own.clear()
    own.update(wanted)
    report = fuzz.run(lambda f, **_: f, fuzz.REFERENCE, examples=30, max_ops=5)
    assert not report.findings and set(names) <= set(report.operators)
    (program,) = fuzz.different_programs(1, 3, 3)
    assert f"from {__name__} import" in program.source()
    exec(compile(program.source().replace("eqsat.optimize", ""), "pasted", "exec"), {})
    assert fuzz_command.main(["--operators", "json"]) == 2
    assert "defines no operator" in capsys.readouterr().err
