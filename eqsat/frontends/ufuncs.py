"""Elementwise functions: NumPy's ufuncs on traced arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.convert import is_weak, known_dtype, lift, literal, traced, truth
from eqsat.frontends.tracer import TracedArray
from eqsat.ir import build, complexes
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.table import OPS, Interval, make
from eqsat.ir.types import NotOfThisType, bfloat16, bool_, finfo, float32, uint64

Builder = Callable[..., Node]

UFUNCS: dict[np.ufunc, Builder] = {}
"""ufunc -> what builds it from operands already cast to the types that NumPy's loop takes."""

SCIPY: dict[str, Builder] = {}
"""The same by name for ``scipy.special``, which is imported by the user if at all."""

WRITTEN: dict[str, tuple[Interval, ...]] = {}
"""Functions that are written in operators, as programs call them, and the arguments that random programs give them."""
PAIRS: dict[np.ufunc, tuple[Builder, Builder]] = {}
"""Functions with two results."""

ACCUMULATE: dict[np.ufunc, Any] = {np.add: np.cumsum, np.multiply: np.cumprod}
REDUCE: dict[np.ufunc, Any] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}
RUNNING: dict[np.ufunc, str] = {
    np.maximum: "cummax",
    np.minimum: "cummin",
    np.logical_or: "cummax",
    np.logical_and: "cummin",
}
"""Operators that ``accumulate`` is, in the type of the operand; of logical functions in bools."""
_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _op(name: str) -> Builder:
    return lambda *nodes: call(name, *nodes)


def _unless_float(otherwise: Builder, builder: Builder) -> Builder:
    """``builder`` on floats and complex numbers, ``otherwise`` on ints and bools."""
    return lambda x: builder(x) if x.dtype.kind in ("float", "complex") else otherwise(x)


def of_reals(builder: Builder) -> Builder:
    """A builder that refuses complex numbers."""

    def build_(*nodes: Node) -> Node:
        if any(node.dtype.kind == "complex" for node in nodes):
            raise NotOfThisType("it is written in operators of real numbers")
        return builder(*nodes)

    return build_


def written(function: np.ufunc | str, builder: Builder, *tried: Interval) -> None:
    """A function of reals, NumPy's or by its name one of ``scipy.special``, is what ``builder`` makes.

    ``tried``: intervals in which the arguments lie that random programs give it, if they draw it.
    """
    if isinstance(function, str):
        SCIPY[function] = of_reals(builder)
    else:
        UFUNCS[function] = of_reals(builder)
    if tried:
        WRITTEN[f"special.{function}" if isinstance(function, str) else f"np.{function.__name__}"] = tried


def _bools(name: str, otherwise: str) -> Builder:
    """A logical function on bools, another operator on numbers."""
    return lambda *nodes: call(name if nodes[0].dtype == bool_ else otherwise, *nodes)


def _compared(name: str) -> Builder:
    """A comparison; NumPy has one of int64 with uint64, which compares the numbers."""

    def builder(x: Node, y: Node) -> Node:
        if x.dtype == y.dtype:
            return call(name, x, y)
        signed, below = (x, ("lt", "le", "ne")) if x.dtype.is_signed else (y, ("gt", "ge", "ne"))
        natural = call(name, build.cast(x, uint64), build.cast(y, uint64))
        return call("where", call("lt", signed, scalar(0, signed)), scalar(name in below, bool_), natural)

    return builder


def _logical(name: str) -> Builder:
    return lambda *nodes: call(name, *map(truth, nodes))


def _same(x: Node) -> Node:
    return x


def _conjugate(x: Node) -> Node:
    return complexes.pair(x.inputs[0], call("neg", x.inputs[1])) if x.dtype.kind == "complex" else x


def _never(x: Node) -> Node:
    return build.broadcast_to(scalar(False, bool_), x.shape)


def _always(x: Node) -> Node:
    return build.broadcast_to(scalar(True, bool_), x.shape)


def _log(base: int) -> Builder:
    """A logarithm to another base, whole where it lies within rounding of a whole number, as of 1000 to base 10."""

    def builder(x: Node) -> Node:
        y = call("mul", call("log", x), scalar(1 / math.log(base), x))
        whole = call("round", y)
        reach = call("mul", call("abs", whole), scalar(4 * float(finfo(x.dtype).eps), x))
        return call("where", call("le", call("abs", call("sub", y, whole)), reach), whole, y)

    return builder


def _isinf(x: Node) -> Node:
    size = call("abs", x)
    return call("eq", size, scalar(math.inf, size))


def _trunc(x: Node) -> Node:
    return call("where", call("lt", x, scalar(0, x)), call("ceil", x), call("floor", x))


def _power(x: Node, y: Node) -> Node:
    exponent = build.scalar_value(y)
    if exponent == 2:
        return call("square", build.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape)))
    if exponent is not None and not x.dtype.is_float and exponent < 0:
        raise ValueError("Integers to negative integer powers are not allowed.")
    return call("pow", x, y)


def _ignoring_nan(name: str) -> Builder:
    def builder(x: Node, y: Node) -> Node:
        best = call(name, x, y)
        if not x.dtype.is_float:
            return best
        return call("where", call("isnan", x), y, call("where", call("isnan", y), x, best))

    return builder


def _logaddexp(x: Node, y: Node) -> Node:
    top, gap = call("maximum", x, y), call("abs", call("sub", x, y))
    # Equal infinities have the gap inf - inf = nan; the sum is x + log 2 = x.
    soft = call("add", top, call("log1p", call("exp", call("neg", gap))))
    return call("where", call("eq", x, y), call("add", x, scalar(math.log(2), x)), soft)


def _heaviside(x: Node, h: Node) -> Node:
    step = call("where", call("lt", x, scalar(0, x)), scalar(0, x), scalar(1, x))
    at_zero = call("where", call("eq", x, scalar(0, x)), h, step)
    return call("where", call("isnan", x), x, at_zero)


def _cbrt(x: Node) -> Node:
    size = call("abs", x)
    root = call("pow", size, scalar(1 / 3, x))
    # One Newton step: 1/3 is rounded, which costs digits of large and small numbers. Where it has no value, at 0, inf
    # and nan, x is its own root.
    gap = call("sub", root, call("div", size, call("square", root)))
    step = call("sub", root, call("mul", gap, scalar(1 / 3, x)))
    return call("where", call("isfinite", step), call("mul", call("sign", x), step), x)


def _reciprocal(x: Node) -> Node:
    if x.dtype.kind == "int":
        raise UnsupportedDTypeError("np.reciprocal of integers is not supported; use 1 / x or 1 // x", LINE.get())
    return call("reciprocal", x)


UFUNCS.update({row.ufunc: _op(row.name) for row in OPS.values() if row.ufunc is not None})
UFUNCS.update(
    {
        np.positive: _same,
        np.conjugate: _conjugate,
        np.fabs: _op("abs"),
        np.exp2: lambda x: call("pow", scalar(2, x), x),
        np.log2: _log(2),
        np.log10: _log(10),
        np.cbrt: _cbrt,
        np.reciprocal: _reciprocal,
        np.tan: lambda x: call("div", call("sin", x), call("cos", x)),
        np.deg2rad: lambda x: call("mul", x, scalar(math.pi / 180, x)),
        np.radians: lambda x: call("mul", x, scalar(math.pi / 180, x)),
        np.rad2deg: lambda x: call("mul", x, scalar(180 / math.pi, x)),
        np.degrees: lambda x: call("mul", x, scalar(180 / math.pi, x)),
        np.floor: _unless_float(_same, _op("floor")),
        np.ceil: _unless_float(_same, _op("ceil")),
        np.trunc: _unless_float(_same, _trunc),
        np.isnan: _unless_float(_never, _op("isnan")),
        np.isinf: _unless_float(_never, _isinf),
        np.isfinite: _unless_float(_always, _op("isfinite")),
        np.logical_not: _logical("logical_not"),
        np.logical_and: _logical("logical_and"),
        np.logical_or: _logical("logical_or"),
        np.logical_xor: _logical("logical_xor"),
        np.invert: _bools("logical_not", "invert"),
        np.bitwise_and: _bools("logical_and", "bitwise_and"),
        np.bitwise_or: _bools("logical_or", "bitwise_or"),
        np.bitwise_xor: _bools("logical_xor", "bitwise_xor"),
        np.add: _bools("logical_or", "add"),
        np.multiply: _bools("logical_and", "mul"),
        np.power: _power,
        np.float_power: _power,
        np.fmax: _ignoring_nan("maximum"),
        np.fmin: _ignoring_nan("minimum"),
        np.hypot: complexes.hypot,
        np.logaddexp: _logaddexp,
        np.heaviside: _heaviside,
        np.equal: _compared("eq"),
        np.not_equal: _compared("ne"),
        np.less: _compared("lt"),
        np.less_equal: _compared("le"),
        np.greater: _compared("gt"),
        np.greater_equal: _compared("ge"),
    }
)
OF_BFLOAT16: dict[np.ufunc, Builder] = {
    np.sign: lambda x: call("where", call("eq", x, scalar(0, x)), x, call("sign", x)),  # of -0.0 itself
}
"""Where ml_dtypes' functions are others than NumPy's."""
PAIRS[np.divmod] = (_op("floor_divide"), _op("remainder"))
SCIPY.update(
    {
        **{row.scipy: _op(row.name) for row in OPS.values() if row.scipy},
        "log_expit": lambda x: call(
            "sub", call("minimum", x, scalar(0, x)), call("log1p", call("exp", call("neg", call("abs", x))))
        ),
    }
)


def _builder(ufunc: np.ufunc) -> Builder:
    found = UFUNCS.get(ufunc)
    if found is None:
        special = sys.modules.get("scipy.special")
        name = ufunc.__name__
        if special is not None and getattr(special, name, None) is ufunc:
            found = SCIPY.get(name)
            if found is None:
                raise registry.refuse(f"scipy.special.{name}")
    if found is None:
        raise registry.refuse(f"np.{ufunc.__name__}")
    return found


def loop_types(ufunc: np.ufunc, operands: tuple[Any, ...], dtype: Any = None) -> tuple[np.dtype, ...]:
    """The types of NumPy's loop for these operands, inputs first; Python numbers are weak."""
    kinds: list[Any] = []
    for operand in operands:
        if isinstance(operand, TracedArray):
            kinds.append(operand.weak or operand.dtype)
        elif is_weak(operand):
            kinds.append(next(kind for kind in (int, float, complex) if isinstance(operand, kind)))
        else:
            kinds.append(np.asarray(operand).dtype.newbyteorder("="))
    kinds += [None] * ufunc.nout
    try:
        if dtype is None:
            return ufunc.resolve_dtypes(tuple(kinds))
        kind = np.dtype(getattr(dtype, "type", dtype))  # NumPy takes classes of types, too
        signature = (*[None] * ufunc.nin, *[kind] * ufunc.nout)
        return ufunc.resolve_dtypes(tuple(kinds), signature=signature)
    except TypeError as error:
        raise UnsupportedDTypeError(str(error), LINE.get()) from None


def _fits(value: Any, dtype: np.dtype) -> bool:
    if dtype.kind not in "iu" or not isinstance(value, int):
        return True
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def apply(ufunc: np.ufunc, operands: tuple[Any, ...], *, out: Any = None, dtype: Any = None, **options: Any) -> Any:
    """A ufunc's call on operands of which one at least is traced; ``options`` are of functions of whole rows."""
    if ufunc in PAIRS:
        results = [TracedArray(_elementwise(ufunc, operands, dtype, builder)) for builder in PAIRS[ufunc]]
        outs = (None, None) if out is None else out
        return tuple(r if o is None else into(o, r) for r, o in zip(results, outs, strict=True))
    if ufunc in registry.FUNCTIONS:
        if dtype is not None:
            types = loop_types(ufunc, operands, dtype)
            operands = tuple(TracedArray(lift(o, known_dtype(t))) for o, t in zip(operands, types, strict=False))
        result = registry.FUNCTIONS[ufunc](*operands, **options)
    else:
        result = TracedArray(_elementwise(ufunc, operands, dtype))
        wide = [o for o in operands if isinstance(o, TracedArray) and o.ndim > 1]
        result.memory.orderly = all(o.ordered() for o in wide)
    return result if out is None else into(out, result)


def _elementwise(ufunc: np.ufunc, operands: tuple[Any, ...], dtype: Any, builder: Builder | None = None) -> Node:
    found = builder or _builder(ufunc)
    given = tuple(o if isinstance(o, TracedArray) or is_weak(o) else traced(o) for o in operands)
    loop = loop_types(ufunc, given, dtype)
    try:
        types = [known_dtype(t) for t in loop]
    except UnsupportedDTypeError as error:
        kinds = ", ".join(str(g.dtype) if isinstance(g, TracedArray) else repr(g) for g in given)
        raise UnsupportedDTypeError(
            f"{ufunc.__name__} of {kinds} has type {loop[-1]} in NumPy, which is not supported; cast before with "
            "x.astype(…)",
            LINE.get(),
        ) from error
    shapes = [g.shape if isinstance(g, TracedArray) else () for g in given]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        listed = ", ".join(map(str, shapes))
        wrong = "do not broadcast together" if "mismatch" in str(error) else "broadcast to an array that is too big"
        raise ShapeError(f"{ufunc.__name__}: shapes {listed} {wrong}", LINE.get()) from None
    if ufunc in _COMPARISONS and not all(_fits(g, t) for g, t in zip(given, loop, strict=False)):
        # A Python int outside the type: NumPy compares the numbers, and every element agrees.
        small = [0 if isinstance(g, TracedArray) else g for g in given]
        return build.broadcast_to(scalar(bool(ufunc(small[0], small[1])), bool_), shape)
    nodes = [lift(g, t) if isinstance(g, TracedArray) else literal(g, t) for g, t in zip(given, types, strict=False)]
    builder = OF_BFLOAT16.get(ufunc, found) if types[0] == bfloat16 else found
    return build.cast(builder(*build.widened(nodes)), types[-1])


def out_array(out: Any, result: TracedArray) -> TracedArray:
    """The array that ``out=`` names, if it takes the result."""
    if isinstance(out, tuple):
        (out,) = out
    if not isinstance(out, TracedArray):
        raise UnsupportedOpError(
            "a traced array cannot be stored into a NumPy array (out=, or an in-place operator): "
            "let the function make a new array, y = a + b",
            LINE.get(),
        )
    out.check_writable()
    fits = all(n in (1, m) for n, m in zip(result.shape[::-1], out.shape[::-1], strict=False))
    if result.ndim > out.ndim or not fits:
        raise ShapeError(
            f"in place: non-broadcastable output operand with shape {out.shape} doesn't match the shape {result.shape} "
            "of the result",
            LINE.get(),
        )
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise UnsupportedDTypeError(
            f"in place: cannot cast the result from {result.dtype} to {out.dtype} (same_kind); write y = a + b instead",
            LINE.get(),
        )
    return out


def into(out: Any, result: TracedArray) -> TracedArray:
    """``out=`` and in-place operators: the result cast to what ``out`` is, which takes its value."""
    target = out_array(out, result)
    target.assign(build.broadcast_to(build.cast(result.node, target.node.dtype), target.shape))
    return target


def _partly(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], where: Any, given: dict[str, Any]) -> Any:
    """``where=``: elements elsewhere keep what ``out=`` holds; a new array's are not defined, and 0."""
    out = given.pop("out", None)
    if method != "__call__" or ufunc.nout != 1:
        raise UnsupportedOpError(
            f"np.{ufunc.__name__}(where=…) is not supported on traced arrays: use np.where on its result", LINE.get()
        )
    from eqsat.frontends.writes import write_where

    result = apply(ufunc, inputs, **given)
    if out is None:
        shape = np.broadcast_shapes(result.shape, np.shape(where))
        target = TracedArray(build.broadcast_to(scalar(0, result.node), shape))
    else:
        target = out_array(out, result)
    write_where(target, result, where)
    return target


def ufunc_method(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_ufunc__``: calls, ``reduce``, ``accumulate`` and ``outer``."""
    given = {k: v for k, v in kwargs.items() if v is not None and v is not np._NoValue}
    for ignored in ("order", "subok", "casting", "signature", "sig"):
        if ignored in ("casting", "signature", "sig") and ignored in given and given[ignored] not in ("same_kind",):
            raise UnsupportedOpError(f"np.{ufunc.__name__}({ignored}=…) is not supported on traced arrays", LINE.get())
        given.pop(ignored, None)
    where = given.pop("where", True)
    if where is not True:
        return _partly(ufunc, method, inputs, where, given)
    if method == "__call__":
        for option in given.keys() - {"out", "dtype"}:
            if option not in ("axis", "axes", "keepdims"):
                raise TypeError(f"{ufunc.__name__}() got an unexpected keyword argument {option!r}")
            if option != "axis" or ufunc is not np.vecdot:
                raise UnsupportedOpError(
                    f"np.{ufunc.__name__}({option}=…) is not supported on traced arrays: transpose before and after",
                    LINE.get(),
                )
        if ufunc is np.vecdot and kwargs.get("axis", -1) is None:
            raise TypeError("vecdot: the axis must be an integer, not None")
        return apply(ufunc, inputs, **given)
    if method == "at":
        from eqsat.frontends.writes import ufunc_at

        ufunc_at(ufunc, *inputs)
        return None
    if method == "outer":
        a, b = (traced(value) for value in inputs)
        left = TracedArray(build.reshape(a.node, (*a.shape, *[1] * b.ndim)))
        return apply(ufunc, (left, b), **given)
    if method == "accumulate" and ufunc in RUNNING and len(inputs) == 1 and not given.keys() - {"axis"}:
        found = _running(ufunc, inputs[0], given.get("axis", 0))
        if found is not None:
            return found
    table = {"reduce": REDUCE, "accumulate": ACCUMULATE}.get(method, {})
    function = table.get(ufunc)
    if function is None:
        raise registry.refuse(f"np.{ufunc.__name__}.{method}")
    given.setdefault("axis", 0)
    if "axis" in kwargs and kwargs["axis"] is None:
        given["axis"] = None
    if method == "accumulate":
        if traced(inputs[0]).ndim == 0:
            raise TypeError("cannot accumulate on a scalar")
        if isinstance(given["axis"], tuple):
            (given["axis"],) = given["axis"]
    return registry.call(function, *inputs, **given)


def _running(ufunc: np.ufunc, value: Any, axis: Any) -> TracedArray | None:
    """``ufunc.accumulate``; None for what NumPy refuses, and for complex numbers."""
    node = truth(lift(value)) if ufunc in (np.logical_and, np.logical_or) else lift(value)
    if not isinstance(axis, int) or not -node.type.ndim <= axis < node.type.ndim or node.dtype.kind == "complex":
        return None
    wide = build.cast(node, float32) if node.dtype.is_half else node  # extremes are the same in both
    return TracedArray(build.cast(make(RUNNING[ufunc], (wide,), axis % node.type.ndim), node.dtype))
