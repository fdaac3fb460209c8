"""How far results may be from float64: bounds on a whole output and on single elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir.types import finfo, is_floating

FACTOR = 4.0
ULPS = 16.0
GROSS = 0.01
"""Part of its own value by which an element is off that is looked at by itself."""
GROSS_FACTOR = 64.0


@dataclass(frozen=True)
class OutputError:
    """Largest deviations from float64 of one output: ours, NumPy's in the program's types, and what was allowed."""

    ours: float
    reference: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.ours <= self.allowed


@dataclass(frozen=True)
class Scale:
    """What the bound of an output is made of: NumPy's own error, and the largest value, over all of it."""

    theirs: float = 0.0
    largest: float = 0.0

    def over(self, other: Scale) -> Scale:
        return Scale(max(self.theirs, other.theirs), max(self.largest, other.largest))

    def allowed(self, dtype: np.dtype) -> float:
        info = finfo(dtype)
        return FACTOR * self.theirs + ULPS * float(info.eps) * self.largest + float(info.tiny)


def scale_of(exact: np.ndarray, reference: np.ndarray) -> Scale:
    """That of a part of an output; nothing for integers and bools."""
    if not is_floating(reference):
        return Scale()
    with np.errstate(all="ignore"):
        finite = np.isfinite(reference) & np.isfinite(exact)
        at = exact[finite].astype(np.float64, copy=False)
        theirs = float(np.abs(reference[finite] - at).max(initial=0.0))
        return Scale(theirs, float(np.abs(at).max(initial=0.0)))


def compare(
    ours: np.ndarray,
    exact: np.ndarray,
    reference: np.ndarray,
    samples: Sequence[np.ndarray] = (),
    tied: np.ndarray | None = None,
    scale: Scale | None = None,
    *,
    ordered: bool = True,
) -> OutputError:
    """How far ``ours`` and ``reference`` are from ``exact``, in absolute terms, and what is allowed.

    Where the reference is NaN or infinite, ours must be the same; such positions count as an infinite
    error otherwise. Integers and booleans must be equal; the error is the number of those that are not.
    Elements that lie among ``samples`` of the reference under noise are left out. ``tied``: of positions, those that
    are as right as the reference's; others must then be those of a sample.
    ``scale``: that of the whole output, where these arrays are a part of it. ``ordered``: integers may be positions;
    those that are rounded floats may also lie beyond the samples by half of how far these are apart.
    """
    if ours.shape != exact.shape or ours.dtype != reference.dtype:
        return OutputError(float("inf"), 0.0, 0.0)
    if ours.dtype.kind in "iub":
        wrong = ours != reference
        if tied is not None:  # what lies between two positions that tie need not
            wrong &= ~np.logical_or.reduce([tied, *(ours == sample for sample in samples)])
        elif samples:
            seen = [reference, *samples]
            wrong &= ~(among(ours, seen, 0.0) if ordered or ours.dtype.kind == "b" else _about(ours, seen))
        return OutputError(float(np.count_nonzero(wrong)), 0.0, 0.0)
    scale = scale or scale_of(exact, reference)
    with np.errstate(all="ignore"):
        finite = np.isfinite(reference) & np.isfinite(exact)
        settled = ~np.isfinite(exact) & ~np.isfinite(reference)
        same = (ours == reference) | (np.isnan(ours) & np.isnan(reference))
        allowed = scale.allowed(reference.dtype)
        if samples:
            moved = among(ours, [reference, exact, *samples], np.fmax(allowed, least_move(exact, samples)))
            finite &= ~moved
            settled &= ~moved
        if not same[settled].all() or not np.isfinite(ours[finite]).all():
            return OutputError(float("inf"), 0.0, 0.0)
        mine = float(np.abs(ours[finite] - exact[finite].astype(np.float64, copy=False)).max(initial=0.0))
    return OutputError(mine, scale.theirs, allowed)


def least_move(exact: np.ndarray, samples: Sequence[np.ndarray]) -> np.ndarray:
    """Four times as far as the sample moves an element that moves it least: none of a jump lies at its very edge."""
    at = exact.astype(np.float64)
    moves = [np.abs(sample - at) for sample in samples]
    least: np.ndarray = np.fmin.reduce([np.where(move > 0, move, np.nan) for move in moves])
    found: np.ndarray = 4 * np.nan_to_num(least, nan=0.0, posinf=0.0)
    return found


def among(ours: np.ndarray, samples: Sequence[np.ndarray], slack: float | np.ndarray) -> np.ndarray:
    """Where a value lies between the least and the greatest sample, or is NaN as one of them."""
    if not is_floating(ours):  # NaN and slack are of floats, which int64 does not fit into
        between: np.ndarray = (ours >= np.minimum.reduce(samples)) & (ours <= np.maximum.reduce(samples))
        return between
    with np.errstate(all="ignore"):
        low = np.minimum.reduce([np.nan_to_num(s, nan=np.inf, posinf=np.inf, neginf=-np.inf) for s in samples])
        high = np.maximum.reduce([np.nan_to_num(s, nan=-np.inf, posinf=np.inf, neginf=-np.inf) for s in samples])
        found: np.ndarray = (ours >= low - slack) & (ours <= high + slack)
    found |= np.isnan(ours) & np.logical_or.reduce([np.isnan(s) for s in samples])
    return found


def _about(ours: np.ndarray, samples: Sequence[np.ndarray]) -> np.ndarray:
    """Where an integer lies between the samples, or beyond them by half of how far they are apart.

    A few samples show most of what noise does to an element, and of many elements some are at the end of it.
    """
    low, high = np.minimum.reduce(samples), np.maximum.reduce(samples)
    mine, least, most = (a.astype(np.uint64) for a in (ours, low, high))  # their differences, whatever the sign
    beyond = np.where(ours > high, mine - most, np.where(ours < low, least - mine, 0))
    found: np.ndarray = beyond <= (most - least) // 2
    return found


class ErrorsBySize:
    """NumPy's largest error at elements of each size, over all blocks of an output; sizes by powers of two."""

    def __init__(self) -> None:
        self._worst = np.zeros(2300)

    def add(self, exact: np.ndarray, reference: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            at = np.asarray(exact, np.float64)
            error = np.abs(reference - at)
        finite = np.isfinite(error)
        np.maximum.at(self._worst, self._place(at[finite]), error[finite])

    def up_to(self, size: np.ndarray) -> np.ndarray:
        """The largest error at elements of at most about twice these sizes."""
        found: np.ndarray = np.maximum.accumulate(self._worst)[self._place(size) + 1]
        return found

    @staticmethod
    def _place(values: np.ndarray) -> np.ndarray:
        return np.where(values == 0, -1080, np.frexp(values)[1]) + 1100


def gross_errors(
    ours: np.ndarray, exact: np.ndarray, reference: np.ndarray, errors: ErrorsBySize | None = None
) -> np.ndarray:
    """Where ours is off by ``GROSS`` of the element's own value, and far more than NumPy is at any no larger.

    The bound of a whole output is in units of its largest values, which may hide small ones that are wrong. ``errors``:
    NumPy's in the whole output, where these arrays are a part of it.
    """
    with np.errstate(all="ignore"):
        at = np.asarray(exact, np.float64).reshape(-1)
        size, error = np.abs(at), np.abs(ours.reshape(-1) - at)
        wrong = (error > GROSS * size + float(finfo(reference.dtype).tiny)) & np.isfinite(error)
        if wrong.any() and errors is not None:
            wrong[wrong] = error[wrong] > GROSS_FACTOR * errors.up_to(size[wrong])
        elif wrong.any():
            near = np.flatnonzero(size <= 2 * size[wrong].max())
            near = near[np.argsort(size[near], kind="stable")]
            worst = np.fmax.accumulate(np.abs(reference.reshape(-1)[near] - at[near]))
            last = np.searchsorted(size[near], 2 * size[wrong], side="right") - 1
            wrong[wrong] = error[wrong] > GROSS_FACTOR * worst[last]
    return wrong.reshape(exact.shape)


def signs_of_zero(ours: np.ndarray, exact: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Where ours is a zero of the other sign than the reference's, in its own types and in float64."""
    zero = (ours == 0) & (reference == 0) & (exact == 0)
    sign = np.signbit(reference)
    found: np.ndarray = zero & (np.signbit(ours) != sign) & (np.signbit(exact) == sign)
    return found
