"""NumPy's result and another one: the same to the last bit where nothing rounds, else within what rounding explains.

Structure, types and shapes must be the same; integers and bools equal; floats within ``UNITS`` units in the last place,
or ``SPREAD`` times what noise on every step moves the element by. Jumps (comparisons, floor, argmax) of rounded values
may come out as they do under noise. For the places of NaNs and infinities the classes of numerics count, as the
guide states them: ``exact`` allows no change, not even of the sign of a zero; the others may differ where the program
meets infinities or values near the ends of the range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.numpy_net.noise import Wrapped, called, noisy_run, wide, widened
from tests.numpy_net.program import words

UNITS = 8.0
SPREAD = 24.0
RUNS = ((8, 1.0), (40, 4.0))
"""Noisy runs and their amplitude in units in the last place; the second only where the first does not explain."""


UNSIGNED = frozenset(
    words("""
    sum mean var std prod ptp average median trace dot matmul einsum tensordot inner outer vdot vecdot matvec vecmat
    kron convolve correlate cross norm vector_norm matrix_norm matrix_power multi_dot cumsum cumprod cumulative_sum
    reduce accumulate nansum nanmean nanvar nanstd trapezoid interp linspace diff gradient MatMult
    maximum minimum fmax fmin max min nanmax nanmin clip sort partition round around fix
    remainder mod fmod floor_divide divmod Mod FloorDiv
""")
)
"""Functions and operators whose zeros have a sign that NumPy does not promise: that of an empty sum, of one of two
equal values, or of a quotient's rest."""


ACCUMULATE = frozenset(
    words("""
    sum mean var std prod average trace dot matmul einsum tensordot inner vdot vecdot matvec vecmat kron convolve norm
    vector_norm matrix_norm matrix_power multi_dot cumsum cumprod cumulative_sum reduce accumulate nansum nanmean nanvar
    nanstd nanprod trapezoid MatMult
""")
)
"""Functions and operators that combine many elements, in an order that is not NumPy's."""


class Wrong(Exception):
    """The results differ by more than rounding explains."""


def compare(reference: Any, ours: Any, numerics: str, source: str, arguments: Callable[[Any], Any]) -> None:
    """Raise :class:`Wrong` where ``ours`` is not what ``numerics`` allows for a program with this ``reference``."""
    pairs: list[tuple[str, np.ndarray, np.ndarray]] = []
    _pair(reference, ours, "result", pairs)
    signs = numerics == "exact" and not UNSIGNED & called(source)
    if numerics == "exact" and ACCUMULATE & called(source):
        numerics = "reassociates"  # the class is one of rules: kernels add and multiply in an order of their own
    doubtful = [n for n, (_, a, b) in enumerate(pairs) if not close(a, b, signs).all()]
    if not doubtful:
        return
    events = Wrapped()
    noisy_run(source, 0, 0.0, events, arguments)
    wide_ones: list[np.ndarray] | None = None
    samples: list[list[np.ndarray]] = []
    for runs, amplitude in RUNS:
        for seed in range(runs):
            try:
                run = leaves(noisy_run(source, seed, amplitude, events, arguments))
            except Exception:  # noise made an index invalid, or the like: no sample
                continue
            if [s.shape for s in run] == [a.shape for _, a, _ in pairs]:
                samples.append(run)
        wrong = []
        for n in doubtful:
            place, a, b = pairs[n]
            bad = ~explained(a, b, [s[n] for s in samples], numerics, signs, events, amplitude)
            if bad.any() and numerics != "exact" and (events.special or events.extreme):
                if wide_ones is None:
                    wide_ones = _wide_leaves(source, arguments, [a for _, a, _ in pairs])
                bad &= ~close(wide_ones[n].astype(a.dtype), b, False, 1e4)
            if bad.any():
                wrong.append((place, a, b, bad))
        if not wrong:
            return
    place, a, b, bad = wrong[0]
    at = tuple(int(k) for k in np.argwhere(bad)[0])
    raise Wrong(
        f"{place}{list(at) if at else ''}: {b[at]!r}, NumPy's is {a[at]!r} "
        f"({int(bad.sum())} of {a.size} elements, shape {a.shape}, {a.dtype})"
    )


def leaves(value: Any) -> list[np.ndarray]:
    """The arrays and NumPy scalars of a result."""
    pairs: list[tuple[str, np.ndarray, np.ndarray]] = []
    _pair(value, value, "", pairs)
    return [a for _, a, _ in pairs]


def _wide_leaves(source: str, arguments: Callable[[Any], Any], otherwise: list[np.ndarray]) -> list[np.ndarray]:
    """The results in long double; where the program does not run in it, what was there (NaN for floats)."""
    try:
        found = leaves(noisy_run(widened(source), 0, 0.0, Wrapped(), lambda make: wide(arguments(make))))
        if [f.shape for f in found] == [o.shape for o in otherwise]:
            return found
    except Exception:  # not every function knows long doubles
        pass
    return otherwise


def _pair(a: Any, b: Any, place: str, pairs: list[tuple[str, np.ndarray, np.ndarray]]) -> None:
    if isinstance(a, np.ndarray | np.generic):
        # 0-d results are NumPy scalars, also where NumPy's is an array.
        kinds = (
            (np.generic,) if isinstance(a, np.generic) else (np.ndarray, np.generic) if a.ndim == 0 else (np.ndarray,)
        )
        if not isinstance(b, kinds):
            raise Wrong(f"{place}: a {type(b).__name__}, NumPy's is a {type(a).__name__}")
        if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") or a.shape != b.shape:
            raise Wrong(f"{place}: {b.dtype} of shape {b.shape}, NumPy's is {a.dtype} of shape {a.shape}")
        a, b = distinct(a), distinct(b)
        native = a.dtype.newbyteorder("=")
        pairs.append((place, np.asarray(a).astype(native, copy=False), np.asarray(b).astype(native, copy=False)))
    elif type(a).__name__ != type(b).__name__:  # classes of two copies of the program's text are not the same
        raise Wrong(f"{place}: a {type(b).__name__}, NumPy's is a {type(a).__name__}")
    elif isinstance(a, tuple | list):
        if len(a) != len(b):
            raise Wrong(f"{place}: {len(b)} items, NumPy's has {len(a)}")
        for n, (x, y) in enumerate(zip(a, b, strict=True)):
            _pair(x, y, f"{place}[{n}]", pairs)
    elif isinstance(a, dict):
        if list(a) != list(b):
            raise Wrong(f"{place}: keys {list(b)}, NumPy's are {list(a)}")
        for key in a:
            _pair(a[key], b[key], f"{place}[{key!r}]", pairs)
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            _pair(getattr(a, field.name), getattr(b, field.name), f"{place}.{field.name}", pairs)
    elif a != b and not (a != a and b != b):
        raise Wrong(f"{place}: {b!r}, NumPy's is {a!r}")


def distinct(a: np.ndarray | np.generic) -> np.ndarray:
    """An array without the repetitions of a broadcast: what stands for ten thousand million elements is small."""
    a = np.asarray(a)
    return a[tuple(slice(0, 1) if step == 0 else slice(None) for step in a.strides)] if a.size > 10**6 else a


def close(a: np.ndarray, b: np.ndarray, signs: bool, units: float = UNITS) -> np.ndarray:
    """Where two arrays are equal but for some units in the last place; with ``signs`` zeros have one, too."""
    with np.errstate(all="ignore"):
        same: np.ndarray = np.asarray(a == b)
        if a.dtype.kind != "f":
            return same
        if signs:
            same &= (a != 0) | (np.signbit(a) == np.signbit(b))
        same |= np.isnan(a) & np.isnan(b)
        info = np.finfo(a.dtype)
        bound = units * (float(info.eps) * np.abs(a.astype(np.float64)) + float(info.smallest_subnormal))
        finite = np.isfinite(a) & np.isfinite(b) & ((a != 0) | (b != 0))
        return np.asarray(same | finite & (np.abs(a.astype(np.float64) - b.astype(np.float64)) <= bound))


def explained(
    a: np.ndarray,
    b: np.ndarray,
    samples: list[np.ndarray],
    numerics: str,
    signs: bool,
    events: Wrapped,
    amplitude: float,
) -> np.ndarray:
    """Where the difference is no more than noise makes, or the class of numerics allows it."""
    with np.errstate(all="ignore"):
        fine = close(a, b, signs)
        some = np.stack([a, *samples])
        if a.dtype.kind != "f":
            fine |= (b >= some.min(0)) & (b <= some.max(0))
            if (numerics != "exact" and events.special) or (numerics == "approximates" and events.extreme):
                fine |= True
            return fine
        spread = np.fmax.reduce(np.abs(some.astype(np.float64) - a.astype(np.float64)), axis=0, initial=0.0)
        spread = np.where(np.isfinite(spread), spread, 0.0)
        bound = UNITS * float(np.finfo(a.dtype).eps) * np.abs(a.astype(np.float64)) + SPREAD / amplitude * spread
        off = np.abs(a.astype(np.float64) - b.astype(np.float64))
        signed = np.full(a.shape, True)
        if signs:
            signed = (a != 0) | (b != 0) | (np.signbit(a) == np.signbit(b))
            signed |= (np.signbit(some) != np.signbit(a)).any(0)
        fine |= signed & np.isfinite(a) & np.isfinite(b) & (off <= bound)
        for sample in some:  # under noise it overflows too, or is NaN too
            fine |= ~np.isfinite(b) & ((sample == b) | np.isnan(sample) & np.isnan(b))
        flips = (np.isfinite(some) != np.isfinite(a)).any(0)
        fine |= flips
        if numerics != "exact":
            strange = ~np.isfinite(a) | ~np.isfinite(b)
            if events.special or events.extreme:
                fine |= strange
            if events.negative_zero:
                fine |= np.isinf(a) & (a == -b)
            if numerics == "approximates" and events.special:
                fine |= True
        return np.asarray(fine)
