"""What the engine asks of a backend; backends are found through the entry-point group ``eqsat.backends``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from eqsat.cost.machine import Machine
from eqsat.cost.target import Target
from eqsat.deadline import NEVER, Deadline
from eqsat.forks import IMPORTING
from eqsat.installed import entry_points
from eqsat.ir.types import TensorType
from eqsat.plan.plan import Plan
from eqsat.plan.sized import Alike

Direct = Callable[[Sequence[np.ndarray]], "Sequence[np.ndarray] | None"]
"""A program on arrays as they come: fresh outputs, or None, with nothing run, where any array does not fit."""


class Executable(Protocol):
    """A compiled program. Called with one array per non-constant argument, of the right shape and element type.

    ``peak_bytes``: memory for intermediates, scratch and results. ``nbytes``: of constants, which it holds as they were
    when it was loaded, whatever becomes of the arrays it was given. ``direct``: the quick way in, if there is one; it
    checks each array and refuses any that is not C-contiguous, aligned and of exactly the right type.
    """

    peak_bytes: int
    nbytes: int
    direct: Direct | None

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Fresh output arrays, whatever the strides and byte order of ``arrays``.

        Raises ``IndexError`` for an index out of range, ``ValueError`` for an integer to a negative integer power.
        """

    def tried(self) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
        """The program with the same code, but loops of fewer trips (``Repeat.trial``)."""

    def profile(self, arrays: Sequence[np.ndarray], repeat: int) -> list[float]:
        """Median seconds of every step."""

    def sources(self) -> list[str]:
        """The distinct generated kernels, as source text."""


class Backend(Protocol):
    """Turns plans into executables, in two steps so that the first can be remembered.

    ``reference``: whether it is there to be compared with, and not to be fast.
    """

    name: str
    reference: bool

    def target(self, machine: Machine, threads: int) -> Target:
        """What programs are scheduled for: as many of ``threads`` threads as can be at work at once on a machine."""

    def helpers(self, operators: int, results: Sequence[TensorType] = ()) -> AbstractContextManager[Any]:
        """Whatever may get ready while a program of so many operators is searched, and makes ``emit`` faster, and the
        program's first run. ``results``: what that returns, if it is to be run at once."""

    def emit(
        self,
        plan: Plan,
        machine: Machine,
        deadline: Deadline = NEVER,
        helpers: Any = None,
        alike: Alike | None = None,
    ) -> dict[str, Any]:
        """For a machine, everything but the constants' values, as JSON data: what a later process loads.

        ``kinds``: how each step of the plan is run: as a ``kernel``, as kernels one per stage (``stages``) or
        through the ``reference``. ``volatile``: not for keeping, it holds more than JSON data.
        Raises ``OutOfTime`` past ``deadline``. ``helpers``: from :meth:`helpers`, entered. ``alike``: the same
        plan at other lengths, which may then have the same kernels: their integers that are others there are arguments
        (``sizes`` of a step). ``ValueError`` where that cannot be.
        """

    def kept(self, emitted: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is remembered of emitted data: without any source. Code that is run is made by the running process, or
        lies in the cache under a hash of all that it was made from; a plan can only name it."""

    def load(
        self,
        emitted: Mapping[str, Any],
        constants: Mapping[int, np.ndarray],
        threads: int,
        deadline: Deadline = NEVER,
    ) -> Executable:
        """The executable of what ``emit`` made or ``kept``; ``constants`` are values by tensor number.

        Raises ``OutOfTime`` past ``deadline``, and any exception where remembered data does not fit, or names code that
        is not there any more.
        """

    def key(self) -> str:
        """What emitted data depends on besides the plan and the machine model: versions, CPU features."""

    def release(self) -> None:
        """Free memory that is kept for later calls."""


_made: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """The backend of this name; ``ValueError`` listing the valid ones."""
    if name in _made:
        return _made[name]
    found = {point.name: point for point in entry_points("eqsat.backends")}
    if name not in found:
        raise ValueError(f"unknown backend {name!r}; installed: {', '.join(sorted(found))}")
    with IMPORTING:
        made: Backend = found[name].load()()
    return _made.setdefault(name, made)


def release() -> None:
    """Free memory that backends keep for later calls."""
    for made in list(_made.values()):
        made.release()
