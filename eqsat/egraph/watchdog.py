"""An end to rules' functions that do not return."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")

TICK = 0.05
DRAIN = 1000
"""Steps in which an exception that was set is raised: the first backward jump would do."""
PATIENCE = 10
"""Ticks for which one call may go on when the time is over: half a second, in which this process itself was running."""


class Overlong(BaseException):
    """Raised inside a function that does not return; no Exception, so that it does not catch it by chance."""


class Watchdog:
    """Calls functions, and raises :class:`Overlong` in one that still runs long after ``deadline``.

    The exception is raised from another thread, in any thread, between two steps of Python: a function that waits in C
    (a sleep, an endless array operation) ends when that does. The watching thread starts with the first call.

    Args:
        deadline: on the clock of ``time.perf_counter``.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._ident = ctypes.c_ulong(threading.get_ident())
        self._thread: threading.Thread | None = None
        self._inside = False
        self._fired = False
        self._calls = 0

    def close(self) -> None:
        self._done.set()
        if self._thread is not None and self._thread.is_alive():  # Ctrl-C may come while it is started
            self._thread.join()

    def call(self, function: Callable[[A], R], argument: A) -> R:
        """``function(argument)``. :class:`Overlong` if it had to be ended; Ctrl-C goes before it.

        An exception that was set too late to be raised in the function is raised, and caught, here. It is not taken
        back: CPython would look for it at every step from then on, without end under a trace function.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="eqsat-watchdog", daemon=True)
            self._thread.start()
        self._calls += 1
        self._fired = False
        raised: BaseException | None = None
        try:
            self._inside = True
            result = function(argument)
        except BaseException as error:
            raised = error
        while True:  # no call comes before the `try`: it is behind calls that signals and Overlong are raised
            try:
                with self._lock:
                    self._inside = False
                for _ in range(DRAIN if self._fired else 0):
                    pass
                break
            except Overlong:
                continue
            except BaseException as error:  # Ctrl-C: raised when the call has been left
                raised = error
        if raised is not None:
            raise _first_of(raised)
        return result

    def _watch(self) -> None:
        call, ticks = 0, 0
        if self._done.wait(min(max(0.0, self._deadline - time.perf_counter()), threading.TIMEOUT_MAX)):
            return
        while not self._done.wait(TICK):
            with self._lock:
                if not self._inside or call != self._calls:
                    call, ticks = self._calls, 0
                    continue
                ticks += 1
                if ticks >= PATIENCE:
                    self._fired = True
                    _raise_in(self._ident, Overlong)


def _first_of(error: BaseException) -> BaseException:
    """The interruption, such as Ctrl-C, that an Overlong replaced: while a function is left, it is still watched."""
    found: BaseException | None = error if isinstance(error, Overlong) else None
    while isinstance(found, (Overlong, Exception)):
        found = found.__context__
    return found or error


def _raise_in(thread: ctypes.c_ulong, error: type[BaseException]) -> None:
    """Set the exception that a thread raises at its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(error))
