"""Calls of NumPy's functions as programs have them: one a line, of a matrix, a square one, rows, ints and bools."""

from __future__ import annotations

import numpy as np
from scipy import ndimage, signal, special, stats
from scipy.spatial import distance

_RNG = np.random.default_rng(7)
ARGUMENTS: dict[str, np.ndarray] = {
    "m": _RNG.normal(size=(4, 6)),
    "n": _RNG.normal(size=(4, 6)),
    "s": _RNG.normal(size=(5, 5)),
    "v": _RNG.normal(size=6),
    "w": _RNG.normal(size=6),
    "u": _RNG.uniform(0.05, 0.95, 6),
    "h": np.where(_RNG.random((4, 6)) < 0.3, np.nan, _RNG.normal(size=(4, 6))),
    "i": _RNG.integers(1, 9, (4, 6)),
    "j": _RNG.integers(0, 5, 6),
    "b": _RNG.random((4, 6)) < 0.5,
    "c": _RNG.normal(size=(3, 4, 5)),
}
NAMES = {"np": np, "ndimage": ndimage, "signal": signal, "special": special, "stats": stats, "distance": distance}

REWRITTEN = """
np.nansum(h); np.nansum(h, axis=0); np.nansum(h, axis=1, keepdims=True); np.nanmean(h, axis=0); np.nanmax(h, axis=0)
np.nanmin(h, 1); np.nanstd(h, axis=1); np.nanvar(h, axis=0, ddof=1); np.nanprod(h, 0); np.nancumsum(h, axis=1)
np.nancumprod(h); np.nan_to_num(h); np.nan_to_num(h, nan=1.5); np.sum(m, where=b); np.sum(m, axis=0, where=b)
np.sum(m, axis=1, initial=2.0); np.prod(m, axis=1, where=b); np.max(m, axis=0, where=b, initial=-9.0)
np.min(m, where=b, initial=9.0); np.mean(m, axis=1, where=b); np.std(m, axis=1, ddof=1, where=b); np.var(m, where=b)
np.any(b, axis=0, where=b); np.all(b, axis=1, where=b); m.sum(where=b); m.mean(axis=0, where=b); m.max(initial=3.0)
m.std(ddof=1); np.sum(i, dtype=np.float64); np.var(m, axis=0, correction=1); np.std(m, axis=1, keepdims=True)
np.cumsum(i); np.cumprod(m, axis=0); np.cumulative_sum(v); np.cumulative_sum(m, axis=1, include_initial=True)
np.cumulative_prod(v); np.cov(m); np.cov(m, rowvar=False); np.cov(m, n, ddof=0); np.cov(m, aweights=u)
np.corrcoef(m); np.corrcoef(v, w); np.cross(m[:, :3], n[:, 3:]); np.cross(v[:3], w[:3])
np.linalg.cross(m[:, :3], n[:, 3:]); np.gradient(v); np.gradient(m); np.gradient(m, 0.5, axis=1)
np.gradient(v, np.arange(6.0) ** 2); np.gradient(m, 2.0, 3.0); np.gradient(v, edge_order=2); np.trapezoid(v)
np.trapezoid(m, dx=0.1, axis=0); np.trapezoid(v, np.cumsum(u)); np.polyval(v, u); np.polyval([1.0, 2.0, 3.0], m)
np.polyadd(v, w); np.polymul(v, w); np.polyder(v); np.polyint(v); np.polysub(v, w[:3])
np.interp(u, np.linspace(0, 1, 6), v); np.interp(m, np.cumsum(u), w); np.interp(u, [0, 1], [2, 3])
np.interp(v, np.cumsum(u), w, left=0.0, right=-1.0); np.interp(v, np.cumsum(u), w, period=2.0); np.diff(v, n=2)
np.diff(m, axis=0, prepend=0.0); np.diff(v, append=v[:1]); np.ediff1d(v); np.ediff1d(m, to_begin=0.0)
np.hypot(m, n); np.logaddexp(m, n); np.logaddexp2(m, n); np.arcsinh(m); np.arccosh(m * m + 1); np.arctanh(u)
np.sinh(m); np.cosh(m); np.tanh(m); np.arctan(m); np.arctan2(m, n); np.arcsin(u); np.arccos(u); np.sinc(m)
np.sign(m); np.signbit(m); np.heaviside(m, 0.5); np.copysign(m, n); np.ldexp(m, i); np.fmod(m, n); np.fmod(i, 3)
np.divmod(m, n); np.modf(m); np.frexp(m); np.gcd(i, 12); np.lcm(i, 4); np.deg2rad(m); np.rad2deg(m); np.fabs(m)
np.float_power(np.abs(m), 1.5); np.cbrt(m); np.exp2(m); np.log2(u); np.log10(u); np.reciprocal(m); np.spacing(m)
np.maximum.reduce(m, axis=0); np.add.reduce(m, axis=1); np.multiply.outer(v, w); np.subtract.outer(v, w)
np.maximum.accumulate(v); np.add.accumulate(m, axis=1); np.logaddexp.reduce(v); np.hypot.reduce(v)
np.bincount(j, minlength=5); np.digitize(m, [-1.0, 0.0, 1.0]); np.digitize(v, np.array([1.0, 0.0]), right=True)
np.searchsorted(np.array([0.0, 1.0, 2.0]), v); np.searchsorted(np.cumsum(u), v, side="right"); np.isin(i, [1, 2, 3])
np.in1d(i, [4, 5]) if hasattr(np, "in1d") else np.isin(i, 4); np.tril(s); np.triu(s, 1); np.tri(4)
s[np.tril_indices(5)]; s[np.triu_indices(5, 1)]; s[np.diag_indices(5)]; np.tril_indices_from(s)
np.triu_indices_from(s); s[np.triu_indices_from(s)]; np.diag_indices_from(s); np.vander(v)
np.vander(v, 3, increasing=True); np.kron(s, m); np.outer(v, w); np.inner(m, n); np.vdot(v, w)
np.tensordot(m, n, axes=([0, 1], [0, 1])); np.vecdot(m, n); np.matvec(m, v); np.vecmat(v, m.T)
np.linalg.vecdot(m, n, axis=0); np.einsum("ij,ij->i", m, n); np.einsum("ii", s); np.einsum("ij->ji", m)
np.einsum("ij,jk,kl->il", m, m.T, n); np.einsum("i,j->ij", v, w, optimize=True); np.einsum("...i,...i", m, n)
np.einsum(m, [0, 1], v, [1], [0]); np.einsum("ii->i", s); np.block([[s, s], [s, s]]); np.block([v, w]); np.pad(m, 1)
np.pad(m, ((1, 2), (0, 1)), mode="edge"); np.pad(m, 2, mode="reflect"); np.pad(m, 2, mode="symmetric")
np.pad(m, 7, mode="wrap"); np.pad(v, 2, "linear_ramp"); np.pad(v, 2, "mean"); np.pad(m, 2, "maximum")
np.pad(m, 1, "minimum"); np.pad(m, 1, "mean", stat_length=2); np.pad(m, 1, constant_values=2.0)
np.pad(m, 2, mode="reflect", reflect_type="odd"); np.pad(m, 2, "median"); np.roll(m, 1)
np.roll(m, (1, 2), axis=(0, 1)); np.rot90(m); np.flip(m, 0); np.moveaxis(c, 0, -1); np.swapaxes(c, 0, 2)
np.atleast_1d(v); np.atleast_2d(v, m); np.atleast_3d(m); np.stack([v, w]); np.vstack([v, w]); np.hstack([v, w])
np.dstack([m, n]); np.column_stack([v, w]); np.row_stack([v, w]) if hasattr(np, "row_stack") else np.vstack([v, w])
np.split(v, 3); np.array_split(m, 4, axis=1); np.hsplit(m, 2); np.vsplit(m, 2)
np.dsplit(np.stack([c, c], 2)[0][..., :4], 2); np.tile(v, 3); np.repeat(v, 2); np.repeat(m, [1, 2, 0, 1], axis=0)
np.take(m, [0, 2], axis=1); np.unstack(m); np.take_along_axis(m, np.argsort(m, axis=1), axis=1)
np.choose(j % 3, [v, w, u]); np.choose([0, 1], [v[:2], w[:2]]); np.select([v > 0, w > 0], [v, w], 0.0)
np.piecewise(v, [v < 0, v >= 0], [lambda x: -x, lambda x: x * 2]); np.piecewise(v, [v < 0], [0.0, 1.0])
np.compress([True, False, True], m, axis=1); np.delete(v, 2); np.delete(m, [0, 2], axis=1); np.insert(v, 2, 5.0)
np.insert(m, 1, v, axis=0); np.append(v, 1.0); np.resize(v, (3, 4)); np.trim_zeros(np.ones(3)); np.allclose(m, n)
np.isclose(m, n); np.array_equal(m, n); np.array_equiv(m, n); np.clip(m, -1, 1); m.clip(0); np.clip(m, None, n)
np.unwrap(v * 4); np.unwrap(m, axis=0); np.ptp(m); np.ptp(m, axis=0); np.average(m, axis=0)
np.average(m, weights=v, axis=1); np.average(v, weights=u, returned=True); np.count_nonzero(b)
np.count_nonzero(i, axis=0); np.argmax(h); np.argmin(h, axis=0); np.argmax(m, axis=1, keepdims=True)
np.meshgrid(v, w); np.ix_(v > 0) if 0 else v; np.meshgrid(v, w, indexing="ij", sparse=True)
np.linspace(v[0], v[1], 5); np.linspace(0.0, v, 4); np.geomspace(u[0], u[1], 4); np.logspace(v[0], v[1], 4)
np.full(3, v[0]); np.asarray(m); np.array([v, w]); np.array(m); np.array([v[0], w[0], 1.0]); np.full_like(m, 2.0)
np.zeros_like(m); np.ones_like(i); np.empty_like(m).shape; np.linalg.norm(m); np.linalg.norm(m, axis=1)
np.linalg.norm(v, 1); np.linalg.norm(v, np.inf); np.linalg.norm(m, 1); np.linalg.norm(m, np.inf)
np.linalg.norm(m, -np.inf); np.linalg.norm(m, -1); np.linalg.norm(v, 3); np.linalg.vector_norm(m, axis=0)
np.linalg.matrix_norm(m); np.linalg.matrix_norm(s, ord=1); np.linalg.trace(s); np.trace(s, 1); np.diagonal(s)
np.diag(v); np.diag(s); np.diagflat(m); np.linalg.diagonal(s); np.linalg.matrix_power(s, 3)
np.linalg.matrix_power(s, 0); np.linalg.multi_dot([m, m.T, n]); np.linalg.outer(v, w); np.convolve(v, w)
np.convolve(v, [0.25, 0.5, 0.25], "same"); np.convolve(v, w[:3], mode="valid"); np.correlate(v, w)
np.correlate(v, w[:3], "full"); np.correlate(v, [1.0, 0.0, -1.0], "same"); np.round(m, 2); np.around(m); np.fix(m)
np.trunc(m); np.rint(m); np.floor(m); m.round(1); np.round(i, -1); np.angle(m); np.real(m); np.imag(m); np.conj(m)
np.isreal(m); np.iscomplex(m); np.real_if_close(m); np.isposinf(h); np.isneginf(h); np.invert(b)
np.bitwise_and(b, b); np.logical_xor(b, m > 0); np.bitwise_not(b); np.bitwise_invert(b); np.acos(u); np.asin(u)
np.atan(v); np.atan2(v, w); np.acosh(v * v + 1); np.asinh(v); np.atanh(u); np.pow(u, 2.0); np.concat([v, w])
np.permute_dims(c, (2, 0, 1)); np.matrix_transpose(c); np.astype(i, np.float32); np.cumsum(b)
np.apply_over_axes(np.sum, c, [0, 2]); np.nanmax(h); np.lexsort((v, w)); np.sort(m, axis=0); np.argsort(v)
np.fmax(m, h); np.fmin(h, n); np.positive(m); np.i0(v); np.blackman(5) * v[:5]; np.sort_complex(v).real
np.broadcast_to(v, (4, 6)); np.broadcast_arrays(v, m); np.expand_dims(m, (0, 2)); np.squeeze(m[None]); np.ravel(m)
np.apply_along_axis(np.sum, 1, m); np.fill_diagonal(s, 0.0); m.dot(v); m.T @ n; m.ravel(); m.flatten(); m.repeat(2)
m.cumsum(0); m.argmax(); m.ptp() if hasattr(m, "ptp") else v; m.prod(axis=0); m.any(); m.trace()
m.choose if 0 else v; m.astype(np.float32); m.compress([True, False], axis=0); np.rollaxis(c, 2); np.fliplr(m)
np.flipud(m); m.nonzero if 0 else v
"""
"""Uses of NumPy that become operators of the program, separated by semicolons."""

SPECIAL = """
special.erf(m); special.erfc(m); special.erfcx(m); special.expit(m); special.logit(u); special.ndtr(m)
special.log_ndtr(m); special.log_expit(m); special.xlogy(u, m * m); special.xlog1py(u, u); special.entr(u)
special.rel_entr(u, u[::-1]); special.kl_div(u, u[::-1]); special.exp2(m); special.exp10(m); special.expm1(m)
special.log1p(u); special.cbrt(m); special.huber(1.0, m); special.pseudo_huber(1.0, m); special.sinc(m)
special.boxcox(u, 0.5); special.boxcox1p(u, 0.5); special.inv_boxcox(u, 0.5); special.radian(1.0, 2.0, v)
special.cosdg(v); special.sindg(v); special.round(v); special.logsumexp(m); special.logsumexp(m, axis=1)
special.logsumexp(m, axis=0, keepdims=True); special.logsumexp(m, axis=1, b=i); special.softmax(m)
special.softmax(m, axis=1); special.log_softmax(m, axis=-1); special.ndtri(u); special.gammaln(u)
special.digamma(u); special.gamma(u); special.j0(v)
"""

SCIPY = """
distance.cdist(m, n); distance.cdist(m, n, "sqeuclidean"); distance.cdist(m, n, "cityblock")
distance.cdist(m, n, "cosine"); distance.cdist(m, n, "chebyshev"); distance.cdist(m, n, metric="minkowski", p=3)
stats.norm.pdf(v); stats.norm.cdf(v); stats.norm.logpdf(v, 0.5, 2.0); stats.norm.pdf(v, loc=0.1, scale=u)
stats.norm.sf(v); ndimage.correlate(m, s[:3, :3]); ndimage.convolve(m, s[:3, :3])
ndimage.convolve(m, s[:3, :3], mode="constant", cval=1.0); ndimage.correlate1d(m, v[:3])
ndimage.correlate(m, s[:3, :3], mode="wrap"); ndimage.convolve1d(m, [1.0, 2.0, 1.0], axis=0)
ndimage.uniform_filter(m, 3); ndimage.uniform_filter(m, (2, 3), mode="nearest"); ndimage.uniform_filter1d(v, 3)
ndimage.gaussian_filter(m, 1.0); ndimage.gaussian_filter(m, (1.0, 0.5), mode="mirror")
ndimage.gaussian_filter1d(v, 0.7); ndimage.laplace(m); ndimage.sobel(m); ndimage.prewitt(m, axis=0)
signal.convolve(v, w); signal.convolve2d(m, s[:3, :3]); signal.convolve2d(m, s[:3, :3], mode="same")
signal.correlate2d(m, s[:3, :3], "valid"); signal.convolve(m, s[:3, :3], "same")
signal.correlate(v, w[:3], mode="valid"); signal.convolve2d(m, s[:3, :3], "same", boundary="symm")
signal.convolve2d(m, s[:3, :3], "same", boundary="wrap"); signal.fftconvolve(v, w) if 0 else v
"""


def lines(text: str) -> list[str]:
    """The calls of a list."""
    return [part.strip() for part in text.replace("\n", ";").split(";") if part.strip()]
