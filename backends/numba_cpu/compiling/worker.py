"""A process that compiles printed kernels for another one: requests on standard input, code objects on standard output.

A message is eight bytes, the lengths of a JSON header and of a body, then these two. Requests have the header
``{"key", "phases"}`` and the source as body; answers ``{"key", "error"}``, where an error is a text or null, and
the code object as body. It ends at the end of its input, or when its parent is gone.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from typing import IO, Any

LENGTHS = struct.Struct("<II")

BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from eqsat_backends.numba_cpu.compiling.worker import main; main(int(sys.argv[1]))"
)
"""The program of a worker, whose arguments are its parent's process number and ``sys.path``: editable
checkouts are found, and nothing is imported from a folder that the parent does not import from."""

READY = "ready"
"""The key of a message that no request asked for: the imports are done, which takes as long as a few kernels."""

PATIENCE_S = 2.0
"""Between looks at whether the parent is there: a copy of it made by fork may hold the other end of the pipe."""


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


def main(parent: int) -> None:
    """Serve until there is nobody to serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # whatever a library prints is no message
        for descriptor in (0, 1):
            os.dup2(nothing.fileno(), descriptor)
    from eqsat.cache import bypassed
    from eqsat_backends.numba_cpu.compiling.jit import prepare

    with bypassed():  # what is kept, the parent keeps
        prepare()
        send(answers, {"key": READY}, b"")
        while _waiting(requests, parent):
            request = receive(requests)
            if request is None:
                return
            try:
                send(answers, *_answer(request[0], request[1].decode()))
            except BrokenPipeError:
                os._exit(0)


def _waiting(stream: IO[bytes], parent: int) -> bool:
    """Wait for a request: only one is on its way at a time, so that none is in a buffer. False: the parent is gone."""
    if os.name != "posix":
        return True
    import select

    while not select.select([stream], [], [], PATIENCE_S)[0]:
        if os.getppid() != parent:
            return False
    return True


def _answer(header: dict[str, Any], source: str) -> tuple[dict[str, Any], bytes]:
    from eqsat_backends.numba_cpu.compiling.jit import KernelCompileError, compile_alone, source_key

    key, phases = header["key"], tuple(header["phases"])
    if source_key(source, phases) != key:
        raise SystemExit("this process has other code, or another processor, than the one it works for")
    try:
        return {"key": key, "error": None}, compile_alone(source, phases)
    except KernelCompileError as error:
        return {"key": key, "error": str(error)}, b""
