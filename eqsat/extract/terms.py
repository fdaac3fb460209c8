"""What extraction chooses: for each tensor that is stored, the term that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqsat.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Read:
    """A stored tensor read by a kernel. ``const``: known when the program is compiled."""

    eclass: int
    type: TensorType
    const: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """An e-node with its operands either inlined (streams) or read (stored tensors)."""

    eclass: int
    op: str
    attrs: object
    type: TensorType
    children: tuple[Term | Read, ...]

    def reads(self) -> Iterator[Read]:
        """Every stored tensor it reads, once per use, left to right."""
        for child in self.children:
            if isinstance(child, Read):
                yield child
            else:
                yield from child.reads()


@dataclass(frozen=True)
class Selection:
    """A program as kernels over stored tensors.

    ``kernels`` are in dependency order; each stores the tensor of its ``eclass``. ``constants`` are
    tensors known at compile time, as terms over ``const`` and constant ``input`` leaves, in dependency
    order too; they cost nothing at run time. ``seconds`` is the predicted roofline time, ``bound`` a
    proven lower bound of it over the same candidates, so that ``1 - bound / seconds`` is the gap. ``late``: the
    clock stopped the selection before its work was done, so that another run may select otherwise.
    """

    kernels: tuple[Term, ...]
    constants: tuple[Term, ...]
    outputs: tuple[int, ...]
    seconds: float
    bound: float
    method: str
    late: bool = False
