"""Templates of reductions, scans, sorting keys and linear algebra."""

from __future__ import annotations

from tests.numpy_net.draft import Draft
from tests.numpy_net.program import words

NAMES = words("""
    sum sum sum mean mean max min prod std var any all argmax argmin ptp
""")
METHODS = words("""
    sum sum mean max min prod std var any all argmax argmin
""")
NANS = words("""
    nansum nanmax nanmin nanmean nanprod nanstd nanvar nanargmax
""")

OTHER = """
np.cumsum({n})
np.cumsum({n}, axis={ax})
{n}.cumsum(axis={ax}, dtype={fdt})
{i}.cumsum()
{b}.cumsum()
np.cumprod({f}, axis={ax})
np.cumulative_sum({v})
np.cumulative_sum({v}, include_initial=True)
np.cumsum({f:A}[::-1], axis=0)[::-1]
np.diff({n})
np.diff({n}, axis={ax})
np.diff({f}, n=2)
np.diff({b})
np.diff({v}, prepend=0.0, append={c})
np.ediff1d({v})
np.gradient({v}, 0.5)
np.gradient({m}, axis=0)
np.trapezoid({f})
np.trapezoid({v:A}, dx=0.1)
np.trapezoid({v:A}, {=A})
np.median({f})
np.median({f}, axis={ax}, keepdims=True)
np.quantile({f}, 0.3)
np.percentile({f}, [25, 75], axis=0)
np.average({f})
np.average({f}, axis={ax})
np.average({v:A}, weights=np.abs({=A}) + 1)
np.average({m:A}, axis=-1, weights=np.arange({=A}.shape[-1]) + 1.0)
np.count_nonzero({x})
np.count_nonzero({x}, axis={ax})
np.count_nonzero({f} > 0, axis=0, keepdims=True)
np.add.reduce({n})
np.add.reduce({n}, axis={axs}, keepdims={tf})
np.add.reduce({f}, axis=None, dtype={fdt})
np.multiply.reduce({f}, axis=0)
np.maximum.reduce({n}, axis={axs})
np.maximum.reduce([{f:A}, -{=A}, {y}])
np.minimum.reduce({f}, axis=-1, initial=0.25)
np.logical_and.reduce({b}, axis=None)
np.logical_or.reduce({x})
np.bitwise_or.reduce({i})
np.bitwise_xor.reduce({i}, axis=-1)
np.add.accumulate({n})
np.maximum.accumulate({n}, axis={ax})
np.minimum.accumulate({f})
np.multiply.accumulate({v})
np.subtract.reduce({v})
np.logaddexp.reduce({f})
np.hypot.reduce({v})
np.add.reduceat({v}, [0, 1])
np.subtract.outer({v}, {v})
np.add.outer({f}, {v})
np.maximum.outer({v}, {i})
np.multiply.outer({v}, {m})
np.add.at({v}, 0, 1) if False else {v}
np.bincount({i} % 4) if False else {i} % 4
np.bincount(abs({i}).ravel() % 3, minlength=3)
np.histogram({v}, bins=3)
np.cov({m})
np.corrcoef({m}.reshape(2, -1))
np.cross({f}[..., :3], {f}[..., :3])
np.outer({f}, {f})
np.outer({v}, {i})
np.inner({v:A}, {=A})
np.inner({m:A}, {=A})
np.vdot({f:A}, {=A} + 1)
np.vecdot({f:A}, {=A})
np.linalg.vecdot({m:A}, {=A}, axis=0)
np.kron({v}, {v})
np.kron({m}, np.eye(2))
np.convolve({v}, {v})
np.convolve({v}, [0.5, 1.0, 0.5], mode='same')
np.correlate({v}, {v}, 'full')
np.trace({m})
np.trace({m}, offset={k})
{m}.trace()
np.linalg.norm({f})
np.linalg.norm({v}, {k})
np.linalg.norm({v}, ord=np.inf)
np.linalg.norm({v}, -np.inf)
np.linalg.norm({v}, 3)
np.linalg.norm({v}, 0.5)
np.linalg.norm({v}, 0)
np.linalg.norm({i})
np.linalg.norm({f}, axis={ax})
np.linalg.norm({f}, axis={ax}, keepdims=True)
np.linalg.norm({m}, axis=(0, 1))
np.linalg.norm({m}, 'fro', axis=(-2, -1))
np.linalg.norm({m:A}.reshape({=A}.shape[0], -1), 1)
np.linalg.norm({m:A}.reshape({=A}.shape[0], -1), ord=np.inf)
np.linalg.norm({f}, ord=1, axis={ax})
np.linalg.norm({m}, 2, axis=-1)
np.linalg.vector_norm({f}, axis={axs})
np.linalg.vector_norm({f}, ord=1)
np.linalg.matrix_norm({m})
np.linalg.matrix_power({sq}, 3)
np.linalg.matrix_power({sq} * 0.1, {n1})
np.linalg.multi_dot([{sq:A}, {=A}, {=A}])
np.linalg.outer({v}, {v})
np.linalg.trace({m})
np.linalg.diagonal({m})
np.linalg.matrix_transpose({m})
np.linalg.det({sq})
np.linalg.inv({sq} + 5 * np.eye(1))
np.linalg.solve({sq}, {sq})
np.linalg.cholesky({sq})
np.linalg.svd({m})
np.linalg.eigh({sq})
np.linalg.qr({m})
{m:A} @ {=A}.T
{m:A}.T @ {=A}
{m:A} @ {=A}.swapaxes(-1, -2)
{m:A} @ np.ones({=A}.shape[-1], {=A}.dtype)
np.ones({m:A}.shape[-2]) @ {=A}
{v:A} @ {=A}
{v:A} @ np.arange({=A}.size)
{v:A} @ np.outer({=A}, {v})
{sq:A} @ {=A} @ {=A}
{sq:A} @ ({=A} + {=A}.mT)
{sq:A} @ {=A} - {=A} @ {=A}.mT
np.matmul({m:A}, {=A}.mT)
np.matmul({m:A}[None], {=A}.mT[:, None] if {=A}.ndim > 2 else {=A}.mT)
np.matmul({m:A}, np.ones(({=A}.shape[-1], 3), np.float32), dtype={fdt})
np.matmul(np.ones((2, 1, 3, {m:A}.shape[-2])), {=A})
np.dot({m:A}, {=A}.T)
np.dot({v:A}, {=A})
np.dot({f}, {s})
np.dot({m:A}, np.ones({=A}.shape[-1]))
{m:A}.dot({=A}.reshape(-1)[:{=A}.shape[-1]])
np.dot(np.ones((2, 3, {m:A}.shape[-2])), {=A})
np.matvec({m:A}, np.ones({=A}.shape[-1]))
np.vecmat(np.ones({m:A}.shape[-2]), {=A})
{i:A}.reshape(-1) @ {=A}.reshape(-1)
({i:A}.reshape(-1, 1) @ {=A}.reshape(1, -1)) % 7
{i:A}.reshape(1, -1) @ np.ones(({=A}.size, 2))
{b:A}.reshape(1, -1) @ {=A}.reshape(-1, 1)
np.tensordot({m:A}, {=A}.T, axes=1)
np.tensordot({f:A}, {=A}, axes={f:B}.ndim) if False else np.tensordot({f:A}, {=A}, axes={=A}.ndim)
np.tensordot({m:A}, {=A}, axes=([0], [0]))
np.tensordot({m:A}, {=A}, axes=(-1, -1))
np.tensordot({m:A}, {=A}, axes=([-1, 0], [-1, 0]))
np.tensordot({v}, {v}, axes=0)
np.einsum('i->', {v})
np.einsum('i,i', {v:A}, {=A})
np.einsum('i,i->i', {v:A}, {=A} + 1)
np.einsum('i,j->ij', {v}, {v})
np.einsum('i,j', {v}, {v})
np.einsum('ii->i', {sq})
np.einsum('ii', {sq})
np.einsum('...ii->...', {sq})
np.einsum('...ij->...ji', {m})
np.einsum('ij->ji', {m})
np.einsum('ij->j', {m})
np.einsum('ij->', {m})
np.einsum('ij,ij->', {m:A}, {=A})
np.einsum('ij,kj->ik', {m:A}, {=A})
np.einsum('ij,kj', {m:A}, {=A})
np.einsum('...j,...j->...', {f:A}, {=A})
np.einsum('...i,...j->...ij', {f:A}, {=A})
np.einsum('ij,jk,kl->il', {sq:A}, {=A}, {=A})
np.einsum('ij,jk,kl->il', {sq:A}, {=A}, {=A}, optimize=True)
np.einsum('ij,ik->jk', {m:A}, {=A}, optimize='greedy')
np.einsum({m:A}, [0, 1], {=A}, [0, 2], [1, 2])
np.einsum('bij,bkj->bik', {m:A}[None], {=A}[None])
np.einsum('ij,j->i', {m:A}, np.arange({=A}.shape[-1]))
np.einsum('ji,jk->ik', {sq:A}, {=A})
np.einsum('a,b,c->abc', {v}[:3], {v}[:3], {v}[:2])
np.einsum('ij,i,j->', {sq:A}, {=A}[0], {=A}[:, 0])
np.einsum('ij,ij,ij->i', {m:A}, {=A}, {=A})
np.einsum('i->i', {i})
np.einsum('i,i->', {i:A}, {=A})
np.apply_along_axis(lambda t: t.sum(), -1, {f})
np.apply_over_axes(np.sum, {m}, [0, 1])
({f:A} - {=A}.mean()) / ({=A}.std() + 1e-3)
({f:A} == {=A}.max(axis=-1, keepdims=True)).astype(int)
{f:A} / np.sqrt(np.sum({=A} ** 2, axis=-1, keepdims=True) + 1e-6)
(np.abs({f:A}[..., :, None] - {=A}[..., None, :])).max(-1)
(({f:A}[..., :, None] - {=A}[..., None, :]) ** 2).sum(axis=-1)
{f:A}.sum() / {=A}.size
np.sum({f} > 0) / 3
np.sum({b})
np.mean({b}, axis={axs})
np.mean({i})
sum({f})
sum([{f:A}, {=A}, 1])
max({f:A}.shape) * {=A}
np.sum([{f:A}, {=A}], axis=0)
np.max([{f:A}.sum(), 0])
min({f:A}.shape, default=0) + {=A}
""".strip().splitlines()


def reduction(d: Draft) -> str:
    """A reduction as a function or method, with its keywords."""
    r = d.rng.random()
    if r < 0.08:
        name = d.rng.choice(NANS)
        return f"np.{name}({{f}}, axis={{axs}})"
    method = d.rng.random() < 0.45
    name = d.rng.choice(METHODS if method else NAMES)
    kind = "b" if name in ("any", "all") and d.rng.random() < 0.6 else d.rng.choice("fffnnx")
    axis = "{ax}" if name.startswith("arg") else "{axs}"
    options = []
    if d.rng.random() < 0.75:
        options.append(f"axis={axis}" if d.rng.random() < 0.8 else axis)
    if d.rng.random() < 0.3:
        options.append("keepdims={tf}")
    if name in ("sum", "prod", "mean", "std", "var") and d.rng.random() < 0.2:
        options.append("dtype={fdt}" if d.rng.random() < 0.7 else "dtype={dt}")
    if name in ("std", "var") and d.rng.random() < 0.4:
        options.append(d.rng.choice(("ddof=1", "ddof=0", "correction=1", "ddof=0.5")))
    if name in ("sum", "prod", "max", "min") and d.rng.random() < 0.15:
        options.append(d.rng.choice(("initial=0", "initial=2.5", "initial=-1")))
    if name in ("sum", "prod", "mean", "any", "all") and d.rng.random() < 0.1:
        options.append("where={=A} > 0" if kind != "b" else "where={=A}")
    if name in ("max", "min") and d.rng.random() < 0.08:
        options += ["initial=1", "where={=A} > 0"]
    text = ", ".join(dict.fromkeys(options))
    if method:
        return f"{{{kind}:A}}.{name}({text})"
    return f"np.{name}({{{kind}:A}}{', ' if text else ''}{text})"


def other(d: Draft) -> str:
    return d.rng.choice(OTHER)
