"""The loops that the machine's figures are measured with, in LLVM IR, so that what runs is what is meant to run."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llvmlite import ir

from eqsat_backends.numba_cpu.compiling.objects import host, load_ir
from eqsat_backends.numba_cpu.vectors.elementwise import FUNCTIONS
from eqsat_backends.numba_cpu.vectors.lanes import I64, Lanes, cpu_features, native_lanes

__all__ = ["BROADCASTS", "ELEMENTS", "fma_chains", "functions", "loops", "registers"]

BROADCASTS = 8
"""Numbers that a round of the broadcasting loop copies to all lanes."""

ELEMENTS = 2048
"""Numbers that a run of an elementwise function takes."""


def registers() -> int:
    """Vector registers of this machine."""
    return 32 if "avx512f" in cpu_features() or host().triple.startswith(("aarch64", "arm64")) else 16


def fma_chains() -> int:
    """Independent sums that keep the pipelines full, and fit in the registers."""
    return 24 if registers() == 32 else 12


@functools.cache
def loops() -> dict[str, int]:
    """Addresses of ``empty``, ``fma4``, ``fma8`` (bytes an element), ``chain4``, ``broadcast``, ``read``, ``copy``."""
    text = "\n".join(
        (
            f'target triple = "{host().triple}"',
            _EMPTY,
            _fma_ir("fma4", "float", 4, fma_chains()),
            _fma_ir("fma8", "double", 8, fma_chains()),
            _fma_ir("chain4", "float", 4, 1),
            _broadcast_ir("broadcast"),
            _stream_ir("read", copy=False),
            _stream_ir("copy", copy=True),
        )
    )
    return _compiled(text, ("empty", "fma4", "fma8", "chain4", "broadcast", "read", "copy"))


@functools.cache
def functions(names: tuple[str, ...]) -> dict[str, int]:
    """Addresses of loops over ``ELEMENTS`` float32: array 1 becomes the function of array 0, in every argument."""
    module = ir.Module()
    module.triple = host().triple
    for name in names:
        _function_loop(module, name)
    return _compiled(str(module), names)


def _compiled(text: str, names: Sequence[str]) -> dict[str, int]:
    """Addresses of a module's functions; ``name`` is the function ``eqsat_probe_name``."""
    return load_ir(text, {name: f"eqsat_probe_{name}" for name in names})


def _function_loop(module: ir.Module, name: str) -> None:
    lanes = native_lanes(32)
    loop = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 3), f"eqsat_probe_{name}")
    entry, body, done = (loop.append_basic_block(label) for label in ("entry", "body", "done"))
    b = ir.IRBuilder(entry)
    table = b.inttoptr(loop.args[0], I64.as_pointer())
    source, target = (b.load(b.gep(table, [ir.Constant(I64, n)])) for n in (0, 1))
    b.branch(body)
    b.position_at_end(body)
    offset = b.phi(I64)
    offset.add_incoming(ir.Constant(I64, 0), entry)
    e = Lanes(b, lanes)
    vector = e.type("f32").as_pointer()
    x = b.load(b.inttoptr(b.add(source, offset), vector), align=4)
    value = FUNCTIONS[name].build(e, *[x] * FUNCTIONS[name].arity)
    b.store(value, b.inttoptr(b.add(target, offset), vector), align=4)
    following = b.add(offset, ir.Constant(I64, 4 * lanes))
    offset.add_incoming(following, b.block)
    b.cbranch(b.icmp_unsigned("<", following, ir.Constant(I64, 4 * ELEMENTS)), body, done)
    b.position_at_end(done)
    b.ret_void()


# The loops. Arguments of each: a table [array 0, array 1, parameters]; parameters are int64.


_EMPTY = """
define void @eqsat_probe_empty(i64 %args, i64 %tid, i64 %nt) {
  ret void
}"""

_HEAD = """
define void @eqsat_probe_{name}(i64 %args, i64 %tid, i64 %nt) {{
entry:
  %table = inttoptr i64 %args to ptr
  %a = load ptr, ptr %table
  %b.at = getelementptr i64, ptr %table, i64 1
  %b = load ptr, ptr %b.at
  %parameters.at = getelementptr i64, ptr %table, i64 2
  %parameters = load ptr, ptr %parameters.at
  %count = load i64, ptr %parameters
  %second.at = getelementptr i64, ptr %parameters, i64 1
  %second = load i64, ptr %second.at
"""


def _fma_ir(name: str, scalar: str, itemsize: int, chains: int) -> str:
    """``count`` rounds of ``chains`` independent multiply-adds: enough fill the pipelines, a single one shows latency.

    ``fmuladd``, as in kernels: without such an instruction a product and a sum, never a call of the C library.
    """
    lanes = native_lanes(8 * itemsize)
    vector = f"<{lanes} x {scalar}>"
    function = f"@llvm.fmuladd.v{lanes}f{8 * itemsize}"
    lines = [_HEAD.format(name=name)]
    lines.append(f"  %x = load {vector}, ptr %a, align {itemsize}")
    lines.append("  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]")
    for c in range(chains):
        lines.append(f"  %c{c} = phi {vector} [ {_splat(lanes, scalar, c)}, %entry ], [ %n{c}, %loop ]")
    for c in range(chains):
        lines.append(f"  %n{c} = call {vector} {function}({vector} %c{c}, {vector} %x, {vector} %x)")
    lines.append("  %i.next = add i64 %i, 1\n  %more = icmp ult i64 %i.next, %count")
    lines.append("  br i1 %more, label %loop, label %done\ndone:")
    for c in range(chains):
        lines.append(f"  %p{c} = getelementptr {vector}, ptr %b, i64 {c}")
        lines.append(f"  store {vector} %n{c}, ptr %p{c}, align {itemsize}")
    lines.append("  ret void\n}")
    if chains > 1:  # one declaration for all
        lines.append(f"declare {vector} {function}({vector}, {vector}, {vector})")
    return "\n".join(lines)


def _broadcast_ir(name: str) -> str:
    """``count`` rounds in which ``BROADCASTS`` numbers of a page of array 0 are copied to all lanes."""
    lanes = native_lanes(32)
    vector = f"<{lanes} x i32>"
    first = ", ".join(["i32 0"] * lanes)
    lines = [_HEAD.format(name=name)]
    lines.append("  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]")
    lines.extend(f"  %s{v} = phi {vector} [ zeroinitializer, %entry ], [ %n{v}, %loop ]" for v in range(BROADCASTS))
    lines.append(f"  %start = mul i64 %i, {BROADCASTS}\n  %wrapped = and i64 %start, 1023")
    lines.append("  %row = getelementptr i32, ptr %a, i64 %wrapped")
    for v in range(BROADCASTS):
        lines.append(f"  %p{v} = getelementptr i32, ptr %row, i64 {v}\n  %x{v} = load i32, ptr %p{v}, align 4")
        lines.append(f"  %e{v} = insertelement {vector} undef, i32 %x{v}, i32 0")
        lines.append(f"  %b{v} = shufflevector {vector} %e{v}, {vector} undef, <{lanes} x i32> <{first}>")
        lines.append(f"  %n{v} = xor {vector} %s{v}, %b{v}")
    lines.append("  %i.next = add i64 %i, 1\n  %more = icmp ult i64 %i.next, %count")
    lines.append("  br i1 %more, label %loop, label %done\ndone:")
    for v in range(BROADCASTS):
        lines.append(f"  %q{v} = getelementptr {vector}, ptr %b, i64 {v}\n  store {vector} %n{v}, ptr %q{v}, align 4")
    lines.append("  ret void\n}")
    return "\n".join(lines)


def _splat(lanes: int, scalar: str, value: int) -> str:
    return "<" + ", ".join([f"{scalar} {float(value):.1f}"] * lanes) + ">"


def _stream_ir(name: str, copy: bool) -> str:
    """Read, or copy, thread tid's slice of ``count`` blocks of eight vectors, ``second`` times over."""
    lanes = native_lanes(32)
    vector = f"<{lanes} x i32>"
    lines = [_HEAD.format(name=name)]
    lines.append("""  %lo.0 = mul i64 %count, %tid
  %lo = udiv i64 %lo.0, %nt
  %tid.1 = add i64 %tid, 1
  %hi.0 = mul i64 %count, %tid.1
  %hi = udiv i64 %hi.0, %nt
  %none = icmp uge i64 %lo, %hi
  br i1 %none, label %end, label %pass
pass:
  %r = phi i64 [ 0, %entry ], [ %r.next, %pass.end ]""")
    lines.extend(f"  %s{v} = phi {vector} [ zeroinitializer, %entry ], [ %n{v}, %pass.end ]" for v in range(8))
    lines.append("  br label %block\nblock:\n  %i = phi i64 [ %lo, %pass ], [ %i.next, %block ]")
    lines.extend(f"  %t{v} = phi {vector} [ %s{v}, %pass ], [ %n{v}, %block ]" for v in range(8))
    lines.append("  %first = mul i64 %i, 8")
    for v in range(8):
        lines.append(f"  %k{v} = add i64 %first, {v}\n  %p{v} = getelementptr {vector}, ptr %a, i64 %k{v}")
        lines.append(f"  %x{v} = load {vector}, ptr %p{v}, align 4")
        lines.append(f"  %n{v} = xor {vector} %t{v}, %x{v}")
        if copy:
            lines.append(f"  %q{v} = getelementptr {vector}, ptr %b, i64 %k{v}")
            lines.append(f"  store {vector} %x{v}, ptr %q{v}, align 4")
    lines.append("""  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %hi
  br i1 %more, label %block, label %pass.end
pass.end:
  %r.next = add i64 %r, 1
  call void asm sideeffect "", "~{memory}"()
  %again = icmp ult i64 %r.next, %second
  br i1 %again, label %pass, label %done
done:""")
    # The sums go to the parameter block, a vector per thread behind its first line, so that no read is dropped
    if not copy:
        for v in range(7):
            lines.append(f"  %u{v} = or {vector} %{'n0' if v == 0 else f'u{v - 1}'}, %n{v + 1}")
        lines.append("  %slot = add i64 %tid, 1\n  %sum = getelementptr [64 x i8], ptr %parameters, i64 %slot")
        lines.append(f"  store {vector} %u6, ptr %sum, align 4")
    lines.append("  br label %end\nend:\n  ret void\n}")
    return "\n".join(lines)
