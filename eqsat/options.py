"""Options of ``optimize``, checked where they are given."""

from __future__ import annotations

import contextlib
import difflib
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from eqsat.errors import OptionError

Numerics = Literal["exact", "reassociates", "approximates"]

MAX_THREADS = 512
"""Most threads of a call; each has scratch memory of its own."""


@dataclass(frozen=True)
class Options:
    """How a function is optimized.

    Attributes:
        numerics: which rules may be used: ``exact`` (same rounding), ``reassociates`` (same reals, other
            rounding) or ``approximates`` (also such that may lose a NaN or an infinity).
        budget: seconds that a compilation may take: tracing, search, kernels and verification together. What does
            not fit is run by NumPy, with a warning; with 0 all is, and nothing is said. The machine's measurement on
            first use is not in it.
        threads: threads of a call; None for the machine's cores.
        const: arguments whose values are known when the function is compiled, by name: ``"w1"``,
            ``"params"`` (all of it), ``"params.layers[0].w"``. Passing another array compiles again;
            changing one in place is not noticed.
        tune: how many schedules of each kernel to time on this machine; None trusts what was recorded, then the model.
        verify: compare with NumPy and with the float64 reference when compiled.
        disable: ids of rules not to use.
        backend: ``numba_cpu`` or ``numpy``.
        cache: remember plans and kernels between processes.
        strict: raise an error where a function, or a kind of arguments, cannot be compiled; else NumPy runs the
            function then, with an ``EqsatWarning``.
        check_speed: when compiled, time the program and the function itself, a few runs each, and let NumPy run the
            function where the program is slower. Not under ``strict``.
        programs: compiled programs to keep in memory, the least recently used is forgotten; None for any number.
    """

    numerics: Numerics = "reassociates"
    budget: float = 60.0
    threads: int | None = None
    const: tuple[str, ...] = ()
    tune: int | None = None
    verify: bool = True
    disable: tuple[str, ...] = ()
    backend: str = "numba_cpu"
    cache: bool = True
    strict: bool = False
    check_speed: bool = True
    programs: int | None = 128

    def __post_init__(self) -> None:
        if self.numerics not in get_args(Numerics):
            names = ", ".join(map(repr, get_args(Numerics)))
            raise OptionError(f"numerics must be one of {names}, not {self.numerics!r}")
        object.__setattr__(self, "budget", _seconds(self.budget))
        for name in ("threads", "tune", "programs"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _count(value, name))
        if self.threads is not None and self.threads > MAX_THREADS:
            raise OptionError(
                f"threads must be at most {MAX_THREADS}, not {self.threads}; None takes the machine's cores"
            )
        for name in ("verify", "cache", "strict", "check_speed"):
            given = getattr(self, name)
            if not isinstance(given, bool | np.bool_):
                raise OptionError(f"{name} must be True or False, not {given!r}")
            object.__setattr__(self, name, bool(given))

    @property
    def search_seconds(self) -> float:
        """The search's share of the budget: a sixth up to five seconds, from a minute on a twelfth.

        The rest is for kernels, which are most of a cold compilation and are worth nothing unless all are ready.
        """
        return max(min(5.0, self.budget / 6), self.budget / 12)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self)))


def as_seconds(value: Any) -> float | None:
    """A number of at least 0, as a float (5 and 5.0 are the same option); None for anything else."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            if (seconds := float(value)) >= 0:
                return seconds
    return None


def _seconds(value: Any) -> float:
    seconds = as_seconds(value)
    if seconds is None:
        raise OptionError(f"budget must be a number of seconds, at least 0, not {_shown(value)}")
    return seconds


def _count(value: Any, name: str) -> int:
    """A positive integer, Python's or NumPy's; bounded, so that no arithmetic with it overflows."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and 1 <= int(value) < 1 << 31:
        return int(value)
    raise OptionError(f"{name} must be a positive integer below 2**31 or None, not {_shown(value)}")


def _shown(value: Any) -> str:
    """``repr`` for a message, not of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"


def names(value: str | Iterable[str], option: str) -> tuple[str, ...]:
    """A tuple of strings from one string or several."""
    if not isinstance(value, Iterable):
        raise OptionError(f"{option} takes names, not {value!r}")
    found = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in found):
        raise OptionError(f"{option} takes names, not {found!r}")
    return found


def unknown(kind: str, given: str, valid: Sequence[str]) -> OptionError:
    """The error for a name that is not one of ``valid``, with the nearest ones first."""
    near = difflib.get_close_matches(str(given), valid, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return OptionError(f"unknown {kind} {given!r}{hint} Valid: {', '.join(sorted(valid))}")
