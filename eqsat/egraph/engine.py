"""egglog as the matcher: terms go in as rows, matches come out as rows. Nothing else here knows egglog."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eqsat.egraph.library import bindings, usable
from eqsat.egraph.match import Query
from eqsat.ir.table import OPS

__all__ = ["Engine", "usable"]

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


class _File:
    """Rows on their way into egglog, which reads them by path: in memory where the system can, else in a folder."""

    def __init__(self, folder: str, name: str) -> None:
        self._descriptor: int | None = None
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._descriptor = os.memfd_create(name)
            self.path = f"/proc/self/fd/{self._descriptor}"
        else:
            self.path = os.path.join(folder, name)

    def write(self, rows: Iterable[Sequence[int]]) -> None:
        text = "".join("\t".join(map(str, row)) + "\n" for row in rows).encode("ascii")
        if self._descriptor is None:
            with open(self.path, "wb") as file:
                file.write(text)
            return
        os.ftruncate(self._descriptor, 0)
        done = 0
        while done < len(text):
            done += os.pwrite(self._descriptor, text[done:], done)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class Engine:
    """One egglog e-graph. Use as a context manager: it owns the files that carry rows."""

    def __init__(self) -> None:
        self._graph: Any = bindings().EGraph()
        self._declared: dict[tuple[str, int], int] = {}
        self._files: dict[int, tuple[_File, Any]] = {}
        self._widths: set[int] = set()
        self._rules = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not hasattr(os, "memfd_create"):
            self._folder = tempfile.TemporaryDirectory(prefix="eqsat-")
        for line in PRELUDE:
            self._run(line)
        self._load = self._parse("(run-schedule (saturate (run load)))")
        self._find = self._parse("(run-schedule (run find))")
        self._clear = self._parse("(run-schedule (run clear))")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        del self._graph  # here, in its own thread: an error's traceback may carry this object to another one
        for file, _ in self._files.values():
            file.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _parse(self, text: str) -> Any:
        return self._graph.parse_program(text)

    def _run(self, text: str) -> None:
        # One command at a time: the cost of a program is quadratic in its text.
        self._graph.run_program(*self._parse(text))

    def has(self, needs: set[tuple[str, int]]) -> bool:
        """Whether every operator that a query mentions has been loaded."""
        return needs <= self._declared.keys()

    def _file(self, width: int) -> tuple[_File, Any]:
        """The file of rows of a width, and the command that reads it into ``in_<width>`` (first column: what it is)."""
        if width not in self._files:
            file = _File(self._folder.name if self._folder is not None else "", f"rows-{width}")
            self._run(f"(relation in_{width} ({'i64 ' * width}))")
            self._files[width] = file, self._parse(f'(input in_{width} "{file.path}")')
        return self._files[width]

    def _declare(self, op: str, arity: int) -> int:
        """The number by which rows name an operator (``arity`` counts tensors), made known to egglog if new."""
        if (op, arity) in self._declared:
            return self._declared[op, arity]
        number = self._declared[op, arity] = len(self._declared)
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

    def add_rule(self, query: Query) -> int:
        """Let ``find`` look for a query; returns the number its rows carry."""
        width = len(query.columns)
        number = self._rules
        self._rules += 1
        if width not in self._widths:
            self._widths.add(width)
            columns = " ".join(f"x{i}" for i in range(width + 1))
            self._run(f"(relation found_{width} ({'i64 ' * (width + 1)}))")
            self._run(f"(rule ((found_{width} {columns})) ((delete (found_{width} {columns}))) :ruleset clear)")
        action = f"(found_{width} {number} {' '.join(query.variables)})"
        self._run(f"(rule ({' '.join(query.facts)}) ({action}) :ruleset find)")
        return number

    def load(self, rows: Mapping[tuple[str, int], Sequence[tuple[int, ...]]]) -> None:
        """Add terms, numbers and equalities by (operator, arity), and restore congruence."""
        by_width: dict[int, list[tuple[int, ...]]] = {}
        for (op, arity), lines in rows.items():
            number = self._declare(op, arity)
            if lines:
                by_width.setdefault(len(lines[0]) + 1, []).extend((number, *line) for line in lines)
        commands: list[Any] = []
        for width, lines in by_width.items():
            file, command = self._file(width)
            file.write(lines)
            commands.extend(command)
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
