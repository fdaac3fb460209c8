"""egglog as the matcher: terms go in as rows, matches come out as rows. Nothing else here knows egglog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eqsat.egraph.library import bindings, kept, usable
from eqsat.egraph.match import Query
from eqsat.egraph.rows import RowsFile, rows_folder
from eqsat.ir.table import OPS

__all__ = ["Engine", "engine_for", "usable"]

PRELUDE = (
    "(sort T)",
    "(constructor Ref (i64) T)",
    "(function handle (T) i64 :merge (min old new))",
    "(function value (T) i64 :merge (min old new))",
    "(ruleset load)",
    "(ruleset find)",
    "(ruleset clear)",
)

# Rows that are no terms of fixed arity: (relation's columns, row's columns, what a row does). The n-ary operators
# are relations: a node has a number, and its children are rows of their own.
SPECIAL = {
    ("equal", 0): ("", "a b", "(union (Ref a) (Ref b))"),
    ("value", 0): ("", "h v", "(set (value (Ref h)) v)"),
    ("add_n", 0): ("T i64 i64", "h n k", "(set (handle (Ref h)) h) (add_n_0 (Ref h) n k)"),
    ("add_n", 1): ("i64 i64 i64 T", "n p s c", "(add_n_1 n p s (Ref c))"),
    ("concat", 0): ("T i64 i64", "h n a", "(set (handle (Ref h)) h) (concat_0 (Ref h) n a)"),
    ("concat", 1): ("i64 i64 T", "n p c", "(concat_1 n p (Ref c))"),
}


@dataclass
class _Known:
    """What egglog has been told of: operators with their numbers, queries, and relations by their width."""

    operators: dict[tuple[str, int], int] = field(default_factory=dict)
    queries: set[int] = field(default_factory=set)
    files: dict[int, tuple[RowsFile, Any]] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)

    def copy(self) -> _Known:
        return _Known(dict(self.operators), set(self.queries), dict(self.files), set(self.found))


class Engine:
    """An egglog e-graph that looks for ``queries`` once it has all operators that they mention.

    What it holds may be forgotten. Operators and queries are declared outside of that, as far as they are known before
    the first rows: it takes longer than to saturate a small program.
    """

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = queries
        self._graph: Any = bindings().EGraph()
        self._known = _Known()
        self._outside: _Known | None = None
        self._later: list[tuple[str, int]] = []
        self.folder = rows_folder()
        for line in PRELUDE:
            self._run(line)
        self._load = self._parse("(run-schedule (saturate (run load)))")
        self._find = self._parse("(run-schedule (run find))")
        self._clear = self._parse("(run-schedule (run clear))")

    def forget(self) -> None:
        """Let go of all rows; operators that came late are declared before the next ones."""
        if self._outside is not None:
            self._run("(pop)")
            self._later = [op for op in self._known.operators if op not in self._outside.operators]
            for width, (file, _) in self._known.files.items():
                if width not in self._outside.files:
                    file.close()
            self._known, self._outside = self._outside, None

    def close(self) -> None:
        """Free all, here, in its own thread: an error's traceback may carry this object to another one."""
        del self._graph
        for file, _ in self._known.files.values():
            file.close()
        if self.folder is not None:
            self.folder.cleanup()

    def _parse(self, text: str) -> Any:
        return self._graph.parse_program(text)

    def _run(self, text: str) -> None:
        # One command at a time: the cost of a program is quadratic in its text.
        self._graph.run_program(*self._parse(text))

    def _file(self, width: int) -> tuple[RowsFile, Any]:
        """The file of rows of a width, and the command that reads it into ``in_<width>`` (first column: what it is)."""
        files = self._known.files
        if width not in files:
            file = RowsFile(self.folder, f"rows-{width}")
            self._run(f"(relation in_{width} ({'i64 ' * width}))")
            files[width] = file, self._parse(f'(input in_{width} "{file.path}")')
        return files[width]

    def _declare(self, op: str, arity: int) -> int:
        """The number by which rows name an operator (``arity`` counts tensors), made known to egglog if new."""
        operators = self._known.operators
        if (op, arity) in operators:
            return operators[op, arity]
        number = operators[op, arity] = len(operators)
        name = f"{op}_{arity}"
        special = SPECIAL.get((op, arity))
        if special is not None:
            columns, variables, actions = special
            if columns:
                self._run(f"(relation {name} ({columns}))")
        else:
            if op not in OPS:
                raise ValueError(f"unknown operator {op!r}")
            children = [f"c{i}" for i in range(arity)]
            self._run(f"(constructor {name} (i64 {'T ' * arity}) T)")
            variables = " ".join(["h", "a", *children])
            term = f"({name} a {' '.join(f'(Ref {c})' for c in children)})"
            actions = f"(set (handle (Ref h)) h) (union (Ref h) {term})"
        width = len(variables.split()) + 1
        self._file(width)
        row = f"(in_{width} {number} {variables})"
        self._run(f"(rule ({row}) ({actions} (delete {row})) :ruleset load)")
        return number

    def _seek(self, number: int, query: Query) -> None:
        """Let ``find`` look for a query; its rows carry its number."""
        kinds = "".join("T" if kind == "tensor" else "i" for kind, _ in query.columns)
        self._known.queries.add(number)
        if kinds not in self._known.found:
            self._known.found.add(kinds)
            columns = " ".join(f"x{i}" for i in range(len(kinds) + 1))
            types = " ".join("T" if kind == "T" else "i64" for kind in kinds)
            self._run(f"(relation found_{kinds} (i64 {types}))")
            self._run(f"(rule ((found_{kinds} {columns})) ((delete (found_{kinds} {columns}))) :ruleset clear)")
        action = f"(found_{kinds} {number} {' '.join(query.variables)})"
        self._run(f"(rule ({' '.join(query.facts)}) ({action}) :ruleset find)")

    def _prepare(self, operators: Iterable[tuple[str, int]]) -> None:
        """Declare operators, and what is looked for with them."""
        for op, arity in operators:
            self._declare(op, arity)
        for number, query in enumerate(self.queries):
            if number not in self._known.queries and query.needs <= self._known.operators.keys():
                self._seek(number, query)

    def load(self, rows: Mapping[tuple[str, int], Sequence[tuple[int, ...]]]) -> None:
        """Add terms, numbers and equalities by (operator, arity), and restore congruence."""
        self._prepare([*self._later, *rows])
        self._later = []
        if self._outside is None:
            self._outside = self._known.copy()
            self._run("(push)")
        by_width: dict[int, list[tuple[int, ...]]] = {}
        for (op, arity), lines in rows.items():
            number = self._known.operators[op, arity]
            if lines:
                by_width.setdefault(len(lines[0]) + 1, []).extend((number, *line) for line in lines)
        commands: list[Any] = []
        for width, lines in by_width.items():
            file, command = self._file(width)
            file.write("\t".join(map(str, line)) for line in lines)
            commands.extend(command)
        self._graph.run_program(*commands, *self._load)

    def find(self) -> list[tuple[int, tuple[int, ...]]]:
        """The matches found since last asked: (place in ``queries``, row), in a fixed order."""
        self._graph.run_program(*self._find)
        functions = self._graph.freeze().functions
        decode = self._graph.value_to_i64
        # Joined here: each class of a match would be one more relation for egglog to join.
        handle = {row.inputs[0]: decode(row.output) for row in functions["handle"].rows}.__getitem__
        rows = []
        for kinds in self._known.found:
            read = [decode, *(handle if kind == "T" else decode for kind in kinds)]
            rows += [
                tuple([f(v) for f, v in zip(read, row.inputs, strict=True)]) for row in functions[f"found_{kinds}"].rows
            ]
        self._graph.run_program(*self._clear)
        rows.sort()
        return [(row[0], row[1:]) for row in rows]

    def handles(self) -> dict[int, int]:
        """The class of every handle as egglog has it: for checking the term store against it."""
        functions = self._graph.freeze().functions
        decode = self._graph.value_to_i64
        classes = {row.inputs[0]: decode(row.output) for row in functions["handle"].rows}
        return {decode(row.inputs[0]): classes[row.output] for row in functions["Ref"].rows}


MOST_KEPT = 4
"""Engines that a thread keeps, of about 2 MB: programs are compiled with rules of several numerics in turn."""


@contextmanager
def engine_for(queries: Sequence[Query]) -> Iterator[Engine]:
    """An engine without rows, one that this thread has used before if that was for the same queries."""
    idle: list[Engine] = kept().setdefault("engines", [])
    engine = next((other for other in idle if other.queries is queries), None)
    if engine is None:
        engine = Engine(queries)
    else:
        idle.remove(engine)
    try:
        yield engine
        engine.forget()
    except BaseException:
        engine.close()
        raise
    # One with a folder would leave that behind; and a rule's function may have saturated something itself.
    if engine.folder is not None or any(other.queries is queries for other in idle):
        engine.close()
        return
    idle.append(engine)
    while len(idle) > MOST_KEPT:
        idle.pop(0).close()
