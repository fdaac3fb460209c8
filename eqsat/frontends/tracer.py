"""Traced arrays: what a user's function sees while it is traced. They behave as NumPy arrays of known
shape and type and unknown values.

A traced array is a view of :class:`~eqsat.frontends.memory.Memory`, most often of all of it. Writing to it gives the
memory a new value, so every array that shares the memory in NumPy sees the change. Values of which nothing depends on
the arguments are *known*: NumPy computes with them, and Python may ask for them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from eqsat.deadline import NEVER, Deadline
from eqsat.errors import ConcretizationError, ReadOnlyError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.guards import CHOOSE, Guard, told
from eqsat.frontends.memory import LEVEL, Memory
from eqsat.frontends.source import scipy_function, user_line
from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType, dtype_of
from eqsat.ir.views import ViewMap
from eqsat.scoped import Scoped


class Trace:
    """One run of a user's function, on the thread that makes this; traced arrays belong to one.

    ``disorderly``: some array's elements are not in row-major order in NumPy's memory. ``rows``: what is written where
    depends on arguments being in that order. ``file``: the function's. ``nodes``: values of its arrays in the order in
    which they were made. ``values`` are those of the inputs in the call that is traced, and of what was learned by
    running functions on them. ``shown``: what stands for a value from outside, such as a helper function, and
    ``inside`` for the one that is traced; ``original``: what such a stand-in was made of. ``bound``: how many inputs
    bodies of loops were given.
    ``guards``: values that Python asked for, which the trace is for; None where it may not.
    """

    __slots__ = (
        "bound", "deadline", "disorderly", "file", "guards", "inside", "nodes", "original", "rows", "shown", "thread",
        "values",
    )  # fmt: skip

    def __init__(
        self, deadline: Deadline = NEVER, values: dict[Node, np.ndarray] | None = None, *, guarded: bool = False
    ) -> None:
        self.deadline = deadline
        self.nodes: list[Node] = []
        self.bound = 0
        self.thread = get_ident()
        self.disorderly = False
        self.file = ""
        self.shown: Callable[[Any], Any] = lambda value: value
        self.inside: Callable[[Any], Any] = lambda value: value
        self.rows = False
        self.original: Callable[[Any], Any] = lambda value: value
        self.values = {} if values is None else values
        self.guards: list[Guard] | None = [] if guarded else None


CURRENT: Scoped[Trace | None] = Scoped(None)


def _ufunc(ufunc: np.ufunc, *args: Any, **kwargs: Any) -> Any:
    from eqsat.frontends.known import Unknown, run
    from eqsat.frontends.ufuncs import apply

    if all_known(args):
        with contextlib.suppress(Unknown):
            return run(ufunc, args, kwargs)
    return registry.attempt(short(ufunc), ufunc, args, kwargs, functools.partial(apply, **kwargs), ufunc, args)


def all_known(args: Iterable[Any]) -> bool:
    """Whether the traced arrays among these are known, those in lists aside."""
    return all(not isinstance(a, TracedArray) or a.memory.known is not None for a in args)


def short(ufunc: np.ufunc) -> str:
    """A ufunc's name in messages."""
    return registry.short_name(ufunc)


def _binary(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: TracedArray, other: object) -> Any:
        return _ufunc(ufunc, self, other) if _is_operand(other) else NotImplemented

    return operator


def _compared(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: TracedArray, other: object) -> Any:
        if other is None:  # which no element equals; Python alone would compare the objects
            return np.full_like(self, ufunc is np.not_equal, dtype=bool)
        return _ufunc(ufunc, self, other) if _is_operand(other) else NotImplemented

    return operator


def _reflected(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: TracedArray, other: object) -> Any:
        return _ufunc(ufunc, other, self) if _is_operand(other) else NotImplemented

    return operator


def _in_place(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: TracedArray, other: object) -> Any:
        if self.is_scalar:
            # NumPy's 0-d results are scalars, for which y += a means y = y + a, and 0-d arrays keep their type
            result = _ufunc(ufunc, self, other)
            if result.shape != () or result.dtype != self.dtype:
                raise UnsupportedOpError(
                    f"in place: a 0-d result of type {self.dtype} would become {result.dtype} of shape {result.shape}; "
                    "write y = y + … for a new value, or make the operand's type and shape those of y",
                    user_line(),
                )
            return result
        return _ufunc(ufunc, self, other, out=self)

    return operator


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def operator(self: TracedArray) -> Any:
        return _ufunc(ufunc, self)

    return operator


def _method(function: Any) -> Callable[..., Any]:
    """A method that is the NumPy function of the same name."""

    def method(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        return registry.call(function, self, *args, **kwargs)

    method.__name__ = function.__name__
    method.__doc__ = f"As ``numpy.{function.__name__}``."
    return method


def _axes_method(function: Any) -> Callable[..., Any]:
    """A method whose axes or sizes may be one tuple or several arguments."""

    def method(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if len(args) == 1 else (args or None)
        return registry.call(function, self, given, **kwargs)

    return method


class Unsized:
    """An array whose number of elements depends on values, and is not asked for yet."""

    __slots__ = ()

    def array(self) -> TracedArray:
        """The array, of the size that it has in the call that is traced; refused where a trace may not be for that."""
        raise NotImplementedError


def _is_operand(other: object) -> bool:
    if isinstance(other, Unsized):
        return False
    # Another class's reflected operator goes first where it opted out of NumPy's protocol.
    return getattr(other, "__array_ufunc__", other) is not None or isinstance(other, (int, float))


def power_function(exponent: object) -> np.ufunc | None:
    """The function to which ``numpy.ndarray``'s operator ``**`` takes this exponent, if not to ``np.power``."""
    if type(exponent) not in (int, float):
        return None
    return {2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal}.get(exponent)  # type: ignore[call-overload, no-any-return]


_SHARING = frozenset(
    ("view", "getfield", "setfield", "data", "ctypes", "base", "partition", "resize", "byteswap", "setflags")
)
"""What gives away the memory of a NumPy array, or changes it."""


class TracedArray:
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
        "is_scalar",
        "memory",
    )
    __array_priority__ = 1000.0
    weak: type | None = None
    """int or float for a Python number, which takes the element type of the arrays it meets."""
    __hash__ = None  # type: ignore[assignment]

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
        made.memory, made.is_scalar = memory, False
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
        both = map if whole is None else views.compose(whole, map)
        if both is None:
            return None
        type = TensorType(map.shape, self._type.dtype)
        kept = None if map.shape == self.memory.shape and both.is_identity(map.shape) else both
        made = TracedArray.of_memory(self.memory, type, kept, readonly or self._readonly)
        if self._trace is not None and not made.ordered():
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
        if memory.reshaped and self._trace is not None:
            self._trace.rows = True
        memory.write(self.map, node)
        if self._trace is not None:
            self._trace.nodes.append(node)
        if self.map is None:
            self._seen, self._version = node, memory.version

    def check_writable(self) -> None:
        """``ReadOnlyError`` if NumPy would not write to it."""
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

    # Operators

    __add__, __radd__, __iadd__ = _binary(np.add), _reflected(np.add), _in_place(np.add)
    __sub__, __rsub__, __isub__ = _binary(np.subtract), _reflected(np.subtract), _in_place(np.subtract)
    __mul__, __rmul__, __imul__ = _binary(np.multiply), _reflected(np.multiply), _in_place(np.multiply)
    __truediv__, __rtruediv__, __itruediv__ = _binary(np.divide), _reflected(np.divide), _in_place(np.divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __ifloordiv__ = _in_place(np.floor_divide)
    __mod__, __rmod__, __imod__ = _binary(np.remainder), _reflected(np.remainder), _in_place(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __and__, __rand__, __iand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and), _in_place(np.bitwise_and)
    __or__, __ror__, __ior__ = _binary(np.bitwise_or), _reflected(np.bitwise_or), _in_place(np.bitwise_or)
    __xor__, __rxor__, __ixor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor), _in_place(np.bitwise_xor)
    __lshift__, __rlshift__, __ilshift__ = (f(np.left_shift) for f in (_binary, _reflected, _in_place))
    __rshift__, __rrshift__, __irshift__ = (f(np.right_shift) for f in (_binary, _reflected, _in_place))
    __eq__, __ne__ = _compared(np.equal), _compared(np.not_equal)
    __lt__, __le__, __gt__, __ge__ = (_binary(f) for f in (np.less, np.less_equal, np.greater, np.greater_equal))
    __neg__, __pos__, __abs__, __invert__ = (_unary(f) for f in (np.negative, np.positive, np.absolute, np.invert))
    __rpow__ = _reflected(np.power)

    def __pow__(self, exponent: Any) -> Any:
        special = power_function(exponent) if self.dtype.kind in "fc" else None
        if special is not None:
            return _ufunc(special, self)
        return _ufunc(np.power, self, exponent) if _is_operand(exponent) else NotImplemented

    def __ipow__(self, exponent: Any) -> Any:
        return _ufunc(np.power, self, exponent, out=self)

    def __matmul__(self, other: object) -> Any:
        return registry.call(np.matmul, self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: object) -> Any:
        return registry.call(np.matmul, other, self) if _is_operand(other) else NotImplemented

    def __imatmul__(self, other: object) -> Any:
        return _ufunc(np.matmul, self, other, out=self)

    # Methods

    @property
    def T(self) -> Any:
        return registry.call(np.transpose, self)

    @property
    def mT(self) -> Any:
        return registry.call(np.matrix_transpose, self)

    @property
    def real(self) -> Any:
        return registry.call(np.real, self)

    @real.setter
    def real(self, value: Any) -> None:
        self[...] = value + 1j * self.imag if self.dtype.kind == "c" else value

    @property
    def imag(self) -> Any:
        return registry.call(np.imag, self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self[...] = self.real + 1j * value

    @property
    def flat(self) -> Any:
        from eqsat.frontends.writes import Flat

        return Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    def fill(self, value: Any) -> None:
        """As ``numpy.ndarray.fill``."""
        self[...] = value

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        """As ``numpy.ndarray.put``."""
        registry.call(np.put, self, indices, values, mode)

    def itemset(self, *args: Any) -> None:
        """As ``numpy.ndarray.itemset``, which NumPy 2 has no more."""
        raise AttributeError("`itemset` was removed from the ndarray class in NumPy 2.0: write x[index] = value")

    def view(self, dtype: Any = None) -> Any:
        """As ``numpy.ndarray.view`` of an array's own element type: bits are not read as another one."""
        is_class = isinstance(dtype, type) and issubclass(dtype, np.ndarray)
        if dtype is not None and (dtype is not np.ndarray if is_class else np.dtype(dtype) != self.dtype):
            raise registry.refuse("ndarray.view of another type")
        return self[...]

    def astype(
        self, dtype: DTypeLike, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """As ``numpy.ndarray.astype``."""
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"Cannot cast array data from {self.dtype!r} to {np.dtype(dtype)!r} by rule {casting!r}")
        return registry.call(np.astype, self, dtype, copy=copy)

    def copy(self, order: str = "C") -> Any:
        made = registry.call(np.copy, self)
        if isinstance(made, TracedArray):
            made.memory.orderly |= order == "C"
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def flatten(self, order: str = "C") -> Any:
        return registry.call(np.copy, registry.call(np.ravel, self, order=order))

    def conj(self) -> Any:
        return _ufunc(np.conjugate, self) if self.dtype.kind == "c" else self

    conjugate = conj

    transpose = _axes_method(np.transpose)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        return registry.call(np.reshape, self, shape[0] if len(shape) == 1 else shape, order=order, copy=copy)

    ravel, squeeze, swapaxes = _method(np.ravel), _method(np.squeeze), _method(np.swapaxes)
    diagonal, trace, repeat, take = (_method(f) for f in (np.diagonal, np.trace, np.repeat, np.take))
    nonzero = _method(np.nonzero)
    sum, prod, max, min = (_method(f) for f in (np.sum, np.prod, np.max, np.min))
    mean, var, std, any, all = (_method(f) for f in (np.mean, np.var, np.std, np.any, np.all))
    argmax, argmin, cumsum, cumprod = (_method(f) for f in (np.argmax, np.argmin, np.cumsum, np.cumprod))
    argsort, clip, dot, round = (_method(f) for f in (np.argsort, np.clip, np.dot, np.round))
    searchsorted, choose = _method(np.searchsorted), _method(np.choose)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """As ``numpy.ndarray.compress``."""
        return registry.call(np.compress, condition, self, axis=axis, out=out)

    def sort(self, axis: int = -1, **kwargs: Any) -> None:
        """Sorts in place, as ``numpy.ndarray.sort``."""
        self.check_writable()
        if self.known is not None:
            self.known.sort(axis, **kwargs)
            self.memory.touch()
            return
        self.assign(registry.call(np.sort, self, axis=axis, **kwargs).node)

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
