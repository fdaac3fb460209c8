"""Running reductions in printed code: vectors that a loop combines values into."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.ir.kernel import Combine
from eqsat.ir.types import DType, int64
from eqsat_backends.numba_cpu.printing.printer import Printer
from eqsat_backends.numba_cpu.printing.scopes import Value
from eqsat_backends.numba_cpu.vectors.lanes import EACH

__all__ = ["FUNCTION", "Accumulator", "across_rows", "identity_of"]

FUNCTION = {"sum": "accumulate", "prod": "mul", "max": "maximum", "min": "minimum"}
"""SIMD functions that combine."""

_UNSET = 2**62
"""Position in a running argmax that has met nothing beyond the identity yet."""


def identity_of(combine: Combine, dtype: DType) -> float | int | bool:
    """What leaves every value as it is under ``combine``."""
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    highest = combine in ("min", "argmin")
    if dtype.kind == "bool":
        return highest
    if dtype.kind == "float":
        return float("inf") if highest else float("-inf")
    return dtype.limits[highest]


class Accumulator:
    """``copies`` independent vectors of partial results, so that one does not wait for another."""

    def __init__(self, printer: Printer, combine: Combine, dtype: DType, copies: int) -> None:
        self.p, self.combine, self.dtype = printer, combine, dtype
        self.positional = combine in ("argmax", "argmin")
        self.names = [printer.fresh("best" if self.positional else combine) for _ in range(copies)]
        self.places = [printer.fresh("at") for _ in range(copies)] if self.positional else []
        self.unset: set[int] = set()
        """Copies that take the next value as it is."""

    def start(self) -> None:
        """Print the initial values in the innermost scope."""
        identity = self.p.literal(identity_of(self.combine, self.dtype), self.dtype)
        for name in self.names:
            self.p.bind(name, identity.name)
        if self.positional:
            unset = self.p.literal(_UNSET, int64)
            for place in self.places:
                self.p.bind(place, unset.name)

    def first(self, value: Value, count: str | None) -> Value:
        """``value`` with what leaves a result as it is behind its first ``count`` lanes (None: as it is)."""
        if count is None:
            return value
        identity = self.p.literal(identity_of(self.combine, self.dtype), self.dtype)
        depends = value.depends | {count}
        return self.p.emit(f"first({value.name}, {count}, {identity.name})", self.dtype, depends, False)

    def step(self, copy: int, value: Value, count: str | None = None, position: Value | None = None) -> None:
        """Combine ``value`` into a copy (modulo their number); only its first ``count`` lanes."""
        name = self.first(value, count).name
        self._combine(copy % len(self.names), name, None if position is None else position.name)

    def _combine(self, copy: int, value: str, position: str | None) -> None:
        name = self.names[copy]
        if copy in self.unset:
            self.unset.remove(copy)
            self.p.bind(name, value)
            return
        if not self.positional:
            self.p.line(f"{name} = {FUNCTION[self.combine]}({value}, {name})")
            return
        assert position is not None, "argmax needs positions"
        beyond = self.p.fresh("beyond")
        self.p.line(f"{beyond} = beyond_{self.combine[3:]}({value}, {name})")
        self.p.line(f"{name} = where({beyond}, {value}, {name})")
        self.p.line(f"{self.places[copy]} = where({beyond}, {position}, {self.places[copy]})")

    def merge_value(self, copy: int, value: str) -> None:
        """Combine a vector into a copy."""
        self._combine(copy, value, None)

    def fold(self) -> None:
        """Combine all copies into the first, pairwise."""
        span = 1
        while span < len(self.names) and not self.positional:
            for copy in range(0, len(self.names) - span, 2 * span):
                self._combine(copy, self.names[copy + span], None)
            span *= 2

    def merge(self, copy: int, other: Accumulator) -> None:
        """Combine a copy of ``other`` into the same copy of this."""
        self._combine(copy, other.names[copy], None)

    def vector(self, copy: int) -> Value:
        """A copy's lanes as results of their own: the combined values, or their positions."""
        if not self.positional:
            return Value(self.names[copy], self.dtype, frozenset((self.names[copy],)), False)
        place = Value(self.places[copy], int64, frozenset((self.places[copy],)), False)
        return self._set(place)

    def best(self, copy: int) -> Value:
        """The extreme values of an argmax."""
        return Value(self.names[copy], self.dtype, frozenset((self.names[copy],)), False)

    def extreme(self) -> Value:
        """The extreme value of an argmax over all lanes, in every lane."""
        return self.p.call(f"{self.combine[3:]}_lanes", self.best(0), dtype=self.dtype)

    def across(self) -> Value:
        """All copies and lanes combined; the result is in every lane. Binds it in the innermost scope."""
        name = self.p.fresh(self.combine)
        if self.positional:
            assert len(self.names) == 1, "an argmax keeps one copy"
            self.p.bind(name, f"{self.combine}_lanes({self.names[0]}, {self.places[0]})")
            return self._set(Value(name, int64, frozenset((name,)), True))
        self.fold()
        self.p.bind(name, f"{self.combine}_lanes({self.names[0]})")
        return Value(name, self.dtype, frozenset((name,)), True)

    def _set(self, place: Value) -> Value:
        """Position 0 where nothing was beyond the identity: then all values equal it."""
        unset, zero = self.p.literal(_UNSET, int64), self.p.literal(0, int64)
        return self.p.call("where", self.p.call("eq", place, unset), zero, place, dtype=int64)


def across_rows(accumulators: Sequence[Accumulator]) -> Value:
    """Of each accumulator all copies and lanes combined, the results side by side in the first lanes.

    Binds it in the innermost scope. No positions; as many accumulators as lanes and as ``EACH`` has, at most.
    """
    one = accumulators[0]
    for accumulator in accumulators:
        accumulator.fold()
    count = next(n for n in EACH if n >= len(accumulators))
    names = [accumulator.names[0] for accumulator in accumulators]
    names += names[-1:] * (count - len(names))
    name = one.p.fresh(one.combine)
    one.p.bind(name, f"{one.combine}_each{count}({', '.join(names)})")
    return Value(name, one.dtype, frozenset((name,)), False)
