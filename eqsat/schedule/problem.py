"""A kernel group as a scheduling problem: named axes, accesses over them, what may be packed, what is legal.

Blocks are given by named axes (see ``eqsat.ir.nest``); inside the search a stage's own axes carry its number
(``m0``, ``p1_2``), the shared ones are ``outer`` and ``rows``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from eqsat.cost.calibration import LINE
from eqsat.cost.movement import Access as KernelAccess
from eqsat.cost.movement import Functions, access_bytes, accesses, dependences, slots_of
from eqsat.cost.target import Target
from eqsat.ir.axes import normalized, simplify
from eqsat.ir.contraction import evenly, loads, plain, product_of, streamed, stride_over
from eqsat.ir.copied import lanes_apart, piece_along_rows, window_of
from eqsat.ir.kernel import Call, Expr, FromStage, Index, Kernel, KernelGroup, Load, unique, walk
from eqsat.ir.siblings import are_siblings, joint
from eqsat.schedule.ahead import Share, shares_of
from eqsat.schedule.domain import Columns, columns_of
from eqsat.schedule.forms import Factor, Sibling, Source, StageForm

LONG_ROW = 8192
"""Bytes of a row of a matrix from which it is read from memory as fast as one run of memory."""


class ScheduleError(ValueError):
    """The group breaks a rule that ``KernelGroup`` states; the message says which stage and axis."""


@dataclass(frozen=True)
class Problem:
    """All stages of a group. ``outer`` and ``rows`` are 0 for a single stage. ``line``: bytes of a cache line.

    ``columns``: of which blocks of rows leave some out.
    """

    stages: tuple[StageForm, ...]
    outer: int
    rows: int
    sizes: tuple[int, ...]
    const: tuple[bool, ...]
    line: int = LINE
    columns: Columns | None = None
    group: KernelGroup | None = field(default=None, compare=False, repr=False)
    cache: dict[object, dict[Source, int]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def simple(self) -> KernelGroup:
        """The group over fewer axes, as kernels are printed."""
        assert self.group is not None, "a problem that was read from a group"
        return simplify(self.group)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """What rows may ask for of what contractions read at the next outer position."""
        products = [form.index for form in self.stages if form.contraction]
        return shares_of(self.simple, products) if self.outer > 1 and self.rows > 1 else ()

    def touched(self, stage: int, extents: tuple[int, ...], packed: frozenset[tuple[int, str]]) -> dict[Source, int]:
        """Bytes that one stage touches of each buffer over a block; a packed factor is its copy, without gaps."""
        flags = frozenset(item for item in packed if item[0] == stage)
        key = (stage, extents, flags)
        if key in self.cache:
            return self.cache[key]
        form = self.stages[stage]
        found: dict[Source, int] = {}
        inside: set[KernelAccess] = set()
        for factor in form.factors:
            if (stage, factor.name) in flags:
                inside.update(factor.accesses)
                block = math.prod(extents[a] for a in factor.axes)
                found["packed", stage, factor.name] = block * form.dtype.itemsize // form.depth
        for access in form.accesses:
            if access not in inside:
                source = form.source(access)
                found[source] = found.get(source, 0) + access_bytes(access, extents, self.line)
        for source in found:
            if source[0] == "operand":
                found[source] = min(found[source], -(-self.sizes[source[1]] // self.line) * self.line)
        self.cache[key] = found
        return found


def problem_of(group: KernelGroup, target: Target | None = None, offered: Collection[str] = ()) -> Problem:
    """Read a group, for a target; without one, as any with register tiles for float32, float64 and ``offered`` sees it.

    Raises :class:`ScheduleError` where the group breaks what ``KernelGroup`` promises.
    """
    several = len(group.stages) > 1
    shared = group.shared if several else 0
    together = are_siblings(group)
    if several and shared == 0 and not together:
        raise ScheduleError(f"group {group.name!r} has {len(group.stages)} stages but shares no axis")
    for number, stage in enumerate(group.stages):
        if shared:
            _check_shared(group, number, shared)
        if any(isinstance(s, FromStage) and s.stage >= number for s in stage.sources):
            raise ScheduleError(f"stage {number} of group {group.name!r} reads a stage that does not come before it")
    first = group.stages[0].kernel.extents
    outer, rows = _shared_axes(group, shared)
    functions, offered = (target.functions, target.dots) if target is not None else ((), offered)
    bits = element_bits(stage.kernel for stage in group.stages)
    if together:
        found = [_siblings(group, functions)]
    else:
        found = [_form(group, number, outer, rows, functions, target, offered) for number in range(len(group.stages))]
    if any(form.contraction and form.dtype.bits == 64 for form in found):
        bits = 64  # one width of vectors for all stages
    forms = tuple(form if form.contraction else _vector(form, bits) for form in found)
    return Problem(
        forms,
        math.prod(first[a] for a in outer) if shared else 0,
        math.prod(first[a] for a in rows) if shared else 0,
        tuple(operand.nbytes for operand in group.operands),
        tuple(operand.const for operand in group.operands),
        target.inner.line if target is not None else LINE,
        columns_of(group) if any(form.contraction for form in forms) else None,
        group,
    )


def _shared_axes(group: KernelGroup, shared: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shared axes as (outer, rows): rows is the last one, with those that every access walks as one with it."""
    if not shared:
        return (), ()
    extents = group.stages[0].kernel.extents
    long = [a for a in range(shared) if extents[a] != 1]
    maps = [access.strides for stage in group.stages for access in accesses(stage.kernel)]
    kernels = [stage.kernel for stage in group.stages]
    every = (unique(kernel.body, kernel.epilogue, *kernel.domain) for kernel in kernels)
    maps += [part.strides for found in every for part in found if isinstance(part, Index)]
    split = len(long) - 1
    while split > 0 and all(m[long[split - 1]] == m[long[split]] * extents[long[split]] for m in maps):
        split -= 1
    if not long:
        return tuple(range(shared - 1)), (shared - 1,)
    first = long[max(split, 0)]
    return tuple(range(first)), tuple(range(first, shared))


def _source(group: KernelGroup, source: int | FromStage) -> Source:
    if isinstance(source, FromStage):
        result = group.stages[source.stage].result
        return ("stage", source.stage, "") if result is None else ("operand", result, "")
    return ("operand", source, "")


def _check_shared(group: KernelGroup, number: int, shared: int) -> None:
    """A stage reads an earlier one at the same position of every shared axis: else running by blocks is illegal."""
    stage = group.stages[number]
    extents = stage.kernel.extents
    if extents[:shared] != group.stages[0].kernel.extents[:shared] or stage.kernel.parallel < shared:
        raise ScheduleError(
            f"stage {number} of group {group.name!r} has extents {extents[:shared]} along the {shared} shared axes, "
            f"stage 0 has {group.stages[0].kernel.extents[:shared]}; they must be equal and parallel"
        )
    for expr in stage.kernel.expressions:
        if not isinstance(expr, Load) or not isinstance(source := stage.sources[expr.operand], FromStage):
            continue
        maker = group.stages[source.stage].kernel
        made = _reach(maker.store_offset, maker.store_strides[shared:], maker.extents[shared : maker.parallel])
        read = _reach(expr.offset, expr.strides[shared:], extents[shared:])
        varies = [a for a in range(shared) if extents[a] > 1 and expr.strides[a] != maker.store_strides[a]]
        if varies or expr.gathers or read[0] < made[0] or read[1] > made[1]:
            raise ScheduleError(
                f"stage {number} of group {group.name!r} reads stage {source.stage} at other positions of the shared "
                f"axes than that stage wrote (strides {expr.strides[:shared]} against {maker.store_strides[:shared]}, "
                f"elements {read} against {made}): they cannot run block by block; put them in separate groups"
            )


def _reach(offset: int, strides: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, int]:
    spans = [s * max(0, n - 1) for s, n in zip(strides, extents, strict=True)]
    return offset + sum(min(0, s) for s in spans), offset + sum(max(0, s) for s in spans)


def _form(
    group: KernelGroup,
    number: int,
    outer: tuple[int, ...],
    rows: tuple[int, ...],
    functions: Functions,
    target: Target | None,
    offered: Collection[str],
) -> StageForm:
    stage = group.stages[number]
    result: Source = ("stage", number, "") if stage.result is None else ("operand", stage.result, "")
    sources = tuple(_source(group, s) for s in stage.sources)
    form = StageForm(number, stage.kernel, (), sources, result, outer, rows, functions=functions)
    return _contraction(group, form, target, offered) or form


def _siblings(group: KernelGroup, functions: Functions) -> StageForm:
    """Reductions side by side, as one."""
    results: list[Source] = [("operand", stage.result or 0, "") for stage in group.stages]
    sources: tuple[Source, ...] = tuple(("operand", n, "") for n in range(len(group.operands)))
    beside = []
    for stage, result in zip(group.stages[1:], results[1:], strict=True):
        assert stage.kernel.combine is not None, "a reduction"
        beside.append(Sibling(stage.kernel.combine, result, stage.kernel.out.dtype))
    return StageForm(0, joint(group), (), sources, results[0], (), (), functions=functions, siblings=tuple(beside))


def _contraction(
    group: KernelGroup, form: StageForm, target: Target | None, offered: Collection[str]
) -> StageForm | None:
    """The contraction a stage is, or None where no register tile applies, or the target has none for its type.

    In a group of several stages m holds the shared rows. A matrix times a vector is a reduction, unless the matrix can
    be packed at compile time: panels stream from caches at twice the speed, as one run of memory instead of the rows
    of a tile. Past ``Target.cached`` bytes it comes from memory, where long rows are read as fast.
    """
    stage, kernel = group.stages[form.index], form.kernel
    late = [n for n, source in enumerate(stage.sources) if isinstance(source, FromStage)]
    product = product_of(kernel, len(form.outer), len(form.rows), late, offered)
    if product is None or 0 in kernel.extents or (target and not target.rows("fma", product.dot.element)):
        return None
    dot, named = product.dot, {"b": product.b, "m": product.m, "n": product.n, "k": product.k}
    loads, size = accesses(kernel), dot.factors[0].itemsize
    whole = math.prod(kernel.extents[a] for a in product.k) % dot.depth == 0
    shared = {*form.outer, *form.rows}
    factors = []
    for name, row, expr in zip("ab", "mn", product.factors(kernel), strict=True):
        inside = {(e.operand, e.strides) for e in unique(expr) if isinstance(e, Load)}
        depends = dependences(expr, len(kernel.extents))
        load = plain(expr)
        source = stage.sources[load.operand] if load else None
        step, k_step = (_step(load, kernel, named[axes]) for axes in (row, "k"))
        direct = step is not None and k_step is not None and (name == "a" or step == 1)
        blocks = step is not None and k_step is not None and 1 in (step, k_step)  # copies are, turned over or not
        direct = direct and (dot.depth == 1 or (name == "a" and k_step == 1 and whole))  # neighbours lie side by side
        row_bytes = abs((step if name == "a" else k_step) or 0) * size
        depth_bytes = abs(k_step or 0) * size if direct else 0
        if isinstance(source, FromStage) and group.stages[source.stage].result is None:
            row_bytes = (-(-row_bytes // LINE) | 1) * LINE  # rows of scratch are kept off each other's cache sets
            direct = direct and not any(kernel.extents[a] > 1 for a in named[row] if a not in form.rows)
        free = isinstance(source, int) and group.operands[source].const and not depends & shared
        free = free and (name == "b" or not shared) and _reads(group, source) == 1
        external = not any(o in late for o, _ in inside) and not depends & set(form.rows)
        inner = tuple(a for a in loads if not a.write and (a.operand, a.strides) in inside)
        slots, stored = _slots(expr, form.functions), 0
        load = streamed(expr) if name == "b" and dot.depth == 1 and external else None
        k_step = _step(load, kernel, named["k"])
        if load is not None and k_step is not None and _step(load, kernel, named["n"]) == 1:
            stored = load.dtype.itemsize
            row_bytes = row_bytes or abs(k_step) * stored
        contiguous, runs, piece, apart, run, load = step in (0, 1), (0, 0), 0, 0, 0, plain(expr)
        window = (0, 0) if direct or blocks else window_of(kernel.extents, product.k)
        if name == "a" and dot.depth == 1 and product.m and product.k and not (direct or shared):
            piece = piece_along_rows(expr, kernel.extents, product.m, product.k)
            along = [e.strides for e in unique(expr) if isinstance(e, Load) and not e.gathers]
            run = min((evenly(strides, kernel.extents, product.k) for strides in along), default=0)
            if load is not None:
                extents = kernel.extents
                runs = evenly(load.strides, extents, product.m), evenly(load.strides, extents, product.k)
                row_bytes = row_bytes or abs(load.strides[product.m[-1]]) * size
        copied = named["k" if name == "a" and not piece else row]
        # Every second element is shuffled from two vectors; of what is computed, that takes as long as lane by lane.
        shuffled = load is not None and copied and load.strides[copied[-1]] == 2
        if copied and not blocks and not shuffled:
            apart = lanes_apart(expr, copied[-1])
        factors.append(
            Factor(
                name,
                inner,
                depends,
                direct,
                free,
                external,
                contiguous,
                slots,
                row_bytes,
                stored,
                runs,
                piece,
                apart,
                run,
                window,
                depth_bytes,
            )
        )
    found = replace(form, axes=tuple(named.items()), factors=tuple(factors), dot=dot)
    second = factors[1]
    if form.rows and found.extent("b") > 1 and second.external and not (second.direct or second.free):
        return None  # what all blocks of rows read is packed outside of them, and a copy is of one batch
    if found.extent("m") > 1:
        return found
    streams = second.contiguous and found.extent("n") * size >= LONG_ROW
    cached = math.inf if target is None else target.cached
    streams = streams and sum(kernel.operands[a.operand].nbytes for a in second.accesses) > cached
    return None if shared or streams or not second.free else found


def _step(load: Load | None, kernel: Kernel, axes: tuple[int, ...]) -> int | None:
    return None if load is None else stride_over(load.strides, kernel.extents, axes)


def _reads(group: KernelGroup, operand: int | FromStage | None) -> int:
    """How often stages read an operand of the group: what is read twice has one layout only for one of them."""
    return sum(stage.sources[load.operand] == operand for stage in group.stages for load in loads(stage.kernel))


def _slots(expr: Expr, functions: Functions) -> float:
    slots = slots_of(functions)
    return sum(slots.get(e.fn, 1.0) for e in walk(expr) if isinstance(e, Call))


@lru_cache(maxsize=1024)
def plain_axis(name: str) -> str:
    """The axis of a nest that a stage's own axis is called in the search: ``m0`` is ``m``, ``p1_0`` is ``p1``."""
    return name.partition("_")[0] if "_" in name else name.rstrip("0123456789")


def _vector(form: StageForm, bits: int) -> StageForm:
    """A map or a reduction: every axis of its normalized kernel by itself."""
    shared = len(form.outer) + len(form.rows)
    kernel = normalized(form.kernel, shared)
    axes = [("rows", form.rows)] if form.rows else []
    axes += [(f"p{a - shared}", (a,)) for a in range(shared, kernel.parallel)]
    axes += [(f"r{a - kernel.parallel}", (a,)) for a in range(kernel.parallel, len(kernel.extents))]
    return replace(form, kernel=kernel, axes=tuple(axes), bits=bits)


def element_bits(kernels: Iterable[Kernel]) -> int:
    """Width of the elements that vectors are counted in: 64 if nothing but masks is narrower, less if none is of 32.

    Float16 is computed in float32. Masks alone are counted in 32 bits.
    """
    found = {max(e.dtype.bits, 32 if e.dtype.is_float else 8) for k in kernels for e in _elements(k)}
    return 64 if found == {64} else min(32, max(found, default=32))


def _elements(kernel: Kernel) -> Iterator[Expr]:
    return (e for e in kernel.expressions if e.dtype.kind != "bool")
