"""Tile operations from outside of this package: checked against their semantics by running them, then offered."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from eqsat.contents import UnknownContent, content_digest
from eqsat.cost.target import TileOpRow
from eqsat.errors import RuleError
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest
from eqsat.verify.tiles import check_form, check_meaning
from eqsat_backends.numba_cpu.tiles.tile_ops import ON_TRIAL, REGISTERED, registered
from eqsat_backends.numba_cpu.vectors.lanes import cpu_features, native_lanes

__all__ = ["digest", "register", "registered", "unregister"]

_contents: dict[str, str] = {}
"""Digest of each registered row, by name."""


def register(row: TileOpRow) -> None:
    """Offer ``row`` to all programs that are compiled from now on.

    ``row.emit(printer, call)`` prints one tile (``ops.TileCall``); it is held to the semantics first, by running it
    alone. Where the processor lacks what the row needs, it is neither run nor offered.

    Raises:
        RuleError: what ``check_form`` and ``check_meaning`` refuse, and an emitter that cannot be told apart from
            others by content.
    """
    check_form(row, [r.name for r in registered()])
    try:
        content = content_digest(row)
    except UnknownContent as error:
        what = f"tile operation {row.name!r}"
        raise RuleError(f"{what}: what its emitter refers to has no content that tells it apart: {error}") from error
    if not row.needs or row.needs in cpu_features():
        assert row.semantics is not None
        ON_TRIAL[row.name] = row
        try:
            check_meaning(row, native_lanes(row.semantics.body.dtype.bits), _prepared)
        finally:
            del ON_TRIAL[row.name]
    REGISTERED[row.name], _contents[row.name] = row, content


def unregister(name: str) -> None:
    """Take a registered tile operation back. ``KeyError`` if there is none of this name."""
    del REGISTERED[name], _contents[name]


def digest() -> str:
    """Content of what is registered: kernels printed with other emitters are others."""
    return content_digest(sorted(_contents.items()))


def _prepared(group: KernelGroup, nest: Nest) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """A group of one kernel, compiled, as a function of its operands that one thread runs."""
    from eqsat.buffers import aligned_empty
    from eqsat_backends.numba_cpu.compiling.jit import compile_module
    from eqsat_backends.numba_cpu.printing import loops

    emitted = loops.emit(group, nest)
    code = compile_module(emitted.source, emitted.phases)

    def run(arrays: Sequence[np.ndarray]) -> np.ndarray:
        out = group.operands[-1]
        scratch = [np.zeros(nbytes, np.uint8) for nbytes in (emitted.shared_bytes, emitted.thread_bytes)]
        given = [*arrays, np.zeros(out.size, out.dtype.numpy), *scratch, np.zeros(1, np.int64)]
        held = [aligned_empty(array.shape, array.dtype) for array in given]
        for mine, array in zip(held, given, strict=True):
            mine[...] = array
        table = np.array([array.ctypes.data for array in held], np.int64)
        for phase in emitted.phases:
            ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)(code[phase])(table.ctypes.data, 0, 1)
        return held[len(arrays)]

    return run
