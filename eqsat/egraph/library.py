"""egglog's native library, such that this process can use it.

egglog starts threads when it is imported. A forked child has none of them, and a call there waits for ever. So the
child loads a copy of the library, whose state and threads are its own: on Linux 11 MB to copy, 7 ms.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any, BinaryIO

from eqsat.aside import aside, quieten
from eqsat.deadline import NEVER, Deadline
from eqsat.errors import ForkWarning
from eqsat.forks import IMPORTING

_NAME = "egglog.bindings"
_bindings: Any = None
_first: Any = None
"""What this process, or one that it was forked from, has loaded."""
_refused = ""
_kept = threading.local()
_of_parents: list[object] = []
"""What was kept before a fork: the child's copy of the library knows nothing of it, and nothing may call the other's,
not even to free it."""


def kept() -> dict[str, Any]:
    """E-graphs that this thread keeps for its next search: to declare rules takes longer than to saturate what is
    small. They may not leave their thread. Who uses one takes it out, so that none is left where anything goes wrong.
    """
    return vars(_kept)


def _after_fork() -> None:
    global _bindings, _refused, _kept
    _bindings, _refused = None, ""
    _of_parents.append(_kept)
    _kept = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def bindings() -> Any:
    """The module ``egglog.bindings``, or in a forked child a copy of it.

    Raises:
        ImportError: egglog is not installed, or a forked child cannot load it a second time.
    """
    if _bindings is None:
        load_library()
    return _bindings


def load_library(deadline: Deadline = NEVER) -> None:
    """Have ``bindings`` ready; ``OutOfTime`` past ``deadline``, and the library goes on loading."""
    if _bindings is None:
        aside("importing egglog", deadline, _load_once)


def _load_once() -> None:
    global _bindings
    with IMPORTING:
        _bindings = _bindings or _load()


def usable(deadline: Deadline = NEVER) -> bool:
    """Whether egglog can run here. A :class:`ForkWarning`, once per process, where it cannot.

    Raises:
        OutOfTime: past ``deadline``; the library goes on loading.
    """
    global _refused
    if _refused:
        return False
    try:
        load_library(deadline)
    except ImportError as error:
        if _loaded() is None:
            raise
        _refused = str(error)
        warnings.warn(
            "this process was forked after egglog was loaded, and could not load it anew "
            f"({error}): functions are compiled without rewrite rules and schedules here, and run slower. "
            "Compile them before the fork, or start processes by 'spawn' or 'forkserver'",
            ForkWarning,
            stacklevel=2,
        )
    return not _refused


_TALKATIVE = (
    "egglog",
    "egglog_bridge",
    "egglog_core_relations",
    "egglog_concurrency",
    "egglog_experimental",
    "graphviz",
)
"""Loggers of egglog's crates, which tell of every step, and of what its package imports."""


def _loaded() -> Any:
    return _first or sys.modules.get(_NAME)


def _load() -> Any:
    global _first
    # By then whoever imported it may have been a process that this one was forked from.
    if _loaded() is not None:
        return _copy(_loaded())
    quieten(*_TALKATIVE)
    _first = _alone()
    return _first


def _alone() -> Any:
    """The native library without the package around it, whose imports (Black among them) take as long as a search."""
    package = find_spec("egglog")
    spec = package and PathFinder.find_spec(_NAME, package.submodule_search_locations)
    if not spec or not isinstance(spec.loader, ExtensionFileLoader):
        from egglog import bindings

        return bindings
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(_NAME, None)  # the package, when somebody imports it, finds it by itself: it is loaded once
    return module


def _copy(original: Any) -> Any:
    """An extension module loaded from a copy of its file: another library to the dynamic loader."""
    problems = []
    origin, known = original.__file__ or "", sys.modules.get(_NAME)
    for make in (_in_memory, _in_a_folder):
        try:
            with open(origin, "rb") as file, make(file.read(_loaded_bytes(file))) as path:
                spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, path))
                if spec is None or spec.loader is None:
                    raise ImportError(f"{path} is no extension module")
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
                if known is None:  # the interpreter has put the copy there
                    sys.modules.pop(_NAME, None)
                else:
                    sys.modules[_NAME] = known
                return module
        except (OSError, ImportError) as error:
            problems.append(str(error))
    raise ImportError("; ".join(problems))


def _loaded_bytes(file: BinaryIO) -> int:
    """How much of a shared library is ever loaded: in ELF files symbols for debuggers follow, of 20 times the size."""
    head = file.read(64)
    end = -1
    if head[:6] == b"\x7fELF\x02\x01":
        (at,) = struct.unpack_from("<Q", head, 0x20)
        size, count = struct.unpack_from("<HH", head, 0x36)
        file.seek(at)
        table = file.read(size * count)
        for n in range(count):  # Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz
            _, _, offset, _, _, nbytes = struct.unpack_from("<IIQQQQ", table, n * size)
            end = max(end, offset + nbytes)
    file.seek(0)
    return end


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    if not hasattr(os, "memfd_create"):
        raise OSError("no files in memory")
    descriptor = os.memfd_create("egglog")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        # The dynamic loader knows libraries by path: no process has had this one before.
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_a_folder(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="eqsat-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "egglog" + os.path.splitext(_NAME)[1])
        with open(path, "wb") as file:
            file.write(data)
        yield path
