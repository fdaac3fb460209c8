"""egglog as the matcher: terms go in as rows, matches come out as rows. Nothing else here knows egglog."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from eqsat.egraph.match import Query
from eqsat.ir.table import OPS

PRELUDE = (
    "(sort T)",
    "(constructor Ref (i64) T)",
    "(function handle (T) i64 :merge (min old new))",
    "(function value (T) i64 :merge (min old new))",
    "(ruleset load)",
    "(ruleset find)",
    "(ruleset clear)",
    "(relation in_equal_0 (i64 i64))",
    "(rule ((in_equal_0 a b)) ((union (Ref a) (Ref b)) (delete (in_equal_0 a b))) :ruleset load)",
    "(relation in_value_0 (i64 i64))",
    "(rule ((in_value_0 h v)) ((set (value (Ref h)) v) (delete (in_value_0 h v))) :ruleset load)",
)

# The n-ary operators as relations: a node has a number, and its children are rows of their own.
NARY = {
    ("add_n", 0): ("T i64 i64", "h n k", "(set (handle (Ref h)) h) (add_n_0 (Ref h) n k)"),
    ("add_n", 1): ("i64 i64 i64 T", "n p s c", "(add_n_1 n p s (Ref c))"),
    ("concat", 0): ("T i64 i64", "h n a", "(set (handle (Ref h)) h) (concat_0 (Ref h) n a)"),
    ("concat", 1): ("i64 i64 T", "n p c", "(concat_1 n p (Ref c))"),
}


class Engine:
    """One egglog e-graph. Use as a context manager: it owns a folder of row files."""

    def __init__(self) -> None:
        from egglog import bindings

        self._graph: Any = bindings.EGraph()
        self._declared: set[tuple[str, int]] = {("equal", 0), ("value", 0)}
        self._inputs: dict[tuple[str, int], Any] = {}
        self._widths: set[int] = set()
        self._rules: list[Query] = []
        self._folder = tempfile.TemporaryDirectory(prefix="eqsat-")
        for line in PRELUDE:
            self._run(line)
        self._load = self._parse("(run-schedule (saturate (run load)))")
        self._find = self._parse("(run-schedule (run find))")
        self._clear = self._parse("(run-schedule (run clear))")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def _parse(self, text: str) -> Any:
        return self._graph.parse_program(text)

    def _run(self, text: str) -> None:
        # One command at a time: the cost of a program is quadratic in its text.
        self._graph.run_program(*self._parse(text))

    def has(self, needs: set[tuple[str, int]]) -> bool:
        """Whether every operator that a query mentions has been loaded."""
        return needs <= self._declared

    def declare(self, op: str, arity: int) -> None:
        """Make an operator known (``arity`` counts tensors)."""
        if (op, arity) in self._declared:
            return
        self._declared.add((op, arity))
        name = f"{op}_{arity}"
        nary = NARY.get((op, arity))
        if nary is not None:
            columns, variables, actions = nary
            self._run(f"(relation {name} ({columns}))")
            self._run(f"(relation in_{name} ({columns.replace('T', 'i64')}))")
            self._run(f"(rule ((in_{name} {variables})) ({actions} (delete (in_{name} {variables}))) :ruleset load)")
            return
        if op not in OPS:
            raise ValueError(f"unknown operator {op!r}")
        children = [f"c{i}" for i in range(arity)]
        self._run(f"(constructor {name} (i64 {'T ' * arity}) T)")
        self._run(f"(relation in_{name} (i64 i64 {'i64 ' * arity}))")
        row = f"(in_{name} h a {' '.join(children)})"
        term = f"({name} a {' '.join(f'(Ref {c})' for c in children)})"
        self._run(f"(rule ({row}) ((set (handle (Ref h)) h) (union (Ref h) {term}) (delete {row})) :ruleset load)")

    def add_rule(self, query: Query) -> int:
        """Let ``find`` look for a query; returns the number its rows carry."""
        width = len(query.columns)
        number = len(self._rules)
        self._rules.append(query)
        if width not in self._widths:
            self._widths.add(width)
            columns = " ".join(f"x{i}" for i in range(width + 1))
            self._run(f"(relation found_{width} ({'i64 ' * (width + 1)}))")
            self._run(f"(rule ((found_{width} {columns})) ((delete (found_{width} {columns}))) :ruleset clear)")
        action = f"(found_{width} {number} {' '.join(query.variables)})"
        self._run(f"(rule ({' '.join(query.facts)}) ({action}) :ruleset find)")
        return number

    def load(self, rows: dict[tuple[str, int], list[tuple[int, ...]]]) -> None:
        """Add terms, numbers and equalities, and restore congruence. Files in ``rows``' own order of operators."""
        commands: list[Any] = []
        for (op, arity), lines in rows.items():
            self.declare(op, arity)
            path = os.path.join(self._folder.name, f"{op}_{arity}.tsv")
            with open(path, "w", encoding="ascii") as file:
                file.writelines("\t".join(map(str, line)) + "\n" for line in lines)
            if (op, arity) not in self._inputs:
                self._inputs[op, arity] = self._parse(f'(input in_{op}_{arity} "{path}")')
            commands.extend(self._inputs[op, arity])
        self._graph.run_program(*commands, *self._load)

    def find(self) -> list[tuple[int, tuple[int, ...]]]:
        """The matches found since last asked: (query number, row), in a fixed order."""
        self._graph.run_program(*self._find)
        functions = self._graph.freeze().functions
        decode = self._graph.value_to_i64
        found = [
            (decode(row.inputs[0]), tuple(decode(v) for v in row.inputs[1:]))
            for width in self._widths
            for row in functions[f"found_{width}"].rows
        ]
        self._graph.run_program(*self._clear)
        found.sort()
        return found

    def handles(self) -> dict[int, int]:
        """The class of every handle as egglog has it: for checking the term store against it."""
        functions = self._graph.freeze().functions
        decode = self._graph.value_to_i64
        classes = {row.inputs[0]: decode(row.output) for row in functions["handle"].rows}
        return {decode(row.inputs[0]): classes[row.output] for row in functions["Ref"].rows}
