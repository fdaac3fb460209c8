"""SIMD values for Numba: vectors of lanes over raw addresses, as printed kernels use them.

A vector type is written ``kind`` x ``lanes``: ``f32x16``, ``i64x16``, ``b1x16`` (a mask). Lanes are any power
of two: LLVM cuts wide vectors into registers, so that all values of a kernel share one lane count whatever
their kinds. Addresses and byte strides are intp. Functions that make a vector carry its type in their name,
and come into being when they are imported (``from …simd import load_f32x16``), with T for the type:

=============================  ==========================================================================
``load_T(address)``            consecutive elements; ``loadn_T(address, n)``: the first n, others 0
``bcast_T(address)``           one element in every lane
``strided_T(address, step)``   elements ``step`` bytes apart; ``stridedn_T(address, step, n)``
``gather_T(address, index)``   elements at positions ``index`` (a vector of i64); ``gathern_T(…, n)``
``loadm_T(address, mask)``       where the mask is set, others 0; also ``bcastm_T(address, mask)`` (if any is set),
                               ``stridedm_T(address, step, mask)`` and ``gatherm_T(address, index, mask)``
``transpose_T(to, row, at, step)``  copy a square block, rows ``step`` bytes apart, transposed to rows ``row`` apart;
                               ``transposen_T(…, m, n)``: to m rows of n elements (numbers)
``splat_T(number)``            a number in every lane
``iota_T(start, step)``        start, start + step, …
``within_T(start, step, a, b)``  mask: which of start, start + step, … are in [a, b)
``to_T(v)``                    conversion as in C; to b1: is not 0
``store(address, v)``          ``storen(address, v, n)``: the first n
``stream(address, v)``         store past the caches, to an aligned address; ``fence()`` orders such stores
``prefetch(address)``          ask for the cache line there; any address will do
``scatter(address, v, step)``  elements ``step`` bytes apart; ``scattern(address, v, step, n)``
``sum_lanes(v)``               all lanes combined pairwise, result in every lane; also prod, max, min
``sum_each4(v, w, x, y)``      the same of each, v's in lane 0, w's in lane 1, …; also of 2 and 8
``running_sum(v)``             each lane with all before it; also prod, max, min. ``last(v)``: the last in every lane
``argmax_lanes(v, i)``         the i that goes with the extreme (the first NaN if any; ties: least i)
``beyond_max(x, best)``        mask: x replaces best in a running argmax; also ``beyond_min``
``first(v, n, fill)``          v in the first n lanes, fill in the others
``lane0(v)``                   the first lane as a scalar
``word(address, k)``           the k-th 64-bit word of a table
``wrap_index(i, n, status)``   i in [-n, n) -> i mod n; else 0, and the word at ``status`` is set to ``BAD_INDEX``
``exponent(y, status)``        y; where it is negative 0, and the word at ``status`` is set to ``BAD_EXPONENT``
=============================  ==========================================================================

and every function of ``elementwise.FUNCTIONS``. Booleans are one byte, 0 or 1, in memory. Nothing here
allocates, raises or reads past the lanes that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from inspect import Parameter, Signature
from string import ascii_lowercase
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from eqsat_backends.numba_cpu.printing.emitted import BAD_EXPONENT, BAD_INDEX
from eqsat_backends.numba_cpu.vectors import memory
from eqsat_backends.numba_cpu.vectors.elementwise import FUNCTIONS
from eqsat_backends.numba_cpu.vectors.flow import I32, I64
from eqsat_backends.numba_cpu.vectors.lanes import (
    BYTES,
    EACH,
    ELEMENTS,
    FLOATS,
    KIND,
    Lanes,
    Value,
    masks_are_quick,
    native_lanes,
)

__all__ = ["KIND", "Vector", "native_lanes"]

_SCALARS = {"f32": types.float32, "f64": types.float64, "b1": types.boolean}


class Vector(types.Type):
    """Numba type of a vector."""

    def __init__(self, kind: str, lanes: int) -> None:
        self.kind, self.lanes = kind, lanes
        super().__init__(name=f"{kind}x{lanes}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, ir.VectorType(ELEMENTS[vector.kind], vector.lanes))


Typer = Callable[..., Any]
"""Types of the arguments -> type of the result; None when they do not fit."""
Build = Callable[..., Value]
"""(lanes, *LLVM values) -> LLVM value."""


def define(name: str, arity: int, typer: Typer, build: Build, lanes: int | None = None) -> Any:
    """An intrinsic. Scalar arguments reach ``build`` as Numba has them, integers as i64."""

    def resolve(_: Any, *given: Any) -> tuple[Any, Any]:
        # unsigned and small integers, literals and booleans as addresses or counts: all are intp
        arguments = tuple(types.int64 if isinstance(t, types.Integer) else t for t in given)
        result = typer(*arguments)
        if result is None:
            raise TypingError(f"{name} is not defined for ({', '.join(map(str, given))})")
        width = lanes or next(t.lanes for t in arguments if isinstance(t, Vector))

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            for value, type in zip(values, arguments, strict=True):
                if isinstance(type, Vector):  # Numba keeps values, of which LLVM does not tell whether they are signed
                    value.type = ir.VectorType(ELEMENTS[type.kind], type.lanes)
            made = build(Lanes(builder, width), *values)
            return context.get_dummy_value() if result == types.void else made

        return result(*arguments), generate

    # Numba asks for one name for each argument
    names = ("context", *ascii_lowercase[:arity])
    resolve.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_ONLY) for n in names])  # type: ignore[attr-defined]
    resolve.__name__ = resolve.__qualname__ = name
    return intrinsic(resolve)


# memory


def _stream(e: Lanes, address: Value, value: Value) -> None:
    made = memory.store(e, address, value)
    made.align = min(64, BYTES[e.kind(value)] * e.lanes)
    made.set_metadata("nontemporal", e.b.module.add_metadata([ir.Constant(I32, 1)]))


def _offsets(e: Lanes, step: Value, count: Value | None) -> list[Value]:
    """Byte offset of each lane; of lane 0 for lanes that are not wanted, which can always be read."""
    offsets = [e.b.mul(step, ir.Constant(I64, i)) for i in range(e.lanes)]
    if count is None:
        return offsets
    wanted = [e.b.icmp_signed("<", ir.Constant(I64, i), count) for i in range(e.lanes)]
    return [e.b.select(w, o, ir.Constant(I64, 0)) for w, o in zip(wanted, offsets, strict=True)]


def _is_second(step: Value, kind: str) -> bool:
    """Whether a step known at compile time takes every second element, as of the parts of complex numbers."""
    return isinstance(step, ir.Constant) and step.constant == 2 * BYTES[kind]


def _strided(
    e: Lanes, kind: str, address: Value, step: Value, count: Value | None = None, mask: Value | None = None
) -> Value:
    if e.lanes > 1 and _is_second(step, kind):
        return _second(e, kind, address, count, mask)
    return _by_address(e, kind, [e.b.add(address, offset) for offset in _offsets(e, step, count)], mask)


def _second(e: Lanes, kind: str, address: Value, count: Value | None, mask: Value | None) -> Value:
    """Every second element, of two vectors that meet in one element: none past the last that is wanted."""
    last = e.b.add(address, ir.Constant(I64, (e.lanes - 1) * BYTES[kind]))
    order = [2 * i + (2 * i >= e.lanes) for i in range(e.lanes)]
    if isinstance(count, ir.Constant):
        through = 2 * count.constant - 1
        near = memory.load_first(e, kind, address, ir.Constant(I64, min(e.lanes, through)))
        far = memory.load_first(e, kind, last, ir.Constant(I64, max(0, through + 1 - e.lanes)))
        return e.shuffle(near, far, order)
    wanted = mask if count is None else e.first(count)

    def plain() -> Value:
        return e.shuffle(memory.load(e, kind, address), memory.load(e, kind, last), order)

    def masked(mask: Value) -> Value:
        none = ir.Constant(mask.type, None)
        near = e.shuffle(mask, none, [e.lanes if i % 2 else i // 2 for i in range(e.lanes)])
        far = e.shuffle(mask, none, [(i + e.lanes - 1) // 2 if (i + e.lanes) % 2 else e.lanes for i in range(e.lanes)])
        first, second = memory.load_masked(e, kind, address, near), memory.load_masked(e, kind, last, far)
        return e.shuffle(first, second, order)

    if wanted is None:
        return plain()
    return masked(wanted) if masks_are_quick() else e.usually(wanted, plain, lambda: masked(wanted))


def _gather(e: Lanes, kind: str, address: Value, index: Value, count: Value | None = None) -> Value:
    if count is not None:
        index = e.select(e.first(count), index, e.const("i64", 0))
    size = ir.Constant(I64, BYTES[kind])
    return e.by_lane(lambda i: memory.element(e, kind, e.b.add(address, e.b.mul(i, size))), index)


def _nowhere(e: Lanes, kind: str) -> Value:
    """The address of a zero, to read in place of what may not be."""
    return e.b.ptrtoint(cgutils.alloca_once_value(e.b, ir.Constant(memory.memory_type(kind), 0)), I64)


def _bcastm(e: Lanes, kind: str, address: Value, mask: Value) -> Value:
    return e.splat(memory.element(e, kind, e.b.select(e.any(mask), address, _nowhere(e, kind))))


def _by_address(e: Lanes, kind: str, addresses: list[Value], mask: Value | None) -> Value:
    result = ir.Constant(e.type(kind), ir.Undefined)
    nowhere = None if mask is None else _nowhere(e, kind)
    for i, address in enumerate(addresses):
        lane = ir.Constant(I32, i)
        place = address if mask is None else e.b.select(e.b.extract_element(mask, lane), address, nowhere)
        result = e.b.insert_element(result, memory.element(e, kind, place), lane)
    return result


def _gatherm(e: Lanes, kind: str, address: Value, index: Value, mask: Value) -> Value:
    offsets = e.b.mul(index, e.const("i64", BYTES[kind]))
    places = [e.b.extract_element(offsets, ir.Constant(I32, i)) for i in range(e.lanes)]
    return _by_address(e, kind, [e.b.add(address, place) for place in places], mask)


def _scatter(e: Lanes, address: Value, value: Value, step: Value, count: Value | None = None) -> None:
    if count is None and e.lanes > 1 and _is_second(step, e.kind(value)):
        even, size = ir.Constant(e.type("b1"), [ir.Constant(ir.IntType(1), 1 - i % 2) for i in range(e.lanes)]), e.lanes
        for first in (0, size):
            half = e.shuffle(value, value, [(first + i) // 2 for i in range(size)])
            memory.store(e, e.b.add(address, ir.Constant(I64, first * BYTES[e.kind(value)])), half, even)
        return
    kept = memory.to_memory(e, value)
    for i in range(e.lanes):
        at = e.b.add(address, e.b.mul(step, ir.Constant(I64, i)))
        scalar = e.b.extract_element(kept, ir.Constant(I32, i))
        wanted = None if count is None else e.b.icmp_signed("<", ir.Constant(I64, i), count)
        with nullcontext() if wanted is None else e.b.if_then(wanted):
            e.b.store(scalar, memory.pointer(e, at), align=BYTES[e.kind(value)])


def _transpose(
    e: Lanes, kind: str, target: Value, row: Value, source: Value, step: Value, *size: Value
) -> None:  # fmt: skip
    tall, wide = (count.constant for count in size) if size else (e.lanes, e.lanes)
    rows: list[Value] = []
    for i in range(wide):
        at = e.b.add(source, e.b.mul(step, ir.Constant(I64, i)))
        rows.append(memory.load(e, kind, at) if tall == e.lanes else memory.load_first(e, kind, at, size[0]))
    rows += rows[:1] * (e.lanes - wide)  # these lanes are not stored
    for i, value in enumerate(e.transposed(rows)[:tall]):
        at = e.b.add(target, e.b.mul(row, ir.Constant(I64, i)))
        if wide == e.lanes:
            memory.store(e, at, value)
        else:
            memory.store_first(e, at, value, size[1])


def _word(e: Lanes, address: Value, k: Value) -> Value:
    return e.b.load(memory.pointer(e, e.b.add(address, e.b.mul(k, ir.Constant(I64, 8)))), typ=I64, align=8)


# values


def _splat(e: Lanes, kind: str, number: Value) -> Value:
    """A scalar (i64, double, float or bool) in every lane."""
    if kind == "bf16":
        return e.cast(_splat(e, "f32", number), kind)
    source, target = number.type, ELEMENTS[kind]
    if isinstance(source, ir.IntType):
        if kind in FLOATS:
            number = e.b.sitofp(number, target) if source.width > 1 else e.b.uitofp(number, target)
        elif kind == "b1":
            number = e.b.icmp_unsigned("!=", number, ir.Constant(source, 0))
        elif source.width != target.width:
            number = e.b.trunc(number, target) if source.width > target.width else e.b.zext(number, target)
    elif source != target:
        number = e.b.fptrunc(number, FLOATS["f32"]) if kind == "f16" and source != FLOATS["f32"] else number
        number = e.b.fpext(number, target) if kind == "f64" else e.b.fptrunc(number, target)
    return e.splat(number)


def _iota(e: Lanes, kind: str, start: Value, step: Value) -> Value:
    steps = e.b.mul(e.iota(kind), _splat(e, kind, step))
    return e.b.add(steps, _splat(e, kind, start))


def _within(e: Lanes, kind: str, start: Value, step: Value, low: Value, high: Value) -> Value:
    steps = e.b.mul(e.iota("i64"), e.splat(step))
    above = e.b.add(steps, e.splat(e.b.sub(start, low)))
    return e.b.icmp_unsigned("<", above, e.splat(e.b.sub(high, low)))


def _lane0(e: Lanes, value: Value) -> Value:
    scalar = e.b.extract_element(value, ir.Constant(I32, 0))
    if e.is_float(value) or e.kind(value) == "b1" or BYTES[e.kind(value)] == 8:
        return scalar
    return e.b.sext(scalar, I64) if e.is_signed(value) else e.b.zext(scalar, I64)


def _beyond(op: str) -> Build:
    def build(e: Lanes, x: Value, best: Value) -> Value:
        beyond = e.compare(op, x, best)
        if not e.is_float(x):
            return beyond
        return e.b.or_(beyond, e.b.and_(e.is_nan(x), e.not_(e.is_nan(best))))

    return build


def _arg_lanes(op: str) -> Build:
    beyond = _beyond(op)

    def build(e: Lanes, value: Value, index: Value) -> Value:
        step = e.lanes // 2
        while step:
            order = [i ^ step for i in range(e.lanes)]
            other, place = e.shuffle(value, value, order), e.shuffle(index, index, order)
            worse = e.b.or_(beyond(e, value, other), beyond(e, other, value))
            earlier = e.b.and_(e.not_(worse), e.b.icmp_signed("<", place, index))
            take = e.b.or_(beyond(e, other, value), earlier)
            value, index = e.select(take, other, value), e.select(take, place, index)
            step //= 2
        return index

    return build


def _report(e: Lanes, wrong: Value, count: Value | None, status: Value, code: int) -> None:
    """Set the status word if any of the lanes (of the first ``count``) is wrong."""
    wrong = wrong if count is None else e.b.and_(wrong, e.first(count))
    with e.b.if_then(e.any(wrong), likely=False):
        e.b.store(ir.Constant(I64, code), memory.pointer(e, status), align=8)


def _wrap_index(e: Lanes, index: Value, extent: Value, status: Value, count: Value | None = None) -> Value:
    kind = e.kind(index)
    n = _splat(e, kind, extent)
    zero = e.like(index, 0)
    wrapped = e.select(e.compare("<", index, zero), e.add(index, n), index)
    bad = e.b.or_(e.compare("<", wrapped, zero), e.compare(">=", wrapped, n))
    _report(e, bad, count, status, BAD_INDEX)
    return e.select(bad, zero, wrapped)


def _exponent(e: Lanes, y: Value, status: Value, count: Value | None = None) -> Value:
    bad = e.compare("<", y, e.like(y, 0))
    _report(e, bad, count, status, BAD_EXPONENT)
    return e.select(bad, e.like(y, 0), y)


# typing


def _same(*vectors: Any) -> Any:
    """The common type of vectors, or None."""
    return vectors[-1] if all(isinstance(v, Vector) and v == vectors[-1] for v in vectors) else None


def void(*arguments: Any) -> Any:
    return types.void


def _elementwise_typer(result: str, kinds: frozenset[str], conditional: bool) -> Typer:
    def typer(*arguments: Any) -> Any:
        checked = arguments[1:] if conditional else arguments
        vector = _same(*checked)
        if vector is None or vector.kind not in kinds:
            return None
        return Vector("b1", vector.lanes) if result == "mask" else vector

    return typer


def _of_lanes(name: str) -> Any:
    """``load_f32x16`` and its kin: made on demand."""
    match = re.fullmatch(rf"(\w+?)_({'|'.join(ELEMENTS)})x(\d+)", name)
    if match is None or match[1] not in _MAKERS:
        return None
    kind, lanes = match[2], int(match[3])
    if lanes & (lanes - 1) or not lanes:
        raise AttributeError(f"{name}: the number of lanes must be a power of two")
    arity, build = _MAKERS[match[1]]
    vector = Vector(kind, lanes)

    def bound(e: Lanes, *values: Value) -> Value:
        return build(e, kind, *values)

    result = types.void if match[1] in ("transpose", "transposen") else vector
    return define(name, arity, lambda *arguments: result, bound, lanes)


_MAKERS: dict[str, tuple[int, Build]] = {
    "load": (1, memory.load),
    "loadn": (2, memory.load_first),
    "bcast": (1, lambda e, kind, address: e.splat(memory.element(e, kind, address))),
    "strided": (2, _strided),
    "stridedn": (3, _strided),
    "gather": (2, _gather),
    "gathern": (3, _gather),
    "loadm": (2, memory.load),
    "bcastm": (2, _bcastm),
    "stridedm": (3, lambda e, kind, address, step, mask: _strided(e, kind, address, step, None, mask)),
    "gatherm": (3, _gatherm),
    "within": (4, _within),
    "transpose": (4, _transpose),
    "transposen": (6, _transpose),
    "splat": (1, _splat),
    "iota": (2, _iota),
    "to": (1, lambda e, kind, value: e.cast(value, kind)),
}


def __getattr__(name: str) -> Any:
    made = _of_lanes(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made


for _name, _function in FUNCTIONS.items():
    _typer = _elementwise_typer(_function.result, _function.kinds, _name == "where")
    globals()[_name] = define(_name, _function.arity, _typer, _function.build)

store = define("store", 2, void, memory.store)
fence = define("fence", 0, void, lambda e: e.b.fence("seq_cst"), 1)
prefetch = define("prefetch", 1, void, lambda e, address: memory.prefetch(e, address, 2), 1)
storen = define("storen", 3, void, memory.store_first)
stream = define("stream", 2, void, _stream)
scatter = define("scatter", 3, void, _scatter)
scattern = define("scattern", 4, void, _scatter)
word = define("word", 2, lambda *arguments: types.int64, _word, 1)
lane0 = define("lane0", 1, lambda v: _SCALARS.get(v.kind, types.int64), _lane0)
first = define("first", 3, lambda v, n, fill: _same(v, fill), lambda e, v, n, fill: e.select(e.first(n), v, fill))
wrap_index = define("wrap_index", 3, lambda i, n, s: i if i.kind in ("i32", "i64") else None, _wrap_index)
wrap_indexn = define("wrap_indexn", 4, lambda i, n, s, c: i if i.kind in ("i32", "i64") else None, _wrap_index)
exponent = define("exponent", 2, lambda y, s: y if y.kind[0] == "i" else None, _exponent)
exponentn = define("exponentn", 3, lambda y, s, c: y if y.kind[0] == "i" else None, _exponent)

_COMBINES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def _across(name: str, combine: Build) -> Build:
    def build(e: Lanes, v: Value) -> Value:
        if name not in ("max", "min") or not e.is_float(v):
            return e.across(lambda a, b: combine(e, a, b), v)
        # one test for NaN, beside the rounds instead of in each
        best = e.across(lambda a, b: e.extremum(name, a, b), v)
        bad = e.any(e.is_nan(v))
        return e.b.select(bad, e.like(v, float("nan")), best)

    return build


def _across_each(combine: Build) -> Build:
    return lambda e, *rows: e.across_each(combine, rows)


def _running(combine: Build) -> Build:
    def build(e: Lanes, v: Value) -> Value:
        for step in (1 << k for k in range(e.lanes.bit_length() - 1)):
            before = e.shuffle(v, v, [max(i - step, 0) for i in range(e.lanes)])
            v = e.select(e.first(ir.Constant(I64, step)), v, combine(e, before, v))
        return v

    return build


last = define("last", 1, _same, lambda e, v: e.shuffle(v, v, [e.lanes - 1] * e.lanes))
for _name, _combine in _COMBINES.items():
    globals()[f"running_{_name}"] = define(f"running_{_name}", 1, _same, _running(FUNCTIONS[_combine].build))
    globals()[f"{_name}_lanes"] = define(f"{_name}_lanes", 1, _same, _across(_name, FUNCTIONS[_combine].build))
    for _count in EACH:
        globals()[f"{_name}_each{_count}"] = define(
            f"{_name}_each{_count}", _count, _same, _across_each(FUNCTIONS[_combine].build)
        )
for _name, _op in (("max", ">"), ("min", "<")):
    globals()[f"beyond_{_name}"] = define(
        f"beyond_{_name}", 2, lambda x, best: Vector("b1", x.lanes) if x == best else None, _beyond(_op)
    )
    globals()[f"arg{_name}_lanes"] = define(
        f"arg{_name}_lanes", 2, lambda v, i: i if i.kind == "i64" else None, _arg_lanes(_op)
    )
