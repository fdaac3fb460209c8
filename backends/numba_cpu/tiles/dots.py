"""Steps of register tiles over small types: dot products of a few neighbours, in one instruction or in several.

An element is 32 bits: neighbours along k, side by side, the first one lowest. Where the processor lacks the
instruction, others add the same numbers: integers wrap around at 32 bits either way, and nothing saturates in between.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from eqsat_backends.numba_cpu.vectors.lanes import Lanes, Value, cpu_features

NEEDS = {"uint8·int8": "avx512vnni", "int16·int16": "avx512vnni", "bfloat16·bfloat16": "avx512bf16"}
"""The extension that has an instruction for it."""

EXTENSIONS = {
    **dict.fromkeys(("uint8·int8", "int8·int8", "uint8·uint8"), "amx-int8"),
    "bfloat16·bfloat16": "amx-bf16",
}
"""What has registers of two axes that multiply an element type (see ``matrix``), in LLVM's spelling."""

STEPS = 16
"""Steps of k that such an instruction takes."""

WIDTH = 64
"""Bytes of a row of such a register."""

Step = Callable[[Lanes, Value, Value, Value], Value]
"""(lanes, element of a in every lane, elements of b, sums) -> sums."""


def step_of(element: str, signed_first: bool = False, native: bool = True) -> Step | None:
    """How tiles of an element type add to their sums; None where its numbers are multiplied as they are.

    ``signed_first``: the bytes of a are the signed ones. ``native``: use what the processor has for it.
    """
    fast = native and NEEDS.get(element) in cpu_features()
    if element == "bfloat16·bfloat16":
        return _bfloats if fast else _floats
    if element == "uint8·int8":
        quads = _vnni("vpdpbusd") if fast else _bytes(False, True)
        return (lambda e, a, b, sums: quads(e, b, a, sums)) if signed_first else quads
    if element in ("int8·int8", "uint8·uint8"):
        return _bytes(*[element == "int8·int8"] * 2)
    if element == "int16·int16":
        return _vnni("vpdpwssd") if fast else _pairs
    return None


def _vnni(name: str) -> Step:
    def step(e: Lanes, a: Value, b: Value, sums: Value) -> Value:
        return e.call(f"llvm.x86.avx512.{name}.{32 * e.lanes}", sums.type, sums, a, b)

    return step


_BFLOAT = type("Bfloat", (ir.Type,), {"_to_string": lambda self: "bfloat"})()


def _bfloats(e: Lanes, a: Value, b: Value, sums: Value) -> Value:
    """Of subnormal numbers nothing is added, nor is a sum one."""
    pairs = ir.VectorType(_BFLOAT, 2 * e.lanes)
    factors = (e.b.bitcast(x, pairs) for x in (a, b))
    return e.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * e.lanes}", sums.type, sums, *factors)


def _floats(e: Lanes, a: Value, b: Value, sums: Value) -> Value:
    """Bfloat16 as float32, multiplied and added one after the other."""
    a, b = e.bits(a), e.bits(b)
    for part, by in ((e.b.shl, e.like(a, 16)), (e.b.and_, e.like(a, -65536))):
        sums = e.intrinsic("fmuladd", e.floats(part(a, by)), e.floats(part(b, by)), sums)
    return sums


def _bytes(signed_a: bool, signed_b: bool) -> Step:
    """Bytes widened to 16 bits, the even ones apart from the odd ones."""

    def step(e: Lanes, a: Value, b: Value, sums: Value) -> Value:
        half = ir.VectorType(ir.IntType(16), 2 * e.lanes)
        eight = ir.Constant(half, [ir.Constant(half.element, 8)] * (2 * e.lanes))
        x, y = e.b.bitcast(a, half), e.b.bitcast(b, half)
        wide_a, wide_b = (e.b.ashr if signed else e.b.lshr for signed in (signed_a, signed_b))
        even = wide_a(e.b.shl(x, eight), eight), wide_b(e.b.shl(y, eight), eight)
        odd = wide_a(x, eight), wide_b(y, eight)
        return _pairs(e, *odd, _pairs(e, *even, sums))

    return step


def _pairs(e: Lanes, a: Value, b: Value, sums: Value) -> Value:
    """Signed numbers of 16 bits: products of 32 bits, added pair by pair."""
    half = ir.VectorType(ir.IntType(16), 2 * e.lanes)
    found = {16: ("avx512bw", "avx512.pmaddw.d.512"), 8: ("avx2", "avx2.pmadd.wd"), 4: ("sse2", "sse2.pmadd.wd")}
    feature, name = found.get(e.lanes, ("", ""))
    if feature in cpu_features():
        a, b = e.b.bitcast(a, half), e.b.bitcast(b, half)
        return e.b.add(sums, e.call(f"llvm.x86.{name}", sums.type, a, b))
    a, b, sixteen = e.b.bitcast(a, sums.type), e.b.bitcast(b, sums.type), e.like(sums, 16)
    low, high = ((e.b.ashr(x, sixteen), e.b.ashr(e.b.shl(x, sixteen), sixteen)) for x in (a, b))
    return e.b.add(sums, e.b.add(*(e.b.mul(p, q) for p, q in zip(low, high, strict=True))))


def last_width(tail: int, narrow: bool) -> int:
    """Bytes of a tile's last vector, by the options of ``fma_tile``."""
    return 4 * tail if tail else WIDTH // 2 if narrow else WIDTH
