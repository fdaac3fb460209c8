"""The dynamic program over an e-graph of loop nests.

A nest is priced from the inside out, from its blocks alone (see ``eqsat.schedule.price``), so the e-class of a
block needs only a small Pareto set over compute, bytes by level, and scratch.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import le
from typing import NamedTuple

from eqsat.cost.target import Moved
from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.nests import ENode, NestGraph
from eqsat.schedule.loop_price import (
    inner_seconds,
    join,
    loop_moved,
    loop_steps,
    order_counts,
    pack_moved,
    shared_moved,
    split_seconds,
    sums_bytes,
    total_seconds,
    widen,
)
from eqsat.schedule.price import Block, Pricer, Summary
from eqsat.schedule.problem import plain_axis
from eqsat.schedule.tiles import ceil_div
from eqsat.schedule.vectors import sizes_of_text

WIDTH = 6
"""Entries kept in a Pareto set."""

LOOPS = ("Loop", "Par", "Cyclic", "Split", "Ahead", "Peel", "PeelPar")
"""The terms that walk an axis."""
SHARED = ("Par", "Cyclic", "Split", "PeelPar")
"""Those whose steps threads share."""


Inside = tuple[tuple[str, ...], tuple[tuple[str, int], ...], bool]


class Entry(NamedTuple):
    """One way to run a block.

    Seconds of the units, bytes by origin, fixed seconds, scratch bytes; and the e-node that says how.
    """

    compute: float
    moved: Moved
    fixed: float
    scratch: float
    node: ENode
    children: tuple[Entry, ...]

    @property
    def inside(self) -> Inside:
        """In a map or reduction: axes of the loops in it, outermost first, its tile, and whether that streams."""
        found, at = [], self
        while at.node.op in LOOPS:
            found.append(plain_axis(str(at.node.args[0])))
            at = at.children[0]
        sizes = tuple((plain_axis(a), n) for a, n in tile_sizes(at.node))
        return tuple(found), sizes, bool(sizes) and streams(at.node)

    def keeps(self, axis: str) -> bool:
        """Whether accumulators outlive a loop over ``axis`` around this.

        A tile operation's are those of one tile, so loops over parallel axes stay outside of those over reduced ones.
        """
        if not axis.startswith("r"):
            return True
        at, inside = self, False
        while at.node.op in LOOPS:
            inside |= str(at.node.args[0]).startswith("p")
            at = at.children[0]
        return at.node.op != "Op" or not inside


def tile_sizes(node: ENode) -> tuple[tuple[str, int], ...]:
    """Axes and sizes of a tile of a map or reduction, the lanes' last; of any other term nothing."""
    match node.op, node.args:
        case "Vector", (_, other, count, axis, size, _, _):
            return tuple((str(a), int(n)) for a, n in ((other, count), (axis, size)) if a)
        case "Transpose", (_, first, second, lanes, _):
            return (str(first), int(lanes)), (str(second), int(lanes))
        case "Op", (_, _, sizes):
            return sizes_of_text(str(sizes))
    return ()


def tile_block(i: int, m: int, n: int, k: int, a: bool, b: bool) -> Block:
    """The block of a register tile of a contraction."""
    packed = frozenset((i, name) for name, flag in (("a", a), ("b", b)) if flag)
    return Block(frozenset({i}), ((f"k{i}", k), (f"m{i}", m), (f"n{i}", n)), packed)


def streams(node: ENode) -> bool:
    """Whether the results of a tile of vectors go past the caches."""
    match node.op, node.args:
        case ("Vector", (*_, stream, _)) | ("Transpose", (*_, stream)):
            return bool(stream)
    return False


class Search:
    """Best entries of every e-class, by memoized recursion from the root."""

    def __init__(self, graph: NestGraph, pricer: Pricer, parallel: bool, deadline: Deadline = NEVER) -> None:
        self.graph, self.pricer, self.parallel = graph, pricer, parallel
        self.deadline = deadline
        self.blocks: dict[int, Block] = {}
        self.summaries: dict[int, Summary] = {}
        self.entries: dict[tuple[int, bool, bool, bool], tuple[Entry, ...]] = {}
        self.loops: dict[int, tuple[float, float, float, float]] = {}  # by identity: e-nodes are the graph's
        self.insides: dict[int, Inside] = {}  # of entries of e-classes, which stay
        self.shared: set[int] = set()  # classes with a loop that threads share
        for number in graph.bottom_up():
            self.blocks[number] = self._block(number)
            nodes = graph.classes[number]
            if any(n.op in SHARED or any(c in self.shared for c in n.children) for n in nodes):
                self.shared.add(number)

    def summary(self, number: int) -> Summary:
        found = self.summaries.get(number)
        if found is None:
            found = self.summaries[number] = self.pricer.summary(self.blocks[number])
        return found

    def _block(self, number: int) -> Block:
        """The block of an e-class, from its first e-node (all of one class cover the same)."""
        node = self.graph.classes[number][0]
        match node.op:
            case "Tile":
                return tile_block(*node.args)  # type: ignore[arg-type]
            case "Update":
                i, m, n, k, a = node.args
                copied = frozenset({(int(i), "a")}) if a else frozenset()
                return Block(frozenset({int(i)}), ((f"k{i}", int(k)), (f"m{i}", int(m)), (f"n{i}", int(n))), copied)
            case "Vector" | "Transpose" | "Op":
                return Block(frozenset({int(node.args[0])}), tuple(sorted(tile_sizes(node))), frozenset())
            case "Point" | "Block":
                i = int(node.args[0])
                sizes = ((f"point{i}", 1),) if node.op == "Point" else ()
                return Block(frozenset({i}), sizes, self.pricer.free(i))
            case "Ask":
                axis, n, *tile = node.args
                return widen(tile_block(*tile), str(axis), int(n))  # type: ignore[arg-type]
            case "Loop" | "Par" | "Cyclic" | "Split" | "Ahead" | "Peel" | "PeelPar":
                body = self.blocks[node.children[0]]
                return widen(body, str(node.args[0]), int(node.args[1]))
            case "Pack":
                body = self.blocks[node.children[0]]
                return Block(body.stages, body.sizes, body.packed - {(int(node.args[0]), str(node.args[1]))})
            case _:
                one, two = (self.blocks[child] for child in node.children)
                return join(one, two)

    def best(
        self, number: int, inside: bool = False, parallel: bool = False, repeated: bool = False
    ) -> tuple[Entry, ...]:
        """Pareto entries of a class. ``inside``: below the loop over shared rows, where none may follow;
        ``parallel``: the threads' loop is still to come, so every entry must have it; ``repeated``: then, whether it
        is run at every step of a loop outside of it."""
        if parallel and number not in self.shared:
            return ()
        repeated = repeated and parallel
        key = (number, inside, parallel, repeated)
        if key not in self.entries:
            self.deadline.check("searching schedules")
            self.entries[key] = ()  # no class contains itself; a faulty rule set is refused when it is read
            found: list[Entry] = []
            for node in self.graph.classes[number]:
                found.extend(self._price(number, node, inside, parallel, repeated))
            self.entries[key] = self._pareto(found)
        return self.entries[key]

    def roots(self, count: int) -> list[Entry]:
        """The best entries of the whole nest, one for each of its outermost forms first, at most ``count``."""
        found = [entry for node in self.graph.classes[self.graph.root] for entry in self._root(node)]
        found.sort(key=self.seconds)  # stable: ties keep the e-graph's order of e-nodes
        return found[:count]

    def _root(self, node: ENode) -> list[Entry]:
        entries = sorted(self._price(self.graph.root, node, False, self.parallel), key=self.seconds)
        return entries[:2]

    def _price(self, number: int, node: ENode, inside: bool, parallel: bool, repeated: bool = False) -> Iterable[Entry]:
        pricer, block = self.pricer, self.blocks[number]
        match node.op:
            case "Vector" | "Transpose":
                if parallel:
                    return
                run, bypass = (pricer.vector if node.op == "Vector" else pricer.transpose)(*node.args)  # type: ignore[arg-type]
                yield Entry(run, self.summary(number).cold, bypass, 0.0, node, ())
            case "Op":
                if not parallel:
                    stage, name, _ = node.args
                    run = pricer.op(int(stage), str(name), tile_sizes(node))
                    yield Entry(run, self.summary(number).cold, 0.0, 0.0, node, ())
            case "Tile" | "Update":
                if parallel:
                    return
                price = {"Tile": pricer.tile, "Update": pricer.update}[node.op]
                seconds = price(*node.args)  # type: ignore[operator]
                if seconds is not None:
                    yield Entry(seconds, self.summary(number).cold, 0.0, 0.0, node, ())
            case "Loop" | "Ahead" | "Peel":
                axis, n, step = str(node.args[0]), int(node.args[1]), int(node.args[2])
                shared = axis in ("rows", "outer")
                if shared and inside:
                    return
                entries = self.best(node.children[0], inside or axis == "rows", parallel, True)
                if not entries:
                    return
                whole, body = self.summary(number), self.summary(node.children[0])
                if id(node) not in self.loops:
                    steps, seconds = loop_steps(pricer, block, axis, n, step)
                    room = sums_bytes(pricer, block, axis, n, step)
                    self.loops[id(node)] = steps, seconds, pricer.needed(axis, step), room
                steps, seconds, kept, room = self.loops[id(node)]
                below = self.blocks[node.children[0]]
                ordered = order_counts(pricer, below, axis)
                asking, sooner = pricer.ahead if node.op == "Ahead" else (0.0, 0.0)
                for child in entries:
                    if not shared and not child.keeps(axis):
                        continue
                    moved = loop_moved(whole, body, child.moved, kept * n / step)
                    fixed, scratch = child.fixed * steps - sooner, child.scratch + room
                    more: float | None = 0.0
                    if ordered:
                        inside_it = self.insides.get(id(child)) or self.insides.setdefault(id(child), child.inside)
                        more = inner_seconds(pricer, below, axis, n, *inside_it, peel=node.op == "Peel")
                    if more is None:
                        continue
                    compute = (child.compute + more) * steps + seconds + asking
                    yield Entry(compute, moved, fixed, scratch, node, (child,))
            case "Ask":
                if not parallel:
                    yield from self._asking(number, node)
            case op if op in SHARED:
                if not parallel:
                    return
                axis, n, step = str(node.args[0]), int(node.args[1]), int(node.args[2])
                later = split_seconds(pricer, block, axis, n, step) if node.op == "Split" else 0.0
                threads = pricer.target.threads
                share = ceil_div(ceil_div(n, step), threads)
                part = widen(block, axis, min(n, share * step))
                body_block = self.blocks[node.children[0]]
                part_needed = pricer.busiest(axis, step, node.op == "Cyclic")
                steps, seconds = loop_steps(pricer, block, axis, min(n, share * step), step, part_needed)
                for child in self.best(node.children[0], inside or axis == "rows", False):
                    if not child.keeps(axis):
                        continue
                    covered = min(n, share * step) / step
                    peel, split = node.op == "PeelPar", node.op == "Split"
                    more = 0.0 if split else inner_seconds(pricer, body_block, axis, n, *child.inside, peel=peel)
                    if more is None:
                        continue
                    moved = shared_moved(pricer, block, part, body_block, child.moved, covered, threads)
                    fixed = child.fixed * steps + pricer.barrier + later
                    yield Entry((child.compute + more) * steps + seconds, moved, fixed, child.scratch, node, (child,))
            case "Pack":
                stage, factor = int(node.args[0]), str(node.args[1])
                form = pricer.problem.stages[stage]
                # Several stages meet over shared rows only, whichever names the sizes of the block go by.
                own = any(name.rstrip("0123456789") + str(stage) == name for name, _ in block.sizes)
                at_rows = len(block.stages) > 1 or not own
                external = next(f for f in form.factors if f.name == factor).external
                if form.rows and factor == "b" and external != (at_rows and not inside):
                    return  # a factor that all row blocks share is packed once, outside them
                if form.rows and factor == "a" and len(block.stages) > 1:
                    return  # rows of a block are copied by the stage that reads them
                if not parallel and dict(block.sizes).get(f"b{stage}", 1) > 1:
                    return  # private copies are of one batch
                if repeated:
                    return  # threads would have to wait for one another at every step
                copied = self.blocks[node.children[0]]
                threads = pricer.target.threads if parallel else 1
                entries = self.best(node.children[0], inside, parallel)
                if not entries:
                    return
                extra, added, saved, copy = pack_moved(pricer, stage, factor, copied)
                for child in entries:
                    moved = tuple(
                        [
                            max(0.0, here - less) + more / threads
                            for here, less, more in zip(child.moved, saved, added, strict=True)
                        ]
                    )
                    fixed = child.fixed + (pricer.barrier if parallel else 0.0)
                    scratch = child.scratch + copy / threads
                    yield Entry(child.compute + extra / threads, moved, fixed, scratch, node, (child,))
            case "Seq":
                if parallel:
                    return
                whole = self.summary(number)
                for one in self.best(node.children[0], True):
                    for two in self.best(node.children[1], True):
                        moved = tuple(
                            [
                                once if fits else first + second
                                for fits, once, first, second in zip(
                                    whole.fits, whole.cold, one.moved, two.moved, strict=True
                                )
                            ]
                        )
                        compute, fixed = one.compute + two.compute, one.fixed + two.fixed
                        yield Entry(compute, moved, fixed, one.scratch + two.scratch, node, (one, two))

    def _asking(self, number: int, node: ENode) -> Iterable[Entry]:
        """A loop over register tiles that ask for the next panel."""
        pricer, block = self.pricer, self.blocks[number]
        axis, n, step, tile = str(node.args[0]), int(node.args[1]), int(node.args[3]), node.args[2:]
        run = pricer.tile(*tile)  # type: ignore[arg-type]
        if run is None:
            return
        body = pricer.summary(tile_block(*tile))  # type: ignore[arg-type]
        steps, control = loop_steps(pricer, block, axis, n, step)
        asked, saved = pricer.ask(*tile[:4])  # type: ignore[arg-type]
        moved = loop_moved(self.summary(number), body, body.cold, n / step)
        yield Entry((run + asked) * steps + control, moved, -saved * steps, 0.0, node, ())

    def _pareto(self, found: list[Entry]) -> tuple[Entry, ...]:
        """The undominated entries, fastest first, ties by e-node, at most ``WIDTH``."""
        if len(found) < 2:
            return tuple(found)
        ranked = sorted([(self.seconds(e), position, e) for position, e in enumerate(found)])
        kept: list[Entry] = []
        for _, _, entry in ranked:
            if not any(_dominates(other, entry) for other in kept):
                kept.append(entry)
                if len(kept) == WIDTH:
                    break
        return tuple(kept)

    def seconds(self, entry: Entry) -> float:
        return total_seconds(self.pricer, entry.compute, entry.moved, entry.fixed, entry.scratch)


def _dominates(one: Entry, two: Entry) -> bool:
    return (
        one.compute <= two.compute
        and one.fixed <= two.fixed
        and one.scratch <= two.scratch
        and all(map(le, one.moved, two.moved))
    )
