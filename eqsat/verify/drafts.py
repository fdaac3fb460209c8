"""Drafting of random programs: values seen so far, choices from a tape, and tame steps only.

A step is run with NumPy while it is drafted, so a builder knows shapes, types *and* values: it keeps
magnitudes moderate, operands of discontinuous functions exact, and never leaves NumPy's domain.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqsat.ir.types import COMPUTED
from eqsat.verify.programs import NN, VALUE, Input, Program, Step, random_expression

Array = NDArray[Any]
DTYPES = tuple(d.name for d in COMPUTED)
MAX_SIZE = 1 << 14
TAME = 1e3
"""Largest magnitude of an inexact value; larger ones are scaled down."""
EXACT_LIMIT = float(1 << 24)


def exact_limit(dtype: str) -> float:
    """Sums of integers are exact up to this, in the type and in those that kernels add it in."""
    return min(EXACT_LIMIT, 2.0 ** (np.finfo(dtype).nmant + 1)) if np.dtype(dtype).kind == "f" else EXACT_LIMIT


@dataclass(frozen=True)
class Value:
    """A value while drafting.

    ``exact``: equal in every evaluation order and precision. ``depends``: on an argument of the program, so not
    on captured arrays only.
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
        """``f``, ``i`` (also of unsigned integers) or ``b``."""
        return self.array.dtype.kind.replace("u", "i")

    @property
    def dtype(self) -> str:
        return self.array.dtype.name

    @property
    def top(self) -> float:
        """Largest finite magnitude, as a float; 0 where there is none."""
        if self.kind == "b":
            return 1.0
        magnitude = np.abs(self.array.astype(np.float64))
        return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))

    @property
    def limit(self) -> float:
        """See :func:`exact_limit`."""
        return exact_limit(self.dtype)

    @property
    def integral(self) -> bool:
        return self.exact and bool(np.all(np.rint(self.array) == self.array)) and self.top <= EXACT_LIMIT


class Reject(Exception):
    """This operator finds no operands here."""


@dataclass(frozen=True)
class Made:
    """A drafted expression: see :class:`~eqsat.verify.programs.Step`. ``exact`` None means that of its type."""

    expression: str
    exact: bool = False
    discrete: bool = False


Builder = Callable[["Draft"], Made]


class Draft:
    """A program that grows step by step. Choices come from a tape of small ints; an empty tape reads 0."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.special = False
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

    def pick_number(self) -> Value:
        return self.pick(lambda v: v.kind != "b")

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
        name = f"v{len(self.values)}"
        expression = random_expression(shape, dtype, len(self.inputs), low, high)
        return self.add_input(Input(name, expression, captured=self.flag()))

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
            step, array = self._run(op, made)
        except (Reject, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
            del self.inputs[inputs:], self.values[values:]
            return False
        self.steps.append(step)
        depends = any(v.depends for v in self.values if v.name in step.arguments)
        self.values.append(Value(step.name, array, step.exact, depends))
        return True

    def _run(self, op: str, made: Made) -> tuple[Step, Array]:
        from scipy import special

        scope: dict[str, Any] = {"np": np, "nn": NN, "special": special}
        operands = {v.name: v for v in self.values if v.name in set(VALUE.findall(made.expression))}
        local = {name: v.array for name, v in operands.items()}

        def run(expression: str) -> Array:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.asarray(eval(expression, scope, local))

        expression = made.expression
        array = run(expression)
        if array.dtype.name not in DTYPES or array.size > MAX_SIZE or array.ndim > 6:
            raise Reject
        exact = made.exact or array.dtype.kind != "f"
        if array.dtype.kind == "f":
            finite = np.isfinite(array)
            if not finite.all() and all(np.isfinite(v.array).all() for v in operands.values()):
                raise Reject
            top = float(np.abs(array).max(initial=0.0, where=finite))
            if not exact and top > TAME:
                expression = f"({expression}) * {2.0 ** -math.ceil(math.log2(top) - 3)!r}"
                array = run(expression)
        return Step(f"v{len(self.values)}", op, expression, made.discrete, exact), array

    def program(self) -> Program:
        """The program so far; its outputs are the values that nothing else reads."""
        used = {name for s in self.steps for name in s.arguments}
        outputs = tuple(s.name for s in self.steps if s.name not in used)
        return Program(tuple(self.inputs), tuple(self.steps), outputs).pruned()
