"""Masked attention without its masked half: rows are cut into runs, each over the columns its mask lets through.

Where a mask known at compile time puts -inf into the scores, the maximum ignores them, their exponentials are 0
and so are their terms in every later sum. So a run of rows needs only the columns that some row of it may see:
half of them under a causal mask, a band under a sliding window. Only one thing could tell the difference: 0 times
a NaN or an infinity among the values left out. It is kept by adding 0·v of those to the result, which is 0 or NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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
from eqsat.ir.node import ConstArray, Graph
from eqsat.ir.types import row_major
from eqsat.plan.group import CLEAR, PlacedGroup, Price
from eqsat.plan.stages import depends_on, loads_of, merge_shared

COUNTS = (2, 3, 4, 6)
"""Numbers of runs that are tried: each run is a kernel of its own to compile."""
ROUND = 16
"""Columns are kept in multiples of this."""
LEAST_MASK, LARGEST_MASK = 1 << 16, 1 << 24
"""Elements of masks by which rows are likely to be cut, and of the largest that are looked at."""


def most_runs(graph: Graph) -> int:
    """Into how many runs the rows of a program may be cut, before anything is searched; 0 where no mask is known."""
    arrays = [n.attrs.array for n in graph.nodes() if isinstance(n.attrs, ConstArray)]
    return COUNTS[-1] * any(a.dtype == bool and a.ndim > 1 and a.size >= LEAST_MASK for a in arrays)


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


def _runs(keep: np.ndarray, count: int) -> list[tuple[int, int, int, int]] | None:
    """(first row, last, first column, last) of ``count`` runs, ends excluded; None where a run sees no column."""
    rows, columns = keep.shape
    if rows < count:
        return None
    cuts = [round(rows * i / count) for i in range(count + 1)]
    out = []
    for low, high in itertools.pairwise(cuts):
        seen = np.flatnonzero(keep[low:high].any(axis=0))
        if seen.size == 0:
            return None
        first = int(seen[0]) // ROUND * ROUND
        last = min(columns, -(-(int(seen[-1]) + 1) // ROUND) * ROUND)
        out.append((low, high, first, last))
    return out


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
    if masked is None:
        return [placed]
    cuts = []
    for count in COUNTS:
        runs = _runs(masked.keep, count)
        if runs is None or all((first, last) == (0, masked.keep.shape[1]) for _, _, first, last in runs):
            continue
        made = _cut(placed, masked, runs, lambda size, operand: -1)  # only to be priced
        if made is not None:
            cuts.append((sum(price.least(part.group, (group,)) for part in made), runs, made))
    seconds = lowest = price.seconds(group)
    waste, priced = 1.0, []
    for least, runs, made in sorted(cuts, key=lambda cut: cut[0]):
        if waste * least >= lowest:
            continue
        together = sum(price.seconds(part.group) for part in made)
        priced.append((len(runs), together, runs))
        if together < lowest:
            # Other cuts waste about as much of the units: runs of other lengths fit tiles otherwise.
            lowest, waste = together, (1 - 2 * CLEAR) * together / least
    best = None
    for _, together, runs in sorted(priced):  # more runs have to be clearly better
        if together < (1 - CLEAR) * seconds:
            best, seconds = runs, together
    return (_cut(placed, masked, best, fresh) if best is not None else None) or [placed]


def _cut(
    placed: PlacedGroup,
    masked: _Masked,
    runs: Sequence[tuple[int, int, int, int]],
    fresh: Callable[[int, Operand], int],
) -> list[PlacedGroup] | None:
    """The groups that do a group's work run by run; None where its stages are not of the form."""
    out: list[PlacedGroup] = []
    sums = {}
    whole = masked.keep.shape[1]
    for number in masked.products:
        ends = [sorted({(0, first) for _, _, first, _ in runs if first})]
        ends.append(sorted({(last, whole) for _, _, _, last in runs if last < whole}, reverse=True))
        for ranges in ends:
            if ranges:
                made, tensors = _left_out(placed, masked, number, ranges, fresh)
                out.extend(made)
                sums.update({(number, *part): tensor for part, tensor in zip(ranges, tensors, strict=True)})
    try:
        return [*out, *(_run(placed, masked, run, sums) for run in runs)]
    except _Unfit:
        return None


def _run(
    placed: PlacedGroup,
    masked: _Masked,
    run: tuple[int, int, int, int],
    sums: Mapping[tuple[int, int, int], int],
) -> PlacedGroup:
    """One run of rows over the columns it sees. ``sums``: tensors of Σ 0·v by product and range of columns."""
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
            for part in ((0, first), (last, whole)):
                tensor = sums.get((number, *part))
                if tensor is not None:
                    result = _sum_of(placed, masked, number)[1]
                    made = _with_sum(placed, masked, number, made, len(operands))
                    tensors.append(tensor)
                    operands.append(result)
        stages.append(made)
    narrowed = replace(group, stages=tuple(stages), operands=tuple(operands))
    return PlacedGroup(merge_shared(narrowed), tuple(tensors))


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


def _values(placed: PlacedGroup, number: int) -> Load:
    """The factor of a product that is read from outside the group."""
    stage = placed.group.stages[number]
    assert isinstance(stage.kernel.body, Call)
    return next(f for f in stage.kernel.body.args if isinstance(f, Load) and isinstance(stage.sources[f.operand], int))


def _sum_of(placed: PlacedGroup, masked: _Masked, number: int) -> tuple[list[int], Operand]:
    """The parallel axes of a product that the sums over columns left out have, and the buffer of one."""
    kernel, values = placed.group.stages[number].kernel, _values(placed, number)
    axes = [a for a in range(kernel.parallel) if values.strides[a] and kernel.extents[a] > 1]
    return axes, Operand(values.dtype, math.prod(kernel.extents[a] for a in axes))


def _left_out(
    placed: PlacedGroup,
    masked: _Masked,
    number: int,
    ranges: Sequence[tuple[int, int]],
    fresh: Callable[[int, Operand], int],
) -> tuple[list[PlacedGroup], list[int]]:
    """Kernels for Σ 0·v over ranges of columns, of which each holds the one before, and the tensors they store.

    Each sums what it has more than the one before, and adds that one's.
    """
    stage, column, values = placed.group.stages[number], masked.columns[number], _values(placed, number)
    source = stage.sources[values.operand]
    assert isinstance(source, int) and column is not None
    axes, result = _sum_of(placed, masked, number)
    extents = tuple(stage.kernel.extents[a] for a in axes)
    store = row_major(extents)
    inner = tuple(values.strides[a] for a in (*axes, column))
    operand = placed.group.operands[source]
    stages: list[Stage] = []
    low, high = ranges[0][0], ranges[0][0]
    if ranges[0][0]:  # from the last column downwards
        low = high = ranges[0][1]
    for start, stop in ranges:
        begin, end = (high, stop) if start == low else (start, low)
        low, high = start, stop
        load = Load(0, values.offset + values.strides[column] * begin, inner, values.dtype)
        body = Call("mul", (Literal(0.0, values.dtype), load), values.dtype)
        epilogue: Expr = Acc(values.dtype)
        operands, sources = (operand,), (0,)
        if stages:
            before = Load(1, 0, (*store, 0), values.dtype)
            epilogue = Call("add", (epilogue, before), values.dtype)
            operands, sources = (operand, result), (0, FromStage(len(stages) - 1))  # type: ignore[assignment]
        kernel = Kernel((*extents, end - begin), len(axes), "sum", body, epilogue, operands, result, 0, store)
        stages.append(Stage(kernel, sources, len(stages) + 1))
    tensors = [fresh(result.size, result) for _ in ranges]
    read = placed.tensors[source]
    if len(axes) > 1 or len(stages) == 1:
        shared = len(axes) - 1 if len(stages) > 1 else 0
        group = KernelGroup(tuple(stages), shared, (operand, *[result] * len(stages)), tuple(range(1, 1 + len(stages))))
        return [PlacedGroup(group, (read, *tensors))], tensors
    apart = []
    for place, one in enumerate(stages):
        given = (0, 1)[: len(one.sources)]
        single = Stage(one.kernel, given, len(given))
        group = KernelGroup((single,), 0, (operand, *[result] * len(given)), (len(given),))
        apart.append(PlacedGroup(group, (read, *tensors[max(0, place - 1) : place + 1])))
    return apart, tensors


def _with_sum(placed: PlacedGroup, masked: _Masked, number: int, made: Stage, source: int) -> Stage:
    """A product's stage with the group's operand ``source``, a sum over columns left out, added to its results."""
    axes, result = _sum_of(placed, masked, number)
    kernel = placed.group.stages[number].kernel
    step = dict(zip(axes, row_major(tuple(kernel.extents[a] for a in axes)), strict=True))
    strides = tuple(step.get(a, 0) for a in range(len(kernel.extents)))
    extra = Load(len(made.sources), 0, strides, result.dtype)

    def add(e: Expr) -> Expr:
        return Call("add", (e, extra), e.dtype) if isinstance(e, Acc) else e

    changed = replace(
        made.kernel, epilogue=map_expr(made.kernel.epilogue, add), operands=(*made.kernel.operands, result)
    )
    return Stage(changed, (*made.sources, source), made.result)
