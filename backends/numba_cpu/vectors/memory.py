"""Vectors in memory: loads and stores of lanes that are next to one another, and of single elements, as LLVM code.

An address is a pointer, or a number of bytes. Booleans are one byte, 0 or 1, in memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from eqsat_backends.numba_cpu.vectors.flow import I32, I64
from eqsat_backends.numba_cpu.vectors.lanes import BYTES, ELEMENTS, FLOATS, Lanes, Value, masks_are_quick

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
    if mask is None:
        vector = ir.VectorType(memory_type(kind), e.lanes)
        return _from_memory(e, kind, e.b.load(pointer(e, address), typ=vector, align=BYTES[kind]))
    if masks_are_quick():
        return load_masked(e, kind, address, mask)
    return e.usually(mask, lambda: load(e, kind, address), lambda: load_masked(e, kind, address, mask))


def load_masked(e: Lanes, kind: str, address: Value, mask: Value) -> Value:
    """The same by a masked instruction, whatever the processor."""
    vector, place = ir.VectorType(memory_type(kind), e.lanes), pointer(e, address)
    align, zero, start = ir.Constant(I32, BYTES[kind]), ir.Constant(vector, None), address
    while getattr(start, "opname", "") in ("add", "sub"):
        start = start.operands[0]
    # Whether a page exists is found out slowly, also for no lane at all: of padding 4×5×194² it was three quarters.
    place = e.b.select(e.any(mask), place, pointer(e, start))
    return _from_memory(e, kind, e.call(_masked("load", vector), vector, place, align, mask, zero))


def load_first(e: Lanes, kind: str, address: Value, count: Value) -> Value:
    """The first ``count`` elements, 0 in the other lanes."""
    if masks_are_quick():
        return load_masked(e, kind, address, e.first(count))
    if not isinstance(count, ir.Constant):
        whole = e.b.icmp_signed(">=", count, ir.Constant(count.type, e.lanes))
        return e.either(whole, lambda: load(e, kind, address), lambda: _load_parts(e, kind, address, count))
    result = e.const(kind, 0)
    for start, size in _pieces(e, count.constant):
        part = _load_part(e, kind, _behind(e, address, start * BYTES[kind]), size)
        order = [e.lanes + lane - start if start <= lane < start + size else lane for lane in range(e.lanes)]
        result = e.shuffle(result, part, order)
    return result


def _load_part(e: Lanes, kind: str, place: Value, size: int) -> Value:
    """So many elements, in the first lanes of a vector."""
    part = e.b.load(place, typ=ir.VectorType(memory_type(kind), size), align=BYTES[kind])
    part = _from_memory(e, kind, part)
    return e.shuffle(part, part, [min(lane, size - 1) for lane in range(e.lanes)])


def _load_parts(e: Lanes, kind: str, address: Value, count: Value) -> Value:
    """The first of fewer elements than there are lanes, in parts of powers of two, the last and smallest one first."""
    result, size, count = e.const(kind, 0), 1, _positive(e, count)
    while size < e.lanes:

        def longer(size: int = size, behind: Value = result) -> Value:
            part = _load_part(e, kind, _behind_larger(e, address, count, size, BYTES[kind]), size)
            return e.shuffle(part, behind, [lane if lane < size else e.lanes + lane - size for lane in range(e.lanes)])

        def as_it_is(found: Value = result) -> Value:
            return found

        result = e.either(_has(e, count, size), longer, as_it_is)
        size *= 2
    return result


def _behind_larger(e: Lanes, address: Value, count: Value, size: int, nbytes: int) -> Value:
    """A pointer behind the parts of ``count`` elements, of ``nbytes`` each, that are larger than ``size``."""
    start = e.b.and_(count, ir.Constant(count.type, -2 * size))
    return e.b.gep(pointer(e, address), [e.b.mul(start, ir.Constant(count.type, nbytes))], source_etype=_BYTE)


def _positive(e: Lanes, count: Value) -> Value:
    none = ir.Constant(count.type, 0)
    return e.b.select(e.b.icmp_signed(">", count, none), count, none)


def _has(e: Lanes, count: Value, size: int) -> Value:
    return e.b.icmp_signed("!=", e.b.and_(count, ir.Constant(count.type, size)), ir.Constant(count.type, 0))


def _behind(e: Lanes, address: Value, nbytes: int) -> Value:
    """A pointer so many bytes behind an address."""
    start = pointer(e, address)
    return e.b.gep(start, [ir.Constant(I64, nbytes)], source_etype=_BYTE) if nbytes else start


def _pieces(e: Lanes, count: int) -> list[tuple[int, int]]:
    """Where parts of a vector's first ``count`` lanes start, and their sizes, powers of two."""
    found, start, count = [], 0, min(count, e.lanes)
    for size in (e.lanes >> shift for shift in range(e.lanes.bit_length())):
        if start + size <= count:
            found.append((start, size))
            start += size
    return found


def store(e: Lanes, address: Value, value: Value, mask: Value | None = None) -> Any:
    """Store all lanes, or those that are set in the mask; the instruction."""
    kept, place, align = to_memory(e, value), pointer(e, address), BYTES[e.kind(value)]
    if mask is None:
        return e.b.store(kept, place, align=align)
    return e.call(_masked("store", kept.type), ir.VoidType(), kept, place, ir.Constant(I32, align), mask)


def store_first(e: Lanes, address: Value, value: Value, count: Value) -> None:
    """Store the first ``count`` lanes.

    Where narrowing to a mask of one lane is folded into the store, LLVM 22 stores that lane as wide as it was before,
    over what follows it: one lane goes by itself. So it does where the count is known: of such masked stores of
    constants, in loops that it has unrolled, LLVM compares all again at each one (600 took 79 s).
    """
    kind = e.kind(value)
    if isinstance(count, ir.Constant) and count.constant == 1:
        _store_first_lane(e, address, value)
    elif isinstance(count, ir.Constant) and not masks_are_quick():
        kept = to_memory(e, value)
        for start, size in _pieces(e, count.constant):
            part = e.shuffle(kept, kept, range(start, start + size))
            e.b.store(part, _behind(e, address, start * BYTES[kind]), align=BYTES[kind])
    elif not masks_are_quick():
        whole = e.b.icmp_signed(">=", count, ir.Constant(count.type, e.lanes))
        with e.b.if_else(whole) as (all_of_them, some):
            with all_of_them:
                store(e, address, value)
            with some:
                _store_parts(e, address, value, count)
    elif kind == "b1" or kind in FLOATS or BYTES[kind] == 8:
        store(e, address, value, e.first(count))
    else:
        with e.b.if_else(e.b.icmp_signed("==", count, ir.Constant(count.type, 1))) as (single, several):
            with single:
                _store_first_lane(e, address, value)
            with several:
                store(e, address, value, e.first(count))


def _store_parts(e: Lanes, address: Value, value: Value, count: Value) -> None:
    """Store the first of fewer lanes than there are, in parts of powers of two, the largest one first."""
    kept, size, count = to_memory(e, value), e.lanes // 2, _positive(e, count)
    nbytes = BYTES[e.kind(value)]
    while size:
        there = _has(e, count, size)
        with e.b.if_then(there):
            place = _behind_larger(e, address, count, size, nbytes)
            e.b.store(e.shuffle(kept, kept, range(size)), place, align=nbytes)
        rest = e.shuffle(kept, kept, [(lane + size) % e.lanes for lane in range(e.lanes)])
        kept, size = e.b.select(there, rest, kept), size // 2


def _store_first_lane(e: Lanes, address: Value, value: Value) -> None:
    lane = e.b.extract_element(to_memory(e, value), ir.Constant(I32, 0))
    e.b.store(lane, pointer(e, address), align=BYTES[e.kind(value)])


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
