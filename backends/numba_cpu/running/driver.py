"""The compiled driver that runs steps over a table: no Python between kernels, nothing allocated per call.

A :class:`Program` is made of a table (see :mod:`eqsat.plan.table`). It is called with a tuple of NumPy arrays,
checked natively against the shapes and dtypes it was built for. Every call in flight has a
context of its own (table, arena, claims), so that a program may be called from any number of threads.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import itertools
import logging
import struct
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.buffers import KEPT_BLOCKS, KEPT_BYTES, aligned_bytes
from eqsat.forks import hold_over_fork
from eqsat.plan.table import Again, Arena, Argument, ArraySpec, Constant, Enter, Slot, Status, Step
from eqsat.scoped import carried
from eqsat_backends.numba_cpu.compiling.objects import host, load_ir
from eqsat_backends.numba_cpu.running import driver_code as code
from eqsat_backends.numba_cpu.running import driver_team as team
from eqsat_backends.numba_cpu.running.threads import Runtime, runtime

log = logging.getLogger("eqsat")

MISMATCH = code.MISMATCH
_NPY_C_CONTIGUOUS, _NPY_ALIGNED, _NPY_WRITEABLE = 0x1, 0x100, 0x400


class _Context:
    """What one call in flight owns: table of addresses, arena, claimed shares and status word."""

    __slots__ = ("address", "arena", "table", "words")

    def __init__(self, program: Program) -> None:
        self.arena = aligned_bytes(max(program.arena_bytes, 64), purpose="the intermediates of a call")
        self.words = aligned_bytes((team.CLAIMS + team.LINE * program.threads) * 8).view(np.int64)
        self.words[:] = 0
        self.address = int(self.words.ctypes.data)
        self.table = np.zeros(len(program.slots) + 1, np.int64)  # the last is for unused arguments
        arena = int(self.arena.ctypes.data)
        for i, slot in enumerate(program.slots):
            match slot:
                case Constant(array):
                    self.table[i] = array.ctypes.data
                case Arena(offset):
                    self.table[i] = arena + offset
                case Status():
                    self.table[i] = self.address + 8 * team.STATUS
        self.words[team.STEPS] = program._starts.ctypes.data
        self.words[team.TABLE] = self.table.ctypes.data
        self.words[team.RUNTIME] = program._runtime.address
        self.words[team.ARGUMENTS] = program._arguments.ctypes.data
        self.words[team.THREADS] = program.threads
        self.words[team.CURRENT + 1] = program._steps.ctypes.data


class Program:
    """Compiled steps over a slot table. Immutable, and safe to call from several threads at once.

    Args:
        steps: kernels in order.
        slots: what each table entry is.
        arguments: the arrays of a call, in order: inputs, then outputs.
        arena_bytes: size of the arena that every :class:`Arena` slot lies in.
        threads: the largest number of threads a call may ask for (per-thread scratch is sized for it).
        keep: what has to live as long as the program, such as its machine code.
    """

    def __init__(
        self,
        steps: Sequence[Step | Enter | Again],
        slots: Sequence[Slot],
        arguments: Sequence[ArraySpec],
        arena_bytes: int = 0,
        threads: int = 1,
        *,
        pool: Runtime | None = None,
        keep: Sequence[object] = (),
    ) -> None:
        self.slots = tuple(slots)
        self.arguments = tuple(arguments)
        self.arena_bytes = arena_bytes
        self.threads = threads
        self._check(steps)
        self._table = tuple(steps) if any(isinstance(step, Again) and step.trial for step in steps) else ()
        self._steps, self._starts = _step_words(steps)
        self._arguments = _argument_words(self.slots, self.arguments)
        self._runtime = pool or (runtime() if threads > 1 else _single_threaded())
        self._pool: list[_Context] = []
        self._keep = tuple(keep)
        _load()

    def _check(self, steps: Sequence[Step | Enter | Again]) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        for number, step in enumerate(steps):
            if not isinstance(step, Step):
                continue
            if not step.function:
                raise ValueError(f"step {number} has no function")
            if any(not 0 <= slot < len(self.slots) for slot in step.slots):
                raise ValueError(f"step {number} uses slots {step.slots}, the table has {len(self.slots)}")
        for i, slot in enumerate(self.slots):
            match slot:
                case Argument(index) if not 0 <= index < len(self.arguments):
                    raise ValueError(f"slot {i} is argument {index}; a call has {len(self.arguments)}")
                case Arena(offset) if not 0 <= offset <= self.arena_bytes:
                    raise ValueError(f"slot {i} is at byte {offset} of an arena of {self.arena_bytes}")
                case Constant(array) if not array.flags.c_contiguous:
                    raise ValueError(f"slot {i} is a constant that is not C-contiguous")
        seen = [slot.index for slot in self.slots if isinstance(slot, Argument)]
        if len(seen) != len(set(seen)):
            raise ValueError("an argument has two slots; give it one")

    def __call__(self, arrays: tuple[Any, ...], threads: int = 1) -> int:
        """Run on ``arrays``. The status word (0: fine), or ``MISMATCH`` if they do not fit and nothing was run.

        ``arrays`` is a tuple with one entry per argument. It releases the GIL. Nobody may write to the
        inputs, or read the outputs, during the call.
        """
        try:
            context = self._pool.pop()
        except IndexError:
            if self.arena_bytes >= _LARGE_ARENA:
                _make_room(self)
            context = _Context(self)
        status: int = _call(context.address, arrays, threads)
        self._pool.append(context)
        return status

    def tried(self) -> Program:
        """The same with loops of :attr:`Again.trial` trips."""
        if not self._table:
            return self
        self.release()
        found = copy.copy(self)
        steps = [replace(s, trips=s.trial) if isinstance(s, Again) and s.trial else s for s in self._table]
        found._steps, found._starts = _step_words(steps)
        found._pool = []
        return found

    def release(self) -> None:
        """Free the arenas of idle contexts; the next call makes a new one."""
        self._pool.clear()


_LARGE_ARENA = 1 << 20
_large: OrderedDict[weakref.ref[Program], None] = OrderedDict()  # programs that had an arena made, the latest last


def _make_room(program: Program) -> None:
    """Free idle arenas of other programs: at most ``KEPT_BYTES`` stay, or the last ``KEPT_BLOCKS`` if larger."""
    _large[weakref.ref(program)] = None
    _large.move_to_end(weakref.ref(program))
    count, total = 1, program.arena_bytes
    for reference in reversed(list(_large)):
        other = reference()
        if other is None:
            _large.pop(reference, None)
            continue
        size = other.arena_bytes
        while other._pool and count + len(other._pool) > KEPT_BLOCKS and total + size * len(other._pool) > KEPT_BYTES:
            with contextlib.suppress(IndexError):  # another thread took it
                other._pool.pop()
        count, total = count + len(other._pool), total + size * len(other._pool)


def release_arenas() -> None:
    """Free all idle arenas of a megabyte or more."""
    for reference in list(_large):
        program = reference()
        if program is not None:
            program.release()
    _large.clear()


def _step_words(steps: Sequence[Step | Enter | Again]) -> tuple[np.ndarray, np.ndarray]:
    """The steps' words one after the other, behind those of a step of nothing, and where each one begins."""
    words: list[int] = [0, 0]
    starts: list[int] = []
    for step in steps:
        starts.append(8 * len(words))
        match step:
            case Step(function, slots):
                words += [function, len(slots), *slots]
            case Enter(counter, moves):
                words += [0, team.ENTER, counter, len(moves), *itertools.chain(*moves)]
            case Again():
                words += [0, team.AGAIN, step.counter, step.trips, step.first]
                for rows in (step.copies, step.moves, step.carries):
                    words += [len(rows), *itertools.chain(*rows)]
    table = np.array(words, np.int64)
    return table, np.array([*(table.ctypes.data + start for start in starts), 0], np.int64)


def _argument_words(slots: tuple[Slot, ...], arguments: tuple[ArraySpec, ...]) -> np.ndarray:
    slot_of = {slot.index: i for i, slot in enumerate(slots) if isinstance(slot, Argument)}
    spare = len(slots)  # arguments no step uses are checked all the same
    words = [len(arguments)]
    for index, spec in enumerate(arguments):
        required = _NPY_C_CONTIGUOUS | _NPY_ALIGNED | (_NPY_WRITEABLE if spec.writeable else 0)
        words += [slot_of.get(index, spare), spec.alignment - 1, required, _dtype_word(spec.dtype)]
        words += [len(spec.shape), *spec.shape]
    return np.array(words, np.int64)


def _dtype_word(dtype: np.dtype) -> int:
    """What the driver compares: kind, type, byte order and type number, as they lie in the dtype object."""
    return ctypes.c_int64.from_address(id(dtype) + object.__basicsize__ + 8).value & code.DTYPE_MASK


@functools.cache
def _single_threaded() -> Runtime:
    return Runtime(threads=False)


def _layout() -> tuple[int, int]:
    """Offsets in CPython objects that the driver reads, after trying them on an array.

    Raises:
        RuntimeError: this interpreter lays its objects out otherwise.
    """
    header, items = object.__basicsize__, tuple.__basicsize__
    sample = np.zeros((3, 5), np.float32)
    read = ctypes.c_void_p.from_address
    pair = (sample, None)
    found: tuple[int | None, ...] = (
        read(id(pair) + items).value,
        ctypes.c_ssize_t.from_address(id(pair) + header).value,
        read(id(pair) + header - 8).value,
        read(id(sample) + header - 8).value,
        read(id(sample) + header).value,
        ctypes.c_int.from_address(id(sample) + header + 8).value,
        read((read(id(sample) + header + 16).value or 0) + 8).value,
        read(id(sample) + header + 40).value,
        ctypes.c_int.from_address(id(sample) + header + 48).value & 0x501,
    )
    word = struct.pack("=cccxi", b"f", b"f", sample.dtype.byteorder.encode(), sample.dtype.num)
    if _dtype_word(sample.dtype) != int.from_bytes(word, sys.byteorder, signed=True):
        found = ()
    expected = (id(sample), 2, id(tuple), id(np.ndarray), sample.ctypes.data, 2, 5, id(sample.dtype), 0x501)
    if found != expected:
        raise RuntimeError("unknown object layout: this Python or NumPy is not supported by the compiled driver")
    return header, items


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80
_kept: list[Any] = []  # what native code points to, for as long as the process lives
_load_lock = hold_over_fork(threading.Lock())


def _not_loaded(context: int, arrays: tuple[Any, ...], threads: int) -> int:
    raise RuntimeError("the compiled driver is loaded by the first Program")


_call: Callable[[int, tuple[Any, ...], int], int] = _not_loaded


def _load() -> None:
    """Make ``_call`` a built-in function over the compiled driver: a tenth of the cost of a call through ctypes."""
    global _call
    with _load_lock:
        if _call is not _not_loaded:
            return
        addresses = _load_driver()
        words = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in code.API]
        api = np.array([*words, id(np.ndarray), id(tuple)], np.int64)
        definition = _MethodDefinition(b"call", addresses["call"], _METH_FASTCALL, None)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.POINTER(_MethodDefinition), ctypes.py_object, ctypes.c_void_p)
        _kept.extend((api, definition))
        _call = make(definition, api, None)


def load_aside() -> None:
    """Begin to load the driver in a thread: making it is LLVM's work, beside which Python's goes on."""
    if _call is _not_loaded:
        with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter is ending
            threading.Thread(target=carried(_load_early), name="eqsat: driver").start()


def _load_early() -> None:
    try:
        _load()
    except Exception as error:  # the first program meets it, too
        log.info("the driver could not be loaded ahead: %r", error)


def _load_driver() -> dict[str, int]:
    header, items = _layout()
    name = f"driver of compiled programs ({header}, {items})"
    return load_ir(name, lambda: code.driver_ir(host().triple, header, items), {"call": "eqsat_driver_call"})
