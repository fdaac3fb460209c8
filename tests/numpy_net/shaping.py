"""Templates that move elements: views, joins, indices, and arrays made of nothing."""

from __future__ import annotations

from tests.numpy_net.draft import Draft

MOVES = """
{x}.T
{m}.mT
np.transpose({x})
np.transpose({x}, {perm})
{x}.transpose({perm})
{x}.transpose()
np.permute_dims({x}, {perm})
np.swapaxes({x}, {ax}, {ax})
{x}.swapaxes(0, -1)
np.moveaxis({x}, {ax}, {ax})
np.rollaxis({x}, {ax})
np.matrix_transpose({m})
{x}.reshape({shape})
np.reshape({x}, {shape})
np.reshape({x}, {shape}, order='F')
np.reshape({x}, shape={shape}, copy=False)
{x}.reshape(-1)
{x}.reshape(*{shape})
{x}.reshape({shape}, order='A')
{x}.ravel()
{x}.ravel()[::-1]
{x}.ravel()[::-1].reshape({shape})
{x:A}[::-1].reshape({=A}.shape)
{x}.ravel('F')
{x}.ravel(order='K')
np.ravel({x}.T)
{x}.flatten()
{x}.flatten('F')[::2]
{x:A}.T.reshape({=A}.shape)
{x:A}.T.reshape(-1)[1:]
{x}[None]
{x}[..., None]
{x}[:, None]
{x}[None, :, None]
np.expand_dims({x}, 0)
np.expand_dims({x}, (0, -1))
np.squeeze({x})
{x}.squeeze()
np.squeeze({x}[None], axis=0)
np.atleast_1d({x})
np.atleast_2d({x})
np.atleast_3d({x})
np.atleast_2d({x}, {x})
np.flip({x})
np.flip({x}, {axs})
np.flip({x}, axis={ax})
np.fliplr({m})
np.flipud({x})
np.rot90({m})
np.rot90({m}, k={k})
np.rot90({m}, 2, axes=(-1, 0))
np.roll({x}, {k})
np.roll({x}, {k}, axis={ax})
np.roll({m}, (1, -2), axis=(0, 1))
np.roll({m}, shift=3, axis=(0, 1))
np.tile({x}, 2)
np.tile({x}, (2, 1))
np.tile({x}, (2, 1, 3))
np.repeat({x}, 2)
np.repeat({x}, 3, axis={ax})
{x}.repeat(2, axis=-1)
np.repeat({v}[:3], [1, 0, 2])
np.pad({n}, 1)
np.pad({n}, ((1, 2),), constant_values={c})
np.pad({n}, (0, 2), mode='constant', constant_values=-1)
np.pad({f}, 1, mode='edge')
np.pad({f}, 2, mode='reflect')
np.pad({f}, 1, mode='wrap')
np.pad({m}, ((0, 1), (2, 0)))
np.broadcast_to({x:A}, (2,) + {=A}.shape)
np.broadcast_to({x:A}, (3, 2) + {=A}.shape)[1]
np.broadcast_to({f:A}[..., None], {=A}.shape + (4,)).sum(-1)
np.broadcast_arrays({x}, {y})
np.broadcast_shapes({x:A}.shape, (1,)) == {=A}.shape
np.meshgrid({v}, {v})
np.meshgrid({v}, {v}, indexing='ij', sparse=True)
np.diag({v})
np.diag({v}, {k})
np.diag({m}[..., 0] if False else {m:A}.reshape({=A}.shape[0], -1))
np.diagonal({m})
np.diagonal({m}, offset={k}, axis1=-1, axis2=0)
{m}.diagonal()
np.diagflat({v})
np.tril({m})
np.tril({m}, {k})
np.triu({m}, k={k})
np.triu({f})
np.tri({n1}, {n1}, {k}) * {s}
np.vander({v}, 3)
np.vander({v}[:4], 4, increasing=True)
np.resize({x}, (2, 3))
np.trim_zeros({v})
np.delete({x}, 0, axis=0)
np.delete({x}, [0, -1], axis={ax})
np.insert({x}, 0, 7, axis=0)
np.append({x}, {x})
np.append({x:A}, {=A}, axis=0)
np.sort({n})
np.sort({n}, axis={ax})
np.sort({f}, axis=None)
np.sort({f}, axis=-1, kind='stable')
np.sort({x}, stable=True)[::-1]
np.argsort({n}, axis={ax}, kind='stable')
np.argsort({f}, stable=True)
{f}.argsort(axis=0, kind='stable')
np.argsort(np.tanh({f}), kind='stable')
np.argsort(-{i}, kind='stable')
np.take_along_axis({f:A}, np.argsort({=A}, axis=-1, kind='stable'), axis=-1)
np.argsort(np.argsort({v}, kind='stable'), kind='stable')
np.sort(np.partition({v}, 0)[:1])
np.partition({f}, 0)[..., 0]
np.lexsort(({v:A}, -{=A}))
np.unique({i})
np.nonzero({x})
np.flatnonzero({x})
np.argwhere({b})
np.compress([True, False], {x}, axis=0)
np.extract({f:A} > 0, {=A})
{f:A}[{=A} > 0]
np.ix_(range(2), range(1))
np.copy({x}, order='F')
{x}.copy(order='F')
np.lib.stride_tricks.sliding_window_view({v}, 3)
np.lib.stride_tricks.sliding_window_view({v}, {n1}).mean(-1)
np.array([{v:A}[0], {=A}[-1]])
np.unstack({x})
np.block([[{m:A}, {=A}], [{=A}, {=A}]])
np.block([{v}, {v}])
np.concatenate([{x:A}, {=A}])
np.concatenate([{x:A}, {=A} + 1, -{=A}], axis={ax}) if True else 0
np.concatenate(({x}, {y}), axis=None)
np.concatenate([{n:A}[:1], {=A}[1:]])
np.concatenate([{v}, {v}, [1.0, 2.0]])
np.concatenate([{i:A}, {=A} / 2], axis=-1)
np.concatenate([{f:A}, {=A}], axis=0, dtype={fdt})
np.concat([{x:A}, {=A}[::-1]], axis=-1)
np.stack([{x:A}, {=A}])
np.stack([{n:A}, {=A} * 2, {=A} * {s}], axis=-1)
np.stack([{x:A}, {=A}], axis={ax})
np.stack([{n:A}] * 3, axis=1).sum(axis=1)
np.stack([np.sin({f:A}), np.cos({=A})], axis=-1)
np.hstack([{x:A}, {=A}])
np.vstack(({x:A}, {=A}))
np.vstack([{v:A}, {=A} * 2, {=A} * 3])
np.dstack([{x:A}, {=A}])
np.column_stack([{v:A}, {=A}])
np.row_stack([{v:A}, {=A}]) if hasattr(np, 'row_stack') else {v}
np.array_split({x}, 3)
np.array_split({x}, [1, 2], axis={ax})
np.split({x:A}, {=A}.shape[0])
np.split({x}, [1, 3])
np.split({m}, [2], axis=1)
np.hsplit({m}, [1])
np.vsplit({m}, [1, 2])
np.concatenate(np.array_split({x}, 4)[::-1])
np.zeros((2, 3)) + {s}
np.ones({n1}, dtype={dt})
np.full((2, 2), {s})
np.full((3,), {s}, dtype={fdt})
np.eye(3) * {s}
np.eye(3, 4, k={k})
np.eye({v:A}.shape[0]) * {=A}
np.identity(2)
np.arange(5)
np.arange(2, 11, 3) * {s}
np.arange({v:A}.size) * {=A}
np.arange({x:A}.size).reshape({=A}.shape) + {=A}
np.arange(0.0, 1.0, 0.3, dtype=np.float32)
np.linspace(0, 1, 5)
np.linspace(-1, 1, num=7, endpoint=False, dtype=np.float32)
np.linspace(0, 1, {v:A}.size) * {=A}
np.logspace(0, 1, 4)
np.geomspace(1, 8, 4)
np.array([1, 2, 3]) + {s}
np.array([[1.5, -0.0], [2.5, 3]])
np.indices((2, 3))
np.zeros(0)
np.array(2.5) + {s}
np.float32(1.5) * {s}
np.fromfunction(lambda i, j: i + j, (2, 3))
np.hamming(5) * {s}
np.asarray([1, 2]) @ np.asarray([3, 4])
""".strip().splitlines()

INDICES = """
{x}[{idx}]
{x}[{idx}]
{x}[{idx}]
{x}[{idx}]
{x}[{ids}]
{x}[{slice}]
{x}[{slice}, ...]
{x}[..., {slice}]
{x}[({slice},)]
{x}[{slice}][{slice}]
{x}[::-1][{slice}]
{m}[{slice}, {slice}]
{m}[:, None, {slice}]
{m}[-1]
{m}[..., -1]
{m}[:, 0] * 2
{x}[()]
{x}[np.s_[1:]]
{f:A}[{ids}] * {=A}[{ids}]
{f}[{ids}] + {y}
{f:A}[{ids}].sum(-1)
{f:A}[{ids}].mean(axis=0)
{f:A}[{ids:I}, {=I}]
{f:A}[{ids:I}] - {=A}[{=I}]
np.abs(-1.5 - np.hypot({f:A}[{ids:I}, {=I}], 1)) ** 0.5
{f:A}[{ids:I}][{slice}]
{f}[{ids}].T
{f}[{ids}].reshape(-1)[::-1]
{f}[:, {k}]
{m:A}[[0, 0], [0, 0]]
{m:A}[:, [0, 0]]
{m:A}[[0], :][:, [0, 0]]
{m:A}[[[0], [0]], [0, 0]]
{m:A}[np.arange({=A}.shape[0]), 0]
{m:A}[np.arange({=A}.shape[0])[:, None], np.arange({=A}.shape[1])]
{m:A}[np.arange({=A}.shape[0]), np.argmax({=A}.reshape({=A}.shape[0], -1), axis=1) % {=A}.shape[1]]
{m:A}[np.ix_([0, 0], [0])]
{m:A}[0, :, None] + {=A}[..., None, 0]
{f}[{ids} // 2]
{f:A}[np.clip({ids}, 0, {=A}.shape[0] - 1)]
{f:A}[({ids} + {ids}) % {=A}.shape[0]]
{f:A}[np.argsort({=A}.ravel(), kind='stable') % {=A}.shape[0]]
{f:A}[::-1][{ids}]
{f:A}.T[..., {ids}] if {=A}.ndim == 1 else {=A}
np.take({x}, {ids})
np.take({x}, {ids}, axis=0)
{x}.take({ids}, axis=0)
np.take({x}, [0, -1], axis={ax})
np.take({x}, [5, -7, 100], mode='wrap')
np.take({x}, [5, -7, 100], mode='clip', axis=0)
np.take({x}, {ids}, axis=0, mode='clip')
np.take_along_axis({f:A}, np.zeros_like({=A}, dtype=int), axis=-1)
np.take_along_axis({f:A}, np.argmax({=A}, axis=0, keepdims=True), axis=0)
np.take_along_axis({m:A}, ({i} % {=A}.shape[0]).reshape(-1, 1), axis=0) if False else {m}
np.choose([0, 1], [{v:A}[:2], -{=A}[:2]])
np.where(np.arange({v:A}.size) < 2, {=A}, 0)
np.eye(5)[{i} % 5]
({i:A}[..., None] == np.arange(4)).astype(np.float32)
np.array([1.0, 10.0, 100.0])[{i} % 3]
np.squeeze({x}[:1], 0)
{x}.item(0) if False else {x}[..., :0]
{huge:A}[:2][..., :2] * 2
{huge:A}[5:9:2]
{huge:A}[{ids}][..., :3]
{huge:A}[-1]
{huge:A}[-1][..., -2:] + 1
{huge:A}[..., 7:3:-1]
{huge}.shape[0]
{huge:A}.T[:2, ..., :2]
np.take({huge:A}[:3, ..., :2], [1, 0], axis=0)
np.ravel({huge:A}[:1, ..., :3])
{huge:A}[:2, ..., :3].sum()
np.swapaxes({huge:A}, 0, -1)[0, ..., 0]
{huge:A}[..., :1][:1] * 2
np.broadcast_to({v:A}, (10**9, {=A}.size))[::300_000_000]
np.broadcast_to({v:A}[:1], (10**10,))[10**9::4 * 10**9] + 1
""".strip().splitlines()


def move(d: Draft) -> str:
    return d.rng.choice(MOVES)


def index(d: Draft) -> str:
    return d.rng.choice(INDICES)
