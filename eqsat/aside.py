"""Long calls into other people's code, made so that Ctrl-C neither waits for them nor breaks them.

Python raises ``KeyboardInterrupt`` in the main thread, between two of its instructions: a solver's call delays it,
and a library that is being imported, or is compiling, may be left half done for the rest of the process. In a thread
beside, such a call always runs to its end, and the one who waits can leave at once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from eqsat import forks
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.scoped import carried

P = ParamSpec("P")
R = TypeVar("R")


def quieten(*libraries: str) -> None:
    """Hold libraries' loggers at WARNING. What the user set for one, a level or a handler, stays."""
    for library in libraries:
        logger = logging.getLogger(library)
        if logger.level == logging.NOTSET and not logger.handlers:
            logger.setLevel(logging.WARNING)


class _Call:
    """One call and its outcome."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run
        self.result: object = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        try:
            self.result = self.run()
        except BaseException as error:  # raised again where it is waited for
            self.error = error
        finally:
            self.done.set()


def aside(work: str, deadline: Deadline, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``fn(*args, **kwargs)`` in a thread of its own, with this thread's variables.

    When ``deadline`` passes, or Ctrl-C arrives, the call is left to end by itself: it must end, and what it
    touches must not be in use here.

    Raises:
        OutOfTime: the deadline passed meanwhile; it names ``work``.
    """
    if forks.IMPORTING._is_owned():  # type: ignore[attr-defined]  # the thread might wait for what is held here
        return fn(*args, **kwargs)
    run = carried(fn)
    call = _Call(lambda: run(*args, **kwargs))
    thread = threading.Thread(target=call, name=f"eqsat: {work}")
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is ending
        return fn(*args, **kwargs)
    if not call.done.wait(None if deadline.left > threading.TIMEOUT_MAX else deadline.left):
        raise OutOfTime(work)
    if call.error is not None:
        raise call.error
    return call.result  # type: ignore[return-value]


def load(*modules: str, deadline: Deadline = NEVER) -> None:
    """Import modules, wholly or not at all: a library whose import was interrupted cannot be imported again.

    Raises:
        OutOfTime: past ``deadline``; the import goes on.
    """
    if not all(name in sys.modules for name in modules):
        aside("importing " + modules[0], deadline, forks.load, *modules)
