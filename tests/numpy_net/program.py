"""A program as text: a file that can be pasted, with its inputs and the options it is to be optimized with."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

FILE = "<numpy_net>"

HELPERS = {
    "frozen": """\
def frozen(a):
    a = a.copy()
    a.flags.writeable = False
    return a
""",
    "misaligned": """\
def misaligned(a):
    raw = b"\\0" + np.ascontiguousarray(a).tobytes()
    return np.frombuffer(raw, a.dtype, offset=1).reshape(a.shape)
""",
    "special": """\
def special(shape, dtype=np.float64, seed=0):
    tiny, big = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    few = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.5, tiny, -tiny, big, -big, 0.5], dtype)
    return np.random.default_rng(seed).choice(few, shape)
""",
    "edges": """\
def edges(shape, dtype, seed=0):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    few = np.array([low, low + 1, -2, -1, 0, 1, 2, 3, high // 2, high - 1, high], dtype)
    return np.random.default_rng(seed).choice(few, shape)
""",
    "squash": """\
def squash(x, *, scale=2.0):
    return np.tanh(x / scale)
""",
    "affine": """\
def affine(scale, shift=0.0):
    def apply(x):
        return x * scale + shift
    return apply
""",
    "tree_sum": """\
def tree_sum(parts):
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return tree_sum(parts[:half]) + tree_sum(parts[half:])
""",
    "compose": """\
compose = lambda *fs: functools.reduce(lambda g, h: lambda x: h(g(x)), fs)
""",
    "Pair": """\
class Pair(NamedTuple):
    first: Any
    second: Any
""",
    "Layer": """\
@dataclass
class Layer:
    w: Any
    b: Any
""",
}
"""Definitions that a program's text is given where it uses them."""

IMPORTS = {
    "functools": "import functools",
    "NamedTuple": "from typing import NamedTuple",
    "Any": "from typing import Any",
    "dataclass": "from dataclasses import dataclass",
    "as_strided": "from numpy.lib.stride_tricks import as_strided",
    "sliding_window_view": "from numpy.lib.stride_tricks import sliding_window_view",
    "math": "import math",
}


MEMORY = 4 << 30
"""Bytes of address space: an array of ten thousand million elements is a ``MemoryError`` and no dead machine."""


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """While this holds, the process may not have more than ``MEMORY`` bytes mapped."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    least = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def words(text: str) -> tuple[str, ...]:
    """The words of a text, for lists of names that are read as prose."""
    return tuple(text.split())


@dataclass(frozen=True)
class Program:
    """A function and its inputs.

    ``inputs``: name and expression (over ``rng``, ``seed`` and the sizes) of each array; ``arguments``: parameter of
    the function and expression over the inputs; ``unpack``: lines that take inputs out of parameters that hold
    several; ``body``: statements, each with the names it defines first; ``result``: what is returned.
    """

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()
    keywords: tuple[str, ...] = ()
    unpack: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    result: str = "None"
    options: dict[str, Any] = field(default_factory=dict)
    other_sizes: dict[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    def source(self) -> str:
        """The text that defines ``inputs`` and ``f``."""
        captured = "\n".join(self.captured)
        made = "".join(f"    {name} = {expression}\n" for name, expression in self.inputs)
        positional = ", ".join(e for n, e in self.arguments if n not in self.keywords)
        named = ", ".join(f"{n!r}: {e}" for n, e in self.arguments if n in self.keywords)
        plain = [n for n, _ in self.arguments if n not in self.keywords]
        only = ["*", *self.keywords] if self.keywords else []
        sizes = "".join(f", {n}={v}" for n, v in self.sizes.items())
        text = (
            f"def inputs(seed=0{sizes}):\n    rng = np.random.default_rng(seed)\n{made}"
            f"    return ({positional}{',' if positional else ''}), {{{named}}}\n\n\n"
            f"def f({', '.join([*plain, *only])}):\n"
        )
        for block in (*self.unpack, *self.body, f"return {self.result}"):
            text += "".join(f"    {line}\n" for line in block.splitlines())
        everything = captured + "\n" + text
        helpers = ""
        for name in reversed(HELPERS):
            if _uses(everything + helpers, name):
                helpers = HELPERS[name] + "\n\n" + helpers
        everything = helpers + everything
        imports = [line for name, line in IMPORTS.items() if _uses(everything, name)]
        return "\n".join([*imports, "import numpy as np", "", "", ""]) + everything

    def script(self) -> str:
        """The source, with a comparison to run."""
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return (
            f"{self.source()}\n\nif __name__ == '__main__':\n    import eqsat\n\n"
            "    args, kwargs = inputs()\n    print(f(*args, **kwargs))\n    args, kwargs = inputs()\n"
            f"    print(eqsat.optimize(f{options})(*args, **kwargs))\n"
        )

    def to_json(self) -> str:
        """As one line; ``from_json`` reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """What ``to_json`` wrote."""
        data = json.loads(text)
        for name in ("captured", "keywords", "unpack", "body", "tags"):
            data[name] = tuple(data[name])
        for name in ("inputs", "arguments"):
            data[name] = tuple((a, b) for a, b in data[name])
        return Program(**data)

    def but(self, **changes: Any) -> Program:
        """A copy with some fields changed."""
        return replace(self, **changes)


def _uses(text: str, name: str) -> bool:
    return f"{name}(" in text or f"{name}:" in text or f"{name}." in text or f"{name}\n" in text or f"{name})" in text


def load(source: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``inputs`` and ``f`` of a program's text. The text is kept for tracebacks and for ``inspect``."""
    import linecache
    import sys
    import types

    module = types.ModuleType("numpy_net_program")
    sys.modules[module.__name__] = module  # dataclasses and named tuples look their module up
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    exec(compile(source, FILE, "exec"), module.__dict__)
    return module.inputs, module.f
