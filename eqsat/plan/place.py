"""A region's chosen program, and one instance of it put into the program."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir import build
from eqsat.ir.node import Node, topological
from eqsat.ir.opaque import Result
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import OPS, make
from eqsat.plan.assembly import Assembly
from eqsat.plan.link import Piece
from eqsat.plan.lower import Lowered, lower
from eqsat.plan.plan import ReferenceStep
from eqsat.plan.regions import Region

__all__ = ["Found", "describe", "place"]


@dataclass(frozen=True)
class Found:
    """A program of a region, in the numbers of an e-graph's classes."""

    egraph: SaturatedEGraph
    selection: Selection

    @property
    def inputs(self) -> dict[int, int]:
        """E-class -> input number."""
        found: dict[int, int] = {}
        for eclass, enodes in self.egraph.classes.items():
            for enode in enodes:
                if enode.op == "input":
                    assert isinstance(enode.attrs, InputAttrs)
                    found[eclass] = enode.attrs.index
        return found


def place(region: Region, found: Found, assembly: Assembly, lowered: dict[Term, Lowered | None]) -> None:
    """Add one instance of a region's winner to the program."""
    nodes: dict[int, Node] = {}
    numbers: dict[int, int] = {}
    for eclass, index in found.inputs.items():
        node = region.inputs[index]
        if region.const[index]:
            nodes[eclass] = node
        else:
            numbers[eclass] = assembly.tensor_of[node]
    for term in found.selection.constants:
        if term.eclass not in nodes:  # a constant input stands for the program's own node
            nodes[term.eclass] = _as_node(term, nodes)

    def number_of(eclass: int) -> int:
        if eclass not in numbers:
            numbers[eclass] = assembly.constant(nodes[eclass])
        return numbers[eclass]

    origins = _origins(region, found)
    for term in found.selection.kernels:
        numbers[term.eclass] = number = assembly.fresh(term.type)
        assembly.origins[number] = tuple(origins.get(term.eclass, ()))
        assembly.labels[number] = describe(term)
        low = lowered.get(term) if term in lowered else lower(term)
        if low is None:
            types = {read.eclass: read.type for read in term.reads()}
            leaves = {e: build.input_node(n, type) for n, (e, type) in enumerate(types.items())}
            step = ReferenceStep(
                (_as_node(term, leaves),), tuple(number_of(e) for e in types), (number,), assembly.labels[number]
            )
            assembly.add(number, step.reads, step)
            continue
        for kernel, given in zip(low.kernels, low.reads, strict=True):
            if region.looped:
                kernel = replace(kernel, out=replace(kernel.out, again=True))
            reads = tuple(number_of(r.eclass) for r in given)
            assembly.pieces.append(Piece(number, kernel, reads, whole=len(low.kernels) == 1))
    for node, eclass in zip(region.outputs, found.selection.outputs, strict=True):
        assembly.tensor_of[node] = number_of(eclass)


def _origins(region: Region, found: Found) -> dict[int, list[Node]]:
    """The program's nodes in each class; for one that a rule made and a kernel stores, those that it is made for."""
    canonical = topological(region.graph.outputs, region.graph.inputs)
    origins: dict[int, list[Node]] = {}
    for node, own in zip(canonical, topological(region.outputs, region.inputs), strict=True):
        if node in found.egraph.originals:
            origins.setdefault(found.egraph.originals[node], []).append(own)

    seen: set[int] = set()  # a kernel's parts may be shared

    def visit(term: Term | Read, above: list[Node]) -> None:
        nodes = origins.get(term.eclass)
        if isinstance(term, Term):
            if id(term) in seen:
                return
            seen.add(id(term))
            for child in term.children:
                visit(child, above if nodes is None else nodes)
        elif nodes is None:
            origins[term.eclass] = above

    for kernel in reversed(found.selection.kernels):
        visit(kernel, [])
    return origins


def _as_node(term: Term, leaves: dict[int, Node]) -> Node:
    """A term as a node over the nodes of the tensors it reads."""
    made: dict[int, Node] = {}

    def node_of(part: Term | Read) -> Node:
        if isinstance(part, Read):
            return leaves[part.eclass]
        found = made.get(id(part))
        if found is None:
            found = made[id(part)] = make(part.op, [node_of(child) for child in part.children], part.attrs)
        return found

    return node_of(term)


def describe(term: Term) -> str:
    """A kernel in words: its accumulation and the elementwise functions around it."""
    names: list[str] = []
    seen: set[int] = set()

    def visit(node: Term | Read) -> None:
        if isinstance(node, Read) or id(node) in seen:
            return
        seen.add(id(node))
        for child in node.children:
            visit(child)
        kind = OPS[node.op].kind
        if kind in ("map", "contract", "reduce", "gather", "concat", "pad", "opaque") and node.op != "wrap_index":
            name = {"contract": f"contract {node.attrs}", "add_n": "add"}.get(node.op, node.op.removeprefix("reduce_"))
            name = node.attrs.call.name if isinstance(node.attrs, Result) else name
            if name not in names:
                names.append(name)

    visit(term)
    return "+".join(names) or "copy"
