"""A process that compiles printed kernels for another one (see ``eqsat.compilers``)."""

from __future__ import annotations

import gc

from eqsat.compilers import serve

BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from eqsat_backends.numba_cpu.compiling.worker import main; main(int(sys.argv[1]))"
)
"""Its program: editable checkouts are found, and nothing is imported from a folder that the parent does not import
from."""


def main(parent: int) -> None:
    """Serve until there is nobody to serve."""
    gc.disable()  # it lives for one compilation, and keeps most of what it makes
    from eqsat_backends.numba_cpu.compiling.jit import KernelCompileError, compile_alone, prepare, source_key

    def answer(key: str, source: str, phases: tuple[str, ...]) -> bytes:
        if source_key(source, phases) != key:
            raise SystemExit("this process has other code, or another processor, than the one it works for")
        return compile_alone(source, phases)

    serve(parent, prepare, answer, (KernelCompileError,))
