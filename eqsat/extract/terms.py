"""What extraction chooses: for each tensor that is stored, the term that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from eqsat.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Read:
    """A stored tensor read by a kernel. ``const``: known when the program is compiled."""

    eclass: int
    type: TensorType
    const: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """An e-node with its operands either inlined (streams) or read (stored tensors).

    A term may have another one in many places: written out as a tree it is up to a hundred times as large.
    """

    eclass: int
    op: str
    attrs: object
    type: TensorType
    children: tuple[Term | Read, ...]
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        own = self.eclass, self.op, self.attrs, self.type, self.children
        object.__setattr__(self, "_hash", hash(own))  # of the operands it is there

    def __hash__(self) -> int:
        return self._hash

    def inlined(self) -> Iterator[Term]:
        """This term and all terms in it, each once, operands from left to right."""
        seen, stack = {id(self)}, [self]
        while stack:
            term = stack.pop()
            yield term
            for child in reversed(term.children):
                if isinstance(child, Term) and id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)

    def reads(self) -> Iterator[Read]:
        """The stored tensors that it reads; one more than once where several terms in it do."""
        for term in self.inlined():
            yield from (child for child in term.children if isinstance(child, Read))


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
