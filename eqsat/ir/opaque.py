"""Calls of library functions that have no kernel: run by the library itself, between kernels.

What such a function returns was learned by running it once: the structure of its result and the types of the arrays in
it. A call is a node for each of those arrays. It is taken for a pure function of its arguments, so that equal calls are
one.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.ir.complexes import as_complex, as_real
from eqsat.ir.loop import LoopResult
from eqsat.ir.node import Node, Source, topological
from eqsat.ir.table import Op, register
from eqsat.ir.types import TensorType
from eqsat.scoped import Scoped

_Array = (np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an array in a nest of tuples, lists and dicts."""

    number: int


def take_apart(value: Any, is_array: Callable[[Any], bool], arrays: list[Any]) -> Any:
    """The nest with a :class:`Slot` for every array, which are appended in order."""
    if is_array(value):
        arrays.append(value)
        return Slot(len(arrays) - 1)
    kind = type(value)
    if isinstance(value, tuple):
        parts = [take_apart(part, is_array, arrays) for part in value]
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    if kind is list:
        return [take_apart(part, is_array, arrays) for part in value]
    if kind is dict:
        return {key: take_apart(part, is_array, arrays) for key, part in value.items()}
    return value


def put_together(nest: Any, arrays: Sequence[Any]) -> Any:
    """The nest with arrays in its slots."""
    if isinstance(nest, Slot):
        return arrays[nest.number]
    kind = type(nest)
    if isinstance(nest, tuple):
        parts = [put_together(part, arrays) for part in nest]
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    if kind is list:
        return [put_together(part, arrays) for part in nest]
    if kind is dict:
        return {key: put_together(part, arrays) for key, part in nest.items()}
    return nest


def is_result(value: Any) -> bool:
    """Whether a part of a function's result is an array, or a number that stands for one."""
    return isinstance(value, _Array)


class Raised(Exception):
    """An opaque function raised while its calls are noted: its exception is the cause."""


@dataclass(frozen=True, eq=False)
class Call:
    """A function and how it is called: ``arguments`` is (positional, by keyword), with slots for ``operands``.

    ``result`` has slots for arrays of ``types``. ``key`` tells calls apart, in every process if ``lasting``.
    ``seconds``: measured when the function was traced. ``complex``: numbers of operands that are complex arrays to the
    function, as complex results are, and real ones in the program. ``where``: the line that calls it.
    """

    function: Callable[..., Any]
    name: str
    arguments: tuple[Any, Any]
    operands: tuple[TensorType, ...]
    result: Any
    types: tuple[TensorType, ...]
    key: str
    lasting: bool
    seconds: float
    complex: frozenset[int]
    where: Source | None = None

    @cached_property
    def _dtypes(self) -> list[np.dtype]:
        return [of.dtype.numpy for of in self.operands]

    @cached_property
    def _expected(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        return [(of.shape, of.dtype.numpy) for of in self.types]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of the function's result, C-contiguous and its own.

        Raises what the function raises, and ``ResultChangedError`` where it returns something else than it did.
        """
        # On the path of every call: a microsecond shows beside a small step.
        given = shown = [_locked(array, dtype) for array, dtype in zip(arrays, self._dtypes, strict=True)]
        if self.complex:
            shown = [as_complex(np.ascontiguousarray(a)) if n in self.complex else a for n, a in enumerate(given)]
        args, kwargs = self.arguments
        positional = [shown[part.number] if type(part) is Slot else put_together(part, shown) for part in args]
        named = {name: put_together(part, shown) for name, part in kwargs.items()}
        noted = _noted.get() if _noted.values else None
        try:
            found = self.function(*positional, **named)
        except Exception as error:
            if noted is not None:
                raise Raised(self.name) from error
            raise
        if type(found) is np.ndarray and type(self.result) is Slot:
            leaves, result = [found], self.result
        else:
            leaves = []
            result = take_apart(found, is_result, leaves)
        values = [as_real(np.asarray(leaf)) for leaf in leaves]
        types = [(v.shape, v.dtype) for v in values]
        if types != self._expected or result != self.result:
            from eqsat.errors import ResultChangedError

            told = ", ".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in types)
            raise ResultChangedError(
                f"{self.name} returned {told or repr(found)} where it returned {', '.join(map(str, self.types))} when "
                "the function was compiled: shapes, types and structure of its result must depend on those of its "
                "arguments alone. Fix: call it outside the optimized function",
                where=self.where,
            )
        values = [_own(value, given) for value in values]
        if noted is not None:
            noted.append((self, given, values))
        return values


def _locked(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array as something that the function cannot write to."""
    view = np.asarray(array).view() if array.dtype == dtype else np.asarray(array, dtype)
    view.flags.writeable = False
    return view


def _own(value: np.ndarray, given: Sequence[np.ndarray]) -> np.ndarray:
    plain = value if value.flags.c_contiguous else np.asarray(value, order="C")
    if not plain.flags.writeable or any(np.may_share_memory(plain, a) for a in given):
        return plain.copy()
    return plain


Noted = tuple[Call, Sequence[np.ndarray], Sequence[np.ndarray]]
_noted: Scoped[list[Noted] | None] = Scoped(None)


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Note the calls that are made on this thread: each with its operands and results."""
    found: list[Noted] = []
    before = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(before)


@dataclass(frozen=True, eq=False, slots=True)
class Result:
    """Which array of which call."""

    call: Call
    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.number == other.number and self.call.key == other.call.key

    def __hash__(self) -> int:
        return hash((self.call.key, self.number))

    def __repr__(self) -> str:
        return f"{self.call.name}[{self.number}] {self.call.key}"


def call_alone(values: Sequence[Node]) -> Call | None:
    """The call that all these nodes are results of, with inputs as its operands; None if there is none."""
    calls = [node.attrs.call for node in values if isinstance(node.attrs, Result)]
    inputs = [node.inputs for node in values]
    alone = len(calls) == len(values) and all(c.key == calls[0].key for c in calls) and len(set(inputs)) == 1
    return calls[0] if alone and all(operand.op == "input" for operand in inputs[0]) else None


def calls_of(nodes: Sequence[Node]) -> list[Call]:
    """The calls that these nodes need, those in loops too, each once, in order."""
    found: dict[str, Call] = {}
    for node in topological(nodes):
        if isinstance(node.attrs, Result):
            found[node.attrs.call.key] = node.attrs.call
        elif isinstance(node.attrs, LoopResult):
            found.update((call.key, call) for call in calls_of(node.attrs.loop.body.outputs))
    return list(found.values())


def call_key(parts: Sequence[str], operands: Sequence[TensorType], types: Sequence[TensorType]) -> str:
    """A hash of what tells calls apart."""
    text = "\0".join([*parts, *map(str, operands), "→", *map(str, types)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_calls: weakref.WeakValueDictionary[str, Call] = weakref.WeakValueDictionary()


def known_call(call: Call) -> Call:
    """The one call of this key in the process, which remembered plans can name."""
    return _calls.setdefault(call.key, call)


def call_of(key: str) -> Call:
    """The call of a key; ``KeyError`` where the process has traced none: a plan's data makes no code run."""
    return _calls[key]


def _type(types: Sequence[TensorType], attrs: object) -> TensorType:
    assert isinstance(attrs, Result)
    if tuple(types) != attrs.call.operands:
        raise ValueError(f"{attrs.call.name}: operands of types {', '.join(map(str, types))}")
    return attrs.call.types[attrs.number]


def _reference(arrays: Sequence[np.ndarray], attrs: object) -> np.ndarray:
    assert isinstance(attrs, Result)
    return attrs.call.run(arrays)[attrs.number]


register(Op("opaque", "opaque", _type, _reference, cost=0.0, doc="a function run by its own library"))
