"""The roofline of one kernel before it has a schedule: what extraction ranks programs by.

    seconds = max(compute, bytes / bandwidth) + OVERLAP · min(compute, bytes / bandwidth) + step

Bytes run at the bandwidth of the smallest cache level that holds everything the kernel touches: a tensor
of 200 KB that was just written is read from L2, not from memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from eqsat.cost.calibration import ELEMENTWISE, LANE_LOADS, NUMPY_CALL, OVERLAP
from eqsat.ir.node import Node, topological
from eqsat.ir.opaque import Result
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType

if TYPE_CHECKING:
    from eqsat.cost.machine import Machine


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates of all threads together.

    ``fma``: seconds of one multiply-add of one element at peak, by stored width in bits (32, 64).
    ``levels``: (capacity in bytes, bytes a second), smallest first; the last one is memory.
    ``step``: seconds of one more kernel: its call and the barrier after it.
    ``functions``: issue slots an element of measured elementwise functions, in place of the op table's cost.
    ``vector_bytes``: of a vector register; 0: lanes that stay empty are not counted.
    ``dots``: of element types of dot products, issue slots of a multiply-add of elements that take any but one.
    ``lane``: issue slots of one lane of a load whose lanes lie apart.
    """

    fma32: float
    fma64: float
    levels: tuple[tuple[float, float], ...]
    step: float
    functions: Mapping[str, float] = field(default_factory=dict)
    vector_bytes: int = 0
    dots: Mapping[str, float] = field(default_factory=dict)
    lane: float = LANE_LOADS

    def lanes(self, dtype: DType) -> int:
        """Elements of a vector."""
        return max(1, self.vector_bytes // dtype.itemsize)

    def apart(self, dtype: DType) -> float:
        """Slots of an element of a vector whose lanes are loaded one by one: each takes of a whole vector's time."""
        return self.lane * self.lanes(dtype)

    def slots(self, op: str) -> float:
        """Vector instructions of one element of an elementwise operator."""
        measured = self.functions.get(op)
        return OPS[op].cost if measured is None else measured

    def leaner(self, part: float) -> Roofline:
        """The same where computing takes that part of the time."""
        return replace(self, fma32=part * self.fma32, fma64=part * self.fma64)

    def compute(self, multiply_adds: float, slots: float, dtype: DType) -> float:
        """Seconds of that many multiply-adds of a contraction and vector instructions, counted per element."""
        rate = self.fma64 if dtype.bits == 64 else self.fma32
        return (multiply_adds + ELEMENTWISE * slots) * rate

    def move(self, nbytes: float) -> float:
        """Seconds to move the working set of a kernel once."""
        for capacity, bandwidth in self.levels:
            if nbytes <= capacity:
                return nbytes / bandwidth
        return nbytes / self.levels[-1][1]

    def seconds(self, multiply_adds: float, slots: float, nbytes: float, dtype: DType, steps: int = 1) -> float:
        """Predicted seconds of a kernel."""
        compute, move = self.compute(multiply_adds, slots, dtype), self.move(nbytes)
        longer, shorter = (compute, move) if compute > move else (move, compute)
        return longer + OVERLAP * shorter + steps * self.step


def opaque_slots(op: str, type: TensorType, attrs: object) -> float:
    """Vector instructions of an operator without a definition, on an operand of ``type``."""
    row = OPS[op]
    if row.running and isinstance(attrs, int):  # rows side by side do not wait for one another
        return max(1.0, row.cost / max(1, math.prod(type.shape[attrs + 1 :]))) * type.size
    axis = type.shape[attrs] if row.sorts and isinstance(attrs, int) else 2
    return row.cost * type.size * math.log2(max(2, axis))


def call_seconds(result: Result) -> float:
    """A result's share of the time that its call was measured to take."""
    return result.call.seconds / len(result.call.types)


def reference_seconds(value: Node, roofline: Roofline) -> float:
    """Predicted seconds of a value that NumPy computes operator by operator, on one thread (``roofline``'s)."""
    total = 0.0
    for node in topological([value]):
        row = OPS[node.op]
        if row.kind in ("source", "view"):
            continue
        if isinstance(node.attrs, Result):
            total += call_seconds(node.attrs)
            continue
        slots, multiply_adds = row.cost * node.type.size, 0.0
        if row.kind == "opaque":
            slots = opaque_slots(node.op, node.inputs[0].type, node.attrs)
        elif isinstance(node.attrs, Spec):
            a, b = node.inputs
            slots, multiply_adds = 0.0, float(math.prod(node.attrs.extents(a.shape, b.shape).values()))
        elif row.kind == "reduce":
            slots = float(node.inputs[0].type.size)
        moved = sum(n.type.nbytes for n in dict.fromkeys(node.inputs)) + node.type.nbytes
        total += NUMPY_CALL + roofline.seconds(multiply_adds, slots, moved, node.dtype)
    return total


def roofline_of(machine: Machine, threads: int = 1) -> Roofline:
    """The rates of a measured machine with ``threads`` threads at work."""
    threads = max(1, min(threads, machine.cores))
    fma32 = 2e-9 / machine.peak_gflops("float32", threads)
    fma64 = 2e-9 / machine.peak_gflops("float64", threads)
    levels = []
    for level in machine.levels:
        capacity = float(level.nbytes * (1 if level.shared else threads)) or math.inf
        levels.append((capacity, 1e9 * min(level.copy_gbs * threads, level.copy_gbs_all)))
    step = machine.step_us + (machine.barrier_us if threads > 1 else 0.0)
    # Functions are measured in float32 on one core; a slot there is one multiply-add at peak.
    slot = ELEMENTWISE * 2.0 / machine.peak_gflops("float32")
    functions = {name: max(1.0, ns / slot) for name, ns in machine.function_ns}
    return Roofline(fma32, fma64, tuple(levels), step * 1e-6, functions, machine.vector_bytes)
