"""Functions that are written in operators: uses of them as programs have them, and corners of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import eqsat
from eqsat.errors import UnsupportedOpError
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.opaque import calls_of
from tests import one_liners
from tests.sweeps import a_part
from tests.test_trace import check, random_array, same


def _function(line: str) -> Callable[..., Any]:
    return eval(f"lambda {', '.join(one_liners.ARGUMENTS)}: ({line})", dict(one_liners.NAMES))  # type: ignore[no-any-return]


def _arguments() -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in one_liners.ARGUMENTS.items()}


def _not_operators(line: str) -> str:
    """Why a call is not one of operators alone; empty if it is. Its result must be the library's, however it is run."""
    fn = _function(line)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = fn(**_arguments())
        try:
            found = trace(fn, (), _arguments())
            got = run_by_reference(fn, (), _arguments())
        except UnsupportedOpError as error:
            return f"{line}: {error}"
    if want is not None:
        same(got, want, scale=20)
    called = calls_of(found.graph.outputs)
    return f"{line}: {called[0].name} is a step" if called else ""


@pytest.mark.parametrize(
    ("text", "reached"),
    [(one_liners.REWRITTEN, 323), (one_liners.SPECIAL, 27), (one_liners.SCIPY, 35)],
    ids=["numpy", "special", "scipy"],
)
def test_uses_of_functions_are_operators(text: str, reached: int) -> None:
    """All are right; how many are operators does not shrink."""
    lines = one_liners.lines(text)
    failed = [why for why in map(_not_operators, lines) if why]
    assert len(lines) - len(failed) >= reached, "\n".join(failed)


EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1e-30, -1e-8, 1e30, 700.0, -710.0, 88.0, 40.0, 41.0]
ELEMENTARY = (
    np.arctan, np.arcsin, np.arccos, np.sinh, np.cosh, np.arcsinh, np.arccosh, np.arctanh, np.signbit, np.modf,
    np.sinc, np.isposinf, np.isneginf, np.fix, np.angle,
)  # fmt: skip


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_elementary_functions_over_the_whole_range(function: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate([EDGES, rng.normal(0, 1, 400), rng.uniform(-1, 1, 400), 10.0 ** rng.uniform(-9, 9, 200)])
    x = values.astype(dtype)
    with np.errstate(all="ignore"):
        want = function(x)
        got = run_by_reference(function, (x,), {})
    same(got, want)
    close = np.isfinite(want) if not isinstance(want, tuple) else slice(None)
    if not isinstance(want, tuple) and want.dtype.kind == "f":
        np.testing.assert_allclose(got[close], want[close], rtol=8 * np.finfo(dtype).eps, atol=0)
        zero = want == 0
        assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("function", [np.arctan2, np.copysign, np.fmod, np.logaddexp2, np.hypot, np.logaddexp])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_functions_of_two_over_all_edges(function: Any, dtype: str) -> None:
    x, y = np.meshgrid(np.array(EDGES, dtype), np.array([*EDGES[:10], 3.0, -2.5], dtype))
    x = np.where(np.isnan(x), np.abs(x), x)  # of a NaN's sign nothing is promised
    with np.errstate(all="ignore"):
        want = function(x, y)
        got = run_by_reference(function, (x, y), {})
    same(got, want)
    assert np.array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])


@pytest.mark.parametrize("name", ["erfc", "erfcx", "ndtr", "log_ndtr", "logit", "entr", "exp10", "exp2", "cbrt"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_special_functions_keep_their_digits(name: str, dtype: str) -> None:
    function = getattr(special, name)
    x = np.concatenate([EDGES, np.linspace(-30, 30, 601), np.linspace(0, 1, 101)]).astype(dtype)
    if name == "erfcx":
        x = x[x > -20]
    with np.errstate(all="ignore"):
        want = function(x.astype("f8")).astype(dtype)
        got = run_by_reference(lambda v: function(v), (x,), {})
    assert got.dtype == function(x[:1]).dtype
    tiny = np.finfo(dtype).tiny
    normal = np.isfinite(want) & (np.abs(want) > 4 * tiny)
    # The argument of log_ndtr and exp10 is rounded, which exponentials of it magnify.
    np.testing.assert_allclose(got[normal], want[normal], rtol=400 * np.finfo(dtype).eps, atol=0)
    rest = ~normal
    np.testing.assert_allclose(got[rest], want[rest], atol=8 * tiny)


MASKED = {
    f.__name__: f
    for f in (np.sum, np.prod, np.any, np.all, np.mean, np.var, np.std, np.nansum, np.nanprod, np.nanmean, np.nanvar)
}
EXTREMES = {f.__name__: f for f in (np.max, np.min, np.nanmax, np.nanmin)}


@settings(max_examples=a_part(60), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64", "int32", "int64", "bool"]))
def test_reductions_of_masked_elements(data: st.DataObject, dtype: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random_array(rng, shape, dtype)
    mask = rng.random(data.draw(st.sampled_from([shape, shape[-1:]]))) < 0.6
    axes: Any = st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1))
    options = {"axis": data.draw(axes), "keepdims": data.draw(st.booleans())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = data.draw(st.sampled_from(sorted(MASKED)))
        check(lambda v, m: MASKED[name](v, where=m, **options), x, mask, scale=30)
        name = data.draw(st.sampled_from(sorted(EXTREMES)))
        start = data.draw(st.sampled_from([0, 1, 3]))
        if dtype != "bool":
            check(lambda v, m: EXTREMES[name](v, where=m, initial=start, **options), x, mask)
        check(lambda v: np.nancumsum(v, axis=options["axis"]), x, scale=10)


@settings(max_examples=a_part(40), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64"]))
def test_reductions_without_nan(data: st.DataObject, dtype: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    x = random_array(np.random.default_rng(data.draw(st.integers(0, 99))), shape, dtype)
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    ddof = data.draw(st.integers(0, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function in (np.nanmax, np.nanmin, np.nanmean, np.nansum, np.nanprod):
            check(lambda v, f=function: f(v, axis=axis), x, scale=30)
        for function in (np.nanvar, np.nanstd):
            check(lambda v, f=function: f(v, axis=axis, ddof=ddof), x, scale=30)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.sum(x, axis=0, out=np.zeros_like(x[0])),
        lambda x: (lambda y: (np.mean(x, axis=1, out=y), y))(x[:, 0].copy()),
        lambda x: (lambda y: (np.cumsum(x, axis=1, out=y), y))(x.copy()),
        lambda x: np.max(x, axis=1, out=np.zeros_like(x[0])),
        lambda x: np.sum(x, out=np.zeros_like(x, dtype="i4")[0, 0, None]),
        lambda x: np.max(x, where=x > 0),
        lambda x: np.sum(x, where=x),
        lambda x: np.sum(x, where=x[:, :2] > 0),
        lambda x: np.var(x, ddof=1, correction=1),
    ],
)
def test_options_of_reductions(fn: Callable[..., Any]) -> None:
    check(fn, np.arange(12, dtype="f8").reshape(3, 4) - 5, scale=4)


def test_products_of_different_widths_are_not_joined() -> None:
    """A sum that repeats one of its products along the other's columns."""
    rng = np.random.default_rng(0)
    x, y, a, b = (rng.uniform(-2, 2, shape) for shape in ((16, 2), (16, 9), (2, 5), (9, 1)))

    def program(x: Any, y: Any) -> Any:
        return x @ a + y @ b

    np.testing.assert_allclose(eqsat.optimize(program, check_speed=False, strict=True)(x, y), program(x, y), rtol=1e-12)
