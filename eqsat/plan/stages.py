"""Rewrites of kernels and of the stages of a group that leave their results alone."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.ir.contraction import dot_of
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
    parts,
    rewrite_kernel,
    unconditional,
    unique,
)
from eqsat.ir.table import OPS
from eqsat.ir.types import row_major

COSTLY = 8.0
"""Vector instructions per element from which a value computed twice is worth keeping in scratch."""


def loads_of(kernel: Kernel) -> list[Load]:
    """What a kernel loads, each load of an expression once."""
    return [e for e in kernel.expressions if isinstance(e, Load)]


def depends_on(expr: Expr, axis: int) -> bool:
    """Whether some access of the expression moves along an axis."""
    return any(e.strides[axis] != 0 for e in unique(expr) if isinstance(e, Load | Index))


def permute(kernel: Kernel, order: Sequence[int]) -> Kernel:
    """The kernel with its axes in this order; parallel axes stay before reduced ones."""

    def fix(expr: Expr) -> Expr:
        if isinstance(expr, Load | Index):
            return replace(expr, strides=tuple(expr.strides[a] for a in order))
        return expr

    head = order[: kernel.parallel]
    return rewrite_kernel(
        kernel,
        fix,
        extents=tuple(kernel.extents[a] for a in order),
        store_strides=tuple(kernel.store_strides[a] for a in head),
    )


class _Named:
    """Stages in order by names that stay when others are put in between; ``FromStage`` holds names here.

    The names are positions at first, then further numbers.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = dict(enumerate(stages))
        self.order = list(self.stages)

    def insert(self, part: Kernel, before: int) -> int:
        """A stage of a kernel with the operands of stage ``before``, in front of that; its name."""
        name = len(self.stages)
        self.stages[name] = trim(Stage(part, self.stages[before].sources, None))
        self.order.insert(self.order.index(before), name)
        return name

    def read(self, user: int, part: Kernel, name: int, body: Expr) -> None:
        """Give a stage a body that reads ``part``, which stage ``name`` stores, as the operand after its own."""
        stage = self.stages[user]
        kernel = replace(stage.kernel, body=body, operands=(*stage.kernel.operands, part.out))
        self.stages[user] = trim(Stage(kernel, (*stage.sources, FromStage(name)), stage.result))

    def listed(self) -> list[Stage]:
        """The stages, named by their positions again."""
        place = {name: number for number, name in enumerate(self.order)}

        def renamed(source: int | FromStage) -> int | FromStage:
            return FromStage(place[source.stage]) if isinstance(source, FromStage) else source

        found = (self.stages[name] for name in self.order)
        return [replace(stage, sources=tuple(map(renamed, stage.sources))) for stage in found]


def alternatives(stages: Sequence[Stage], shared: int) -> Iterator[list[Stage]]:
    """Forms of a group that differ in what is stored and what is computed where it is read: most stored comes first.

    Factors of contractions that are computed are stages of their own (evaluated once, not once per result column) or
    stay where they are; of the costly sub-expressions that several stages compute at the same points the costliest
    ones are stages, from all of them to none.
    """
    split = split_factors(stages, shared)
    for form in (split, list(stages)) if split != list(stages) else (split,):
        sharing = _Sharing(form, shared)
        yield from reversed(list(sharing.forms()))


@dataclass(frozen=True)
class _Part:
    """A costly call in a stage's body: ``value`` is equal for calls that are equal at the points of equal numbers along
    ``axes`` of each one's stage."""

    value: int
    cost: float
    expr: Call
    axes: tuple[int, ...]


class _Sharing(_Named):
    """The stages of a group with their costly parts numbered by value.

    Every sub-expression is numbered once per order of axes it is told in (hash consing), so that a round of sharing
    costs about as much as the stages it changes are long.
    """

    def __init__(self, stages: Sequence[Stage], shared: int) -> None:
        super().__init__(stages)
        self.shared = shared
        self.numbers: dict[Hashable, int] = {}
        self.parts = {name: self._parts(stage) for name, stage in self.stages.items()}

    def forms(self) -> Iterator[list[Stage]]:
        """The stages with none, one, two, … of the costly parts shared."""
        yield self.listed()
        found = self._largest_repeated()
        while found is not None:  # each round leaves fewer calls: those of all but one of the part's occurrences go
            self._split(*found)
            yield self.listed()
            found = self._largest_repeated()

    def _number(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _parts(self, stage: Stage) -> dict[int, _Part]:
        """The costly calls of a stage's body, by ``id``, operands before users."""
        kernel, found = stage.kernel, {}
        everywhere = {id(e) for e in unconditional(kernel.body)}
        product = kernel.body if kernel.combine == "sum" and _is_mul(kernel.body) else None
        costs: dict[int, float] = {}
        steps: dict[int, dict[tuple[int, ...], None]] = {}
        values: dict[tuple[int, tuple[int, ...]], int] = {}
        orders: dict[tuple[tuple[int, ...], ...], tuple[int, ...] | None] = {}
        for expr in unique(kernel.body):
            below = parts(expr)
            costs[id(expr)] = sum(costs[id(e)] for e in below) + (OPS[expr.fn].cost if isinstance(expr, Call) else 0.0)
            mine = steps[id(expr)] = {s: None for e in below for s in steps[id(e)]}
            if isinstance(expr, Load | Index):
                mine[expr.strides] = None
            if not isinstance(expr, Call) or costs[id(expr)] < COSTLY or expr is product:
                continue
            if id(expr) not in everywhere:  # its loads may be out of range elsewhere
                continue
            told = tuple(mine)
            if told not in orders:
                orders[told] = self._axes(kernel, told)
            axes = orders[told]
            if axes is not None:
                extents = tuple(kernel.extents[a] for a in axes)
                value = self._number((extents, self._value(expr, stage, axes, values)))
                found[id(expr)] = _Part(value, costs[id(expr)], expr, axes)
        return found

    def _axes(self, kernel: Kernel, steps: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """Axes that accesses of these strides depend on, shared ones first, then by how far they step; None if a
        shared one is missing."""
        axes = [a for a in range(len(kernel.extents)) if any(s[a] for s in steps)]
        if axes[: self.shared] != list(range(self.shared)):
            return None
        rest = sorted(axes[self.shared :], key=lambda a: (tuple(-s[a] for s in steps), kernel.extents[a], a))
        return (*axes[: self.shared], *rest)

    def _value(
        self, expr: Expr, stage: Stage, axes: tuple[int, ...], values: dict[tuple[int, tuple[int, ...]], int]
    ) -> int:
        """The number of an expression with operands named by what they are and axes in this order."""
        stack = [expr]
        while stack:
            at = stack[-1]
            missing = [e for e in parts(at) if (id(e), axes) not in values]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            below = tuple(values[id(e), axes] for e in parts(at))
            key: Hashable
            match at:
                case Load(operand, offset, strides, dtype, gathers):
                    told = tuple(strides[a] for a in axes)
                    key = ("load", stage.sources[operand], offset, told, dtype, below, tuple(s for _, s in gathers))
                case Index(offset, strides, dtype):
                    key = ("index", offset, tuple(strides[a] for a in axes), dtype)
                case Call(fn, _, dtype, attrs):
                    key = ("call", fn, below, dtype, attrs)
                case Guarded(_, low, high, _, _):
                    key = ("guarded", low, high, below)
                case Literal(value, dtype):
                    key = ("literal", repr(value), dtype)  # 0.0 and -0.0 are equal, and are not the same
                case _:
                    key = ("acc", at)
            values[id(at), axes] = self._number(key)
        return values[id(expr), axes]

    def _largest_repeated(self) -> tuple[int, _Part] | None:
        """The costliest part that two stages have: the first one's name and the part; of equally costly ones the first
        met again."""
        seen: dict[int, tuple[int, _Part]] = {}
        best: tuple[int, _Part] | None = None
        for name in self.order:
            for part in self.parts[name].values():
                first = seen.setdefault(part.value, (name, part))
                if first[0] != name and (best is None or part.cost > best[1].cost):
                    best = first
        return best

    def _split(self, first: int, part: _Part) -> None:
        """Make ``part``, which stage ``first`` is the first one to have, a stage before it, which the others read."""
        made = _part_over(self.stages[first], part.expr, part.axes)
        name = self.insert(made, first)
        self.parts[name] = self._parts(self.stages[name])
        for user in self.order[self.order.index(first) :]:
            known = self.parts[user]
            if any(p.value == part.value for p in known.values()):
                self.read(user, made, name, _uses(self.stages[user], known, part, made))
                self.parts[user] = self._parts(self.stages[user])


def _uses(stage: Stage, known: Mapping[int, _Part], part: _Part, made: Kernel) -> Expr:
    """The stage's body with the kernel ``made``, as the operand after its own, in place of ``part``."""

    def instead(expr: Expr) -> Expr | None:
        mine = known.get(id(expr))
        return _load_part(stage, made, mine.axes) if mine is not None and mine.value == part.value else None

    return map_expr(stage.kernel.body, lambda e: e, instead)


def _is_mul(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.fn == "mul"


def _part_over(stage: Stage, expr: Expr, axes: Sequence[int]) -> Kernel:
    """A kernel that stores ``expr`` densely over ``axes`` of the stage, reading the stage's operands."""

    def only(e: Expr) -> Expr:
        return replace(e, strides=tuple(e.strides[a] for a in axes)) if isinstance(e, Load | Index) else e

    extents = tuple(stage.kernel.extents[a] for a in axes)
    result = Operand(expr.dtype, math.prod(extents))
    body = map_expr(expr, only)
    return Kernel(
        extents, len(extents), None, body, Acc(expr.dtype), stage.kernel.operands, result, 0, row_major(extents)
    )


def _load_part(stage: Stage, part: Kernel, axes: Sequence[int]) -> Load:
    """The stage's load of a part over its ``axes``, as the operand after its own."""
    step = dict(zip(axes, part.store_strides, strict=True))
    strides = tuple(step.get(a, 0) for a in range(len(stage.kernel.extents)))
    return Load(len(stage.sources), 0, strides, part.out.dtype)


def split_factors(stages: Sequence[Stage], shared: int) -> list[Stage]:
    """Computed factors of contractions as stages of their own: evaluated once, not once per result column."""
    named = _Named(stages)
    for name in list(named.order):
        while (factor := _computed_factor(named.stages[name].kernel, shared)) is not None:
            stage = named.stages[name]
            axes = [a for a in range(len(stage.kernel.extents)) if depends_on(factor, a)]
            part = _part_over(stage, factor, axes)
            load = _load_part(stage, part, axes)
            assert isinstance(stage.kernel.body, Call)
            named.read(name, part, named.insert(part, name), _with(stage.kernel.body, factor, load))
    return named.listed()


def _with(body: Expr, part: Expr, instead: Expr) -> Expr:
    return map_expr(body, lambda e: e, lambda e: instead if e is part else None)


def _computed_factor(kernel: Kernel, shared: int) -> Expr | None:
    """The first factor of a contraction that is computed, at every point of the shared axes."""
    factors = _factors(kernel)
    dot = dot_of(kernel) if factors else None
    if dot is not None and dot[0].depth > 1:  # tiles see through the casts
        factors = tuple(f.args[0] for f in factors if isinstance(f, Call))
    return next((f for f in factors if isinstance(f, Call | Guarded) and _spans(f, shared)), None)


def _spans(expr: Expr, axes: int) -> bool:
    return all(depends_on(expr, a) for a in range(axes))


def _factors(kernel: Kernel) -> tuple[Expr, ...]:
    """The factors of a contraction that has columns for each to be reused over; none of other kernels."""
    if not kernel.is_contraction or not isinstance(kernel.body, Call):
        return ()
    reused = [any(not depends_on(f, a) for a in range(kernel.parallel)) for f in kernel.body.args]
    return kernel.body.args if any(reused) else ()


def trim(stage: Stage) -> Stage:
    """Without operands that no load reads any more."""
    used = sorted({load.operand for load in loads_of(stage.kernel)})
    if len(used) == len(stage.sources):
        return stage
    place = {old: new for new, old in enumerate(used)}

    def fix(expr: Expr) -> Expr:
        return replace(expr, operand=place[expr.operand]) if isinstance(expr, Load) else expr

    operands = tuple(stage.kernel.operands[u] for u in used)
    kernel = rewrite_kernel(stage.kernel, fix, operands=operands)
    return Stage(kernel, tuple(stage.sources[u] for u in used), stage.result)


def _mergeable(kernel: Kernel, axis: int) -> bool:
    """Whether axes ``axis`` and ``axis + 1`` step as one in every access."""
    if axis + 1 == kernel.parallel or (kernel.combine in ("argmax", "argmin") and axis >= kernel.parallel):
        return False
    extent = kernel.extents[axis + 1]
    return all(s[axis] == s[axis + 1] * extent for s in kernel.maps)


def _merge(kernel: Kernel, axis: int) -> Kernel:
    def fix(expr: Expr) -> Expr:
        if isinstance(expr, Load | Index):
            return replace(expr, strides=expr.strides[:axis] + expr.strides[axis + 1 :])
        return expr

    extents = (*kernel.extents[:axis], kernel.extents[axis] * kernel.extents[axis + 1], *kernel.extents[axis + 2 :])
    inner = axis < kernel.parallel
    store = kernel.store_strides[:axis] + kernel.store_strides[axis + 1 :] if inner else kernel.store_strides
    return rewrite_kernel(kernel, fix, extents=extents, store_strides=store, parallel=kernel.parallel - inner)


def _widened(kernel: Kernel, axis: int) -> Kernel:
    """Tests that move along ``axis`` step by step, and not along the next one, in terms of both.

    ``low <= i + r < high`` is ``low·n <= i·n + j + r·n < high·n`` for every j of n positions.
    """
    inner = kernel.extents[axis + 1]

    def fix(expr: Expr) -> Expr:
        if not isinstance(expr, Guarded) or expr.index.strides[axis + 1] or abs(expr.index.strides[axis]) != 1:
            return expr
        sign = expr.index.strides[axis]
        strides = [s * inner for s in expr.index.strides]
        strides[axis + 1] = sign
        offset = expr.index.offset * inner + (inner - 1 if sign < 0 else 0)
        index = replace(expr.index, offset=offset, strides=tuple(strides))
        return replace(expr, index=index, low=expr.low * inner, high=expr.high * inner)

    return rewrite_kernel(kernel, fix)


def merge_axes(kernel: Kernel, start: int) -> Kernel:
    """Neighbouring axes from ``start`` on that step as one in every access, merged."""
    axis = start
    while axis + 1 < len(kernel.extents):
        found = next((k for k in (kernel, _widened(kernel, axis)) if _mergeable(k, axis)), None)
        if found is not None:
            kernel = _merge(found, axis)
        else:
            axis += 1
    return kernel


def merge_shared(group: KernelGroup) -> KernelGroup:
    """Shared axes that step as one in every stage merged, then each stage's own."""
    kernels = [stage.kernel for stage in group.stages]
    shared, axis = group.shared, 0
    while axis + 1 < shared:
        if all(_mergeable(k, axis) for k in kernels):
            kernels = [_merge(k, axis) for k in kernels]
            shared -= 1
        else:
            axis += 1
    kernels = [merge_axes(k, shared) for k in kernels]
    stages = tuple(replace(stage, kernel=k) for stage, k in zip(group.stages, kernels, strict=True))
    return replace(group, stages=stages, shared=shared)
