"""LLVM functions over 64-bit words: every value is one, addresses included, as in calls of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from eqsat_backends.numba_cpu.vectors.flow import I64, Flow, Variable


def _value(word: int | Word) -> Any:
    return word.value if isinstance(word, Word) else ir.Constant(I64, word)


def _operator(name: str) -> Callable[[Word, int | Word], Word]:
    def apply(self: Word, other: int | Word) -> Word:
        return Word(self.b, getattr(self.b, name)(self.value, _value(other)))

    return apply


class Word:
    """A value of the function that is being written; signed but for ``>>``, ``//`` and ``%``."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.b, self.value = builder, value

    __add__, __sub__, __mul__ = _operator("add"), _operator("sub"), _operator("mul")
    __and__, __or__, __xor__ = _operator("and_"), _operator("or_"), _operator("xor")
    __lshift__, __rshift__ = _operator("shl"), _operator("lshr")
    __floordiv__, __mod__ = _operator("udiv"), _operator("urem")

    def test(self, comparison: str, other: int | Word) -> Any:
        """A condition, such as ``test("<=", 7)``."""
        return self.b.icmp_signed(comparison, self.value, _value(other))


class Changing:
    """A word that changes."""

    def __init__(self, builder: Any, variable: Variable) -> None:
        self._b, self._variable = builder, variable

    @property
    def now(self) -> Word:
        return Word(self._b, self._variable.now)

    def set(self, word: int | Word) -> None:
        self._variable.set(_value(word))


class Words(Flow):
    """Writes one function. ``arguments``: its words. Offsets of what lies behind an address are in words, too."""

    def __init__(self, module: ir.Module, name: str, arguments: int, internal: bool = True) -> None:
        self.function = ir.Function(module, ir.FunctionType(I64, [I64] * arguments), name)
        self.function.linkage = "internal" if internal else "external"
        super().__init__(ir.IRBuilder(self.function.append_basic_block("entry")))
        self.arguments = tuple(Word(self.b, argument) for argument in self.function.args)

    # memory

    def _at(self, address: Word, offset: int | Word) -> Any:
        return self.b.inttoptr((address + offset * 8).value, I64.as_pointer())

    def get(self, address: Word, offset: int | Word = 0, order: str = "") -> Word:
        """Load a word; atomically if a memory order is given."""
        place = self._at(address, offset)
        return Word(self.b, self.b.load_atomic(place, order, 8) if order else self.b.load(place))

    def put(self, address: Word, offset: int | Word, word: int | Word, order: str = "") -> None:
        """Store a word; atomically if a memory order is given."""
        place = self._at(address, offset)
        self.b.store_atomic(_value(word), place, order, 8) if order else self.b.store(_value(word), place)

    def replace(self, address: Word, old: int | Word, new: int | Word, order: str) -> Any:
        """The condition that the word at an address was ``old``; then it is ``new`` at once."""
        found = self.b.cmpxchg(self._at(address, 0), _value(old), _value(new), order, "monotonic")
        return self.b.extract_value(found, 1)

    def update(self, operation: str, address: Word, offset: int, word: int, order: str) -> Word:
        """Atomically ``add`` to a word, or exchange (``xchg``) it; what it was before."""
        return Word(self.b, self.b.atomic_rmw(operation, self._at(address, offset), _value(word), order))

    def field(self, address: Word, nbytes: int, type: Any = I64) -> Word:
        """What lies so many bytes behind an address; shorter numbers are filled up with zeros."""
        found = self.b.load(self.b.inttoptr((address + nbytes).value, type.as_pointer()))
        return Word(self.b, found if type == I64 else self.b.zext(found, I64))

    def copy(self, to: Word, source: Word, nbytes: Word) -> None:
        """Copy memory; the two places do not overlap."""
        pointers = [self.b.inttoptr(word.value, ir.IntType(8).as_pointer()) for word in (to, source)]
        name, kinds = "llvm.memcpy", [pointer.type for pointer in pointers]
        function = self.b.module.declare_intrinsic(name, [*kinds, I64])
        self.b.call(function, [*pointers, nbytes.value, ir.Constant(ir.IntType(1), 0)])

    def room(self, count: int | Word) -> Word:
        """Address of so many words on the stack."""
        place = self.b.alloca(I64, _value(count))
        place.align = 16
        return Word(self.b, self.b.ptrtoint(place, I64))

    # values

    def word(self, value: int) -> Word:
        return Word(self.b, _value(value))

    def address(self, function: Words) -> Word:
        return Word(self.b, self.b.ptrtoint(function.function, I64))

    def changing(self, first: int | Word) -> Changing:
        return Changing(self.b, self.variable(_value(first)))

    def choose(self, condition: Any, one: int | Word, other: int | Word) -> Word:
        return Word(self.b, self.b.select(condition, _value(one), _value(other)))

    def least(self, one: Word, other: Word) -> Word:
        return self.choose(one.test("<", other), one, other)

    # control

    def call(self, function: Words | Word, *words: int | Word, result: Any = I64) -> Word:
        """Call a function, or the C function at an address, whose arguments and result registers hold."""
        if isinstance(function, Words):
            callee = function.function
        else:
            kind = ir.FunctionType(result, [I64] * len(words))
            callee = self.b.inttoptr(function.value, kind.as_pointer())
        found = self.b.call(callee, [_value(word) for word in words])
        return Word(self.b, found if result == I64 else self.b.sext(found, I64))

    @contextmanager
    def each(self, count: int | Word, first: int | Word = 0) -> Iterator[Word]:
        """``for i in range(first, count)``."""
        i = self.changing(first)
        with self.forever() as behind:
            here = i.now
            self.leave_if(here.test(">=", count), behind)
            yield here
            i.set(here + 1)

    def ret(self, word: int | Word = 0) -> None:
        self.b.ret(_value(word))

    def return_if(self, condition: Any, word: int | Word = 0) -> None:
        with self.b.if_then(condition):
            self.ret(word)
