"""The egraph-serialize JSON format: other people's e-graphs, read, written and extracted from.

A document has ``nodes`` by id (``op``, ``cost``, ``eclass``, and ``children`` as ids of nodes, each standing
for its e-class) and ``root_eclasses``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from eqsat.extract.budget import Budget
from eqsat.extract.hypergraph import Choice, Problem, greedy, reduced
from eqsat.extract.optimum import optimum


class SerializedError(ValueError):
    """The document is not an e-graph in this format; the message says where."""


@dataclass(frozen=True)
class SerializedNode:
    op: str
    eclass: str
    children: tuple[str, ...]
    """Ids of nodes, each standing for its e-class."""
    cost: float = 1.0


@dataclass(frozen=True)
class SerializedEGraph:
    """``nodes`` by id, in the document's order; ``roots`` are e-classes."""

    nodes: Mapping[str, SerializedNode]
    roots: tuple[str, ...]
    comment: str = field(default="", compare=False)


def from_json(text: str) -> SerializedEGraph:
    """The e-graph in a document. Raises ``SerializedError`` where it is none."""
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except SerializedError:
        raise
    except (ValueError, RecursionError) as error:
        raise SerializedError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), dict):
        raise SerializedError('an e-graph document is an object with "nodes", an object')
    nodes: dict[str, SerializedNode] = {}
    for name, entry in document["nodes"].items():
        try:
            given = entry.get("children", ())
            if not isinstance(given, (list, tuple)):
                raise TypeError(f"its children are a list of nodes, not {given!r}")
            children = tuple(map(str, given))
            cost = float(entry.get("cost", 1.0))
            op, eclass = entry["op"], entry["eclass"]
            if not all(isinstance(each, (str, int)) for each in (op, eclass, *given)):
                raise TypeError(f"its operator, e-class and children are names, not {op!r}, {eclass!r}, {given!r}")
            nodes[name] = SerializedNode(str(op), str(eclass), children, cost)
        except KeyError as error:
            raise SerializedError(f"node {name!r} has no {error.args[0]!r}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SerializedError(f"node {name!r}: {error}") from error
        if not 0 <= cost < float("inf"):
            raise SerializedError(f"node {name!r}: cost {cost} is not a finite number from 0 up")
    if not isfinite(sum(node.cost for node in nodes.values())):
        raise SerializedError("the costs of the nodes are too large to be added")
    for name, node in nodes.items():
        for child in node.children:
            if child not in nodes:
                raise SerializedError(f"node {name!r}: its child {child!r} is not a node")
    given_roots = document.get("root_eclasses", ())
    if not isinstance(given_roots, (list, tuple)):
        raise SerializedError(f'"root_eclasses" is a list of e-classes, not {given_roots!r}')
    roots = tuple(map(str, given_roots))
    known = {node.eclass for node in nodes.values()}
    for root in roots:
        if root not in known:
            raise SerializedError(f"root e-class {root!r} has no node")
    return SerializedEGraph(nodes, roots, str(document.get("comment", "")))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, each of whose names there is once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise SerializedError(f"{next(n for n in found if names.count(n) > 1)!r} is there twice")
    return found


def to_json(egraph: SerializedEGraph) -> str:
    """A document that ``from_json`` reads back to an equal e-graph."""
    nodes: dict[str, dict[str, Any]] = {
        name: {"op": n.op, "cost": n.cost, "eclass": n.eclass, "children": list(n.children)}
        for name, n in egraph.nodes.items()
    }
    document: dict[str, Any] = {"nodes": nodes, "root_eclasses": list(egraph.roots)}
    if egraph.comment:
        document["comment"] = egraph.comment
    return json.dumps(document, indent=1)


@dataclass(frozen=True)
class Extracted:
    """``nodes``: the node chosen for each e-class needed, operands first. ``bound``: no choice costs less.

    ``greedy_cost``: where the search started. ``method``: as in ``eqsat.extract.optimum``.
    """

    nodes: Mapping[str, str]
    cost: float
    bound: float
    greedy_cost: float
    method: str


def extract_serialized(egraph: SerializedEGraph, *, seconds: float = 10.0, ilp: bool = True) -> Extracted:
    """The cheapest acyclic choice of one node per needed e-class, shared e-classes paid once.

    Raises ``SerializedError`` where a root has no finite term.
    """
    budget = Budget(seconds)
    names = list(egraph.nodes)
    classes: dict[str, int] = {}
    for node in egraph.nodes.values():
        classes.setdefault(node.eclass, len(classes))
    choices = []
    for tag, node in enumerate(egraph.nodes.values()):
        needs = sorted({classes[egraph.nodes[child].eclass] for child in node.children})
        choices.append(Choice(classes[node.eclass], tuple(needs), node.cost, tag))
    roots = tuple(dict.fromkeys(classes[root] for root in egraph.roots))
    problem = reduced(Problem(tuple(choices), roots))
    start = greedy(problem)
    best = optimum(problem, budget, ilp=ilp)
    if start is None or best is None:
        raise SerializedError("a root e-class has no finite term")
    chosen: dict[str, str] = {}
    for number in best.solution.chosen.values():
        name = names[problem.choices[number].tag]
        chosen[egraph.nodes[name].eclass] = name
    return Extracted(chosen, best.solution.cost, best.bound, start.cost, best.method)
