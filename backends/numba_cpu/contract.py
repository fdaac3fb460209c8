"""Contractions as kernels: a loop nest around a register tile, with its packing and its epilogue.

The structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), with
one difference: the first factor is not transposed into panels. A register tile reads it by broadcasts at
immediate offsets, row by row, so that it needs no copy at all unless its rows fall on the same cache sets.
"""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.movement import thrashes
from eqsat.ir.kernel import KernelGroup, Load
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat_backends.numba_cpu.axes import map_axes
from eqsat_backends.numba_cpu.contract_layout import UPDATE_DEPTH, tile_size
from eqsat_backends.numba_cpu.contract_printer import ContractPrinter
from eqsat_backends.numba_cpu.emitted import Axes, Emitted, PackSpec
from eqsat_backends.numba_cpu.factors import Contraction, contraction_of, loads, plain
from eqsat_backends.numba_cpu.printer import Printer
from eqsat_backends.numba_cpu.source import Module, Scratch, address
from eqsat_backends.numba_cpu.target import Target, host
from eqsat_backends.numba_cpu.tiles import tile_shape

L2_BLOCK = 512 * 1024
"""Bytes of the first factor kept in the second-level cache while the second one streams by."""

SUMS_BLOCK = 2 * 1024 * 1024
"""Bytes of partial sums of a block of rows, where k is too long for one pass."""

K_BLOCK = 512
"""Steps of k after which partial sums are put down, which bounds the rounding error."""


def emit(
    group: KernelGroup, nest: Nest | None = None, *, lanes: int | None = None, target: Target | None = None
) -> Emitted:
    """Print a group of one contraction stage.

    ``lanes``: float32 lanes of a vector (those of ``target`` by default). ``nest``: a schedule (see ``eqsat.ir.nest``);
    None picks one. Products without a register tile (integers, dot products) are printed as reductions.

    Raises:
        ValueError: the group has several stages, or the nest does not fit the contraction.
    """
    if len(group.stages) != 1:
        raise ValueError(f"group {group.name!r} has {len(group.stages)} stages; blocks.emit takes several")
    stage = group.stages[0]
    contraction = contraction_of(stage.kernel)
    if contraction is None or _is_dot(contraction):
        from eqsat_backends.numba_cpu import loops

        return loops.emit(_with_reduced_axis(group), None, lanes=lanes, target=target)
    width = lanes or (target or host()).lanes()
    width = max(1, width * 4 // contraction.dtype.itemsize)
    places = [source for source in stage.sources if isinstance(source, int)]
    assert len(places) == len(stage.sources) and stage.result is not None
    if nest is None or tile_of(nest).name == "vector":
        nest = default_nest(contraction, width)
    tile = tile_of(nest)
    prepack = prepacked(contraction, nest, tile_size(contraction, tile, width)[0])
    title = f"{group.name}: {describe(contraction)}: {show(nest)}"
    return _print(group, contraction, nest, width, places, stage.result, prepack, title)


def _is_dot(c: Contraction) -> bool:
    """Whether results are dot products of one row with rows that lie contiguous and are not known beforehand."""
    load = plain(c.b, c.dtype)
    if load is None or c.extent("m") > 1:
        return False
    return c.stride(load, "k") == 1 and c.stride(load, "n") != 1 and not c.kernel.operands[load.operand].const


def _with_reduced_axis(group: KernelGroup) -> KernelGroup:
    """The group of one kernel with an axis of extent 1 to reduce, if it has none."""
    (stage,) = group.stages
    kernel = stage.kernel
    if len(kernel.extents) > kernel.parallel:
        return group
    wider = map_axes(kernel, lambda strides: (*strides, 0), kernel.parallel)
    return replace(group, stages=(replace(stage, kernel=replace(wider, extents=(*kernel.extents, 1))),))


def describe(c: Contraction) -> str:
    """``batch × m × n × k``, for people."""
    batch = f"{c.extent('b')}×" if c.batch else ""
    return f"{batch}{c.extent('m')}×{c.extent('n')}×{c.extent('k')} {c.dtype}"


def tile_of(nest: Nest) -> TileOp:
    """The tile operation of a contraction's nest."""
    match nest:
        case Loop(body=body) | Pack(body=body):
            return tile_of(body)
        case TileOp():
            return nest
        case Seq():
            raise ValueError("the nest of a contraction has one tile operation, not a sequence")


def packs_of(nest: Nest) -> set[str]:
    """The factors that a nest packs at run time."""
    match nest:
        case Pack(which, body):
            return {which} | packs_of(body)
        case Loop(body=body):
            return packs_of(body)
        case _:
            return set()


def prepacked(c: Contraction, nest: Nest, rows: int) -> dict[int, str]:
    """Constant operands to be packed when the plan is built: operand -> which factor it is."""
    found: dict[int, str] = {}
    runtime = packs_of(nest)
    for which, expr in (("b", c.b), ("a", c.a)):
        load = plain(expr, c.dtype)
        if load is None or which in runtime or not c.kernel.operands[load.operand].const:
            continue
        if sum(other.operand == load.operand for other in loads(c.kernel)) > 1:
            continue  # it is read elsewhere too, in its own layout
        if which == "a" and (load.operand in found or not needs_copy(c, rows)):
            continue
        found[load.operand] = which
    return found


def needs_copy(c: Contraction, rows: int) -> bool:
    """Whether a register tile of so many rows cannot read the first factor well where it lies."""
    load = plain(c.a, c.dtype)
    if load is None:
        return True
    step, k_step, size = c.stride(load, "m"), c.stride(load, "k"), c.dtype.itemsize
    if step is None or k_step is None:
        return True
    if k_step in (0, 1) or c.extent("k") == 1:
        return thrashes(abs(step) * size, min(rows, c.extent("m")))
    return c.extent("m") > 1 and abs(k_step) * size * c.extent("k") > 32 * 1024


def in_place(c: Contraction, rows: int, columns: int) -> bool:
    """Whether the second factor is best read where it lies: one pass over it, or small enough to stay in L1."""
    load = plain(c.b, c.dtype)
    if load is None:
        return False
    step, k_step, size = c.stride(load, "n"), c.stride(load, "k"), c.dtype.itemsize
    if step != 1 or k_step is None:
        return False
    if c.extent("m") <= rows:
        return True
    depth = c.extent("k")
    return depth * columns * size <= 24 * 1024 and not (depth > 4 and thrashes(abs(k_step) * size, min(depth, 64)))


def default_nest(c: Contraction, lanes: int) -> Nest:
    """A nest that is good without a search; ``lanes``: lanes of the contraction's element type."""
    batch, m, n, k = (c.extent(group) for group in "bmnk")
    size = c.dtype.itemsize
    registers = 32 if lanes * size >= 64 else 16
    rows, vectors = tile_shape(lanes * size // 4)
    if m <= rows:
        rows = max(1, m)
        vectors = max(v for v in range(1, 9) if v == 1 or rows * v + v < registers)
    columns = min(vectors, max(1, -(-n // lanes))) * lanes
    m_tiles, n_tiles = -(-m // rows), -(-n // columns)
    parallel = "b" if batch >= 8 or (batch > 1 and batch % 2 == 0) else "m" if m_tiles >= max(16, n_tiles // 8) else "n"
    if parallel == "n" and n_tiles < m_tiles:
        parallel = "m"
    b_load = plain(c.b, c.dtype)
    const_b = b_load is not None and c.kernel.operands[b_load.operand].const
    copy_b = not const_b and not in_place(c, rows, columns)
    a_load = plain(c.a, c.dtype)
    const_a = a_load is not None and c.kernel.operands[a_load.operand].const
    copy_a = not const_a and needs_copy(c, rows)

    if m <= rows and copy_b is False and not const_b and k * n * size > L2_BLOCK and parallel != "b":
        return _update_nest(batch, m, n, k, lanes * 4, copy_a)

    k_step = _even(k, 2 * K_BLOCK, 16) if m > rows else max(k, 1)
    chain = _even(k_step, K_BLOCK if m > rows else 2 * K_BLOCK, 16)
    m_step = max(1, L2_BLOCK // max(1, k_step * size) // rows) * rows
    n_step = max(1, L2_BLOCK // max(1, k_step * size) // columns) * columns
    inner: Nest = TileOp("fma", (("m", rows), ("n", columns), ("k", min(k, chain))))
    if k_step > chain:
        inner = Loop("k", k_step, chain, inner)
    tile_loops = inner
    if parallel == "n":
        n_step = min(n_step // 2 or columns, 8 * columns) // columns * columns or columns
        inner = Loop("n", n_step, columns, Loop("m", m, rows, inner))
        if copy_b:
            inner = Pack("b", inner)
        if k > k_step:
            inner = Loop("k", k, k_step, inner)
        inner = Loop("n", n, n_step, inner, parallel=True)
        inner = Pack("a", inner) if copy_a else inner
        return Loop("b", batch, 1, inner) if batch > 1 else inner
    if k <= 256 and k == k_step:
        # short sums: the second factor stays in cache, and results go out row by row
        inner = Loop("m", min(m, m_step), rows, Loop("n", min(n, n_step), columns, inner))
        inner = Loop("n", n, n_step, inner)
    else:
        inner = Loop("n", n, columns, Loop("m", min(m, m_step), rows, inner))
    n_block = max(1, SUMS_BLOCK // (max(1, min(m, m_step)) * size) // columns) * columns
    if k > k_step and n > n_block:
        inner = Loop("n", n_block, columns, Loop("m", min(m, m_step), rows, tile_loops))
    if copy_a:
        inner = Pack("a", inner)
    if k > k_step:
        inner = Loop("k", k, k_step, inner)
        inner = Loop("n", n, n_block, inner) if n > n_block else inner
    inner = Loop("m", m, m_step, inner, parallel=parallel == "m")
    if parallel == "b":
        return Loop("b", batch, 1, Pack("b", inner) if copy_b else inner, parallel=True)
    inner = Loop("b", batch, 1, inner) if batch > 1 else inner
    return Pack("b", inner) if copy_b else inner


def _even(extent: int, most: int, multiple: int) -> int:
    """The step that cuts ``extent`` in equal blocks of at most about ``most``."""
    blocks = max(1, round(extent / most + 0.25))
    step = -(-extent // blocks)
    return max(1, step if blocks == 1 else -(-step // multiple) * multiple)


def _update_nest(batch: int, m: int, n: int, k: int, unit: int, copy_a: bool) -> Nest:
    """Few rows, and a second factor that streams from memory: whole rows of it, one after the other."""
    inner: Nest = TileOp("update", (("m", m), ("n", unit), ("k", UPDATE_DEPTH)))
    inner = Loop("k", k, UPDATE_DEPTH, inner)
    block = min(n, max(4096, 65536 // max(1, m)))
    inner = Loop("n", n, -(-block // unit) * unit, Pack("a", inner) if copy_a else inner, parallel=True)
    return Loop("b", batch, 1, inner) if batch > 1 else inner


def _print(
    group: KernelGroup,
    c: Contraction,
    nest: Nest,
    lanes: int,
    places: list[int],
    result: int,
    prepack: dict[int, str],
    title: str,
) -> Emitted:
    tile = tile_of(nest)
    module, scratch, shared = Module(title), Scratch(), Scratch()
    printer = Printer(lanes)
    phases: list[str] = []

    def printing(used: set[int]) -> ContractPrinter:
        words = {place: f"x{place}" for place in sorted(used)}
        for place, name in words.items():
            printer.bind(name, f"word(args, {place})")
        count = len(group.operands)
        printer.bind("shared", f"word(args, {count})")
        printer.bind("scratch", f"word(args, {count + 1}) + THREAD_BYTES * tid")
        printer.bind("status", f"word(args, {count + 2})")
        bases = {operand: words[place] for operand, place in enumerate(places) if place in words}
        return ContractPrinter(
            module, printer, scratch, c, bases, words.get(result, ""), tile, packed=frozenset(prepack)
        )

    body, factors = nest, []
    while isinstance(body, Pack) and _is_shared(body.body):
        factors.append(body.operand)
        body = body.body
    offsets = {}
    for which in factors:
        phases.append(f"pack_{which}")
        with printer.scope(f"def pack_{which}(args, tid, nt):", "args", "tid", "nt"):
            offsets[which] = printing(set(places)).pack_shared(which, shared)
        printer.line("")
        printer.line("")
    phases.append("contract")
    with printer.scope("def contract(args, tid, nt):", "args", "tid", "nt"):
        nests = printing({*places, result})
        for which, offset in offsets.items():
            nests.sources[which] = nests.panels(which, address("shared", (1, str(offset))))
        if not c.kernel.results:
            printer.line("return")
        elif _has_parallel(body):
            nests.walk(body)
        else:
            with printer.scope("if tid == 0:"):
                nests.walk(body)
    thread_bytes = -(-scratch.bytes // 64) * 64
    source = module.render(printer.text().replace("THREAD_BYTES", str(thread_bytes)))
    return Emitted(
        source, tuple(phases), shared.bytes, thread_bytes, packs_for(c, prepack, places, tile_size(c, tile, lanes))
    )


def _has_parallel(nest: Nest) -> bool:
    match nest:
        case Loop(parallel=parallel, body=body):
            return parallel or _has_parallel(body)
        case Pack(body=body):
            return _has_parallel(body)
        case _:
            return False


def _is_shared(nest: Nest) -> bool:
    """Whether what is packed above a nest serves several threads, or several batches."""
    match nest:
        case Loop(axis, _, _, body, parallel):
            return parallel or axis == "b" or _is_shared(body)
        case Pack(body=body):
            return _is_shared(body)
        case _:
            return False


def packs_for(
    c: Contraction, prepack: dict[int, str], places: list[int], tile: tuple[int, int]
) -> tuple[PackSpec, ...]:
    """How the plan packs constant factors; operands are numbered as in the group."""
    packs = []
    for operand, which in prepack.items():
        load = plain(c.a if which == "a" else c.b, c.dtype)
        assert load is not None

        def axes(group: str, load: Load = load) -> Axes:
            return tuple((c.kernel.extents[axis], load.strides[axis]) for axis in c.group(group))

        width = tile[0] if which == "a" else tile[1]
        varying = axes("m" if which == "a" else "n")
        packs.append(PackSpec(places[operand], load.offset, axes("b"), varying, axes("k"), width))
    return tuple(packs)
