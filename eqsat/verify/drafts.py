"""Drafting of random programs: values seen so far, choices from a tape, and tame steps only.

A step is run with NumPy while it is drafted, so a builder knows shapes, types *and* values: it keeps
magnitudes moderate, operands of discontinuous functions exact, and never leaves NumPy's domain.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqsat.ir.types import COMPUTED
from eqsat.verify.programs import REFERENCE, Input, Program, Step, modules, operators, random_expression

Array = NDArray[Any]
DTYPES = (*(d.name for d in COMPUTED), "complex64", "complex128")
NAMES = re.compile(r"\b[vw]\d+\b")
"""Values of a program, and of the body of a loop in it."""
MAX_SIZE = 1 << 14
TAME = 1e3
"""Largest magnitude of an inexact value; larger ones are scaled down."""
EXACT_LIMIT = float(1 << 24)


def exact_limit(dtype: str) -> float:
    """Sums of integers are exact up to this, in the type and in those that kernels add it in."""
    return min(EXACT_LIMIT, 2.0 ** (np.finfo(dtype).nmant + 1)) if np.dtype(dtype).kind == "f" else EXACT_LIMIT


@dataclass(frozen=True)
class Value:
    """A value while drafting: an array, or one of NumPy's scalars, which share no memory.

    ``exact``: equal in every evaluation order and precision. ``depends``: on an argument of the program, so not
    on captured arrays only, or made in it to be written to.
    """

    name: str
    array: Array
    exact: bool
    depends: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def kind(self) -> str:
        """``f``, ``c``, ``i`` (also of unsigned integers) or ``b``."""
        return self.array.dtype.kind.replace("u", "i")

    @property
    def dtype(self) -> str:
        return self.array.dtype.name

    @property
    def top(self) -> float:
        """Largest finite magnitude, as a float; 0 where there is none."""
        if self.kind == "b":
            return 1.0
        magnitude = np.abs(self.array.astype(np.complex128 if self.kind == "c" else np.float64))
        return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))

    @property
    def limit(self) -> float:
        """See :func:`exact_limit`."""
        return exact_limit(self.dtype)

    @property
    def integral(self) -> bool:
        whole = self.exact and self.kind != "c" and bool(np.all(np.rint(self.array) == self.array))
        return whole and self.top <= EXACT_LIMIT

    @property
    def writable(self) -> bool:
        return self.depends and self.array.flags.writeable


class Reject(Exception):
    """This operator finds no operands here."""


@dataclass(frozen=True)
class Made:
    """A drafted expression, or with ``target`` a statement that writes to that value: see ``Step``.

    ``fresh``: it is an array to write to, whatever it is made of.
    """

    expression: str
    exact: bool = False
    discrete: bool = False
    target: str = ""
    before: str = ""
    fresh: bool = False


Builder = Callable[["Draft"], Made]


def within(x: Value, low: float, high: float) -> str:
    """An argument made of a value's numbers, which lies in an interval, but for NaN."""
    if np.isneginf(low) and np.isposinf(high):
        return x.name
    if x.kind == "f" and bool(((x.array >= low) & (x.array <= high) | np.isnan(x.array)).all()):
        return x.name
    if np.isposinf(high):
        return f"np.abs({x.name}) + {low}"
    if low <= -1 and high >= 1:
        return f"np.tanh({x.name})"
    return f"{(low + high) / 2:g} + {(high - low) / 2:g} * np.tanh({x.name})"


def near_one(x: Value) -> str:
    """An expression of a value whose products neither overflow nor vanish."""
    size = f"{x.name} / (1 + np.abs({x.name}))" if x.kind == "c" else f"np.tanh({x.name})"
    return f"(1 + 0.1 * {size})"


class Draft:
    """A program that grows step by step. Choices come from a tape of small ints; an empty tape reads 0.

    ``prefix``: of its values' names; ``w`` in the body of a loop, which has no inputs of its own.
    """

    def __init__(self, prefix: str = "v") -> None:
        self.prefix = prefix
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self._tape: Iterator[int] = iter(())

    # -- choices --------------------------------------------------------------------------------------------

    def load(self, tape: Sequence[int]) -> None:
        self._tape = iter(tape)

    def below(self, n: int) -> int:
        """An int in [0, n)."""
        return next(self._tape, 0) % n

    def choose(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Reject
        return options[self.below(len(options))]

    def flag(self) -> bool:
        return self.below(2) == 1

    def pick(self, accept: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value that is accepted; 0 on the tape means the most recent one."""
        found = [v for v in reversed(self.values) if accept(v)]
        if not found:
            raise Reject
        # Recent values twice as likely, so that programs grow deep as well as wide.
        at = self.below(2 * len(found))
        chosen: Value = found[at if at < len(found) else (at - len(found)) // 2]
        return chosen

    def pick_float(self, top: float = math.inf) -> Value:
        return self.pick(lambda v: v.kind == "f" and v.top <= top)

    def pick_number(self, *, compound: bool = False) -> Value:
        """A number; ``compound``: a complex one, too."""
        return self.pick(lambda v: v.kind in ("fic" if compound else "fi"))

    def pick_ordered(self, ndim: int = 0) -> Value:
        return self.pick(lambda v: v.kind != "c" and v.ndim >= ndim)

    def partner(self, x: Value, *, same_dtype: bool = False) -> Value:
        """A value that broadcasts with x, without blowing it up."""

        def fits(v: Value) -> bool:
            try:
                shape = np.broadcast_shapes(x.shape, v.shape)
            except ValueError:
                return False
            return math.prod(shape) <= MAX_SIZE and (not same_dtype or v.dtype == x.dtype)

        return self.pick(fits)

    def axis(self, x: Value) -> int:
        """An axis of x, possibly negative."""
        if x.ndim == 0:
            raise Reject
        return self.below(2 * x.ndim) - x.ndim

    def axes(self, x: Value) -> tuple[int, ...] | None:
        """Some axes of x, or None for all."""
        mask = self.below(1 << x.ndim)
        return tuple(i for i in range(x.ndim) if mask >> i & 1) or None

    # -- growth ---------------------------------------------------------------------------------------------

    def fresh(self, shape: tuple[int, ...], dtype: str, *, low: float = -2, high: float = 2) -> Value:
        """A new input of the program (or a captured constant) with random data."""
        if self.prefix != "v":
            raise Reject
        expression = random_expression(shape, dtype, len(self.inputs), low, high)
        return self.add_input(Input(self.name(), expression, captured=self.flag()))

    def name(self) -> str:
        """The next value's."""
        return f"{self.prefix}{len(self.values)}"

    def add_input(self, made: Input) -> Value:
        array = np.asarray(eval(made.expression, {"np": np}))
        self.inputs.append(made)
        value = Value(made.name, array, exact=True, depends=not made.captured)
        self.values.append(value)
        return value

    def add(self, op: str, build: Builder) -> bool:
        """Append the step that the builder makes, tamed. False where it does not apply (nothing is left behind)."""
        inputs, values = len(self.inputs), len(self.values)
        try:
            made = build(self)
            (self._write if made.target else self._define)(op, made)
        except (
            Reject,
            ValueError,
            TypeError,
            IndexError,
            OverflowError,
            ZeroDivisionError,
            MemoryError,
            np.linalg.LinAlgError,
        ):
            del self.inputs[inputs:], self.values[values:]
            return False
        return True

    def _define(self, op: str, made: Made) -> None:
        expression = made.expression
        array = self._run(made, expression)
        if array.dtype.name not in DTYPES or array.size > MAX_SIZE or array.ndim > 6:
            raise Reject
        exact = made.exact or array.dtype.kind not in "fc"
        if not exact and (top := self._top(made, array)) > TAME:
            expression = f"({expression}) * {2.0 ** -math.ceil(math.log2(top) - 3)!r}"
            array = self._run(made, expression)
        step = Step(self.name(), op, expression, made.discrete, exact, before=made.before)
        self.steps.append(step)
        depends = made.fresh or any(v.depends for v in self.values if v.name in self._names(made))
        self.values.append(Value(step.name, array, exact, depends))

    def _write(self, op: str, made: Made) -> None:
        """A statement that writes to memory which values share."""
        target = next(v for v in self.values if v.name == made.target)
        alike = [v for v in self.values if np.may_share_memory(v.array, target.array)]
        kept = target.array.copy()
        exact = target.kind not in "fc" or (made.exact and target.exact)
        try:
            self._run(made, made.expression, write=True)
            if self._top(made, target.array, kept) > (math.inf if exact else TAME):
                raise Reject
        except Exception:
            target.array[...] = kept
            raise
        names = [v.name for v in alike]
        self.values[:] = [replace(v, exact=exact) if v.name in names else v for v in self.values]
        changes = (made.target, *(name for name in names if name != made.target))
        self.steps.append(Step(made.target, op, made.expression, made.discrete, exact, changes, made.before))

    @staticmethod
    def _names(made: Made) -> set[str]:
        return set(NAMES.findall(f"{made.before} {made.expression}"))

    def _run(self, made: Made, expression: str, *, write: bool = False) -> Any:
        """Run an expression, or a statement, on the values so far."""
        scope = {**modules(), **operators(), **REFERENCE, **{v.name: v.array for v in self.values}}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(f"{made.before}\n{expression if write else f'made = {expression}'}", scope)
        found = scope.get("made")
        return found if isinstance(found, np.generic) else np.asarray(found)

    def _top(self, made: Made, array: Array, *others: Array) -> float:
        """The largest finite magnitude. ``Reject`` where finite numbers have become others."""
        finite = np.isfinite(array)
        operands = [v.array for v in self.values if v.name in self._names(made) and v.name != made.target]
        if not finite.all() and all(np.isfinite(a).all() for a in (*operands, *others)):
            raise Reject
        return float(np.abs(array.astype(np.complex128)).max(initial=0.0, where=finite))

    def program(self) -> Program:
        """The program so far; its outputs are the values that nothing else reads, and what was written to."""
        used = {name for s in self.steps for name in s.arguments if name not in s.changes}
        written = {name for s in self.steps for name in s.changes}
        outputs = [s.name for s in self.steps if s.name not in used or s.name in written]
        outputs += [i.name for i in self.inputs if i.name in written and not i.captured]
        return Program(tuple(self.inputs), tuple(self.steps), tuple(dict.fromkeys(outputs))).pruned()
