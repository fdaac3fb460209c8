"""Processes that call what they are told to, and wait on a pipe meanwhile: whoever is timed has the cores alone.

A worker is started with the variables of its environment set, which libraries read when they are loaded. It finds
the modules that this process finds, and ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

ROOT = Path(__file__).parent.parent
LONGEST_S = 600.0
"""Seconds that an answer may take: compilations included."""

T = TypeVar("T")


class WorkerError(RuntimeError):
    """There is no answer: the function raised an exception of the class named ``kind``, or the process is gone."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(f"{kind}: {message}" if kind else message)
        self.kind = kind


class Worker:
    """A process, started when it is first needed, and again after it died. A context manager: on leaving, it ends.

    ``first`` is what a new process is told to call before anything else; ``started`` its answer.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        first: Callable[..., Any] = os.getpid,
        *args: Any,
        limit_s: float = LONGEST_S,
    ) -> None:
        self.environment = environment
        self.limit_s = limit_s
        self.started: Any = None
        self._first = (first, args)
        self._is_ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the process, without waiting for it."""
        here, there = Pipe()
        path = os.pathsep.join(p for p in sys.path if p)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", str(there.fileno())],
                env={**os.environ, "PYTHONPATH": path, **self.environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the report has standard output to itself
                pass_fds=(there.fileno(),),
            )
        self._connection, self._is_ready = here, False
        self._send(*self._first)

    def ready(self) -> None:
        """Have a process that has done what comes first."""
        if self._connection is None:
            self.start()
        if not self._is_ready:
            self.started = self._receive()
            self._is_ready = True

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """``function(*args)``, of a module, in the process.

        Raises:
            WorkerError: the function raised; or the process died, or took longer than ``limit_s``, and is no more.
        """
        self.ready()
        self._send(function, args)
        answer: T = self._receive()
        return answer

    def _send(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        assert self._connection is not None
        try:
            self._connection.send((function, args))
        except OSError:
            raise WorkerError(self._end()) from None

    def _receive(self) -> Any:
        assert self._connection is not None
        try:
            if not self._connection.poll(self.limit_s):
                self.close()
                raise WorkerError(f"no answer after {self.limit_s:g} s")
            answer, kind, message = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerError(self._end()) from None
        if kind:
            raise WorkerError(message, kind)
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
        self._end()

    def _end(self) -> str:
        """What has become of the process, whose end of the pipe is closed."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return "the process has ended"
        try:
            status = process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if status >= 0:
            return f"the process ended with exit status {status}"
        hint = ", as the system does when memory runs out" if status == -signal.SIGKILL else ""
        return f"the process was ended by {signal.Signals(-status).name}{hint}"


def main(connection: Connection) -> None:
    """In the process: call, answer, wait."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started the process, who ends it
    while True:
        try:
            connection.send(_answer(*connection.recv()))
        except EOFError:
            return


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str, str]:
    """The result; or None, an exception's class, and the first line of its message."""
    try:
        return function(*args), "", ""
    except Exception as error:  # told to whoever asked
        return None, type(error).__name__, str(error).strip().split("\n")[0]


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
