"""A backend's kernels compiled on all cores: by processes of our own beside this one, and a thread of this one.

The processes are started as programs (no fork, and nobody's ``__main__`` is run again), work for one compilation, and
end with it. Nothing rests on them: what a process does not answer is compiled here. Here that is done in a thread,
so that Ctrl-C, and a deadline, need not wait for a compiler, and break none.

A message between processes is eight bytes, the lengths of a JSON header and of a body, then these two. Requests have
the header ``{"key", "phases"}`` and the source as body; answers ``{"key", "error"}``, where an error is a text or null,
and the code object as body.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from eqsat.cache import bypassed
from eqsat.deadline import Deadline, OutOfTime, Pace
from eqsat.progress import tell
from eqsat.scoped import carried

log = logging.getLogger("eqsat")

ENVIRONMENT_VARIABLE = "EQSAT_JOBS"
MOST = 16
"""Processes, this one included: each takes about 130 MB."""

LENGTHS = struct.Struct("<II")

READY = "ready"
"""The key of a message that no request asked for: the imports are done, which takes as long as a few kernels."""

PATIENCE_S = 2.0
"""Between looks at whether the parent is there: a copy of it made by fork may hold the other end of the pipe."""

_FAULTS = ("SIGSEGV", "SIGABRT", "SIGILL", "SIGBUS", "SIGFPE", "SIGTRAP")
_CRASHES = {-getattr(signal, name) for name in _FAULTS if hasattr(signal, name)}


@dataclass(frozen=True)
class Task:
    """A printed module to compile."""

    key: str
    source: str
    phases: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """A code object, or why there is none: the compiler's ``error``."""

    task: Task
    data: bytes
    error: str | None = None


def jobs() -> int:
    """Processes that may compile at once: the environment variable ``EQSAT_JOBS``, else the cores this one may use."""
    given = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if given.isdigit() and int(given) > 0:
        return min(int(given), MOST)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


class Compilers:
    """Processes that compile, and a thread of this one. A context manager: on leaving, they are ended.

    ``compile`` is what compiles here: a task's code object, or an exception of a class in ``refusals``; ``prepare``
    is called before the first one, for imports: processes that are ready take tasks meanwhile. ``boot``: the
    program of a process, which ends in :func:`serve`; its arguments are the number of this one and ``sys.path``.
    ``kernels``: how many are expected; processes are started for them on entering, one for ``each`` so many.
    """

    def __init__(
        self,
        compile: Callable[[str, tuple[str, ...]], bytes],
        refusals: tuple[type[Exception], ...],
        prepare: Callable[[], None],
        boot: str,
        kernels: int = 0,
        each: int = 6,
    ) -> None:
        self._compile = compile
        self._refusals = refusals
        self._prepare = prepare
        self._boot, self._kernels, self._each = boot, kernels, each
        self._waiting: deque[Task] = deque()
        self._news = threading.Condition()
        self._outcomes: deque[Outcome | BaseException] = deque()
        self._processes: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._here = False
        self._closed = False

    def __enter__(self) -> Compilers:
        try:
            self.start(self._kernels)
        except BaseException:  # Ctrl-C
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        with self._news:
            self._closed = True
            self._waiting.clear()
            self._news.notify_all()
        for process, _ in self._processes:
            process.kill()
        for process, thread in self._processes:
            process.wait()
            if thread.is_alive():  # it may not have been to be had
                thread.join(1.0)  # it sees the end of the pipe, and closes it

    def start(self, kernels: int) -> None:
        """Have as many processes as so many kernels are worth. Those that cannot be started are done without."""
        wanted = min(jobs() - 1, kernels // self._each)
        if not sys.executable or getattr(sys, "frozen", False):
            return  # an application that embeds Python: its executable is no interpreter
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        while len(self._processes) < wanted:
            try:
                process = subprocess.Popen(
                    [sys.executable, *flags, "-P", "-c", self._boot, str(os.getpid()), *map(str, sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                thread = threading.Thread(target=self._serve, args=(process,), name="eqsat: worker", daemon=True)
                self._processes.append((process, thread))
                thread.start()
            except (OSError, ValueError, RuntimeError) as error:
                log.info("no process to compile kernels: %s", error)
                return

    def run(self, tasks: Sequence[Task], deadline: Deadline) -> Iterator[Outcome]:
        """The outcomes as they come; each task has one.

        Raises:
            OutOfTime: the deadline has passed, or would be missed by far.
        """
        pace = Pace("compiling kernels", len(tasks), deadline)
        with self._news:
            self._waiting.extend(tasks)
            self._news.notify_all()
        self.start(len(tasks))
        for number in range(len(tasks)):
            tell("compile: kernel", number, len(tasks))
            outcome = self._next(deadline)
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
            pace.step()

    def _next(self, deadline: Deadline) -> Outcome | BaseException:
        while True:
            self._compile_here()  # also what a process has left behind
            with self._news:
                while not self._outcomes and (self._here or not self._waiting):
                    if not self._news.wait(min(deadline.left, threading.TIMEOUT_MAX)):
                        raise OutOfTime("compiling kernels")
                if self._outcomes:
                    return self._outcomes.popleft()

    def _compile_here(self) -> None:
        """A thread for the tasks that wait, if there is none."""
        with self._news:
            if self._here or not self._waiting:
                return
            self._here = True
        thread = threading.Thread(target=carried(self._compile_waiting), name="eqsat: compile")
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._compile_waiting()

    def _compile_waiting(self) -> None:
        try:
            self._prepare()
        except BaseException as error:  # raised again where it is waited for
            self._here = False
            self._tell(error)
            return
        while True:
            with self._news:
                if not self._waiting:
                    self._here = False
                    return
                task = self._waiting.popleft()
            outcome: Outcome | BaseException
            try:
                outcome = Outcome(task, self._compile(task.source, task.phases))
            except self._refusals as error:
                outcome = Outcome(task, b"", str(error))
            except BaseException as error:  # raised again where it is waited for
                outcome = error
            self._tell(outcome)

    def _tell(self, outcome: Outcome | BaseException) -> None:
        with self._news:
            self._outcomes.append(outcome)
            self._news.notify_all()

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        """Hand tasks to a process, one at a time, until it or the work ends."""
        requests, answers = process.stdin, process.stdout
        assert requests is not None and answers is not None
        with contextlib.closing(answers):
            ready = receive(answers)  # a task that is handed over sooner would wait where this process could do it
            while ready is not None:
                with self._news:
                    while not self._waiting and not self._closed:
                        self._news.wait()
                    if self._closed:
                        break
                    task = self._waiting.popleft()
                try:
                    send(requests, {"key": task.key, "phases": list(task.phases)}, task.source.encode())
                    answer = receive(answers)
                except (OSError, ValueError):
                    answer = None
                if answer is None or answer[0].get("key") != task.key:
                    self._lost(task, process)
                    break
                self._tell(Outcome(task, answer[1], answer[0]["error"]))
            with contextlib.suppress(OSError):  # a pipe that nobody reads
                requests.close()

    def _lost(self, task: Task, process: subprocess.Popen[bytes]) -> None:
        """What becomes of the task of a process that has ended: a crash of the compiler is not for this process."""
        if self._closed:
            return
        process.kill()
        status = process.wait()
        log.info("a process that compiled kernels has ended with status %s", status)
        if status in _CRASHES:
            self._tell(Outcome(task, b"", f"the compiler crashed ({signal.Signals(-status).name})"))
            return
        with self._news:
            self._waiting.appendleft(task)
            self._news.notify_all()


def send(stream: IO[bytes], header: dict[str, Any], body: bytes) -> None:
    """Write one message."""
    head = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(head), len(body)) + head + body)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read one message; None at the end of the stream, also where that is inside a message."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(lengths)
    data = stream.read(head + body)
    return (json.loads(data[:head]), data[head:]) if len(data) == head + body else None


Answer = Callable[[str, str, tuple[str, ...]], bytes]


def serve(parent: int, prepare: Callable[[], None], answer: Answer, refusals: tuple[type[Exception], ...]) -> None:
    """Compile for the process ``parent``: requests on standard input, code objects on standard output.

    Until the end of the input, or until the parent is gone. ``prepare`` imports what compiling needs. ``answer`` makes
    a code object of a key, a source and its phases, or raises an exception of a class in ``refusals``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # whatever a library prints is no message
        for descriptor in (0, 1):
            os.dup2(nothing.fileno(), descriptor)
    with bypassed():  # what is kept, the parent keeps
        prepare()
        send(answers, {"key": READY}, b"")
        while _requested(requests, parent):
            request = receive(requests)
            if request is None:
                return
            header, source = request
            error, made = None, b""
            try:
                made = answer(header["key"], source.decode(), tuple(header["phases"]))
            except refusals as refused:
                error = str(refused)
            try:
                send(answers, {"key": header["key"], "error": error}, made)
            except BrokenPipeError:
                os._exit(0)


def _requested(stream: IO[bytes], parent: int) -> bool:
    """Wait for a request: only one is on its way at a time, so that none is in a buffer. False: the parent is gone."""
    if os.name != "posix":
        return True
    import select

    while not select.select([stream], [], [], PATIENCE_S)[0]:
        if os.getppid() != parent:
            return False
    return True
