"""What the code of a ``for`` loop can do, seen from its instructions: which variables it reads, and nothing but those.

A loop whose instructions are all of ``PLAIN`` keeps its state in variables of the function, in what these refer to, and
in the arrays there. What is called is seen from the values of the names: :mod:`eqsat.frontends.loop_state`.
"""

from __future__ import annotations

import dis
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

import numpy as np

from eqsat.frontends.creation import NAMES
from eqsat.frontends.registry import FUNCTIONS
from eqsat.frontends.tracer import TracedArray


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


JUMPS = _words(
    """FOR_ITER JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP
    POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE
    POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE
    POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE"""
)
ENDS = _words("RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE")
NEVER_ON = ENDS | _words("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT")
"""After which the next instruction does not follow."""
VARIABLES = _words(
    """LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_LOAD_FAST
    STORE_FAST_STORE_FAST DELETE_FAST LOAD_DEREF STORE_DEREF LOAD_CLOSURE"""
)
PLAIN = (
    JUMPS
    | VARIABLES
    | (ENDS - {"RERAISE"})
    | _words(
        """RESUME NOP CACHE EXTENDED_ARG POP_TOP COPY SWAP PUSH_NULL END_FOR MAKE_CELL COPY_FREE_VARS LOAD_CONST
    LOAD_GLOBAL LOAD_ATTR LOAD_METHOD UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT BINARY_OP
    BINARY_SUBSCR BINARY_SLICE STORE_SUBSCR STORE_SLICE COMPARE_OP IS_OP CONTAINS_OP TO_BOOL BUILD_TUPLE
    BUILD_LIST BUILD_MAP BUILD_SLICE BUILD_CONST_KEY_MAP LIST_EXTEND LIST_TO_TUPLE DICT_UPDATE DICT_MERGE
    UNPACK_SEQUENCE UNPACK_EX PRECALL CALL KW_NAMES CALL_KW CALL_FUNCTION_EX MAKE_FUNCTION
    SET_FUNCTION_ATTRIBUTE GET_ITER LOAD_ASSERTION_ERROR"""
    )
)
"""Instructions that neither change what is outside of the function nor catch an exception."""
ADDS = frozenset(("LIST_APPEND", "SET_ADD", "MAP_ADD"))
"""Of comprehensions, in code of their own: the list is as new as the call."""


@dataclass(frozen=True)
class LoopCode:
    """The instructions of one turn: the variables and globals that they name, but for the one that counts.

    ``target``: the one that counts; ``numbered``: it is read. ``live``: variables that a turn may read before it
    writes them.
    """

    variables: tuple[str, ...]
    globals: tuple[str, ...]
    target: str
    numbered: bool
    live: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def attributes() -> frozenset[str]:
    """Names that are attributes of NumPy's pure functions, arrays and numbers, and of nothing that has a state."""
    constants = (name for name, value in vars(np).items() if isinstance(value, (int, float, np.ufunc)))
    types = (name for name, value in vars(np).items() if isinstance(value, type) and issubclass(value, np.generic))
    arrays = (name for name in dir(np.ndarray) if hasattr(TracedArray, name))
    named = (getattr(function, "__name__", "_") for function in FUNCTIONS)
    found = {
        *NAMES,
        *constants,
        *types,
        *arrays,
        *named,
        *vars(math),
        "linalg",
        "fft",
        "newaxis",
        "items",
        "keys",
        "values",
    }
    return frozenset(name for name in found if not name.startswith("_") and name != "append")


@functools.lru_cache(maxsize=1024)
def range_loops(code: CodeType) -> dict[int, int]:
    """Where the name ``range`` is read for ``for … in range(…):``, caches included, and the head of that loop."""
    steps = list(dis.get_instructions(code))
    found = {}
    for number, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL" and step.argval == "range":
            loop = _iterated(steps, number)
            if loop is not None:
                end = steps[number + 1].offset
                found.update(dict.fromkeys(range(step.offset, end), loop))
    return found


def _iterated(steps: Sequence[dis.Instruction], number: int) -> int | None:
    """The head of the loop over what a function that is read here returns, if that is all that becomes of it."""
    depth = 0
    for at in range(number, len(steps) - 2):
        step = steps[at]
        if step.opname in JUMPS or step.opname in NEVER_ON:
            return None
        depth += dis.stack_effect(step.opcode, step.arg)
        if step.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX") and depth <= 1:
            before = steps[number - 1] if number else step
            end = at + 1
            if before.opname == "LOAD_GLOBAL" and before.argval == "reversed":
                end = next((n for n in range(at + 1, len(steps)) if steps[n].opname == "CALL"), at) + 1
                if any(s.opname not in ("PRECALL", "CALL") for s in steps[at + 1 : end]):
                    return None
            follow = [s.opname for s in steps[end:] if s.opname != "EXTENDED_ARG"]
            return steps[end + 1].offset if follow[:2] == ["GET_ITER", "FOR_ITER"] else None
    return None


@functools.lru_cache(maxsize=1024)
def loop_code(code: CodeType, place: int) -> LoopCode | None:
    """The loop whose head, FOR_ITER or what extends it, is at a place; None where more may happen than is seen."""
    steps = {step.offset: step for step in dis.get_instructions(code)}
    order = list(steps)
    after = dict(itertools.pairwise(order))
    if any(step.opname == "PUSH_EXC_INFO" for step in steps.values()) or code.co_flags & 0x2A0:  # generators
        return None
    turn = _natural(steps, after, place)
    inside = [steps[offset] for offset in sorted(turn)]
    first = place
    while steps[first].opname != "FOR_ITER":
        first = after[first]
    store = steps[after[first]]
    if store.opname not in ("STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
        return None
    target = store.argval if store.opname == "STORE_FAST" else store.argval[0]
    if any(step.opname not in PLAIN for step in inside):
        return None
    names: list[str] = []
    read: set[str] = set()
    for step in inside:
        if step.opname in VARIABLES:
            names += step.argval if isinstance(step.argval, tuple) else (step.argval,)
        read.update(_globals_of(step))
        if not _reads_known(step):
            return None
        if isinstance(step.argval, CodeType):
            found = function_code(step.argval)
            if found is None:
                return None
            read.update(found)
    numbered = any(target in _read(step) for step in inside)
    live = _live(inside, after, after[first]) - {target}
    return LoopCode(tuple(sorted({*names} - {target})), tuple(sorted(read)), target, numbered, tuple(sorted(live)))


def _live(inside: Sequence[dis.Instruction], after: dict[int, int], first: int) -> set[str]:
    """The variables that a turn, which begins at ``first``, may read before it writes them."""
    live: dict[int, set[str]] = {step.offset: set() for step in inside}
    changed = True
    while changed:
        changed = False
        for step in reversed(inside):
            follow = [step.argval] if step.opname in JUMPS else []
            if step.opname not in NEVER_ON:
                follow.append(after[step.offset])
            found = set().union(*(live[place] for place in follow if place in live))
            found = (found - _written(step)) | set(_read(step))
            if step.opname == "STORE_FAST_LOAD_FAST" and step.argval[0] == step.argval[1]:
                found.discard(step.argval[0])
            if found != live[step.offset]:
                live[step.offset], changed = found, True
    return live[first] | {name for step in inside if "DEREF" in step.opname for name in [step.argval]}


def _written(step: dis.Instruction) -> set[str]:
    if step.opname == "STORE_FAST":
        return {step.argval}
    if step.opname == "STORE_FAST_STORE_FAST":
        return set(step.argval)
    return {step.argval[0]} if step.opname == "STORE_FAST_LOAD_FAST" else set()


def _natural(steps: dict[int, dis.Instruction], after: dict[int, int], head: int) -> set[int]:
    """The instructions on a way from the loop's head back to it."""
    before: dict[int, list[int]] = {}
    for offset, step in steps.items():
        follow = [step.argval] if step.opname in JUMPS else []
        if step.opname not in NEVER_ON and offset in after:
            follow.append(after[offset])
        for place in follow:
            before.setdefault(place, []).append(offset)
    found = {head}
    # Jumps to the head from behind it: from the code before the loop it is entered.
    pending = [offset for offset in before.get(head, ()) if offset > head]
    while pending:
        offset = pending.pop()
        if offset not in found:
            found.add(offset)
            pending.extend(before.get(offset, ()))
    return found - {head}


def _read(step: dis.Instruction) -> tuple[str, ...]:
    """The variables that an instruction reads, captures or deletes."""
    if step.opname not in VARIABLES or step.opname in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
        return ()
    named = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return named[1:] if step.opname == "STORE_FAST_LOAD_FAST" else named


def _globals_of(step: dis.Instruction) -> Iterator[str]:
    if step.opname == "LOAD_GLOBAL":
        yield step.argval


def _reads_known(step: dis.Instruction) -> bool:
    return step.opname not in ("LOAD_ATTR", "LOAD_METHOD") or step.argval in attributes()


@functools.lru_cache(maxsize=1024)
def function_code(code: CodeType) -> tuple[str, ...] | None:
    """The globals that a function names; None where its instructions may do what is not seen."""
    names: set[str] = set()
    if code.co_flags & 0x2A0:
        return None
    for step in dis.get_instructions(code):
        if step.opname not in PLAIN and step.opname not in ADDS:
            return None
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return None
        if not _reads_known(step):
            return None
        names.update(_globals_of(step))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found = function_code(value)
            if found is None:
                return None
            names.update(found)
    return tuple(sorted(names))
