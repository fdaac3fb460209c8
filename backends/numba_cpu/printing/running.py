"""Printed kernels for running sums, products and extremes: what is combined so far stays in registers.

Rows side by side are lanes of vectors, which go down an axis together. A row on its own is combined within each vector
first, by steps that double (Hillis & Steele 1986), unless that would round otherwise: then it goes element by element,
and several rows take turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat_backends.numba_cpu.printing.accumulators import FUNCTION, identity_of
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.printing.scopes import kind_of
from eqsat_backends.numba_cpu.printing.source import Module, address
from eqsat_backends.numba_cpu.target import Target

REGISTERS, ROWS, WITHIN = 8, 4, 16
"""Vectors that go down an axis together; rows that take turns, for an addition of floats takes three or four cycles;
lanes that are combined within a vector, at most: twice as many take one more step. Tuned on a Zen 4."""


def emit(values: Sequence[Node], target: Target) -> Emitted | None:
    """The printed module of ``Op.running``: operand 0 is its result, operand 1 the array. None for anything else."""
    (node, *others), dtype = values, values[0].dtype
    combine, axis = OPS[node.op].running, node.attrs
    if others or not combine or node.inputs[0].op != "input" or dtype.is_half or not node.type.size:
        return None
    assert isinstance(axis, int)
    outer, steps, inner = math.prod(node.shape[:axis]), node.shape[axis], math.prod(node.shape[axis + 1 :])
    size, native, fn = dtype.itemsize, target.lanes(dtype.bits), FUNCTION[combine]
    identity = -0.0 if combine == "sum" and dtype.is_float else identity_of(combine, dtype)
    row, lines = steps * inner * size, ["def running(args, tid, nt):", "    y = word(args, 0)", "    x = word(args, 1)"]

    def walk(count: int, start: str, lanes: int, *loops: tuple[str, int], rows: int = 1, how: str = "") -> None:
        """``count`` parts, each of ``rows``. ``loops``: positions, and how many lanes if not all. ``how``: within."""
        type, pad = f"{kind_of(dtype)}x{lanes}", " " * 12
        lines.extend((f"    for part in range(tid, {count}, nt):", f"        at = {start}"))
        lines.extend(f"        c{k} = splat_{type}({identity})" for k in range(rows))
        for positions, some in loops:
            n, also = ("n", f", {some}") if some else ("", "")
            lines.append(f"        for i in range({positions}):")
            for k in range(rows):
                to, source = (address(f"{array} + i", (1, str(k * row))) for array in "yx")
                lines.append(f"{pad}v{k} = {how}(load{n}_{type}({source}{also}))")
                lines.append(f"{pad}store{n}({to}, {fn}(c{k}, v{k}){also})")
                lines.append(f"{pad}c{k} = {fn}(c{k}, {'last' if how else ''}(v{k}))")

    down = f"at, at + {row}, {inner * size}"
    if inner > 1:
        whole, rest = divmod(inner, width := REGISTERS * native)
        lanes = 1 << (rest - 1).bit_length()
        if whole:
            walk(outer * whole, f"part // {whole} * {row} + part % {whole} * {width * size}", width, (down, 0))
        if rest:
            walk(outer, f"part * {row} + {whole * width * size}", lanes, (down, rest % lanes))
    elif dtype.is_float and combine in ("sum", "prod"):
        if outer >= ROWS:
            walk(outer // ROWS, f"part * {ROWS * row}", 1, (down, 0), rows=ROWS)
        if outer % ROWS:
            walk(outer % ROWS, f"(part + {outer // ROWS * ROWS}) * {row}", 1, (down, 0))
    else:
        lanes = min(WITHIN, native, 1 << (steps - 1).bit_length())
        end, block = steps // lanes * lanes * size, lanes * size
        loops = [(f"at, at + {end}, {block}", 0), (f"at + {end}, at + {row}, {block}", steps % lanes)]
        walk(outer, f"part * {row}", lanes, *loops[: 2 if end < row else 1], how=f"running_{combine}")
    source = Module(f"running {combine} of {node.type} along axis {axis}.").render("\n".join([*lines, ""]))
    return Emitted(source, ("running",))
