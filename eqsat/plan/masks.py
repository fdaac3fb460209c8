"""Masked attention without its masked half: rows are cut into runs, each over the columns its mask lets through.

Where a mask known at compile time puts -inf into the scores, the maximum ignores them, their exponentials are 0
and so are their terms in every later sum. So a run of rows needs only the columns that some row of it may see:
half of them under a causal mask, a band under a sliding window. Only one thing could tell the difference: 0 times
a NaN or an infinity among the values left out. It is kept by adding 0·v of those to the result, which is 0 or NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from eqsat.ir.interpret import evaluate_expr
from eqsat.ir.kernel import (
    Acc,
    Call,
    Expr,
    FromStage,
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
from eqsat.ir.types import row_major
from eqsat.plan.group import PlacedGroup
from eqsat.plan.stages import depends_on, loads_of, merge_shared

SAVING = 0.8
"""The part of the work that must be left at most for the cut to be made."""
RUN = 128
"""Rows a run has at least."""
RUNS = 6
"""Most runs: each is a kernel of its own to compile."""
ROUND = 16
"""Columns are kept in multiples of this."""
LARGEST_MASK = 1 << 24


class _Unfit(Exception):
    """The group is not of the form."""


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
                per_row = [not depends_on(a, column) for a in args]
                match fn, values:
                    case "sub", [first, _] if first == -math.inf and per_row[1]:
                        return -math.inf
                    case "exp", [only] if only == -math.inf:
                        return 0.0
                    case "div", [first, _] if first == 0 and per_row[1]:
                        return 0.0
                    case "mul", [first, second] if (first == 0 and per_row[1]) or (second == 0 and per_row[0]):
                        return 0.0
                return None
            case _:
                return None


def _runs(keep: np.ndarray) -> list[tuple[int, int, int, int]] | None:
    """(first row, last, first column, last) of every run, ends excluded; None if too little would be saved."""
    rows, columns = keep.shape
    count = min(RUNS, rows // RUN)
    if count < 2:
        return None
    cuts = [round(rows * i / count) for i in range(count + 1)]
    out, work = [], 0
    for low, high in itertools.pairwise(cuts):
        seen = np.flatnonzero(keep[low:high].any(axis=0))
        if seen.size == 0:
            return None
        first = int(seen[0]) // ROUND * ROUND
        last = min(columns, -(-(int(seen[-1]) + 1) // ROUND) * ROUND)
        out.append((low, high, first, last))
        work += (high - low) * (last - first)
    return out if work <= SAVING * rows * columns else None


def split_masked(
    placed: PlacedGroup, value: Callable[[int], np.ndarray | None], fresh: Callable[[int, Operand], int]
) -> list[PlacedGroup]:
    """The group, or the groups that do its work without the columns its mask hides.

    ``value`` gives a tensor known at compile time (by number), ``fresh`` makes a tensor of so many elements.
    """
    group = placed.group

    def known(operand: int) -> np.ndarray | None:
        return value(placed.tensors[operand]) if group.operands[operand].const else None

    masked = _Analysis(group, known).run() if len(group.stages) > 1 else None
    runs = _runs(masked.keep) if masked is not None else None
    if masked is None or runs is None:
        return [placed]
    out: list[PlacedGroup] = []
    try:
        for run in runs:
            out.extend(_run(placed, masked, run, fresh))
    except _Unfit:
        return [placed]
    return out


def _run(
    placed: PlacedGroup,
    masked: _Masked,
    run: tuple[int, int, int, int],
    fresh: Callable[[int, Operand], int],
) -> Iterator[PlacedGroup]:
    group, (low, high, first, last) = placed.group, run
    rows = group.shared - 1
    stages: list[Stage] = []
    tensors, operands = list(placed.tensors), list(group.operands)
    whole = masked.keep.shape[1]
    for number, stage in enumerate(group.stages):
        kernel, column = stage.kernel, masked.columns[number]
        extents = list(kernel.extents)
        extents[rows] = high - low
        if column is not None:
            extents[column] = last - first
        given = list(kernel.operands)
        for position, source in enumerate(stage.sources):
            if isinstance(source, FromStage) and group.stages[source.stage].result is None:
                given[position] = stages[source.stage].kernel.out

        def move(e: Expr, stage: Stage = stage, column: int | None = column) -> Expr:
            if isinstance(e, Load):
                source = stage.sources[e.operand]
                if isinstance(source, FromStage) and group.stages[source.stage].result is None:
                    before, after = group.stages[source.stage].kernel, stages[source.stage].kernel
                    return replace(e, strides=_restride(e, stage.kernel, before, after))
            if isinstance(e, Load | Index):
                skipped = e.strides[rows] * low + (e.strides[column] * first if column is not None else 0)
                return replace(e, offset=e.offset + skipped)
            return e

        moved = rewrite_kernel(kernel, move, extents=tuple(extents), operands=tuple(given))
        if stage.result is None:
            shape = moved.extents[: moved.parallel]
            result = Operand(kernel.out.dtype, math.prod(shape))
            moved = replace(moved, out=result, store_offset=0, store_strides=row_major(shape))
        else:
            moved = replace(moved, store_offset=kernel.store_offset + kernel.store_strides[rows] * low)
        made = Stage(moved, stage.sources, stage.result)
        if number in masked.products:
            for start, stop in ((0, first), (last, whole)):
                if start < stop:
                    left_out, made = _left_out(placed, number, column, start, stop, made, fresh, tensors, operands)
                    yield left_out
        stages.append(made)
    narrowed = replace(group, stages=tuple(stages), operands=tuple(operands))
    yield PlacedGroup(merge_shared(narrowed), tuple(tensors))


def _restride(load: Load, kernel: Kernel, before: Kernel, after: Kernel) -> tuple[int, ...]:
    """Strides of a load of a dense result whose extents have changed."""
    if load.offset:
        raise _Unfit
    old, new = row_major(before.extents[: before.parallel]), row_major(after.extents[: after.parallel])
    strides = []
    for axis, stride in enumerate(load.strides):
        if stride == 0:
            strides.append(0)
            continue
        same = [a for a, s in enumerate(old) if s == stride and before.extents[a] == kernel.extents[axis]]
        if len(same) != 1:
            raise _Unfit
        strides.append(new[same[0]])
    return tuple(strides)


def _left_out(
    placed: PlacedGroup,
    number: int,
    column: int | None,
    start: int,
    stop: int,
    made: Stage,
    fresh: Callable[[int, Operand], int],
    tensors: list[int],
    operands: list[Operand],
) -> tuple[PlacedGroup, Stage]:
    """A kernel for Σ 0·v over columns left out of a product, and the product's stage with that added."""
    stage = placed.group.stages[number]
    kernel = stage.kernel
    assert isinstance(kernel.body, Call) and column is not None
    values = next(f for f in kernel.body.args if isinstance(f, Load) and isinstance(stage.sources[f.operand], int))
    source = stage.sources[values.operand]
    assert isinstance(source, int)
    axes = [a for a in range(kernel.parallel) if values.strides[a] and kernel.extents[a] > 1]
    extents = tuple(kernel.extents[a] for a in axes)
    inner = tuple(values.strides[a] for a in (*axes, column))
    load = Load(0, values.offset + values.strides[column] * start, inner, values.dtype)
    result = Operand(values.dtype, math.prod(extents))
    body = Call("mul", (Literal(0.0, values.dtype), load), values.dtype)
    reduced = (*extents, stop - start)
    zeros = Kernel(
        reduced,
        len(extents),
        "sum",
        body,
        Acc(values.dtype),
        (kernel.operands[values.operand],),
        result,
        0,
        row_major(extents),
    )
    tensor = fresh(result.size, result)
    alone = KernelGroup((Stage(zeros, (0,), 1),), 0, (placed.group.operands[source], result), (1,))
    before = PlacedGroup(alone, (placed.tensors[source], tensor))
    tensors.append(tensor)
    operands.append(result)
    step = dict(zip(axes, row_major(extents), strict=True))
    strides = tuple(step.get(a, 0) for a in range(len(kernel.extents)))
    extra = Load(len(made.sources), 0, strides, values.dtype)

    def add(e: Expr) -> Expr:
        return Call("add", (e, extra), e.dtype) if isinstance(e, Acc) else e

    changed = replace(
        made.kernel, epilogue=map_expr(made.kernel.epilogue, add), operands=(*made.kernel.operands, result)
    )
    return before, Stage(changed, (*made.sources, len(operands) - 1), made.result)
