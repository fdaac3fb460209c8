"""``x[mask]`` of a traced mask: reductions along axes and functions of each element, as NumPy computes them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import UnsupportedOpError
from tests.sweeps import a_part

QUICK: dict[str, Any] = {"backend": "numpy", "cache": False, "check_speed": False}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(np.sum, np.prod, np.mean, np.var, np.std, np.any, np.all, np.max, np.min, np.ptp, np.median),
        *(np.nansum, np.nanprod, np.nanmean, np.nanvar, np.nanstd, np.nanmax, np.nanmin, np.count_nonzero),
    )
}


def both(fn: Callable[..., Any], *args: Any, strict: bool = False) -> None:
    """What NumPy makes of it, or the error that it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want = fn(*args)
        except Exception as error:
            with pytest.raises(type(error), match=re.escape(str(error)[:16])):
                eqsat.optimize(fn, **QUICK, strict=strict)(*args)
            return
        got = eqsat.optimize(fn, **QUICK, strict=strict)(*args)
    for a, b in zip(*(v if isinstance(v, (tuple, list)) else [v] for v in (got, want)), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=2e-5 if np.asarray(b).dtype.itemsize < 8 else 1e-12, atol=1e-12)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int, int, tuple[int, ...] | int | None]:
    """An array, where the mask's axes begin and end in it, and axes of what it chooses."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    first = draw(st.integers(0, len(shape) - 1))
    stop = draw(st.integers(first + 1, len(shape)))
    ndim = len(shape) - (stop - first) + 1
    axis = draw(
        st.none()
        | st.integers(-ndim, ndim - 1)
        | st.lists(st.integers(0, ndim - 1), min_size=1, max_size=ndim, unique=True).map(tuple)
    )
    seed = draw(st.integers(0, 99))
    x = np.random.default_rng(seed).integers(-6, 7, shape)
    kind = draw(st.sampled_from(["float64", "float32", "int32", "uint8", "bool"]))
    x = x.astype(kind)
    if x.dtype.kind == "f" and draw(st.booleans()):
        x.reshape(-1)[0] = np.nan
    return x, first, stop, axis


@pytest.mark.parametrize("name", REDUCTIONS)
@given(case=cases(), keepdims=st.booleans(), threshold=st.sampled_from([-9, 0, 3]))
@settings(max_examples=a_part(8), deadline=None)
def test_reductions_along_axes(
    name: str, case: tuple[np.ndarray, int, int, Any], keepdims: bool, threshold: int
) -> None:
    x, first, stop, axis = case
    function, mask = REDUCTIONS[name], np.random.default_rng(1).integers(-6, 7, x.shape[first:stop])
    ndim = x.ndim - (stop - first) + 1
    reduced = range(ndim) if axis is None else [a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))]

    def fn(x: Any, m: Any) -> Any:
        part = x[(slice(None),) * first + (m > threshold,)]
        found = function(part, axis=axis, keepdims=keepdims)
        return found if first in reduced else found.sum()

    both(fn, x, mask)


PIPELINES: dict[str, Callable[[Any, Any], Any]] = {
    "mean of rows": lambda x, m: x[m > 0].mean(0),
    "centred": lambda x, m: [c := x[m > 0] - x[m > 0].mean(axis=0), (c**2).sum()][-1],
    "against a traced row": lambda x, m: (x[0] - x[m > 0]).sum(axis=0),
    "a column of rows": lambda x, m: x[m > 0][:, 1].mean(),
    "columns of rows": lambda x, m: (x[m > 0][:, 1:] * x[m > 0][:, :1]).sum(0),
    "weights as a column": lambda x, m: (x[m > 0] * m[m > 0][:, None]).sum(0),
    "chosen twice": lambda x, m: [v := m[m > 0], v := v[v < 2], v.mean()][-1],
    "sigma clipping": lambda x, m: [v := x[x > -9], v[np.abs(v - v.mean()) < 2 * v.std()].mean()][-1],
    "count": lambda x, m: x[m > 0].sum() / x[m > 0].size,
    "count of rows": lambda x, m: x[m > 0].sum(0) / np.maximum(x[m > 0].shape[0], 1),
    "where": lambda x, m: np.where(x[x > 0] > 1, x[x > 0], 0).sum(),
    "clip": lambda x, m: x[x > 0].clip(0.5, 1).mean() + np.round(x[x < 0], 1).sum(),
    "log": lambda x, m: np.log(x[x > 0]).sum(),
    "distances": lambda x, m: np.sqrt(((x[m > 0] - x[0]) ** 2).sum(axis=1)).max(),
    "moments": lambda x, m: x[m > 0].T @ x[m > 0],
    "rotated": lambda x, m: (x[m > 0] @ x[:3].T).sum(0),
    "from the left": lambda x, m: (x[:2, :3] @ x[m > 0].T).sum(1),
    "dot": lambda x, m: np.dot(m[m > 0], m[m > 0]) + m[m > 1] @ m[m > 1],
    "weighted mean": lambda x, m: np.average(x[:, 0][m > 0], weights=np.exp(m[m > 0])),
    "norm": lambda x, m: np.linalg.norm(x[x > 0]) + np.linalg.norm(x[m > 0], axis=0).sum(),
    "initial": lambda x, m: (x[m > 9].max(initial=0), x[x > 0].min(initial=3, axis=0)),
    "where=": lambda x, m: x[m > 0].sum(0, where=x[m > 0] > 0),
    "reduce": lambda x, m: np.add.reduce(x[m > 0]) + np.maximum.reduce(x[m > 0], axis=0, initial=-9.0),
    "interpolated": lambda x, m: np.interp(m[m > 0], [0, 1, 5], [0, 3, 4]).sum(),
    "in place": lambda x, m: [v := x[m > 0], v.__imul__(2), v.sum(0)][-1],
    "written": lambda x, m: [x := x.copy(), x.__setitem__(m > 0, x[m > 0] - x[m > 0].mean(0)), x][-1],
    "any of a scalar mask": lambda x, m: x[m.sum() > 0].sum() + x[m.sum() < -99].sum(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_reduced_in_the_end(name: str) -> None:
    rng = np.random.default_rng(5)
    for kind in ("float64", "float32"):
        x = rng.standard_normal((7, 3)).astype(kind)
        m = rng.integers(-3, 4, 7)
        strict = name not in ("distances",)
        both(PIPELINES[name], x, m, strict=strict)


def test_nothing_chosen() -> None:
    x, none, some = np.arange(6.0).reshape(3, 2), np.zeros(3), np.array([0.0, 1, 1])
    f = eqsat.optimize(lambda x, m: x[m > 0].max(0), **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(f(x, some), [4, 5])
        with pytest.raises(ValueError, match="zero-size array to reduction operation maximum which has no identity"):
            f(x, none)
        np.testing.assert_array_equal(f(x, some), [4, 5])
    with pytest.raises(UnsupportedOpError, match="initial="):
        eqsat.optimize(lambda x, m: x[m > 0].max(0), **QUICK, strict=True)(x, some)
    mean = eqsat.optimize(lambda x, m: (x[m > 0].mean(0), x[m > 0].sum(0)), **QUICK, strict=True)(x, none)
    np.testing.assert_array_equal(mean, [[np.nan] * 2, [0, 0]])


REFUSED: dict[str, Callable[[Any], Any]] = {
    "an element": lambda x: x[x > 0][0],
    "another mask": lambda x: (x[x > 0] * x[x > 1]).sum(),
    "as many elements": lambda x: (x[x > 0] * np.arange(3)).sum(),
    "sorted": lambda x: np.sort(x[x > 0])[0],
    "a product that pairs them": lambda x: x[x > 0] @ np.ones(3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_places_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedOpError, match="mask"):
        eqsat.optimize(REFUSED[name], **QUICK, strict=True)(np.arange(-3.0, 4))
