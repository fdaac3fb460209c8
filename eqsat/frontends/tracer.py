"""Traced arrays: what a user's function sees while it is traced. They behave as NumPy arrays of known
shape and type and unknown values.

In-place operators and ``out=`` give the Python object a new value, so every name of it sees the change,
as in NumPy. An array that would share memory with it in NumPy (a view of it) goes stale, and reading
that raises: eqsat never returns the value from before. Arguments themselves are not modified: what the function would
write to them is noted, and verification refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from eqsat.deadline import NEVER, Deadline
from eqsat.errors import ConcretizationError, UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.source import scipy_function, user_line
from eqsat.ir.node import Node, Source
from eqsat.scoped import Scoped


class Trace:
    """One run of a user's function, on the thread that makes this; traced arrays belong to one."""

    __slots__ = ("deadline", "thread")

    def __init__(self, deadline: Deadline = NEVER) -> None:
        self.deadline = deadline
        self.thread = get_ident()


CURRENT: Scoped[Trace | None] = Scoped(None)


class _Memory:
    """What arrays that share memory in NumPy have in common: how often it was written, and last where."""

    __slots__ = ("line", "version")

    def __init__(self) -> None:
        self.version = 0
        self.line: Source | None = None


def _ufunc(ufunc: np.ufunc, *args: Any, **kwargs: Any) -> Any:
    from eqsat.frontends.ufuncs import apply

    return registry.located(short(ufunc), apply, ufunc, args, **kwargs)


def short(ufunc: np.ufunc) -> str:
    """A ufunc's name in messages."""
    return f"np.{ufunc.__name__}"


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
        if self.ndim == 0 and self.node.op != "input":
            # NumPy's 0-d results are scalars, for which y += a means y = y + a, and 0-d arrays keep their type
            result = _ufunc(ufunc, self, other)
            if result.shape != () or result.dtype != self.dtype:
                raise UnsupportedOpError(
                    f"in place: a 0-d result of type {self.dtype} would become {result.dtype} of shape {result.shape}; "
                    "write y = y + … for a new value, or make the operand's type and shape those of y",
                    user_line(),
                )
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


def _is_operand(other: object) -> bool:
    # Another class's reflected operator goes first where it opted out of NumPy's protocol.
    return getattr(other, "__array_ufunc__", other) is not None or isinstance(other, (int, float))


def power_function(exponent: object) -> np.ufunc | None:
    """The function to which ``numpy.ndarray``'s operator ``**`` takes this exponent, if not to ``np.power``."""
    if type(exponent) not in (int, float):
        return None
    return {2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal}.get(exponent)  # type: ignore[call-overload, no-any-return]


class TracedArray:
    """An array of known shape and element type whose values are not known yet."""

    __slots__ = ("__weakref__", "_memory", "_node", "_trace", "_version")
    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node, base: TracedArray | None = None) -> None:
        self._node = node
        self._trace = CURRENT.get()
        self._memory: _Memory = base._memory if base is not None else _Memory()
        self._version = self._memory.version

    @property
    def node(self) -> Node:
        """The node of its present value."""
        trace = self._trace
        if trace is None or trace is not CURRENT.get() or trace.thread != get_ident():
            raise ConcretizationError(
                "a traced array was used outside the call that made it, or in another thread; return it rather than "
                "storing it, and pass arrays from outside as arguments",
                user_line(),
            )
        if self._version != self._memory.version:
            raise UnsupportedOpError(
                f"this array shares memory with one that was modified in place at {self._memory.line}; "
                "copy it before (x.copy()), or write y = y + … instead of y += …",
                user_line(),
            )
        trace.deadline.check("tracing")  # on the way of every operator
        return self._node

    def assign(self, node: Node) -> None:
        """Give it a new value of the same type; arrays that share its memory go stale."""
        assert node.type == self.node.type
        self._node = node
        self._memory.version += 1
        self._memory.line = user_line()
        self._version = self._memory.version

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``numpy.ndarray``: ``isinstance(x, np.ndarray)`` holds in the user's function, as when NumPy runs it."""
        return np.ndarray

    @property
    def written(self) -> Source | None:
        """The line that last wrote to its memory, or to that of an array which shares it; None if there is none."""
        return self._memory.line

    # What is known

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.shape

    @property
    def dtype(self) -> np.dtype:
        return self._node.dtype.numpy

    @property
    def ndim(self) -> int:
        return self._node.type.ndim

    @property
    def size(self) -> int:
        return self._node.type.size

    @property
    def itemsize(self) -> int:
        return self._node.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._node.type.nbytes

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
        return f"TracedArray({self._node.type})"

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else self._unknown("the formatted value", "return it and print it outside")

    # What is not

    def _unknown(self, what: str, advice: str) -> NoReturn:
        raise ConcretizationError(
            f"{what} of a traced array of type {self._node.type} is not known while the function is traced: {advice}",
            user_line(),
        )

    def __bool__(self) -> bool:
        self._unknown(
            "the truth value",
            "replace if/else by np.where(condition, a, b), and/or/not by np.logical_and/or/not, min/max by "
            "np.minimum/maximum",
        )

    def __int__(self) -> int:
        self._unknown("the int value", "use x.astype(np.int64), or pass it as a Python int argument")

    def __float__(self) -> float:
        self._unknown("the float value", "use np. functions instead of math., or pass it as a Python float argument")

    def __complex__(self) -> complex:
        self._unknown("the complex value", "eqsat computes with real numbers")

    def __round__(self, ndigits: int | None = None) -> Any:
        if self.ndim:
            raise TypeError(f"round() takes scalars, not an array of shape {self.shape}: use np.round")
        if ndigits is None:
            self._unknown("the int value", "use np.round(x), or round(x, 0)")
        return registry.call(np.round, self, ndigits)

    def __index__(self) -> int:
        self._unknown(
            "the integer value",
            "to index a NumPy array write eqsat.asarray(table)[i] or pass the table as an argument; build masks with "
            "np.arange(n) == i; pass sizes as Python int arguments",
        )

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        scipy = scipy_function()
        if scipy:
            raise registry.refuse(
                f"scipy's {scipy}",
                "use eqsat.nn (softmax, log_softmax, erf, sigmoid…) or write it with NumPy functions",
            )
        self._unknown(
            "the array of values",
            "a traced array needs no np.asarray or np.array; make arrays of several with np.stack or np.concatenate, "
            "also instead of filling one (out[i] = x) or np.full; to index a NumPy array by a traced one write "
            "eqsat.asarray(table)[i], or pass the table as an argument",
        )

    def __dlpack__(self, **_: object) -> object:
        self._unknown("the memory", "return it and convert it outside")

    def __contains__(self, value: object) -> bool:
        self._unknown("membership in the values", "use (x == value).any()")

    def item(self, *args: object) -> object:
        self._unknown("the value", "keep it as a 0-d array")

    def tolist(self) -> object:
        self._unknown("the list of values", "return it and convert it outside")

    def __setitem__(self, index: object, value: object) -> None:
        raise UnsupportedOpError(
            "assignment to elements of a traced array is not supported; write x = np.where(mask, value, x), or build "
            "it with np.concatenate or np.stack",
            user_line(),
        )

    # Indexing

    def __getitem__(self, index: Any) -> Any:
        from eqsat.frontends.indexing import getitem

        return registry.located("indexing", getitem, self, index)

    def __iter__(self) -> Iterator[TracedArray]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    # Protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from eqsat.frontends.ufuncs import ufunc_method

        return registry.located(short(ufunc), ufunc_method, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        special = power_function(exponent) if self.dtype.kind == "f" else None
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
    def real(self) -> TracedArray:
        return self

    @property
    def flat(self) -> Any:
        raise registry.refuse("ndarray.flat", "use x.reshape(-1)")

    def astype(self, dtype: DTypeLike, order: str = "K", casting: Any = "unsafe", **kwargs: Any) -> Any:
        """As ``numpy.ndarray.astype``; always a copy."""
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"Cannot cast array data from {self.dtype!r} to {np.dtype(dtype)!r} by rule {casting!r}")
        return registry.call(np.astype, self, dtype)

    def copy(self, order: str = "C") -> Any:
        return registry.call(np.copy, self)

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def flatten(self, order: str = "C") -> Any:
        return registry.call(np.copy, registry.call(np.ravel, self, order=order))

    def conj(self) -> TracedArray:
        return self

    conjugate = conj

    transpose = _axes_method(np.transpose)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        return registry.call(np.reshape, self, shape[0] if len(shape) == 1 else shape, order=order)

    ravel, squeeze, swapaxes = _method(np.ravel), _method(np.squeeze), _method(np.swapaxes)
    diagonal, trace, repeat, take = (_method(f) for f in (np.diagonal, np.trace, np.repeat, np.take))
    sum, prod, max, min = (_method(f) for f in (np.sum, np.prod, np.max, np.min))
    mean, var, std, any, all = (_method(f) for f in (np.mean, np.var, np.std, np.any, np.all))
    argmax, argmin, cumsum, cumprod = (_method(f) for f in (np.argmax, np.argmin, np.cumsum, np.cumprod))
    argsort, clip, dot, round = (_method(f) for f in (np.argsort, np.clip, np.dot, np.round))

    def sort(self, axis: int = -1, **kwargs: Any) -> None:
        """Sorts in place, as ``numpy.ndarray.sort``."""
        self.assign(registry.call(np.sort, self, axis=axis, **kwargs).node)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(np.ndarray, name):
            raise AttributeError(str(registry.refuse(f"ndarray.{name}")))
        raise AttributeError(f"'TracedArray' object has no attribute {name!r}")


class TracedNumber(TracedArray):
    """What a NumPy function returns as a Python number; as a result of the program it is one."""

    __slots__ = ()
