"""Contractions as kernels: a loop nest around a register tile, with its packing and its epilogue.

The structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), with
one difference: the first factor is not transposed into panels. A register tile reads it by broadcasts at
immediate offsets, row by row, so that it needs no copy at all unless its rows fall on the same cache sets.
Loops, their order and what is packed where are those of the nest.
"""

from __future__ import annotations

from eqsat.ir.contraction import Contraction, Planes, contraction_of, plain, product_of
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest, Pack, TileOp, show
from eqsat.schedule import below, check, is_parallel
from eqsat.schedule.domain import rows_of
from eqsat_backends.numba_cpu.printing.contract_layout import tile_size
from eqsat_backends.numba_cpu.printing.contract_printer import ContractPrinter, shaped
from eqsat_backends.numba_cpu.printing.emitted import Axes, Emitted, PackSpec
from eqsat_backends.numba_cpu.printing.printer import Printer
from eqsat_backends.numba_cpu.printing.source import Module, Scratch, address
from eqsat_backends.numba_cpu.target import Target


def emit(group: KernelGroup, nest: Nest, target: Target) -> Emitted:
    """Print a group of one contraction stage by a nest (see ``eqsat.ir.nest``).

    Raises:
        ValueError: the group has several stages, or is no contraction, or the nest is not a legal one of it.
    """
    if len(group.stages) != 1:
        raise ValueError(f"group {group.name!r} has {len(group.stages)} stages; blocks.emit takes several")
    (stage,) = group.stages
    product = product_of(stage.kernel, offered=target.matrix)
    tile = below(nest)
    if product is None or not isinstance(tile, TileOp) or tile.name == "vector":
        raise ValueError(f"{show(nest)} is no nest of a contraction, which group {group.name!r} should be")
    check(nest, group, target.lanes(), target.registers, target.matrix)
    c = contraction_of(stage.kernel, product)
    places = [source for source in stage.sources if isinstance(source, int)]
    result = stage.result
    assert len(places) == len(stage.sources) and result is not None
    width = target.lanes(c.dtype.bits)
    printer, module = Printer(width), Module(f"{group.name}: {c}: {show(nest)}")
    scratch, shared = Scratch(), Scratch()
    matrix, (rows, columns) = c.dot.element.name in target.matrix, tile_size(c, tile, width)
    ahead, factors, body = "", list[Pack](), nest
    while isinstance(body, Pack) and (body.ahead or is_parallel(body.body)):
        if body.ahead:
            ahead += body.operand
        else:
            factors.append(body)
        body = body.body

    def printing(used: set[int]) -> ContractPrinter:
        words = {place: f"x{place}" for place in sorted(used)}
        for place, name in words.items():
            printer.bind(name, f"word(args, {place})")
        count = len(group.operands)
        printer.bind("shared", f"word(args, {count})")
        printer.bind("scratch", f"word(args, {count + 1}) + THREAD_BYTES * tid")
        printer.bind("status", f"word(args, {count + 2})")
        bases = {operand: words[place] for operand, place in enumerate(places) if place in words}
        store = words.get(result, "")
        nests = ContractPrinter(module, printer, scratch, c, bases, store, tile, ahead=ahead, matrix=matrix)
        if planes:
            nests.bases, nests.beside = {**bases, planes.load.operand: "shared"}, planes.load
        return nests

    offsets, planes = {}, None if "b" in ahead else c.planes
    phases: dict[str, Planes | Pack] = {"planes": planes} if planes else {}
    phases |= {f"pack_{pack.operand}": pack for pack in factors}
    for name, what in phases.items():
        with printer.scope(f"def {name}(args, tid, nt):", "args", "tid", "nt"):
            if isinstance(what, Pack):
                offsets[what.operand] = printing(set(places)).pack_shared(what, shared)
            else:
                printing(set(places)).put_beside(what, shared)
        printer.line("")
        printer.line("")
    with printer.scope("def contract(args, tid, nt):", "args", "tid", "nt"):
        nests = printing({*places, result, *group.unless})
        if group.unless:
            printer.bind("every", " | ".join(f"word(x{place}, 0)" for place in group.unless))
            nests.bounded = rows_of(nest, c.kernel, c.m, c.k)
        for which, offset in offsets.items():
            nests.sources[which] = nests.panels(which, address("shared", (1, str(offset))), shared=True)
        if not c.kernel.results:
            printer.line("return")
        else:
            with shaped(printer, module, c.dot.element.name if matrix else ""):
                if is_parallel(body):
                    nests.walk(body)
                else:
                    with printer.scope("if tid == 0:"):
                        nests.walk(body)
    source = module.render(printer.text().replace("THREAD_BYTES", str(scratch.bytes)))
    packs = tuple(pack_spec(c, which, places, (1 if matrix else rows, columns)) for which in ahead)
    return Emitted(source, (*phases, "contract"), shared.bytes, scratch.bytes, packs)


def pack_spec(c: Contraction, which: str, places: list[int], tile: tuple[int, int]) -> PackSpec:
    """How the plan packs a constant factor for tiles of (rows, columns); ``places``: operands as the group has them."""
    load = plain(c.a if which == "a" else c.b)
    assert load is not None

    def axes(group: str) -> Axes:
        return tuple((c.kernel.extents[axis], load.strides[axis]) for axis in c.group(group))

    varying, width = (axes("m"), tile[0]) if which == "a" else (axes("n"), tile[1])
    batch = axes("b") if c.varies(load) else ()
    return PackSpec(places[load.operand], load.offset, batch, varying, axes("k"), width, c.dot.depth)
