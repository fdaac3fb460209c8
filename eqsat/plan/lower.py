"""Terms lowered to kernels in index notation.

Every node of a term is reached through an index map from the result's axes, so views, broadcasts and
split heads become strides of the loads at the leaves. Where two leaves cut an axis differently, the
axis is split into the coarsest digits that serve both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from eqsat.extract.terms import Read, Term
from eqsat.ir import views
from eqsat.ir.axes import merged
from eqsat.ir.joins import PadAttrs, pad_offset, part_offsets
from eqsat.ir.kernel import Acc, Call, Combine, Expr, Guarded, Index, Kernel, Literal, Load, Operand, map_expr, settle
from eqsat.ir.node import ConstArray
from eqsat.ir.sources import IotaAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType, int64, row_major
from eqsat.ir.views import ViewMap

COMBINES: dict[str, Combine] = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "argmax": "argmax",
    "argmin": "argmin",
}


@dataclass(frozen=True)
class Lowered:
    """Kernels that together store one tensor, in order; operand ``i`` of kernel ``k`` is the tensor ``reads[k][i]``."""

    kernels: tuple[Kernel, ...]
    reads: tuple[tuple[Read, ...], ...]
    out: TensorType


class _Inexpressible(Exception):
    """An index map that is not affine in any cut of the axes; the operand must be stored first."""


@dataclass(frozen=True)
class _Box:
    """Where a part of a tensor of ``shape`` begins, and how that tensor is seen."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    whole: _Seen


@dataclass(frozen=True)
class _Seen:
    """How a node is seen: ``map`` from the axes of the kernel, or from those of the part of a tensor that ``box`` is.

    Maps of a part are composed within the part, where every address is in range, and continued to the axes of the
    kernel at the leaves: guards keep what is out of range from being read.
    """

    map: ViewMap
    box: _Box | None = None

    def through(self, inner: ViewMap) -> _Seen:
        """An operand that the node is a view of."""
        return replace(self, map=_through(inner, self.map))

    def flat(self) -> ViewMap:
        """The map from the axes of the kernel."""
        map, box = self.map, self.box
        while box is not None:
            wide = views.lifted(map, box.shape, box.start)
            if wide is None:
                raise _Inexpressible(f"view {map} continued to {box.shape}")
            map, box = _through(wide, box.whole.map), box.whole.box
        return map


@dataclass
class _Leaf:
    """A load or index before the axes are cut."""

    map: ViewMap
    build: Callable[[int, tuple[int, ...]], Expr]


_Draft = _Leaf | Literal | Acc | tuple[str, tuple["_Draft", ...], DType, object]


def _opposites_first(node: Term, args: Sequence[_Draft]) -> list[tuple[_Draft, int]]:
    """The terms of a sum with their signs, those with both signs before others, which they would swallow.

    So cos(y) + (x - x) is no (cos(y) + x) - x, which is 0 for large x. The canonical order has them side by side.
    """
    assert isinstance(node.attrs, tuple)
    signs: dict[int, set[int]] = {}
    for child, sign in zip(node.children, node.attrs, strict=True):
        signs.setdefault(child.eclass, set()).add(sign)
    order = sorted(range(len(args)), key=lambda n: len(signs[node.children[n].eclass]) == 1)
    return [(args[n], node.attrs[n]) for n in order]


class _Lowering:
    """One kernel in the making: axis groups are the result's axes, then the reduced ones."""

    def __init__(self) -> None:
        self.reads: dict[int, int] = {}
        self.operands: list[Read] = []
        self.core: tuple[Term, ViewMap] | None = None
        self.core_body: _Draft | None = None
        self.combine: Combine | None = None
        self.reduced: tuple[int, ...] = ()
        self.leaves: list[ViewMap] = []
        self.done: dict[tuple[int, _Seen, bool], _Draft] = {}
        """The drafts of terms, by their identities: terms are in one another many times."""

    def operand(self, read: Read) -> int:
        number = self.reads.get(read.eclass)
        if number is None:
            number = self.reads[read.eclass] = len(self.operands)
            self.operands.append(read)
        return number

    def leaf(self, seen: _Seen, build: Callable[[int, tuple[int, ...]], Expr]) -> _Leaf:
        map = seen.flat()
        self.leaves.append(map)
        return _Leaf(map, build)

    def visit(self, node: Term | Read, seen: _Seen, inside: bool) -> _Draft:
        """The draft of ``node``; ``inside`` the core's operands and branches of guards no second core may come."""
        if isinstance(node, Read):
            number, dtype = self.operand(node), node.type.dtype
            return self.leaf(seen, lambda offset, strides: Load(number, offset, strides, dtype))
        key = id(node), seen, inside
        found = self.done.get(key)
        if found is None:
            found = self.done[key] = self._term(node, seen, inside)
        return found

    def _term(self, node: Term, seen: _Seen, inside: bool) -> _Draft:
        kind = OPS[node.op].kind
        if node.op == "const":
            assert isinstance(node.attrs, ConstArray)
            if node.attrs.array.size != 1:
                raise _Inexpressible("a constant tensor is read, not inlined")
            return Literal(node.attrs.array.reshape(-1)[0].item(), node.type.dtype)
        if node.op == "iota":
            assert isinstance(node.attrs, IotaAttrs)
            dtype = node.attrs.dtype
            return self.leaf(seen, lambda offset, strides: Index(offset, strides, dtype))
        if kind == "map":
            return self._map(node, seen, inside)
        if kind == "view":
            assert isinstance(node.attrs, ViewMap)
            return self.visit(node.children[0], seen.through(node.attrs), inside)
        if kind == "gather":
            return self._gather(node, seen)
        if kind == "pad":
            return self._pad(node, seen)
        if kind == "concat":
            return self._concat(node, seen)
        if kind in ("contract", "reduce") and not inside:
            return self._accumulate(node, seen.map)
        raise _Inexpressible(f"{node.op} cannot be inlined")

    def _part(self, node: Term, child: Term | Read, start: Sequence[int], seen: _Seen) -> _Draft:
        """An operand that lies in ``node`` from ``start`` on, read only there."""
        box = _Box(node.type.shape, tuple(start), seen)
        return self.visit(child, _Seen(views.identity(child.type.shape), box), True)

    def _guarded(
        self, node: Term, axis: int, bounds: tuple[int, int], seen: _Seen, inside: _Draft, outside: _Draft
    ) -> _Draft:
        """``inside`` where the position along an axis of ``node`` is within ``bounds``."""
        shape = node.type.shape
        position = seen.through(views.strided(shape, [int(a == axis) for a in range(len(shape))]))
        index = self.leaf(position, lambda offset, strides: Index(offset, strides, int64))
        return ("guarded", (index, inside, outside), node.type.dtype, bounds)

    def _pad(self, node: Term, seen: _Seen) -> _Draft:
        (child,) = node.children
        assert isinstance(node.attrs, PadAttrs)
        widths, fill = node.attrs.widths, Literal(node.attrs.value, node.type.dtype)
        if not child.type.size:
            return fill
        draft = self._part(node, child, [low for low, _ in widths], seen)
        for axis, (n, (low, high)) in reversed(list(enumerate(zip(child.type.shape, widths, strict=True)))):
            if low or high:
                draft = self._guarded(node, axis, (low, low + n), seen, draft, fill)
        return draft

    def _concat(self, node: Term, seen: _Seen) -> _Draft:
        assert isinstance(node.attrs, int)
        axis, at = node.attrs, 0
        parts: list[tuple[_Draft, tuple[int, int]]] = []
        for child in node.children:
            width = child.type.shape[axis]
            if child.type.size:
                start = [at if a == axis else 0 for a in range(child.type.ndim)]
                parts.append((self._part(node, child, start, seen), (at, at + width)))
            at += width
        if not parts:
            raise _Inexpressible("a concatenation of nothing")
        draft, _ = parts.pop()
        for part, bounds in reversed(parts):
            draft = self._guarded(node, axis, bounds, seen, part, draft)
        return draft

    def _map(self, node: Term, seen: _Seen, inside: bool) -> _Draft:
        args = []
        for child in node.children:
            through = seen
            if child.type.shape != node.type.shape:
                through = seen.through(views.broadcast(child.type.shape, node.type.shape))
            args.append(self.visit(child, through, inside))
        dtype = node.type.dtype
        if node.op == "add_n":
            assert isinstance(node.attrs, tuple)
            (first, sign), *rest = _opposites_first(node, args)
            total: _Draft = first if sign > 0 else ("neg", (first,), dtype, None)
            for arg, sign in rest:
                total = ("add" if sign > 0 else "sub", (total, arg), dtype, None)
            return total
        return (node.op, tuple(args), dtype, None if node.op == "cast" else node.attrs)

    def _gather(self, node: Term, seen: _Seen) -> _Draft:
        table, index = node.children
        assert isinstance(node.attrs, int)
        axis, width = node.attrs, index.type.ndim
        shape = node.type.shape
        steps = row_major(table.type.shape)
        around = strides_around(steps, axis, width)
        within = (0,) * axis + row_major(index.type.shape) + (0,) * (len(shape) - axis - width)
        at = self.visit(index, seen.through(views.strided(shape, within)), True)
        base, table_seen = table, seen.through(views.strided(shape, around))
        pitch = steps[axis]
        while isinstance(base, Term) and base.op == "view":
            assert isinstance(base.attrs, ViewMap)
            column = views.compose(base.attrs, views.strided((table.type.shape[axis],), (pitch,)))
            if column is None or column.strides is None:
                raise _Inexpressible("a gather through this view of the table")
            # The gathered axis contributes its own steps; the rest keeps the view's offset once.
            pitch, table_seen, base = column.strides[0], table_seen.through(base.attrs), base.children[0]
        if not isinstance(base, Read):
            raise _Inexpressible("a gather needs its table stored")
        number, dtype = self.operand(base), node.type.dtype
        leaf = self.leaf(table_seen, lambda offset, strides: Load(number, offset, strides, dtype))
        return ("gather", (leaf, at), dtype, pitch)

    def _accumulate(self, node: Term, map: ViewMap) -> _Draft:
        if self.core is not None:
            if self.core != (node, map):
                raise _Inexpressible("two different accumulations in one kernel")
            return Acc(node.type.dtype)
        if not map.is_one_to_one(node.type.size):
            raise _Inexpressible("an accumulated value is used once per element, not broadcast or cut")
        self.core = (node, map)
        shape = node.type.shape
        if node.op == "contract":
            spec = node.attrs
            assert isinstance(spec, Spec)
            a, b = node.children
            extents = spec.extents(a.type.shape, b.type.shape)
            self.combine, self.reduced = "sum", tuple(extents[x] for x in spec.summed)
            factors = []
            for child, labels in ((a, spec.a), (b, spec.b)):
                step = dict(zip(labels, row_major(child.type.shape), strict=True))
                outer = _through(views.strided(shape, [step.get(x, 0) for x in spec.out]), map)
                factors.append(self.visit(child, _Seen(_extend(outer, spec.summed, step, self.reduced)), True))
            self.core_body = ("mul", tuple(factors), node.type.dtype, None)
        else:
            (child,) = node.children
            axes = node.attrs
            assert isinstance(axes, tuple)
            steps = row_major(child.type.shape)
            self.combine, self.reduced = COMBINES[node.op], tuple(child.type.shape[a] for a in axes)
            outer = _through(views.strided(shape, [s for a, s in enumerate(steps) if a not in axes]), map)
            step = dict(enumerate(steps))
            self.core_body = self.visit(child, _Seen(_extend(outer, axes, step, self.reduced)), True)
        return Acc(node.type.dtype)


def strides_around(steps: Sequence[int], axis: int, width: int) -> tuple[int, ...]:
    """Table strides over a gather's result axes: 0 where the index's axes stand."""
    return (*steps[:axis], *((0,) * width), *steps[axis + 1 :])


def _through(inner: ViewMap, outer: ViewMap) -> ViewMap:
    both = views.compose(inner, outer)
    if both is None:
        raise _Inexpressible(f"view {inner} through {outer}")
    return both


def _extend(map: ViewMap, labels: Sequence[int], step: dict[int, int], extents: Sequence[int]) -> ViewMap:
    """``map`` with one more axis per reduced label."""
    tail = [[(n, step[x])] for x, n in zip(labels, extents, strict=True)]
    return views.view_map([*map.axes, *tail], map.offset)


def _cut(lowering: _Lowering, shape: Sequence[int]) -> list[list[int]]:
    """For each axis group, the sizes of the digits it is split into."""
    groups = [*shape, *lowering.reduced]
    cuts = []
    for group, extent in enumerate(groups):
        reduced = group >= len(shape)
        if extent == 0 or (lowering.combine in ("argmax", "argmin") and reduced):
            cuts.append([extent])
            continue
        asked = [[n for n, _ in map.axes[group]] for map in lowering.leaves if group < len(map.axes)]
        if lowering.core is not None and not reduced:
            asked.append([n for n, _ in lowering.core[1].axes[group]])
        refined = views.common_refinement(extent, [sizes for sizes in asked if sizes])
        if refined is None:
            raise _Inexpressible(f"axis of {extent} cut in ways that do not refine one another")
        cuts.append(refined)
    return cuts


def _strides(map: ViewMap, cuts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    out: list[int] = []
    for group, sizes in enumerate(cuts):
        atoms = map.axes[group] if group < len(map.axes) else ()
        if not atoms or 0 in sizes:
            out.extend([0] * len(sizes))
            continue
        strides = views.recut(atoms, sizes)
        if strides is None:
            raise _Inexpressible(f"axis {atoms} in digits {sizes}")
        out.extend(strides)
    return tuple(out)


def _finish(draft: _Draft, cuts: Sequence[Sequence[int]]) -> Expr:
    """The expression of a draft; of what is in it several times, the same one."""
    done: dict[int, Expr] = {}

    def finish(part: _Draft) -> Expr:
        found = done.get(id(part))
        if found is None:
            found = done[id(part)] = _finished(part, cuts, finish)
        return found

    return finish(draft)


def _finished(draft: _Draft, cuts: Sequence[Sequence[int]], finish: Callable[[_Draft], Expr]) -> Expr:
    if isinstance(draft, _Leaf):
        return draft.build(draft.map.offset, _strides(draft.map, cuts))
    if isinstance(draft, Literal | Acc):
        return draft
    fn, args, dtype, attrs = draft
    exprs = tuple([finish(arg) for arg in args])
    if fn == "gather":
        load, index = exprs
        assert isinstance(load, Load) and isinstance(attrs, int)
        return replace(load, gathers=((index, attrs),))
    if fn == "guarded":
        index, inside, outside = exprs
        assert isinstance(index, Index) and isinstance(attrs, tuple)
        low, high = attrs
        return Guarded(index, low, high, inside, outside)
    return Call(fn, exprs, dtype, attrs)


def _one(node: Term | Read, shape: Sequence[int], out: TensorType, offset: int) -> tuple[Kernel, tuple[Read, ...]]:
    """The kernel that stores ``node`` (of ``shape``) into its place in ``out``, and what it reads."""
    lowering = _Lowering()
    draft = lowering.visit(node, _Seen(views.identity(shape)), False)
    cuts = _cut(lowering, shape)
    extents = [n for sizes in cuts for n in sizes]
    parallel = sum(len(sizes) for sizes in cuts[: len(shape)])
    base = row_major(out.shape)
    store: list[int] = []
    for stride, sizes in zip(base, cuts, strict=False):
        step, digits = stride, []
        for n in reversed(sizes):
            digits.append(step)
            step *= n
        store.extend(reversed(digits))
    if lowering.core_body is not None:
        body, epilogue = _finish(lowering.core_body, cuts), _finish(draft, cuts[: len(shape)])
        assert lowering.core is not None
        dtype = int64 if lowering.combine in ("argmax", "argmin") else lowering.core[0].type.dtype
        if parallel == len(extents):  # every reduced axis has extent 1: nothing is accumulated
            lowering.combine, body, epilogue = None, _with_acc(epilogue, body), Acc(out.dtype)
        else:
            epilogue = _padded(epilogue, len(extents)) if not isinstance(epilogue, Acc) else Acc(dtype)
    else:
        body = _finish(draft, cuts)
        epilogue = Acc(body.dtype)
    bounds = tuple((0, n) for n in extents)
    kernel = Kernel(
        tuple(extents),
        parallel,
        lowering.combine,
        merged(settle(body, bounds)),
        merged(settle(epilogue, bounds)),
        tuple(Operand(r.type.dtype, r.type.size, r.const) for r in lowering.operands),
        Operand(out.dtype, out.size),
        offset,
        tuple(store),
    )
    return kernel, tuple(lowering.operands)


def _with_acc(expr: Expr, value: Expr) -> Expr:
    """An epilogue with the accumulated value in its place."""
    return map_expr(expr, lambda e: value if isinstance(e, Acc) else e)


def _padded(expr: Expr, axes: int) -> Expr:
    """An epilogue's accesses with stride 0 along the reduced axes."""

    def wide(e: Expr) -> Expr:
        return replace(e, strides=e.strides + (0,) * (axes - len(e.strides))) if isinstance(e, Load | Index) else e

    return map_expr(expr, wide)


def _filled(term: Term) -> list[tuple[Kernel, tuple[Read, ...]]]:
    """The kernels of a padding: one that fills the whole, and one that stores the inside."""
    (child,) = term.children
    out = term.type
    assert isinstance(term.attrs, PadAttrs)
    fill, buffer = Literal(term.attrs.value, out.dtype), Operand(out.dtype, out.size)
    offset = pad_offset(child.type.shape, term.attrs)
    whole = Kernel((out.size,), 1, None, fill, Acc(out.dtype), (), buffer, 0, (1,))
    return [(whole, ()), _one(child, child.type.shape, out, offset)]


def lower(term: Term) -> Lowered | None:
    """The kernels of a term, or None where an index map is not expressible and an operand must be stored.

    Where it is stored, a concatenation gives one kernel per part, and so does the padding of an accumulated tensor: a
    fill and the interior. Elsewhere they are guards.
    """
    out = term.type
    made: list[tuple[Kernel, tuple[Read, ...]]] = []
    try:
        if term.op == "concat":
            assert isinstance(term.attrs, int)
            offsets = part_offsets([c.type for c in term.children], term.attrs)
            for child, offset in zip(term.children, offsets, strict=True):
                if child.type.size:
                    made.append(_one(child, child.type.shape, out, offset))
        elif term.op == "pad":
            try:
                made.append(_one(term, out.shape, out, 0))
            except _Inexpressible:
                made.extend(_filled(term))
        elif OPS[term.op].kind in ("opaque", "composite"):
            return None
        else:
            made.append(_one(term, out.shape, out, 0))
    except _Inexpressible:
        return None
    return Lowered(tuple(kernel for kernel, _ in made), tuple(reads for _, reads in made), out)
