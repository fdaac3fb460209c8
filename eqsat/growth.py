"""Advice where a function is compiled again and again for arguments that hardly differ."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.errors import RecompilationWarning
from eqsat.frontends.pytree import Key

PROGRAMS = 16
"""Programs that may differ in one thing alone without a warning."""

VALUES = 3
"""Programs that may differ in Python numbers alone before these become inputs of one."""

_REMEMBERED = 4096
_HOME = str(Path(__file__).parent)


class Growth:
    """Counts the programs of one function that differ only in Python numbers, in one length, or in constants' values.

    ``names``: the parameters. It warns once for each of the three.
    """

    def __init__(self, function: str, names: Sequence[str]) -> None:
        self.function, self.names = function, tuple(names)
        self._numbers: dict[Hashable, tuple[int, dict[str, Hashable], set[str]]] = {}
        self._lengths: dict[Hashable, int] = {}
        self._warned: set[str] = set()

    def compiled(self, key: Key, alike: int) -> None:
        """A program was compiled, one of ``alike`` with this key; a :class:`RecompilationWarning` where it is time."""
        if alike > 1:
            if alike > PROGRAMS and "values" not in self._warned:
                self._warn(
                    "values",
                    "the values of arguments named in const=, which are part of the program",
                    "Name in const= only what stays the same from call to call",
                )
            return
        ends = ends_of_key(self.names, key)
        self._count_numbers(ends)
        if "lengths" not in self._warned:
            self._count_lengths(ends)

    def changing(self, key: Key) -> frozenset[str]:
        """The Python numbers that have changed between enough programs that are like what this call needs."""
        values, rest = _numbers_of(ends_of_key(self.names, key))
        count, first, changed = self._numbers.get(rest, (0, values, set()))
        if not values or count < VALUES:
            return frozenset()
        return frozenset(changed | {path for path, value in values.items() if value != first[path]})

    def became_inputs(self, paths: frozenset[str]) -> None:
        """Say so, once."""
        if "inputs" not in self._warned:
            which = ", ".join(map(repr, sorted(paths)))
            self._warn(
                "inputs",
                f"Python numbers ({which}): from here on these are inputs of one program",
                "Pass numbers that change as arrays, such as np.float32(0.5) or np.array(3), which are from the first "
                "call",
                str(VALUES),
            )

    def became_arguments(self, axes: Sequence[tuple[str, int]], low: int, high: int) -> None:
        """Say of a length that it is one, once."""
        if "lengths" not in self._warned:
            which = ", ".join(f"axis {axis} of {path!r}" for path, axis in axes[:4]) + (", …" if len(axes) > 4 else "")
            self._warn(
                "lengths",
                f"one length ({which}): from here on it is an argument of kernels for lengths of {low} to {high}, and "
                "so on",
                "Nothing is to be done if that is meant; a few lengths, such as powers of two, are traced less often",
                str(VALUES),
            )

    def _count_numbers(self, ends: list[tuple[str, Any]]) -> None:
        values, rest = _numbers_of(ends)
        if not values:
            return
        count, first, changed = self._numbers.get(rest, (0, values, set()))
        changed |= {path for path, value in values.items() if value != first[path]}
        _remember(self._numbers, rest, (count + 1, first, changed))
        if count + 1 > PROGRAMS and "numbers" not in self._warned:
            which = ", ".join(map(repr, sorted(changed)))
            self._warn(
                "numbers",
                f"Python numbers ({which}), which are part of the program",
                "Pass numbers that change as arrays, such as np.float32(0.5) or np.array(3), which are data",
            )

    def _count_lengths(self, ends: list[tuple[str, Any]]) -> None:
        shapes = {path: part[0] for path, part in ends if is_array(part)}
        for length in sorted({n for shape in shapes.values() for n in shape}):
            masked = tuple(
                (path, tuple(None if n == length else n for n in part[0]), part[1:]) if path in shapes else (path, part)
                for path, part in ends
            )
            count = self._lengths.get(masked, 0) + 1
            _remember(self._lengths, masked, count)
            if count > PROGRAMS and "lengths" not in self._warned:
                axes = [f"axis {a} of {path!r}" for path, shape in shapes.items() for a in _places(shape, length)]
                which = ", ".join(axes[:4]) + (", …" if len(axes) > 4 else "")
                self._warn(
                    "lengths",
                    f"one length ({which}; {length} in this call): there is a program for each",
                    "Pad that axis to a few sizes, such as powers of two, and mask what was added",
                )
                return

    def _warn(self, kind: str, what: str, advice: str, times: str = f"more than {PROGRAMS}") -> None:
        self._warned.add(kind)
        warnings.warn(
            f"{self.function} was compiled {times} times for calls that differ only in {what}. {advice}",
            RecompilationWarning,
            stacklevel=user_level(),
        )


def ends_of_key(names: Sequence[str], key: Key) -> list[tuple[str, Any]]:
    """The arrays and static values in a key, each with its path; ``names``: the parameters."""
    return [end for name, part in zip(names, key, strict=True) for end in _ends(part, name)]


def _numbers_of(ends: list[tuple[str, Any]]) -> tuple[dict[str, Any], Hashable]:
    """The Python numbers by their paths, and what tells the call apart besides."""
    values = {path: part for path, part in ends if _is_number(part)}
    return values, tuple((path, part[0] if path in values else part) for path, part in ends)


def _remember(counts: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    if key not in counts and len(counts) >= _REMEMBERED:
        counts.clear()
    counts[key] = value


def _places(shape: Sequence[int], length: int) -> list[int]:
    return [axis for axis, n in enumerate(shape) if n == length]


def is_array(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) > 1 and isinstance(part[0], tuple) and isinstance(part[1], np.dtype)


def _is_number(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and part[0] in (int, float)


def _ends(part: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The arrays and static values in a part of a key (see ``pytree.flatten_value``), each with its path."""
    kind = part[0]
    if is_array(part) or not isinstance(kind, type):
        yield path, part
    elif issubclass(kind, dict):
        for key, child in zip(part[2], part[3], strict=True):
            yield from _ends(child, f"{path}[{key[1]!r}]")  # beside its type, by ``static_key``
    elif issubclass(kind, (list, tuple)):
        for number, child in enumerate(part[1]):
            yield from _ends(child, f"{path}[{number}]")
    elif dataclasses.is_dataclass(kind) and len(part) == 3:
        for name, child in zip(part[1], part[2], strict=True):
            yield from _ends(child, f"{path}.{name}")
    else:
        yield path, part


def user_level() -> int:
    """The ``stacklevel`` by which a warning issued by our caller points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        level, frame = level + 1, frame.f_back
    return level
