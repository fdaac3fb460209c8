"""Functions that ask for values of arrays: a program for each of the ways that calls take through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from eqsat.compiled import Compiled
from eqsat.errors import ResultChangedError
from eqsat.frontends.guards import Guard
from eqsat.plain import PlainProgram

MOST_PATHS = 4
"""Programs of a function for calls of the same types that take different ways; beyond, NumPy runs it."""


class NoMorePaths(Exception):
    """Why NumPy runs the function from here on."""


def taken(
    program: Compiled, leaves: Sequence[np.ndarray], another: Callable[[], Compiled | PlainProgram | None]
) -> tuple[Compiled, Sequence[np.ndarray]] | PlainProgram | None:
    """The program for the way that a call takes, and its results; that of the last call is tried first.

    ``another``: compiles one for this call. None where NumPy has to run the function this time; raises `NoMorePaths`
    where it should run it always.
    """
    path = program.paths[0]
    for _ in range(MOST_PATHS):
        try:
            results = path.results(leaves)
        except ResultChangedError:
            raise
        except Exception:  # perhaps a library's, on a way that this call does not take
            return None
        seen = path.traced.seen(results)
        agree = [guard.value == value for guard, value in zip(path.traced.guards, seen, strict=True)]
        if all(agree):
            if path is not program.paths[0]:
                program.prefer(path)
            return path, results
        told = tuple(seen[: agree.index(False) + 1])  # what is asked for later depends on this
        found = next((p for p in program.paths if p.traced.agrees(told)), None) or program.refused.get(told)
        if found is None:
            found = _new(program, another)
            if isinstance(found, PlainProgram):
                program.refused[told] = found
        if not isinstance(found, Compiled):
            return found
        path = found
    return None


def _new(program: Compiled, another: Callable[[], Compiled | PlainProgram | None]) -> Compiled | PlainProgram | None:
    paths = program.paths
    if len(paths) + len(program.refused) >= MOST_PATHS:
        raise _no_more(paths, f"calls take other ways again and again, {MOST_PATHS} so far")
    made = another()
    if not isinstance(made, Compiled):
        return made
    if any(p.traced.agrees([guard.value for guard in made.traced.guards]) for p in program.paths):
        raise _no_more(paths, "rounding decides over which way is taken")
    program.prefer(made)
    return made


def _no_more(paths: Sequence[Compiled], why: str) -> NoMorePaths:
    guards = [guard for path in paths for guard in path.traced.guards]
    where = "; ".join(dict.fromkeys(str(guard.where) for guard in guards))
    return NoMorePaths(f"{why}, by values or shapes asked for at {where}: {fixes(guards)}")


def fixes(guards: Sequence[Guard]) -> str:
    """What to write in place of what asks for values."""
    return "; ".join(dict.fromkeys(guard.fix for guard in guards))
