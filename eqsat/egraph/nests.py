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

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from eqsat.deadline import NEVER, Deadline
from eqsat.egraph.library import bindings, kept
from eqsat.egraph.rows import RowsFile, rows_folder

Matches = tuple[tuple[str, int], ...]
"""(Rule, how often it matched)."""

TERMS = {
    "Loop": "axis n n nest",
    "Par": "axis n n nest",
    "Cyclic": "axis n n nest",
    "Split": "axis n n nest",
    "Ahead": "axis n n nest",
    "Peel": "axis n n nest",
    "PeelPar": "axis n n nest",
    "Pack": "stage name nest",
    "Seq": "nest nest",
    "Tile": "stage n n n flag flag",
    "Ask": "axis n stage n n n flag flag",
    "Update": "stage n n n flag",
    "Vector": "stage axis n axis n flag flag",
    "Transpose": "stage axis axis n flag",
    "Op": "stage name sizes",
    "Point": "stage",
    "Block": "stage",
}
"""Columns of the constructors of nests; those that are nests come last."""

RELATIONS = {
    "factor": "axis n n",
    "permutable": "axis axis",
    "shared": "axis",
    "splits": "axis",
    "unlike": "axis",
    "outermost": "axis",
    "layout": "stage flag flag",
    "packable": "stage name",
    "hoists": "stage name axis",
    "external": "stage name",
    "register": "stage n n",
    "depth": "stage n",
    "updates": "stage n n",
    "contracts": "stage axis axis axis",
    "points": "axis axis",
    "lanes": "stage axis n",
    "scalar": "stage",
    "jams": "stage axis n axis n",
    "transposes": "stage axis axis n",
    "streams": "stage axis",
    "prefetches": "stage axis",
    "asks": "axis n",
    "panels": "stage axis n",
    "divides": "axis n",
    "peels": "axis n n",
    "computes": "stage name sizes nest",
    "flat": "axis n stage nest",
    "spmd": "nest",
    "inner": "nest",
}
"""Columns of the relations in which the facts of one problem are stated.

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

    ``matches``: (rule, how often it matched), for every rule that was run: one object for all nests of one saturation.
    """

    classes: tuple[tuple[ENode, ...], ...]
    root: int
    matches: Matches = field(default=(), compare=False)

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


LIMIT = 50_000
"""Loop terms of an e-graph of nests from which it grows no further."""

ROUNDS = 1000
"""Rounds of loop rules at most: those of the library settle in about a dozen, a user's may never."""
TOGETHER = 32
"""Problems of one e-graph at most: SqueezeNet's 79 take 0.14 s by 32, 0.15 all at once, 0.33 one after the other."""


@dataclass(frozen=True)
class Space:
    """What a saturation starts from: a term, and facts, egglog actions over :data:`RELATIONS`."""

    root: str
    facts: tuple[str, ...]


def saturate_nests(
    rules: Sequence[tuple[str, str]],
    spaces: Sequence[Space],
    limit: int = LIMIT,
    deadline: Deadline = NEVER,
) -> list[NestGraph]:
    """Saturate each space under the rules, several in one e-graph, and read the e-graphs back.

    ``rules``: (id, egglog text) pairs; the text refers to its ruleset as ``{ruleset}``. Past ``limit`` loop terms of a
    space, or ``ROUNDS`` rounds, no further one is run: what there is by then are nests of the same computation, so a
    search over it is only less thorough; of several products together there may be none yet that can run.

    Raises ``ValueError``, naming the rules, when egglog refuses them.
    """
    found: list[NestGraph] = []
    for start in range(0, len(spaces), TOGETHER):
        some = spaces[start : start + TOGETHER]
        graphs = _saturate(rules, some, limit, deadline)
        if graphs is None:  # together they are too many
            graphs = [graph for space in some for graph in _saturate(rules, [space], limit, deadline) or ()]
        found += graphs
    return found


def _saturate(
    rules: Sequence[tuple[str, str]], spaces: Sequence[Space], limit: int, deadline: Deadline
) -> list[NestGraph] | None:
    """One e-graph of all spaces; None past ``limit`` if they are several."""
    matches = dict.fromkeys((identity for identity, _ in rules), 0)
    ids = ", ".join(matches)
    key = tuple(rules)
    known = kept().pop("nests", None)
    try:
        declared: _Declared = known if known is not None and known.rules == key else _Declared(key)
        most = declared.load(spaces)  # of terms: to count them takes as long as a round
        # The number of terms may stay the same, or fall, in a round that still changes what equals what.
        for _ in range(ROUNDS):
            deadline.check("searching schedules")
            report = declared.round()
            for name, count in report.num_matches_per_rule.items():
                identity, text = rules[int(name[1:].partition(".")[0])]
                matches[identity] += count
                most += count * text.count("(")
            if not report.updated:
                break
            if most > limit and declared.size > limit:
                if len(spaces) > 1:
                    return None
                break
    except bindings().EggSmolError as error:
        raise ValueError(f"egglog refused the loop rules {ids}: {error.context}") from error
    found = declared.read(tuple(matches.items()), len(spaces))
    declared.forget()
    if declared.folder is None:
        kept()["nests"] = declared
    return found


_TYPES = {"axis": "String", "name": "String", "sizes": "String", "stage": "i64", "n": "i64", "flag": "bool"}
_COLUMNS = {name: columns.split() for name, columns in (TERMS | RELATIONS).items()}
_LOADED = {name for name in RELATIONS if not {"nest", "flag"} & set(_COLUMNS[name])}
"""Relations whose rows egglog reads from files: it reads no truth values, and no terms."""
_TOKEN = re.compile(r'"[^"]*"|[()]|[^\s()"]+')
_STAGES = 1000
"""More than a problem has: the stages of the ``k``-th problem of an e-graph count from ``k * _STAGES``."""


@lru_cache(maxsize=1 << 14)
def _template(fact: str) -> tuple[str, str, str]:
    """A fact's relation, its row where that is loaded, and the action that states it.

    Axes and stages of the problems of one e-graph are called differently: both have places for what stands behind an
    axis (0) and before the last digits of a stage (1).
    """
    row: list[str] = []
    action: list[str] = []
    columns: list[Iterator[str] | None] = []
    for token in _TOKEN.findall(fact):
        if token == "(":
            columns.append(None)
        elif token == ")":
            columns.pop()
        elif columns[-1] is None:
            columns[-1] = iter(_COLUMNS.get(token, ()))
        else:
            kind = next(columns[-1], "")
            if kind == "axis" and token != '""':
                token = token[:-1] + '{0}"'
            elif kind == "stage":
                token = f"{{1}}{int(token):03}"
            row.append(token.strip('"'))
        action.append(token)
    return action[1], "\t".join(row), " ".join(action)


def _own(kind: str, value: Any) -> tuple[str | int | bool, int]:
    """An argument as its problem has it, and the number of that problem."""
    if kind == "axis":
        name, _, number = value.partition("#")
        return name, int(number or 0)
    if kind == "stage":
        number, stage = divmod(value, _STAGES)
        return stage, number
    return value, 0


_Raw = dict[Any, list[tuple[str, tuple[str | int | bool, ...], tuple[Any, ...]]]]


class _Declared:
    """An egglog e-graph that knows the rules, and any nests until they are forgotten."""

    def __init__(self, rules: tuple[tuple[str, str], ...]) -> None:
        self.rules = rules
        self._graph: Any = bindings().EGraph()
        lines = [f"(datatype Nest {' '.join(f'({name} {_signature(name)})' for name in TERMS)})"]
        lines += [f"(relation {name} ({_signature(name)}))" for name in RELATIONS]
        lines += ["(relation root (i64 Nest))", "(ruleset begin)", "(rule ((root k e)) ((spmd e)) :ruleset begin)"]
        for number, (_, text) in enumerate(rules):
            name = f"r{number}"
            lines.append(f"(ruleset {name})")
            parts = text.split("{ruleset}")
            lines.append("".join(f'{part}{name} :name "{name}.{n}"' for n, part in enumerate(parts[:-1])) + parts[-1])
        self._graph.run_program(*self._parse("\n".join(lines)))
        self._push, self._pop = self._parse("(push)"), self._parse("(pop)")
        self._begin = self._parse("(run-schedule (run begin))")
        self._rounds = self._parse("(run-schedule " + " ".join(f"(run r{n})" for n in range(len(rules))) + ")")
        self.folder = rows_folder()
        self._files: dict[str, tuple[RowsFile, Any]] = {}

    def _parse(self, text: str) -> Any:
        return self._graph.parse_program(text)

    def _file(self, relation: str) -> tuple[RowsFile, Any]:
        found = self._files.get(relation)
        if found is None:
            file = RowsFile(self.folder, relation)
            found = self._files[relation] = file, self._parse(f'(input {relation} "{file.path}")')
        return found

    def load(self, spaces: Sequence[Space]) -> int:
        """Take in what the spaces start from; how many terms and rows that is about."""
        rows: dict[str, list[str]] = {}
        texts: list[str] = []
        for number, space in enumerate(spaces):
            behind, before = (f"#{number}", str(number)) if number else ("", "")
            texts.append(f"(root {number} {_template(space.root)[2].format(behind, before)})")
            for fact in space.facts:
                relation, row, action = _template(fact)
                if relation in _LOADED:
                    rows.setdefault(relation, []).append(row.format(behind, before))
                else:
                    texts.append(action.format(behind, before))
        commands: list[Any] = list(self._push)
        for relation, lines in rows.items():
            file, command = self._file(relation)
            file.write(lines)
            commands += command
        for text in texts:  # one at a time: to parse a program takes time quadratic in its length
            commands += self._parse(text)
        self._graph.run_program(*commands, *self._begin)
        return sum(map(len, rows.values())) + sum(text.count("(") for text in texts)

    def round(self) -> Any:
        """Run each rule once; egglog's report."""
        (outcome,) = self._graph.run_program(*self._rounds)
        return outcome.report

    @property
    def size(self) -> int:
        functions = self._graph.freeze().functions
        return sum(len(functions[name].rows) for name in (*TERMS, "spmd", "inner"))

    def forget(self) -> None:
        """Let go of all nests."""
        self._graph.run_program(*self._pop)
        if self.folder is not None:
            self.folder.cleanup()

    def read(self, matches: Matches, count: int) -> list[NestGraph]:
        functions = self._graph.freeze().functions
        decode = {"i64": self._graph.value_to_i64, "String": self._graph.value_to_string}
        decode["bool"] = self._graph.value_to_bool
        known: dict[str, dict[Any, tuple[str | int | bool, int]]] = {kind: {} for kind in _TYPES}
        problems: list[_Raw] = [{} for _ in range(count)]
        of: dict[Any, int] = {}
        joined = []
        for op in TERMS:
            kinds = [kind for kind in _COLUMNS[op] if kind != "nest"]
            caches = [known[kind] for kind in kinds]
            for row in functions[op].rows:
                inputs, output = row.inputs, row.output
                args = []
                problem = 0
                for kind, cache, value in zip(kinds, caches, inputs, strict=False):
                    found = cache.get(value)
                    if found is None:
                        found = cache[value] = _own(kind, decode[_TYPES[kind]](value))
                    args.append(found[0])
                    problem = problem or found[1]
                term = op, tuple(args), tuple(inputs[len(kinds) :])
                if kinds:
                    of[output] = problem
                    problems[problem].setdefault(output, []).append(term)
                else:
                    joined.append((output, term))
        while joined:  # a sequence is of the problem that its parts are of, which may be sequences
            parts = [next((child for child in term[2] if child in of), None) for _, term in joined]
            stuck = not any(part is not None for part in parts)  # a cycle, which is refused below
            later = []
            for (output, term), part in zip(joined, parts, strict=True):
                if part is None and not stuck:
                    later.append((output, term))
                    continue
                of[output] = of.get(part, 0)
                problems[of[output]].setdefault(output, []).append(term)
            joined = later
        roots = {self._graph.value_to_i64(row.inputs[0]): row.inputs[1] for row in functions["root"].rows}
        return [_numbered(raw, roots[number], matches) for number, raw in enumerate(problems)]


def _signature(name: str) -> str:
    return " ".join(_TYPES.get(kind, "Nest") for kind in _COLUMNS[name])


def _numbered(raw: _Raw, root: Any, matches: Matches) -> NestGraph:
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
    return NestGraph(tuple(classes), numbers[root], matches)


_ORDER = attrgetter("op", "args", "children")


def _levels(raw: _Raw) -> list[list[Any]]:
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
