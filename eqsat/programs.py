"""The compiled programs of one function: found by the types of the arguments, the least recently used forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from eqsat.compiled import Compiled
from eqsat.frontends.pytree import Key
from eqsat.plain import PlainProgram

Program = Compiled | PlainProgram

ALIKE_BYTES = 256 << 20
"""Most bytes of constants held by programs that differ in nothing but the values of their constants."""

BYTES = 2 << 30
"""Most bytes of constants held by all programs of a function."""

AT_LEAST = 2
"""Programs kept however large their constants are: a function that goes back and forth between two compiles neither."""


class CacheInfo(NamedTuple):
    """As of ``functools.lru_cache``, and the bytes of constants that the programs hold."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int
    nbytes: int


class Programs(dict[Key, tuple[Program, ...]]):
    """Programs by key; several where constants differ. At most ``most`` in all (None: any number).

    ``find`` takes no lock: a signal handler or a finalizer may call the function in the middle of anything. ``add`` and
    ``forget`` are for one thread at a time; to forget all, take another one.
    """

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.most = most
        self._used: OrderedDict[Program, Key] = OrderedDict()  # the least recently used first

    def find(self, key: Key, leaves: Sequence[Any]) -> Program | None:
        """The program of these arguments. Constants are known by identity, else by content."""
        found = self.get(key, ())
        digests: dict[int, bytes] = {}
        compiled = [p for p in found if isinstance(p, Compiled)]
        plain = [p for p in found if isinstance(p, PlainProgram)]
        for same in (False, True) if compiled and compiled[0].held else (False,):
            for program in compiled:
                if program.holds(leaves, digests if same else None):
                    self.touch(program)
                    return program
        if plain:  # for all values of constants
            self.touch(plain[0])
            return plain[0]
        return None

    def plain(self, key: Key) -> PlainProgram | None:
        """What NumPy runs for all arguments of a key, where it has run without an error: found in less time."""
        found = self.get(key)
        if found is None or type(found[0]) is not PlainProgram or found[0].error is not None:
            return None
        self.touch(found[0])
        return found[0]

    def touch(self, program: Program) -> None:
        """This program has been used."""
        try:  # on the path of every call of what NumPy runs: contextlib.suppress takes half a microsecond
            self._used.move_to_end(program)
        except KeyError:  # another thread has forgotten it since
            return

    def add(self, key: Key, program: Program) -> None:
        """Keep a program, and forget those that this makes too many.

        A plain program is for all values of constants: it is looked at last, and another takes its place.
        """
        for other in self.get(key, ()):
            if isinstance(other, PlainProgram):
                self.forget(other)
        self._used[program] = key
        self[key] = (*self.get(key, ()), program)
        alike = [p for p in list(self._used) if p in self[key]]
        self._keep_within(ALIKE_BYTES, alike)
        self._keep_within(BYTES, list(self._used))
        while self.most is not None and len(self._used) > self.most:
            first, *_ = list(self._used)  # in one step: other threads reorder them
            self.forget(first)

    def _keep_within(self, limit: int, programs: list[Program]) -> None:
        """Forget the first of ``programs`` (least recently used first) until the rest hold at most ``limit`` bytes."""
        total = sum(p.nbytes for p in programs)
        for program in programs[:-AT_LEAST]:
            if total <= limit:
                break
            total -= program.nbytes
            self.forget(program)

    def has(self, program: Program) -> bool:
        return program in self._used

    def forget(self, program: Program) -> None:
        """Drop a program; who is running it keeps it until they have done."""
        key = self._used.pop(program)
        rest = tuple(p for p in self.get(key, ()) if p is not program)
        if rest:
            self[key] = rest
        else:
            self.pop(key, None)

    @property
    def count(self) -> int:
        return sum(map(len, list(self.values())))

    @property
    def nbytes(self) -> int:
        """Bytes of constants that the programs hold."""
        return sum(p.nbytes for same in list(self.values()) for p in same)
