"""Masked attention without its masked half: kernels get the domain that their mask lets through.

Where a mask known at compile time puts -inf into the scores, the maximum ignores them, their exponentials are 0
and so are their terms in every later sum. So a block of rows needs only the columns that some row of it may see:
half of them under a causal mask, a band under a sliding window. What it may see is bounded by affine functions of the
row, which are the tightest of a few slopes that leave out nothing of the mask; a mask that is no more than that is
computed, not loaded. Only one thing could tell the difference: 0 times a NaN or an infinity among the values left
out. So a kernel before looks for such values, and where there are any nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from eqsat.ir.interpret import evaluate_expr
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    FromStage,
    Guarded,
    Index,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
    Stage,
    map_expr,
    rewrite_kernel,
    walk,
)
from eqsat.ir.types import bool_, int64, row_major
from eqsat.plan.group import CLEAR, PlacedGroup, Price
from eqsat.plan.stages import depends_on, loads_of, trim

SLOPES = (0, 1, -1)
"""Columns by which bounds may move from one row to the next."""
LARGEST_MASK = 1 << 24
"""Elements of the largest masks that are looked at."""


@dataclass(frozen=True)
class _Masked:
    """Where the masked axis is: for every stage, its axis for columns (None: it has none). ``keep``: rows × columns."""

    columns: tuple[int | None, ...]
    keep: np.ndarray
    products: tuple[int, ...]


Value = Callable[[int], np.ndarray | None]
"""The value of a group's operand, if it is known."""


class _Analysis:
    """Which axes are columns, what is settled at masked ones, and which products may leave them out."""

    def __init__(self, group: KernelGroup, value: Value) -> None:
        self.group = group
        self.value = value
        self.rows = group.shared - 1
        self.columns: list[int | None] = [None] * len(group.stages)
        self.blanks: dict[int, float] = {}
        self.keep: np.ndarray | None = None
        self.products: list[int] = []

    def run(self) -> _Masked | None:
        if self.rows < 0 or not self._seed():
            return None
        assert self.keep is not None
        for number, stage in enumerate(self.group.stages):
            if not self._carry(number) or not self._settles(number, stage):
                return None
        return _Masked(tuple(self.columns), self.keep, tuple(self.products)) if self.products else None

    def _seed(self) -> bool:
        """Find the mask, and the columns of the stages its stage reads."""
        for number, stage in enumerate(self.group.stages):
            for root in (stage.kernel.body, stage.kernel.epilogue):
                for expr in walk(root):
                    found = self._mask(expr, stage)
                    if found is not None:
                        column, self.keep = found
                        self._back(number, column)
                        return True
        return False

    def _back(self, number: int, column: int) -> None:
        self.columns[number] = column
        stage = self.group.stages[number]
        for load in loads_of(stage.kernel):
            source = stage.sources[load.operand]
            if isinstance(source, FromStage) and load.strides[column]:
                maker = self.group.stages[source.stage].kernel
                pitches = row_major(maker.extents[: maker.parallel])
                if load.strides[column] in pitches:
                    self._back(source.stage, pitches.index(load.strides[column]))

    def _mask(self, expr: Expr, stage: Stage) -> tuple[int, np.ndarray] | None:
        """The columns' axis and what is kept, where an expression is -inf elsewhere by a mask that is known."""
        if not isinstance(expr, Call) or expr.fn != "where":
            return None
        condition, yes, no = expr.args
        kept = isinstance(no, Literal) and no.value == -math.inf
        if not kept and not (isinstance(yes, Literal) and yes.value == -math.inf):
            return None
        extents = stage.kernel.extents
        columns = [a for a in range(len(extents)) if a != self.rows and depends_on(condition, a)]
        if len(columns) != 1 or columns[0] < self.rows or extents[self.rows] * extents[columns[0]] > LARGEST_MASK:
            return None
        order = (self.rows, columns[0])
        buffers: dict[int, np.ndarray] = {}
        for e in walk(condition):
            if isinstance(e, Acc) or (isinstance(e, Load) and e.gathers):
                return None
            if isinstance(e, Load):
                source = stage.sources[e.operand]
                known = self.value(source) if isinstance(source, int) else None
                if known is None:
                    return None
                buffers[e.operand] = known.reshape(-1)

        def only(e: Expr) -> Expr:
            return replace(e, strides=tuple(e.strides[a] for a in order)) if isinstance(e, Load | Index) else e

        shape = (extents[order[0]], extents[order[1]])
        given = [buffers.get(n, np.zeros(0)) for n in range(len(stage.sources))]
        found = np.broadcast_to(evaluate_expr(map_expr(condition, only), shape, given, None), shape)
        return columns[0], found if kept else ~found

    def _carry(self, number: int) -> bool:
        """Find a stage's columns from those of what it reads; False where they are ambiguous."""
        stage = self.group.stages[number]
        kernel, found = stage.kernel, self.columns[number]
        for load in loads_of(kernel):
            source = stage.sources[load.operand]
            if not isinstance(source, FromStage) or self.columns[source.stage] is None:
                continue
            if load.offset or load.gathers:
                return False
            maker, column = self.group.stages[source.stage].kernel, self.columns[source.stage]
            assert column is not None
            if column >= maker.parallel:
                continue
            pitch = row_major(maker.extents[: maker.parallel])[column]
            axes = [a for a, s in enumerate(load.strides) if s == pitch and kernel.extents[a] == maker.extents[column]]
            if len(axes) != 1 or found not in (None, axes[0]):
                return False
            found = axes[0]
        self.columns[number] = found
        return True

    def _settles(self, number: int, stage: Stage) -> bool:
        """Whether a stage's other results are the same without the masked columns."""
        kernel, column = stage.kernel, self.columns[number]
        if column is None:
            return True
        if column < kernel.parallel:
            root = kernel.body if kernel.combine is None else kernel.epilogue
            settled = self._blank(root, stage, column)
            if settled is not None:
                self.blanks[number] = settled
            return stage.result is None
        if kernel.is_contraction and isinstance(kernel.body, Call):
            zero = [self._blank(f, stage, column) == 0.0 for f in kernel.body.args]
            other = kernel.body.args[zero.index(False)] if sum(zero) == 1 else None
            if isinstance(other, Load) and isinstance(stage.sources[other.operand], int) and not other.gathers:
                self.products.append(number)
                return True
            return False
        return (kernel.combine, self._blank(kernel.body, stage, column)) in (("max", -math.inf), ("sum", 0.0))

    def _blank(self, expr: Expr, stage: Stage, column: int) -> float | None:
        """The value of an expression at masked columns: -inf or 0, or None where it is not settled.

        0 stands for 0 unless the whole row is NaN.
        """
        match expr:
            case Load(operand, _, strides, _, _):
                source = stage.sources[operand]
                return self.blanks.get(source.stage) if isinstance(source, FromStage) and strides[column] else None
            case Call("where", _, _, _):
                found = self._mask(expr, stage)
                assert self.keep is not None
                same = found is not None and found[0] == column and np.array_equal(found[1], self.keep)
                return -math.inf if same else None
            case Call(fn, args, _, _):
                values = [self._blank(a, stage, column) for a in args]
                own = [self._own(a, stage) for a in args]
                match fn, values:
                    case "sub", [first, _] if first == -math.inf and own[1]:
                        return -math.inf
                    case "exp", [only] if only == -math.inf:
                        return 0.0
                    case "div", [first, _] if first == 0 and own[1] and not isinstance(args[1], Literal):
                        return 0.0
                    case "mul", [first, second] if (first == 0 and own[1]) or (second == 0 and own[0]):
                        return 0.0
                return None
            case _:
                return None

    def _own(self, expr: Expr, stage: Stage) -> bool:
        """Whether a value is one a row that is an infinity, or NaN, only where that makes the whole row NaN.

        So are the maximum and the sum of the row itself, and what is made of these alone.
        """
        match expr:
            case Literal(value, _):
                return math.isfinite(value)
            case Call("add" | "reciprocal" | "log", args, _, _):
                return all(self._own(a, stage) and not isinstance(a, Literal) for a in args)
            case Load(operand, _, _, _, ()):
                source = stage.sources[operand]
                if not isinstance(source, FromStage):
                    return False
                maker = self.group.stages[source.stage]
                column, kernel = self.columns[source.stage], maker.kernel
                if column is None:
                    return kernel.combine is None and self._own(kernel.body, maker)
                made = {e.fn for e in walk(kernel.epilogue) if isinstance(e, Call)}
                made |= {type(e).__name__ for e in walk(kernel.epilogue) if not isinstance(e, Call)}
                return column >= kernel.parallel and made <= {"Acc", "reciprocal", "log"}
        return False


@dataclass(frozen=True)
class _Limit:
    """``slope·row + offset``: the first column that a row may see, or, if ``upper``, the one after the last."""

    upper: bool
    slope: int
    offset: int

    def at(self, rows: int) -> np.ndarray:
        return self.slope * np.arange(rows) + self.offset

    def index(self, rank: int, row: int, column: int) -> Index:
        """At least 0 at the points of a kernel that the limit lets through."""
        strides = [0] * rank
        strides[row], strides[column] = (self.slope, -1) if self.upper else (-self.slope, 1)
        return Index(self.offset - 1 if self.upper else -self.offset, tuple(strides), int64)


def _limits(keep: np.ndarray) -> tuple[list[_Limit], bool]:
    """Limits of what rows see, and whether a mask says no more. Rows that see nothing have none."""
    rows, columns = keep.shape
    seeing = np.flatnonzero(keep.any(axis=1))
    found: list[_Limit] = []
    if not seeing.size:
        return found, False
    first, last = keep[seeing].argmax(axis=1), columns - keep[seeing][:, ::-1].argmax(axis=1)
    low, high = np.zeros(rows, np.int64), np.full(rows, columns)
    for slope in SLOPES:
        below = _Limit(False, slope, int((first - slope * seeing).min()))
        above = _Limit(True, slope, int((last - slope * seeing).max()))
        raised, lowered = np.maximum(low, below.at(rows)), np.minimum(high, above.at(rows))
        if (np.minimum(raised, columns) > np.minimum(low, columns)).any():
            found.append(below)
            low = raised
        if (np.maximum(lowered, 0) < np.maximum(high, 0)).any():
            found.append(above)
            high = lowered
    place = np.arange(columns)
    return found, np.array_equal(keep, (low[:, None] <= place) & (place < high[:, None]))


def split_masked(
    placed: PlacedGroup,
    value: Callable[[int], np.ndarray | None],
    fresh: Callable[[int, Operand], int],
    price: Price,
) -> list[PlacedGroup]:
    """The group, or the groups that do its work without the columns its mask hides, whichever cost less.

    ``value`` gives a tensor known at compile time (by number), ``fresh`` makes a tensor of so many elements.
    """
    group = placed.group

    def known(operand: int) -> np.ndarray | None:
        return value(placed.tensors[operand]) if group.operands[operand].const else None

    masked = _Analysis(group, known).run() if len(group.stages) > 1 else None
    limits, exact = _limits(masked.keep) if masked is not None else ([], False)
    if masked is None or not limits:
        return [placed]
    found = _bounded(placed, masked, limits, exact, lambda size, operand: -1)  # only to be priced
    whole = price.seconds(group)
    if price.least(found[-1].group, (group,)) >= whole:
        return [placed]
    if sum(price.seconds(part.group) for part in found) >= (1 - CLEAR) * whole:
        return [placed]
    return _bounded(placed, masked, limits, exact, fresh)


def _bounded(
    placed: PlacedGroup,
    masked: _Masked,
    limits: list[_Limit],
    exact: bool,
    fresh: Callable[[int, Operand], int],
) -> list[PlacedGroup]:
    """The group with domains, after kernels that look for values that are not finite."""
    group, row = placed.group, placed.group.shared - 1
    stages = []
    for stage, column in zip(group.stages, masked.columns, strict=True):
        kernel, made = stage.kernel, stage
        if column is not None:
            domain = tuple(limit.index(len(kernel.extents), row, column) for limit in limits)
            if exact:
                kernel = _computed(kernel, row, domain)
            made = trim(replace(stage, kernel=replace(kernel, domain=domain)))
        stages.append(made)
    values = list(dict.fromkeys(_values(group.stages[number]) for number in masked.products))
    flag = Operand(int64, 1)
    tensors = [fresh(1, flag) for _ in values]
    checks = [
        PlacedGroup(_check(group.operands[operand]), (placed.tensors[operand], tensor))
        for operand, tensor in zip(values, tensors, strict=True)
    ]
    number = len(group.operands)
    whole = replace(
        group,
        stages=tuple(stages),
        operands=(*group.operands, *[flag] * len(values)),
        unless=tuple(range(number, number + len(values))),
    )
    return [*checks, _used(PlacedGroup(whole, (*placed.tensors, *tensors)))]


def _computed(kernel: Kernel, row: int, domain: tuple[Index, ...]) -> Kernel:
    """The kernel with its mask, which is that of a domain, computed."""

    def fix(expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.fn != "where" or not depends_on(expr.args[0], row):
            return expr
        _, yes, no = expr.args
        kept, hidden = (yes, no) if isinstance(no, Literal) and no.value == -math.inf else (no, yes)
        for index in domain:
            most = index.offset + sum(abs(s) * n for s, n in zip(index.strides, kernel.extents, strict=True)) + 1
            kept = Guarded(index, 0, max(1, most), kept, hidden)
        return kept

    return rewrite_kernel(kernel, fix)


def _values(stage: Stage) -> int:
    """The operand of the group that has the factor of a product that is read from outside the group."""
    assert isinstance(stage.kernel.body, Call)
    sources = (stage.sources[f.operand] for f in stage.kernel.body.args if isinstance(f, Load))
    return next(source for source in sources if isinstance(source, int))


def _check(operand: Operand) -> KernelGroup:
    """Whether an operand has elements that are not finite: 0 times one is NaN, and so is the sum."""
    zero = Literal(0.0, operand.dtype)
    body = Call("mul", (zero, Load(0, 0, (1,), operand.dtype)), operand.dtype)
    finite = Call("eq", (Acc(operand.dtype), zero), bool_)
    epilogue = Call("where", (finite, Literal(0, int64), Literal(1, int64)), int64)
    kernel = Kernel((operand.size,), 0, "sum", body, epilogue, (operand,), Operand(int64, 1), 0, ())
    return KernelGroup((Stage(kernel, (0,), 1),), 0, (operand, kernel.out), (1,))


def _used(placed: PlacedGroup) -> PlacedGroup:
    """Without operands that no stage has any more."""
    group = placed.group
    wanted = {i for s in group.stages for i in (*s.sources, s.result) if isinstance(i, int)} | set(group.unless)
    place = {old: new for new, old in enumerate(sorted(wanted))}

    def moved(stage: Stage) -> Stage:
        sources = tuple(place[i] if isinstance(i, int) else i for i in stage.sources)
        return replace(stage, sources=sources, result=None if stage.result is None else place[stage.result])

    kept = replace(
        group,
        stages=tuple(map(moved, group.stages)),
        operands=tuple(group.operands[i] for i in place),
        outputs=tuple(place[i] for i in group.outputs),
        unless=tuple(place[i] for i in group.unless),
    )
    return PlacedGroup(kept, tuple(placed.tensors[i] for i in place))
