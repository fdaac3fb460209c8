"""The op table: one row says everything there is to know of an operator.

A row holds the operator's name, kind, type rule, NumPy reference, definition in index notation (a
:class:`~eqsat.ir.kernel.Kernel` over its inputs) and cost class. What else lists operators by name: rules, what the
NumPy frontend traces to them, how backends emit the elementwise functions, their cost in a schedule
(``cost.movement``), how listings print them, and the strategies of random programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

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
    ``traits`` are what rules iterate over, see ``TRAITS``. ``ufunc``: NumPy's function that it is on numbers.
    ``attrs``: the attribute where none is given, of operators that users define.
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
    ufunc: np.ufunc | None = None
    attrs: object = None
    doc: str = ""


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
