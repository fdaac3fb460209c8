"""A program with calls of library functions, cut there for verification.

What a library returns is what it is: it is neither computed in float64 nor judged. In the program that is verified the
results of calls are inputs, whose values are those that the library gave the compiled program, and the operands of
calls are outputs: these are held against the reference like all others. So an ill-conditioned function, whose results
differ much (a singular vector's sign) where its operands differ by rounding, neither hides an error nor looks like one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.ir import build
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Graph, Node, substitute
from eqsat.ir.opaque import Call, Noted, Result

Arrays = Sequence[np.ndarray]

NEAR = 0.01
"""Distance up to which operands are the same but for rounding, also that of half precision."""
SAME = 1e-12
"""And up to which operands that are known when the program is compiled are: it need not make their calls again, and
what is near to one then belongs to another."""


class Calls:
    """The calls of a graph. ``graph`` is the graph without them: ``inputs`` stand for their results.

    Its outputs are those of the program, then the calls' operands that are computed. ``run`` is the compiled program
    on the inputs other than ``constants``.
    """

    def __init__(self, graph: Graph, constants: Mapping[Node, np.ndarray]) -> None:
        self.original = graph
        self.free = [n for n in graph.inputs if n not in constants]
        found = [n for n in graph.nodes() if isinstance(n.attrs, Result)]
        count = len(graph.inputs)
        self.results: dict[Node, Node] = {n: build.input_node(count + i, n.type) for i, n in enumerate(found)}
        """The input that stands for each result."""
        self.calls: list[tuple[Call, tuple[Node, ...], dict[int, Node]]] = []
        """Each call once, with its operands, and its results by number; in an order in which they can be made."""
        groups: dict[object, dict[int, Node]] = {}
        for node in found:
            assert isinstance(node.attrs, Result)
            key = (node.attrs.call.key, node.inputs)
            if key not in groups:
                groups[key] = {}
                self.calls.append((node.attrs.call, node.inputs, groups[key]))
            groups[key][node.attrs.number] = node
        self.constants = dict(constants)
        operands = list(dict.fromkeys(n for _, inputs, _ in self.calls for n in inputs if n.inputs))
        self.operands = [n for n in operands if n not in self.results]
        self.moving = set(self.free)
        """What depends on the arguments."""
        for node in graph.nodes():
            if any(i in self.moving for i in node.inputs):
                self.moving.add(node)
        outputs = substitute([*graph.outputs, *self.operands], self.results)
        self.graph = Graph((*graph.inputs, *self.results.values()), tuple(outputs))

    def bind(
        self, arrays: Sequence[np.ndarray], noted: Sequence[Noted]
    ) -> tuple[dict[Node, np.ndarray], list[np.ndarray]]:
        """Values of the inputs that stand for results, and of the operands, as the compiled program had them.

        Of several calls that were made alike but for their operands, each stands for one whose operands are near. If
        there is none, it stands for one that is near to no call, so that wrong operands are seen; and if there is none
        of these, the compiled program does without the call, which is made here of the reference's values.
        """
        bound = {**dict(zip(self.free, arrays, strict=True)), **self.constants}
        seen: dict[Node, np.ndarray] = {}

        def stand(inputs: Sequence[Node], results: Mapping[int, Node], given: Arrays, values: Arrays) -> None:
            seen.update(zip(inputs, given, strict=True))
            bound.update({node: values[number] for number, node in results.items()})

        left = list(noted)
        far = []
        for call, inputs, results in self.calls:
            alike = [one for one in noted if one[0].key == call.key]
            once = sum(other.key == call.key for other, _, _ in self.calls) == 1
            if len(alike) == 1 and once:
                stand(inputs, results, *alike[0][1:])
                continue
            want = evaluate_nodes(inputs, bound)
            near = min(alike, key=lambda one: _distance(one[1], want), default=None)
            moves = any(i in self.moving for i in inputs)
            if near is not None and _distance(near[1], want) <= (NEAR if moves else SAME):
                left = [one for one in left if one is not near]
                stand(inputs, results, *near[1:])
            else:
                if moves:
                    far.append((call, inputs, results, want))
                stand(inputs, results, want, call.run(want))
        for call, inputs, results, want in far:
            alike = [one for one in left if one[0].key == call.key]
            if alike:
                near = min(alike, key=lambda one: _distance(one[1], want))
                left = [one for one in left if one is not near]
                stand(inputs, results, *near[1:])
        return {self.results[n]: bound[n] for n in self.results}, [seen[n] for n in self.operands]


def _distance(given: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """How far operands of one call lie from those of another: the part of elements that differ, and how far."""
    total = 0.0
    with np.errstate(all="ignore"):
        for a, b in zip(given, want, strict=True):
            if a.dtype.kind not in "fc":
                total += float(np.count_nonzero(a != b)) / max(1, a.size)
                continue
            unit = float(np.nanmax(np.abs(b), initial=0.0, where=np.isfinite(b))) or 1.0
            off = np.abs(a.astype(b.dtype) - b) / unit
            off = np.where(np.isnan(off), np.isnan(a) != np.isnan(b), np.minimum(off, 1.0))
            total += float(off.sum()) / max(1, a.size)
    return total
