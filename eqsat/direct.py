"""Quick ways into a program: no keys, no conversions, for calls whose arguments fit exactly; others are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter

import numpy as np

from eqsat.frontends.again import Taken
from eqsat.frontends.trace import Traced
from eqsat.held import Held
from eqsat.ir.complexes import as_real
from eqsat.ir.repeats import overlapping
from eqsat.plan.backend import Direct, Executable


def direct_call(traced: Traced, executable: Executable, held: Mapping[int, Held], count: int) -> Direct:
    """A program on all of ``count`` leaves at once, which refuses (None) what does not fit it exactly."""
    return _agreeing(traced, _changing(traced, _constant(traced, executable, held, count)))


def _constant(traced: Traced, executable: Executable, held: Mapping[int, Held], count: int) -> Direct:
    """The executable's, behind a look at the constants: those known by identity are left out, others refused.

    Leaves that were ``Taken`` for this program have been looked at.
    """
    run = _paired(traced, executable.direct or _checked(traced, executable, held), held)
    if not held:
        return run
    free = [i for i in range(count) if i not in held]
    (place, constant), *more = held.items()
    pick = itemgetter(*free) if len(free) > 1 else itemgetter(slice(free[0], free[0] + 1) if free else slice(0))

    def direct(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        # on the path of every call: a tenth of a microsecond shows beside a small product
        if type(leaves) is Taken:
            return run(pick(leaves))
        if len(leaves) != count or leaves[place] is not constant.array:
            return None
        for i, other in more:
            if leaves[i] is not other.array:
                return None
        return run(pick(leaves))

    return direct


def _paired(traced: Traced, run: Direct, held: Mapping[int, Held]) -> Direct:
    """The same, of complex arrays where it takes pairs of real numbers."""
    free = [i for i in range(len(traced.graph.inputs)) if i not in held]
    inputs, complex_of = traced.graph.inputs, traced.pairs or {}
    pairs = [(at, inputs[i].shape[:-1], complex_of[i]) for at, i in enumerate(free) if i in complex_of]
    if not pairs:
        return run
    count = len(free)

    def direct(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        if len(leaves) != count:
            return None
        given = list(leaves)
        for at, shape, dtype in pairs:
            array = given[at]
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            if not array.flags.c_contiguous:
                return None
            given[at] = as_real(array)
        return run(tuple(given))

    return direct


def _checked(traced: Traced, executable: Executable, held: Mapping[int, Held]) -> Direct:
    """The executable where it has no quick way in, of arrays that it need not convert."""
    types = [node.type for i, node in enumerate(traced.graph.inputs) if i not in held]
    specs, run = [(of.shape, of.dtype.numpy) for of in types], executable

    def direct(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        if len(arrays) != len(specs):
            return None
        for array, (shape, dtype) in zip(arrays, specs, strict=True):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        return run(arrays)

    return direct


def _agreeing(traced: Traced, run: Direct) -> Direct:
    """The same, which refuses calls where Python is told other values."""
    if not traced.guards:
        return run
    values = [guard.value for guard in traced.guards]

    def direct(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        try:
            results = run(leaves)
        except Exception:  # perhaps a library's, on a way that this call does not take
            return None
        return results if results is not None and traced.seen(results) == values else None

    return direct


def _changing(traced: Traced, run: Direct) -> Direct:
    """The same, which refuses arguments that cannot be changed as those that were traced."""
    if not (traced.written or traced.rows):
        return run

    def direct(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        results = run(leaves)  # before the look: what it takes are arrays
        return results if results is not None and traced.takes(leaves) else None

    return direct


@contextmanager
def naming_copies(traced: Traced, leaves: Sequence[np.ndarray]) -> Iterator[None]:
    """Where memory is short, say which arguments have more elements than memory of their own."""
    try:
        yield
    except MemoryError as error:
        arrays = zip(traced.graph.names, traced.given(leaves), strict=True)
        told = [
            f"argument {name!r} of shape {a.shape} and type {a.dtype} has overlapping elements: a copy takes "
            f"{a.nbytes:,} bytes, its memory is {overlapping(a):,} bytes"
            for name, a in arrays
            if overlapping(a)
        ]
        if not told:
            raise
        raise MemoryError(
            f"{'; '.join(told)}. Fix: pass the array without overlaps, and take windows of it in the function"
        ) from error
