"""What becomes of each public function of NumPy on traced arrays: a row each, from which ``docs/functions.md`` is made.

Run as ``python -m eqsat.frontends.functions`` this prints that document.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np

from eqsat.frontends import trace as _registrations  # noqa: F401
from eqsat.frontends.libraries import MODULES as LIBRARIES
from eqsat.frontends.libraries import WRITTEN
from eqsat.frontends.lookups import STEPS
from eqsat.frontends.registry import FUNCTIONS, REFUSED, SIZED, full_name
from eqsat.frontends.ufuncs import PAIRS, SCIPY, UFUNCS, Builder
from eqsat.ir import build
from eqsat.ir.types import TensorType, bool_, float64, int64

Kind = Literal["kernel", "rewrite", "opaque", "sized", "constant", "refused"]

MODULES: tuple[ModuleType, ...] = (np, np.linalg, np.fft)

KINDS: dict[Kind, str] = {
    "kernel": "one operator of the compiled program",
    "rewrite": "written in operators, which are compiled and fused like all others",
    "opaque": "a step of the program that NumPy itself runs between kernels; its result's shapes and types must depend "
    "on its arguments' alone",
    "sized": "an opaque step with results whose shapes depend on values: a program for each of up to four shapes (an "
    "error under `strict=True`)",
    "constant": "it takes no traced arrays: NumPy runs it while the function is traced, and its result is a constant",
    "refused": "NumPy runs the whole function that calls it, with a warning (an error under `strict=True`)",
}


def _words(text: str) -> list[str]:
    return text.split()


OPERATORS = frozenset(
    _words(
        "all amax amin any argmax argmin argsort broadcast_to concatenate cumprod cumsum diagonal dot einsum "
        "expand_dims flip matmul matrix_transpose matvec max mean min moveaxis outer pad prod repeat reshape roll "
        "sort squeeze stack sum swapaxes take tensordot transpose vecdot vecmat where"
    )
)
"""Functions with an implementation that is one operator, perhaps with views before and after."""

_FILES = "it reads or writes files"
_TEXT = "it makes text of values, which are not known while the function is traced"
_SETTINGS = "it changes or shows settings of the process"
_OTHER: dict[str, str] = {
    **dict.fromkeys(_words("fromfile fromregex genfromtxt load loadtxt"), _FILES),
    **dict.fromkeys(_words("format_float_positional format_float_scientific"), _TEXT),
    **dict.fromkeys(
        _words(
            "getbufsize geterr geterrcall get_printoptions info printoptions set_printoptions setbufsize seterr "
            "seterrcall show_config show_runtime test"
        ),
        _SETTINGS,
    ),
    "asmatrix": "matrices have operators of their own; use arrays",
    "bmat": "matrices have operators of their own; use np.block",
    "from_dlpack": "memory is not known while the function is traced; return it and convert it outside",
    "frombuffer": "memory is not known while the function is traced; return it and convert it outside",
    "nested_iters": "it walks over memory, which is not known while the function is traced; use whole arrays",
}
"""Functions that ask no traced array what to do, and why they are no part of a program."""


@dataclass(frozen=True)
class Row:
    """A function, by the name it is called by, and what becomes of it. ``note``: why it is refused, or in part."""

    module: str
    name: str
    kind: Kind
    note: str = ""


def rows() -> list[Row]:
    """A row for every public function of ``MODULES``."""
    return [_row(module, name, getattr(module, name)) for module in MODULES for name in public(module)]


def public(module: ModuleType) -> Iterator[str]:
    """Names of a module's functions: what can be called and is no type."""
    for name in sorted(set(dir(module))):
        value = getattr(module, name)
        if not name.startswith("_") and callable(value) and not isinstance(value, type):
            yield name


def _row(module: ModuleType, name: str, function: Any) -> Row:
    full = full_name(function)
    note = REFUSED.get(full, "") or SIZED.get(full, "")
    if function in UFUNCS:
        return Row(module.__name__, name, _elementwise(function, UFUNCS[function]), note)
    if function in FUNCTIONS or function in PAIRS:
        kind: Kind = "opaque" if function in STEPS else "kernel" if function.__name__ in OPERATORS else "rewrite"
        return Row(module.__name__, name, kind, note)
    if note:
        return Row(module.__name__, name, "sized" if full in SIZED else "refused", note)
    if name in _OTHER:
        return Row(module.__name__, name, "refused", _OTHER[name])
    asks = isinstance(function, np.ufunc) or hasattr(function, "_implementation")
    return Row(module.__name__, name, "opaque" if asks else "constant")


def _elementwise(ufunc: np.ufunc, builder: Builder) -> Kind:
    """Whether a ufunc is one operator, of floats or else of what it takes, or several."""
    taken = {loop[0] for loop in ufunc.types}
    type = TensorType((2,), next(t for t in (float64, int64, bool_) if t.numpy.char in taken))
    node = builder(*(build.input_node(i, type, "x") for i in range(ufunc.nin)))
    return "kernel" if all(x.op in ("input", "const", "view") for x in node.inputs) else "rewrite"


def scipy_rows() -> list[Row]:
    """A row for every function of SciPy that becomes operators; SciPy must be there."""
    special = importlib.import_module("scipy.special")
    found = [Row("scipy.special", name, _elementwise(getattr(special, name), SCIPY[name])) for name in SCIPY]
    for full in WRITTEN:
        module, _, name = full.rpartition(".")
        found.append(Row(module, name, "rewrite"))
    return sorted(found, key=lambda row: (row.module, row.name))


def markdown() -> str:
    """The document."""
    found = rows()
    counts = {kind: sum(row.kind == kind for row in found) for kind in KINDS}
    lines = [
        "# Functions of NumPy on traced arrays",
        "",
        "Made by `python -m eqsat.frontends.functions`; do not edit. Methods and operators of arrays are the functions "
        "of the same name. Where an implementation does not have an argument, the call is an opaque step.",
        "",
        "| kind | functions | what becomes of a call |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {text} |" for kind, text in KINDS.items()),
        "",
        "Of SciPy, the functions in the last table become operators; all other ufuncs of `scipy.special` and functions "
        f"of {', '.join(f'`{name}`' for name in LIBRARIES)} are opaque steps, where they return arrays. "
        "Of functions of other libraries and one's own `eqsat.opaque(function)` makes opaque steps.",
    ]
    for module in MODULES:
        lines += ["", f"## {module.__name__}", "", "| function | kind | note |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.kind} | {_note(row)} |" for row in found if row.module == module.__name__]
    lines += ["", "## scipy", "", "| function | kind |", "|---|---|"]
    lines += [f"| `{row.module}.{row.name}` | {row.kind} |" for row in scipy_rows()]
    return "\n".join(lines) + "\n"


def _note(row: Row) -> str:
    partly = row.note and row.kind not in ("refused", "sized")
    return f"not in every form: {row.note}" if partly else row.note


if __name__ == "__main__":
    print(markdown(), end="")
