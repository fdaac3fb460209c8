"""Printed kernel modules to machine code, once: Numba compiles, the object file is kept, llvmlite loads it.

Calling convention of a compiled phase, at machine level: ``void phase(intp args, intp tid, intp nt)``.

* ``args``: address of a table of 64-bit addresses: the group's operands in order, then the scratch shared by
  all threads, the base of the per-thread scratch, and the address of the status word.
* ``tid``, ``nt``: this thread's number and the number of threads. Every thread runs every phase.

A printed module is ordinary Python that Numba compiles in nopython mode. It may set ``FASTMATH = True`` (or a
set of LLVM fast-math flag names) for all of its phases; the default is strict IEEE arithmetic. It may not
allocate, raise, or use arrays: the object file must be self-contained (see ``objects``).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import sys
import threading
import types as python_types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from eqsat.aside import quieten
from eqsat.cache import kernel_store
from eqsat.compilers import Compilers, Task
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.forks import IMPORTING, hold_over_fork
from eqsat.installed import version
from eqsat_backends.numba_cpu.compiling.objects import (
    Code,
    CodeObjectError,
    emit,
    host,
    load_object,
    optimize,
    package_fingerprint,
    target_machine,
)
from eqsat_backends.numba_cpu.compiling.worker import BOOT

EACH = 4
"""Kernels for which another process is worth starting: it works as long as for three or four to be ready (0.8 s), which
it mostly does beside the search."""
OPERATORS = 12
"""Operators of a program for one kernel, roughly (MiniLM 38, an LSTM 12), to start processes before it is known."""


class KernelCompileError(RuntimeError):
    """Numba refused a printed kernel: a fault of the emitter. The message names the module's file."""


class KernelMissingError(LookupError):
    """Machine code that a remembered plan names is not in the cache any more."""


Printed = tuple[str, tuple[str, ...]]
"""A printed module: its source and the names of its phases."""

_lock = hold_over_fork(threading.RLock())
_loaded: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
_recent: deque[Code] = deque(maxlen=256)  # for the next try of a compilation that ran out of time, without a cache, too


@contextmanager
def _turn(deadline: Deadline) -> Iterator[None]:
    """Hold the lock, for which another kernel's compilation may let us wait."""
    if not _lock.acquire(timeout=min(deadline.left, threading.TIMEOUT_MAX)):
        raise OutOfTime("waiting for another compilation")
    try:
        yield
    finally:
        _lock.release()


@functools.cache
def _hold_numba() -> None:
    """A fork waits for others that compile with Numba, too: their lock is one for the whole process."""
    from numba.core.compiler_lock import global_compiler_lock

    lock = getattr(global_compiler_lock, "_lock", None)
    if lock is not None:
        hold_over_fork(lock)


def prepare() -> None:
    """Import what compiling needs, and what Numba would import at its first compilation: more than 400 modules."""
    quieten("numba")
    with IMPORTING:
        from eqsat_backends.numba_cpu.compiling import frontend
        from eqsat_backends.numba_cpu.vectors import simd  # noqa: F401

        frontend.load_registries()
        _hold_numba()


def forget() -> None:
    """Let go of machine code that no program uses; it is loaded or compiled again when it is asked for."""
    _recent.clear()


def source_key(source: str, phases: tuple[str, ...]) -> str:
    """Name of the code object of ``source``: a hash of all that its machine code depends on."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (host().key, version("numba"), package_fingerprint(), *phases, source):
        digest.update(hashlib.blake2b(part.encode()).digest())
    return digest.hexdigest()


def compile_module(source: str, phases: tuple[str, ...]) -> Code:
    """Machine code of a printed module, from this process, the cache, or Numba: phase name -> address.

    Addresses stay valid as long as the result lives.

    Raises:
        KernelCompileError: Numba refuses the source, or the result is not self-contained.
    """
    (found,) = compile_modules([(source, phases)]).values()
    if isinstance(found, KernelCompileError):
        raise found
    return found


def compile_modules(
    modules: Iterable[Printed], deadline: Deadline = NEVER, compilers: Compilers | None = None
) -> dict[Printed, Code | KernelCompileError]:
    """As ``compile_module``, for several at once, on all cores: phase name -> address, or why there is none.

    ``compilers``: processes started before, to be used.

    Raises:
        OutOfTime: the deadline has passed. What was compiled until then is loaded, and in the cache.
    """
    found: dict[Printed, Code | KernelCompileError] = {}
    missing: dict[str, Task] = {}
    for source, phases in dict.fromkeys(modules):
        deadline.check("loading kernels")
        key = source_key(source, phases)
        addresses = _known(key, phases, deadline)
        if addresses is None:
            missing[key] = Task(key, source, phases)
        else:
            found[source, phases] = addresses
    if missing:
        with nullcontext(compilers) if compilers is not None else helpers(0) as at_work:
            for outcome in at_work.run(list(missing.values()), deadline):
                task = outcome.task
                found[task.source, task.phases] = (
                    _keep(task, outcome.data, deadline) if outcome.error is None else KernelCompileError(outcome.error)
                )
    return found


def helpers(kernels: int) -> Compilers:
    """Processes that compile, for so many kernels; started when this is entered."""
    return Compilers(compile_alone, (KernelCompileError,), prepare, BOOT, kernels, EACH)


def compile_alone(source: str, phases: tuple[str, ...]) -> bytes:
    """``compile_object``: whatever goes wrong in Numba or LLVM is a ``KernelCompileError`` of this module.

    What LLVM made is freed before the lock is, so that no fork comes between.
    """
    with _lock:
        try:
            return compile_object(source, phases)
        except Exception as error:
            refused = str(error) if isinstance(error, KernelCompileError) else repr(error)
        raise KernelCompileError(refused)


def _known(key: str, phases: tuple[str, ...], deadline: Deadline) -> Code | None:
    """The code of a module that is loaded, or in the cache."""
    try:
        return load_module(key, phases, deadline)
    except (KernelMissingError, CodeObjectError):
        return None  # absent, foreign or damaged: made anew, and the entry replaced


def _keep(task: Task, data: bytes, deadline: Deadline) -> Code | KernelCompileError:
    """Load a new code object, and put it in the cache with its source."""
    with _turn(deadline):
        found = _loaded.get(task.key)
        if found is None:
            try:
                found = _checked(task.key, task.phases, data)
            except CodeObjectError as error:
                return KernelCompileError(f"what was compiled cannot be loaded: {error}")
        store = kernel_store()
        store.put_source(task.key, task.source)
        store.put(task.key, data, _title(task.source))
        return found


def _checked(key: str, phases: tuple[str, ...], data: bytes) -> Code:
    """Load a code object, which must have these phases."""
    found = load_object(data)
    if set(found) != set(phases):
        raise CodeObjectError(f"the kernel {key} has phases {', '.join(found)}, not {', '.join(phases)}")
    _loaded[key] = found
    _recent.append(found)
    return found


def load_module(key: str, phases: tuple[str, ...], deadline: Deadline = NEVER) -> Code:
    """Machine code that :func:`compile_module` made here or in an earlier process, by key. Nothing is compiled, and no
    source is looked at: what comes from the cache is never run as Python.

    Raises:
        KernelMissingError: it is not there any more.
        CodeObjectError: what is there is not its code.
        OutOfTime: another kernel was being compiled until the deadline.
    """
    with _turn(deadline):
        found = _loaded.get(key)
        if found is not None:
            return found
        data = kernel_store().get(key)
        if data is None:
            raise KernelMissingError(f"the cache has no kernel {key}")
        return _checked(key, phases, data)


def kept_source(key: str, phases: tuple[str, ...]) -> str:
    """The printed module of a kernel from the cache, for reading; a comment where it is not there any more."""
    text = kernel_store().source(key)
    if text is not None and source_key(text, phases) == key:
        return text
    return f"# the printed module of kernel {key} is not in the cache any more\n"


def _title(source: str) -> str:
    """What a printed module computes: the first line of its docstring."""
    first = source.partition("\n")[0]
    return first.strip('"') if first.startswith('"""') else ""


def compile_object(source: str, phases: tuple[str, ...]) -> bytes:
    """Compile the phase functions of a printed module into one code object (see ``objects``).

    The module is run from a file named by its content in the cache directory, so that tracebacks and
    ``inspect`` show its text; without a writable cache the text is kept in memory.

    Raises:
        KernelCompileError: Numba refuses the source, or the result is not self-contained.
    """
    prepare()
    with _lock:
        machine = target_machine()
        module, entries, filename = _optimized_module(source, phases, machine)
        try:
            return emit(module, machine, entries)
        except CodeObjectError as error:
            raise KernelCompileError(f"printed module {filename}: {error}") from error


def assembly(source: str, phases: tuple[str, ...]) -> str:
    """The machine code of a printed module as assembly text, for reading.

    Raises:
        KernelCompileError: Numba refuses the source.
    """
    prepare()
    with _lock:
        machine = target_machine()
        module, _, _ = _optimized_module(source, phases, machine)
        return str(machine.emit_assembly(module))


def _optimized_module(source: str, phases: tuple[str, ...], machine: Any) -> tuple[Any, dict[str, str], str]:
    """The LLVM module, phase -> symbol, and the name of the printed module's file."""
    key = source_key(source, phases)
    path = kernel_store().put_source(key, source)
    printed = _run_module(source, f"<eqsat kernel {key}>" if path is None else str(path), key)
    filename = str(printed.__file__)
    functions = {}
    for phase in phases:
        function = getattr(printed, phase, None)
        if not callable(function):
            raise KernelCompileError(f"printed module {filename} defines no phase function {phase!r}")
        functions[phase] = getattr(function, "py_func", function)
    module, entries = _lower(functions, key, getattr(printed, "FASTMATH", False), filename)
    optimize(module, machine)
    return module, entries, filename


def _run_module(source: str, filename: str, key: str) -> python_types.ModuleType:
    module = python_types.ModuleType(f"eqsat_kernel_{key}")
    module.__file__ = filename
    if not Path(filename).exists():
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # Numba looks a function's module up by name while it types globals
    sys.modules[module.__name__] = module
    try:
        tree = ast.parse(source, filename)
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise | ast.Assert):
                # nobody looks at the outcome of a phase: the exception would be lost without a trace
                raise KernelCompileError(f"printed module {filename}, line {node.lineno}: a kernel cannot raise")
        exec(compile(tree, filename, "exec"), module.__dict__)
    except KernelCompileError:
        raise
    except Exception as error:
        raise KernelCompileError(f"printed module {filename} does not run: {error!r}") from error
    finally:
        del sys.modules[module.__name__]
    return module


def _lower(
    functions: dict[str, Callable[..., Any]], key: str, fastmath: Any, filename: str
) -> tuple[Any, dict[str, str]]:
    import llvmlite.binding as llvm
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.errors import NumbaError

    from eqsat_backends.numba_cpu.compiling.frontend import lower_functions

    try:
        with global_compiler_lock:
            module, entries = lower_functions(functions, f"eqsat_{key}", fastmath)
    except (NumbaError, RuntimeError, TypeError) as error:
        raise KernelCompileError(f"Numba refuses the printed module {filename}:\n{error}") from error
    public = set(entries.values())
    # Local names count what Numba has compiled in this process: machine code shall not depend on who makes it.
    for number, function in enumerate(module.functions):
        if not function.is_declaration and function.name not in public:
            function.linkage = llvm.Linkage.internal
            function.name = f"function_{number}"
    for number, variable in enumerate(module.global_variables):
        if not variable.is_declaration:
            variable.linkage = llvm.Linkage.internal
            variable.name = f"constant_{number}"
    return module, entries
