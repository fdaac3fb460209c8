"""Which algorithms convolutions got, and what the others would have taken.

A convolution is a contraction over windows of a tensor, or over the tensor itself where the kernel has one element.
What computes it is read off the kernels that were chosen; kernels of that algorithm are then refused, one algorithm
after the other, and the program is selected anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from eqsat import rules
from eqsat.compiled import Compiled
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.explain.report import Algorithms
from eqsat.extract.provenance import enode_of
from eqsat.extract.select import ExtractionError, extract
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.spec import Spec
from eqsat.ir.views import ViewMap
from eqsat.options import Numerics
from eqsat.plan.assembly import searched
from eqsat.plan.lower import lower
from eqsat.plan.regions import Region
from eqsat.search import saturation
from eqsat.why import chosen, rates_of

REGIONS = 4
"""Different parts of a program that are searched again at most."""
MOST = 6
"""Algorithms that are looked for."""
LITERAL = 16
"""Extent of a transform's matrix at most."""


@dataclass(frozen=True)
class _Kernels:
    """The kernels of a selection by what they store, in an e-graph that tells which matrices are literal."""

    egraph: SaturatedEGraph
    stored: Mapping[int, Term]

    def below(self, term: Term | Read, stop: frozenset[int]) -> Iterator[Term]:
        """The terms that make one, through what other kernels store, not past the classes in ``stop``."""
        stack, seen = [term], set[int]()
        while stack:
            at = stack.pop()
            if isinstance(at, Read):
                if at.eclass not in self.stored or at.eclass in seen | stop:
                    continue
                seen.add(at.eclass)
                at = self.stored[at.eclass]
            yield at
            stack += [child for child in at.children if child.eclass not in stop]

    def literal(self, operand: Term | Read) -> tuple[int, ...]:
        """The shape of a small literal matrix; of others ()."""
        shape = operand.type.shape
        arrays = (n.attrs for n in self.egraph.classes.get(operand.eclass, ()) if n.op == "const")
        small = len(shape) == 2 and max(shape) <= LITERAL
        return shape if small and any(isinstance(a, ConstArray) for a in arrays) else ()

    def transform(self, term: Term) -> str:
        """What a term is part of by its rule, or as a contraction with a literal matrix that makes fewer of more."""
        node = enode_of(self.egraph, term) if term.op in ("add", "mul") else None
        name = rules.get(node.rule).algorithm if node is not None and node.rule is not None else ""
        if name:
            return name
        shapes = [self.literal(child) for child in term.children] if term.op == "contract" else []
        sizes = [sorted(shape) for shape in shapes if shape and shape[0] != shape[1]]
        return "".join(f"Winograd F({size}, {n - size + 1})" for size, n in sizes)

    def names(self, term: Term) -> set[str]:
        """What kernels of one term are part of."""
        found = set[str]()
        for part in self.below(term, frozenset(self.stored) - {term.eclass}):
            name = self.transform(part)
            if part.op == "contract" and not name:
                name = next(filter(None, (self._implicit(part, operand) for operand in part.children)), "")
            found |= {name} - {""}
        if not any(part.op in ("contract", "reduce_sum") for part in _inlined(term)) and _windows(term):
            found.add("im2col, stored")
        return found

    def _implicit(self, contraction: Term, operand: Term | Read) -> str:
        """How a contraction reads an operand that is a view of windows; "" for others."""
        spec, map = contraction.attrs, operand.attrs if isinstance(operand, Term) else None
        if not isinstance(spec, Spec) or not isinstance(map, ViewMap) or not _overlaps(operand):
            return ""
        extents = spec.extents(*(child.type.shape for child in contraction.children))
        if all(extents[x] == 1 for x in spec.rows) or all(extents[x] == 1 for x in spec.cols):
            return "direct"
        labels = spec.a if operand is contraction.children[0] else spec.b
        inner = [x for x, atoms in zip(labels, map.axes, strict=True) if any(step == 1 for _, step in atoms)]
        apart = [abs(step) for x, atoms in zip(labels, map.axes, strict=True) if x in spec.out for _, step in atoms]
        last = bool(inner) and all(x in spec.summed and extents[x] <= min(apart, default=1) for x in inner)
        return "implicit GEMM, channels last" if last else "implicit GEMM"

    def algorithm(self, root: int, others: frozenset[int], output: Term) -> str:
        """What computes a class, which may be part of ``output``: without the other convolutions below it."""
        every = [part for kernel in self.stored.values() for part in _inlined(kernel)]
        start = next((part for part in every if part.eclass == root), output)
        parts = list(self.below(start, others))
        found = {name for part in parts for name in [self.transform(part)] if name}
        for part in parts:
            if part.op == "contract" and not found:
                read = [child for child in part.children if isinstance(child, Read) and child.eclass in self.stored]
                found = {self._implicit(part, child) for child in part.children} - {""}
                if not found and any("im2col, stored" in self.names(self.stored[child.eclass]) for child in read):
                    found = {"im2col, stored"}
        plain = "matrix product" if any(part.op == "contract" for part in parts) else "products, then their sums"
        return ", ".join(sorted(found)) or plain


def _inlined(term: Term) -> Iterator[Term]:
    yield term
    for child in term.children:
        if isinstance(child, Term):
            yield from _inlined(child)


def _overlaps(term: Term | Read) -> bool:
    """Whether it is a view of windows that may overlap."""
    return isinstance(term, Term) and term.op == "view" and _of_windows(term.attrs)


def _of_windows(map: object) -> bool:
    return isinstance(map, ViewMap) and map.overlaps and not map.repeats


def _windows(term: Term) -> bool:
    return any(_overlaps(part) for part in _inlined(term))


def _convolutions(region: Region) -> list[Node]:
    """Contractions over windows, and those that the program calls convolutions."""

    def over_windows(node: Node) -> bool:
        return any(i.op == "view" and _of_windows(i.attrs) for i in node.inputs)

    products = (node for node in region.graph.nodes() if node.op == "contract")
    return [node for node in products if over_windows(node) or node.label.startswith("conv")]


def algorithms(program: Compiled) -> list[Algorithms]:
    """For each different part of a program that has convolutions: theirs, and the others that there are for it."""
    found, seen = list[Algorithms](), set[str]()
    for region in searched(program.searched_form(), frozenset(program.constant_nodes)):
        if len(found) == REGIONS or region.key() in seen:
            continue
        seen.add(region.key())
        if _convolutions(region):
            found.append(_of_region(program, region))
    return found


def _of_region(program: Compiled, region: Region) -> Algorithms:
    nodes = _convolutions(region)
    known = frozenset(n for n, c in zip(region.graph.inputs, region.const, strict=True) if c)

    def grown(numerics: Numerics) -> SaturatedEGraph:
        selected = rules.select(numerics, program.options.disable)
        work = saturation(program.options.search_seconds)
        return saturate(region.graph.outputs, rules=selected, const=known, work=work)

    own = grown(program.options.numerics)
    ran = chosen(program, region, own)
    taken, seconds = _named(ran.egraph, ran.selection, nodes), ran.selection.seconds
    allowed, refused, others, named = own, {*taken.split("; ")}, dict[str, float](), {taken}
    classes = get_args(Numerics)
    for numerics in classes[classes.index(program.options.numerics) :]:
        loose = numerics != program.options.numerics
        if loose:  # what another class of numerics would allow, as far as it is quicker
            allowed, refused = grown(numerics), set()
        while len(others) < MOST:
            other = _selected(program, allowed, nodes, refused)
            if other is None or other[0] in named or set(other[0].split("; ")) <= refused:
                break
            refused |= {*other[0].split("; ")}
            named.add(other[0])
            others[other[0] + f" (numerics={numerics!r})" * loose] = other[1]
    labels = [f"{node.label} {node.inputs[0].type.shape} → {node.type.shape}" for node in nodes]
    return Algorithms(labels, taken, seconds, others)


def _selected(
    program: Compiled, egraph: SaturatedEGraph, nodes: list[Node], refused: set[str]
) -> tuple[str, float] | None:
    """The algorithms of the best program without some, and its seconds; None where there is no other."""

    def lowers(term: Term) -> bool:
        return not (_Kernels(egraph, {term.eclass: term}).names(term) & refused) and lower(term) is not None

    try:
        (selection, *_) = extract(egraph, rates_of(program), seconds=1.0, alternatives=1, lowers=lowers)
    except ExtractionError:
        return None
    return _named(egraph, selection, nodes), selection.seconds


def _named(egraph: SaturatedEGraph, selection: Selection, nodes: list[Node]) -> str:
    kernels = _Kernels(egraph, {kernel.eclass: kernel for kernel in selection.kernels})
    roots = [egraph.originals[node] for node in nodes if node in egraph.originals]
    names = [kernels.algorithm(root, frozenset(roots) - {root}, selection.kernels[-1]) for root in roots]
    return "; ".join(dict.fromkeys(names))
