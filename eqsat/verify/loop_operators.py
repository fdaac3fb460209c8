"""Builders of random loops and branches: ``eqsat.scan``, ``fori_loop``, ``while_loop`` and ``cond``.

See :mod:`eqsat.verify.operators`. Their bodies are drafted like programs, of the same operators; values from outside
are read, what is carried stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eqsat.verify.drafts import Builder, Draft, Made, Reject, Value

LONGEST = 4
"""Steps of a body."""


def loop_operators(operators: Mapping[str, Builder]) -> dict[str, Builder]:
    """The builders; bodies are of these operators."""
    names = tuple(operators)

    def body(
        d: Draft,
        given: Sequence[tuple[str, np.ndarray, bool]],
        carry: str,
        read: Sequence[Value],
        own: bool = True,
    ) -> _Body:
        """Statements on values ``w0``, …, of the names that are given, and what becomes of the carry.

        ``own``: they may write to it.
        """
        inner = Draft("w")
        inner.values = [
            Value(name, array.copy()[()] if own and name == carry else _locked(array), exact, True)
            for name, array, exact in given
        ]
        inner.values += [Value(v.name, _locked(v.array), v.exact, v.depends) for v in read]
        for _ in range(1 + d.below(LONGEST)):
            inner.load([d.below(256) for _ in range(6)])
            name = d.choose(names)
            inner.add(name, operators[name])
        old = next(v for v in inner.values if v.name == carry)
        last = next(v for v in reversed(inner.values) if _same_shape(v, old))
        return _Body([line for s in inner.steps for line in s.text.split("\n")], _carried(old, last), last.name)

    def scan(d: Draft) -> Made:
        init = _carry(d)
        xs = d.pick(lambda v: v.ndim > 0 and 0 < v.shape[0] <= 40 and v.kind != "c")
        made = body(d, [("w0", init.array, False), ("w1", np.asarray(xs.array[0]), xs.exact)], "w0", _read(d))
        function = f"b{len(d.values)}"
        options = ", reverse=True" if d.flag() else ""
        before = made.text(f"def {function}(w0, w1):", f"return {made.carry}, {made.result}")
        return Made(f"eqsat.scan({function}, {init.name}, {xs.name}{options})[{d.below(2)}]", before=before)

    def fori_loop(d: Draft) -> Made:
        init, trips = _carry(d), d.choose((3, 1, 7, 20, 0))
        rows = [v for v in _read(d) if v.ndim > 0 and v.shape[0] >= trips]
        given = [("w0", np.asarray(max(0, trips - 1), np.int64), True), ("w1", init.array, False)]
        made = body(d, given, "w1", rows)
        if rows and rows[0].kind in "fi" and d.flag() and _broadcasts(rows[0].array[0], init.array):
            made = _Body(made.lines, _carried(init, rows[0], f"{rows[0].name}[w0]", "w1"), made.result)
        function = f"b{len(d.values)}"
        before = made.text(f"def {function}(w0, w1):", f"return {made.carry}")
        return Made(f"eqsat.fori_loop(0, {trips}, {function}, {init.name})", before=before)

    def while_loop(d: Draft) -> Made:
        init, trips = _carry(d), d.choose((3, 0, 11))
        made = body(d, [("w0", np.asarray(1, np.int64), True), ("w1", init.array, False)], "w1", _read(d))
        function = f"b{len(d.values)}"
        lines = made.text(f"def {function}(w):", f"return w0 + 1, {made.carry}").split("\n")
        before = "\n".join([lines[0], "    w0, w1 = w", *lines[1:]])
        start = "np.int64(0)"
        return Made(f"eqsat.while_loop(lambda w: w[0] < {trips}, {function}, ({start}, {init.name}))[1]", before=before)

    def cond(d: Draft) -> Made:
        x = _carry(d)
        chosen = d.pick(lambda v: v.exact and v.kind in "fib" and v.array.size > 0)
        read = _read(d)
        one, two = (body(d, [("w0", x.array, x.exact)], "w0", read, own=False) for _ in range(2))
        functions = [f"b{len(d.values)}", f"c{len(d.values)}"]
        texts = [b.text(f"def {f}(w0):", f"return {b.carry}") for b, f in zip((one, two), functions, strict=True)]
        test = f"np.any({chosen.name})" if chosen.kind == "b" else f"np.max({chosen.name}) > {d.choose((0, 1, 3))}"
        return Made(f"eqsat.cond({test}, {', '.join(functions)}, {x.name})", before="\n".join(texts))

    return {"scan": scan, "fori_loop": fori_loop, "while_loop": while_loop, "cond": cond}


class _Body:
    """Statements of a body, the expression of its next carry, and the name of another result."""

    def __init__(self, lines: list[str], carry: str, result: str) -> None:
        self.lines, self.carry, self.result = lines, carry, result

    def text(self, head: str, last: str) -> str:
        return "\n    ".join([head, *self.lines, last])


def _carry(d: Draft) -> Value:
    return d.pick(lambda v: v.depends and v.kind in "fi" and v.array.size <= 2000 and v.top <= 1e3)


def _read(d: Draft) -> list[Value]:
    """Up to two values from outside of the body."""
    found = [d.pick(lambda v: v.array.size <= 2000) for _ in range(d.below(3))]
    return list({v.name: v for v in found}.values())


def _locked(array: np.ndarray) -> np.ndarray:
    """An array that a body does not write to; NumPy's scalars nobody can."""
    if isinstance(array, np.generic):
        return array
    found = array.view()
    found.flags.writeable = False
    return found


def _broadcasts(array: np.ndarray, to: np.ndarray) -> bool:
    try:
        return np.broadcast_shapes(array.shape, to.shape) == to.shape
    except ValueError:
        return False


def _same_shape(v: Value, old: Value) -> bool:
    if v.name == old.name:
        return True
    return v.name.startswith("w") and v.kind in "fib" and _broadcasts(v.array, old.array)


def _carried(old: Value, new: Value, text: str = "", name: str = "") -> str:
    """The next carry, of the type of the old one, and no larger than 1 and the old one."""
    text, name = text or new.name, name or old.name
    if old.kind == "i":
        added = text if new.kind == "i" else "1"
        return f"({name} + {added}).astype(np.{old.dtype})"
    if new.kind == "c":
        raise Reject
    return f"(0.5 * {name} + 0.5 * np.tanh({text})).astype(np.{old.dtype})"
