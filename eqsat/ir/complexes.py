"""Complex tensors as pairs of real ones: what every operator means on them.

A node of complex type is always ``pair(real, imaginary)``, and operators of it are operators of the two, which all of
the engine knows. In memory an array of complex numbers is one of real numbers with a last axis of 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from eqsat.ir import build
from eqsat.ir.build import call, scalar
from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.table import COMPLEX, OPS, make
from eqsat.ir.types import DType, NotOfThisType, TensorType, bool_, part_of
from eqsat.ir.views import ViewMap

Parts = tuple[Node, Node]

_PARTS: dict[np.dtype, np.dtype] = {np.dtype(f"c{2 * size}"): np.dtype(f"f{size}") for size in (4, 8)}
_WHOLE = {part: whole for whole, part in _PARTS.items()}


def as_real(array: np.ndarray) -> np.ndarray:
    """A view of a complex array as real numbers, with a last axis of 2; other arrays as they are."""
    if array.dtype.kind != "c":
        return array
    if array.flags.c_contiguous and array.dtype in _PARTS:  # a tenth of the time of as_strided
        return array.reshape((*array.shape, 1)).view(_PARTS[array.dtype])
    return as_strided(array.real, (*array.shape, 2), (*array.strides, array.itemsize // 2))


def as_complex(array: np.ndarray) -> np.ndarray:
    """The inverse of :func:`as_real`, of a contiguous array."""
    return array.view(_WHOLE[array.dtype]).reshape(array.shape[:-1])


def input_of(index: int, type: TensorType, label: str) -> Parts:
    """The program's argument, and its value: the pair of its parts if it is complex."""
    if type.dtype.kind != "complex":
        node = build.input_node(index, type, label)
        return node, node
    node = build.input_node(index, TensorType((*type.shape, 2), part_of(type.dtype)), label)
    return node, of_parts(node)


def of_parts(node: Node) -> Node:
    """The complex tensor whose parts lie side by side on a last axis."""
    last = node.type.ndim - 1
    return pair(*(build.reshape(build.take_range(node, last, i, i + 1), node.shape[:-1]) for i in (0, 1)))


def joined(node: Node) -> Node:
    """What a program returns for a value: of a complex one its parts side by side."""
    if node.dtype.kind != "complex":
        return node
    real, imaginary = node.inputs
    whole = _beside(real, imaginary, {}, 0)
    if whole is not None:
        return build.broadcast_to(whole, (*node.shape, 2))
    return build.concat([build.expand_dims(part, (node.type.ndim,)) for part in node.inputs], node.type.ndim)


DEPTH = 100
"""Operators in a row at most that are looked through."""

Known = dict[tuple[Node, Node], Node | None]


def _beside(x: Node, y: Node, known: Known, depth: int) -> Node | None:
    """Two tensors side by side on a last axis, as an expression of arrays in which they are; None where it is none.

    Then nothing has to be joined: sums of complex arrays are sums of what lies in memory. Of equal ones the axis is 1;
    what was computed for both would be computed twice.
    """
    if x is y:
        return build.expand_dims(x, (x.type.ndim,)) if x.op in ("view", "input", "const") else None
    if depth < DEPTH and (x, y) not in known:
        known[x, y] = _made_beside(x, y, lambda a, b: _beside(a, b, known, depth + 1))
    return known.get((x, y))


def _made_beside(x: Node, y: Node, beside: Callable[[Node, Node], Node | None]) -> Node | None:
    if not x.type.size:
        return None  # a view of an empty tensor has no strides
    if isinstance(x.attrs, ViewMap) and isinstance(y.attrs, ViewMap) and x.attrs.axes == y.attrs.axes:
        (a,), (b,), one = x.inputs, y.inputs, x.attrs
        if a is b:
            return build.view(a, ViewMap((*one.axes, ((2, y.attrs.offset - one.offset),)), one.offset))
        inner = beside(a, b) if one.offset == y.attrs.offset else None
        if inner is None:
            return None
        axes = tuple(tuple((n, 2 * stride) for n, stride in axis) for axis in one.axes)
        return build.view(build.broadcast_to(inner, (*a.shape, 2)), ViewMap((*axes, ((2, 1),)), 2 * one.offset))
    if isinstance(x.attrs, ConstArray) and isinstance(y.attrs, ConstArray) and x.shape == y.shape:
        return build.const(np.stack([x.attrs.array, y.attrs.array], axis=-1), x.dtype)
    same = x.op == y.op and x.attrs == y.attrs
    if not (same and (OPS[x.op].kind == "map" or x.op == "reduce_sum")) and {x.op, y.op} != {"add", "sub"}:
        return None
    parts = [beside(a, b) for a, b in zip(x.inputs, y.inputs, strict=True)]
    if any(part is None for part in parts):
        return None
    made = [part for part in parts if part is not None]
    if same:
        return make(x.op, made, x.attrs)
    signs = build.const(np.array([1 if node.op == "add" else -1 for node in (x, y)]), x.dtype)
    return call("add", made[0], _times(made[1], signs))


def pair(real: Node, imaginary: Node) -> Node:
    """Real parts and imaginary parts, which broadcast together."""
    shape = np.broadcast_shapes(real.shape, imaginary.shape)
    return make("pair", [build.broadcast_to(part, shape) for part in (real, imaginary)])


def hypot(x: Node, y: Node) -> Node:
    """``sqrt(x² + y²)`` without overflow on the way."""
    x, y = call("abs", x), call("abs", y)
    top, low = call("maximum", x, y), call("minimum", x, y)
    # Scaled by the larger, so that squares neither overflow nor vanish; 0 and inf would give nan.
    ratio = call("div", low, top)
    plain = call("mul", top, call("sqrt", call("add", scalar(1, x), call("square", ratio))))
    infinity = scalar(math.inf, x)
    flat = call("logical_or", call("eq", top, scalar(0, x)), call("eq", top, infinity))
    infinite = call("logical_or", call("eq", x, infinity), call("eq", y, infinity))
    return call("where", infinite, infinity, call("where", flat, top, plain))


def _mul(x: Parts, y: Parts, product: Callable[[Node, Node], Node]) -> Node:
    (a, b), (c, d) = x, y
    return pair(call("sub", product(a, c), product(b, d)), call("add", product(a, d), product(b, c)))


def _times(a: Node, b: Node) -> Node:
    return call("mul", a, b)


def _div(x: Parts, y: Parts) -> Node:
    """Smith, Algorithm 116: Complex division, CACM 1962, as NumPy: scaled by the larger part of the divisor."""
    (a, b), (c, d) = x, y
    sizes = call("abs", c), call("abs", d)
    first = call("ge", *sizes)
    large, small = call("where", first, c, d), call("where", first, d, c)
    ratio = call("div", small, large)
    scale = call("reciprocal", call("add", large, _times(small, ratio)))
    real = call("where", first, call("add", a, _times(b, ratio)), call("add", _times(a, ratio), b))
    imaginary = call("where", first, call("sub", b, _times(a, ratio)), call("sub", _times(b, ratio), a))
    zero = call("eq", call("maximum", *sizes), scalar(0, c))
    return pair(
        call("where", zero, call("div", a, sizes[0]), _times(real, scale)),
        call("where", zero, call("div", b, sizes[0]), _times(imaginary, scale)),
    )


def _by_number(x: Parts, y: Parts) -> Node | None:
    """A quotient by a number without imaginary part; None for other divisors."""
    number, other = build.scalar_value(y[0]), build.scalar_value(y[1])
    return pair(*(call("div", part, y[0]) for part in x)) if number and other == 0 else None


def _exp(x: Parts) -> Node:
    size, angle = call("exp", x[0]), x[1]
    imaginary = call("where", call("eq", angle, scalar(0, angle)), angle, _times(size, call("sin", angle)))
    return pair(_times(size, call("cos", angle)), imaginary)


def _hyperbolic(x: Node) -> Parts:
    """cosh and sinh."""
    up, down = call("expm1", x), call("expm1", call("neg", x))
    half = scalar(0.5, x)
    cosh = call("add", _times(half, call("add", up, down)), scalar(1, x))
    return cosh, _times(half, call("sub", up, down))


def _sin(x: Parts) -> Node:
    cosh, sinh = _hyperbolic(x[1])
    return pair(_times(call("sin", x[0]), cosh), _times(call("cos", x[0]), sinh))


def _cos(x: Parts) -> Node:
    cosh, sinh = _hyperbolic(x[1])
    return pair(_times(call("cos", x[0]), cosh), call("neg", _times(call("sin", x[0]), sinh)))


def _sqrt(x: Parts) -> Node:
    """The root whose real part is not negative; of the imaginary part's sign, also of its zero's."""
    a, b = x
    zero, half = scalar(0, a), scalar(0.5, a)
    root = call("sqrt", _times(half, call("add", call("abs", a), hypot(a, b))))
    other = call("where", call("eq", root, zero), b, call("div", _times(half, b), root))
    below = call("logical_or", call("lt", b, zero), call("lt", call("reciprocal", b), zero))
    right = call("ge", a, zero)
    left = call("where", below, call("neg", root), root)
    return pair(call("where", right, root, call("abs", other)), call("where", right, other, left))


def _sign(x: Parts) -> Node:
    size = hypot(*x)
    zero = call("eq", size, scalar(0, size))
    return pair(*(call("where", zero, scalar(0, size), call("div", part, size)) for part in x))


def _power(x: Node, y: Node) -> Node:
    """By multiplications, for whole exponents that are known."""
    parts = [build.scalar_value(part) for part in y.inputs]
    exponent = parts[0]
    if exponent is None or parts[1] != 0 or exponent != int(exponent) or not 0 < exponent <= 16:
        raise NotOfThisType("powers of complex numbers are supported for exponents 1, 2, … 16 that are known")
    result = build.cast(x, x.dtype)
    for _ in range(int(exponent) - 1):
        result = call("mul", result, x)
    return result


def _cast(nodes: Sequence[Node], attrs: object) -> Node:
    (x,), dtype = nodes, attrs
    assert isinstance(dtype, DType)
    if dtype.kind != "complex":
        real, imaginary = x.inputs  # a bool tells whether it is not 0
        return _either("or", real, imaginary) if dtype == bool_ else build.cast(real, dtype)
    if x.dtype.kind == "complex":
        return pair(*(build.cast(part, part_of(dtype)) for part in x.inputs))
    real = build.cast(x, part_of(dtype))
    return pair(real, build.broadcast_to(scalar(0, real), real.shape))


def _either(how: str, real: Node, imaginary: Node) -> Node:
    return call(f"logical_{how}", build.cast(real, bool_), build.cast(imaginary, bool_))


def _each(op: str) -> Callable[[Sequence[Node], object], Node]:
    """An operator of all real parts and of all imaginary parts; inputs that are not complex are taken by both."""

    def build_(nodes: Sequence[Node], attrs: object) -> Node:
        sides = ([n.inputs[i] if n.dtype.kind == "complex" else n for n in nodes] for i in (0, 1))
        return pair(*(make(op, side, attrs) for side in sides))

    return build_


def _view(nodes: Sequence[Node], attrs: object) -> Node:
    return pair(*(build.view(part, attrs) for part in nodes[0].inputs))  # type: ignore[arg-type]


def _pad(nodes: Sequence[Node], attrs: object) -> Node:
    assert isinstance(attrs, PadAttrs)
    values = (complex(attrs.value).real, complex(attrs.value).imag)
    return pair(*(build.pad(p, attrs.widths, v) for p, v in zip(nodes[0].inputs, values, strict=True)))


def _parts(fn: Callable[..., Node]) -> Callable[[Sequence[Node], object], Node]:
    """A function of the pairs of parts, without attributes."""
    return lambda nodes, attrs: fn(*(n.inputs for n in nodes))


def _tested(op: str, how: str) -> Callable[[Sequence[Node], object], Node]:
    """A test of both parts."""

    def build_(nodes: Sequence[Node], attrs: object) -> Node:
        return _either(how, *(call(op, *(n.inputs[i] for n in nodes)) for i in (0, 1)))

    return build_


def _contract(nodes: Sequence[Node], attrs: object) -> Node:
    (a, b), (c, d) = (n.inputs for n in nodes)
    return _mul((a, b), (c, d), lambda x, y: make("contract", (x, y), attrs))


for _op in ("neg", "add", "sub", "add_n", "where", "concat", "gather", "reduce_sum", "cumsum"):
    COMPLEX[_op] = _each(_op)
COMPLEX |= {
    "view": _view,
    "pad": _pad,
    "cast": _cast,
    "contract": _contract,
    "mul": _parts(lambda x, y: _mul(x, y, _times)),
    "div": _parts(lambda x, y: _by_number(x, y) or _div(x, y)),
    "square": _parts(lambda x: _mul(x, x, _times)),
    "pow": lambda nodes, attrs: _power(*nodes),
    "reciprocal": _parts(lambda x: _div((scalar(1, x[0]), scalar(0, x[0])), x)),
    "abs": _parts(lambda x: hypot(*x)),
    "sign": _parts(_sign),
    "exp": _parts(_exp),
    "sin": _parts(_sin),
    "cos": _parts(_cos),
    "sqrt": _parts(_sqrt),
    "eq": _tested("eq", "and"),
    "ne": _tested("ne", "or"),
    "isnan": _tested("isnan", "or"),
    "isfinite": _tested("isfinite", "and"),
}
