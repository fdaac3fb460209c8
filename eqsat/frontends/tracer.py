"""Traced arrays: what a user's function sees while it is traced. They behave as NumPy arrays of known shape and type
and unknown values; operators and methods that are functions of NumPy: :mod:`eqsat.frontends.operators`.

A traced array is a view of :class:`~eqsat.frontends.memory.Memory`, most often of all of it. Writing to it gives the
memory a new value, so every array that shares the memory in NumPy sees the change. Values of which nothing depends on
the arguments are *known*: NumPy computes with them, and Python may ask for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import get_ident
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import ConcretizationError, ReadOnlyError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.guards import CHOOSE, told
from eqsat.frontends.memory import LEVEL, Memory
from eqsat.frontends.operators import Operators, all_known, short
from eqsat.frontends.source import scipy_function, user_line
from eqsat.frontends.tracing import CURRENT, Unsized
from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType, dtype_of
from eqsat.ir.views import ViewMap

_SHARING = frozenset(
    ("view", "getfield", "setfield", "data", "ctypes", "base", "partition", "resize", "byteswap", "setflags")
)
"""What gives away the memory of a NumPy array, or changes it."""


class TracedArray(Operators):
    """An array of known shape and element type whose values are not known yet."""

    __slots__ = (
        "__weakref__",
        "_array",
        "_map",
        "_readonly",
        "_seen",
        "_trace",
        "_type",
        "_version",
        "is_element",
        "is_scalar",
        "memory",
    )
    __array_priority__ = 1000.0
    weak: type | None = None
    """int or float for a Python number, which takes the element type of the arrays it meets."""
    __hash__ = None

    def __init__(self, node: Node) -> None:
        """An array of its own memory with a node's value."""
        self._trace = CURRENT.get()
        self._type = node.type
        self._seen: Node | None = node
        self._map: ViewMap | None = None
        self._array: np.ndarray | None = None
        self._readonly = False
        self._version = 0
        self.memory = Memory(node)
        self.is_scalar = not node.type.shape
        self.is_element = False
        """Taken out of an array by integers: NumPy has a scalar, where it may have a 0-d array of other results."""
        if self._trace is not None:
            self._trace.nodes.append(node)
            if self._trace.disorderly:
                # Results of arrays in another order are in that order, too; which results these are is not looked at.
                self.memory.orderly = sum(n > 1 for n in node.shape) <= 1

    @classmethod
    def of_memory(cls, memory: Memory, type: TensorType, map: ViewMap | None, readonly: bool = False) -> TracedArray:
        """A view of memory; ``map`` None shows all of it."""
        made = cls.__new__(cls)
        made._trace = CURRENT.get()
        made._type, made._map, made._readonly = type, map, readonly
        made._seen = made._array = None
        made._version = -1
        made.memory, made.is_scalar, made.is_element = memory, False, False
        return made

    @classmethod
    def of_known(cls, array: np.ndarray, base: TracedArray | None = None) -> TracedArray:
        """A known array, which shares ``base``'s memory if that is given."""
        if base is not None:
            type = TensorType(array.shape, dtype_of(array.dtype))
            made = cls.of_memory(base.memory, type, None, base._readonly or not array.flags.writeable)
            made._array = array
            return made
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        rows = array.transpose(order)
        if not rows.flags.c_contiguous:
            array = rows = np.array(array, order="C")
        made = cls.of_memory(Memory(None, rows), TensorType(array.shape, dtype_of(array.dtype)), None)
        made._array = array
        made._readonly = not array.flags.writeable
        return made

    def seen_through(self, map: ViewMap, label: str = "", *, readonly: bool = False) -> TracedArray | None:
        """What ``map`` shows of this array, sharing its memory; None where that is not a view of the memory."""
        whole = self.map
        both = map if whole is None else views.compose(views.flattened(whole), map)
        if both is None:
            return None
        type = TensorType(map.shape, self._type.dtype)
        kept = None if map.shape == self.memory.shape and both.is_identity(map.shape) else both
        made = TracedArray.of_memory(self.memory, type, kept, readonly or self._readonly)
        if self._trace is not None and type.size and not made.ordered():
            self._trace.disorderly = True
        if self.memory.ready and self.memory.stale is None:
            made._seen, made._version = build.view(self.node, map, label), self.memory.version
        return made

    @property
    def map(self) -> ViewMap | None:
        """Which elements of the memory it shows; None for all of them as they lie."""
        if self._map is None and self._array is not None and self._array is not self.memory.array:
            base, array = self.memory.array, self._array
            assert base is not None
            item = array.itemsize
            offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // item
            self._map = views.strided(array.shape, [s // item for s in array.strides], offset if array.size else 0)
        return self._map

    @property
    def known(self) -> np.ndarray | None:
        """The NumPy array that this is, if nothing of it depends on the arguments; not to be written through if the
        memory is protected."""
        memory = self.memory
        if memory.known is None:
            return None
        if self._array is None:
            self._array = memory.known
            if self._map is not None:
                steps = self._map.strides
                assert steps is not None
                flat = memory.known.reshape(-1)[self._map.offset :]
                item = flat.itemsize
                self._array = np.lib.stride_tricks.as_strided(flat, self._map.shape, [s * item for s in steps])
        if (memory.protected or self._readonly) and self._array.flags.writeable:
            self._array = self._array.view()
            self._array.flags.writeable = False
        return self._array

    @property
    def node(self) -> Node:
        """The node of its present value."""
        trace = self._trace if self.memory.known is None else CURRENT.get()  # what is known, is so anywhere
        if trace is None or trace is not CURRENT.get() or trace.thread != get_ident():
            raise ConcretizationError(
                "a traced array was used outside the call that made it, or in another thread; return it rather than "
                "storing it, and pass arrays from outside as arguments",
                user_line(),
            )
        memory = self.memory
        if self._version != memory.version or self._seen is None:
            self._seen = constant_of(self) if memory.known is not None else memory.read(self.map)
            self._version = memory.version
            trace.nodes.append(self._seen)
        trace.deadline.check("tracing")  # on the way of every operator
        return self._seen

    def assign(self, node: Node) -> None:
        """Write a value of its type to its memory."""
        assert node.type == self._type
        self.check_writable()
        memory = self.memory
        if memory.reshaped:
            self.keep_order()
        memory.write(self.map, node)
        if self._trace is not None:
            self._trace.nodes.append(node)
        if self.map is None:
            self._seen, self._version = node, memory.version

    def keep_order(self) -> None:
        """Note that the program is that of arguments in row-major order alone."""
        if self._trace is not None:
            self._trace.rows = True

    def check_writable(self) -> None:
        """``ReadOnlyError`` if NumPy would not write to it."""
        if self.is_scalar:
            raise UnsupportedOpError(
                "a NumPy scalar is written to, which NumPy refuses or does not see: compute another", user_line()
            )
        if self.memory.protected:
            raise ReadOnlyError(self.memory.protected, user_line())
        if self._readonly:
            raise ReadOnlyError("assignment destination is read-only", user_line())
        if self.memory.level < LEVEL.get():
            raise UnsupportedOpError(
                "the body of a loop or a branch writes to an array from outside: carry the array, and return it",
                user_line(),
            )

    @property
    def is_readonly(self) -> bool:
        """Whether NumPy would not write to it."""
        return self._readonly or bool(self.memory.protected)

    def is_same_view(self, other: object) -> bool:
        """Whether it shows the same elements of the same memory."""
        if not isinstance(other, TracedArray) or other.memory is not self.memory or other._type != self._type:
            return False
        return other.map == self.map

    def ordered(self) -> bool:
        """Whether NumPy makes results of it that lie in row-major order."""
        if not self.memory.orderly:
            return False
        if self.map is None:
            return True
        steps = self.map.strides
        if steps is None or any(s <= 0 for s, n in zip(steps, self.shape, strict=True) if n > 1):
            return False
        moving = [s for s, n in zip(steps, self.shape, strict=True) if n > 1]
        return moving == sorted(moving, reverse=True)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``numpy.ndarray``: ``isinstance(x, np.ndarray)`` holds in the user's function, as when NumPy runs it."""
        return np.ndarray

    # What is known

    @property
    def shape(self) -> tuple[int, ...]:
        return self._type.shape

    @property
    def dtype(self) -> np.dtype:
        return self._type.dtype.numpy

    @property
    def ndim(self) -> int:
        return self._type.ndim

    @property
    def size(self) -> int:
        return self._type.size

    @property
    def itemsize(self) -> int:
        return self._type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._type.nbytes

    @property
    def flags(self) -> SimpleNamespace:
        """As ``numpy.ndarray.flags``: results lie in row-major order."""
        rows = self.ordered()
        columns = self.ndim < 2 or sum(n != 1 for n in self.shape) < 2
        return SimpleNamespace(
            writeable=not (self.memory.protected or self._readonly), aligned=True, owndata=self.map is None,
            c_contiguous=rows, contiguous=rows, f_contiguous=columns, fnc=columns and not rows, forc=rows or columns,
        )  # fmt: skip

    @property
    def device(self) -> str:
        return "cpu"

    def to_device(self, device: str, /, *, stream: object = None) -> TracedArray:
        if device != "cpu":
            raise ValueError(f"unknown device {device!r}; there is only 'cpu'")
        return self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TracedArray({self._type})" if self.known is None else repr(self.known)

    def __str__(self) -> str:
        return repr(self) if self.known is None else str(self.known)

    def __format__(self, spec: str) -> str:
        if self.known is not None:
            return format(self.known, spec)
        return repr(self) if not spec else self._unknown("the formatted value", "return it and print it outside")

    # What is not

    def _unknown(self, what: str, advice: str) -> NoReturn:
        raise ConcretizationError(
            f"{what} of a traced array of type {self._type} is not known while the function is traced: {advice}",
            user_line(),
        )

    def __bool__(self) -> bool:
        if self.known is not None:
            return bool(self.known)
        value = told(CURRENT.get(), self.node, bool)
        return self._unknown("the truth value", CHOOSE) if value is None else bool(value)

    def __int__(self) -> int:
        if self.known is not None:
            return int(self.known)
        value = told(CURRENT.get(), self.node, int)
        if value is None:
            return self._unknown("the int value", "use x.astype(np.int64), or pass it as a Python int argument")
        return value

    def __float__(self) -> float:
        if self.known is not None:
            return float(self.known)
        return self._unknown(
            "the float value", "use np. functions instead of math., or pass it as a Python float argument"
        )

    def __complex__(self) -> complex:
        if self.known is not None:
            return complex(self.known)
        return self._unknown("the complex value", "pass it as a 0-d array")

    def __round__(self, ndigits: int | None = None) -> Any:
        if self.known is not None:
            return round(self.known, ndigits)  # type: ignore[call-overload]
        if self.ndim:
            raise TypeError(f"round() takes scalars, not an array of shape {self.shape}: use np.round")
        if ndigits is None:
            self._unknown("the int value", "use np.round(x), or round(x, 0)")
        return registry.call(np.round, self, ndigits)

    def __index__(self) -> int:
        if self.known is not None:
            return self.known.__index__()
        value = told(CURRENT.get(), self.node, int) if self.ndim == 0 and self.dtype.kind in "iu" else None
        if value is None:
            return self._unknown(
                "the integer value",
                "to index a NumPy array write eqsat.asarray(table)[i] or pass the table as an argument; build masks "
                "with np.arange(n) == i; pass sizes as Python int arguments",
            )
        return value

    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:
        if self.known is not None:
            return np.array(self.known, dtype)
        scipy = scipy_function()
        if scipy:
            raise registry.refuse(
                f"scipy's {scipy}",
                f"wrap it in eqsat.opaque ({scipy} = eqsat.opaque({scipy}), outside of the function) or write it "
                "with NumPy functions",
            )
        return self._unknown(
            "the array of values",
            "an array that traced values are written to is made in the function (np.zeros, np.array, table.copy()) or "
            "is an argument; make arrays of several with np.stack or np.concatenate; to index a NumPy array by a "
            "traced one write eqsat.asarray(table)[i], or pass the table as an argument",
        )

    def __dlpack__(self, **_: object) -> object:
        self._unknown("the memory", "return it and convert it outside")

    def __contains__(self, value: object) -> bool:
        if self.known is not None:
            return value in self.known
        return self._unknown("membership in the values", "use (x == value).any()")

    def item(self, *args: Any) -> object:
        if self.known is not None:
            return self.known.item(*args)
        return self._unknown("the value", "keep it as a 0-d array")

    def tolist(self) -> object:
        if self.known is not None:
            return self.known.tolist()
        return self._unknown("the list of values", "return it and convert it outside")

    # Indexing

    def __getitem__(self, index: Any) -> Any:
        from eqsat.frontends.indexing import getitem

        return registry.located("indexing", getitem, self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from eqsat.frontends.writes import setitem

        registry.located("assignment", setitem, self, index, value)

    def __iter__(self) -> Iterator[TracedArray]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    @property
    def flat(self) -> Any:
        from eqsat.frontends.writes import Flat

        return Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    # Protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from eqsat.frontends.known import Unknown, run
        from eqsat.frontends.ufuncs import ufunc_method

        if any(isinstance(value, Unsized) for value in inputs):
            return NotImplemented
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        if all_known(inputs):
            with contextlib.suppress(Unknown):
                return run(function, inputs, kwargs, writes=method == "at")
        name = short(ufunc) if method == "__call__" else f"{short(ufunc)}.{method}"
        return registry.attempt(name, function, inputs, kwargs, ufunc_method, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(issubclass(of, Unsized) for of in types):
            return NotImplemented
        return registry.call(func, *args, **kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        from eqsat.frontends import array_api

        return array_api

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(np.ndarray, name):
            if self.known is not None and (name not in _SHARING or self.memory.protected):
                return getattr(self.known, name)
            raise AttributeError(str(registry.refuse(f"ndarray.{name}")))
        raise AttributeError(f"'TracedArray' object has no attribute {name!r}")


def constant_of(array: TracedArray) -> Node:
    """The node of a known array."""
    from eqsat.frontends.convert import constant

    memory, known = array.memory, array.known
    assert known is not None
    return constant(known if memory.uniform is None else np.broadcast_to(memory.uniform, known.shape))


class TracedNumber(TracedArray):
    """What a NumPy function returns as a Python number; as a result of the program it is one."""

    __slots__ = ()
