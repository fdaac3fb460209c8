"""Templates of several lines: what people compose, Python's own control flow, and programs that are large."""

from __future__ import annotations

from tests.numpy_net.draft import Draft

LAYERS = """
{t:A} = {f:X} - {=X}.max(axis=-1, keepdims=True)
{t:B} = np.exp({=A})
{t:C} = {=B} / {=B}.sum(axis=-1, keepdims=True)
---
{t:A} = np.exp({f:X} - np.max({=X}, axis=0))
{t:C} = {=A} / np.sum({=A}, axis=0)
---
{t:A} = {f:X}.mean(-1, keepdims=True)
{t:B} = {=X}.var(-1, keepdims=True)
{t:C} = ({=X} - {=A}) / np.sqrt({=B} + 1e-5) * 1.5 + 0.1
---
{t:A} = {f:X} * 1.0 / np.sqrt(np.mean({=X} ** 2, axis=-1, keepdims=True) + 1e-6)
---
{t:A} = 0.5 * {f:X} * (1 + np.tanh(np.sqrt(2 / np.pi) * ({=X} + 0.044715 * {=X} ** 3)))
---
{t:A} = {f:X} * (1 / (1 + np.exp(-{=X})))
---
{t:A} = np.where({f:X} > 0, {=X}, 0.01 * {=X})
{t:B} = np.where({=A} > 0, {=A}, np.exp({=A}) - 1)
---
{t:A} = np.logaddexp({f:X}, 0)
{t:B} = {=X} - np.log(np.sum(np.exp({=X}), axis=-1, keepdims=True))
---
{t:Q} = {m:X} @ np.eye({=X}.shape[-1], dtype={=X}.dtype)
{t:S} = {=Q} @ {=X}.swapaxes(-1, -2) / math.sqrt({=X}.shape[-1])
{t:M} = np.where(np.tril(np.ones({=S}.shape[-2:], bool)), {=S}, -1e9)
{t:E} = np.exp({=M} - {=M}.max(-1, keepdims=True))
{t:O} = ({=E} / {=E}.sum(-1, keepdims=True)) @ {=X}
---
{t:H} = np.zeros({m:X}.shape[-1], {=X}.dtype)
for {t:K} in range(min(3, {=X}.shape[0])):
    {=H} = np.tanh({=X}[{=K}] * 0.5 + {=H})
---
{t:H} = np.zeros(2, np.float32)
{t:C} = np.zeros(2, np.float32)
for {t:K} in range(2):
    {t:G} = np.ones((8, 2), np.float32) @ {=H} + {v:X}.sum() * 0.1
    {t:I}, {t:F}, {t:O}, {t:U} = np.split({=G}, 4)
    {=C} = {=C} / (1 + np.exp(-{=F})) + np.tanh({=U}) / (1 + np.exp(-{=I}))
    {=H} = np.tanh({=C}) / (1 + np.exp(-{=O}))
---
{t:D} = (({m:X}[..., :, None, :] - {=X}[..., None, :, :]) ** 2).sum(-1)
{t:N} = np.sqrt(np.maximum({=D}, 0))
---
{t:G} = {m:X} @ {=X}.swapaxes(-1, -2)
{t:S} = np.sum({=X} ** 2, axis=-1)
{t:D} = {=S}[..., :, None] + {=S}[..., None, :] - 2 * {=G}
---
{t:P} = {m:X}.reshape({=X}.shape[0], -1)
{t:L} = np.argmin((({=P}[:, None] - {=P}[None, :2]) ** 2).sum(-1), axis=1)
{t:O} = ({=L}[:, None] == np.arange(2)).astype({=X}.dtype)
{t:C} = {=O}.T @ {=P} / np.maximum({=O}.sum(0), 1)[:, None]
---
{t:A} = np.cumsum({v:X})
{t:B} = ({=A}[2:] - {=A}[:-2]) / 2
---
{t:A} = ({v:X}[2:] + {=X}[1:-1] + {=X}[:-2]) / 3
---
{t:B} = np.roll({m:X}, 1, 0) + np.roll({=X}, -1, 0)
{t:A} = ({=B} + np.roll({=X}, 1, 1) + np.roll({=X}, -1, 1) - 4 * {=X}) * 0.25
---
{t:B} = {m:X}[..., :-2, 1:-1] + {=X}[..., 2:, 1:-1]
{t:A} = {=B} + {=X}[..., 1:-1, :-2] + {=X}[..., 1:-1, 2:] - {=X}[..., 1:-1, 1:-1] * 4
---
{t:C} = np.cos({f:X})
{t:S} = np.sin({=X})
{t:A} = np.stack([np.stack([{=C}, -{=S}], -1), np.stack([{=S}, {=C}], -1)], -2)
{t:B} = {=A} @ np.array([1.0, 2.0])
---
{t:A} = 0
for {t:C} in (1.5, -2.0, 0, 3):
    {=A} = {=A} * {f:X} + {=C}
---
{t:A} = np.float32(0)
for {t:C}, {t:P} in enumerate([{f:X}, {=X} * 2, {=X} - 1]):
    {=A} = {=A} + {=P} * {=C}
---
{t:V} = np.ones({sq:X}.shape[-1], {=X}.dtype)
for _ in range(3):
    {=V} = {=X} @ {=V} if {=X}.ndim == 2 else {=V}
    {=V} = {=V} / (np.linalg.norm({=V}) + 0.1)
---
{t:V} = np.zeros({sq:X}.shape[-1])
for _ in range(4):
    {=V} = {=V} + 0.1 * (1.0 - {=X}.reshape(-1, {=X}.shape[-1])[:{=X}.shape[-1]] @ {=V})
---
{t:A} = {f:X}
{t:B} = {=A}
{=A} = {=A} + 1
{t:C} = {=A} * {=B}
---
{t:A}, {t:B} = {f:X}, {f:Y}
{=A}, {=B} = {=B}, {=A}
---
{t:A} = {f:X} + 0
{=A} += 1
{=A} *= {y}
{=A} -= {=A}.mean()
---
{t:A} = {i:X} * 3
{=A} //= 2
{=A} %= 5
{=A} **= 2
---
{t:A} = {m:X} * 1
{t:B} = {=A} @ {=A}.mT
{=B} /= {=A}.shape[-1]
np.exp(-np.abs({=B}), out={=B})
---
{t:A} = {f:X} * 1
{t:B} = {=A}[:1]
{=A} += 1
{t:C} = {=B} * 2
---
if {f:X}.ndim == 2 and {=X}.shape[0] > 2:
    {t:A} = {=X}[:2]
else:
    {t:A} = {=X} * 2
---
{t:A} = {f:X} if {=X}.size % 2 else -{=X}
---
{t:A} = squash({f}, scale={c})
---
{t:A} = affine({c}, shift={s})({f})
---
{t:A} = compose(np.sin, lambda t: t * 2, affine(0.5, 1), squash)({f})
---
{t:A} = tree_sum([{f:X} * k for k in range(5)])
---
{t:A} = functools.reduce(np.add, [{f:X}, {=X} * 2, {y}])
---
{t:A} = functools.reduce(np.maximum, [np.roll({f:X}, k) for k in range(3)])
---
{t:A} = list(map(lambda t: t * 2, {f:X}[:3]))
---
{t:A} = [{=R} * 2 for {t:R} in {m:X}] if False else [t * 2 for t in {m:X}[:3]]
{t:B} = np.stack({=A})
---
{t:A} = sum(w * t for w, t in zip((0.5, 0.25, 2), {m:X}))
---
{t:A}, *{t:B} = {m:X}[:3]
{t:C} = {=A} * 2
---
{t:A} = dict(first={f:X}, second=[{=X} + 1, {y}])
{t:B} = {=A}["first"] - {=A}["second"][0]
---
{t:A} = Pair({f:X}, {=X} * 2)
{t:B} = {=A}.first + {=A}.second
---
{t:A} = Layer(w={f:X}, b={y})
{t:B} = {=A}.w * 2 + {=A}.b
---
{t:A} = np.stack([{v:X}[k % {=X}.size] * k for k in range(7)])
---
{t:A} = np.concatenate([{v:X} * k for k in range(12)])
---
{t:H} = {f:X}
for {t:K} in range(10):
    {=H} = {=H} * 0.9 + 0.1 * np.sin({=H})
---
{t:A}, {t:B} = np.array(0, dtype=int), np.array(1, dtype=int)
for _ in range(95):
    {=A}, {=B} = {=B}, {=A} + {=B}
{t:C} = {=A} + {i}
---
{t:A} = np.ones(3)
{t:B} = np.arange(3) * 2
{t:C} = {=A} @ {=B}
---
def {t:G}(x, *rest, k=2, **more):
    return x * k + sum(rest) + more.get("z", 0)
{t:A} = {=G}({f:X}, 1, 2.0, k=3, z={=X})
---
{t:A} = (lambda x, y=2: x ** y)({f:X})
---
{t:M} = {f:X} > 0
{t:A} = np.where({=M}, {=X}, 0).sum() / np.maximum({=M}.sum(), 1)
---
{t:A} = ({f:X} - {=X}.min()) / ({=X}.max() - {=X}.min() + 1e-3)
{t:B} = (({=A} * 255).astype(np.int32) & 255)
---
{t:A} = np.arange(4)
{t:B} = np.sum({f:X}[..., None] * {=A}, axis=-1)
---
{t:A} = np.floor_divide({i:X}, 7) * 7 + np.remainder({=X}, 7) - {=X}
---
{t:A} = np.sort({v:X})
{t:B} = {=A}[{=A}.size // 2]
{t:C} = {=A}[::-1][:2]
---
{t:E} = np.linalg.norm({m:X}, axis=-1, keepdims=True)
{t:A} = {=X} / np.maximum({=E}, 1e-3)
{t:B} = np.einsum('...i,...i->...', {=A}, {=A})
---
{t:R} = {f:X}.reshape(-1)
{t:A} = {=R}[{ids:I} % {=R}.size]
{t:B} = {=A} / np.sqrt(({=A} * {=A}).sum(-1, keepdims=True) + 1)
---
{t:A} = {f:X}[{ids:I}]
{t:B} = {=A} - {=A}.mean(-1, keepdims=True)
---
{t:A} = {f:X}[{ids:I} // 2]
{t:E} = np.exp({=A} - {=A}.max(axis=-1, keepdims=True))
{t:C} = {=E} / {=E}.sum(axis=-1, keepdims=True)
""".strip().split("---\n")

LARGE = """
{t:A} = np.stack([{v:X}[k % {=X}.size] * k for k in range(200)])
---
{t:A} = np.concatenate([{v:X}[:1] + k for k in range(200)])
---
{t:A} = functools.reduce(np.add, [{f:X} * (k + 1) for k in range(60)])
---
{t:A} = {f:X}
for {t:K} in range(40):
    {=A} = {=A} * 0.5 + {=K}
---
{t:A} = 0.0
for {t:K} in range(1500):
    {=A} = {=A} + 0.5
{t:B} = {f} + {=A}
---
{t:A} = {i:X}
for {t:K} in range(300):
    {=A} = {=A} + 1
---
{t:A} = np.array_split({v:X}, 50)
{t:B} = np.concatenate({=A}[::-1])
---
{t:H} = {v:X} * 0
{t:O} = []
for {t:K} in range(30):
    {=H} = np.tanh({=H} * 0.5 + {=K} * 0.01)
    {=O}.append({=H}.sum())
{t:A} = np.stack({=O})
---
{t:A} = np.linspace(0, 1, 1000).reshape(10, 100) @ np.ones((100, 3))
{t:B} = {=A}.sum() + {f}
""".strip().split("---\n")


def idiom(d: Draft) -> str:
    return d.rng.choice(LAYERS).rstrip("\n")


def large(d: Draft) -> str:
    return d.rng.choice(LARGE).rstrip("\n")
