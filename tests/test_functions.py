"""The table of functions: every public one of NumPy has a row, and what rows say holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eqsat.errors import ConcretizationError, EqsatError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends import functions
from eqsat.frontends.functions import KINDS, MODULES, Row
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.opaque import calls_of
from eqsat.ir.types import dtype_of

ROWS = functions.rows()
DOCUMENT = Path(__file__).parents[1] / "docs" / "functions.md"

X = np.random.default_rng(0).standard_normal((3, 3)) + 3 * np.eye(3)
V = np.array([0.5, -1.25, 2.0, 0.25])
N = np.array([3, 1, 2, 0])
B = np.array([1, 0, 1, 1], bool)
U = np.array([3, 200], np.uint8)

SAMPLES: dict[str, tuple[Any, ...]] = {
    "allclose": (V, V),
    "apply_along_axis": (np.sort, 0, X),
    "apply_over_axes": (np.sum, X, [0]),
    "argpartition": (V, 1),
    "arctan2": (V, V + 1),
    "atan2": (V, V + 1),
    "array_equiv": (V, V),
    "bitwise_count": (N,),
    "block": ([[X, X], [X, X]],),
    "choose": (N, [V, V + 1, V * 2, V]),
    "convolve": (V, V[:2]),
    "copysign": (V, -V),
    "correlate": (V, V[:2]),
    "cross": (X, X[::-1]),
    "delete": (V, 1),
    "digitize": (V, np.arange(3.0)),
    "dsplit": (X.reshape(3, 1, 3), 3),
    "fmod": (V, 2.0),
    "gcd": (N, 6),
    "geomspace": (V + 2, V + 3, 5),
    "histogram2d": (V, V),
    "histogramdd": (X,),
    "insert": (V, 1, 5.0),
    "interp": (V, np.arange(4.0), V),
    "isin": (N, np.array([1, 2])),
    "ix_": (N, N),
    "lcm": (N, 6),
    "ldexp": (V, N),
    "lexsort": ((N, N[::-1]),),
    "linspace": (V, V + 1, 5),
    "logaddexp2": (V, V),
    "logspace": (V, V + 1, 5),
    "nanpercentile": (V, 30),
    "nanquantile": (V, 0.3),
    "nextafter": (V, V + 1),
    "packbits": (B,),
    "partition": (V, 1),
    "percentile": (V, 30),
    "piecewise": (V, [V > 0, V <= 0], [1.0, 2.0]),
    "polyadd": (V, V),
    "polydiv": (V, V[:2]),
    "polyfit": (V, V, 1),
    "polymul": (V, V),
    "polysub": (V, V),
    "polyval": (V, V),
    "quantile": (V, 0.3),
    "ravel_multi_index": ((N, N), (4, 4)),
    "resize": (V, (2, 3)),
    "searchsorted": (np.sort(V), V),
    "trapezoid": (V,),
    "unpackbits": (U,),
    "unravel_index": (N, (2, 2)),
    "linalg.lstsq": (X, V[:3]),
    "linalg.solve": (X, V[:3]),
    "linalg.cross": (X, X[::-1]),
    "linalg.tensorinv": (X.reshape(3, 3), 1),
    "linalg.tensorsolve": (X, V[:3]),
    "bincount": (np.abs(N).astype(np.uint8).ravel(), None, 256),
}
SQUARE = ("diag_indices_from", "tril_indices_from", "triu_indices_from", "cov", "corrcoef", "fft2", "ifft2", "rfft2")
INTEGERS = ("bitwise_left_shift", "bitwise_right_shift", "left_shift", "right_shift")


def function(row: Row) -> Any:
    return getattr(next(module for module in MODULES if module.__name__ == row.module), row.name)


def sample(row: Row) -> tuple[Any, ...]:
    prefix = row.module.removeprefix("numpy").removeprefix(".")
    for name in (f"{prefix}.{row.name}" if prefix else row.name, row.name):
        if name in SAMPLES:
            return SAMPLES[name]
    if row.name in INTEGERS:
        return N, 2
    if row.name == "irfft2":
        return (X,)
    if row.module == "numpy.linalg" or row.name in SQUARE or row.name.endswith("2"):
        return (X @ X.T if row.name.startswith(("cholesky", "eig")) else X,)
    if row.name in ("acosh", "arccosh"):
        return (np.abs(V) + 1,)
    return (V / 4,)


def supported(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(supported, value))
    try:
        dtype_of(np.asarray(value).dtype)
    except TypeError:
        return False
    return True


def test_the_document_is_up_to_date() -> None:
    made = functions.markdown()
    assert DOCUMENT.read_text(encoding="utf-8") == made, "python -m eqsat.frontends.functions > docs/functions.md"


def test_every_public_function_has_one_row() -> None:
    assert {(row.module, row.name) for row in ROWS} == {
        (module.__name__, name)
        for module in MODULES
        for name in dir(module)
        if not name.startswith("_") and callable(getattr(module, name)) and not isinstance(getattr(module, name), type)
    }
    assert len({(row.module, row.name) for row in ROWS}) == len(ROWS)
    assert {row.kind for row in ROWS} == set(KINDS)
    assert all(row.note for row in ROWS if row.kind == "refused")


@pytest.mark.parametrize("row", [r for r in ROWS if r.kind == "opaque"], ids=lambda r: f"{r.module}.{r.name}")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_opaque_functions_are_steps(row: Row) -> None:
    fn, args = function(row), sample(row)
    want = fn(*args)
    if isinstance(want, (type, np.dtype)):
        with pytest.raises(UnsupportedOpError, match="returns"):
            run_by_reference(fn, args, {})
        return
    if not supported(want):
        with pytest.raises(UnsupportedDTypeError):
            run_by_reference(fn, args, {})
        return
    got = run_by_reference(fn, args, {})
    assert type(got) is type(want) or np.ndim(want) == 0
    for a, b in zip(parts(got), parts(want), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)
    assert calls_of(trace(fn, args).graph.outputs)


def parts(value: Any) -> list[Any]:
    return [p for v in value for p in parts(v)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("row", [r for r in ROWS if r.kind == "refused"], ids=lambda r: f"{r.module}.{r.name}")
def test_refused_functions_are_refused(row: Row) -> None:
    """No traced array gets through one; those that take none, such as settings, are refused for what they do."""
    fn = function(row)
    if not hasattr(fn, "_implementation") and not isinstance(fn, np.ufunc):
        return
    two = ("compress", "extract", "intersect1d", "setdiff1d", "setxor1d", "union1d", "shares_memory", "copyto")
    more: dict[str, Any] = {
        name: lambda x, f=fn: f(x > 0 if f.__name__ in ("compress", "extract") else x, x) for name in two
    }
    more |= {
        "may_share_memory": lambda x: fn(x, x),
        "put": lambda x: fn(x, [0], x[0]),
        "place": lambda x: fn(x, x > 0, x),
        "putmask": lambda x: fn(x, x > 0, x),
        "put_along_axis": lambda x: fn(x, np.array([0]), x[:1], 0),
        "fill_diagonal": lambda x: fn(x.reshape(2, 2), 1),
        "einsum_path": lambda x: fn("i,i", x, x),
        "busday_offset": lambda x: fn(x, 1),
        "busday_count": lambda x: fn(x, x),
        "save": lambda x: fn("file", x),
        "savez": lambda x: fn("file", x),
        "savetxt": lambda x: fn("file", x),
        "savez_compressed": lambda x: fn("file", x),
    }
    with warnings.catch_warnings(), pytest.raises((UnsupportedOpError, ConcretizationError)) as caught:
        trace(more.get(row.name, lambda x: fn(x)), (V,))
    assert isinstance(caught.value, EqsatError) and caught.value.where is not None
