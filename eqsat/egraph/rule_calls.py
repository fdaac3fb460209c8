"""Calls of what a rule's author wrote: guards, right sides, examples. What goes wrong in them is said of the rule."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from eqsat.egraph.watchdog import Overlong, Watchdog
from eqsat.errors import RuleError
from eqsat.frontends.source import is_users
from eqsat.ir.node import Node
from eqsat.rules.examples import Maker
from eqsat.rules.rule import Rule

A = TypeVar("A")
R = TypeVar("R")
Example = Callable[[Maker], Node | Sequence[Node]]

_INSIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
UNFIT = ValueError, ZeroDivisionError, IndexError, OverflowError
"""What an example or a pattern raises where the dice do not fit."""
PATIENCE = 2.0
"""Seconds that an example may take."""


class Unfit(Exception):
    """No program is made, for the dice do not fit; the cause is what was raised."""


def named(rule: Rule) -> str:
    return f"rule {rule.id!r} ({rule.file}:{rule.line})"


def run(watchdog: Watchdog, rule: Rule, what: Callable[[], str], function: Callable[[A], R], argument: A) -> R:
    """What a rule's function makes of an argument. ``RuleError`` where it raises or does not return.

    ``what``: says afterwards which of the rule's functions was called.
    """
    try:
        return watchdog.call(function, argument)
    except RuleError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ValueError) else repr(error)
        raise RuleError(f"{named(rule)}: {what()} failed: {said}{_raised_at(error)}") from error
    except Overlong:
        raise RuleError(f"{named(rule)}: {what()} does not return") from None


def program_of(rule: Rule, example: Example, maker: Maker) -> list[Node]:
    """The outputs of a program that an example of a rule makes. ``Unfit`` where the dice do not fit.

    ``RuleError`` where it fails otherwise, does not return, or makes something else.
    """

    def fitting(dice: Maker) -> object:
        try:
            return example(dice)
        except UNFIT as error:
            return error

    watchdog = Watchdog(time.perf_counter() + PATIENCE)
    try:
        made = run(watchdog, rule, lambda: "its example", fitting, maker)
    finally:
        watchdog.close()
    if isinstance(made, Exception):
        raise Unfit(str(made)) from made
    outputs = [made] if isinstance(made, Node) else list(made) if isinstance(made, list | tuple) else []
    if not outputs or not all(isinstance(output, Node) for output in outputs):
        raise RuleError(
            f"{named(rule)}: its example makes a {type(made).__name__}; it is to return a tensor of a program that the "
            "rule is tried on, or a list of them, made with its argument"
        )
    return outputs


def _raised_at(error: BaseException) -> str:
    """The last line outside of this package that an error came through."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [f"{file}:{line}" for file, line in frames if is_users(file) and not file.startswith(_INSIDE)]
    return f" ({outside[-1]})" if outside else ""
