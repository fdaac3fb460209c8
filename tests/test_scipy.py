"""SciPy's functions on traced arrays: those written in operators against SciPy, all others as steps."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, ndimage, signal, special, stats
from scipy.ndimage import gaussian_filter as imported_by_name
from scipy.spatial import distance
from scipy.stats import norm

import eqsat
from eqsat.errors import EqsatError
from eqsat.frontends.functions import scipy_rows
from eqsat.frontends.libraries import MODULES, WRITTEN
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.opaque import calls_of
from tests.sweeps import a_part
from tests.test_trace import random_array, same

FLOATS = ("float32", "float64")
ANY = (*FLOATS, "int32", "int64", "uint8", "int16")
seeds = st.integers(0, 999)


def drawn(seed: int, shape: tuple[int, ...], dtype: str, hard: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return random_array(rng, shape, dtype, hard) if dtype in FLOATS else rng.integers(0, 9, shape).astype(dtype)


def check(fn: Callable[..., Any], *args: np.ndarray, scale: float = 8, steps: bool | None = None) -> None:
    """As SciPy, also in what it refuses; ``steps``: whether SciPy runs it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want = fn(*args)
        except (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError) as error:
            with pytest.raises((type(error), EqsatError)):
                run_by_reference(fn, args, {})
            return
        same(run_by_reference(fn, args, {}), want, scale)
        if steps is not None:
            assert bool(calls_of(trace(fn, args).graph.outputs)) == steps


MODES = ("reflect", "mirror", "nearest", "wrap", "constant", "grid-mirror", "grid-wrap", "grid-constant")


@given(data=st.data(), dtype=st.sampled_from(ANY), seed=seeds, mode=st.sampled_from(MODES))
@settings(max_examples=a_part(120), deadline=None)
def test_filters_by_weights(data: st.DataObject, dtype: str, seed: int, mode: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    x = drawn(seed, shape, dtype)
    sizes = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    weights = drawn(seed + 1, sizes, data.draw(st.sampled_from(("float64", "int64"))))
    origins = [data.draw(st.integers(-(n // 2), (n - 1) // 2)) for n in sizes]
    filter_ = data.draw(st.sampled_from((ndimage.correlate, ndimage.convolve)))
    cval = data.draw(st.sampled_from((0.0, 1.5)))
    # Sums over integers are cut off, where a rounding error may be a whole unit.
    steps = dtype not in FLOATS
    check(lambda v: filter_(v, weights, mode=mode, cval=cval, origin=origins), x, scale=20, steps=steps)
    check(lambda v, w: filter_(v, w, mode=mode), x, weights, scale=20)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    along = data.draw(st.sampled_from((ndimage.correlate1d, ndimage.convolve1d)))
    row, origin = weights.reshape(-1)[: sizes[0]], origins[0]
    check(lambda v: along(v, row, axis=axis, mode=mode, cval=cval, origin=origin), x, scale=20, steps=steps)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), seed=seeds, mode=st.sampled_from(MODES))
@settings(max_examples=a_part(60), deadline=None)
def test_smoothing_and_edges(data: st.DataObject, dtype: str, seed: int, mode: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    x = drawn(seed, shape, dtype)
    size = data.draw(st.integers(1, 5))
    sigma = data.draw(st.sampled_from((0.4, 1.0, 0, [0.7] * len(shape))))
    check(lambda v: ndimage.uniform_filter(v, size, mode=mode), x)
    check(lambda v: ndimage.gaussian_filter(v, sigma, mode=mode, cval=2.0), x)
    check(lambda v: ndimage.gaussian_filter(v, 1.0, mode=mode, radius=2), x, steps=False)
    check(lambda v: ndimage.gaussian_filter(v, 1.0, order=1, mode=mode), x, steps=True)
    check(lambda v: ndimage.uniform_filter1d(v, size, axis=0, mode=mode, origin=-(size // 2)), x, steps=False)
    check(lambda v: ndimage.laplace(v, mode=mode), x, steps=False)
    check(lambda v: ndimage.sobel(v, axis=0, mode=mode), x, steps=False)
    check(lambda v: ndimage.prewitt(v, mode=mode), x, steps=False)


@given(data=st.data(), dtype=st.sampled_from(ANY), seed=seeds, mode=st.sampled_from(MODES))
@settings(max_examples=a_part(60), deadline=None)
def test_extremes_over_windows(data: st.DataObject, dtype: str, seed: int, mode: str) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    x = drawn(seed, shape, dtype)
    size = data.draw(st.integers(1, 4))
    for filter_ in (ndimage.maximum_filter, ndimage.minimum_filter):
        check(lambda v, f=filter_: f(v, size, mode=mode), x, steps=False)
        check(lambda v, f=filter_: f(v, size=[size] * len(shape), mode=mode, origin=-((size - 1) // 2)), x)
        check(lambda v, f=filter_: f(v, footprint=np.ones((2,) * len(shape)), mode=mode), x, steps=True)


@given(data=st.data(), dtype=st.sampled_from((*FLOATS, "int64", "int32", "complex128")), seed=seeds)
@settings(max_examples=a_part(120), deadline=None)
def test_sums_of_signals(data: st.DataObject, dtype: str, seed: int) -> None:
    real = dtype != "complex128"
    rank = data.draw(st.integers(1, 3))
    shapes = [tuple(data.draw(st.integers(1, 5)) for _ in range(rank)) for _ in range(2)]
    x, w = (drawn(seed + i, shape, dtype if real else "float64") for i, shape in enumerate(shapes))
    if not real:
        x, w = x + 1j * x[::-1], w - 2j * w
    mode = data.draw(st.sampled_from(("full", "same", "valid", "half")))
    check(lambda a, b: signal.convolve(a, b, mode), x, w, steps=False)
    check(lambda a, b: signal.correlate(a, b, mode=mode, method="direct"), x, w, steps=None if real else True)
    check(lambda a, b: signal.fftconvolve(a, b, mode), x, w, scale=30, steps=True)
    if rank == 2:
        boundary = data.draw(st.sampled_from(("fill", "wrap", "symm")))
        value = data.draw(st.sampled_from((0, 2)))
        check(lambda a, b: signal.convolve2d(a, b, mode, boundary, value), x, w, steps=False)
        check(lambda a, b: signal.correlate2d(a, b, mode, boundary, value), x, w)


@pytest.mark.parametrize("extents", [(2, 1), (2, 3), (3, 2), (4, 4)])
def test_even_windows_lie_as_scipy_lays_them(extents: tuple[int, int]) -> None:
    """``correlate2d`` lays another of their two middles on an element than ``correlate`` and the convolutions."""
    x, w = drawn(1, (3, 4), "float64"), drawn(2, extents, "float64")
    for fn in (signal.convolve2d, signal.correlate2d, signal.convolve, signal.correlate):
        for mode in ("full", "same"):
            check(lambda a, b, fn=fn, mode=mode: fn(a, b, mode=mode), x, w, steps=None)


METRICS: dict[str, dict[str, Any]] = {
    name: {} for name in ("euclidean", "sqeuclidean", "cityblock", "chebyshev", "cosine", "canberra", "braycurtis")
} | {"minkowski": {"p": 3}}


@pytest.mark.parametrize("metric", METRICS)
@given(data=st.data(), dtype=st.sampled_from((*FLOATS, "int64")), seed=seeds)
@settings(max_examples=a_part(15), deadline=None)
def test_distances(metric: str, data: st.DataObject, dtype: str, seed: int) -> None:
    n, m, k = (data.draw(st.integers(0, 5)) for _ in range(3))
    x, y = drawn(seed, (n, k + 1), dtype), drawn(seed + 1, (m, k + 1), "float64")
    check(lambda a, b: distance.cdist(a, b, metric, **METRICS[metric]), x, y, scale=30, steps=False)
    check(lambda a: distance.cdist(a, a[:, :1] * 2, metric), x)


def test_other_distances_are_steps() -> None:
    x = drawn(0, (4, 3), "float64")
    check(lambda a: distance.cdist(a, a, "correlation"), x, steps=True)
    check(lambda a: distance.cdist(a, a, "minkowski", p=0.5, w=[1, 2, 3]), x, steps=True)
    check(lambda a: distance.cdist(a, a, lambda u, v: float(abs(u - v).max())), x, steps=True)
    check(lambda a: distance.pdist(a), x, steps=True)
    check(lambda a: distance.cdist(a, a, "no such metric"), x)


@given(data=st.data(), dtype=st.sampled_from((*FLOATS, "int64", "float16")), seed=seeds)
@settings(max_examples=a_part(80), deadline=None)
def test_sums_of_exponentials(data: st.DataObject, dtype: str, seed: int) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    x = drawn(seed, shape, "float32" if dtype == "float16" else dtype, hard=data.draw(st.booleans())).astype(dtype)
    axis: Any = data.draw(st.sampled_from((None, 0, -1, tuple(range(len(shape))))))
    keep, weights = data.draw(st.booleans()), drawn(seed + 1, shape[-1:], "int64")
    half = dtype == "float16"
    check(lambda v: special.logsumexp(v, axis=axis, keepdims=keep), x, scale=4)
    check(lambda v, w: special.logsumexp(v, axis=axis, b=w, keepdims=keep), x, weights, scale=4)
    check(lambda v: special.log_softmax(v, axis=axis), x, scale=4, steps=None if half else False)
    if np.isfinite(np.asarray(x, "f8")).all():
        check(lambda v: special.softmax(v, axis=axis), x, scale=4)


EDGES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -9.0, 12.0, 37.0, -37.0]


@pytest.mark.parametrize("name", ["pdf", "logpdf", "cdf", "sf", "logcdf", "logsf"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_normal_distribution(name: str, dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        x = np.array(EDGES if dtype != "int64" else [0, 3, -4]).astype(dtype)
    check(lambda v: getattr(stats.norm, name)(v), x, scale=20, steps=False)
    check(lambda v: getattr(norm, name)(v, loc=0.5, scale=2.0), x, scale=20, steps=False)
    scale = np.array([1.0, 2.0, 0.0, -1.0, math.nan])
    check(lambda v, s: getattr(scipy.stats.norm, name)(v[:1], 0.5, s), x, scale, scale=20, steps=False)


def test_other_distributions_are_steps() -> None:
    x = np.array([0.0, 1.0, 39.0])
    check(lambda v: stats.norm.ppf(v / 40), x, steps=True)
    check(lambda v: stats.gamma.cdf(v, a=2.0), x, steps=True)
    check(lambda v: stats.poisson.pmf(v, 3.0), x, steps=True)
    check(lambda v: stats.norm.pdf(v, loc=norm.mean(), scale=norm.std()), x, steps=False)


STEPS: dict[str, Callable[[Any], Any]] = {
    "expm": lambda x: scipy.linalg.expm(x),
    "cholesky": lambda x: scipy.linalg.cholesky(x @ x.T + np.eye(4), lower=True),
    "lu": lambda x: scipy.linalg.lu(x),
    "solve": lambda x: scipy.linalg.solve(x + 4 * np.eye(4), np.ones(4)),
    "norm": lambda x: scipy.linalg.norm(x),
    "fft": lambda x: scipy.fft.rfft(x, axis=0),
    "dct": lambda x: scipy.fft.dct(x),
    "median_filter": lambda x: ndimage.median_filter(x, 6),
    "zoom": lambda x: ndimage.zoom(x, 2),
    "label": lambda x: ndimage.label(x > 0),
    "lfilter": lambda x: signal.lfilter([1.0], [1.0, -0.5], x, axis=0),
    "detrend": lambda x: signal.detrend(x),
    "gammaln": lambda x: special.gammaln(abs(x)),
    "digamma": lambda x: special.digamma(x),
    "log sum with its sign": lambda x: special.logsumexp(x, return_sign=True),
    "zscore": lambda x: stats.zscore(x),
    "simpson": lambda x: integrate.simpson(x),
}


@pytest.mark.parametrize("name", STEPS)
def test_any_other_function_is_a_step(name: str) -> None:
    check(STEPS[name], drawn(3, (4, 4), "float64"), scale=50, steps=True)


def test_names_however_imported() -> None:
    x = drawn(1, (5, 6), "float64")

    def inside(v: Any) -> Any:
        from scipy.special import softmax

        return softmax(v, axis=0)

    check(inside, x, steps=False)
    check(lambda v: imported_by_name(v, 1.0), x, steps=False)
    check(lambda v: scipy.integrate.trapezoid(v, dx=0.5), x, steps=False)
    check(lambda v: scipy.linalg.norm(v, check_finite=False), x, steps=False)


def test_modules_are_themselves_again() -> None:
    x, seen = drawn(1, (5, 6), "float64"), []

    def fn(v: Any) -> Any:
        other = threading.Thread(target=lambda: seen.append(vars(special)["softmax"] is special.softmax))
        other.start()
        other.join()
        known = ndimage.gaussian_filter(np.ones((3, 3)), 1.0)
        return special.softmax(v) + known.sum()

    run_by_reference(fn, (x,), {})
    assert seen == [True]
    for name in MODULES:
        assert type(sys.modules[name]) is ModuleType, name
    with pytest.raises(ZeroDivisionError):
        run_by_reference(lambda v: 1 // 0, (x,), {})
    assert type(special) is ModuleType


def test_compiled() -> None:
    x = drawn(2, (40, 33), "float64")

    def fn(v: Any) -> Any:
        edges = np.hypot(ndimage.sobel(v, 0), ndimage.sobel(v, 1))
        return (
            special.softmax(edges, axis=1),
            stats.norm.cdf(v),
            distance.cdist(v[:5], v[5:9]),
            scipy.linalg.expm(v[:3, :3]),
        )

    f = eqsat.optimize(fn, strict=True)
    same(f(x), fn(x), scale=100)


def test_rows_say_what_becomes_of_a_function() -> None:
    rows = {f"{row.module}.{row.name}": row.kind for row in scipy_rows()}
    assert WRITTEN.keys() <= rows.keys() and set(rows.values()) == {"kernel", "rewrite"}
    x = np.linspace(0.1, 0.9, 12)
    for name in rows:
        if name.startswith("scipy.special.") and name not in WRITTEN:
            ufunc = getattr(special, name.rpartition(".")[2])
            check(lambda v, f=ufunc: f(*[v] * f.nin), x, steps=False)
