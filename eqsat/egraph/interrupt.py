"""Ctrl-C as a request: the work in hand ends at its next step and gives what it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[None]:
    """While inside, Ctrl-C calls ``ask``; a second one interrupts at once.

    Does nothing outside the main thread, or where somebody else handles the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: object) -> None:
        ask()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
