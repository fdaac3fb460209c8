"""One program under NumPy and under eqsat, called several times, and what came of it."""

from __future__ import annotations

import ast
import copy
import functools
import gc
import logging
import re
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import eqsat
from eqsat import errors
from tests.numpy_net.judge import Wrong, compare, leaves
from tests.numpy_net.program import FILE, Program, load

FAILURES = ("wrong", "unverified", "rejected", "crashed", "silent", "slow", "died")
"""Outcomes that are failures: another result than NumPy's; right programs that verification or a check of shapes or
bounds refuses; exceptions from inside; a result where NumPy raises; over the time limit; the process is gone."""
REFUSALS = (errors.UnsupportedOpError, errors.UnsupportedDTypeError, errors.ConcretizationError)
ROUNDS = 5
"""Times that a refused statement is left out and the rest of the program tried."""


@dataclass
class Outcome:
    """``kind``: ``ok``, ``refused``, ``raises`` (as NumPy does), ``undefined`` or one of ``FAILURES``."""

    kind: str
    message: str = ""
    refused: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    seconds: float = 0.0
    program: Program | None = None


class _Stop(Exception):
    def __init__(self, kind: str, message: str, line: int | None = None) -> None:
        self.kind, self.message, self.line = kind, message, line


class _Undefined(Exception):
    """NumPy warns that a value has no meaning (a NaN cast to an integer): nothing to compare."""


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(reason(record.getMessage()))


compiled = functools.partial(eqsat.optimize, strict=True)
"""What eqsat does not compile is told, and not run by NumPy."""


def examine(program: Program, optimize: Callable[..., Any] = compiled) -> Outcome:
    """The outcome of a program; statements that eqsat refuses are left out, and the rest is tried."""
    start = time.perf_counter()
    outcome = Outcome("ok", program=program)
    handler = _Warnings()
    logging.getLogger("eqsat").addHandler(handler)
    try:
        for _ in range(ROUNDS):
            try:
                _examine(program, optimize)
            except _Stop as stop:
                if stop.kind == "refused":
                    outcome.refused.append(reason(stop.message))
                    smaller = without_statement(program, stop.line)
                    if smaller is not None:
                        program = smaller
                        continue
                outcome.kind, outcome.message = stop.kind, stop.message
            except _Undefined as undefined:
                outcome.kind, outcome.message = "undefined", str(undefined)
            break
        else:
            outcome.kind = "refused"
    finally:
        logging.getLogger("eqsat").removeHandler(handler)
    gc.collect(1)  # what programs left in cycles; all of the heap is too much to go through after each
    outcome.program = program
    outcome.warnings = handler.messages
    outcome.used = functions(program) if outcome.kind == "ok" else []
    outcome.seconds = time.perf_counter() - start
    return outcome


def _examine(program: Program, optimize: Callable[..., Any]) -> None:
    source = program.source()
    _, f = load(source)
    try:
        fast = optimize(f, **program.options)
    except Exception as error:
        raise _Stop("crashed", f"optimize: {_told(error)}") from None
    first = _call(program, source, fast, {})
    if first is None:
        raise _Stop("raises", "as NumPy does")
    kept = [a.copy() for a in leaves(first)]
    again = _call(program, source, fast, {})
    if again is not None:
        for a, b in zip(kept, leaves(again), strict=True):
            if a.tobytes() != b.tobytes():
                raise _Stop("wrong", "a second call with the same arguments gives other bits")
    later = [{"seed": 1}]
    if program.other_sizes:
        later.append({"seed": 2, **program.other_sizes})
    for changes in later:
        try:
            _call(program, source, fast, changes)
        except _Undefined:
            continue
        except _Stop as stop:
            if stop.kind == "refused":
                continue
            raise _Stop(stop.kind, f"inputs({changes}): {stop.message}", stop.line) from None
    for a, b in zip(kept, leaves(first), strict=True):
        if a.tobytes() != b.tobytes():
            raise _Stop("wrong", "a later call changed the result of the first")


def reference(source: str, changes: dict[str, Any]) -> tuple[Any, tuple[Any, Any], Exception | None]:
    """NumPy's result, the arguments as they are after the call, and what was raised."""
    make, f = load(source)
    arguments = make(**changes)
    with np.errstate(all="ignore", invalid="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = f(*arguments[0], **arguments[1])
        except Exception as error:
            return None, arguments, error
    if any("invalid value encountered in cast" in str(w.message) for w in caught):
        raise _Undefined("a cast of what no integer is")
    return copy.deepcopy(result), arguments, None


def _call(program: Program, source: str, fast: Callable[..., Any], changes: dict[str, Any]) -> Any:
    """Call and compare; eqsat's result, or None where both raise."""
    try:
        make, _ = load(source)
        args, kwargs = make(**changes)
    except Exception as error:
        raise _Undefined(f"no such inputs: {error}") from None
    expected, after, raised = reference(source, changes)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = fast(*args, **kwargs)
    except Exception as error:
        raise_for(error, raised)
        return None
    if raised is not None:  # what no result depends on is not computed, and cannot raise
        expected, after, dead = reference(live(program).source(), changes)
        if dead is not None:
            raise _Stop("silent", f"no error where NumPy raises {_told(raised)}")
    numerics = program.options.get("numerics", "reassociates")
    try:
        compare(expected, ours, numerics, source, lambda inputs: inputs(**changes))
        compare(after, (args, kwargs), "exact", source, lambda inputs: inputs(**changes))
    except Wrong as wrong:
        raise _Stop("wrong", str(wrong)) from None
    return ours


def raise_for(error: Exception, raised: Exception | None) -> None:
    """Classify eqsat's exception beside NumPy's, if that raised one; return where it is as it should be."""
    told = _told(error)
    line = _line(error)
    refusal = isinstance(error, REFUSALS) or "not supported on traced arrays" in str(error)
    if refusal and not isinstance(error, errors.VerificationError):
        raise _Stop("refused", told, line)
    if raised is not None:
        kin = any(isinstance(error, c) for c in type(raised).__mro__ if c not in (Exception, BaseException, object))
        if isinstance(error, errors.EqsatError) or kin:
            return
        raise _Stop("crashed", f"{told}\nwhere NumPy raises {_told(raised)}\n{_tail(error)}", line)
    if isinstance(error, errors.VerificationError):
        raise _Stop("unverified", told, line)
    if isinstance(error, errors.ShapeError | errors.BoundsError | errors.OptionError):
        raise _Stop("rejected", told, line)
    raise _Stop("crashed", f"{told}\n{_tail(error)}", line)


def _told(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _tail(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def _line(error: Exception) -> int | None:
    """The line of the program's text that is to blame."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == FILE]
    return lines[-1] if lines else None


def reason(message: str) -> str:
    """A message without what differs from program to program."""
    first = message.splitlines()[0] if message else ""
    first = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", first)
    first = re.sub(r"\[[^\]]*\]|\([^)]*\)", "", first)
    return re.sub(r"\d+", "#", first)[:110]


def without_statement(program: Program, line: int | None) -> Program | None:
    """The program less the statement at a line of its text and what depends on it; None if nothing is left."""
    if line is None:
        return None
    text = program.source().splitlines()
    at = max(n for n, t in enumerate(text, 1) if t.startswith("def f(")) + 1
    at += sum(len(b.splitlines()) for b in program.unpack)
    for number, block in enumerate(program.body):
        height = len(block.splitlines())
        if at <= line < at + height:
            return cut(program, {number})
        at += height
    return None


def cut(program: Program, numbers: set[int]) -> Program | None:
    """The program without these statements, those that depend on them, and results that do."""
    gone: set[str] = set()
    body = []
    for number, block in enumerate(program.body):
        stored, loaded = names(block)
        if number in numbers or loaded & gone:
            gone |= stored
        else:
            body.append(block)
    result = program.result
    if names(result)[1] & gone:
        made = [n for block in body for n in sorted(names(block)[0]) if n.startswith("v") and n not in gone]
        if not made:
            return None
        result = made[-1]
    return program.but(body=tuple(body), result=result) if body else None


def live(program: Program) -> Program:
    """The program without the statements that its result does not depend on."""
    needed = names(program.result)[1]
    body: list[str] = []
    for block in reversed(program.body):
        stored, loaded = names(block)
        if stored & needed:
            needed |= loaded
            body.insert(0, block)
    return program.but(body=tuple(body))


def names(block: str) -> tuple[set[str], set[str]]:
    """Names that a statement stores, and those it loads."""
    found = [n for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Name)]
    stored = {n.id for n in found if isinstance(n.ctx, ast.Store)}
    return stored, {n.id for n in found if isinstance(n.ctx, ast.Load)} | stored


def functions(program: Program) -> list[str]:
    """Functions, methods and operators of a program."""
    used = set()
    for node in ast.walk(ast.parse("\n".join((*program.body, program.result)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            used.add(node.func.attr)
        elif isinstance(node, ast.BinOp | ast.UnaryOp | ast.AugAssign):
            used.add(type(node.op).__name__)
        elif isinstance(node, ast.Compare):
            used |= {type(op).__name__ for op in node.ops}
        elif isinstance(node, ast.Subscript):
            used.add("Subscript")
    return sorted(used)
