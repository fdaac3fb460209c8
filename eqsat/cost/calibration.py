"""The one table of figures that no probe measures: each with its unit and where it comes from.

What a processor differs in and a probe can tell belongs to :class:`eqsat.cost.machine.Machine`. Here stand weights of
the cost model, properties of how kernels are generated, and what is taken where a machine model does not know better.
*Slots* are issue slots of a vector multiply-add. "Zen 4" is a server core with 512-bit registers and one 512-bit
multiply-add a cycle, 32 KB of L1, 1 MB of L2. An origin that says *tuned* has no measurement of its own on record:
the value was settled while the first benchmarks were brought to speed on that core.
"""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.ir import elementwise as _rows  # noqa: F401
from eqsat.ir import table


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: ``value`` in ``unit``, what it ``means``, and the ``origin`` it was measured on or derived from."""

    value: float
    unit: str
    means: str
    origin: str


TABLE: dict[str, Figure] = {}
TUNED = "tuned, Zen 4"
_TUNED_XEON = "tuned, Xeon with AVX-512"


def _figure(name: str, value: float, unit: str, means: str, origin: str) -> float:
    if name in TABLE:
        raise ValueError(f"the calibrated figure {name} is stated twice")
    TABLE[name] = Figure(value, unit, means, origin)
    return value


def _count(name: str, value: int, unit: str, means: str, origin: str) -> int:
    _figure(name, value, unit, means, origin)
    return value


# Memory spaces

_LINE = "x86-64 and most AArch64 cores; the system's own figure is taken where it gives one"
_SETS = "Zen 4, and every L1 whose ways are a page; the system's own figure is taken where it gives one"
_WAYS = "Zen 4; caches of more ways are no worse; the system's own figure is taken where it gives one"
LINE = _count("LINE", 64, "bytes", "a cache line", _LINE)
CACHE_SETS = _count("CACHE_SETS", 64, "sets", "of the innermost cache", _SETS)
CACHE_WAYS = _count("CACHE_WAYS", 8, "lines a set", "of the innermost cache", _WAYS)
PAGE_BYTES = _count("PAGE_BYTES", 4096, "bytes", "a page of memory", "the default page of x86-64")
PAGES = _count("PAGES", 64, "pages", "whose translations are in the TLB", "first-level entries of Zen 4, rounded down")
PAGE = _figure(
    "PAGE",
    25.0,
    "slots",
    "a piece of a row on a page of its own: the translation, and hardware prefetching that starts afresh",
    TUNED + ": results stored a page apart, rank-k updates by columns",
)
FAR_ROW_BYTES = _count(
    "FAR_ROW_BYTES", 1024, "bytes", "between rows from where FAR_ROW counts: a new page every few steps", TUNED
)
FAR_ROW = _figure("FAR_ROW", 4.0, "slots", "a step of a register tile to a row of its second factor that far", TUNED)
UNTILED = _figure(
    "UNTILED",
    4.0,
    "slots",
    "a multiply-add of an element type that no register tile is of",
    "Zen 1: int32, 64 × 3136 × 256: 1.7 ns for a vector of sums; an fma of float32 takes 0.4",
)
CROSSED = _figure(
    "CROSSED",
    5.5,
    "slots",
    "to load a row of a register of two axes that lies in two cache lines",
    "Xeon (Sapphire Rapids): a tile of 80 × 1 rows takes 17.2 ns a product and 6.0 at whole lines, of 32 × 2 9.7",
)
ASKED = _figure(
    "ASKED",
    0.25,
    "share",
    "of the wait for a panel from beyond the second space that is saved where the tiles before ask for it",
    "Xeon: 64 × 3072 × 768, a third; less, for it is not worth an order that reads more from the second space",
)
RESTART = _figure(
    "RESTART",
    0.5e-6,
    "seconds",
    "until a stream from the outermost space that starts at a new place is up to speed",
    TUNED + ": products of few rows",
)
FEW_ROWS = _count("FEW_ROWS", 16, "rows", "of a product up to which its second factor is a stream, read once", TUNED)
STAYS = _figure("STAYS", 0.8, "share", "of the innermost private cache that stays resident", TUNED)
STAYS_OUTER = _figure("STAYS_OUTER", 0.7, "share", "of a further private cache that stays resident", TUNED)
STAYS_SHARED = _figure("STAYS_SHARED", 0.5, "share", "of a shared cache that stays resident for all threads", TUNED)
WARM = _figure(
    "WARM",
    1 / 2,
    "share of a cache",
    "that operands may take to be in it when the kernel starts",
    "halved: streams pass",
)
WARM_KNOWN = _figure(
    "WARM_KNOWN",
    1 / 16,
    "share of the outermost cache",
    "that constant operands may take to be in it when the kernel starts",
    TUNED + ": a network's other weights passed since",
)
HIDDEN_COMPUTE = _figure("HIDDEN_COMPUTE", 0.6, "share", "of compute that hides behind traffic", TUNED)
HIDDEN_NEAR = _figure(
    "HIDDEN_NEAR",
    0.8,
    "share",
    "of the traffic from the space behind the innermost that hides: out-of-order execution covers it",
    "a register tile fed from L2 runs at peak on Zen 4",
)
FED = _figure(
    "FED",
    0.25,
    "share",
    "of the rest that is waited for by a kernel that is one product of more than a few rows",
    TUNED + ": tiles of 6×64, 14×32 and 8×48 with panels of 64 to 384 KB take 1.00 to 1.03 of the time at the peak",
)
UNREAD = _figure(
    "UNREAD",
    0.8,
    "share",
    "of the time in which lines come from the second space that is waited for what a tile does not read of them",
    "tiles of 6×16 and 4×24 by 160 to 512, first factors in place, 196 to 11664 bytes from step to step: 0.2 to 0.5 ns "
    "a step longer than in panels, which take 2.0; 0.7 and 0.9 where these are 196 bytes (Zen 3)",
)
STAYS_FOR_NEXT = _figure(
    "STAYS_FOR_NEXT",
    2 / 3,
    "share",
    "of the innermost private cache up to which lines that a tile reads in part, and its panel, stay for the next tile",
    "the same tiles by 128 and less: 0.1 to 0.2 ns a step longer (Zen 3)",
)
HIDDEN_BETWEEN = _figure("HIDDEN_BETWEEN", 0.7, "share", "of the traffic from further spaces that hides", TUNED)
HIDDEN_FAR = _figure("HIDDEN_FAR", 0.8, "share", "of the traffic from the outermost space that hides", TUNED)
FASTER = _figure(
    "FASTER",
    1.25,
    "times",
    "the bandwidth of the outermost space, from where on a cache is clearly faster",
    "a virtual machine's share of a third-level cache may be as slow as memory",
)
EVICTS = _figure(
    "EVICTS", 1 / 2, "share of scratch", "that pushes out data which is fetched again from the outermost space", TUNED
)
BLOCK_SHARE = _figure(
    "BLOCK_SHARE",
    1 / 2,
    "share of a cache",
    "that a packed block takes, so that it stays while the rest streams past",
    "Goto & van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008)",
)
LONG_SHARE = _figure(
    "LONG_SHARE",
    0.7,
    "share of a private cache",
    "that a packed block of a product of several chains takes: the first factor, read once for each, waits for memory",
    "Xeon: 3000³ in float64, blocks of 176 and 240 columns 649 and 632 ms; 2000³ of 176 and 224 181 and 174",
)
LONG_CHAINS = _count("LONG_CHAINS", 3, "chains", "of sums from where on a product is such a long one", TUNED)

# Issue ports, where no probe measured them

FMA_LATENCY = _figure(
    "FMA_LATENCY", 4.0, "slots", "from a multiply-add to the next that needs its result", "Zen 4: 4 cycles, one a cycle"
)
LOADS = _figure("LOADS", 1.0, "vectors a slot", "that the load ports deliver", "Zen 4: two halves of 512 bits a cycle")
BROADCASTS = _figure("BROADCASTS", 2.0, "elements a slot", "that the load ports copy to all lanes", "Zen 4: two ports")

# Generated code

LOOP = _figure("LOOP", 2.0, "slots", "one loop step: address, comparison, branch", TUNED)
UNROLLED = _count("UNROLLED", 8, "steps", "of a loop that LLVM makes straight code of", "its code: windows of 2 to 7")
JAMMED = _count(
    "JAMMED",
    4,
    "positions",
    "of an axis that a map takes at once at most, to share what windows have in common",
    "with eight, blurs of 3×3 and 5×5 and a seven-point stencil took 1.03 to 1.3 times as long (Zen 4)",
)
STRAIGHT = _count("STRAIGHT", 27, "steps", "of short loops in one another that it does so with", "windows of 3×3×3")
CALL = _figure(
    "CALL", 16.0, "slots", "to enter and leave a tile or a vector loop: addresses, branches, the first loads", TUNED
)
LEAST_RUN = _count(
    "LEAST_RUN",
    64,
    "products",
    "from where on a tile may read a first factor in the runs that it lies in: its sums are stored between them",
    "windows of 3×3 of 32 channels, channels last",
)
STAY = _figure(
    "STAY",
    2.0,
    "lines",
    "that crowd a set for each of its ways and are found there as often as not, for what is evicted is not the oldest",
    "filters of 3, 5 and 7 squared for each of 256 and 512 channels, which lie innermost (Zen 4)",
)
PACK_ROWS = _figure("PACK_ROWS", 2.5, "slots a vector", "to copy a factor whose rows lie as the tile wants them", TUNED)
SHORT_PIECE = _figure(
    "SHORT_PIECE",
    30.0,
    "slots",
    "to copy, or to store from sums, a piece of a row that is shorter than a vector",
    "copies of 49 rows of 288, 3 at a time, 4.3 ns a piece; results of 1568 × 128, 2 at a time, 3.2 ns (Zen 5)",
)
WINDOW_ROW = _figure(
    "WINDOW_ROW",
    8.0,
    "slots",
    "the same of a row of whole windows, which have code of their own",
    "196 rows of 256 windows of 3×3, about 1.2 ns a row (Zen 3)",
)
PACK_TRANSPOSED = _figure("PACK_TRANSPOSED", 5.0, "slots a vector", "to copy a factor and transpose it", TUNED)
LOAD_SLOTS = _figure("LOAD_SLOTS", 0.5, "slots", "a contiguous vector load or store of a map", "two load ports")
SHUFFLE_SLOTS = _figure("SHUFFLE_SLOTS", 1.0, "slots", "lanes out of two vectors", "one shuffle port")
GATHER_SLOTS = _figure(
    "GATHER_SLOTS", 4.0, "slots", "a lane's load at a data-dependent or strided address", TUNED + ": take() of rows"
)
GUARD_SLOTS = _figure(
    "GUARD_SLOTS",
    1.0,
    "slots",
    "a guarded value: a selection",
    "the instruction; tests that do not move with the lanes are hoisted",
)
MASK_SLOTS = _figure(
    "MASK_SLOTS",
    2.0,
    "slots",
    "a test that moves with the lanes, beside its selection: positions, two comparisons, masked loads",
    "rolls and pads of 64 × 1000 float32 peeled and not, Xeon: 0.1 to 0.4 ns a vector and guard, 0.135 ns a slot",
)
FUNCTION_SLOTS = {row.name: row.slots for row in table.OPS.values() if row.slots != 1}
"""Slots of an elementwise function where the machine has not measured it; one that is not listed takes one."""
for _name, _slots in FUNCTION_SLOTS.items():
    _figure(f"FUNCTION_SLOTS {_name}", _slots, "slots", f"{_name} of one element", "vector instructions of its code")

# Maps and reductions

_TRANSPOSED = "3000 × 2000 transposed lane by lane, Xeon"
LANE_LOADS = _figure(
    "LANE_LOADS",
    1.5,
    "broadcasts",
    "one lane of a load or store whose lanes lie apart",
    _TUNED_XEON + ", of a broadcast a slot; Zen 4, of two: 0.24 ns a lane, columns of an image doubled",
)
FAR_LOAD = _figure("FAR_LOAD", 11.0, "slots", "one lane of a load, each on a page of its own, from afar", _TRANSPOSED)
FAR_STORE = _figure("FAR_STORE", 22.0, "slots", "one lane of a store, each on a page of its own, to afar", _TRANSPOSED)
ACROSS = _figure("ACROSS", 16.0, "slots", "to combine the lanes of one vector", _TUNED_XEON)
FILL = _figure(
    "FILL", 2.0, "slots", "to set one vector of accumulators in scratch, and to load it", "a store and a load"
)
ROWS_APART = _count(
    "ROWS_APART",
    4,
    "rows a thread",
    "of a group up to which it may run stage by stage",
    "bounds the search; so many are shared evenly enough",
)
PARTS_COLUMNS = _count(
    "PARTS_COLUMNS",
    2,
    "vectors a thread",
    "of columns that a product of a part of a batch has at least",
    "chosen, not tuned",
)
PARTS_TRIED = _count("PARTS_TRIED", 8, "numbers", "of parts of a batch that are tried", "bounds the search")
PARTS_TILES = _figure(
    "PARTS_TILES",
    4.0,
    "times",
    "what a convolution reads and stores passes on as tiles: 4×4 of them make 2×2 results",
    "follows from Winograd's F(2×2, 3×3)",
)
PARTS_FEWER = _figure(
    "PARTS_FEWER",
    0.1,
    "share",
    "by which fewer parts of a batch must save more than smaller ones do, whose tiles may stay in nearer caches",
    "eight images of 64 channels, 56², Zen 5: 5.4 ms by images, 8.2 by pairs, 6.6 in one; predicted alike",
)
PARTS_GAIN = _figure(
    "PARTS_GAIN",
    0.25,
    "share",
    "of the time that tensors of a batch take to be passed on, which running it part by part must save",
    "chosen, not tuned: eight images, Zen 4: MobileNetV2 72 to 57 ms",
)
ROWS_GAIN = _figure(
    "ROWS_GAIN",
    0.1,
    "share",
    "of the time of two passes over a matrix that reading it block by block of rows must save",
    "chosen, not tuned",
)
ROWS_SHARE = _figure(
    "ROWS_SHARE",
    0.25,
    "share of a cache",
    "that a block of rows takes which is read from it the second time",
    "1800×1803 float64, Zen 5: 12 rows 0.83 ms, 36 0.87, 72 (all of the cache) 0.88, two passes 0.95",
)
DISTRIBUTED_GAIN = _figure(
    "DISTRIBUTED_GAIN",
    0.25,
    "share",
    "of a loop's time for a contraction that computing it before the loop must save",
    "chosen, not tuned",
)
DISTRIBUTED_BYTES = _count(
    "DISTRIBUTED_BYTES",
    1 << 28,
    "bytes",
    "of all that is computed for all trips of loops, at most",
    "bounds the memory",
)
OVERLAPPED = _figure(
    "OVERLAPPED",
    10.6,
    "latencies of a multiply-add",
    "of a row's chain of dependent instructions that out-of-order execution hides behind other rows",
    "Xeon: softmax and layer norm of rows of 64 to 512, each arrangement of their stages timed",
)
START = _figure("START", 8.0, "slots", "to enter and leave a loop once", _TUNED_XEON)
STEPS_IN_SIGHT = _count(
    "STEPS_IN_SIGHT", 64, "positions", "whose pieces of rows are read in turn without losing track of them", _TUNED_XEON
)
TLB_ENTRIES = _count(
    "TLB_ENTRIES", 2048, "pages", "whose translations the second-level TLB holds", "current processors"
)
PIECE_LOST = _figure(
    "PIECE_LOST",
    20e-9,
    "seconds",
    "until a piece of a row arrives whose page or cache set was lost since the piece beside it",
    "Xeon: 4096² columns summed 16 at a time, 23.7 ms where whole rows take 2.3; 65536 columns of 256 alike",
)
PIECE_APART = _figure(
    "PIECE_APART", 0.7e-9, "seconds", "the same where it was not lost", "Xeon: 2000 columns of 1000 rows"
)
PIECE_INSIDE = _figure(
    "PIECE_INSIDE", 0.2e-9, "seconds", "the same within the second-level cache", "Xeon: 768 columns of 128 rows"
)
SCATTERED = _figure(
    "SCATTERED",
    15e-9,
    "seconds",
    "until a line of results is read before it is written, if the next line is written much later, where not measured",
    "Xeon: 3000 × 2000 transposed, 10 to 16 ms through the caches, 2 past them",
)

AHEAD_LINES = _count(
    "AHEAD_LINES",
    8,
    "cache lines",
    "of an operand that a row may ask for ahead: a core keeps track of about a dozen that are missing",
    TUNED + ": attention; all lines of a head at once gained a fifth as much",
)
AHEAD = _figure(
    "AHEAD",
    1 / 3,
    "share of a private cache",
    "that what is asked for ahead may take: what is worked on has to stay",
    TUNED + ": attention over heads of up to 256 KiB",
)

COPY_PIECE = _count(
    "COPY_PIECE", 16, "rows", "of a second factor that threads copy at once: whole lines of every panel", TUNED
)
COPY_AHEAD = _count(
    "COPY_AHEAD",
    16,
    "steps of k",
    "that a tile which copies what it reads asks for it before: rows are far apart",
    TUNED,
)
STREAM_BYTES = _count(
    "STREAM_BYTES", 1 << 20, "bytes", "of a factor that is read once, past which it comes from memory", TUNED
)
STREAM_AHEAD = _count(
    "STREAM_AHEAD",
    6144,
    "bytes",
    "that the panels of such a factor are asked for ahead, on machines where no distance was measured",
    TUNED + ": few rows",
)
STREAM_GAIN = _figure(
    "STREAM_GAIN",
    1.08,
    "ratio",
    "of the rates at which a tile reads panels with requests and without, from where on it makes them",
    "Zen 3: at 1.06 (2 rows) a product of 8 MB was 4 % slower with them, at 1.08 to 1.13 (3 rows) 6 % faster",
)
CLAIM_STEPS = _count(
    "CLAIM_STEPS",
    12,
    "steps of k",
    "from where on a tile asks for its results' lines: with fewer it ends before they come",
    "MobileNetV2, Zen 4: 96 × 12544 × 16 0.55 to 0.47 ms; less was not tried",
)

# Threads

WAKE_US = _figure(
    "WAKE_US",
    10.0,
    "microseconds",
    "that a call loses to a team that sleeps, where it was not measured",
    "small calls on two threads of a Xeon beside other programs: 3 to 20",
)
CLEARLY = _figure(
    "CLEARLY",
    20.0,
    "times",
    "what a team costs: so much work goes to it, whatever one thread would take",
    TUNED,
)

# Sums

CHAIN = _count(
    "CHAIN",
    512,
    "products",
    "that are summed before the partial sum is flushed: bounds the rounding error, and a block's depth",
    TUNED + ": large products run at peak, and are as exact as NumPy's",
)

# Programs before they have a schedule

OVERLAP = _figure(
    "OVERLAP", 0.1, "share", "left of the shorter of compute and traffic: work behind memory is not free", TUNED
)
ELEMENTWISE = _figure(
    "ELEMENTWISE",
    1.5,
    "slots",
    "an elementwise instruction next to a multiply-add of a register tile: loads, stores and dependences keep such "
    "loops from issuing two vector operations a cycle",
    TUNED,
)
PANEL = _count(
    "PANEL",
    512,
    "positions",
    "of a contraction's panel: an operand that is computed on the fly is recomputed once per panel",
    "the order of CHAIN and of a packed block's columns",
)
SEVERAL_ROWS = _count(
    "SEVERAL_ROWS",
    8,
    "rows",
    "of a matrix that are added at once to sums which are more than registers hold",
    "the depth of the rank updates of targets so far",
)
WIDENED = _figure(
    "WIDENED", 2.0, "slots", "to make floats of a vector of smaller numbers that is loaded", "extension and conversion"
)
RUN_SLOTS = _figure(
    "RUN_SLOTS",
    3.0,
    "slots",
    "until a run of neighbours of a window is found, where windows are copied to panels",
    "implicit GEMM of 3×3 windows on 28² and 14², Zen 4",
)
PANEL_PACK_SLOTS = _figure("PANEL_PACK_SLOTS", 2.0, "slots", "to copy an element of an operand for a panel", TUNED)
ARG_SLOTS = _figure("ARG_SLOTS", 4.0, "slots", "an element of a reduction that keeps a position with the value", TUNED)
NUMPY_CALL = _figure("NUMPY_CALL", 1e-6, "seconds", "a NumPy function on nothing", "np.add of 1,000 float32, Zen 4")
