"""Masked attention without its masked half: kernels get the domain that their mask lets through.

Where a mask known at compile time puts -inf into the scores, the maximum ignores them, their exponentials are 0
and so are their terms in every later sum. So a block of rows needs only the columns that some row of it may see:
half of them under a causal mask, a band under a sliding window. What it may see is bounded by affine functions of the
row, which are the tightest of a few slopes that leave out nothing of the mask; a mask that is no more than that is
computed, not loaded. Only one thing could tell the difference: 0 times a NaN or an infinity among the values left
out. So a kernel before looks for such values, and where there are any nothing is left out.

A mask that is added hides no score that is NaN or +inf, and one of large negative numbers in place of -inf no score
that is larger still. Kernels before bound all scores (``eqsat.plan.bounds``), and nothing is left out unless that shows
that the exponentials are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

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
    unconditional,
    walk,
)
from eqsat.ir.types import bool_, int64, row_major
from eqsat.plan.bounds import Scores, maxima
from eqsat.plan.group import CLEAR
from eqsat.plan.limits import Limit, alike, hidden_by, limits_of
from eqsat.plan.placed import PlacedGroup, Price
from eqsat.plan.stages import depends_on, loads_of, trim

LARGEST_MASK = 1 << 24
"""Elements of the largest masks that are looked at."""


class _Blank(Enum):
    """What is known of the values at masked columns."""

    ZERO = auto()  # 0, unless the whole row is NaN
    NOTHING = auto()  # -inf
    LOW = auto()  # so far below the maximum of the row that its exponential less that is 0
    SUNK = auto()  # such a difference


@dataclass(frozen=True)
class _Choice:
    """An expression of a stage, and what it is in the domain and elsewhere."""

    stage: Stage
    expr: Expr
    inside: Expr
    outside: Expr


@dataclass(frozen=True)
class _Mask:
    """A mask in an expression: the columns' axis, what is kept (rows × columns), what masked columns have then.

    ``alike``: whether it is the same for all heads; if not, kept is what one of them keeps. ``choice``: an expression
    that is the one where the mask keeps and the other where it hides.
    """

    column: int
    keep: np.ndarray
    blank: _Blank
    alike: bool
    choice: _Choice | None


@dataclass(frozen=True)
class _Masked:
    """Where the masked axis is: for every stage, its axis for columns (None: it has none). ``keep``: rows × columns.

    ``products``: those that leave columns out. ``alike``: whether the mask is the same for all heads. ``choices``: what
    the mask decides. ``checks``: what bounds the scores.
    """

    columns: tuple[int | None, ...]
    keep: np.ndarray
    products: tuple[int, ...]
    alike: bool
    choices: tuple[_Choice, ...]
    checks: tuple[KernelGroup, ...]


Value = Callable[[int], np.ndarray | None]
"""The value of a group's operand, if it is known."""


class _Analysis:
    """Which axes are columns, what is settled at masked ones, and which products may leave them out."""

    def __init__(self, group: KernelGroup, value: Value) -> None:
        self.group = group
        self.value = value
        self.rows = group.shared - 1
        self.columns: list[int | None] = [None] * len(group.stages)
        self.blanks: dict[int, _Blank] = {}
        self.masks: dict[int, tuple[Expr, _Mask | None]] = {}
        self.choices: list[_Choice] = []
        self.scores = Scores(group, value)
        self.alike = True
        self.keep: np.ndarray | None = None
        self.products: list[int] = []

    def run(self) -> _Masked | None:
        if self.rows < 0 or not self._seed():
            return None
        assert self.keep is not None
        for number, stage in enumerate(self.group.stages):
            if not self._carry(number) or not self._settles(number, stage):
                return None
        checks: tuple[KernelGroup, ...] | None = ()
        if self.scores.product is not None:
            most = self.scores.most
            checks = maxima(self.scores.product, most, self.group) if most > 0 else None
        if not self.products or checks is None:
            return None
        return _Masked(tuple(self.columns), self.keep, tuple(self.products), self.alike, tuple(self.choices), checks)

    def _seed(self) -> bool:
        """Find the mask, and the columns of the stages its stage reads."""
        for number, stage in enumerate(self.group.stages):
            for root in (stage.kernel.body, stage.kernel.epilogue):
                everywhere = {id(e) for e in unconditional(root)}  # a guard may put other values in a mask's place
                for expr in (e for e in walk(root) if id(e) in everywhere):
                    found = self._mask(expr, stage)
                    if found is not None:
                        self.keep = found.keep
                        self._back(number, found.column)
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

    def _mask(self, expr: Expr, stage: Stage) -> _Mask | None:
        """The mask that an expression brings, if it brings one that is known."""
        if not isinstance(expr, Call) or expr.fn not in ("where", "add", "sub"):
            return None
        if id(expr) not in self.masks:
            found = self._chosen(expr, stage) if expr.fn == "where" else self._added(expr, stage)
            self.masks[id(expr)] = expr, found
        return self.masks[id(expr)][1]

    def _chosen(self, expr: Call, stage: Stage) -> _Mask | None:
        """-inf in place of scores."""
        condition, yes, no = expr.args
        kept = isinstance(no, Literal) and no.value == -math.inf
        if not kept and not (isinstance(yes, Literal) and yes.value == -math.inf):
            return None
        found = self._known(condition, stage)
        if found is None:
            return None
        column, values = found
        keep = values if kept else ~values
        choice = _Choice(stage, expr, *((yes, no) if kept else (no, yes)))
        return self._made(column, keep, _Blank.NOTHING, choice if depends_on(condition, self.rows) else None, stage)

    def _added(self, expr: Call, stage: Stage) -> _Mask | None:
        """-inf, or numbers far below others of their row, added to scores that can be bounded."""
        first, second = expr.args
        for score, mask in ((first, second), (second, first))[: 2 if expr.fn == "add" else 1]:
            found = self._known(mask, stage) if isinstance(mask, Load) else None
            if found is None:
                continue
            column, values = found
            hidden, apart = hidden_by(-values if expr.fn == "sub" else values)
            bound = self.scores.bound(score, stage) if hidden.any() and apart > 0 else None
            if bound is None or self.scores.product is None:
                continue
            self.scores.most = min(self.scores.most, bound.most(apart))
            least, largest = (Literal(float(pick(values)), mask.dtype) for pick in (np.min, np.max))
            inside, outside = (least, largest) if expr.fn == "sub" else (largest, least)
            two = bool((values == np.where(hidden, outside.value, inside.value)).all())
            choice = _Choice(stage, mask, inside, outside) if two and depends_on(mask, self.rows) else None
            return self._made(column, ~hidden, _Blank.NOTHING if math.isinf(apart) else _Blank.LOW, choice, stage)
        return None

    def _made(self, column: int, keep: np.ndarray, blank: _Blank, choice: _Choice | None, stage: Stage) -> _Mask:
        shape = stage.kernel.extents[self.rows], stage.kernel.extents[column]
        return _Mask(column, np.broadcast_to(keep.any(axis=0), shape), blank, alike(keep), choice)

    def _known(self, expr: Expr, stage: Stage) -> tuple[int, np.ndarray] | None:
        """The columns' axis, and the values for heads × rows × columns, or × 1 × columns, where they are known."""
        extents = stage.kernel.extents
        moving = [a for a in range(len(extents)) if depends_on(expr, a)]
        order = (*(a for a in moving if a < self.rows), self.rows, *(a for a in moving if a > self.rows))
        shape = tuple(extents[a] if a in moving else 1 for a in order)
        columns = [a for a in moving if a > self.rows]
        if len(columns) != 1 or max(math.prod(shape), extents[self.rows] * shape[-1]) > LARGEST_MASK:
            return None
        buffers: dict[int, np.ndarray] = {}
        for e in walk(expr):
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

        given = [buffers.get(n, np.zeros(0)) for n in range(len(stage.sources))]
        found = evaluate_expr(map_expr(expr, only), shape, given, None)
        return columns[0], found.reshape(math.prod(shape[:-2]), *shape[-2:])

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
            zero = [self._blank(f, stage, column) is _Blank.ZERO for f in kernel.body.args]
            other = kernel.body.args[zero.index(False)] if sum(zero) == 1 else None
            if isinstance(other, Load) and isinstance(stage.sources[other.operand], int) and not other.gathers:
                self.products.append(number)
                return True
            return False
        blank = self._blank(kernel.body, stage, column)
        return blank in {"max": (_Blank.NOTHING, _Blank.LOW), "sum": (_Blank.ZERO,)}.get(str(kernel.combine), ())

    def _blank(self, expr: Expr, stage: Stage, column: int) -> _Blank | None:
        """What is known of an expression at masked columns."""
        match expr:
            case Load(operand, _, strides, _, _):
                source = stage.sources[operand]
                return self.blanks.get(source.stage) if isinstance(source, FromStage) and strides[column] else None
            case Call(fn, args, _, _):
                found = self._mask(expr, stage)
                if found is not None:
                    assert self.keep is not None
                    same = found.column == column and np.array_equal(found.keep, self.keep)
                    if same and found.choice is not None:
                        self.choices.append(found.choice)
                    self.alike = self.alike and found.alike
                    return found.blank if same else None
                values = [self._blank(a, stage, column) for a in args]
                own = [self._own(a, stage) for a in args]
                match fn, values:
                    case "sub", [_Blank.NOTHING, _] if own[1]:
                        return _Blank.NOTHING
                    case "sub", [_Blank.LOW, _] if self._largest_of(args[1], args[0], stage):
                        return _Blank.SUNK
                    case "add", [_Blank.NOTHING, None] | [None, _Blank.NOTHING]:
                        other = self.scores.bound(args[values.index(None)], stage)
                        return _Blank.NOTHING if other is not None and not other.gain else None
                    case "exp", [_Blank.NOTHING | _Blank.SUNK]:
                        return _Blank.ZERO
                    case "div", [_Blank.ZERO, _] if own[1] and not isinstance(args[1], Literal):
                        return _Blank.ZERO
                    case "mul", [first, second] if (first is _Blank.ZERO and own[1]) or (
                        second is _Blank.ZERO and own[0]
                    ):
                        return _Blank.ZERO
                return None
            case _:
                return None

    def _largest_of(self, expr: Expr, values: Expr, stage: Stage) -> bool:
        """Whether an expression is the maximum of a row, over all columns, of what another one loads."""
        if not isinstance(expr, Load) or not isinstance(values, Load):
            return False
        source = stage.sources[expr.operand]
        if not isinstance(source, FromStage):
            return False
        maker = self.group.stages[source.stage]
        kernel, body = maker.kernel, maker.kernel.body
        found = kernel.combine == "max" and kernel.parallel == self.group.shared and isinstance(kernel.epilogue, Acc)
        return found and isinstance(body, Load) and maker.sources[body.operand] == stage.sources[values.operand]

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


def split_masked(placed: PlacedGroup, price: MaskedPrice, fresh: Callable[[int, Operand], int]) -> list[PlacedGroup]:
    """The group, or the groups that do its work without the columns its mask hides, whichever cost less.

    ``fresh`` makes a tensor of so many elements.
    """
    found = price.split(placed)
    return [placed] if found is None else _bounded(placed, found, fresh)


@dataclass(frozen=True)
class _Split:
    """A group's mask, what it leaves of rows, whether exactly, and what the groups without its columns cost."""

    masked: _Masked
    limits: list[Limit]
    exact: bool
    seconds: float = math.inf


class MaskedPrice:
    """What groups cost as :func:`split_masked` leaves them: two kernels that cost less than a whole attention may cost
    more than what is left of it. ``value`` gives a tensor known at compile time (by number)."""

    def __init__(self, value: Callable[[int], np.ndarray | None], price: Price) -> None:
        self.value, self.price = value, price
        # By identity, for groups are long: each is held, so that no other one has its id.
        self._hidden: dict[tuple[int, tuple[int, ...]], tuple[KernelGroup, _Split | None]] = {}
        self._splits: dict[tuple[int, tuple[int, ...]], _Split | None] = {}

    def seconds(self, placed: PlacedGroup) -> float:
        found = self.split(placed)
        return self.price.seconds(placed.group) if found is None else found.seconds

    def masked(self, placed: PlacedGroup) -> bool:
        return self._hides(placed) is not None

    def split(self, placed: PlacedGroup) -> _Split | None:
        """How to split a group, where that costs clearly less."""
        key, hidden = (id(placed.group), placed.tensors), self._hides(placed)
        if key not in self._splits:
            self._splits[key] = None if hidden is None else self._cheaper(placed, hidden)
        return self._splits[key]

    def _hides(self, placed: PlacedGroup) -> _Split | None:
        key = id(placed.group), placed.tensors
        if key not in self._hidden:
            self._hidden[key] = placed.group, self._found(placed)
        return self._hidden[key][1]

    def _found(self, placed: PlacedGroup) -> _Split | None:
        group = placed.group

        def known(operand: int) -> np.ndarray | None:
            return self.value(placed.tensors[operand]) if group.operands[operand].const else None

        masked = _Analysis(group, known).run() if len(group.stages) > 1 else None
        limits, exact = limits_of(masked.keep) if masked is not None else ([], False)
        return _Split(masked, limits, exact and masked.alike) if masked is not None and limits else None

    def _cheaper(self, placed: PlacedGroup, hidden: _Split) -> _Split | None:
        found = _bounded(placed, hidden, lambda size, operand: -1)  # only to be priced
        whole = self.price.seconds(placed.group)
        if self.price.least(found[-1].group, (placed.group,)) >= whole:
            return None
        seconds = sum(self.price.seconds(part.group) for part in found)
        return None if seconds >= (1 - CLEAR) * whole else replace(hidden, seconds=seconds)


def _bounded(placed: PlacedGroup, split: _Split, fresh: Callable[[int, Operand], int]) -> list[PlacedGroup]:
    """The group with domains, after kernels that look for values that are not finite."""
    group, row, masked = placed.group, placed.group.shared - 1, split.masked
    stages = []
    for stage, column in zip(group.stages, masked.columns, strict=True):
        kernel, made = stage.kernel, stage
        if column is not None:
            domain = tuple(limit.index(len(kernel.extents), row, column) for limit in split.limits)
            if split.exact:
                kernel = _computed(kernel, domain, [c for c in masked.choices if c.stage is stage])
            made = trim(replace(stage, kernel=replace(kernel, domain=domain)))
        stages.append(made)
    values = list(dict.fromkeys(_values(group.stages[number]) for number in masked.products))
    flag = Operand(int64, 1)
    tensors = [fresh(1, flag) for _ in values]
    checks = [
        PlacedGroup(_check(group.operands[operand]), (placed.tensors[operand], tensor))
        for operand, tensor in zip(values, tensors, strict=True)
    ]
    if masked.checks:
        found = tuple(fresh(1, operand) for operand in masked.checks[-1].operands[len(group.operands) :])
        checks += [_used(PlacedGroup(check, (*placed.tensors, *found))) for check in masked.checks]
        tensors.append(found[-1])
    number = len(group.operands)
    whole = replace(
        group,
        stages=tuple(stages),
        operands=(*group.operands, *[flag] * len(tensors)),
        unless=tuple(range(number, number + len(tensors))),
    )
    return [*checks, _used(PlacedGroup(whole, (*placed.tensors, *tensors)))]


def _computed(kernel: Kernel, domain: tuple[Index, ...], choices: list[_Choice]) -> Kernel:
    """The kernel with its mask, which is that of a domain, computed."""

    def fix(expr: Expr) -> Expr:
        choice = next((c for c in choices if c.expr == expr), None)
        if choice is None:
            return expr
        made = choice.inside
        for index in domain:
            most = index.offset + sum(abs(s) * n for s, n in zip(index.strides, kernel.extents, strict=True)) + 1
            made = Guarded(index, 0, max(1, most), made, choice.outside)
        return made

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
