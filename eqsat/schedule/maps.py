"""Which nests a map or a reduction may run by: checked before code is made, whoever made the nest."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.cost.target import TileOpRow
from eqsat.ir.kernel import Kernel, Load, unique
from eqsat.ir.nest import MAPS, Loop, Nest, TileOp, show
from eqsat.schedule.peel import may_peel
from eqsat.schedule.tensorize import Match, matches

__all__ = ["adjoining", "axes_of", "check_nest", "check_turns", "match_of", "tile_of"]


def axes_of(kernel: Kernel, shared: int = 0) -> dict[str, int]:
    """The axes that a nest of a normalized kernel names, past the first ``shared`` ones: kernel axis by name."""
    names = {f"p{a - shared}": a for a in range(shared, kernel.parallel)}
    return names | {f"r{a - kernel.parallel}": a for a in range(kernel.parallel, len(kernel.extents))}


def tile_of(nest: Nest) -> TileOp:
    """The tile of a nest of loops. ``ValueError`` if it is none."""
    while isinstance(nest, Loop):
        nest = nest.body
    if not isinstance(nest, TileOp):
        raise ValueError(f"a map or a reduction runs by loops around one tile, not by {show(nest)}")
    return nest


def check_nest(
    nest: Nest, kernel: Kernel, shared: int = 0, ops: Sequence[TileOpRow] = (), others: Sequence[Kernel] = ()
) -> None:
    """Whether a nest computes every result of a normalized kernel once, from every element that it takes.

    Raises ``ValueError`` naming the axis: one that the kernel does not have, one that is not covered, or by steps that
    overlap; threads that share a reduced axis whose steps have no results of their own; vectors that a tile cannot
    take; a loop that is peeled though no guard moves along its axis alone, or too many do. ``ops``: the tile operations
    on offer besides those of vectors; one applies where its semantics do. ``others``: kernels by the same loops.
    """
    axes, tile = axes_of(kernel, shared), tile_of(nest)
    where = f"in {show(nest)}"
    sizes = dict(tile.sizes)
    reduced = {name for name in axes if name.startswith("r")}
    positional = kernel.combine in ("argmax", "argmin")
    rows = [row for row in ops if row.name == tile.name and row.emit]
    if rows:
        match_of(tile, kernel, shared, rows)
    elif tile.name not in MAPS or ((tile.name == "map") != (kernel.combine is None) and (tile.name != "transpose")):
        raise ValueError(f"tile {tile.name!r} does not run a {'reduction' if kernel.combine else 'map'}, {where}")
    if tile.lanes < 1 or tile.lanes & (tile.lanes - 1):
        raise ValueError(f"vectors have a power of two of lanes, not {tile.lanes}, {where}")
    left = {name: max(1, kernel.extents[a]) for name, a in axes.items()}
    at: Nest = nest
    outside: list[Loop] = []
    while isinstance(at, Loop):
        if at.axis not in axes:
            raise ValueError(f"the kernel has no axis {at.axis!r}; it has {', '.join(axes) or 'none'}, {where}")
        name = at.axis
        if at.step < 1 or at.block != left[name]:
            raise ValueError(
                f"the loop over axis {name!r} walks {at.block} of {left[name]} elements in steps of {at.step}, {where}"
            )
        first = not any(loop.axis == name for loop in outside)
        if not first and at.block % at.step:
            raise ValueError(f"steps of {at.step} along axis {name!r} do not divide a block of {at.block}, {where}")
        check_turns(at)
        if at.split and (name not in reduced or outside or not at.parallel):
            raise ValueError(f"only the outermost, parallel loop over a reduced axis is split, not {name!r}, {where}")
        if at.parallel and not at.split and name in reduced:
            raise ValueError(
                f"threads cannot share the steps of axis {name!r}, which is reduced, unless it is split, {where}"
            )
        if at.parallel and any(loop.parallel or loop.axis in reduced for loop in outside):
            raise ValueError(
                f"the parallel loop over axis {name!r} is inside a reduction or another such loop, {where}"
            )
        if positional and name not in reduced and any(loop.axis in reduced and not loop.split for loop in outside):
            raise ValueError(f"positions are kept in registers, so axis {name!r} stays outside the reduction, {where}")
        if at.peel and (not first or at.split or not may_peel((kernel, *others), axes[name], at.step)):
            raise ValueError(f"axis {name!r} is not peeled: no few guards change along it alone, {where}")
        left[name] = at.step
        outside.append(at)
        at = at.body
    for name, size in left.items():
        whole = sizes.get(name, 1)
        looped = any(loop.axis == name for loop in outside)
        if (size != whole) if looped else (size > whole):
            raise ValueError(f"the tile takes {whole} elements of axis {name!r}, its loops leave {size}, {where}")
    if not rows:
        _check_tile(tile, axes, shared, reduced, positional, where)
        return
    for n, loop in enumerate(outside):
        if loop.axis not in reduced and any(o.axis in reduced and not o.split for o in outside[:n]):
            raise ValueError(f"the loop over axis {loop.axis!r} is inside a reduction by tile {tile.name!r}, {where}")


def check_turns(loop: Loop, part: bool = False) -> None:
    """Raise ``ValueError`` where the steps of a loop go in turns to threads that do not share it.

    Or where it asks for what contractions read, and is not the loop over the rows of a ``part`` of a group.
    """
    if loop.prefetch and not part:
        raise ValueError(
            f"the loop over {loop.axis} asks for data ahead, and is not over the rows of a part of a group"
        )
    if loop.cyclic and not loop.parallel:
        raise ValueError(f"threads do not share the loop over {loop.axis}, whose steps they take in turns")


def adjoining(kernel: Kernel, axis: int) -> bool:
    """Whether results of neighbours along an axis lie side by side, so that one vector may have them all.

    Lanes are combined first: not where positions of extremes are, or single bits.
    """
    if axis >= kernel.parallel or kernel.store_strides[axis] != 1:
        return False
    if kernel.combine in ("argmax", "argmin") or kernel.body.dtype.kind == "bool":
        return False
    return all(e.strides[axis] in (0, 1) for e in unique(kernel.epilogue) if isinstance(e, Load))


def match_of(
    tile: TileOp, kernel: Kernel, shared: int, ops: Sequence[TileOpRow]
) -> tuple[TileOpRow, Match, dict[str, int]]:
    """The tile operation of a nest, how it applies to a kernel, and the size of each axis of it that it takes.

    Raises ``ValueError``, naming the operation, where it does not, or takes other axes or more of one than it can.
    """
    axes, where = axes_of(kernel, shared), f"{tile.name}({', '.join(f'{a}={n}' for a, n in tile.sizes)})"
    wrong = [name for name, _ in tile.sizes if name not in axes]
    if wrong:
        raise ValueError(f"the axis {wrong[0]!r} of {where} is none of {', '.join(axes) or 'none'}")
    by_axis = {axes[name]: size for name, size in tile.sizes}
    for row in ops:
        if row.name != tile.name:
            continue
        for match in matches(row, kernel, shared):
            if set(match.assigned.values()) != set(by_axis):
                continue
            sizes = {name: by_axis[axis] for name, axis in match.assigned.items()}
            if all(n <= row.size(a) * (tile.lanes if a == row.lanes else 1) for a, n in sizes.items()):
                return row, match, sizes
    raise ValueError(f"tile {where} does not compute what the kernel does along these axes, by its semantics")


def _check_tile(
    tile: TileOp, axes: dict[str, int], shared: int, reduced: set[str], positional: bool, where: str
) -> None:
    names = [name for name, _ in tile.sizes]
    for name in names:
        if name not in axes:
            raise ValueError(f"the tile's axis {name!r} is none of {', '.join(axes) or 'none'}, {where}")
    if len(set(names)) < len(names) or len(names) > 2:
        raise ValueError(f"a tile takes vectors along one axis, and positions of another, not {names}, {where}")
    if tile.prefetch < 0 or (tile.prefetch and (not shared or len(names) != 1)):
        raise ValueError(f"vectors along one axis of a row ask for what the next row reads, not {tile.sizes}, {where}")
    if not names:
        return
    lanes, kinds = names[-1], {name in reduced for name in names}
    if tile.name == "transpose":
        if len(names) != 2 or len(kinds) > 1 or {size for _, size in tile.sizes} != {tile.lanes}:
            raise ValueError(f"a transposed block is lanes × lanes of two axes of one kind, not {tile.sizes}, {where}")
        if positional:
            raise ValueError(f"positions along axis {names[0]!r} are not found in transposed blocks, {where}")
    elif tile.size(lanes) % tile.lanes:
        raise ValueError(f"vectors along axis {lanes!r} take whole vectors of {tile.lanes} elements, {where}")
    if positional and any(name in reduced and tile.size(name) > (tile.lanes if name == lanes else 1) for name in names):
        raise ValueError(f"positions along axis {lanes!r} are found one vector at a time, {where}")
