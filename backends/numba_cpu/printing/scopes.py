"""Lines of SIMD Python in nested scopes: every value is printed once, in the outermost scope where it may be."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from eqsat.ir.types import DType
from eqsat_backends.numba_cpu.vectors.lanes import KIND

__all__ = ["Scopes", "Value", "kind_of", "names_in"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_BUILTINS = {"range", "min", "max"}


def kind_of(dtype: DType) -> str:
    """The SIMD kind of an element type: ``f32``, ``i64``, ``u8``, ``b1``."""
    try:
        return KIND[dtype.name]
    except KeyError:
        raise TypeError(f"no SIMD kind for element type {dtype}; kernels compute with {', '.join(KIND)}") from None


@dataclass(frozen=True, slots=True)
class Value:
    """A printed vector: its variable, its element type, and the loop variables that it depends on.

    ``uniform``: every lane is the same.
    """

    name: str
    dtype: DType
    depends: frozenset[str]
    uniform: bool


@dataclass
class _Scope:
    indent: int
    binds: frozenset[str]
    lines: list[str] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)
    choice: int = 0
    """The line at which the last block without `else` began."""


class Scopes:
    """A source text being written, with ``lanes`` lanes to a vector, and the scopes that are open in it."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._scopes = [_Scope(0, frozenset())]
        self._names = 0
        self._used: set[str] = set()

    @contextlib.contextmanager
    def scope(self, header: str, *binds: str) -> Iterator[None]:
        """An indented block under ``header`` that binds variables; its own values end with it."""
        outer = self._scopes[-1]
        inner = _Scope(outer.indent + 1, frozenset(binds))
        self._scopes.append(inner)
        start = len(outer.lines)
        yield
        self._scopes.pop()
        if header.startswith(("else", "elif")):
            # values of the branch that belong outside it go before the whole choice, not between its branches
            hoisted = outer.lines[start:]
            del outer.lines[start:]
            outer.lines[outer.choice : outer.choice] = hoisted
            outer.choice += len(hoisted)
        else:
            outer.choice = len(outer.lines)
        outer.lines.append("    " * outer.indent + header)
        outer.lines.extend(inner.lines or ["    " * inner.indent + "pass"])

    def line(self, text: str) -> None:
        """A statement at the end of the innermost scope. SIMD functions in it are imported."""
        scope = self._scopes[-1]
        scope.lines.append("    " * scope.indent + text)
        self._note(text)

    def bind(self, name: str, text: str) -> None:
        """``name = text`` in the innermost scope; values that depend on ``name`` stay inside it."""
        self._scopes[-1].binds |= {name}
        self.line(f"{name} = {text}")

    def mark(self, name: str) -> None:
        """Bind ``name`` in the innermost scope with no line: what depends on it is printed here or deeper."""
        self._scopes[-1].binds |= {name}

    def fresh(self, prefix: str = "v") -> str:
        """A name not given out before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def text(self) -> str:
        """The lines printed so far; all scopes must be closed."""
        assert len(self._scopes) == 1, "open scopes"
        return "\n".join(self._scopes[0].lines) + "\n"

    def module(self, doc: str = "", setup: str = "") -> str:
        """The text as a module: docstring, imports of what it uses, then the lines."""
        head = f'"""{doc}"""\n\n' if doc else ""
        names = sorted(self._used)
        constants = [n for n in names if n in ("inf", "nan")]
        names = [n for n in names if n not in constants]
        if constants:
            head += f"from math import {', '.join(constants)}\n\n"
        if names:
            head += "from eqsat_backends.numba_cpu.vectors.simd import (\n"
            head += "".join(f"    {name},\n" for name in names) + ")\n\n"
        return (head + setup).rstrip() + "\n\n\n" + self.text().strip() + "\n"

    def _note(self, text: str) -> None:
        """Remember which names of the SIMD module ``text`` uses."""
        self._used.update(re.findall(r"\b([a-z]\w*)\(", text))
        self._used.update(re.findall(r"(?<![\w.])(inf|nan)\b", text))
        self._used -= _BUILTINS

    # values

    def emit(self, text: str, dtype: DType, depends: frozenset[str], uniform: bool, scope: int | None = None) -> Value:
        """The vector ``text``, printed in the outermost scope where its variables are bound, once."""
        if scope is None:
            scope = self._home(depends)
        for outer in self._scopes[: scope + 1]:
            if text in outer.known:
                return outer.known[text]
        target = self._scopes[scope]
        value = Value(self.fresh(), dtype, depends, uniform)
        target.lines.append("    " * target.indent + f"{value.name} = {text}")
        target.known[text] = value
        self._note(text)
        return value

    def _home(self, depends: frozenset[str]) -> int:
        for depth in range(len(self._scopes) - 1, 0, -1):
            if self._scopes[depth].binds & depends:
                return depth
        # nothing but a phase function's arguments: in the function, not in the module
        return min(1, len(self._scopes) - 1)

    def type(self, dtype: DType) -> str:
        """The suffix of SIMD functions that make vectors: ``f32x16``."""
        return f"{kind_of(dtype)}x{self.lanes}"

    def literal(self, value: float | int | bool, dtype: DType) -> Value:
        """A constant in every lane."""
        return self.emit(f"splat_{self.type(dtype)}({_number(value, dtype)})", dtype, frozenset(), True)

    def call(self, fn: str, *args: Value, dtype: DType | None = None) -> Value:
        """``fn(args…)``; the result has the type of the last argument unless given."""
        text = f"{fn}({', '.join(a.name for a in args)})"
        depends = frozenset[str]().union(*(a.depends for a in args))
        return self.emit(text, dtype or args[-1].dtype, depends, all(a.uniform for a in args))


def names_in(text: str) -> frozenset[str]:
    """The variables in an expression (and function names, which bind nothing)."""
    return frozenset(_NAME.findall(text))


def _number(value: float | int | bool, dtype: DType) -> str:
    if dtype.kind == "bool":
        return str(bool(value))
    if dtype.kind == "int":
        return str((int(value) + 2**63) % 2**64 - 2**63)  # the bits of an int64
    return repr(float(value))
