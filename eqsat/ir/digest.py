"""A hash of a kernel group by content: equal groups have the same, in every process, whatever they share."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from eqsat.ir.identity import identity
from eqsat.ir.kernel import Expr, KernelGroup, unique


def group_digest(group: KernelGroup) -> str:
    """Of what is computed from which buffers, not of names. Expressions may be deep: no recursion over them."""
    numbers: dict[Any, int] = {}
    known: dict[int, int] = {}
    for stage in group.stages:
        for expr in unique(stage.kernel.body, stage.kernel.epilogue, *stage.kernel.domain):
            known[id(expr)] = numbers.setdefault(_fields(expr, known), len(numbers))
    stages = tuple(_content(stage, known) for stage in group.stages)
    rest = tuple(_content(part, known) for part in (group.shared, group.operands, group.unless))
    return hashlib.blake2b(repr((*numbers, stages, rest)).encode(), digest_size=16).hexdigest()


def _content(value: Any, known: dict[int, int]) -> Any:
    if isinstance(value, Expr):
        return "expression", known[id(value)]
    if isinstance(value, tuple):
        return "tuple", *(_content(part, known) for part in value)
    if dataclasses.is_dataclass(value):
        return _fields(value, known)
    return identity(value)


def _fields(value: Any, known: dict[int, int]) -> Any:
    return type(value).__name__, *(_content(getattr(value, f.name), known) for f in dataclasses.fields(value))
