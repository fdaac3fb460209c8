"""Control flow in LLVM code that is written by Python: variables, loops, and what is run under a condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class Variable:
    """A value that changes: a place on the stack, for which LLVM finds a register."""

    def __init__(self, builder: Any, first: Any) -> None:
        self._b = builder
        with builder.goto_entry_block():
            self._place = builder.alloca(first.type)
        self.set(first)

    @property
    def now(self) -> Any:
        """Its value at this point of the code."""
        return self._b.load(self._place)

    def set(self, value: Any) -> None:
        self._b.store(value, self._place)


class Flow:
    """An IR builder ``b`` with structured control flow. Conditions are bits, counts are i64 values."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def variable(self, first: Any) -> Variable:
        return Variable(self.b, first)

    @contextmanager
    def forever(self) -> Iterator[Any]:
        """A loop, which :meth:`leave_if` ends: for the block behind it, which is given."""
        inside, behind = (self.b.function.append_basic_block(name) for name in ("inside", "behind"))
        self.b.branch(inside)
        self.b.position_at_end(inside)
        yield behind
        self.b.branch(inside)
        self.b.position_at_end(behind)

    def leave_if(self, condition: Any, block: Any) -> None:
        """Go on in ``block`` where the condition holds."""
        stay = self.b.function.append_basic_block("stay")
        self.b.cbranch(condition, block, stay)
        self.b.position_at_end(stay)

    @contextmanager
    def loop(self, count: Any, step: int = 1, first: int = 0) -> Iterator[Any]:
        """``for i in range(first, count - step + 1, step)``: whole steps alone."""
        index = self.variable(ir.Constant(I64, first))
        with self.forever() as behind:
            here = index.now
            following = self.b.add(here, ir.Constant(I64, step))
            self.leave_if(self.b.icmp_signed(">", following, count), behind)
            yield here
            index.set(following)
