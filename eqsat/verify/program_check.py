"""The check of a random program: another executor of it against NumPy."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from eqsat.verify.program_noise import noise
from eqsat.verify.programs import Array, Optimizer, Program, evaluate
from eqsat.verify.stand_ins import WIDE

ULPS = 8.0
"""Units in the last place, of the tensor's largest magnitude, that are always allowed."""
NOISE_FACTOR = 16.0


@dataclass(frozen=True)
class Failure:
    """Why a program failed: ``wrong`` (numbers), ``refused`` (VerificationError) or ``crashed`` (other exceptions)."""

    kind: str
    message: str


def check(program: Program, optimizer: Optimizer, names: Mapping[str, object]) -> Failure | None:
    """Run the program under an optimizer, twice, and compare it with NumPy. None when all is well.

    ``names``: what the optimized program calls besides NumPy (see ``programs.REFERENCE``).
    Shapes and element types must be NumPy's; integers, bools and exact numbers equal; NaN and inf in NumPy's
    places (where an input holds inf, NaN and inf may stand for one another, and where inf − inf gave a NaN any
    value may, since that depends on the order of evaluation). Other numbers may differ from the evaluation in ``WIDE``
    by 4 times NumPy's own error, or by what one unit of rounding noise in every step does, plus a few units in the
    last place. So must arguments be that NumPy changes; others stay as they are. The second call must give the same
    bits and leave the first result alone.
    """
    expected = evaluate(program)
    given, again = program.arrays(), program.arrays()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimized = optimizer(program.function(names, given))
            actual = _outputs(program, optimized(*(given[p] for p in program.parameters)), given)
            first = [np.array(y) for y in actual] if isinstance(actual, list) else actual
            second = _outputs(program, optimized(*(again[p] for p in program.parameters)), again)
    except Exception as error:
        refused = any(base.__name__ == "VerificationError" for base in type(error).__mro__)
        kind = "refused" if refused else "crashed"
        return Failure(kind, describe(error))
    with np.errstate(all="ignore"):
        message = _compare(program, expected, first)
    if message:
        return Failure("wrong", message)
    for name, a, b, c in zip(program.outputs, actual, first, second, strict=True):
        if not _same(a, b):
            return Failure("wrong", f"{name}: the second call changed the result of the first")
        if not _same(b, c):
            return Failure("wrong", f"{name}: two calls on the same arguments differ")
    changed = program.changed
    for name, before in program.arrays().items():
        if name not in changed and not (_same(before, given[name]) and _same(before, again[name])):
            return Failure("wrong", f"the call changed its argument {name}")
    return None


def _outputs(program: Program, returned: object, arguments: Mapping[str, Array]) -> list[object] | str:
    """What was returned, and the arguments that are looked at; or the type of what is no tuple of results."""
    results = () if returned is None else returned
    if not isinstance(results, tuple) or len(results) != len(program.returned):
        return f"a tuple of {len(program.returned)} arrays was expected, not {type(returned).__name__}"
    found = {**arguments, **dict(zip(program.returned, results, strict=True))}
    return [found[name] for name in program.outputs]


def _same(one: object, other: object) -> bool:
    """Whether two arrays are of one type and hold the same numbers."""
    a, b = np.asarray(one), np.asarray(other)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def describe(error: Exception) -> str:
    """Type, first line and place of an exception, on one line."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}]" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def _compare(program: Program, expected: Sequence[Array], actual: Sequence[Array] | str) -> str | None:
    if isinstance(actual, str):
        return actual
    has_inf = any(map(_unbounded, program.arrays().values()))
    exact: tuple[Array, ...] | None = None
    allowed: tuple[Array, ...] | None = None
    for i, (name, e, a) in enumerate(zip(program.outputs, expected, actual, strict=True)):
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"{name}: {e.dtype}{list(e.shape)} was expected, not {a.dtype}{list(a.shape)}"
        if e.dtype.kind not in "fc" or program.is_exact(name):
            if not _same(e, a):
                return f"{name}: {_first_difference(e, a, (e != a) & ~((e != e) & (a != a)))}"
            continue
        if has_inf or e.dtype.kind == "c":  # of products of complex numbers, either part may be NaN or infinite
            misplaced = np.isfinite(e) != np.isfinite(a)
            if misplaced.any() and _cancels_infinities(program, name):
                misplaced &= ~np.isnan(e)
        else:
            misplaced = (np.isnan(e) != np.isnan(a)) | (np.isinf(e) | np.isinf(a)) & (e != a)
            misplaced &= ~(np.isnan(e) & np.isnan(a))
        if misplaced.any():
            return f"{name}: NaN or inf in another place: {_first_difference(e, a, misplaced)}"
        finite = np.isfinite(e)
        if not finite.any():
            continue
        if exact is None:
            exact = evaluate(program, wide=True)
        reference = exact[i]
        finite &= np.isfinite(reference)
        error = np.where(finite, np.abs(a - reference), 0.0)
        own = np.where(finite, np.abs(e - reference), 0.0)
        info = np.finfo(e.dtype)
        magnitude = np.abs(np.where(finite, reference, 0.0)).max(initial=0.0)
        bound = 4.0 * own.max(initial=0.0) + ULPS * float(info.eps) * magnitude + 8.0 * float(info.tiny)
        if error.max(initial=0.0) <= bound:
            continue
        if allowed is None:
            allowed = noise(program)
        bound += NOISE_FACTOR * np.where(finite & np.isfinite(allowed[i]), allowed[i], 0.0).max(initial=0.0)
        if error.max(initial=0.0) > bound:
            return (
                f"{name}: error {error.max():.2e} against {WIDE}, where {bound:.2e} is allowed and NumPy makes "
                f"{own.max():.2e}: {_first_difference(reference, a, error == error.max())}"
            )
    return None


def _unbounded(array: Array) -> bool:
    """Whether there are infinities, which NaN in one part of a complex number may be, too."""
    return bool(np.isinf(array).any() if array.dtype.kind == "f" else not np.isfinite(array).all())


_ADDS = re.compile(
    r"[-+@]|sum|add|subtract|mean|var|std|dot|inner|einsum|mul\(|norm|trace|softmax|conv|pool|interpolate"
)
"""What adds: NaN from ∞·0 or 0/0 alone stays where it is."""


def _cancels_infinities(program: Program, output: str) -> bool:
    """Whether some step that an output needs makes NaN of operands without one, such as inf − inf.

    What is left of it depends on the order of evaluation: ∞·a + ∞·b is ∞·(a + b), and its tanh is finite. Inputs that
    hold NaN besides are looked at without.
    """
    part = replace(program, outputs=(output,)).pruned()
    given = "np.nan_to_num({}, nan=1.0, posinf=np.inf, neginf=-np.inf)"
    without = [replace(i, expression=given.format(i.expression)) for i in part.inputs]
    return any(_makes_nan(p) for p in (part, replace(part, inputs=tuple(without))))


def _makes_nan(part: Program) -> bool:
    names = tuple(dict.fromkeys([*(i.name for i in part.inputs), *(s.name for s in part.steps)]))
    values = dict(zip(names, evaluate(replace(part, outputs=names)), strict=True))

    def has_nan(name: str) -> bool:
        return values[name].dtype.kind in "fc" and bool(np.isnan(values[name]).any())

    made = [s for s in part.steps if has_nan(s.name) and not any(has_nan(x) for x in s.arguments if x != s.name)]
    return any(_ADDS.search(s.text) for s in made)


def _first_difference(expected: Array, actual: Array, where: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(where)[0]) if np.ndim(where) else ()
    return f"at {list(at)} {expected[at]!r} was expected, not {actual[at]!r} ({int(np.sum(where))} of {expected.size})"
