"""Operators and methods of arrays that are functions of NumPy: what ``a + b`` and ``a.sum()`` call.

Sharing memory, indexing and what Python asks of values is :class:`~eqsat.frontends.tracer.TracedArray`'s.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from eqsat.errors import UnsupportedOpError
from eqsat.frontends import registry
from eqsat.frontends.memory import Memory
from eqsat.frontends.source import user_line
from eqsat.frontends.tracing import Unsized
from eqsat.ir.node import Node


def call_ufunc(ufunc: np.ufunc, *args: Any, **kwargs: Any) -> Any:
    from eqsat.frontends.known import Unknown, run
    from eqsat.frontends.ufuncs import apply

    if all_known(args):
        with contextlib.suppress(Unknown):
            return run(ufunc, args, kwargs)
    return registry.attempt(short(ufunc), ufunc, args, kwargs, functools.partial(apply, **kwargs), ufunc, args)


def all_known(args: Iterable[Any]) -> bool:
    """Whether the traced arrays among these are known, those in lists aside."""
    return all(not isinstance(a, Operators) or a.memory.known is not None for a in args)


def short(ufunc: np.ufunc) -> str:
    """A ufunc's name in messages."""
    return registry.short_name(ufunc)


def _binary(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: Operators, other: object) -> Any:
        _refuse_repetition(ufunc, self, other)
        return call_ufunc(ufunc, self, other) if _is_operand(other) else NotImplemented

    return operator


def _compared(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: Operators, other: object) -> Any:
        if other is None:  # which no element equals; Python alone would compare the objects
            return np.full_like(self, ufunc is np.not_equal, dtype=bool)
        return call_ufunc(ufunc, self, other) if _is_operand(other) else NotImplemented

    return operator


def _reflected(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: Operators, other: object) -> Any:
        _refuse_repetition(ufunc, self, other)
        if type(other) is complex and self.is_scalar and self.dtype == np.float64:
            # Its scalars are Python's floats, too, so that Python computes, and its number takes any array's type.
            raise UnsupportedOpError(
                "a Python complex number before a scalar of type float64 makes a Python number: write the scalar "
                f"first (x * {other!r}), or np.{ufunc.__name__}",
                user_line(),
            )
        return call_ufunc(ufunc, other, self) if _is_operand(other) else NotImplemented

    return operator


def _in_place(ufunc: np.ufunc) -> Callable[[Any, object], Any]:
    def operator(self: Operators, other: object) -> Any:
        if self.is_scalar:
            _refuse_repetition(ufunc, self, other)
            # NumPy's 0-d results are scalars, for which y += a means y = y + a, and 0-d arrays keep their type
            result = call_ufunc(ufunc, self, other)
            if not self.is_element and (result.shape != () or result.dtype != self.dtype):
                raise UnsupportedOpError(
                    f"in place: a 0-d result of type {self.dtype} would become {result.dtype} of shape {result.shape}; "
                    "write y = y + … for a new value, or make the operand's type and shape those of y",
                    user_line(),
                )
            return result
        return call_ufunc(ufunc, self, other, out=self)

    return operator


def _refuse_repetition(ufunc: np.ufunc, scalar: Operators, other: object) -> None:
    """NumPy leaves a scalar times a list to Python, which repeats the list, or refuses a float."""
    if ufunc is np.multiply and scalar.is_scalar and isinstance(other, (list, tuple)):
        raise UnsupportedOpError(
            f"a scalar times a {type(other).__name__} repeats it in Python, and is no product: write np.array(…) "
            "around it",
            user_line(),
        )


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def operator(self: Operators) -> Any:
        return call_ufunc(ufunc, self)

    return operator


def _method(function: Any) -> Callable[..., Any]:
    """A method that is the NumPy function of the same name."""

    def method(self: Operators, *args: Any, **kwargs: Any) -> Any:
        return registry.call(function, self, *args, **kwargs)

    method.__name__ = function.__name__
    method.__doc__ = f"As ``numpy.{function.__name__}``."
    return method


def _axes_method(function: Any) -> Callable[..., Any]:
    """A method whose axes or sizes may be one tuple or several arguments."""

    def method(self: Operators, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if len(args) == 1 else (args or None)
        return registry.call(function, self, given, **kwargs)

    return method


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


class Operators:
    """What makes NumPy's operators and methods of an array of known shape and type."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    memory: Memory
    is_scalar: bool
    is_element: bool

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...

        @property
        def dtype(self) -> np.dtype: ...

        @property
        def known(self) -> np.ndarray | None: ...

        def check_writable(self) -> None: ...

        def assign(self, node: Node) -> None: ...

        def __getitem__(self, index: Any) -> Any: ...

        def __setitem__(self, index: Any, value: Any) -> None: ...

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
            return call_ufunc(special, self)
        return call_ufunc(np.power, self, exponent) if _is_operand(exponent) else NotImplemented

    def __ipow__(self, exponent: Any) -> Any:
        return call_ufunc(np.power, self, exponent, out=self)

    def __matmul__(self, other: object) -> Any:
        return registry.call(np.matmul, self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: object) -> Any:
        return registry.call(np.matmul, other, self) if _is_operand(other) else NotImplemented

    def __imatmul__(self, other: object) -> Any:
        return call_ufunc(np.matmul, self, other, out=self)

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
        made = registry.call(np.copy, self, order=order)
        return made[()] if isinstance(made, Operators) and self.is_scalar else made

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def flatten(self, order: str = "C") -> Any:
        return registry.call(np.copy, registry.call(np.ravel, self, order=order))

    def conj(self) -> Any:
        return call_ufunc(np.conjugate, self) if self.dtype.kind == "c" else self

    conjugate = conj

    transpose = _axes_method(np.transpose)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        return registry.call(np.reshape, self, shape[0] if len(shape) == 1 else shape, order=order, copy=copy)

    ravel, squeeze, swapaxes = _method(np.ravel), _method(np.squeeze), _method(np.swapaxes)
    nonzero = _method(np.nonzero)
    diagonal, trace, repeat, take = (_method(f) for f in (np.diagonal, np.trace, np.repeat, np.take))
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
