"""A function that NumPy runs, for argument types whose compilation did not fit into its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from eqsat.explain.report import Explanation
from eqsat.explain.work import Work, naive_peak, naive_work
from eqsat.frontends.trace import Traced

FIX = (
    "Fix: allow more seconds (budget=…), or call .compile(…) with these arguments, which tries again: "
    "kernels that were compiled stay so"
)


class PlainProgram:
    """What stands for a compiled program: the function itself, for whatever values its arguments have.

    ``traced``: None where tracing did not end. ``work``: what was being done when the budget was spent.
    """

    held: ClassVar[Mapping[int, object]] = {}
    nbytes: ClassVar[int] = 0

    def __init__(self, signature: str, traced: Traced | None, budget: float, work: str, seconds: float) -> None:
        self.signature = signature
        self.traced = traced
        self.seconds = seconds
        self.why = f"the budget of {budget:g} s was spent while {work}, after {seconds:.2f} s"

    def __str__(self) -> str:
        return f"{self.signature}: {self.why}; NumPy runs the function for these argument types. {FIX}."

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
            plain=f"{self.why}. {FIX}.",
            _why=lambda rule: f"{rule}: no rule is in it, NumPy runs the function: {self.why}",
        )

    def source(self) -> str:
        """In place of kernels, why there are none."""
        return f"# NumPy runs {self.signature}: {self.why}\n"


def signature(name: str, names: Sequence[str], leaves: Sequence[Any]) -> str:
    """A function and the types of its arguments, in a line."""
    arrays = [(n, np.asarray(leaf)) for n, leaf in zip(names, leaves, strict=True)]
    types = ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in arrays)
    return f"{name}({types if len(types) < 300 else f'{len(arrays)} arrays'})"
