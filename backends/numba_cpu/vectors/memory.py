"""Vectors in memory: loads and stores of lanes that are next to one another, and of single elements, as LLVM code.

An address is a pointer, or a number of bytes. Booleans are one byte, 0 or 1, in memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from eqsat_backends.numba_cpu.vectors.flow import I32
from eqsat_backends.numba_cpu.vectors.lanes import BYTES, ELEMENTS, FLOATS, Lanes, Value

POINTER = ir.PointerType()
_BYTE = ir.IntType(8)


def pointer(e: Lanes, address: Value) -> Value:
    """What is added to the first part of a sum is added to a pointer: LLVM folds constants into the instructions that
    read there, where each sum of integers has a register, and a step in every loop around."""
    if isinstance(address.type, ir.PointerType):
        return address
    if getattr(address, "opname", "") not in ("add", "sub"):
        return e.b.inttoptr(address, POINTER)
    base, part = address.operands
    return e.b.gep(pointer(e, base), [part if address.opname == "add" else e.b.neg(part)], source_etype=_BYTE)


def memory_type(kind: str) -> Any:
    """The type of an element in memory."""
    return _BYTE if kind == "b1" else ELEMENTS[kind]


def load(e: Lanes, kind: str, address: Value, mask: Value | None = None) -> Value:
    """Consecutive elements; with a mask only where that is set, 0 elsewhere."""
    vector, place = ir.VectorType(memory_type(kind), e.lanes), pointer(e, address)
    if mask is None:
        return _from_memory(e, kind, e.b.load(place, typ=vector, align=BYTES[kind]))
    align, zero, start = ir.Constant(I32, BYTES[kind]), ir.Constant(vector, None), address
    while getattr(start, "opname", "") in ("add", "sub"):
        start = start.operands[0]
    # Whether a page exists is found out slowly, also for no lane at all: of padding 4×5×194² it was three quarters.
    place = e.b.select(e.any(mask), place, pointer(e, start))
    return _from_memory(e, kind, e.call(_masked("load", vector), vector, place, align, mask, zero))


def store(e: Lanes, address: Value, value: Value, mask: Value | None = None) -> Any:
    """Store all lanes, or those that are set in the mask; the instruction."""
    kept, place, align = to_memory(e, value), pointer(e, address), BYTES[e.kind(value)]
    if mask is None:
        return e.b.store(kept, place, align=align)
    return e.call(_masked("store", kept.type), ir.VoidType(), kept, place, ir.Constant(I32, align), mask)


def store_first(e: Lanes, address: Value, value: Value, count: Value) -> Any:
    """Store the first ``count`` lanes.

    Where narrowing to a mask of one lane is folded into the store, LLVM 22 stores that lane as wide as it was before,
    over what follows it: one lane goes by itself. So it does where the count is known: of such masked stores of
    constants, in loops that it has unrolled, LLVM compares all again at each one (600 took 79 s).
    """
    mask, kind = e.first(count), e.kind(value)
    if isinstance(count, ir.Constant) and count.constant == 1:
        return _store_first_lane(e, address, value)
    if kind == "b1" or kind in FLOATS or BYTES[kind] == 8:
        return store(e, address, value, mask)
    with e.b.if_else(e.b.icmp_signed("==", count, ir.Constant(count.type, 1))) as (single, several):
        with single:
            _store_first_lane(e, address, value)
        with several:
            store(e, address, value, mask)
    return None


def _store_first_lane(e: Lanes, address: Value, value: Value) -> Any:
    lane = e.b.extract_element(to_memory(e, value), ir.Constant(I32, 0))
    return e.b.store(lane, pointer(e, address), align=BYTES[e.kind(value)])


def element(e: Lanes, kind: str, address: Value) -> Value:
    """One element as a scalar."""
    return _from_memory(e, kind, e.b.load(pointer(e, address), typ=memory_type(kind), align=BYTES[kind]))


def prefetch(e: Lanes, address: Value, locality: int, write: bool = False) -> None:
    """Ask for a cache line, to be read or written. ``locality``: 3 for the innermost cache, 2 for the second."""
    flags = (ir.Constant(I32, flag) for flag in (int(write), locality, 1))
    e.call("llvm.prefetch.p0", ir.VoidType(), pointer(e, address), *flags)


def to_memory(e: Lanes, value: Value) -> Value:
    return e.b.zext(value, ir.VectorType(_BYTE, e.lanes)) if e.kind(value) == "b1" else value


def _from_memory(e: Lanes, kind: str, value: Value) -> Value:
    return e.b.icmp_unsigned("!=", value, ir.Constant(value.type, None)) if kind == "b1" else value


def _masked(name: str, vector: Any) -> str:
    element = str(vector.element)
    short = f"v{vector.count}" + {"half": "f16", "float": "f32", "double": "f64"}.get(element, element)
    return f"llvm.masked.{name}.{short}." + ("p0" if llvm.llvm_version_info[0] >= 17 else f"p0{short}")
