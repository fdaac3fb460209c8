"""What a turn of a ``for`` loop begins with: everything that its code can reach, arrays by what is known of them.

Two turns that begin with equal states do the same, up to the values of traced arrays.
"""

from __future__ import annotations

import builtins
import math
from types import FrameType, FunctionType
from typing import Any

import numpy as np

from eqsat.frontends.builtin import ORIGINALS
from eqsat.frontends.creation import OF_ORIGINAL
from eqsat.frontends.loop_code import LoopCode, function_code
from eqsat.frontends.memory import Memory
from eqsat.frontends.registry import FUNCTIONS
from eqsat.frontends.tracer import TracedArray, TracedNumber
from eqsat.frontends.tracing import Trace

MOST_PARTS = 4096
"""Values in a state at most."""
COMPARED_BYTES = 4096
"""Known arrays are compared by their elements up to so many bytes, larger ones by identity."""

_PURE = frozenset(
    id(function)
    for function in (
        abs, all, any, bool, complex, dict, divmod, enumerate, float, int, len, list, max, min, pow, range, reversed,
        round, slice, sum, tuple, zip, math, np, np.linalg, np.fft,
    )
)  # fmt: skip
"""Built-in functions and modules whose results depend on their arguments alone."""


class Unseen(Exception):
    """Something may change that is not seen, or may be looked at."""


class State:
    """The values of names, as ``token``; arrays, memories and containers are numbered in the order of being met.

    ``objects``: all of these; ``memories``: those of arrays, in that order. ``versions``: of these memories.
    """

    def __init__(self, frame: FrameType, code: LoopCode, trace: Trace) -> None:
        """Raises ``Unseen``."""
        self.objects: list[Any] = []
        self.memories: list[Memory] = []
        self._numbers: dict[int, int] = {}
        self._scope = type(frame.f_globals)
        self._globals: set[tuple[int, str]] = set()
        self._parts = 0
        values = frame.f_locals
        found = [(name, self._of(values[name])) for name in code.variables if name in values]
        found += [self._global(frame.f_globals, name) for name in code.globals]
        self.token = (trace.disorderly, trace.rows, *found)
        self.versions = [memory.version for memory in self.memories]

    def _global(self, scope: dict[str, Any], name: str) -> tuple[str, Any]:
        key = id(scope), name
        if key in self._globals:
            return name, None
        self._globals.add(key)
        try:
            value = scope[name]
        except KeyError:
            value = vars(builtins).get(name, Unseen)
        return name, self._of(value)

    def _number(self, value: Any) -> tuple[int, bool]:
        """Which of the objects this is, and whether it was met before."""
        before = self._numbers.get(id(value))
        if before is not None:
            return before, True
        self.objects.append(value)
        self._numbers[id(value)] = len(self.objects) - 1
        return len(self.objects) - 1, False

    def _of(self, value: Any) -> Any:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Unseen
        kind = type(value)
        if value is None or value is Ellipsis or kind in (bool, int, str, bytes, range):
            return kind, value
        if kind is float:
            return kind, value.hex()
        if kind is complex:
            return kind, value.real.hex(), value.imag.hex()
        if kind in (TracedArray, TracedNumber):
            return self._array(value)
        if isinstance(value, np.generic) and (value.dtype.kind in "biufc" or value.dtype.name == "bfloat16"):
            return kind, value.tobytes()
        if isinstance(value, np.dtype) and not value.hasobject:
            return np.dtype, value.str, value.name
        if kind is slice:
            return kind, self._of(value.start), self._of(value.stop), self._of(value.step)
        if kind in (tuple, list, dict):
            number, met = self._number(value)
            if met:
                return kind, number
            parts = value.items() if kind is dict else value
            return kind, number, tuple(self._of(part) for part in parts)
        if kind is FunctionType:
            return self._function(value)
        if _is_pure(value):
            return id(value)
        raise Unseen

    def _array(self, value: TracedArray) -> Any:
        number, met = self._number(value)
        if met:
            return "array", number
        memory = value.memory
        if type(memory) is not Memory or memory.doubtful or memory.stale is not None:
            raise Unseen
        place, met = self._number(memory)
        about: Any = None
        if not met:
            self.memories.append(memory)
            content: Any = None
            if memory.known is not None:
                small = memory.known.nbytes <= COMPARED_BYTES
                content = memory.known.tobytes() if small else (id(memory), memory.version)
            uniform = memory.uniform is not None
            about = (memory.shape, memory.protected, memory.orderly, memory.reshaped, memory.level, content, uniform)
        return (
            "array", number, place, about, type(value), value.shape, value.dtype.name, value.map, value.is_readonly,
            value.is_scalar, value.is_element,
        )  # fmt: skip

    def _function(self, fn: FunctionType) -> Any:
        if _is_pure(fn):
            return id(fn)
        number, met = self._number(fn)
        if met:
            return FunctionType, number
        read = function_code(fn.__code__)
        if type(fn.__globals__) is not self._scope or read is None or vars(fn):
            raise Unseen
        cells = []
        for cell in fn.__closure__ or ():
            try:
                cells.append(self._of(cell.cell_contents))
            except ValueError:  # not assigned yet
                cells.append(None)
        named = [(name, self._of(value)) for name, value in (fn.__kwdefaults__ or {}).items()]
        given = [self._of(value) for value in fn.__defaults__ or ()]
        outside = [self._global(fn.__globals__, name) for name in read]
        return FunctionType, number, id(fn.__code__), tuple(cells), tuple(given), tuple(named), tuple(outside)


def _is_pure(value: Any) -> bool:
    if isinstance(value, type):
        return id(value) in _PURE or issubclass(value, (np.generic, Exception))
    if isinstance(value, np.ufunc) or id(value) in _PURE or id(value) in ORIGINALS or id(value) in _creators():
        return True
    try:
        return value in FUNCTIONS
    except TypeError:
        return False


def _creators() -> frozenset[int]:
    return frozenset(id(made) for made in OF_ORIGINAL.values())
