"""The e-graph of loop nests: build it from rule texts, saturate it, read it out as plain Python.

An e-class is "the loops still to run inside this block": block and step are in the term, so the graph is
acyclic and orders share their tails. Terms (egglog constructors):

    (Loop axis block step body)  (Par axis block step body)  (Cyclic axis block step body)
    (Split axis block step body)  (Ahead axis block step body)  (Seq first rest)  (Pack stage operand body)
    (Tile stage m n k a b)  (Update stage m n k a)  (Point stage)  (Block stage)
    (Peel axis block step body)  (PeelPar axis block step body)
    (Vector stage other count axis size stream prefetch)  (Transpose stage first second lanes stream)
    (Op stage name sizes)  (Ask axis block stage m n k a b)

``Tile``'s last two arguments say whether it reads factors a and b packed; an ``Update`` reads b where it lies, all
of n. A ``Vector`` takes ``size`` elements of ``axis`` by vectors, at ``count`` positions of ``other`` (none: ``""``,
1); ``stream``, in a ``Transpose`` too, says whether results go past the caches, ``prefetch`` whether what its loads
read at the next shared row is asked for. An ``Op`` is a tile
operation of the target's table; ``sizes`` says how many elements it takes of which axis (``p0_0=4,p1_0=64``). A
``Split`` is a parallel loop over a reduced axis, whose steps' results are combined afterwards; ``Cyclic`` one whose
steps threads take in turns; an ``Ahead`` loop over rows asks for what contractions read at the next outer position. A
``Peel`` is a loop that is peeled, a ``PeelPar`` one that threads share. An ``Ask`` is a loop over ``axis`` around a
``Tile`` whose steps ask, a share each, for the next panel of its second factor. ``Point`` is one point of a stage;
``Block`` is all of one stage for one position of the shared axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.library import bindings, kept

SIGNATURE = """
(datatype Nest
  (Loop String i64 i64 Nest)
  (Par String i64 i64 Nest)
  (Cyclic String i64 i64 Nest)
  (Ahead String i64 i64 Nest)
  (Ask String i64 i64 i64 i64 i64 bool bool)
  (Seq Nest Nest)
  (Pack i64 String Nest)
  (Tile i64 i64 i64 i64 bool bool)
  (Update i64 i64 i64 i64 bool)
  (Split String i64 i64 Nest)
  (Peel String i64 i64 Nest)
  (PeelPar String i64 i64 Nest)
  (Vector i64 String i64 String i64 bool bool)
  (Transpose i64 String String i64 bool)
  (Op i64 String String)
  (Point i64)
  (Block i64))
(relation factor (String i64 i64))
(relation permutable (String String))
(relation shared (String))
(relation splits (String))
(relation unlike (String))
(relation outermost (String))
(relation layout (i64 bool bool))
(relation packable (i64 String))
(relation hoists (i64 String String))
(relation external (i64 String))
(relation register (i64 i64 i64))
(relation depth (i64 i64))
(relation updates (i64 i64 i64))
(relation contracts (i64 String String String))
(relation points (String String))
(relation lanes (i64 String i64))
(relation scalar (i64))
(relation jams (i64 String i64 String i64))
(relation transposes (i64 String String i64))
(relation streams (i64 String))
(relation prefetches (i64 String))
(relation asks (String i64))
(relation panels (i64 String i64))
(relation divides (String i64))
(relation peels (String i64 i64))
(relation computes (i64 String String Nest))
(relation flat (String i64 i64 Nest))
(relation spmd (Nest))
(relation inner (Nest))
"""
"""Sorts, constructors and the relations in which the facts of one problem are stated.

``factor axis n t``: a block of n may be walked in steps of t. ``permutable a b``: a loop over ``a`` may go inside one
over ``b``; ``points a b``: also where those are over single points. ``shared a``: every stage reads earlier ones at
the same position of ``a``. ``splits a``: steps of ``a`` are independent, so threads may share them; ``unlike a``: some
take longer than others. ``peels a n s``: guards that move along ``a`` alone change, few times, within its n positions,
walked in steps of s. ``divides a s``: the steps of s along the reduced axis ``a`` may have results of their own.
``outermost a``: only loops over batches, which every thread may walk. ``layout stage a b``: which factors a tile finds
packed already. ``packable stage x``: factor x may be packed; ``hoists stage x axis``: its packing may leave a loop
over ``axis``; ``external stage x``: it is no earlier stage's result. ``register stage m n``: a register tile; ``depth
stage k``: how deep one runs; ``updates stage m k``: a rank-k update of m rows. ``contracts stage m n k``: the names of
a contraction's axes. ``lanes stage a l``: l elements of axis ``a`` may be taken by vectors; ``scalar stage``: there is
no axis. ``jams stage b c a l``: c positions of ``b`` at once with them. ``transposes stage a b l``: blocks of l × l
are loaded along ``a`` and used along ``b``. ``streams stage a``: results may go past the caches with lanes along
``a``. ``computes stage name sizes points``: a tile operation computes what those loops over single points do. ``flat a
n stage body``: a block of n positions of the shared axis ``a`` of that stage is the nest ``body``. ``prefetches stage
a``: its loads with lanes along ``a`` may be asked for ahead; ``asks a n``: a loop over n rows may ask for what
contractions read next. ``panels stage m n``: tiles of n columns side by side along ``m`` may ask for the next panel of
their second factor. ``spmd``, ``inner``: nests that every thread runs, filled in by rules.
"""


@dataclass(frozen=True, slots=True)
class ENode:
    """A term with e-classes (dense integers) for sub-terms; ``args`` holds its literals in order."""

    op: str
    args: tuple[str | int | bool, ...]
    children: tuple[int, ...]


@dataclass(frozen=True)
class NestGraph:
    """``classes[c]``: the e-nodes of e-class ``c``, in a total order without hashing; ``root``: the whole nest.

    Classes come after those of their children. Equal e-graphs have equal numbers, whatever egglog did before.

    ``matches``: (rule, how often it matched), for every rule that was run.
    """

    classes: tuple[tuple[ENode, ...], ...]
    root: int
    matches: tuple[tuple[str, int], ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of loop terms (e-nodes)."""
        return sum(map(len, self.classes))

    def bottom_up(self) -> tuple[int, ...]:
        """The classes reachable from the root, children first: a class comes after its children."""
        found = {self.root}
        stack = [self.root]
        while stack:
            for node in self.classes[stack.pop()]:
                for child in node.children:
                    if child not in found:
                        found.add(child)
                        stack.append(child)
        return tuple(sorted(found))


_CHILDREN = dict.fromkeys(("Loop", "Par", "Cyclic", "Split", "Ahead", "Peel", "PeelPar", "Pack"), 1) | {"Seq": 2}
_CHILDREN |= {"Tile": 0, "Ask": 0, "Update": 0, "Vector": 0, "Transpose": 0, "Op": 0, "Point": 0, "Block": 0}


ROUNDS = 1000
"""Rounds of loop rules at most: those of the library settle in about a dozen, a user's may never."""


def saturate_nests(
    rules: Sequence[tuple[str, str]],
    facts: Iterable[str],
    root: str,
    limit: int = 50_000,
    deadline: Deadline = NEVER,
) -> NestGraph:
    """Saturate ``root`` under the rules and read the e-graph back.

    ``rules``: (id, egglog text) pairs; the text refers to its ruleset as ``{ruleset}``. ``facts``: egglog
    actions over the relations of :data:`SIGNATURE`. ``root``: a term. Past ``limit`` loop terms, or ``ROUNDS``
    rounds, no further one is run: what there is by then are nests of the same computation, so a search over it is
    only less thorough.

    Raises ``ValueError``, naming the rules, when egglog refuses them.
    """
    egglog = bindings()
    matches = dict.fromkeys((identity for identity, _ in rules), 0)
    names = [f"r{position}" for position in range(len(rules))]
    ids = ", ".join(identity for identity, _ in rules)
    key = tuple(rules)
    try:
        declared = kept().pop("nests", None)
        if declared is None or declared[0] != key:
            declared = key, _declare(rules, names)
        graph = declared[1]
        program = ["(push)", f"(let $root {root})", "(spmd $root)", *facts]
        graph.run_program(*graph.parse_program("\n".join(program)))
        rounds = graph.parse_program("(run-schedule " + " ".join(f"(run {name})" for name in names) + ")")
        most = sum(line.count("(") for line in program)  # of terms: to count them takes as long as a round
        # The number of terms may stay the same, or fall, in a round that still changes what equals what.
        for _ in range(ROUNDS):
            deadline.check("searching schedules")
            outcomes: Any = graph.run_program(*rounds)
            (outcome,) = outcomes
            for name, count in outcome.report.num_matches_per_rule.items():
                identity, text = rules[int(name[1:].partition(".")[0])]
                matches[identity] += count
                most += count * text.count("(")
            if not outcome.report.updated or (most > limit and _size(graph) > limit):
                break
    except egglog.EggSmolError as error:
        raise ValueError(f"egglog refused the loop rules {ids}: {error.context}") from error
    found = _read(graph, tuple(matches.items()))
    graph.run_program(*graph.parse_program("(pop)"))
    kept()["nests"] = declared
    return found


def _size(graph: Any) -> int:
    functions = graph.freeze().functions
    return sum(len(functions[name].rows) for name in (*_CHILDREN, "spmd", "inner"))


def _declare(rules: Sequence[tuple[str, str]], names: Sequence[str]) -> Any:
    graph = bindings().EGraph()
    lines = [SIGNATURE]
    for name, (_, text) in zip(names, rules, strict=True):
        lines.append(f"(ruleset {name})")
        parts = text.split("{ruleset}")
        lines.append("".join(f'{part}{name} :name "{name}.{n}"' for n, part in enumerate(parts[:-1])) + parts[-1])
    graph.run_program(*graph.parse_program("\n".join(lines)))
    return graph


def _read(graph: Any, matches: tuple[tuple[str, int], ...]) -> NestGraph:
    functions = graph.freeze().functions
    decode = {"i64": graph.value_to_i64, "String": graph.value_to_string, "bool": graph.value_to_bool}
    literals: dict[Any, str | int | bool] = {}  # keyed by (sort, value): sorts share one numbering
    raw: dict[Any, list[tuple[str, tuple[str | int | bool, ...], tuple[Any, ...]]]] = {}
    for op, below in _CHILDREN.items():
        function = functions[op]
        sorts = function.input_sorts[: len(function.input_sorts) - below]
        for row in function.rows:
            args = []
            inputs = row.inputs
            for sort, value in zip(sorts, inputs, strict=False):
                found = literals.get((sort, value))
                if found is None:
                    found = literals[sort, value] = decode[sort](value)
                args.append(found)
            raw.setdefault(row.output, []).append((op, tuple(args), tuple(inputs[len(sorts) :])))
    numbers: dict[Any, int] = {}
    classes: list[tuple[ENode, ...]] = []
    for level in _levels(raw):
        made = []
        for value in level:
            nodes = [
                ENode(op, args, tuple([numbers[child] for child in children])) for op, args, children in raw[value]
            ]
            made.append((sorted(nodes, key=_ORDER), value))  # arguments of one operator have the same types
        # What egglog has interned before decides over its order of values: another graph may have the same e-classes.
        for nodes, value in sorted(made, key=lambda pair: [_ORDER(node) for node in pair[0]]):
            numbers[value] = len(classes)
            classes.append(tuple(nodes))
    return NestGraph(tuple(classes), numbers[functions["$root"].rows[0].output], matches)


_ORDER = attrgetter("op", "args", "children")


def _levels(raw: Mapping[Any, Sequence[tuple[str, tuple[str | int | bool, ...], tuple[Any, ...]]]]) -> list[list[Any]]:
    """The e-classes by height: children stand in lower levels. ``ValueError`` if a class contains itself."""
    users: dict[Any, list[Any]] = {}
    missing: dict[Any, int] = {}
    for value, nodes in raw.items():
        below = {child for _, _, children in nodes for child in children}
        missing[value] = len(below)
        for child in below:
            users.setdefault(child, []).append(value)
    level = [value for value, count in missing.items() if not count]
    found = []
    while level:
        found.append(level)
        above = []
        for value in level:
            for user in users.get(value, ()):
                missing[user] -= 1
                if not missing[user]:
                    above.append(user)
        level = above
    if any(missing.values()):
        raise ValueError("a loop rule equates a nest with a part of itself: the e-graph has a cycle")
    return found
