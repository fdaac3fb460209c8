"""Vectors of lanes at LLVM level: the small set of operations that elementwise functions are written in.

Everything here works on LLVM values through an IR builder; no Numba. A value's kind is read off its LLVM
type: ``f16`` to ``f64``, ``i8`` to ``i64``, ``u8`` to ``u64``, or ``b1`` (a mask: one bit a lane). Arithmetic carries
no fast-math flags, so results do not depend on the compiler's taste.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llvmlite import ir

from eqsat.cost.machine import vector_limit
from eqsat.ir.types import STORED, DType, bfloat16
from eqsat_backends.numba_cpu.vectors.flow import I32, Flow
from eqsat_backends.numba_cpu.vectors.permission import matrix_registers_allowed

Value = Any
"""An LLVM value (llvmlite has no types to offer)."""


class Unsigned(ir.IntType):  # type: ignore[misc]
    """An integer type that LLVM does not tell from a signed one, and equals it."""

    def __new__(cls, bits: int) -> Unsigned:
        made: Unsigned = object.__new__(cls)
        made.width = bits
        return made


class Bfloat(Unsigned):
    """The bits of a bfloat16: LLVM's own type is rounded by an instruction that has no subnormal numbers."""


KIND = {d.name: "b1" if d.kind == "bool" else "bf16" if d == bfloat16 else f"{d.name[0]}{d.bits}" for d in STORED}
"""NumPy's name of an element type -> ours."""
FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}


def _element(dtype: DType) -> Any:
    kind = KIND[dtype.name]
    if kind in FLOATS:
        return FLOATS[kind]
    made = Bfloat if dtype == bfloat16 else Unsigned if kind[0] == "u" else ir.IntType
    return made(1 if kind == "b1" else dtype.bits)


ELEMENTS: dict[str, Any] = {KIND[d.name]: _element(d) for d in STORED}
BYTES = {KIND[d.name]: d.itemsize for d in STORED}
"""Bytes of one element in memory."""
EACH = (2, 4, 8)
"""Vectors whose lanes may be combined side by side, see :meth:`Lanes.across_each`."""

_KINDS = {(type(element), str(element)): kind for kind, element in ELEMENTS.items()}


_WIDER_THAN = {
    256: ("avx512", "avx10", "amx"),
    128: ("avx", "fma", "f16c", "vaes", "vpclmul", "xop", "sha512", "sm3", "sm4"),
}
"""How the names of x86 extensions begin that need registers wider than so many bits, or the encodings of such."""


@functools.cache
def host_features() -> Mapping[str, bool]:
    """What LLVM knows of this machine's instruction-set extensions, without those past ``EQSAT_VECTOR_BITS``, and those
    that the system does not let this process use."""
    import llvmlite.binding as llvm

    wider = tuple(name for bits, names in _WIDER_THAN.items() if vector_limit() <= bits for name in names)
    found = llvm.get_host_cpu_features().items()
    if any(present and name.startswith("amx") for name, present in found) and not matrix_registers_allowed():
        wider = (*wider, "amx")
    return {name: bool(present) and not name.startswith(wider) for name, present in found}


@functools.cache
def cpu_features() -> frozenset[str]:
    """Instruction-set extensions of this machine, in LLVM's spelling (``avx512f``, ``fma``, …)."""
    return frozenset(name for name, present in host_features().items() if present)


def native_lanes(bits: int = 32) -> int:
    """Lanes of ``bits`` bits in this machine's widest vector register: 16, 8 or 4 for 32 bits."""
    features = cpu_features()
    width = 512 if "avx512f" in features and "avx512dq" in features else 256 if "avx2" in features else 128
    return width // bits


def vector_registers() -> int:
    """Vector registers of this machine."""
    import llvmlite.binding as llvm

    many = "avx512f" in cpu_features() or llvm.get_process_triple().startswith(("aarch64", "arm64"))
    return 32 if many else 16


def masks_are_quick() -> bool:
    """Whether masked instructions are as quick as others: those of AVX2 take up to twelve times as long (Zen)."""
    return "avx512f" in cpu_features()


class Lanes(Flow):
    """An IR builder for vectors of ``lanes`` lanes."""

    def __init__(self, builder: Any, lanes: int) -> None:
        super().__init__(builder)
        self.lanes = lanes

    # types and constants

    def type(self, kind: str) -> Any:
        return ir.VectorType(ELEMENTS[kind], self.lanes)

    def kind(self, value: Value) -> str:
        element = value.type.element
        return _KINDS[type(element), str(element)]

    def const(self, kind: str, number: float | int) -> Value:
        """The same number in every lane."""
        element = ELEMENTS[kind]
        return ir.Constant(self.type(kind), [ir.Constant(element, number)] * self.lanes)

    def like(self, value: Value, number: float | int) -> Value:
        kind = self.kind(value)
        return self.const(kind, float(number) if kind in FLOATS else int(number))

    def iota(self, kind: str = "i32") -> Value:
        """0, 1, 2, …"""
        return ir.Constant(self.type(kind), [ir.Constant(ELEMENTS[kind], i) for i in range(self.lanes)])

    def splat(self, scalar: Value) -> Value:
        vector = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), [ir.Constant(I32, i) for i in lanes])
        return self.b.shuffle_vector(a, b, mask)

    # calls

    def call(self, name: str, result: Any, *args: Value) -> Value:
        """Call the function ``name`` (an LLVM intrinsic or one of libm), declared on first use."""
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.b.call(function, args)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """``llvm.name.vNkind``, overloaded on the type of its first argument, which is also its result."""
        return self.call(f"llvm.{name}.v{self.lanes}{self.kind(args[0])}", args[0].type, *args)

    def by_lane(self, function: Callable[..., Value], *vectors: Value) -> Value:
        """Apply a scalar function lane by lane."""
        result = None
        for i in range(self.lanes):
            lane = ir.Constant(I32, i)
            scalar = function(*(self.b.extract_element(v, lane) for v in vectors))
            if result is None:
                result = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
            result = self.b.insert_element(result, scalar, lane)
        return result

    def libm(self, name: str, *vectors: Value) -> Value:
        """The C library's function, lane by lane (``name`` without the ``f`` of the float32 form)."""
        element = vectors[0].type.element
        symbol = name + "f" if self.kind(vectors[0]) == "f32" else name
        return self.by_lane(lambda *scalars: self.call(symbol, element, *scalars), *vectors)

    # arithmetic

    def is_float(self, value: Value) -> bool:
        return self.kind(value) in FLOATS

    def is_signed(self, value: Value) -> bool:
        return self.kind(value)[0] == "i"

    def add(self, a: Value, b: Value) -> Value:
        return self.b.fadd(a, b) if self.is_float(a) else self.b.add(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.b.fsub(a, b) if self.is_float(a) else self.b.sub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.b.fmul(a, b) if self.is_float(a) else self.b.mul(a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.b.fdiv(a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a·b + c`` with one rounding."""
        return self.intrinsic("fma", a, b, c)

    def madd(self, a: Value, b: Value, c: Value) -> Value:
        """``a·b + c`` with one rounding where the machine has it, else two."""
        return self.intrinsic("fmuladd", a, b, c)  # which never calls a library

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        """``c[0] + c[1]·x + …`` by Horner's rule."""
        result = self.like(x, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.madd(result, x, self.like(x, c))
        return result

    # bits

    def bits(self, value: Value) -> Value:
        """The bits of floats as integers of the same width."""
        return self.b.bitcast(value, self.type("i32" if self.kind(value) == "f32" else "i64"))

    def floats(self, bits: Value) -> Value:
        """The floats with these bits."""
        return self.b.bitcast(bits, self.type("f32" if self.kind(bits) == "i32" else "f64"))

    def abs(self, x: Value) -> Value:
        if self.is_float(x):
            return self.intrinsic("fabs", x)
        if not self.is_signed(x):
            return x
        return self.select(self.compare("<", x, self.like(x, 0)), self.b.sub(self.like(x, 0), x), x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def has_lookup(self, x: Value) -> bool:
        """Whether :meth:`lookup` of values like ``x`` is an instruction, for tables of two registers."""
        return self.lanes % (64 // BYTES[self.kind(x)]) == 0 and "avx512f" in cpu_features()

    def lookup(self, table: Sequence[float], index: Value) -> Value:
        """Entries of a table of 32 float32 or 16 float64, chosen by the low bits of each lane of ``index``."""
        kind = "f32" if self.kind(index) == "i32" else "f64"
        entries, half = [ir.Constant(ELEMENTS[kind], number) for number in table], len(table) // 2
        if not self.has_lookup(index):
            index = self.b.and_(index, self.like(index, len(table) - 1))
            place, zero = self._constant(entries), ir.Constant(I32, 0)
            return self.by_lane(lambda lane: self.b.load(self.b.gep(place, [zero, lane], inbounds=True)), index)
        low, high = (
            ir.Constant(ir.VectorType(ELEMENTS[kind], half), part) for part in (entries[:half], entries[half:])
        )
        name = f"llvm.x86.avx512.vpermi2var.{'ps' if kind == 'f32' else 'pd'}.512"
        return self.join([self.call(name, low.type, low, part, high) for part in self.chunks(half, index)])

    def _constant(self, entries: Sequence[Value]) -> Value:
        """Where these numbers lie in the module."""
        array = ir.Constant(ir.ArrayType(entries[0].type, len(entries)), list(entries))
        name = "table." + hashlib.sha256(str(array).encode()).hexdigest()[:16]
        found = self.b.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(self.b.module, array.type, name)
            found.initializer, found.global_constant, found.linkage = array, True, "internal"
        return found

    # comparison and choice

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """A mask. On floats every comparison with NaN is false, but ``!=``, which is true."""
        if self.is_float(a):
            return self.b.fcmp_unordered(op, a, b) if op == "!=" else self.b.fcmp_ordered(op, a, b)
        return self.b.icmp_signed(op, a, b) if self.is_signed(a) else self.b.icmp_unsigned(op, a, b)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.b.select(mask, a, b)

    def is_nan(self, x: Value) -> Value:
        return self.b.fcmp_unordered("uno", x, x)

    def not_(self, mask: Value) -> Value:
        return self.b.xor(mask, self.const("b1", 1))

    def extremum(self, name: str, a: Value, b: Value) -> Value:
        """``max`` or ``min`` of two vectors of floats in one instruction: ``b`` where either is NaN.

        Spelled as comparison and choice, LLVM would merge it with a test for NaN around it, into twice the work.
        """
        kind, features = self.kind(a), cpu_features()
        for bits, extension in ((512, "avx512f"), (256, "avx")):
            native = bits // 8 // BYTES[kind]
            if extension not in features or self.lanes % native:
                continue
            suffix = ("ps" if kind == "f32" else "pd") + f".{bits}"
            rounding = [ir.Constant(I32, 4)] if bits == 512 else []
            pieces = zip(self.chunks(native, a), self.chunks(native, b), strict=True)
            instruction = f"llvm.x86.{'avx512' if bits == 512 else 'avx'}.{name}.{suffix}"
            return self.join([self.call(instruction, x.type, x, y, *rounding) for x, y in pieces])
        return self.select(self.compare(">" if name == "max" else "<", a, b), a, b)

    def at_least(self, x: Value, bound: float) -> Value:
        """``max(x, bound)``; NaN stays (one instruction: x86 min and max return their second operand on NaN)."""
        limit = self.like(x, bound)
        return self.select(self.b.fcmp_ordered(">", limit, x), limit, x)

    def at_most(self, x: Value, bound: float) -> Value:
        """``min(x, bound)``; NaN stays."""
        limit = self.like(x, bound)
        return self.select(self.b.fcmp_ordered("<", limit, x), limit, x)

    def any(self, mask: Value) -> Value:
        """One bit: whether any lane is set."""
        word = self.b.bitcast(mask, ir.IntType(self.lanes))
        return self.b.icmp_unsigned("!=", word, ir.Constant(ir.IntType(self.lanes), 0))

    def usually(self, usual: Value, plain: Callable[[], Value], careful: Callable[[], Value]) -> Value:
        """What ``plain`` makes where all lanes are ``usual`` (a mask); else, for all of them, what ``careful`` does."""
        return self.either(self.any(self.not_(usual)), careful, plain, likely=False)

    def either(
        self,
        condition: Value,
        make: Callable[[], Value],
        otherwise: Callable[[], Value],
        likely: bool | None = None,
    ) -> Value:
        """What ``make`` makes if the condition holds, else ``otherwise``. ``likely``: whether it mostly holds."""
        found = []
        with self.b.if_else(condition, likely=likely) as branches:
            for branch, one in zip(branches, (make, otherwise), strict=True):
                with branch:
                    found.append((one(), self.b.block))
        result = self.b.phi(found[0][0].type)
        for value, block in found:
            result.add_incoming(value, block)
        return result

    def first(self, count: Value) -> Value:
        """The mask of the first ``count`` (i64) lanes."""
        narrow = self.b.trunc(count, I32)
        return self.b.icmp_signed("<", self.iota("i32"), self.splat(narrow))

    # conversion

    def cast(self, value: Value, kind: str) -> Value:
        """To another kind as C does, by way of wider types, in which they wrap; ``b1``: other than 0, as NaN is."""
        source, target = self.kind(value), self.type(kind)
        if source == kind:
            return value
        if "bf16" in (source, kind):
            if source == "bf16":
                return self.cast(self._from_bfloat(value), kind)
            return self._to_bfloat(self.cast(value, "f32"))
        if kind == "b1":
            value = self.cast(value, "f32") if source == "f16" else value  # LLVM may call a function to compare halves
            return self.compare("!=", value, self.like(value, 0))
        if source in FLOATS and kind in FLOATS:
            if {source, kind} == {"f64", "f16"}:
                return self.cast(self._to_odd(value) if kind == "f16" else self.cast(value, "f32"), kind)
            if "f16" in (source, kind) and not cpu_features() & {"f16c", "neon"}:
                return self._from_half(value) if source == "f16" else self._to_half(value)
            return self.b.fpext(value, target) if BYTES[kind] > BYTES[source] else self.b.fptrunc(value, target)
        if "f16" in (source, kind) or (source in FLOATS and (BYTES[kind] < 4 or kind == "u32")):
            wider = "f32" if "f16" in (source, kind) else "i64" if kind == "u32" else "i32"
            return self.cast(self.cast(value, wider), kind)
        if source in FLOATS:
            number = self.b.fptosi(value, target)
            if kind != "u64":
                return number
            half = self.like(value, 2.0**63)
            rest = self.b.xor(self.b.fptosi(self.b.fsub(value, half), target), self.like(number, -(2**63)))
            return self.select(self.compare(">=", value, half), rest, number)  # 0 from 2^64 on, as compilers for x86 do
        if kind in FLOATS:
            return self.b.sitofp(value, target) if source[0] == "i" else self.b.uitofp(value, target)
        if BYTES[source] == BYTES[kind] and source != "b1":
            return self.b.or_(self.const(kind, 0), value)  # the same bits, of the type that comes first
        if source != "b1" and BYTES[source] > BYTES[kind]:
            return self.b.trunc(value, target)
        return self.b.sext(value, target) if source[0] == "i" else self.b.zext(value, target)

    def _from_bfloat(self, value: Value) -> Value:
        """Bfloat16 as float32, of which it is the upper half."""
        wide = self.b.zext(value, self.type("i32"))
        return self.floats(self.b.shl(wide, self.like(wide, 16)))

    def _to_bfloat(self, value: Value) -> Value:
        """Float32 as bfloat16, halves to even; NaN keeps its sign."""
        bits = self.bits(value)
        upper = self.b.lshr(bits, self.like(bits, 16))
        odd = self.b.and_(upper, self.like(bits, 1))
        near = self.b.lshr(self.b.add(bits, self.b.add(odd, self.like(bits, 0x7FFF))), self.like(bits, 16))
        quiet = self.b.or_(self.b.and_(upper, self.like(bits, 0x8000)), self.like(bits, 0x7FC0))
        return self.b.trunc(self.select(self.is_nan(value), quiet, near), self.type("bf16"))

    def _to_odd(self, value: Value) -> Value:
        """Float64 as float32, to the odd neighbour where it is between two: rounded again, it is rounded once."""
        near = self.cast(value, "f32")
        back, bits = self.cast(near, "f64"), self.bits(near)
        less = self.b.sub(bits, self.b.zext(self.compare(">", self.abs(back), self.abs(value)), bits.type))
        inexact = self.b.fcmp_ordered("!=", back, value)
        return self.floats(self.select(inexact, self.b.or_(less, self.like(bits, 1)), bits))

    def _from_half(self, value: Value) -> Value:
        """Float16 as float32 where no instruction does it: the bits as a float32, scaled."""
        half = self.b.zext(self.b.bitcast(value, self.type("i16")), self.type("i32"))
        size = self.b.shl(self.b.and_(half, self.like(half, 0x7FFF)), self.like(half, 13))
        scaled = self.bits(self.mul(self.floats(size), self.const("f32", 2.0**112)))
        special = self.compare(">=", size, self.like(half, 0x7C00 << 13))
        scaled = self.select(special, self.b.or_(size, self.like(half, 0x7F800000)), scaled)
        return self.floats(
            self.b.or_(scaled, self.b.shl(self.b.and_(half, self.like(half, 0x8000)), self.like(half, 16)))
        )

    def _to_half(self, value: Value) -> Value:
        """Float32 as float16, halves to even, where no instruction does it; sums with 1/2 round what is subnormal."""
        size, half = self.bits(self.abs(value)), self.const("f32", 0.5)
        odd = self.b.and_(self.b.lshr(size, self.like(size, 13)), self.like(size, 1))
        near = self.b.add(size, self.b.add(odd, self.like(size, 0xFFF - (112 << 23))))
        near = self.b.lshr(near, self.like(size, 13))
        small = self.b.sub(self.bits(self.add(self.floats(size), half)), self.bits(half))
        near = self.select(self.compare("<", size, self.like(size, 0x38800000)), small, near)
        near = self.select(self.compare(">", size, self.like(size, 0x477FEFFF)), self.like(size, 0x7C00), near)
        near = self.select(self.is_nan(value), self.like(size, 0x7E00), near)
        sign = self.b.and_(self.b.lshr(self.bits(value), self.like(size, 16)), self.like(size, 0x8000))
        return self.b.bitcast(self.b.trunc(self.b.or_(near, sign), self.type("i16")), self.type("f16"))

    # all lanes with one another

    def across(self, combine: Callable[[Value, Value], Value], value: Value) -> Value:
        """Combine all lanes pairwise; the result in every lane. ``combine`` must be commutative."""
        step = self.lanes // 2
        while step:
            other = self.shuffle(value, value, [i ^ step for i in range(self.lanes)])
            value = combine(value, other)
            step //= 2
        return value

    def across_each(self, combine: Callable[[Lanes, Value, Value], Value], rows: Sequence[Value]) -> Value:
        """Combine all lanes of each row pairwise, as :meth:`across` does; row r's result is in lane r, for a start.

        Halves down to registers of 128 bits, across which no shuffle goes; from there on two rows share a vector. There
        are a power of two of rows, as many as lanes at most. What is in the other lanes is undefined.
        """
        e, narrow = self, list(rows)
        while e.lanes * BYTES[self.kind(rows[0])] > 16:
            half = Lanes(self.b, e.lanes // 2)
            narrow, e = [combine(half, *e.chunks(half.lanes, v)) for v in narrow], half
        segment = e.lanes
        while segment > 1:
            near = [i for i in range(e.lanes) if i % segment < segment // 2]
            far = [i + segment // 2 for i in near]
            pairs = [(v, v, 0) for v in narrow] if len(narrow) == 1 else [(a, b, e.lanes) for a, b in _twos(narrow)]
            narrow = [
                combine(e, *(e.shuffle(a, b, [*half, *(i + behind for i in half)]) for half in (near, far)))
                for a, b, behind in pairs
            ]
            segment //= 2
        made = self.join(narrow)
        return self.shuffle(made, made, [min(i, made.type.count - 1) for i in range(self.lanes)])

    def transposed(self, rows: list[Value]) -> list[Value]:
        """As many rows as there are lanes, transposed by perfect shuffles.

        Of the first half of the rows with the second, once per bit of a lane number.
        """
        half = self.lanes // 2
        zips = [[lane for i in range(half) for lane in (i + at, i + at + self.lanes)] for at in (0, half)]
        for _ in range(self.lanes.bit_length() - 1):
            rows = [self.shuffle(rows[i], rows[i + half], order) for i in range(half) for order in zips]
        return rows

    def chunks(self, size: int, value: Value) -> list[Value]:
        """The vector cut into pieces of ``size`` lanes."""
        return [self.shuffle(value, value, range(i, i + size)) for i in range(0, self.lanes, size)]

    def join(self, parts: list[Value]) -> Value:
        """Pieces of equal size, put together again."""
        while len(parts) > 1:
            size = parts[0].type.count
            parts = [self.shuffle(a, b, range(2 * size)) for a, b in _twos(parts)]
        return parts[0]


def _twos(values: Sequence[Value]) -> Iterator[tuple[Value, Value]]:
    """An even number of values by twos."""
    return zip(values[::2], values[1::2], strict=True)
