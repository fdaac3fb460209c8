"""What a backend generates code for, as data: memory spaces, parallel levels, issue ports, vectors and tile operations.

A backend makes a :class:`Target` of a machine model and a number of threads (``eqsat.plan.backend.Backend.target``);
scheduling knows nothing else of the processor. Everything in seconds and bytes. There may be any number of memory
spaces. Their names are for reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from eqsat.cost import calibration as c
from eqsat.ir.kernel import Kernel
from eqsat.ir.types import DType

if TYPE_CHECKING:
    from eqsat.cost.machine import Level, Machine

Moved = tuple[float, ...]
"""Bytes that come from each of :attr:`Target.origins`: those that missed the cache before it."""


class TargetError(ValueError):
    """A target that describes no processor; the message says which part."""


@dataclass(frozen=True, slots=True)
class MemorySpace:
    """One space of the memory hierarchy, as one thread sees it while all of its team are at work.

    ``capacity``: bytes that stay resident (infinite for the outermost). ``bandwidth``: bytes a second that it delivers.
    ``hidden``: share of the traffic from it that hides behind the longest of compute and traffic. ``shared``: all
    threads use the same one. ``line``: bytes that move at once. ``sets``, ``ways``: how it is divided, by address; 0
    sets where addresses do not crowd. ``scattered``: seconds by which a line of results that comes from it is later
    than others where the next line is written much later.
    """

    name: str
    capacity: float
    bandwidth: float
    hidden: float
    shared: bool = False
    line: int = c.LINE
    sets: int = 0
    ways: int = 0
    scattered: float = c.SCATTERED


@dataclass(frozen=True, slots=True)
class ParallelLevel:
    """Threads that share work. ``width``: how many at most.

    ``launch``: seconds that a call of them all takes longer than one thread's share of it, where they are awake;
    ``wake``: that it takes longer than the whole on one thread, where the others sleep through it; ``barrier``: of
    each further step that they share.
    """

    name: str
    width: int
    launch: float
    wake: float
    barrier: float

    def call(self, barriers: int) -> float:
        """Seconds that a team has to save for a call to be given to it.

        Nobody knows whether calls come in a loop or out of the blue. In a loop, one thread loses what the team would
        have saved, less ``launch``; out of the blue the team loses ``wake``, for the caller has done small work before
        the others are there. At the sum of both, neither can lose more than the other.
        """
        return self.launch + self.wake + self.barrier * barriers


@dataclass(frozen=True, slots=True)
class Ports:
    """What a core issues. ``slots``: (32 or 64, seconds of a slot: one vector multiply-add of such elements at peak).

    ``latency``: slots from a multiply-add to the next one that needs its result. ``loads``, ``broadcasts``: vectors
    loaded, and elements copied to all lanes, in a slot.
    """

    slots: tuple[tuple[int, float], ...]
    latency: float = c.FMA_LATENCY
    loads: float = c.LOADS
    broadcasts: float = c.BROADCASTS

    @property
    def lane(self) -> float:
        """Slots of one lane of a load or store whose lanes lie apart."""
        return c.LANE_LOADS / self.broadcasts


@dataclass(frozen=True, slots=True)
class Pages:
    """Address translation: bytes of a page, how many a core has at hand, slots of an access that starts a new one."""

    nbytes: int = c.PAGE_BYTES
    at_hand: int = c.PAGES
    slots: float = c.PAGE


@dataclass(frozen=True, slots=True)
class TileOpRow:
    """One tile operation that the backend can emit, for blocks of up to these sizes.

    ``name``: of the term that it is in a nest (``eqsat.ir.nest.TileOp``): ``fma``, an outer-product register tile;
    ``update``, a rank-k update that holds no block of results in registers; ``vector``, a map or reduction along
    one axis. ``sizes``: most positions along an axis, in vectors along ``lanes``; an axis that is not listed may have
    any extent. ``registers``: vector registers it takes at those sizes. ``enter``: slots to enter and leave it.
    ``chains``: into how many sums it splits each accumulator where it has fewer accumulators than that. ``slots``:
    those that adding to one vector of results takes. ``steps``: positions along the reduced axis that it takes at once,
    for each row by one load instead of a broadcast for each. ``dtypes``: element types it computes in, none for all.
    ``needs``: the instruction-set extension without which a backend does not offer it.

    ``semantics``: what it computes, as a kernel (``eqsat.ir.notation``) over ``axes``, named in the order of that
    kernel's axes: a tile operation that nests name ``name`` is offered wherever a kernel is this one by index notation
    (``eqsat.schedule.tensorize``). ``layouts``: (operand, axis) for each operand of which it reads consecutive elements
    along an axis; along all others an operand may lie in any strides. ``cost``: issue slots of one tile, by the ports
    of the target and its positions along each axis (vectors along ``lanes``); None: as its semantics tell. ``emit``:
    how the backend makes code of it, which is that backend's to define.

    Raises:
        TargetError: semantics that name, size or reduce their axes inconsistently; the message names the operation.
    """

    name: str
    sizes: tuple[tuple[str, int], ...] = ()
    lanes: str = "n"
    registers: int = 0
    enter: float = c.CALL
    chains: int = 1
    slots: float = 1.0
    steps: int = 1
    dtypes: tuple[str, ...] = ()
    needs: str = ""
    axes: tuple[str, ...] = ()
    semantics: Kernel | None = field(default=None, hash=False)
    layouts: tuple[tuple[int, str], ...] = ()
    cost: Callable[[Ports, Mapping[str, int]], float] | None = None
    emit: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        if self.semantics is None:
            return
        where = f"tile operation {self.name!r}"
        if len(self.axes) != len(self.semantics.extents) or len(set(self.axes)) < len(self.axes):
            raise TargetError(f"{where}: axes {self.axes} do not name the {len(self.semantics.extents)} axes")
        sized = {name for name, _ in self.sizes}
        if not sized <= set(self.axes) or (self.emit and sized < set(self.axes)) or min(dict(self.sizes).values()) < 1:
            raise TargetError(f"{where}: every axis needs a size, these are {dict(self.sizes)} of {self.axes}")
        if self.lanes not in self.axes[: self.semantics.parallel]:
            raise TargetError(f"{where}: lanes along {self.lanes!r}, which is no parallel axis of its semantics")

    def size(self, axis: str) -> int:
        """Most positions along ``axis`` (vectors along ``lanes``)."""
        return dict(self.sizes)[axis]


@dataclass(frozen=True)
class Target:
    """One thread of a team, and what it shares with the others.

    ``spaces``: innermost first, the last one unbounded. ``parallel``: levels of threads, outermost first. ``step``:
    seconds of starting one more kernel. ``functions``: measured slots of elementwise functions. ``tiles``: the tile
    operations on offer, of several that do equally well the first is taken. ``panels``: (rows, bytes, bytes a second)
    at which a register tile reads panels of a second factor from memory and asks for them so far ahead, 0 for those
    that do not; empty where that was not measured. ``single``: the same processor with one thread at work, where this
    is a team.

    Raises:
        TargetError: no bounded space before an unbounded one, a rate that is no positive number, or a tile that takes
            more registers than there are.
    """

    spaces: tuple[MemorySpace, ...]
    parallel: tuple[ParallelLevel, ...]
    ports: Ports
    vector_bits: int
    registers: int
    step: float
    tiles: tuple[TileOpRow, ...] = ()
    pages: Pages = Pages()
    functions: tuple[tuple[str, float], ...] = ()
    hidden: float = c.HIDDEN_COMPUTE
    panels: tuple[tuple[int, int, float], ...] = ()
    single: Target | None = None

    def __post_init__(self) -> None:
        if len(self.spaces) < 2 or self.spaces[-1].capacity != math.inf:
            raise TargetError("a target needs a bounded memory space, and an unbounded one after all others")
        for space in self.spaces:
            rates = 0 < space.bandwidth < math.inf and 0 <= space.hidden <= 1
            if not (rates and space.capacity > 0 and space.line > 0):
                raise TargetError(f"impossible memory space: {space}")
        for tile in self.tiles:
            if tile.registers > self.registers:
                raise TargetError(
                    f"tile operation {tile.name}{dict(tile.sizes)} takes {tile.registers} registers of {self.registers}"
                )

    @cached_property
    def _hash(self) -> int:
        return hash((self.spaces, self.parallel, self.ports, self.vector_bits, self.registers, self.step, self.tiles))

    def __hash__(self) -> int:
        return self._hash  # every schedule is looked up by its target

    @cached_property
    def caches(self) -> tuple[MemorySpace, ...]:
        """The bounded spaces that hold more than the one before: another never has what that one lacks."""
        found: list[MemorySpace] = []
        for space in self.spaces:
            if space.capacity < math.inf and space.capacity > (found[-1].capacity if found else 0.0):
                found.append(space)
        return tuple(found)

    @cached_property
    def origins(self) -> tuple[MemorySpace, ...]:
        """Where what misses each of :attr:`caches` comes from."""
        unbounded = next(space for space in self.spaces if space.capacity == math.inf)
        return (*self.caches[1:], unbounded)

    @cached_property
    def middle(self) -> tuple[MemorySpace, ...]:
        """The caches between innermost and outermost, for whole blocks of a factor; the outermost if there is none."""
        return self.caches[1:-1] or self.caches[-1:]

    @cached_property
    def rates(self) -> tuple[tuple[float, float, float], ...]:
        """(bytes a second, hidden share, the rest) of each of :attr:`origins`."""
        return tuple((space.bandwidth, space.hidden, 1 - space.hidden) for space in self.origins)

    @property
    def inner(self) -> MemorySpace:
        """The innermost space."""
        return self.spaces[0]

    @property
    def refill(self) -> float:
        """Bytes a second that what misses the innermost space comes in at."""
        return self.origins[0].bandwidth

    @cached_property
    def outer(self) -> MemorySpace:
        """The outermost space, which is never full."""
        return self.origins[-1]

    @cached_property
    def threads(self) -> int:
        return math.prod(level.width for level in self.parallel)

    @cached_property
    def barrier(self) -> float:
        """Seconds until all threads have met; none for one."""
        return sum(level.barrier for level in self.parallel if level.width > 1)

    @property
    def alone(self) -> Target:
        """The same processor with one thread at work."""
        return self.single or self

    def call(self, kernels: int) -> float:
        """Seconds that a call of so many kernels pays for running on all threads."""
        return sum(level.call(kernels) for level in self.parallel if level.width > 1)

    def holds(self, space: MemorySpace) -> float:
        """Bytes that stay resident in a space for all threads together, of which ``capacity`` is one's share."""
        return space.capacity * self.threads if space.shared else space.capacity

    @property
    def cached(self) -> float:
        """Bytes that stay resident where they are read clearly faster than from memory."""
        least = c.FASTER * self.outer.bandwidth
        return max((space.capacity for space in self.caches[1:] if space.bandwidth >= least), default=0.0)

    @cached_property
    def dots(self) -> dict[str, float]:
        """Issue slots of a vector of sums in a step of register tiles, by their element type."""
        found: dict[str, float] = {}
        for tile in self.rows("fma"):
            for dtype in tile.dtypes:
                found[dtype] = min(tile.slots, found.get(dtype, math.inf))
        return found

    def slot(self, dtype: DType) -> float:
        """Seconds of one vector issue slot for this element type."""
        return self._slots[dtype.bits == 64]

    @cached_property
    def _slots(self) -> dict[bool, float]:
        return {bits == 64: seconds for bits, seconds in reversed(self.ports.slots)}  # the first of each counts

    def lanes(self, dtype: DType) -> int:
        """Elements of one vector register; booleans and float16 are widened to 32 bits."""
        return max(1, self.vector_bits // (dtype.bits if dtype.kind == "int" else max(32, dtype.bits)))

    def rows(self, name: str, dtype: DType | None = None) -> tuple[TileOpRow, ...]:
        """The tile operations of this name (for this element type)."""
        rows = (row for row in self.tiles if row.name == name)
        return tuple(row for row in rows if not row.dtypes or dtype is None or dtype.name in row.dtypes)

    def holding(self, held: float) -> MemorySpace:
        """The nearest space that holds so many bytes."""
        return next(space for space in self.spaces if held <= space.capacity)

    def moving(self, nbytes: float, held: float) -> float:
        """Seconds to move bytes that come from the nearest space that holds ``held``."""
        return nbytes / self.holding(held).bandwidth

    def seconds(self, compute: float, moved: Moved) -> float:
        """Time of a computation that keeps the units busy for ``compute`` s and moves those bytes from each origin."""
        longest, shown = compute * self.hidden, compute * (1 - self.hidden)
        for nbytes, (bandwidth, hidden, rest) in zip(moved, self.rates, strict=True):
            spent = nbytes / bandwidth
            longest = max(longest, spent * hidden)
            shown += spent * rest
        return longest + shown


def _ports(machine: Machine, slots: tuple[tuple[int, float], ...]) -> Ports:
    """Latency in whole slots and loads in halves: what ports do is a small number, which a loop just misses."""
    slot = next(seconds for bits, seconds in slots if bits == 32)
    latency = max(1.0, float(round(machine.fma_latency_ns * 1e-9 / slot))) if machine.fma_latency_ns else c.FMA_LATENCY
    if not machine.broadcast_gs:
        return Ports(slots, latency)

    def a_slot(rate: float) -> float:
        return max(0.5, round(2 * rate * slot) / 2)

    loads = a_slot(1e9 * machine.levels[0].read_gbs / machine.vector_bytes)
    return Ports(slots, latency, loads, a_slot(1e9 * machine.broadcast_gs))


@lru_cache(maxsize=64)
def target_of(machine: Machine, threads: int = 1, tiles: Sequence[TileOpRow] = ()) -> Target:
    """The target that ``threads`` threads of a measured machine are; more threads than cores count as the cores.

    For backends that generate code for the processor: ``tiles`` (a tuple) are theirs. Of a private cache a part is
    taken to stay resident, of a shared one a thread's share of a part: the rest goes to streams, to other programs,
    and to what limited associativity wastes.
    """
    threads = max(1, min(threads, machine.cores))
    *bounded, memory = machine.levels
    spaces: list[MemorySpace] = []

    def scattered(level: Level) -> float:
        """Of the nearest level from this one on for which it was measured: a nearer one does not take longer."""
        beyond = machine.levels[machine.levels.index(level) :]
        return next((1e-9 * one.scattered_ns for one in beyond if one.scattered_ns), c.SCATTERED)

    for level in bounded:
        if level.nbytes > 0:
            first = not spaces
            stays = c.STAYS_SHARED / threads if level.shared else c.STAYS if first else c.STAYS_OUTER
            spaces.append(
                MemorySpace(
                    level.name,
                    level.nbytes * stays,
                    1e9 * min(level.read_gbs, level.read_gbs_all / threads),
                    c.HIDDEN_NEAR if len(spaces) < 2 else c.HIDDEN_BETWEEN,
                    level.shared,
                    level.line,
                    level.sets or (c.CACHE_SETS if first else 0),
                    level.ways or (c.CACHE_WAYS if first else 0),
                    scattered(level),
                )
            )
    bandwidth = 1e9 * min(memory.read_gbs, memory.read_gbs_all / threads)
    if not spaces:
        spaces.append(MemorySpace("registers", machine.registers * machine.vector_bytes, bandwidth, c.HIDDEN_NEAR))
    far = scattered(memory)
    spaces.append(MemorySpace(memory.name, math.inf, bandwidth, c.HIDDEN_FAR, True, memory.line, scattered=far))
    slots = []
    for name, bits in (("float32", 32), ("float64", 64)):
        lanes = machine.vector_bytes * 8 // bits
        slots.append((bits, 2.0 * lanes / (machine.peak_gflops(name) * 1e9)))
    one = 2.0 / machine.peak_gflops("float32")  # nanoseconds of one slot, per lane
    functions = tuple(sorted((name, round(max(1.0, ns / one), 1)) for name, ns in machine.function_ns))
    cores = ParallelLevel("cores", threads, machine.launch_us * 1e-6, machine.wake_us * 1e-6, machine.barrier_us * 1e-6)
    return Target(
        tuple(spaces),
        (cores,),
        _ports(machine, tuple(slots)),
        machine.vector_bytes * 8,
        machine.registers,
        machine.step_us * 1e-6,
        tuple(tiles),
        functions=functions,
        panels=tuple((rows, ahead, 1e9 * rate) for rows, ahead, rate in machine.panels_gbs),
        single=target_of(machine, 1, tiles) if threads > 1 else None,
    )
