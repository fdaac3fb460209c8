"""Rules' functions are ended, and nothing of that is left in the thread that called them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from eqsat.egraph.watchdog import PATIENCE, TICK, Overlong, Watchdog

TRACED = """
import sys, time
import numpy as np
import eqsat
from eqsat.egraph.watchdog import Overlong, Watchdog

def once():
    return 1

def traced():
    sys.settrace(lambda *event: None)
    try:
        assert once() == 1
    finally:
        sys.settrace(None)

eqsat.optimize(lambda x: np.tanh(x) * 2 + x / 3, cache=False)(np.ones(3))
traced()
watchdog = Watchdog(time.perf_counter())
def endless(argument):
    while True:
        pass
try:
    watchdog.call(endless, 0)
except Overlong:
    traced()
assert watchdog.call(lambda a: a + 1, 1) == 2
watchdog.close()
traced()
print("done")
"""


def test_functions_can_be_traced_after_a_search_and_after_one_was_ended() -> None:
    """An exception taken back from a thread makes CPython look for it for ever while a trace function is set."""
    run = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip().endswith("done"), run.stderr


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog(time.perf_counter())  # its time is over from the start
    yield made
    made.close()


class Interrupted:
    """A lock; Ctrl-C arrives when it is taken for the first time, before or after."""

    def __init__(self, after: bool) -> None:
        self.lock = threading.Lock()
        self.after = after
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        if self.thread == threading.get_ident():
            self.thread = 0
            if not self.after:
                raise KeyboardInterrupt
            with self.lock:
                raise KeyboardInterrupt
        self.lock.acquire()

    def __exit__(self, *of: Any) -> None:
        self.lock.release()


@pytest.mark.parametrize("after", [False, True])
def test_an_interruption_while_a_call_is_left_is_raised_and_nothing_is_watched_any_more(
    watchdog: Watchdog, after: bool
) -> None:
    watchdog._lock = Interrupted(after)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        watchdog.call(lambda a: a, 1)
    end = time.perf_counter() + 2 * PATIENCE * TICK
    while time.perf_counter() < end:  # an Overlong would be raised here
        pass
    assert watchdog.call(lambda a: a + 1, 1) == 2


def test_an_interruption_goes_before_the_end_of_an_overlong_function(watchdog: Watchdog) -> None:
    def slow_to_leave(argument: int) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            while True:
                pass

    with pytest.raises(KeyboardInterrupt):
        watchdog.call(slow_to_leave, 0)


def test_an_error_before_the_end_of_an_overlong_function_does_not_count(watchdog: Watchdog) -> None:
    def endless(argument: int) -> None:
        try:
            raise ValueError
        finally:
            while True:
                pass

    with pytest.raises(Overlong):
        watchdog.call(endless, 0)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_time_that_never_comes_is_waited_for() -> None:
    for never in (float("inf"), 1e300):
        made = Watchdog(never)
        assert made.call(lambda a: a + 1, 1) == 2
        time.sleep(0.02)
        assert any(thread.name == "eqsat-watchdog" for thread in threading.enumerate())
        made.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_ends_the_start_of_its_thread_is_raised_alone(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or no more threads: closing then waits for no thread that never ran."""

    def interrupted(_: threading.Thread) -> None:
        raise error("while starting")

    watchdog = Watchdog(time.perf_counter() + 60)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(error, match="while starting"):
        try:
            watchdog.call(abs, 1)
        finally:
            watchdog.close()
