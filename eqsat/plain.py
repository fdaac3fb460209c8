"""A function that NumPy runs: it cannot be compiled for these argument types, or not within its budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from eqsat.deadline import OutOfTime, TooMuchWork
from eqsat.errors import ConcretizationError, EqsatError, UnsupportedOpError, VerificationError
from eqsat.explain.report import Explanation
from eqsat.explain.work import Work, naive_peak, naive_work
from eqsat.frontends.trace import Traced
from eqsat.verify.plain import user_line_of

SLOW = (
    "Fix: allow more seconds (budget=…), or call .compile(…) with these arguments, which tries again: "
    "kernels that were compiled stay so"
)
REFUSED = "Fix: as it says, or leave eqsat.optimize out; strict=True makes this an error"
WRONG = "Fix: none is needed; strict=True makes this an error, with a program that shows it"
AS_ASKED = "Fix: none is needed; any other budget= compiles it"
SLOWER = "Fix: none is needed; check_speed=False keeps the compiled program"
_NUMPYS_TOO = (ValueError, IndexError, TypeError)
_KNOWN_AGAIN = frozenset({np.ndarray, bool, int, float, complex, str, type(None)})
"""Types of arguments that are known again by little: an array's shape and element type, or the value."""


class PlainProgram:
    """What stands for a compiled program: the function itself, for whatever values its arguments have.

    ``traced``: None where tracing did not end. ``why`` NumPy runs it, and the ``fix``. ``error``: what tracing or
    compiling raised, until it is known that NumPy runs the function without one; the warning comes then.
    """

    held: ClassVar[Mapping[int, object]] = {}
    nbytes: ClassVar[int] = 0
    take: ClassVar[None] = None
    single: ClassVar[bool] = True

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: str,
        traced: Traced | None,
        why: str,
        fix: str,
        seconds: float,
        error: Exception | None = None,
    ) -> None:
        self.fn = fn
        self.signature = signature
        self.traced = traced
        self.seconds = seconds
        self.why = why
        self.fix = fix
        self.error = error
        self._given: list[tuple[int, Any, Any, Any]] | None = None  # identity, type, shape or value, element type

    @property
    def first(self) -> PlainProgram:
        return self

    def recognize(self, args: tuple[Any, ...]) -> bool:
        """Have :meth:`direct` know such arguments again; whether it can."""
        if all(type(value) in _KNOWN_AGAIN for value in args):
            self._given = [
                (id(v), np.ndarray, v.shape, v.dtype) if type(v) is np.ndarray else (id(v), type(v), v, None)
                for v in args
            ]
        return self._given is not None

    def direct(self, args: tuple[Any, ...]) -> tuple[Any] | None:
        """The function's result for arguments as they were recognized, in a fraction of the time that a key takes.

        None for others. What it takes for the same is run by NumPy: at worst slower than compiled, never wrong.
        """
        given = self._given
        if given is None or len(args) != len(given):
            return None
        for value, (same, kind, known, dtype) in zip(args, given, strict=True):
            if id(value) == same:  # or another object in its place, which is as right
                continue
            if type(value) is not kind:
                return None
            if kind is np.ndarray:
                if value.shape != known or value.dtype is not dtype:
                    return None
            elif value != known:
                return None
        return (self.fn(*args),)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self.fn(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.signature}: {self.why}; NumPy runs the function for these argument types. {self.fix}."

    def holds(self, leaves: Sequence[Any], digests: object = None) -> bool:
        """Constants of any value are like the others to NumPy."""
        return True

    def explain(self, name: str) -> Explanation:
        """A report without steps, and without times: to run the function might change its arguments."""
        graph = None if self.traced is None else self.traced.graph
        return Explanation(
            function=name,
            signature=self.signature.removeprefix(name).removeprefix("(").removesuffix(")"),
            naive=Work(0.0, 0.0, 0) if graph is None else naive_work(graph),
            steps=[],
            peak_bytes=0,
            naive_peak_bytes=0 if graph is None else naive_peak(graph),
            search={},
            errors=[],
            compile_seconds=self.seconds,
            measured=None,
            cached=False,
            threads=1,
            plain=f"{self.why}. {self.fix}.",
            _why=lambda rule: f"{rule}: no rule is in it, NumPy runs the function: {self.why}",
        )

    def source(self) -> str:
        """In place of kernels, why there are none."""
        return f"# NumPy runs {self.signature}: {' '.join(self.why.split())}\n"


def out_of_budget(budget: float, out: OutOfTime, seconds: float) -> str:
    """Why NumPy runs a function that was not compiled in time; ``out`` says what was being done then."""
    if isinstance(out, TooMuchWork):
        return f"the budget of {budget:g} s would be missed by far while {out}, given up after {seconds:.2f} s"
    return f"the budget of {budget:g} s was spent while {out}, after {seconds:.2f} s"


def refusal(error: Exception) -> str:
    """Why NumPy runs a function whose compilation raised ``error``, with the user's line."""
    if isinstance(error, VerificationError) and error.program:
        return error.message.partition("\n\n")[0].replace("; it is not used", "")
    if isinstance(error, EqsatError):
        return error.message if error.where is None else f"{error.message} (at {error.where})"
    where = user_line_of(error)
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"it raises {told} on traced arrays" + (f" (at {where})" if where is not None else "")


def told_by(refused: Exception, own: Exception) -> Exception:
    """What to raise where a function was refused and raises by itself too: of two that say the same, that which names
    the user's line."""
    if isinstance(refused, EqsatError) and not isinstance(refused, (ConcretizationError, UnsupportedOpError)):
        return refused if any(isinstance(own, k) and isinstance(refused, k) for k in _NUMPYS_TOO) else own
    return own


def signature(name: str, names: Sequence[str], leaves: Sequence[Any]) -> str:
    """A function and the types of its arguments, in a line."""
    arrays = [(n, np.asarray(leaf)) for n, leaf in zip(names, leaves, strict=True)]
    types = ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in arrays)
    return f"{name}({types if len(types) < 300 else f'{len(arrays)} arrays'})"
