"""What can be told of a rule's mistakes when it is defined: without an e-graph, in about a millisecond.

Each finding is a text without the rule's name and place, which the definition adds. That a rule *holds* is for
``eqsat.check`` and ``rules.add`` to say.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from eqsat.rules.examples import Maker
from eqsat.rules.instantiate import fit, instantiate
from eqsat.rules.pattern import Pattern
from eqsat.rules.walk import match_names

PROGRAMS, ENOUGH = 60, 6
"""Random programs that a left side is tried to match, and of those that it does how many are looked at."""
EQUAL = ((3, 3), (1, 1), (2, 2, 2))
"""Shapes of further programs."""


def wrong_signature(function: Callable[..., Any], what: str, argument: str = "the match") -> str:
    """Why a function cannot be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        return f"{what} takes one argument, {argument}: {error}"
    except ValueError:  # a builtin without a signature
        return ""
    return ""


def unknown_variable(function: Callable[..., Any], what: str, lefts: Sequence[Sequence[Pattern]], own: set[str]) -> str:
    """A variable that a function of the match reads, and none of the left sides binds, with its line."""
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return ""
    bound = match_names(lefts)
    roots = {f"root{number or ''}" for left in lefts for number in range(len(left))}
    for name, line in _reads(function.__code__, function.__code__.co_varnames[0]):
        if not name.startswith("_") and name not in own and name not in roots and name not in bound:
            return (
                f"{what} reads {name!r} at {function.__code__.co_filename}:{line}: the left side has no such variable "
                f"(bound: {', '.join(n for n in bound if not n.startswith('_')) or 'none'})"
            )
    return ""


def _reads(code: CodeType, parameter: str) -> Iterator[tuple[str, int]]:
    """Attributes that a function reads of its parameter, each with its line; nothing where it assigns to it."""
    found = []
    loaded, line = False, code.co_firstlineno
    for at in dis.get_instructions(code):
        line = at.positions.lineno if at.positions and at.positions.lineno else line
        names = at.argval if isinstance(at.argval, tuple) else (at.argval,)  # several from Python 3.13 on
        if at.opname.startswith(("STORE_", "DELETE_")) and parameter in names:
            return
        if at.opname in ("LOAD_ATTR", "LOAD_METHOD") and loaded:
            found.append((str(at.argval), line))
        if at.opname not in ("CACHE", "EXTENDED_ARG"):
            loaded = at.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")) and names[-1:] == (parameter,)
    yield from found
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and parameter in inner.co_freevars:
            yield from _reads(inner, parameter)


def other_type(left: Sequence[Pattern], right: Sequence[Pattern]) -> str:
    """How a right side's type differs from its left's, where it does in every program that was tried.

    Some have extents that are all equal: a rule may be about square matrices.
    """
    seen, said = 0, ""
    for seed in range(PROGRAMS):
        problem = _problem(Maker(seed), left, right)
        if problem is None:
            return ""
        said, seen = said or problem, seen + bool(problem)
        if seen == ENOUGH:
            break
    alike = (_problem(Maker(seed, base=EQUAL[seed % len(EQUAL)]), left, right) for seed in range(PROGRAMS))
    if seen < ENOUGH or any(problem is None for problem in alike):
        return ""
    return f"{said}; the types differ in all programs tried"


def _problem(maker: Maker, left: Sequence[Pattern], right: Sequence[Pattern]) -> str | None:
    """How the types of the sides differ in a program that is made; empty if there is none, None if they do not."""
    try:
        roots = maker.from_patterns(left, longer=False)
    except (ValueError, IndexError, ZeroDivisionError, OverflowError, KeyError, AssertionError):
        return ""  # the dice do not fit
    problem = ""
    for pattern, root in zip(right, roots, strict=True):
        try:
            made = fit(instantiate(pattern, maker.names, root.dtype), root.shape)
        except (KeyError, AssertionError):
            return None  # attributes that only a match has
        except (ValueError, IndexError, OverflowError) as error:
            found = f"fails: {error}"
        else:
            if made.type == root.type:
                return None
            found = f"is of type {made.type}"
        problem = problem or f"the left side is of type {root.type}, where the right side {found}"
    return problem
