"""Arguments and results as trees: nested tuples, lists, dicts and dataclasses with arrays as leaves.

``ArgSpec.flatten`` runs on every call of an optimized function, so it is written for speed: a few
microseconds for positional arrays.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from eqsat.errors import UnsupportedDTypeError
from eqsat.frontends.convert import foreign_meaning
from eqsat.frontends.tracer import TracedArray
from eqsat.ir.identity import identity
from eqsat.ir.repeats import LARGE, array_key
from eqsat.ir.types import COMPUTED, TensorType, dtype_of

Key = tuple[Hashable, ...]


class _Missing(Enum):
    """A parameter that the call leaves at its default."""

    MISSING = 0


MISSING = _Missing.MISSING


class TracedArgument(Exception):
    """An optimized function was called with traced arrays: inside the tracing of another. Call the plain one."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor: its number among the leaves."""

    index: int


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is part of the program: a Python number, string, None, type…"""

    value: Any


@dataclass(frozen=True, slots=True)
class Branch:
    """A container; ``keys`` are a dict's keys or a dataclass's field names, ``default`` a defaultdict's factory."""

    type: type
    keys: tuple[Any, ...] | None
    children: tuple[Tree, ...]
    default: Any = None


Tree = Leaf | Static | Branch

_native = {np.dtype(d.name): True for d in COMPUTED}
"""Element types in native byte order, those of other libraries once they were seen."""
_STATIC = (str, bytes, type(None), type, np.dtype, Enum, slice, range, type(Ellipsis))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, np.ufunc, type(np.sum))
_new_object = object.__new__
_ndarray = np.ndarray


def static_key(value: Any) -> Hashable:
    """Tells 1, 1.0 and True apart, 0.0 and -0.0 too, also within tuples, and makes nan equal to itself."""
    if type(value) is float:
        return identity(value)
    if isinstance(value, (tuple, np.generic)):
        return (type(value), value, identity(value))
    if isinstance(value, slice):
        return (slice, *(static_key(v) for v in (value.start, value.stop, value.step)))
    return (type(value), value)


class _Refused(Exception):
    """A value that cannot be an argument; ``path`` grows as it passes outwards through containers."""

    def __init__(self, kind: type[Exception], message: str) -> None:
        self.kind = kind
        self.message = message
        self.path = ""


def _array(value: Any) -> np.ndarray:
    """The array of an ndarray, NumPy scalar, or anything with ``__dlpack__`` or ``__array__``."""
    if isinstance(value, np.ndarray) and (problem := foreign_meaning(value)):
        raise _Refused(UnsupportedDTypeError, f" {problem}")
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except (TypeError, BufferError, RuntimeError):
            array = np.asarray(value)
    else:
        array = np.asarray(value)
    if array.dtype not in _native:
        try:
            dtype_of(array.dtype)
        except TypeError as error:
            raise _Refused(UnsupportedDTypeError, f": {error}") from None
        if array.dtype.isnative:
            _native[array.dtype] = True
    return array


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor among arguments: an array, a NumPy scalar, or what can be made one without a copy."""
    return isinstance(value, (np.ndarray, np.generic)) or (
        not isinstance(value, type) and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))
    )


def flatten_value(value: Any, leaves: list[Any]) -> Hashable:
    """Append the tensors in ``value`` to ``leaves`` and return what tells its type and structure."""
    kind = type(value)
    if kind is _ndarray and value.dtype in _native:
        leaves.append(value)
        return (value.shape, value.dtype) if value.size < LARGE else array_key(value)
    if kind is dict or isinstance(value, dict):
        keys = tuple(value)
        told = tuple(map(static_key, keys))
        return (kind, _default(value), told, _flatten_all(value.values(), leaves, lambda i: f"[{keys[i]!r}]"))
    if isinstance(value, (list, tuple)):
        return (kind, _flatten_all(value, leaves, lambda i: f"[{i}]"))
    if kind is float or kind is int or kind is bool or isinstance(value, _STATIC):
        return static_key(value)
    if isinstance(value, TracedArray):
        raise TracedArgument
    if is_tensor(value):
        array = _array(value)
        leaves.append(array)
        # a scalar is never written to, where an array without axes is
        return (*array_key(array), "scalar") if isinstance(value, np.generic) else array_key(array)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = _fields(kind)
        return (kind, names, _flatten_all([getattr(value, n) for n in names], leaves, lambda i: f".{names[i]}"))
    if isinstance(value, (int, float)):  # subclasses of them
        return static_key(value)
    if isinstance(value, _FUNCTIONS):
        return (kind, value)
    # Other objects may change between calls without our seeing it.
    raise _Refused(
        TypeError,
        f" is a {kind.__name__}: arguments are arrays, Python numbers, strings, None, functions, and "
        "tuples, lists, dicts and dataclasses of these (make a class that holds arrays a dataclass)",
    )


def _flatten_all(values: Iterable[Any], leaves: list[Any], step: Callable[[int], str]) -> Key:
    """The keys of a container's values; arrays, the common case, without a call."""
    parts: list[Hashable] = []
    try:
        for value in values:
            if type(value) is _ndarray and value.dtype in _native:
                leaves.append(value)
                parts.append((value.shape, value.dtype) if value.size < LARGE else array_key(value))
            else:
                parts.append(flatten_value(value, leaves))
    except _Refused as refused:
        refused.path = step(len(parts)) + refused.path
        raise
    return tuple(parts)


def _default(value: dict) -> Any:
    return value.default_factory if isinstance(value, defaultdict) else None


def _fields(kind: type) -> tuple[str, ...]:
    return tuple([f.name for f in dataclasses.fields(kind)])


def tree_of(value: Any, leaves: list[Any], is_leaf: Callable[[Any], bool]) -> Tree:
    """The tree of a value; leaves are appended in order, as :func:`flatten_value` does."""
    if isinstance(value, (list, tuple)):
        return Branch(type(value), None, tuple(tree_of(v, leaves, is_leaf) for v in value))
    if isinstance(value, dict):
        children = tuple(tree_of(v, leaves, is_leaf) for v in value.values())
        return Branch(type(value), tuple(value), children, _default(value))
    if is_leaf(value):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = _fields(type(value))
        return Branch(type(value), names, tuple(tree_of(getattr(value, n), leaves, is_leaf) for n in names))
    return Static(value)


def rebuild(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The value of a tree with these leaves. Dataclasses are remade without ``__init__``."""
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    if isinstance(tree, Static):
        return tree.value
    children = [rebuild(child, leaves) for child in tree.children]
    kind = tree.type
    if issubclass(kind, tuple):
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if issubclass(kind, list):
        return kind(children)
    assert tree.keys is not None
    if issubclass(kind, dict):
        result: Any = defaultdict(tree.default) if kind is defaultdict else kind()
        result.update(zip(tree.keys, children, strict=True))
        return result
    value = _new_object(kind)
    for name, child in zip(tree.keys, children, strict=True):
        object.__setattr__(value, name, child)
    return value


def ends_of_tree(tree: Tree, path: str) -> Iterator[tuple[Leaf | Static, str]]:
    """Every end of a tree with its path in Python's notation: ``layers[0].w``, ``params['b']``."""
    if not isinstance(tree, Branch):
        yield tree, path
        return
    for number, child in enumerate(tree.children):
        if tree.keys is None:
            inner = f"{path}[{number}]"
        elif issubclass(tree.type, dict):
            inner = f"{path}[{tree.keys[number]!r}]"
        else:
            inner = f"{path}.{tree.keys[number]}"
        yield from ends_of_tree(child, inner)


def leaf_names(tree: Tree, path: str) -> Iterator[str]:
    """The path of every tensor of a tree."""
    return (inner for end, inner in ends_of_tree(tree, path) if isinstance(end, Leaf))


def statics(tree: Tree) -> Iterator[Any]:
    """The values of a tree that are no tensors, and the types of its containers."""
    if isinstance(tree, Branch):
        yield tree.type
        for child in tree.children:
            yield from statics(child)
    elif isinstance(tree, Static) and tree.value is not MISSING:
        yield tree.value


def check_result(tree: Tree) -> None:
    """``TypeError`` for a result with parts other than tensors and plain values.

    An iterator would be spent by the first call, and an object may hold traced arrays where nobody finds them.
    """
    for end, path in ends_of_tree(tree, "result"):
        if isinstance(end, Static) and not isinstance(end.value, (*_STATIC, *_FUNCTIONS, int, float, complex)):
            raise TypeError(
                f"the function's {path} is a {type(end.value).__name__}: an optimized function returns arrays, Python "
                "numbers, strings, None, functions, and tuples, lists, dicts and dataclasses of these"
            )


class ArgSpec:
    """A function's parameters: how a call's arguments become leaves and a key.

    ``flatten`` is the hot path. Two calls with the same key have the same program: the same structure,
    static values, shapes and element types (byte order and strides are left to the boundary), and repeated axes
    (:mod:`eqsat.ir.repeats`).
    """

    __slots__ = ("_tails", "name", "parameters", "signature")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.name = getattr(fn, "__name__", type(fn).__name__)
        try:
            self.signature = inspect.signature(fn)
        except (TypeError, ValueError):  # some builtins and ufuncs tell no signature
            star = inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)
            self.signature = inspect.Signature([star])
        self.parameters = tuple(self.signature.parameters.values())
        simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        plain = all(p.kind in simple for p in self.parameters)
        required = sum(1 for p in self.parameters if p.default is inspect.Parameter.empty)
        count = len(self.parameters)
        # _tails[n]: the key of the parameters that n positional arguments leave at their defaults.
        self._tails = [
            (static_key(MISSING),) * (count - n) if plain and n >= required else None for n in range(count + 1)
        ]

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Key]:
        """Tensors in order of parameters, and the key. ``TypeError`` as Python's for a wrong call."""
        if not kwargs and len(args) < len(self._tails):
            tail = self._tails[len(args)]
            if tail is not None:
                native, parts = _native, []
                for value in args:
                    if type(value) is not np.ndarray or value.dtype not in native:
                        break
                    parts.append((value.shape, value.dtype) if value.size < LARGE else array_key(value))
                else:
                    return args, (*parts, *tail)
        leaves: list[Any] = []
        keys: list[Hashable] = []
        for parameter, value in zip(self.parameters, self.bind(args, kwargs), strict=True):
            try:
                keys.append(flatten_value(value, leaves))
            except _Refused as refused:
                name = f"{parameter.name}{refused.path}"
                raise refused.kind(f"argument {name!r}{refused.message}") from None
        return leaves, tuple(keys)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """One value per parameter, ``MISSING`` where its default applies; ``*args`` is a tuple, ``**kwargs`` a dict."""
        if not kwargs and len(args) == len(self.parameters) and self._tails[-1] is not None:
            return list(args)
        try:
            bound = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        return [bound.get(p.name, MISSING) for p in self.parameters]

    def trees(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tree], list[Any]]:
        """The tree of every parameter, and the leaves."""
        trees, leaves = self.raw_trees(args, kwargs)
        return trees, [_array(leaf) for leaf in leaves]

    def raw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves as they were given."""
        return self.raw_trees(args, kwargs)[1]

    def raw_trees(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tree], list[Any]]:
        """The tree of every parameter, and the leaves as they were given."""
        leaves: list[Any] = []
        return [tree_of(v, leaves, is_tensor) for v in self.bind(args, kwargs)], leaves

    def leaf_names(self, trees: Sequence[Tree]) -> list[str]:
        names: list[str] = []
        for parameter, tree in zip(self.parameters, trees, strict=True):
            path = parameter.name
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and isinstance(tree, Branch):
                for key, child in zip(tree.keys or (), tree.children, strict=True):
                    names.extend(leaf_names(child, str(key)))
            else:
                names.extend(leaf_names(tree, path))
        return names

    def call_with(self, trees: Sequence[Tree], leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with, given other leaves."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        skipped = False
        for parameter, tree in zip(self.parameters, trees, strict=True):
            value = rebuild(tree, leaves)
            if value is MISSING:
                skipped = True
                continue
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    args.extend(value)
                case inspect.Parameter.VAR_KEYWORD:
                    kwargs.update(value)
                case inspect.Parameter.KEYWORD_ONLY:
                    kwargs[parameter.name] = value
                case inspect.Parameter.POSITIONAL_OR_KEYWORD if skipped:
                    kwargs[parameter.name] = value
                case _:
                    args.append(value)
        return tuple(args), kwargs


def tensor_type(array: np.ndarray) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))
