"""Where a step comes from: what it reads, what it makes, and for which nodes of the program it does so.

A plan may be remembered for another function that traces alike, so what is remembered of a step has no names and no
lines: inputs and nodes are numbers (:func:`eqsat.ir.loop.with_bodies`), which :func:`names` and :func:`lines` look up
in the trace at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsat.ir.loop import LoopResult, with_bodies
from eqsat.ir.node import Graph, Node, Source, topological
from eqsat.plan.plan import KernelStep, Plan, Step

__all__ = ["Provenance", "lines", "names", "provenance"]


@dataclass(frozen=True)
class Provenance:
    """Of one step. ``reads``: ``("input", i)``, ``("step", k)``, or ``("constant", i, …)``, made of the inputs ``i``
    when the program is compiled. ``writes``: numbers of the program's outputs. ``nodes``: numbers of the nodes that it
    computes."""

    reads: list[list[str | int]]
    writes: list[int]
    nodes: list[int]


def provenance(plan: Plan, graph: Graph, constants: Sequence[int]) -> list[Provenance]:
    """One for each step of a plan for ``graph``, whose inputs ``constants`` are known when it is compiled."""
    number = {node: n for n, node in enumerate(with_bodies(graph))}
    input_of = {node: n for n, node in enumerate(graph.inputs)}
    free = [n for n in range(len(graph.inputs)) if n not in set(constants)]
    sources: dict[int, list[str | int]] = {}
    for tensor, value in plan.constants.items():
        below = {input_of[n] for n in topological([value]) if n in input_of}
        sources[tensor] = ["input", *below] if value in input_of else ["constant", *sorted(below)]
    sources.update((tensor, ["input", n]) for tensor, n in zip(plan.inputs, free, strict=True))
    for k, step in enumerate(plan.steps):
        sources.update((tensor, ["step", k]) for tensor in written(step))
    same = _other_names(plan)

    def source(tensor: int) -> list[str | int]:
        while tensor in same and tensor not in sources:
            tensor = same[tensor]
        return sources.get(tensor, ["constant"])

    stored = {node for step in plan.steps for tensor in written(step) for node in plan.origins.get(tensor, ())}
    outputs = {tensor: n for n, tensor in enumerate(plan.outputs)}
    outputs.update((same[tensor], n) for tensor, n in list(outputs.items()) if tensor in same)
    found = []
    for step in plan.steps:
        makes = written(step)
        reads = [source(t) for t in (step.tensors if isinstance(step, KernelStep) else step.reads) if t not in makes]
        roots = [node for tensor in makes for node in plan.origins.get(tensor, ())]
        nodes = sorted(number[n] for n in _computed(roots, stored) if n in number)
        found.append(Provenance(_distinct(reads), sorted(outputs[t] for t in makes if t in outputs), nodes))
    return found


def written(step: Step) -> list[int]:
    """The tensors that a step stores."""
    if isinstance(step, KernelStep):
        return list(dict.fromkeys(step.tensors[s.result] for s in step.group.stages if s.result is not None))
    return list(step.tensors)


def _other_names(plan: Plan) -> dict[int, int]:
    """What tensors of loops are called outside, or by the step that makes them."""
    same: dict[int, int] = {}
    for repeat in plan.repeats:
        same.update((read, before) for before, read, _ in repeat.carries)
        same.update((read, tensor) for tensor, read, _ in repeat.windows)
        same.update((tensor, repeat.carries[k][2]) for k, tensor in repeat.finals)
        same.update((whole, tensor) for tensor, whole in repeat.stacked)
    return same


def _computed(roots: Sequence[Node], stored: set[Node]) -> set[Node]:
    """The nodes below and with ``roots`` down to those that other steps store."""
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found and node.inputs and not isinstance(node.attrs, LoopResult):
            found.add(node)
            stack.extend(operand for operand in node.inputs if operand not in stored)
    return found


def _distinct(reads: Sequence[list[str | int]]) -> list[list[str | int]]:
    return [list(key) for key in dict.fromkeys(tuple(read) for read in reads)]


def names(reads: Sequence[Sequence[str | int]], inputs: Sequence[str]) -> list[str]:
    """What a step reads, in words: arguments by name, ``#3`` for what step 3 makes, ``f(w)`` for constants."""
    found = []
    for kind, *numbers in reads:
        if kind == "step":
            found.append(f"#{numbers[0]}")
        elif kind == "input":
            found.append(inputs[int(numbers[0])])
        elif numbers:
            found.append(f"folded({', '.join(inputs[int(n)] for n in numbers)})")
    return list(dict.fromkeys(found))


def lines(graph: Graph, known: Mapping[Node, Source]) -> list[Source | None]:
    """The user's line that each node (by number) comes from.

    A node of which no line is known, such as the mean within a variance, comes from that of what uses it.
    """
    nodes = with_bodies(graph)
    found = dict(known)
    for node in reversed(nodes):
        if node in found:
            for operand in node.inputs:
                found.setdefault(operand, found[node])
    return [found.get(node) for node in nodes]
