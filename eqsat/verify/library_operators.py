"""Builders of random steps that NumPy or SciPy runs between kernels, and of functions that are rewritten in others.

See :mod:`eqsat.verify.operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from eqsat.frontends import elementary as _elementary  # noqa: F401
from eqsat.frontends import special as _special  # noqa: F401
from eqsat.frontends.ufuncs import WRITTEN
from eqsat.ir.table import REALS, Interval
from eqsat.verify.drafts import Builder, Draft, Made, Reject, Value, within

LIBRARY_OPERATORS: dict[str, Builder] = {}


def _operator(*names: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        for name in names:
            LIBRARY_OPERATORS[name] = build
        return build

    return add


_TRIED: dict[str, tuple[Interval, ...]] = {
    **WRITTEN,
    **dict.fromkeys(("np.cbrt", "np.nan_to_num", "np.sinc"), (REALS,)),
    **dict.fromkeys(("np.tan", "special.i0"), ((-1, 1),)),
    "np.exp2": ((-10, 10),),
    **dict.fromkeys(("np.log2", "np.log10", "special.gammaln", "special.digamma"), ((1.5, math.inf),)),
    **dict.fromkeys(("np.hypot", "np.logaddexp", "np.fmax", "np.fmin"), (REALS, (0.5, math.inf))),
}
"""Functions that are written in operators, or run by NumPy and SciPy, and where their arguments lie."""


@_operator("function", "special")
def _function(d: Draft) -> Made:
    name, intervals = d.choose([*_TRIED.items()])
    x = d.pick_float()
    values = [x, *(d.partner(x) for _ in intervals[1:])]
    if any(v.kind in "bc" for v in values):
        raise Reject
    return Made(f"{name}({', '.join(within(v, *i) for v, i in zip(values, intervals, strict=True))})")


@_operator("percentile", "median", "interp", "quantile")
def _continuous_step(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim > 0 and min(v.shape) > 0)
    case = d.below(4)
    if case == 0:
        return Made(f"np.percentile({x.name}, {d.choose((0, 25, 60, 100))}, axis={d.axis(x)}).astype(np.{x.dtype})")
    if case == 1:
        return Made(f"np.median({x.name}, axis={d.axis(x)}, keepdims={d.flag()})")
    if case == 2:
        return Made(f"np.quantile({x.name}, [0.25, 0.5], axis={d.axis(x)}).astype(np.{x.dtype})")
    return Made(f"np.interp({x.name}, np.arange(-2.0, 3.0), np.arange(5.0) ** 2)")


@_operator("searchsorted", "histogram", "digitize")
def _discrete_step(d: Draft) -> Made:
    x = d.pick(lambda v: v.exact and v.kind in "fi" and v.ndim > 0)
    forms = (
        "np.searchsorted(np.arange(-2.0, 3.0), {})",
        "np.histogram({}, bins=4, range=(-8, 8))[0]",
        "np.digitize({}, np.arange(-2.0, 3.0))",
        "np.count_nonzero({}, axis=0)",
    )
    return Made(d.choose(forms).format(x.name), discrete=True)


@_operator("inv", "solve", "slogdet", "svd", "cholesky", "eigvalsh")
def _matrix_step(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim >= 2 and v.shape[-1] > 0 and v.top <= 4)
    turned = f"np.swapaxes({x.name}, -1, -2)"
    gram = f"({turned} @ {x.name} + {x.shape[-2] + 1} * np.eye({x.shape[-1]}, dtype=np.{x.dtype}))"
    forms = (
        f"np.linalg.inv({gram})",
        f"np.linalg.solve({gram}, {turned})",
        f"np.linalg.slogdet({gram})[1]",
        f"np.linalg.svd({gram}, compute_uv=False)",
        f"np.linalg.cholesky({gram})",
        f"np.linalg.eigvalsh({gram})",
        f"np.linalg.norm({gram}, axis=(-2, -1))",
        f"np.linalg.pinv({gram})",
    )
    return Made(d.choose(forms))


@_operator("fft", "ifft", "rfft")
def _fourier(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind in "fc" and v.ndim > 0 and min(v.shape) > 0 and v.dtype != "float16")
    axis = d.axis(x)
    forms = ("np.fft.fft({0}, axis={1})", "np.fft.ifft({0}, axis={1})", "np.fft.fft({0}, axis={1}).real.copy()")
    real = ("np.fft.rfft({0}, axis={1})", "np.fft.irfft(np.fft.rfft({0}, axis={1}), {2}, axis={1})")
    form: str = d.choose((*forms, *(real if x.kind == "f" else ())))
    return Made(form.format(x.name, axis, x.shape[axis]))


@_operator("differences", "signal")
def _along_an_axis(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim > 0 and min(v.shape) > 1)
    axis = d.axis(x)
    forms = (
        f"np.diff({x.name}, axis={axis})",
        f"np.gradient({x.name}, axis={axis})",
        f"np.trapezoid({x.name}, axis={axis})",
        f"np.average({x.name}, axis={axis})",
        f"np.nansum({x.name}, axis={axis})",
        f"np.nanmax({x.name}, axis={axis})",
        f"np.ptp({x.name}, axis={axis})",
        f"special.logsumexp({x.name}, axis={axis})",
        f"special.softmax({x.name}, axis={axis})",
    )
    return Made(d.choose(forms))


@_operator("matrices")
def _of_matrices(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim == 2 and 0 < v.array.size <= 400)
    forms = (
        f"np.cov({x.name})",
        f"np.kron({x.name}, np.arange(3.0, dtype=np.{x.dtype}))",
        f"np.convolve({x.name}.ravel(), [0.25, 0.5, 0.25], mode='same')",
        f"np.polyval([0.5, -1.0, 2.0], {x.name})",
        f"np.rot90({x.name})",
        f"np.vander({x.name}[0], 3)",
    )
    return Made(d.choose(forms))


@_operator("opaque")
def _opaque(d: Draft) -> Made:
    """A function of a library that eqsat knows nothing of."""
    x = d.pick(lambda v: v.kind == "f" and v.ndim > 0)
    y: Value = d.partner(x, same_dtype=True)
    function = f"f{len(d.values)}"
    before = f"def {function}(a, b):\n    return np.add(np.tanh(a), 0.5 * b), np.sort(np.ravel(a))[::-1].copy()"
    return Made(f"eqsat.opaque({function})({x.name}, {y.name})[{d.below(2)}]", before=before)
