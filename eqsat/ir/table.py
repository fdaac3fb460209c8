"""The op table: one row says everything there is to know of an operator.

A row holds the operator's name, kind, type rule, NumPy reference, definition in index notation (a
:class:`~eqsat.ir.kernel.Kernel` over its inputs) and cost; of an elementwise function also how it is written, where it
is defined and what is known of it, for the frontend, listings, rules, proofs and random programs. What else lists
operators by name: rules, and how backends emit elementwise functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from eqsat.ir.kernel import Combine, Kernel
from eqsat.ir.node import Node, intern
from eqsat.ir.types import NotOfThisType, TensorType

OpKind = Literal[
    "source", "map", "view", "contract", "reduce", "concat", "pad", "gather", "opaque", "composite", "loop"
]

TypeRule = Callable[[Sequence[TensorType], object], TensorType]
Reference = Callable[[Sequence[np.ndarray], object], np.ndarray]
Definition = Callable[[Sequence[TensorType], object], Kernel]
Expansion = Callable[[Sequence[Node], object], Node]
Interval = tuple[float, float]
REALS: Interval = (-math.inf, math.inf)
Meaning = Callable[[Callable[[str, Any], Any], Any], Any]
"""Of ``(of, x)``, where ``of(name, y)`` is an operator of the table."""


@dataclass(frozen=True)
class Op:
    """A row of the op table.

    ``type_rule`` maps input types and attributes to the result's type, and raises ``ValueError`` with a
    message for the user where they do not fit. ``reference`` computes it with NumPy (also on float64
    inputs where the type says float32). ``definition`` is its meaning in index notation, None for
    operators that have none (sources, loops, and ``opaque`` ones, which run through the reference).
    ``expansion`` rewrites a composite in simpler operators. ``cost`` is the price of one element in
    vector instructions, of elementwise functions and opaque operators; if the operator ``sorts`` an axis (its
    attribute), for each doubling of that axis. ``running``: how an opaque operator combines an axis, each element with
    all before it, in order: backends may have kernels for it. ``arity``: how many tensors it takes, if that is fixed.
    ``traits`` are what rules iterate over, see ``TRAITS``. ``attrs``: the attribute where none is given, of operators
    that users define.

    Of elementwise functions: ``kinds`` of element types are those that they take. ``ufunc`` is NumPy's function that it
    is on numbers, ``scipy`` the name of that of ``scipy.special``, and ``text`` a call of it where that is not ``np.``
    and its name. ``domain``: the numbers of which it has a value, the first where it takes several; ``range``: bounds
    of its values, open if it ``grows``: strictly, over the reals of its domain. ``by``: what it is by others, for
    whatever can be added and negated. ``tried``: the arguments that random programs give it, so that what is rounded in
    them is not what comes out; None for what their builders know more of. ``slots``: issue slots of its vector code in
    a schedule, where ``cost`` is that of a kernel before; ``timed``: machine models have measured it.
    """

    name: str
    kind: OpKind
    type_rule: TypeRule
    reference: Reference
    definition: Definition | None = None
    expansion: Expansion | None = None
    cost: float = 1.0
    commutes: bool = False
    sorts: bool = False
    running: Combine | None = None
    arity: int | None = None
    traits: frozenset[str] = frozenset()
    attrs: object = None
    doc: str = ""
    kinds: tuple[str, ...] = ()
    ufunc: np.ufunc | None = None
    scipy: str = ""
    text: str = ""
    domain: Interval = REALS
    range: Interval = REALS
    grows: bool = False
    by: Meaning | None = None
    tried: Interval | None = None
    slots: float = 1.0
    timed: bool = False

    def call(self, args: Sequence[str]) -> str:
        """NumPy's or SciPy's, as text."""
        if self.text:
            return self.text.format(*args)
        name = f"np.{self.name}" if not self.scipy else f"scipy.special.{self.scipy}"
        name = name if self.ufunc is None else f"np.{self.ufunc.__name__}"
        return f"{name}({', '.join(args)})"


OPS: dict[str, Op] = {}

TRAITS = ("odd", "even", "increasing", "decreasing")
"""Of elementwise functions of one argument, on all numbers: ``f(-x) = -f(x)``, ``f(-x) = f(x)``, and order kept or
turned round, if not strictly."""


def having(trait: str) -> list[str]:
    """The operators with a trait, in the table's order."""
    return [row.name for row in OPS.values() if trait in row.traits]


COMPLEX: dict[str, Callable[[Sequence[Node], object], Node]] = {}
"""What operators mean on complex tensors, which are pairs of real ones (``ir.complexes``)."""

LARGEST = 2**63 - 1
"""Bytes of a tensor at most, also of one that is never stored: as in NumPy, positions in it are 64-bit integers."""


def register(op: Op) -> Op:
    """Add a row. ``ValueError`` if the name is taken or the row is incomplete."""
    if op.name in OPS:
        raise ValueError(f"operator {op.name!r} is in the table already")
    if op.kind == "composite" and op.expansion is None:
        raise ValueError(f"composite operator {op.name!r} needs an expansion")
    if op.kind not in ("source", "opaque", "composite", "loop") and op.definition is None:
        raise ValueError(f"operator {op.name!r} needs a definition in index notation")
    OPS[op.name] = op
    return op


def make(op: str, inputs: Sequence[Node] = (), attrs: object = None, *, label: str = "") -> Node:
    """The interned node, typed by the op table. ``ValueError`` where the inputs do not fit."""
    if op != "pair" and any(n.dtype.kind == "complex" for n in inputs):
        if op not in COMPLEX:
            raise NotOfThisType(f"{label or op} is not supported for complex numbers")
        return COMPLEX[op](inputs, attrs)
    row = OPS[op]
    type = row.type_rule([n.type for n in inputs], attrs)
    if type.nbytes > LARGEST:
        raise ValueError(f"{label or op}: an array of shape {type.shape} and type {type.dtype} is too big")
    return intern(op, tuple(inputs), attrs, type, label)
