"""How the program that runs follows from the one that was written, rule by rule.

The e-graph keeps why terms are equal (``eqsat/egraph/proofs.py``). Wherever extraction takes a term in another one's
place, the steps between the two are put into the whole program, so that each program differs from the one before at
one place. After Flatt et al., "Small proofs from congruence closure" (2022), who shorten such proofs further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqsat.compiled import Compiled
from eqsat.egraph.proofs import CANONICAL, Proofs, Step, TooLong, replaced
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.explain.derived import Derivation, Equation
from eqsat.explain.work import node_flops
from eqsat.extract.provenance import enode_of, way_between
from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Node, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import make
from eqsat.why import chosen, searched_again

MOST_FLOPS = 2e9
"""Operations of the terms that are still computed to check a step."""
MOST_STEPS = 200
"""Steps from a term to the one in its place that are told one by one."""


def derivation(program: Compiled) -> Derivation:
    """The steps from the program as written to the one that runs, regions in order.

    Regions are searched once more. Equal ones are told once. Each step is computed on random inputs.
    """
    steps: list[Equation] = []
    named = dict(zip(program.traced.graph.inputs, program.traced.graph.names, strict=False))
    for region, egraph in searched_again(program, proofs=True):
        winner = chosen(program, region, egraph)
        names = tuple(named.get(node, f"x{n}") for n, node in enumerate(region.inputs))
        chain = _Chain(winner.egraph, winner.selection)
        for number, (root, output) in enumerate(zip(winner.egraph.roots, region.graph.outputs, strict=True)):
            output_of = number if len(winner.egraph.roots) > 1 else None
            steps += [replace(step, names=names, output=output_of) for step in chain.run(root, output)]
    return Derivation(tuple(steps))


@dataclass
class _Slot:
    """A place of the program for the term of a handle: ``now`` it is that, and in the end the term ``chosen``."""

    handle: int
    chosen: int
    now: Node
    operands: tuple[tuple[int, int], ...]
    place: tuple[str, ...]
    done: bool = False


@dataclass
class _Chain:
    """The programs of one region, from the one that was written to the winner."""

    egraph: SaturatedEGraph
    winner: Selection

    def __post_init__(self) -> None:
        assert self.egraph.proofs is not None
        self.proofs: Proofs = self.egraph.proofs
        self.find = self.proofs.store.find
        self.kernels = {term.eclass: term for term in (*self.winner.constants, *self.winner.kernels)}

    def run(self, root: int, output: Node) -> Iterator[Equation]:
        self.slots: dict[tuple[int, int], _Slot] = {}
        first = self._open(root, Read(self.find(root), output.type), ())
        as_held = self.proofs.ground(root)
        if output is not as_held:
            step = Step((), output, as_held, CANONICAL)
            yield self._equation(step, (CANONICAL,), "the whole program", output, as_held)
        program = self._built(first)
        for slot in self._order(first):
            for step, names in self._steps(slot):
                slot.now = replaced(slot.now, step.path, step.after)
                before, program = program, self._built(first)
                yield self._equation(step, names, _said(slot, step), before, program)
            slot.done = True

    def _open(self, handle: int, term: Term | Read, place: tuple[str, ...]) -> tuple[int, int]:
        """The slot of a term where extraction takes another one, and those of its operands."""
        if isinstance(term, Read):
            term = self.kernels.get(term.eclass, term)
        if isinstance(term, Read):
            chosen = next(n.handle for n in self.egraph.classes[term.eclass] if not n.children)
            below: dict[int, Term | Read] = {}
        else:
            node = enode_of(self.egraph, term)
            chosen = handle if node is None else node.handle
            below = {self.find(child.eclass): child for child in term.children}
        key = handle, chosen
        if key not in self.slots:
            self.slots[key] = slot = _Slot(handle, chosen, self.proofs.ground(handle), (), place)
            made = self.proofs.store.terms[chosen]
            slot.operands = tuple(
                self._open(child, below[self.find(child)], (f"operand {n} of {made.op}", *place))
                for n, child in enumerate(made.children)
                if self.find(child) in below
            )
            assert len(slot.operands) in (0, len(made.children))
        return key

    def _order(self, first: tuple[int, int]) -> list[_Slot]:
        """Slots before those of their operands, so that none is shared by one that is not its final term yet."""
        order: list[tuple[int, int]] = []
        seen: set[tuple[int, int]] = set()
        stack: list[tuple[tuple[int, int], bool]] = [(first, False)]
        while stack:
            key, left = stack.pop()
            if left:
                order.append(key)
            elif key not in seen:
                seen.add(key)
                stack.append((key, True))
                stack += [(below, False) for below in self.slots[key].operands]
        return [self.slots[key] for key in reversed(order)]

    def _built(self, key: tuple[int, int]) -> Node:
        made: dict[tuple[int, int], Node] = {}
        stack = [key]
        while stack:
            at = self.slots[stack[-1]]
            missing = [k for k in at.operands if k not in made] if at.done else []
            if missing:
                stack += missing
                continue
            term = self.proofs.store.terms[at.chosen]
            ended = at.done and at.operands
            inputs = [made[k] for k in at.operands] if ended else at.now.inputs
            attrs = self.proofs.store.attrs.values[term.attrs]
            made[stack.pop()] = make(term.op, inputs, attrs) if ended else at.now
        return made[key]

    def _steps(self, slot: _Slot) -> Iterator[tuple[Step, tuple[str, ...]]]:
        if slot.handle == slot.chosen:
            return
        try:
            steps = self.proofs.prove(slot.handle, slot.chosen)
        except (TooLong, RecursionError):
            steps = []
        if not 0 < len(steps) <= MOST_STEPS:
            rules = dict.fromkeys(rule for rule, _ in way_between(self.egraph, slot.handle, slot.chosen) if rule)
            whole = Step((), slot.now, self.proofs.ground(slot.chosen), "")
            yield whole, tuple(rules) or (CANONICAL,)
            return
        for step in steps:
            yield step, (step.name,)

    def _equation(self, step: Step, names: Sequence[str], place: str, before: Node, after: Node) -> Equation:
        error, unchecked = _difference(step.before, step.after)
        return Equation(
            tuple(names),
            step.before,
            step.after,
            error,
            unchecked,
            place=place,
            programs=(before, after),
            back=step.back,
        )


def _said(slot: _Slot, step: Step) -> str:
    """Where in the program a step is, from the inside out."""
    inside, at = list[str](), slot.now
    for number in step.path:
        inside.insert(0, f"operand {number} of {at.op}")
        at = at.inputs[number]
    return " in ".join((*inside, *slot.place)) or "the whole program"


def _difference(before: Node, after: Node) -> tuple[float | None, str]:
    """How much two terms differ on random inputs, and why that is not known if it is not."""
    nodes = topological([before, after])
    if sum(map(node_flops, nodes)) > MOST_FLOPS:
        return None, "that would take long"
    rng = np.random.default_rng(0)
    values: dict[Node, np.ndarray] = {}
    for leaf in nodes:
        if isinstance(leaf.attrs, InputAttrs):
            drawn = rng.standard_normal(leaf.shape) if leaf.dtype.is_float else rng.integers(0, 2, leaf.shape)
            values[leaf] = np.asarray(drawn).astype(leaf.dtype.numpy)
    try:
        a, b = (np.asarray(v, np.float64) for v in evaluate_nodes([before, after], values, double=True))
    except (IndexError, ValueError) as error:
        return None, f"random inputs are none of the program's: {error}"
    finite = np.isfinite(a) & np.isfinite(b)
    if (np.isfinite(a) != np.isfinite(b)).any():
        return np.inf, ""
    if not finite.any():
        return None, "on random inputs nothing is finite"
    largest = np.abs(a[finite]).max(initial=0.0)
    return float(np.abs(a - b)[finite].max(initial=0.0) / (largest or 1.0)), ""
