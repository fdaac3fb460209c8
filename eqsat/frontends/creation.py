"""Functions that make arrays: inside a traced function these are known, and traced values can be written to them.

NumPy's own (``np.zeros``, ``np.array``, …) call no protocol. While a function is traced, the module ``numpy`` has a
class whose attributes differ for that function's thread and for code that is the user's: other threads, NumPy itself
and installed libraries see what they always see. Names that were imported from ``numpy`` are replaced in the copy of
the function that is traced (``scope``).
"""

from __future__ import annotations

import dis
import functools
import operator
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from eqsat.forks import hold_over_fork
from eqsat.frontends import registry
from eqsat.frontends.convert import copied, holds_traced, is_dense, is_weak, known_dtype, traced
from eqsat.frontends.known import Unknown, plain, wrapped
from eqsat.frontends.shapes import shape_of
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.frontends.writes import Flat
from eqsat.ir import build
from eqsat.scoped import Scoped

NAMES = (
    "array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "zeros", "ones", "empty", "full", "eye",
    "identity", "arange", "linspace", "logspace", "geomspace", "tri", "zeros_like", "ones_like", "empty_like",
    "full_like", "copy", "diag", "tile", "repeat", "meshgrid", "indices", "stack", "vstack", "hstack", "concatenate",
    "outer", "vander", "tril", "triu", "fromfunction",
)  # fmt: skip

PLAIN: Scoped[bool] = Scoped(False)
"""Whether a plain function is run to be compared with its trace, where ``np.empty`` is zeros."""

_ZEROS: dict[str, Callable[..., Any]] = {"empty": np.zeros, "empty_like": np.zeros_like}


def _array(value: Any, dtype: Any = None, *, copy: Any = True, order: str = "K", ndmin: int = 0, **_: Any) -> Any:
    """``np.array`` of traced values."""
    if isinstance(value, Flat):
        value = value.copy()
    made = traced(value)
    kind = made.dtype if dtype is None else np.dtype(dtype)
    copy = None if copy is np._CopyMode.IF_NEEDED else copy  # which is no truth value
    named, rows = order in ("C", "F"), made if order != "F" else registry.call(np.transpose, made)
    if copy or kind != made.dtype or made is not value or made.is_scalar or (named and not is_dense(rows)):
        made = copied(build.cast(made.node, known_dtype(kind)), order)
    elif named and not made.memory.orderly and made.ndim > 1:  # it lies so, or it is copied
        made = copied(made.node, order)
        made.memory.doubt(rows.memory)
    if named and not copy:
        made.memory.reshaped = rows.memory.reshaped = True  # in memory of another order it would be a copy, or none
    made.is_scalar = False
    return made if made.ndim >= ndmin else registry.call(np.reshape, made, (1,) * (ndmin - made.ndim) + made.shape)


def _asarray(value: Any, dtype: Any = None, order: str = "K", *, copy: Any = None, **_: Any) -> Any:
    return _array(value, dtype, copy=bool(copy), order=order or "K")


def _contiguous(order: str) -> Callable[..., Any]:
    """``np.ascontiguousarray`` or ``np.asfortranarray`` of traced values."""
    return lambda value, dtype=None, **_: _array(value, dtype, copy=False, order=order, ndmin=1)


def _full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **_: Any) -> Any:
    value = traced(fill_value)
    node = build.cast(value.node, known_dtype(value.dtype if dtype is None else dtype))
    return TracedArray(build.broadcast_to(node, shape_of(shape)))


@registry.implements(np.linspace)
def _linspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: Any = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """``np.linspace`` between traced ends, whose own code looks at the step."""
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"Number of samples, {count}, must be non-negative.")
    ends = [end if is_weak(end) else traced(end) for end in (start, stop)]
    kind = np.result_type(0.0, *[end if is_weak(end) else end.dtype for end in ends])
    low, high = (traced(end).astype(kind) for end in ends)
    gaps = count - 1 if endpoint else count
    steps = np.arange(count, dtype=kind).reshape(-1, *[1] * max(low.ndim, high.ndim))
    step = (high - low) / gaps if gaps > 0 else high - low
    made = low + steps * step
    if endpoint and count > 1:
        made[-1] = high
    if dtype is not None:
        made = (np.floor(made) if np.dtype(dtype).kind in "iu" else made).astype(dtype)
    made = registry.call(np.moveaxis, made, 0, axis)
    return (made, step if gaps > 0 else np.float64(np.nan)) if retstep else made


_METHODS = ("reduce", "accumulate", "outer")
"""Methods of ufuncs that are given arrays, and no array to write to."""


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given arrays where it is given lists of traced arrays, which NumPy would ask for their values."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        trace = CURRENT.get()
        if trace is None or trace.thread != threading.get_ident():
            return function(*args, **kwargs)
        named = {key: value if key == "out" else _join(value) for key, value in kwargs.items()}
        return function(*map(_join, args), **named)

    if isinstance(function, np.ufunc):
        vars(run).update({name: _joined(getattr(function, name)) for name in _METHODS})
    return run


def _join(value: Any) -> Any:
    if not isinstance(value, (list, tuple, deque)):
        return value
    items = list(value)
    return CREATORS["asarray"](items) if holds_traced(items) else value


def _of_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for each of the arrays that a function puts together."""

    @functools.wraps(function)
    def run(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        return function([_join(a) for a in arrays] if isinstance(arrays, (list, tuple)) else arrays, *args, **kwargs)

    return run


_OF_LISTS = (
    "array_split", "block", "choose", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "pad",
    "piecewise", "ravel_multi_index", "rollaxis", "select", "split", "trim_zeros",
)  # fmt: skip
"""Functions beside ``NAMES`` to which lists are more than arrays."""
_OF_ARRAYS = (
    "copy", "diag", "full_like", "linspace", "meshgrid", "outer", "repeat", "tile", "tril", "triu", "vander",
)  # fmt: skip
"""Of ``NAMES``, those that are given arrays."""
_TRACED: dict[str, Callable[..., Any]] = {
    **{name: _joined(getattr(np, name)) for name in _OF_ARRAYS},
    **{name: _of_each(getattr(np, name)) for name in ("concatenate", "hstack", "stack", "vstack")},
    "array": _array,
    "asarray": _asarray,
    "asanyarray": _asarray,
    "ascontiguousarray": _contiguous("C"),
    "asfortranarray": _contiguous("F"),
    "full": _full,
}
"""What takes traced values and is not NumPy's to hand on."""


def _creator(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        trace = CURRENT.get()
        if trace is None or trace.thread != threading.get_ident():
            return _ZEROS.get(name, original)(*args, **kwargs) if PLAIN.get() else original(*args, **kwargs)
        return registry.attempt(f"np.{name}", original, args, kwargs, _create, name, original, args, kwargs)

    return create


def _create(name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        given, named = plain(args), {key: plain(value) for key, value in kwargs.items()}
        if any(isinstance(value, Flat) for value in given):
            raise Unknown
    except Unknown:
        return _TRACED.get(name, original)(*args, **kwargs)
    result = _ZEROS.get(name, original)(*given, **named)
    made = wrapped(result, [*args, *kwargs.values()] if name.startswith("as") else ())
    if name in ("zeros", "empty") and isinstance(made, TracedArray):
        made.memory.uniform = result.dtype.type(0)
    return made


CREATORS: dict[str, Callable[..., Any]] = {name: _creator(name, getattr(np, name)) for name in NAMES}
OF_ORIGINAL: dict[int, Callable[..., Any]] = {id(getattr(np, name)): CREATORS[name] for name in NAMES}
"""What user code sees in place of a function, by the identity of that."""
_CALLED: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {
        name: _of_each(value) if name in ("column_stack", "dstack") else _joined(value)
        for name, value in vars(np).items()
        if isinstance(value, (np.ufunc, type(np.sum))) and name not in (*NAMES, *_OF_LISTS)
    },
    "numpy.linalg": {
        name: _joined(getattr(np.linalg, name))
        for name in np.linalg.__all__
        if name not in ("LinAlgError", "multi_dot")
    },
}
"""What user code sees in place of functions of arrays: all that NumPy dispatches, and ufuncs. They differ only where
they are called: a function that is compared with another, or given to one, is itself."""
LATER: dict[str, Callable[[ModuleType], dict[str, Any]]] = {}
"""What makes the same for modules that the user may have imported."""


# Whose code is the user's

_LIBRARIES = tuple(
    str(Path(path).resolve()) + "/"
    for path in {
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(np.__file__).parent),
    }
    if path
)
_OURS = str(Path(__file__).resolve().parent.parent) + "/"
_users: dict[str, bool] = {}


def is_users(file: str, of: str = "") -> bool:
    """Whether code of a file is the user's: of no library, or of the one that the file ``of`` belongs to."""
    key = f"{file}\0{of}"
    found = _users.get(key)
    if found is None:
        found = _users[key] = _is_users(file, of)
    return found


def _is_users(file: str, of: str) -> bool:
    if file.startswith("<__array"):
        return False
    path = str(Path(file).resolve()) if not file.startswith("<") else file
    if path.startswith(_OURS) or "/eqsat_backends/" in path or "/eqsat_rules/" in path:
        return False
    for library in sorted(_LIBRARIES, key=len, reverse=True):
        if path.startswith(library):
            package = library + path[len(library) :].split("/")[0]
            return bool(of) and str(Path(of).resolve()).startswith(package)
    return True


def _called(steps: list[dis.Instruction], at: int) -> bool:
    """Whether what an instruction reads is called at once, or a method of it that is in ``_METHODS``.

    Python pushes a NULL for a call that is not a method's: before the whole callee, from 3.13 on behind it.
    """
    step, after = steps[at], steps[at + 1]
    if step.opname == "IMPORT_FROM":
        return False
    if after.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return after.argval in _METHODS
    if step.opname == "LOAD_METHOD" if sys.version_info < (3, 12) else (step.arg or 0) & 1:
        return True
    if sys.version_info >= (3, 13):
        return after.opname == "PUSH_NULL"
    while steps[at - 1].opname == "LOAD_ATTR":
        at -= 1
    base = steps[at - 1]
    return bool(base.opname == "LOAD_GLOBAL" and (base.arg or 0) & 1) or steps[at - 2].opname == "PUSH_NULL"


_read: dict[int, tuple[CodeType, dict[int, tuple[str, bool]]]] = {}
"""By identity: to hash the code of a long function takes Python 3.12 as long as to trace a line of it."""


def _attributes(code: CodeType) -> dict[int, tuple[str, bool]]:
    """The instructions of a function that read an attribute: by their places, caches among them, its name.

    And whether it is read to be called at once.
    """
    known = _read.get(id(code))
    if known is None:
        if len(_read) >= 1024:
            _read.clear()
        known = _read[id(code)] = code, dict(_reads(code))
    return known[1]


def _reads(code: CodeType) -> Iterator[tuple[int, tuple[str, bool]]]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    ends = [step.offset for step in steps[1:]] + [len(code.co_code)]
    for at, (step, end) in enumerate(zip(steps, ends, strict=True)):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            found = str(step.argval), _called(steps, at)
            yield from ((place, found) for place in range(step.offset, end))


class _Namespace(ModuleType):
    """A module while some function is traced.

    What it shows otherwise then are properties, so that all else is found as fast as in any module.
    """


def _property(name: str, shown: Any, called: bool = False) -> property:
    def get(module: ModuleType) -> Any:
        trace, held = CURRENT.get(), vars(module)[name]
        if (trace is not None or PLAIN.get()) and held is getattr(shown, "__wrapped__", held):  # not the user's own
            frame = sys._getframe(1)
            mine = is_users(frame.f_code.co_filename, trace.file if trace is not None else "")
            # C code has no frame of its own: the one that called it is at another instruction.
            if mine:
                read, at_once = _attributes(frame.f_code).get(frame.f_lasti, ("", False))
                if read == name and (at_once or not called):
                    return shown
        return held

    def put(module: ModuleType, value: Any) -> None:
        vars(module)[name] = value

    return property(get, put)


def _namespace(creators: Mapping[str, Any], called: Mapping[str, Any] = MappingProxyType({})) -> type[_Namespace]:
    members = {name: _property(name, made, called=True) for name, made in called.items()}
    return type("_Namespace", (_Namespace,), members | {name: _property(name, made) for name, made in creators.items()})


SHOWN: dict[str, type[_Namespace]] = {
    "numpy": _namespace(CREATORS, _CALLED["numpy"]),
    "numpy.linalg": _namespace({}, _CALLED["numpy.linalg"]),
}
"""What modules are while a function is traced."""

_lock = hold_over_fork(threading.RLock())


def show() -> None:
    """From here on user code on a thread that traces gets arrays from NumPy that traced values can be written to."""
    with _lock:
        for name in LATER.keys() - SHOWN.keys():
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                SHOWN[name] = _namespace(LATER[name](module))
        for name in SHOWN:
            module = sys.modules[name]
            if type(module) is ModuleType:
                module.__class__ = SHOWN[name]


def hide() -> None:
    """The modules are ordinary ones again, if nothing is traced any more."""
    with _lock:
        if not CURRENT.values and not PLAIN.values:
            for name in SHOWN:
                module = sys.modules[name]
                if isinstance(module, _Namespace):
                    module.__class__ = ModuleType  # type: ignore[assignment]


@contextmanager
def plainly() -> Iterator[None]:
    """Inside it, ``np.empty`` is zeros for user code on this thread, as in a trace."""
    before = PLAIN.set(True)
    show()
    try:
        yield
    finally:
        PLAIN.reset(before)
        hide()
