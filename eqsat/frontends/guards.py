"""Values that Python asks for while a function is traced: truth values and integers that decide what it does next.

Python is told the value of the call that is traced, and the trace holds for calls in which it is the same: its *guards*
are further outputs of the program, which say whether it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eqsat.frontends.source import user_line
from eqsat.ir import build
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import Node, Source, topological
from eqsat.ir.types import bool_, int64

if TYPE_CHECKING:
    from eqsat.frontends.tracing import Trace

MOST_GUARDS = 16
"""Values that Python may ask for in one trace: a loop until something converges asks for one in every turn."""

CHOOSE = (
    "compute both and choose by np.where(condition, a, b); np.minimum/maximum for min/max, np.logical_and/or/not for "
    "and/or/not"
)

KEEP = "keep the shape: choose by np.where(mask, a, b), add up by x[mask].sum()"


@dataclass(frozen=True)
class Guard:
    """A value that Python asked for while a function was traced, and where: the trace is right where it is the same.

    ``what``: what the value stands for, where it is no value of the user's.
    """

    node: Node
    value: int
    where: Source | None
    what: str = ""

    @property
    def fix(self) -> str:
        """What to write instead."""
        return KEEP if self.what else CHOOSE

    def __str__(self) -> str:
        if self.what:
            return f"{self.what} at {self.where}"
        value = bool(self.value) if self.node.dtype.kind == "bool" else self.value
        return f"the value {value} at {self.where}"


def told(trace: Trace | None, node: Node, kind: type[bool] | type[int], what: str = "") -> int | None:
    """What Python is told of a node of one element; None where the trace may not be for this value only.

    ``what``: what the value stands for, where it is no value of the user's.
    That is so under ``strict=True``, in bodies of loops, after `MOST_GUARDS` values, and for an integer of NaN.
    """
    if trace is None or trace.guards is None or node.type.size != 1 or node.dtype.kind == "complex":
        return None
    asked = build.reshape(node, ())
    if kind is bool and node.dtype is not bool_:
        asked = build.call("ne", asked, build.const(np.zeros((), node.dtype.numpy), node.dtype))
    elif kind is int and node.dtype.is_float:
        asked = build.cast(asked, int64)
    for guard in trace.guards:
        if guard.node is asked:
            return guard.value
    if len(trace.guards) == MOST_GUARDS or any(n.op == "input" for n in topological([asked], trace.values)):
        return None
    value, given = evaluate_nodes([asked, node], trace.values, deadline=trace.deadline)
    trace.values[node] = given
    if kind is int and not (np.isfinite(given).all() and abs(given.item()) < 2**63):
        return None  # the integers that other numbers become are not Python's
    trace.guards.append(Guard(asked, int(value.item()), user_line(), what))
    return trace.guards[-1].value


def may_guard(trace: Trace | None) -> bool:
    """Whether the trace may be for calls in which another value is the same."""
    return trace is not None and trace.guards is not None and len(trace.guards) < MOST_GUARDS
