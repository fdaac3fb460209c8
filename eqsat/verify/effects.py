"""Whether a function does nothing but compute, as far as its code shows: only then is it run to be timed.

Only what is known to have no effect counts: operators, functions of NumPy and SciPy, some of Python's own, and
functions made of those. Of everything else the first such thing is named.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from eqsat.frontends.source import is_users

__all__ = ["effect"]

_LIBRARIES = ("numpy", "scipy", "math", "cmath", "operator", "itertools", "functools", "eqsat", "typing", "dataclasses")
_FUNCTIONS = (abs, all, any, callable, chr, divmod, format, getattr, hasattr, hash, id, isinstance, issubclass, iter)
_MORE = (len, max, min, next, ord, pow, repr, round, sorted, sum, builtins.__build_class__)
_FILES = ("save", "savez", "savez_compressed", "savetxt", "tofile", "dump", "memmap", "open_memmap")
_EFFECTS = frozenset((*_FILES, "random", "seed", "seterr", "seterrcall", "setbufsize", "set_printoptions"))
"""Attributes, of modules and arrays, that write files, draw numbers or change settings."""
_GENERATED = ("<string>", dataclasses.__file__)
"""Files of the code that the decorator of dataclasses makes."""
_DATA = (bool, int, float, complex, str, bytes, type(None), type(...), slice, range, np.ndarray, np.generic, np.dtype)


def effect(fn: Callable[..., Any], arguments: Sequence[Any] = ()) -> str:
    """The first thing that a function does, or may do, besides computing; empty if there is none.

    ``arguments``: what it is called with besides arrays, of which functions may be called, too.
    """
    seen: set[int] = set()
    for value in (fn, *arguments):
        found = _of(value, seen)
        if found:
            return found
    return ""


def _of(value: Any, seen: set[int]) -> str:
    """What calling a value, or using it, may do besides computing."""
    if id(value) in seen or isinstance(value, _DATA):
        return ""
    seen.add(id(value))
    if isinstance(value, ModuleType):
        return "" if value.__name__.split(".")[0] in _LIBRARIES else f"it uses the module {value.__name__}"
    if isinstance(value, (tuple, frozenset)):
        return next((found for part in value if (found := _of(part, seen))), "")
    if isinstance(value, functools.partial):
        return _of((value.func, *value.args, *value.keywords.values()), seen)
    if isinstance(value, MethodType):
        return _of(value.__func__, seen) or _of(value.__self__, seen)
    if isinstance(value, FunctionType):
        return _of_function(value, seen)
    wrapped = getattr(value, "__wrapped__", None) if not isinstance(value, type) else None
    if isinstance(wrapped, FunctionType):
        return _of(wrapped, seen)
    if dataclasses.is_dataclass(value):
        kind = value if isinstance(value, type) else type(value)
        own = (m for m in vars(kind).values() if isinstance(m, FunctionType))
        return _of(tuple(m for m in own if m.__code__.co_filename not in _GENERATED), seen)
    name = getattr(value, "__name__", type(value).__name__)
    if getattr(builtins, name, None) is value:
        return "" if isinstance(value, type) or value in (*_FUNCTIONS, *_MORE) else f"it calls {name}"
    if isinstance(value, type) and issubclass(value, (tuple, BaseException)):
        return ""
    if isinstance(value, (BuiltinFunctionType, np.ufunc, type)) or callable(value):
        root = (getattr(value, "__module__", None) or type(value).__module__).split(".")[0]
        return "" if root in _LIBRARIES or root.startswith("_") else f"it uses {name}"
    return f"it uses a {name} from outside, which may change"


def _of_function(fn: FunctionType, seen: set[int]) -> str:
    if not is_users(fn.__code__.co_filename):
        return ""
    outside = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            outside[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            return f"it uses {name}, which has no value yet"
    found = _of_code(fn.__code__, {**vars(builtins), **fn.__globals__}, outside, seen)
    if found and "(" not in found:
        found += f" ({os.path.basename(fn.__code__.co_filename)}:{fn.__code__.co_firstlineno})"
    return found


def _of_code(code: CodeType, names: dict[str, Any], outside: dict[str, Any], seen: set[int]) -> str:
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "it is asynchronous"
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        op, name = instruction.opname, instruction.argval
        if op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"it sets the global variable {name}"
        if op in ("STORE_DEREF", "DELETE_DEREF") and name in outside:
            return f"it sets the variable {name} of the function around it"
        if op in ("STORE_ATTR", "DELETE_ATTR"):
            return f"it sets the attribute {name}"
        if op == "IMPORT_NAME" and name.split(".")[0] not in _LIBRARIES:
            return f"it imports {name}"
        if op in ("LOAD_ATTR", "LOAD_METHOD") and name in _EFFECTS:
            return f"it uses {name}"
        known = names if op in ("LOAD_GLOBAL", "LOAD_NAME") else outside if op.startswith("LOAD_") else {}
        if isinstance(name, str) and name in known:
            value = known[name]
            then = instructions[at + 1]
            if isinstance(value, ModuleType) and then.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                value = getattr(value, then.argval, value)
            found = _of(value, seen)
            if found:
                return found
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return next((found for part in inner if (found := _of_code(part, names, outside, seen))), "")
