"""A progress line on terminals and in notebooks, for compilations that take longer than a second."""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from eqsat.forks import IMPORTING
from eqsat.scoped import Scoped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

log = logging.getLogger("eqsat")
PATIENCE = 1.0


class Tell(Protocol):
    """What hears of progress: what is being done, and ``done`` of ``total`` where there is a count."""

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None: ...


class Progress:
    """Called with what is going on. Shows nothing for the first second, nor where stderr is no terminal.

    A context manager: within it, :func:`tell` on this thread is told here.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.shown: Bar | None = None
        self._nowhere = False
        self._before: Progress | None = None

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        text += f" {done + 1} of {total}" * (total > 0)
        log.debug("%s", text)
        if self.shown is None and not self._nowhere and time.perf_counter() - self.start > PATIENCE:
            self.shown = _bar()
            self._nowhere = self.shown is None
        if self.shown is not None:
            (task,) = self.shown.tasks
            task.total = total or None  # which ``update`` cannot take away
            self.shown.update(task.id, description=f"eqsat: {text}", completed=done)

    def __enter__(self) -> Progress:
        self._before = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._before)
        if self.shown is not None:
            self.shown.stop()


_current: Scoped[Progress | None] = Scoped(None)


def tell(text: str, done: int = 0, total: int = 0) -> None:
    """Tell the compilation that this thread is at what is going on."""
    progress = _current.get()
    if progress is not None:
        progress(text, done, total)


def _bar() -> Bar | None:
    """A line that is gone when it is stopped; None where nobody would see it."""
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if not notebook and (sys.stderr is None or not sys.stderr.isatty()):
        return None
    with IMPORTING:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        console=_console(),
        transient=True,
    )
    bar.add_task("eqsat", total=None)
    bar.start()
    return bar


def _console() -> Console:
    with IMPORTING:
        from rich.console import Console
    return Console(stderr=True)
