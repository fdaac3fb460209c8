"""Rows of the op table: elementwise functions.

A node of these takes inputs whose element types the frontend has made equal already (``where`` takes a
bool first), and broadcasts them by NumPy's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from eqsat.forks import IMPORTING
from eqsat.ir.kernel import Acc, Call, Kernel, Load, Operand
from eqsat.ir.table import REALS, Op, register
from eqsat.ir.types import DType, TensorType, bfloat16, bool_, float32, row_major
from eqsat.ir.views import broadcast

Kinds = tuple[str, ...]
FLOAT: Kinds = ("float",)
NUMBER: Kinds = ("float", "int")
ANY: Kinds = ("float", "int", "bool")
INT: Kinds = ("int",)


def broadcast_shapes(name: str, types: Sequence[TensorType]) -> tuple[int, ...]:
    """NumPy's broadcast of the shapes; ``ValueError`` naming the operator and the shapes."""
    try:
        return np.broadcast_shapes(*(t.shape for t in types))
    except ValueError as error:
        shapes = ", ".join(str(t.shape) for t in types)
        wrong = "do not broadcast together" if "mismatch" in str(error) else "broadcast to an array that is too big"
        raise ValueError(f"{name}: shapes {shapes} {wrong}") from None


def define_map(types: Sequence[TensorType], out: TensorType, fn: str, attrs: object) -> Kernel:
    """``out[i…] = fn(in₀[i…], …)`` with stride 0 along broadcast axes."""
    args = []
    for number, t in enumerate(types):
        strides = broadcast(t.shape, out.shape).strides
        assert strides is not None
        args.append(Load(number, 0, strides, t.dtype))
    return Kernel(
        extents=out.shape,
        parallel=out.ndim,
        combine=None,
        body=Call(fn, tuple(args), out.dtype, attrs),
        epilogue=Acc(out.dtype),
        operands=tuple(Operand(t.dtype, t.size) for t in types),
        out=Operand(out.dtype, out.size),
        store_offset=0,
        store_strides=row_major(out.shape),
    )


def _map(name: str, fn: Callable[..., np.ndarray], arity: int, kinds: Kinds, **known: Any) -> None:
    """A row: NumPy's function, or one that computes it, of so many arguments of these kinds, and what else a row says.

    ``result``: the element type of its values, if it is not that of its arguments.
    """
    result: DType | None = known.pop("result", None)

    def type_rule(types: Sequence[TensorType], attrs: object) -> TensorType:
        if len(types) != arity:
            raise ValueError(f"{name} takes {arity} arguments, not {len(types)}")
        dtypes = {t.dtype for t in types}
        if len(dtypes) != 1:
            raise ValueError(f"{name}: element types {', '.join(str(t.dtype) for t in types)} differ")
        dtype = types[0].dtype
        if dtype.kind not in kinds or dtype.is_half:
            raise ValueError(f"{name} is not defined for {dtype}")
        return TensorType(broadcast_shapes(name, types), result or dtype)

    def definition(types: Sequence[TensorType], attrs: object) -> Kernel:
        return define_map(types, type_rule(types, attrs), name, attrs)

    def reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
        return fn(*arrays)

    known["ufunc"] = fn if isinstance(fn, np.ufunc) else None
    known["kinds"] = kinds
    known["traits"] = frozenset(known.get("traits", ()))
    register(Op(name, "map", type_rule, reference, definition, arity=arity, **known))


def _erf(x: np.ndarray) -> np.ndarray:
    with IMPORTING:
        from scipy.special import erf
    return np.asarray(erf(x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with IMPORTING:
        from scipy.special import expit
    return np.asarray(expit(x))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, np.zeros((), x.dtype)))


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.ones((), x.dtype) / np.sqrt(x))


def _reciprocal(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.ones((), x.dtype) / x)


_map("neg", np.negative, 1, NUMBER)
_map("abs", np.abs, 1, ANY, range=(0, inf), text="np.abs({0})")
_map("sign", np.sign, 1, NUMBER, cost=2, slots=3, range=(-1, 1))
_map(
    "exp", np.exp, 1, FLOAT, cost=12, slots=6.5, traits=("increasing",), range=(0, inf), grows=True, tried=(-10, 10),
    timed=True,
)  # fmt: skip
_map("log", np.log, 1, FLOAT, cost=16, slots=16, domain=(0, inf), grows=True, tried=(0.5, inf), timed=True)
_map(
    "log1p", np.log1p, 1, FLOAT, cost=20, slots=18, domain=(-1, inf), grows=True, tried=(0.0, inf), scipy="log1p",
    by=lambda of, x: of("log", 1 + x),
)  # fmt: skip
_map(
    "expm1", np.expm1, 1, FLOAT, cost=18, slots=9, range=(-1, inf), grows=True, tried=(-10, 10), scipy="expm1",
    by=lambda of, x: of("exp", x) - 1,
)  # fmt: skip
_map("sqrt", np.sqrt, 1, FLOAT, cost=10, slots=6, domain=(0, inf), range=(0, inf), tried=(0.25, inf), timed=True)
_map(
    "rsqrt", _rsqrt, 1, FLOAT, cost=14, slots=7, domain=(0, inf), tried=(0.25, inf), text="1 / np.sqrt({0})",
    by=lambda of, x: of("reciprocal", of("sqrt", x)),
)  # fmt: skip
_map("reciprocal", _reciprocal, 1, FLOAT, cost=8, slots=2.5, tried=(0.25, inf), text="np.reciprocal({0})")
_map("square", np.square, 1, NUMBER, range=(0, inf))
_map("sin", np.sin, 1, FLOAT, cost=24, slots=24, traits=("odd",), range=(-1, 1), tried=(-100, 100), timed=True)
_map("cos", np.cos, 1, FLOAT, cost=24, slots=24, traits=("even",), range=(-1, 1), tried=(-100, 100))
_map(
    "tanh", np.tanh, 1, FLOAT, cost=20, slots=10, traits=("odd", "increasing"), range=(-1, 1), grows=True, tried=REALS,
    timed=True,
)  # fmt: skip
_map(
    "erf", _erf, 1, FLOAT, cost=22, slots=12, traits=("odd",), range=(-1, 1), grows=True, tried=REALS, timed=True,
    scipy="erf",
)  # fmt: skip
_map(
    "sigmoid", _sigmoid, 1, FLOAT, cost=18, slots=10, traits=("increasing",), range=(0, 1), grows=True, tried=REALS,
    timed=True, scipy="expit", by=lambda of, x: of("reciprocal", 1 + of("exp", -x)),
)  # fmt: skip
_map("relu", _relu, 1, NUMBER, traits=("increasing",), range=(0, inf), text="np.maximum({0}, 0)")
_map("floor", np.floor, 1, FLOAT)
_map("ceil", np.ceil, 1, FLOAT)
_map("round", np.rint, 1, FLOAT, slots=2, doc="to the nearest integer, halves to even")
_map("isnan", np.isnan, 1, FLOAT, result=bool_)
_map("isfinite", np.isfinite, 1, FLOAT, result=bool_)
_map("logical_not", np.logical_not, 1, ("bool",))
_map("logical_and", np.logical_and, 2, ("bool",), commutes=True)
_map("logical_or", np.logical_or, 2, ("bool",), commutes=True)
_map("logical_xor", np.logical_xor, 2, ("bool",), commutes=True)
_map("invert", np.invert, 1, INT)
_map("bitwise_and", np.bitwise_and, 2, INT, commutes=True)
_map("bitwise_or", np.bitwise_or, 2, INT, commutes=True)
_map("bitwise_xor", np.bitwise_xor, 2, INT, commutes=True)
_map("left_shift", np.left_shift, 2, INT, doc="0 where the distance is not in [0, bits)")
_map(
    "right_shift", np.right_shift, 2, INT,
    doc="with the sign's bit; 0, or -1 below 0, where the distance is not in range",
)  # fmt: skip
_map("add", np.add, 2, NUMBER, commutes=True, text="{0} + {1}")
_map("sub", np.subtract, 2, NUMBER, text="{0} - {1}")
_map("mul", np.multiply, 2, NUMBER, commutes=True, text="{0} * {1}")
_map("div", np.divide, 2, FLOAT, cost=8, slots=2.5, text="{0} / {1}", timed=True)
_map("floor_divide", np.floor_divide, 2, NUMBER, cost=14, slots=6, text="{0} // {1}")
_map("remainder", np.remainder, 2, NUMBER, cost=14, slots=8, text="{0} % {1}")
_map("pow", np.power, 2, NUMBER, cost=60, slots=60, domain=(0, inf), text="{0} ** {1}", timed=True)
_map("maximum", np.maximum, 2, ANY, cost=2, slots=2, commutes=True)
_map("minimum", np.minimum, 2, ANY, cost=2, slots=2, commutes=True)
for _name, _fn, _sign in (
    ("eq", np.equal, "=="), ("ne", np.not_equal, "!="), ("lt", np.less, "<"), ("le", np.less_equal, "<="),
    ("gt", np.greater, ">"), ("ge", np.greater_equal, ">="),
):  # fmt: skip
    _map(_name, _fn, 2, ANY, result=bool_, commutes=_name in ("eq", "ne"), text=f"{{0}} {_sign} {{1}}")


def _where_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    if len(types) != 3:
        raise ValueError(f"where takes 3 arguments, not {len(types)}")
    if types[0].dtype != bool_ or types[1].dtype != types[2].dtype:
        raise ValueError(f"where takes a bool and two of one element type, not {', '.join(map(str, types))}")
    return TensorType(broadcast_shapes("where", types), types[1].dtype)


register(
    Op(
        "where",
        "map",
        _where_type,
        lambda arrays, attrs: np.where(*arrays),
        lambda types, attrs: define_map(types, _where_type(types, attrs), "where", attrs),
        arity=3,
    )
)


def _cast_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    (t,) = types
    assert isinstance(attrs, DType)
    return TensorType(t.shape, attrs)


def _cast(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, DType)
    with np.errstate(invalid="ignore", over="ignore"):
        return arrays[0].astype(attrs.numpy)


register(
    Op(
        "cast",
        "map",
        _cast_type,
        _cast,
        lambda types, attrs: define_map(types, _cast_type(types, attrs), "cast", None),
        arity=1,
        doc="to the element type given, as ndarray.astype",
    )
)


def _flushing_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    (t,) = types
    if t.dtype != bfloat16:
        raise ValueError(f"flushing_cast of {t.dtype}, not of bfloat16")
    return TensorType(t.shape, float32)


register(
    Op(
        "flushing_cast",
        "map",
        _flushing_type,
        lambda arrays, attrs: arrays[0].astype(np.float32),
        lambda types, attrs: define_map(types, _flushing_type(types, attrs), "flushing_cast", None),
        doc="bfloat16 as float32, for products in which subnormal numbers may count as zeros",
    )
)


def _wrap_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    (t,) = types
    if t.dtype.kind != "int":
        raise ValueError(f"indices must be integers, not {t.dtype}")
    assert isinstance(attrs, int)
    if attrs > np.iinfo(t.dtype.numpy).max:
        raise ValueError(f"an index of type {t.dtype} does not reach the end of an axis of size {attrs}")
    return t


def _wrap(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    (index,) = arrays
    assert isinstance(attrs, int)
    bad = (index < -attrs) | (index >= attrs)
    if bad.any():
        raise IndexError(f"index {int(index[bad].flat[0])} is out of bounds for an axis of size {attrs}")
    return np.where(index < 0, index + np.asarray(attrs, index.dtype), index)


register(
    Op(
        "wrap_index",
        "map",
        _wrap_type,
        _wrap,
        lambda types, attrs: define_map(types, _wrap_type(types, attrs), "wrap_index", attrs),
        cost=4,
        slots=3,
        doc="an index in [-n, n) made non-negative; IndexError outside",
    )
)


def _sum_type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, tuple)
    if len(types) != len(attrs) or not types:
        raise ValueError("add_n takes one sign per argument")
    if len({t.dtype for t in types}) != 1 or types[0].dtype == bool_ or types[0].dtype.is_half:
        raise ValueError(f"add_n: element types {', '.join(str(t.dtype) for t in types)}")
    return TensorType(broadcast_shapes("add_n", types), types[0].dtype)


def _sum(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, tuple)
    total = arrays[0] if attrs[0] > 0 else -arrays[0]
    for sign, array in zip(attrs[1:], arrays[1:], strict=True):
        total = total + array if sign > 0 else total - array
    return np.asarray(total)


def _define_sum(types: Sequence[TensorType], attrs: object) -> Kernel:
    assert isinstance(attrs, tuple)
    out = _sum_type(types, attrs)
    whole = define_map(types, out, "add_n", attrs)
    assert isinstance(whole.body, Call)
    first, *rest = whole.body.args
    body = first if attrs[0] > 0 else Call("neg", (first,), out.dtype)
    for sign, arg in zip(attrs[1:], rest, strict=True):
        body = Call("add" if sign > 0 else "sub", (body, arg), out.dtype)
    return Kernel(**{**whole.__dict__, "body": body})


register(
    Op(
        "add_n",
        "map",
        _sum_type,
        _sum,
        _define_sum,
        doc="±x₀ ±x₁ … : the canonical sum, whose terms the e-graph keeps in one order",
    )
)
