"""Parts of printed modules: address arithmetic, imports and definitions, and the layout of scratch memory."""

from __future__ import annotations

import re
from itertools import chain

Term = tuple[int, str]
"""A coefficient and the Python expression it multiplies."""


def address(base: str, *terms: Term) -> str:
    """``base + Σ coefficient·expression`` in as few characters as its meaning needs.

    >>> address("a", (4, "m1"), (128, "0"), (1, "16"))
    'a + 4 * m1 + 16'
    """
    constant, parts = 0, [] if base == "0" else [base]
    for factor, expression in terms:
        if expression.lstrip("-").isdigit():
            constant += factor * int(expression)
        elif factor == 1:
            parts.append(expression if expression.isidentifier() else f"({expression})")
        elif factor:
            parts.append(f"{factor} * {expression if expression.isidentifier() else f'({expression})'}")
    if constant or not parts:
        parts.append(str(constant))
    return " + ".join(parts).replace("+ -", "- ")


def minus(left: str, right: str) -> str:
    """``left - right``, folded where it is plain."""
    if left == right:
        return "0"
    if right == "0":
        return left
    if left.isdigit() and right.isdigit():
        return str(int(left) - int(right))
    return f"{left} - {right}"


def rounding_products(source: str) -> str:
    """A printed module whose reductions round each product before they add it."""
    return re.sub(r"\baccumulate\b(?!=)", "add", source)


class Scratch:
    """Offsets of the parts of a scratch buffer, each on its own cache lines."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, size: int) -> int:
        """The offset of ``size`` new bytes."""
        offset = self.bytes
        self.bytes += -(-size // 64) * 64
        return offset


class Module:
    """A printed kernel module: what it imports, its module-level definitions."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._imports: dict[str, set[str]] = {}
        self._definitions: dict[str, str] = {}

    def use(self, module: str, *names: str) -> None:
        """Import ``names`` from a module of this package."""
        self._imports.setdefault(module, set()).update(names)

    def define(self, stem: str, expression: str) -> str:
        """A module-level name for ``expression``: ``stem``, numbered where it is taken by another expression."""
        name, number = stem, 1
        while self._definitions.setdefault(name, expression) != expression:
            number += 1
            name = f"{stem}_{number}"
        return name

    def render(self, body: str) -> str:
        """The whole module: docstring, imports, definitions, then ``body``, a text of functions.

        What else ``body`` calls is imported from the SIMD module, which is not asked here: it would import Numba.
        """
        known = {"min", "max", "range", *self._definitions, *chain.from_iterable(self._imports.values())}
        known.update(re.findall(r"^def (\w+)\(", body, re.MULTILINE))
        self.use("vectors.simd", *(set(re.findall(r"(?<![\w.])(?<!def )([a-z]\w*)\(", body)) - known))
        imports = [
            f"from eqsat_backends.numba_cpu.{module} import {', '.join(sorted(names))}"
            for module, names in sorted(self._imports.items())
        ]
        numbers = sorted(set(re.findall(r"(?<![\w.])(inf|nan)\b", body)))
        if numbers:
            imports.insert(0, f"from math import {', '.join(numbers)}\n")
        definitions = [f"{name} = {expression}" for name, expression in self._definitions.items()]
        parts = [f'"""{self.title}"""', "\n".join(imports), "\n".join(definitions)]
        return "\n\n".join(part for part in parts if part) + "\n\n\n" + body
