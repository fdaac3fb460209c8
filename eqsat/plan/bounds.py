"""How large scores may be: a bound by the largest elements of a product's factors, which kernels find beforehand.

Every element of ``a @ b`` sums so many products, each at most ``P = max|a| · max|b|`` in magnitude; what is made of it
by constants is at most ``gain·P + offset``. The maxima are NaN or infinite where an element is, so one comparison of
P tells that nothing is NaN, infinite or larger than asked for. That costs reading both factors once, not their product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eqsat.ir.axes import map_strides, normalized
from eqsat.ir.kernel import Acc, Call, Expr, FromStage, Kernel, KernelGroup, Literal, Load, Operand, Stage, walk
from eqsat.ir.types import bool_, finfo, float64, int64
from eqsat.plan.stages import depends_on, trim

HEADROOM = 4.0
"""How often a bound goes into the greatest finite number at least: far more than rounding adds."""
LONGEST = 1 << 20
"""Terms at most of sums that are bounded: each rounding adds 2⁻²⁴ of a sum in float32, so all of them 7 %."""


@dataclass(frozen=True)
class Bound:
    """At most ``gain·P + offset`` in magnitude."""

    gain: float
    offset: float

    def most(self, limit: float) -> float:
        """The P up to which this is at most ``limit``; negative where it never is."""
        if self.offset > limit:
            return -1.0
        return (limit - self.offset) / self.gain if self.gain else math.inf


class Scores:
    """Bounds of expressions of one contraction's results.

    ``product``: the stage whose factors P is of. ``most``: the P below which every expression that was bounded, and
    all it is made of, is finite.
    """

    def __init__(self, group: KernelGroup, known: Callable[[int], np.ndarray | None]) -> None:
        self.group = group
        self.known = known
        self.product: Stage | None = None
        self.most = math.inf

    def bound(self, expr: Expr, stage: Stage) -> Bound | None:
        """The bound of an expression in a stage, None where there is none of this form."""
        found = self._bound(expr, stage)
        if found is None or not math.isfinite(found.gain) or not math.isfinite(found.offset):
            return None
        if expr.dtype.is_float:
            self.most = min(self.most, found.most(float(finfo(expr.dtype).max) / HEADROOM))
        return found

    def _bound(self, expr: Expr, stage: Stage) -> Bound | None:
        match expr:
            case Literal(value, _):
                return Bound(0.0, abs(float(value))) if math.isfinite(value) else None
            case Acc():
                kernel = stage.kernel
                terms = math.prod(kernel.extents[kernel.parallel :])
                if not kernel.is_contraction or not 0 < terms <= LONGEST or self.product not in (None, stage):
                    return None
                self.product = stage
                return Bound(float(terms), 0.0)
            case Load(operand, _, _, _, ()):
                source = stage.sources[operand]
                if isinstance(source, FromStage):
                    maker = self.group.stages[source.stage]
                    made = maker.kernel
                    return self.bound(made.body if made.combine is None else made.epilogue, maker)
                values = self.known(source)
                largest = math.nan if values is None or not values.size else float(np.abs(values).max())
                return Bound(0.0, largest) if math.isfinite(largest) else None
            case Call(fn, args, _, _):
                parts = [self.bound(a, stage) for a in args]
                match fn, parts:
                    case "neg" | "abs", [Bound() as a]:
                        return a
                    case "add" | "sub", [Bound() as a, Bound() as b]:
                        return Bound(a.gain + b.gain, a.offset + b.offset)
                    case "mul", [Bound() as a, Bound() as b] if not a.gain or not b.gain:
                        return Bound(a.gain * b.offset + b.gain * a.offset, a.offset * b.offset)
                    case "div", [Bound() as a, Bound() as b] if isinstance(args[1], Literal) and b.offset:
                        return Bound(a.gain / b.offset, a.offset / b.offset)
        return None


def maxima(product: Stage, most: float, group: KernelGroup) -> tuple[KernelGroup, KernelGroup] | None:
    """Groups that find max|a|, and whether P is below ``most``: 0 where it is, 1 elsewhere and where it is NaN.

    Their operands are those of the product's group, then the maximum (float64) and the flag (int64). None where factors
    are more than maps of the group's operands.
    """
    assert isinstance(product.kernel.body, Call)
    found, flag, number = Operand(float64, 1), Operand(int64, 1), len(group.operands)
    wide = Call("cast", (Acc(product.kernel.body.dtype),), float64)
    made = []
    for place, factor in enumerate(product.kernel.body.args):
        stage = product
        source = product.sources[factor.operand] if isinstance(factor, Load) and not factor.gathers else None
        if isinstance(source, FromStage) and group.stages[source.stage].kernel.combine is None:
            stage = group.stages[source.stage]
            factor = stage.kernel.body
        kernel = stage.kernel
        if any(isinstance(e, Load) and isinstance(stage.sources[e.operand], FromStage) for e in walk(factor)):
            return None
        axes = [a for a in range(len(kernel.extents)) if depends_on(factor, a)]
        body = map_strides(factor, partial(_over, axes))
        other = Load(len(stage.sources), 0, (0,) * len(axes), float64)
        below = Call("lt", (Call("mul", (other, wide), float64), Literal(most, float64)), bool_)
        told = Call("where", (below, Literal(0, int64), Literal(1, int64)), int64)
        largest = Kernel(
            tuple(kernel.extents[a] for a in axes),
            0,
            "max",
            Call("abs", (body,), factor.dtype),
            told if place else wide,
            (*kernel.operands, found),
            flag if place else found,
            0,
            (),
        )
        reading = trim(Stage(normalized(largest), (*stage.sources, number), number + place))
        made.append(KernelGroup((reading,), 0, (*group.operands, found, flag), (number + place,)))
    return made[0], made[1]


def _over(axes: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(strides[a] for a in axes)
