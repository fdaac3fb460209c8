"""Printed modules whose integers are arguments: one text, and so one machine code, for a kernel at many lengths.

What a nest becomes at two lengths mostly differs in nothing but integers: bounds of loops, strides, elements left over.
Those that differ are read from an array behind the other words of a kernel's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from eqsat_backends.numba_cpu.printing.emitted import Emitted

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\.\d+|(?P<integer>\d+)")
_HEAD = re.compile(r"def \w+\(args, tid, nt\):\n")


class Sizes:
    """The modules of one plan at many lengths; ``known``: of those printed so far, the first integers, which vary."""

    def __init__(self, known: dict[tuple[int, tuple[str, ...]], tuple[list[int], set[int]]]) -> None:
        self._known = known

    def lifted(
        self, kernel: int, emitted: Emitted, words: int, others: Callable[[], Iterable[Emitted]]
    ) -> tuple[Emitted, list[int]]:
        """The module with its varying integers as an array behind ``words`` words of arguments, and these integers.

        ``kernel``: its number in the plan. ``others``: the same kernel at other lengths.
        Raises ``ValueError`` where integers vary outside of functions.
        """
        text, integers = _parted(_body(emitted.source))
        if (kernel, text) not in self._known:
            varying = set[int]()
            for other in others():
                its_text, its = _parted(_body(other.source))
                if its_text == text:
                    varying |= {n for n, (a, b) in enumerate(zip(integers, its, strict=True)) if a != b}
            self._known[kernel, text] = integers, varying
        first, varying = self._known[kernel, text]
        varying |= {n for n, (a, b) in enumerate(zip(integers, first, strict=True)) if a != b}
        places = {n: place for place, n in enumerate(sorted(varying))}
        shown = [f"size_{places[n]}" if n in places else str(value) for n, value in enumerate(integers)]
        source = "".join(part for pair in zip(text, [*shown, ""], strict=True) for part in pair)
        return replace(emitted, source=_reading(source, words)), [integers[n] for n in sorted(varying)]


def _body(source: str) -> str:
    """A module without its docstring, which names lengths."""
    return source.partition('"""\n')[2] if source.startswith('"""') else source


def _parted(source: str) -> tuple[tuple[str, ...], list[int]]:
    """The text between integers, and these."""
    found = [match for match in _TOKEN.finditer(source) if match["integer"]]
    ends = [0, *(match.end() for match in found)]
    starts = [*(match.start() for match in found), len(source)]
    return tuple(source[a:b] for a, b in zip(ends, starts, strict=True)), [int(match["integer"]) for match in found]


def _reading(source: str, words: int) -> str:
    """With what each phase reads of the array at its head."""
    made = []
    for part in re.split(r"(?m)^(?=def )", source):
        names = sorted({int(n) for n in re.findall(r"\bsize_(\d+)\b", part)})
        head = _HEAD.match(part)
        if names and head is None:
            raise ValueError("integers outside of phases depend on a length")
        reads = [f"    sizes = word(args, {words})\n", *(f"    size_{n} = word(sizes, {n})\n" for n in names)]
        made.append(head[0] + "".join(reads) + part[head.end() :] if names and head else part)
    return "".join(made)
