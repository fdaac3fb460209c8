"""Content hashes of what decides: the engine's files, and Python objects with all that they refer to.

A function's content is its bytecode and constants, its defaults, what its closure captured, and the globals it uses,
each by content in turn. What is part of Python or of an installed package goes by name and version. Other objects go by
what pickle would keep of them; an object that cannot be pickled has no content that another process could recognise.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import pickle
import platform
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.installed import version


class UnknownContent(Exception):
    """What an object refers to cannot be told; the argument says what stands in the way."""


def files_digest(files: Iterable[tuple[str, str]]) -> str:
    """A hash of files' names, as given, and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for name, path in sorted(files):
        digest.update(hashlib.blake2b(name.encode()).digest() + hashlib.blake2b(_bytes(path)).digest())
    return digest.hexdigest()


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def code_files(folder: str) -> Iterator[tuple[str, str]]:
    """Python files and compiled extensions below a folder, by their place in it."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            if name.endswith((".py", ".so", ".pyd")):
                path = os.path.join(place, name)
                yield os.path.relpath(path, folder), path


@cache
def code_fingerprint() -> str:
    """Changes whenever the engine does, or what its search rests on: plans of another version are not used."""
    parts = [files_digest(code_files(os.path.dirname(__file__))), platform.python_version()]
    parts += [f"{package} {version(package)}" for package in ("egglog", "numpy", "scipy")]
    return hashlib.blake2b(";".join(parts).encode(), digest_size=12).hexdigest()


def content_digest(value: object, stand_in: Callable[[object], object] = lambda value: value) -> str:
    """A hash of an object and all that it refers to, the same in every process that has the same.

    ``stand_in`` may give another object to be hashed for one that is met.

    Raises:
        UnknownContent: some of it cannot be told, or there is too much of it.
    """
    found = _Content(stand_in, {}, iter(range(MOST_PARTS)))
    try:
        found.add(value)
    except RecursionError:
        raise UnknownContent("it is nested too deeply") from None
    return found.digest.hexdigest()


MOST_PARTS = 1_000_000
"""Parts of an object that are looked at, about a second's work: a larger one is not recognised."""

_ATOMS = (bool, int, str, bytes, type(None), type(...), type(NotImplemented))
OWN = ("eqsat", "eqsat_rules", "eqsat_backends")  # in the key of a plan by the contents of their files
_OPEN = frozenset({"__import__", "compile", "eval", "exec", "globals", "input", "open"})
_NOT_CONTENT = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
)
_CODE = (
    *("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_consts"),
)


class _Content:
    """The digest of one object. ``elements``, those of sets' elements, and ``parts`` are shared with these.

    What is kept by ``id`` is held: no other object gets it.
    """

    def __init__(
        self, stand_in: Callable[[object], object], elements: dict[int, tuple[str, object]], parts: Iterator[int]
    ) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self.stand_in = stand_in
        self.elements = elements
        self.parts = parts
        self.seen: dict[Hashable, tuple[int, object]] = {}
        self.again: dict[int, tuple[bytes | None, object]] = {}

    def mark(self, *parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            self.digest.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: object) -> None:
        if next(self.parts, None) is None:
            raise UnknownContent("it has too many parts")
        value = self.stand_in(value)
        kind = type(value)
        if kind in _ATOMS:
            self.mark(kind.__name__, hex(value) if isinstance(value, int) else value)
        elif isinstance(value, float) and kind is float:
            self.mark("float", struct.pack("<d", value))
        elif isinstance(value, complex) and kind is complex:
            self.mark("complex", struct.pack("<dd", value.real, value.imag))
        elif isinstance(value, tuple) and kind is tuple:
            self.constant("tuple", value, value)
        elif isinstance(value, types.CodeType):
            self.constant("code", value, (getattr(value, name) for name in _CODE))
        elif id(value) in self.seen:
            self.mark("seen", self.seen[id(value)][0])
        else:
            self.seen[id(value)] = len(self.seen), value
            self.compound(value, kind)

    def constant(self, label: str, value: object, parts: Iterable[object]) -> None:
        """What has no identity: whether equal ones are the same object is up to Python's compiler, and does not count.

        From the second time on, all within has been seen, and so its digest stays as it is.
        """
        digest, _ = self.again.get(id(value), (None, None))
        if digest is None:
            outer, self.digest = self.digest, hashlib.blake2b(digest_size=16)
            try:
                self.items(label, parts)
                digest = self.digest.digest()
            finally:
                self.digest = outer
            self.again[id(value)] = (digest if id(value) in self.again else None, value)
        self.mark(digest)

    def items(self, label: str, values: Iterable[object]) -> None:
        found = list(values)
        self.mark(label, len(found))
        for value in found:
            self.add(value)

    def compound(self, value: Any, kind: type) -> None:
        if kind is list:
            self.items("list", value)
        elif kind is dict or kind is types.MappingProxyType:
            self.items("dict", (part for item in value.items() for part in item))
        elif kind is set or kind is frozenset:
            self.mark(kind.__name__, *sorted(map(self.element, value)))
        elif kind is np.ndarray and not value.dtype.hasobject:
            self.mark("array", value.dtype.descr, value.shape, np.ascontiguousarray(value).tobytes())
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, type):
            self.type(value)
        elif isinstance(value, types.ModuleType):
            self.module(value, frozenset())
        elif isinstance(value, types.MethodType):
            self.items("method", (value.__func__, value.__self__))
        elif isinstance(value, (staticmethod, classmethod)):
            self.items(kind.__name__, (value.__func__,))
        elif isinstance(value, property):
            self.items("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self.items("property", (value.func,))
        elif isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self.mark("slot", value.__name__)
        elif isinstance(
            value, (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
        ):
            self.items("descriptor", (value.__objclass__, value.__name__))
        elif hasattr(value, "__wrapped__") and kind.__module__ == "functools":
            self.items("cached", (value.__wrapped__,))
        else:
            self.reduced(value)

    def element(self, value: object) -> str:
        """The digest of an element of a set by itself: they have no order."""
        if id(value) not in self.elements:
            found = _Content(self.stand_in, self.elements, self.parts)
            found.add(value)
            self.elements[id(value)] = found.digest.hexdigest(), value
        return self.elements[id(value)][0]

    def reduced(self, value: Any) -> None:
        """An object by what pickle would keep."""
        try:
            own = copyreg.dispatch_table.get(type(value))
            found = own(value) if own is not None else value.__reduce_ex__(4)
        except Exception as error:  # the object's own code: it may raise anything
            raise UnknownContent(f"a {type(value).__qualname__} ({error})") from None
        if isinstance(found, str):  # a name of a module
            module = pickle.whichmodule(value, found)  # type: ignore[attr-defined]
            if not self.named(value, module, found):
                raise UnknownContent(f"{found} of module {module}")
            return
        make, arguments, *state = found
        self.items("object", (make, arguments, *(list(s) if isinstance(s, Iterator) else s for s in state)))

    def named(self, value: object, module: object, name: str) -> bool:
        """Hash what an installed package calls ``name`` by that name. Whether this is so."""
        release = _release(module) if isinstance(module, str) else None
        if release is None or _attribute(sys.modules.get(str(module)), name) is not value:
            return False
        self.mark("name", module, name, release)
        return True

    def function(self, value: types.FunctionType) -> None:
        if self.named(value, value.__module__, value.__qualname__):
            return
        names = frozenset(_all_names(value.__code__))
        self.mark("function")
        self.items("parts", (value.__code__, value.__defaults__, value.__kwdefaults__, value.__dict__))
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                self.mark("empty cell")
            else:
                self.reference(content, names)
        for name, parts, level in sorted(set(_imports(value.__code__))):
            package = value.__globals__.get("__package__")
            try:
                module = importlib.util.resolve_name("." * level + name, package)
            except ImportError:
                raise UnknownContent(f"what {value.__qualname__} imports from its package") from None
            self.imported(module, parts, names)
        for name in sorted(set(_references(value.__code__))):
            self.mark("global", name)
            if name in value.__globals__:
                self.reference(value.__globals__[name], names)
            elif name in _OPEN:
                raise UnknownContent(f"what {value.__qualname__} does by {name}()")
            else:
                self.mark("builtin" if hasattr(builtins, name) else "nothing")

    def reference(self, value: object, names: frozenset[str]) -> None:
        """What a function that uses ``names`` refers to."""
        if isinstance(value, types.ModuleType):
            self.module(value, names)
        else:
            self.add(value)

    def imported(self, name: str, parts: tuple[str, ...], names: frozenset[str]) -> None:
        """``import name``, or ``from name import parts``."""
        self.mark("import", name)
        if _release(name) is not None:
            self.mark(_release(name))
            return
        module = sys.modules.get(name)
        if module is None:
            raise UnknownContent(f"the module {name}, which is not imported yet")
        for part in parts:
            if part not in vars(module):
                raise UnknownContent(f"{part} of the module {name}, which it does not have yet")
        self.module(module, names)
        if not parts:
            self.module(sys.modules[name.partition(".")[0]], names)

    def module(self, value: types.ModuleType, names: frozenset[str]) -> None:
        """A module by what a function that uses ``names`` can take from it."""
        known = self.seen.get((id(value), names))
        if known is not None:
            self.mark("seen", known[0])
            return
        self.seen[id(value), names] = len(self.seen), value
        self.mark("module", value.__name__)
        release = _release(value.__name__)
        if release is not None:
            self.mark(release)
            return
        if not names:
            raise UnknownContent(f"the module {value.__name__}")
        space = vars(value)
        for name in sorted(names & space.keys()):
            self.mark(name)
            self.reference(space[name], names)

    def type(self, value: type) -> None:
        if self.named(value, value.__module__, value.__qualname__):
            return
        own = {name: part for name, part in vars(value).items() if name not in _NOT_CONTENT}
        self.items("class", (value.__qualname__, type(value), value.__bases__, dict(sorted(own.items()))))


def _attribute(module: object, path: str) -> object:
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _references(code: types.CodeType) -> Iterator[str]:
    """Names of the globals that code and the functions within it load."""
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                yield str(instruction.argval)


def _imports(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """What code and the functions within it import: the module, the names taken from it, and the level: how many dots
    come before the module."""
    for each in _codes(code):
        loaded: list[Any] = [None, None]  # by the instructions before: IMPORT_NAME takes a level and a tuple of names
        for instruction in dis.get_instructions(each):
            if instruction.opname == "IMPORT_NAME":
                level, names = loaded
                if not isinstance(level, int) or not isinstance(names, tuple | None):
                    raise UnknownContent(f"what {code.co_qualname} imports")
                yield str(instruction.argval), names or (), level
            if instruction.opname != "EXTENDED_ARG":
                loaded = [loaded[1], instruction.argval]


def _all_names(code: types.CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _release(module: str) -> str | None:
    """What stands for the contents of an installed module: the version of Python or of its package. None for modules
    that may change without their version, such as scripts, notebooks, and packages installed for editing."""
    top = module.partition(".")[0]
    if top in OWN:
        return "own"
    package = sys.modules.get(top)
    if top in sys.stdlib_module_names and top != "__main__":
        spec = getattr(package, "__spec__", None) if top in sys.modules else importlib.util.find_spec(top)
        return platform.python_version() if _of_python(getattr(spec, "origin", None)) else None
    file, release = getattr(package, "__file__", None), getattr(package, "__version__", None)
    return release if isinstance(file, str) and isinstance(release, str) and _installed(file) else None


@cache
def _installed(file: str) -> bool:
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(Path(file).is_relative_to(place) for place in places if place)


@cache
def _of_python(origin: str | None) -> bool:
    """Whether a module from this place is one of the standard library, and not a user's of the same name."""
    if origin is None or origin in ("built-in", "frozen"):
        return origin is not None
    places = {os.path.dirname(os.__file__), sysconfig.get_path("platstdlib"), os.path.join(sys.base_prefix, "DLLs")}
    path = Path(origin)
    return any(path.is_relative_to(p) for p in places if p) and not {"site-packages", "dist-packages"} & {*path.parts}
