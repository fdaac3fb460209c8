"""A progress line on a terminal for compilations that take longer than a second."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

from eqsat.forks import IMPORTING

log = logging.getLogger("eqsat")
PATIENCE = 1.0


class Progress:
    """Called with what is going on. Shows nothing for the first second, nor where stderr is no terminal."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.status: Any = None

    def __call__(self, text: str) -> None:
        log.debug("%s", text)
        if self.status is not None:
            self.status.update(f"eqsat: {text}")
        elif time.perf_counter() - self.start > PATIENCE and sys.stderr is not None and sys.stderr.isatty():
            with IMPORTING:
                from rich.console import Console
            self.status = Console(stderr=True).status(f"eqsat: {text}")
            self.status.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()
