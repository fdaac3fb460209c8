"""Options of ``optimize``, checked where they are given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from eqsat.errors import OptionError

Numerics = Literal["exact", "reassociates", "approximates"]


@dataclass(frozen=True)
class Options:
    """How a function is optimized.

    Attributes:
        numerics: which rules may be used: ``exact`` (same rounding), ``reassociates`` (same reals, other
            rounding) or ``approximates`` (also such that may lose a NaN or an infinity).
        budget: seconds the search may take, saturation, extraction and schedules together.
        threads: threads of a call; None for the machine's cores.
        const: arguments whose values are known when the function is compiled, by name: ``"w1"``,
            ``"params"`` (all of it), ``"params.layers[0].w"``. Passing another array compiles again;
            changing one in place is not noticed.
        tune: how many schedules of each kernel to time on this machine; None trusts the model.
        verify: compare with the float64 reference when compiled.
        disable: ids of rules not to use.
        backend: ``numba_cpu`` or ``numpy``.
        cache: remember plans and kernels between processes.
    """

    numerics: Numerics = "reassociates"
    budget: float = 5.0
    threads: int | None = None
    const: tuple[str, ...] = ()
    tune: int | None = None
    verify: bool = True
    disable: tuple[str, ...] = ()
    backend: str = "numba_cpu"
    cache: bool = True

    def __post_init__(self) -> None:
        if self.numerics not in get_args(Numerics):
            names = ", ".join(map(repr, get_args(Numerics)))
            raise OptionError(f"numerics must be one of {names}, not {self.numerics!r}")
        if isinstance(self.budget, bool) or not isinstance(self.budget, int | float) or not self.budget > 0:
            raise OptionError(f"budget must be a positive number of seconds, not {self.budget!r}")
        for name in ("threads", "tune"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(f"{name} must be a positive integer or None, not {value!r}")
        for name in ("verify", "cache"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, not {getattr(self, name)!r}")

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self)))


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
