"""The chain of rules from a program to the one that runs, as equations between terms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eqsat.explain.listing import expression
from eqsat.ir.node import Node, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.table import OPS

__all__ = ["Derivation", "Equation"]


@dataclass(frozen=True)
class Equation:
    """A term, what it was replaced by, and the rule because of which the two are equal.

    ``rules``: the rule's id, ``"canonical form"`` (sums flat, operands of what commutes in the e-graph's order) or
    ``"definition"``; several where a proof is too long to be told step by step. ``back``: the rule leads from ``after``
    to ``before``. ``place``: where in the program the term is, from the inside out. ``programs``: the whole program
    before and after, which differ there alone; ``output``: which output they are for, of several.
    ``error``: the largest difference between both on random inputs, in float64, over the largest element, infinite
    where only one of both is finite; None where they were not computed, for the reason ``unchecked``. ``names``: those
    of the terms' inputs, by index.
    """

    rules: tuple[str, ...]
    before: Node
    after: Node
    error: float | None
    unchecked: str = ""
    names: tuple[str, ...] = ()
    place: str = ""
    programs: tuple[Node, ...] = ()
    back: bool = False
    output: int | None = None

    def code(self, names: Sequence[str] | None = None) -> tuple[str, str]:
        """Each of both terms as NumPy code; ``names`` are those of the inputs by index, by default the program's."""
        given = self.names if names is None else names
        before, after = ("\n".join(code([term], given)) for term in (self.before, self.after))
        return before, after


@dataclass(frozen=True)
class Derivation:
    """The equations by which a program became what runs: each program differs from that before at one place.

    They are told from the outside in, for each output by itself.
    """

    steps: tuple[Equation, ...]

    def __iter__(self) -> Iterator[Equation]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def programs(self, output: int | None = None) -> tuple[Node, ...]:
        """The whole programs, from the one that was written to the winner; of several outputs that of one."""
        steps = [step for step in self.steps if step.output == output]
        return tuple(step.programs[0] for step in steps[:1]) + tuple(step.programs[1] for step in steps)

    def __str__(self) -> str:
        if not self.steps:
            return "no rule changed the program"
        lines: list[str] = []
        for number, step in enumerate(self.steps, 1):
            held = f"not checked: {step.unchecked}" if step.error is None else f"they differ by {step.error:.1g}"
            back = ", from right to left" * step.back
            first, *around = step.place.split(" in ")
            place = f"{first}, {len(around) + 1} levels deep" if len(around) > 1 else step.place
            lines.append(f"{number}. {', '.join(step.rules)}{back} in {place} ({held})")
            *shared, before, after = code([step.before, step.after], step.names)
            lines += [f"   {line}" for line in (*shared, before, "=", after)] + [""]
        return "\n".join(lines[:-1])


def code(terms: Sequence[Node], names: Sequence[str] = ()) -> list[str]:
    """Terms as NumPy code: an expression for each, after lines for what they have more than once, or what is long."""
    uses: dict[Node, int] = {}
    order = topological(terms)
    for each in order:
        for operand in each.inputs:  # a sum names its operand twice, for its type
            uses[operand] = uses.get(operand, 0) + (2 if operand.inputs and OPS[each.op].kind == "reduce" else 1)
    texts: dict[Node, str] = {}
    lines: list[str] = []
    fresh = (name for number in itertools.count() if (name := f"t{number}") not in names)
    for each in order:
        if isinstance(each.attrs, InputAttrs):
            number = each.attrs.index
            texts[each] = names[number] if number < len(names) else f"x{number}"
            continue
        text = expression(each, [texts[operand] for operand in each.inputs])
        used = uses.get(each, 0)
        if not used:
            texts[each] = text
            continue
        if each.inputs and (used > 1 or each in terms or len(text) > 60):
            name = next(fresh)
            lines.append(f"{name} = {text}")
            text = name
        texts[each] = text if text.isidentifier() or _closed(text) else f"({text})"
    return [*lines, *(texts[term] for term in terms)]


def _closed(text: str) -> bool:
    """Whether a text is one call, which needs no parentheses as an operand."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter in ")]":
            return at == len(text) - 1 and text[0].isalpha()
        if depth == 0 and not (letter.isalnum() or letter in "._"):
            return False
    return text.replace(".", "").isalnum()
