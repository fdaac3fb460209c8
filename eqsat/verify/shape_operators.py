"""Builders of random steps that move, index, scan and sort elements.

See :mod:`eqsat.verify.operators`. Structural operators on exact operands stay exact.
"""

from __future__ import annotations

from collections.abc import Callable

from eqsat.verify.drafts import MAX_SIZE, Builder, Draft, Made, Reject, Value, near_one

SHAPE_OPERATORS: dict[str, Builder] = {}


def _operator(*names: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        for name in names:
            SHAPE_OPERATORS[name] = build
        return build

    return add


def _put(name: str, build: Builder) -> None:
    SHAPE_OPERATORS[name] = build


def _structural(build: Callable[[Draft, Value], str], *, ndim: int = 0) -> Builder:
    def wrapped(d: Draft) -> Made:
        x = d.pick(lambda v: v.ndim >= ndim)
        return Made(build(d, x), exact=x.exact)

    return wrapped


def _permutation(d: Draft, n: int) -> tuple[int, ...]:
    rest = list(range(n))
    return tuple(rest.pop(d.below(len(rest))) for _ in range(n))


def _factorings(size: int) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(size,), (1, size), (size, 1)]
    shapes += [(a, size // a) for a in range(2, size) if a <= 64 and size % a == 0]
    shapes += [(a, b, size // (a * b)) for a in (2, 3, 4) for b in (2, 3, 8) if size % (a * b) == 0]
    return shapes


def _reshape(d: Draft, x: Value) -> str:
    if x.array.size == 0:
        return f"{x.name}.reshape({x.shape[::-1]})"
    shape = d.choose(_factorings(x.array.size))
    if d.flag():
        at = d.below(len(shape))
        shape = (*shape[:at], -1, *shape[at + 1 :])
    return f"np.reshape({x.name}, {shape})" if d.flag() else f"{x.name}.reshape({shape})"


def _index(d: Draft, x: Value) -> str:
    parts = []
    for extent in x.shape:
        case = d.below(6)
        if case == 1 and extent:
            parts.append(str(d.below(2 * extent) - extent))
        elif case == 2:
            parts.append(d.choose(("::-1", "1:", ":-1", "::2", "-3:", "::-2", "2:100", "1:1")))
        elif case == 3:
            parts.append("None, :")
        elif case == 4 and "..." not in parts:
            parts.append("...")
            break
        else:
            parts.append(":")
    return f"{x.name}[{', '.join(parts) or '...'}]"


_put("transpose", _structural(lambda d, x: f"np.transpose({x.name}, {_permutation(d, x.ndim)})", ndim=1))
_put("T", _structural(lambda d, x: f"{x.name}.T"))
_put("swapaxes", _structural(lambda d, x: f"np.swapaxes({x.name}, {d.axis(x)}, {d.axis(x)})", ndim=2))
_put("moveaxis", _structural(lambda d, x: f"np.moveaxis({x.name}, {d.axis(x)}, {d.axis(x)})", ndim=2))
_put("reshape", _structural(_reshape))
_put("ravel", _structural(lambda d, x: f"np.ravel({x.name})" if d.flag() else f"{x.name}.ravel()"))
_put("index", _structural(_index))
_put("slice", _structural(_index, ndim=1))
_put("expand_dims", _structural(lambda d, x: f"np.expand_dims({x.name}, {d.below(x.ndim + 1)})"))
_put("tile", _structural(lambda d, x: f"np.tile({x.name}, {d.choose(('2', '(2, 1)', '(1, 3)'))})"))
_put("repeat", _structural(lambda d, x: f"np.repeat({x.name}, {d.choose((2, 3))}, axis={d.axis(x)})", ndim=1))
_put("flip", _structural(lambda d, x: f"np.flip({x.name}, axis={d.choose((None, d.axis(x)))})", ndim=1))
_put("roll", _structural(lambda d, x: f"np.roll({x.name}, {d.choose((1, -2, 5))}, axis={d.axis(x)})", ndim=1))
_put("diagonal", _structural(lambda d, x: f"np.diagonal({x.name}, offset={d.choose((0, 1, -1))})", ndim=2))
_put("tril", _structural(lambda d, x: f"np.tril({x.name}, {d.choose((0, 1, -1))})", ndim=2))
_put("triu", _structural(lambda d, x: f"np.triu({x.name}, {d.choose((0, 1, -1))})", ndim=2))


@_operator("squeeze")
def _squeeze(d: Draft) -> Made:
    x = d.pick(lambda v: 1 in v.shape)
    axis = x.shape.index(1)
    return Made(f"np.squeeze({x.name})" if d.flag() else f"{x.name}.squeeze({axis})", exact=x.exact)


@_operator("broadcast_to")
def _broadcast_to(d: Draft) -> Made:
    x = d.pick(lambda v: v.array.size <= MAX_SIZE // 8)
    shape = (*((d.choose((2, 3, 4)),) if d.flag() else ()), *(5 if e == 1 and d.flag() else e for e in x.shape))
    return Made(f"np.broadcast_to({x.name}, {shape})", exact=x.exact)


@_operator("concatenate", "stack")
def _concatenate(d: Draft) -> Made:
    x = d.pick()
    if x.ndim > 0 and d.flag():
        axis = d.axis(x)
        rest = [e for i, e in enumerate(x.shape) if i != axis % x.ndim]
        y = d.pick(lambda v: v.ndim == x.ndim and [e for i, e in enumerate(v.shape) if i != axis % x.ndim] == rest)
        return Made(f"np.concatenate([{x.name}, {y.name}], axis={axis})", exact=x.exact and y.exact)
    y = d.pick(lambda v: v.shape == x.shape)
    return Made(f"np.stack([{x.name}, {y.name}], axis={d.below(x.ndim + 1)})", exact=x.exact and y.exact)


@_operator("split")
def _split(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and any(e > 1 for e in v.shape))
    axis = d.axis(x)
    extent = x.shape[axis]
    parts = next((n for n in (2, 3, 5, 7, 11) if extent and extent % n == 0), 0)
    if parts and d.flag():
        return Made(f"np.split({x.name}, {parts}, axis={axis})[{d.below(parts)}]", exact=x.exact)
    return Made(f"np.split({x.name}, [{d.below(extent + 1)}], axis={axis})[{d.below(2)}]", exact=x.exact)


@_operator("split_sum")
def _split_sum(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and v.shape[-1] % 2 == 0 and v.kind == "f")
    return Made(f"np.add(*np.split({x.name}, 2, axis=-1))")


@_operator("pad")
def _pad(d: Draft) -> Made:
    x = d.pick(lambda v: v.array.size <= MAX_SIZE // 4)
    widths = tuple((d.below(3), d.below(3)) for _ in x.shape)
    if not widths:
        raise Reject
    value = d.choose(("", ", constant_values=1"))
    return Made(f"np.pad({x.name}, {widths}{value})", exact=x.exact)


# -- indexing by arrays, scans, sorting ---------------------------------------------------------------------


@_operator("take", "gather")
def _take(d: Draft) -> Made:
    # NumPy does not dispatch on the index, so an array that is no argument cannot be indexed by one that is.
    x = d.pick(lambda v: v.depends and v.ndim > 0 and min(v.shape) > 0 and v.array.size <= MAX_SIZE // 8)
    axis = d.axis(x)
    extent = x.shape[axis]
    index = d.fresh(
        d.choose(((4,), (), (2, 3))), d.choose(("int64", "int32", "uint8", "int16")), low=-extent, high=extent - 1
    )
    if d.flag():
        return Made(f"{x.name}[{', '.join([':'] * (axis % x.ndim) + [index.name])}]", exact=x.exact)
    return Made(f"np.take({x.name}, {index.name}, axis={axis})", exact=x.exact)


@_operator("take_along_axis")
def _take_along_axis(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and min(v.shape) > 0)
    axis = d.axis(x) % x.ndim
    shape = (*x.shape[:axis], d.choose((1, 3)), *x.shape[axis + 1 :])
    index = d.fresh(shape, "int64", low=0, high=x.shape[axis] - 1)
    return Made(f"np.take_along_axis({x.name}, {index.name}, axis={axis})", exact=x.exact)


@_operator("cumsum", "cumprod")
def _cumulative(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0)
    if d.flag():
        inner = near_one(x) if x.kind in "fc" else x.name
        return Made(f"np.cumprod({inner}, axis={d.axis(x)})")
    exact = x.integral and x.top * x.array.size < x.limit
    return Made(f"np.cumsum({x.name}, axis={d.axis(x)})", exact=exact)


@_operator("cummax", "cummin")
def _running_extreme(d: Draft) -> Made:
    x = d.pick_ordered(1)
    logical = x.kind == "b" and d.flag()
    function = d.choose(("logical_or", "logical_and") if logical else ("maximum", "minimum"))
    return Made(f"np.{function}.accumulate({x.name}, axis={d.axis(x)})", exact=x.exact)


@_operator("sort")
def _sort(d: Draft) -> Made:
    x = d.pick_ordered(1)
    return Made(f"np.sort({x.name}, axis={d.axis(x)})", exact=x.exact)


@_operator("argsort")
def _argsort(d: Draft) -> Made:
    x = d.pick(lambda v: v.exact and v.ndim > 0 and v.kind != "c")
    return Made(f"np.argsort({x.name}, axis={d.axis(x)}, kind='stable')", discrete=True)


@_operator("arange", "full")
def _create(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and v.kind != "b")
    n = x.shape[-1]
    made = d.choose((f"np.arange({n})", f"np.full({n}, 2, np.{x.dtype})", f"np.ones({n}, np.{x.dtype})"))
    return Made(f"{x.name} + {made}")
