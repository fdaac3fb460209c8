"""Printed modules whose integers are arguments: one text, and so one machine code, for a kernel at many lengths.

What a nest becomes at two lengths mostly differs in nothing but integers: bounds of loops, strides, elements left over.
Those that differ have names, ``size_0`` and on, whose values the backend reads from the kernel's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\.\d+|(?P<integer>\d+)")

Known = dict[tuple[int, tuple[str, ...]], tuple[list[int], set[int]]]
"""By kernel and text: the integers of the first module printed, and the places of those that vary."""


def named(kernel: int, source: str, known: Known, others: Callable[[], Iterable[str]]) -> tuple[str, list[int]]:
    """A module with names for its varying integers, and their values.

    ``kernel``: its number in the plan. ``others``: the same kernel's modules at other lengths.
    """
    text, integers = _parted(_body(source))
    if (kernel, text) not in known:
        varying = set[int]()
        for other in others():
            its_text, its = _parted(_body(other))
            if its_text == text:
                varying |= {n for n, (a, b) in enumerate(zip(integers, its, strict=True)) if a != b}
        known[kernel, text] = integers, varying
    first, varying = known[kernel, text]
    varying |= {n for n, (a, b) in enumerate(zip(integers, first, strict=True)) if a != b}
    places = {n: place for place, n in enumerate(sorted(varying))}
    shown = [f"size_{places[n]}" if n in places else str(value) for n, value in enumerate(integers)]
    return "".join(part for pair in zip(text, [*shown, ""], strict=True) for part in pair), [
        integers[n] for n in sorted(varying)
    ]


def _body(source: str) -> str:
    """A module without its docstring, which names lengths."""
    return source.partition('"""\n')[2] if source.startswith('"""') else source


def _parted(source: str) -> tuple[tuple[str, ...], list[int]]:
    """The text between integers, and these."""
    found = [match for match in _TOKEN.finditer(source) if match["integer"]]
    ends = [0, *(match.end() for match in found)]
    starts = [*(match.start() for match in found), len(source)]
    return tuple(source[a:b] for a, b in zip(ends, starts, strict=True)), [int(match["integer"]) for match in found]
