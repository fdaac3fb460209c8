"""Windows that a contraction copies: window by window where its blocks of k are whole ones, in pieces elsewhere."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.ir.copied import WINDOW_ROWS, goes_by_windows, window_of
from eqsat.ir.kernel import Acc, Call, Expr, Guarded, Index, Kernel, KernelGroup, Literal, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Pack, TileOp, tiles
from eqsat.ir.types import float32, int64
from eqsat.schedule import schedule
from eqsat.schedule.price import Block, Pricer
from eqsat.schedule.problem import problem_of
from eqsat_backends.numba_cpu.printing.emitted import Emitted
from eqsat_backends.numba_cpu.target import host
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import machine
from tests.sweeps import a_part
from tests.test_contract import printed, random_buffers, run

COLUMNS = 24


@dataclass(frozen=True)
class Convolution:
    """``out[p, q, n] = Σ x[c, p·stride + r - pad, q·stride + s - pad] w[c, r, s, n]``, ``fill`` around the image."""

    channels: int
    image: tuple[int, int]
    taps: tuple[int, int]
    stride: int = 1
    pad: int = 0
    fill: float = 0.0

    @property
    def spots(self) -> tuple[int, int]:
        down, along = ((n + 2 * self.pad - t) // self.stride + 1 for n, t in zip(self.image, self.taps, strict=True))
        return down, along

    @property
    def size(self) -> int:
        return math.prod(self.taps)

    def group(self) -> KernelGroup:
        f, (high, wide), (rows, columns) = float32, self.image, self.taps
        step, plane, (down, along) = self.stride, high * wide, self.spots
        a: Expr = Load(0, -self.pad * (wide + 1), (step * wide, step, 0, plane, wide, 1), f)
        for place, extent in ((1, wide), (0, high)) if self.pad else ():
            strides = tuple(step if axis == place else int(axis == place + 4) for axis in range(6))
            a = Guarded(Index(-self.pad, strides, int64), 0, extent, a, Literal(self.fill, f))
        b = Load(1, 0, (0, 0, 1, self.size * COLUMNS, columns * COLUMNS, COLUMNS), f)
        operands = Operand(f, self.channels * plane), Operand(f, self.channels * self.size * COLUMNS)
        extents, product = (down, along, COLUMNS, self.channels, rows, columns), Call("mul", (a, b), f)
        out = Operand(f, down * along * COLUMNS)
        kernel = Kernel(extents, 3, "sum", product, Acc(f), operands, out, 0, (along * COLUMNS, COLUMNS, 1))
        return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, out), (2,), "windows")

    def expected(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """NumPy's sliding windows in float64."""
        pads = ((0, 0), *[(self.pad, self.pad)] * 2)
        image = np.pad(x.reshape(self.channels, *self.image).astype(np.float64), pads, constant_values=self.fill)
        windows = np.lib.stride_tricks.sliding_window_view(image, self.taps, (1, 2))  # type: ignore[call-overload]
        weights = w.reshape(self.channels, *self.taps, COLUMNS).astype(np.float64)
        found: np.ndarray = np.einsum("cpqrs,crsn->pqn", windows[:, :: self.stride, :: self.stride], weights)
        return found

    def nest(self, depth: int, lanes: int = 8, around: int = 0) -> Nest:
        """Blocks of six rows and ``depth`` positions of k of the first factor, copied; in blocks of ``around`` of k."""
        m, whole = math.prod(self.spots), self.channels * self.size
        k = min(around, whole) or whole
        tile = TileOp("fma", (("m", 3), ("n", 2 * lanes), ("k", min(depth, k))))
        inside: Nest = Pack("a", Loop("n", COLUMNS, 2 * lanes, Loop("m", 6, 3, tile)))
        inside = Loop("k", k, depth, inside) if depth < k else inside
        inside = Loop("k", whole, k, inside) if k < whole else inside
        return Pack("b", Loop("m", m, 6, inside, True))

    def right(self, found: np.ndarray, x: np.ndarray, w: np.ndarray) -> bool:
        exact = self.expected(x, w)
        slack = 1e-5 * np.nanmax(np.abs(exact), initial=1e-3)
        return np.allclose(found.reshape(exact.shape), exact, rtol=1e-5, atol=slack, equal_nan=True)

    def run(self, depth: int, lanes: int = 8, threads: int = 1, around: int = 0) -> Emitted:
        """What is printed by the nest; its results are right."""
        group, lanes = self.group(), min(lanes, host().lanes())
        emitted, arrays = printed(group, self.nest(depth, lanes, around), lanes, threads), random_buffers(group)
        x, w, found = run(emitted, arrays, threads)[:3]
        assert self.right(found, x[: group.operands[0].size], w[: group.operands[1].size])
        return emitted


@settings(max_examples=a_part(60), deadline=None)
@given(
    channels=st.integers(2, 9),
    taps=st.tuples(st.integers(1, 9), st.integers(1, 19)),
    more=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    stride=st.integers(1, 3),
    pad=st.integers(0, 2),
    fill=st.sampled_from([0.0, 1.0, math.nan]),
    windows=st.integers(1, 9),
    part=st.integers(0, 8),
    lanes=st.sampled_from([4, 8, 16]),
    threads=st.integers(1, 2),
    around=st.integers(0, 60),
)
def test_any_windows(
    channels: int,
    taps: tuple[int, int],
    more: tuple[int, int],
    stride: int,
    pad: int,
    fill: float,
    windows: int,
    part: int,
    lanes: int,
    threads: int,
    around: int,
) -> None:
    """``lanes``: no more than registers hold. LLVM 22 aborts where a masked load that it cuts in two is stored."""
    image = taps[0] + more[0] + 2 * stride, taps[1] + more[1] + 2 * stride
    case = Convolution(channels, image, taps, stride, pad, fill)
    depth = windows * case.size + part
    case.run(depth, lanes, threads, around and depth + around)


@pytest.mark.parametrize(("taps", "depth", "around"), [((5, 8), 40, 41), ((1, 8), 24, 36), ((3, 3), 9, 30)])
def test_blocks_in_blocks_start_anywhere(taps: tuple[int, int], depth: int, around: int) -> None:
    """Whole vectors were copied from a row of 8 taps to the next where an outer block began inside of one."""
    Convolution(6, (14, 12), taps).run(depth, around=around)


def row_loop(source: str) -> str:
    """The loop over rows of the copy of a first factor, in print."""
    first, *rest = source[source.index("# pack a") :].splitlines()[1:]
    indent = len(first) - len(first.lstrip())
    ends = (at for at, line in enumerate(rest) if len(line) - len(line.lstrip()) <= indent)
    return "\n".join([first, *rest[: next(ends)]])


@pytest.mark.parametrize("pad", [0, 1])
def test_whole_windows_take_no_divisions_and_no_masked_stores(pad: int) -> None:
    case = Convolution(16, (9, 11), (3, 3), 2, pad)
    for depth in (9, 36, 144):
        copy = row_loop(case.run(depth).source)
        copy = copy[copy.index(", 9):") :]  # the loop over windows
        assert "%" not in copy and "storen" not in copy and "within" not in copy
        assert copy.count("store(") == 3
    copy = row_loop(case.run(40).source)
    assert copy.count("%") > 2 and "storen" not in copy


def test_rows_have_room_for_all_lanes_of_the_last_store() -> None:
    """A row of 48 positions is three cache lines, and so far was the next one."""
    case = Convolution(16, (9, 11), (1, 3), 2, 1)
    for depth in (24, 48):
        assert "storen" not in row_loop(case.run(depth, threads=2).source)


def test_windows_of_many_or_long_rows_go_in_pieces() -> None:
    assert window_of((2, 5, 3), (0, 1, 2)) == (5, 3) and window_of((2, 1, 3), (0, 1, 2)) == (1, 3)
    assert window_of((1, 5, 3), (0, 1, 2)) == (1, 3)
    assert window_of((1, 1, 3), (0, 1, 2)) == window_of((4,), (0,)) == window_of((), ()) == (0, 0)
    assert goes_by_windows((5, 3), 30, 8) and not goes_by_windows((5, 3), 31, 8)
    assert not goes_by_windows((5, 9), 45, 8) and not goes_by_windows((WINDOW_ROWS + 1, 3), 27, 8)
    assert not goes_by_windows((0, 0), 8, 8)
    for taps in ((2, 17), (9, 3)):
        case = Convolution(4, (12, 20), taps, 1, 1)
        assert f", {case.size}):" not in row_loop(case.run(2 * case.size).source)


def copying(case: Convolution, depth: int) -> float:
    """Seconds of the units that the copy of a block of the first factor takes, for each element."""
    target = cpu_target(machine())
    pricer = Pricer(problem_of(case.group(), target), target)
    return pricer.pack(0, "a", Block(frozenset({0}), (("k0", depth), ("m0", 6)), frozenset()))[0] / (6 * depth)


@pytest.mark.parametrize("pad", [0, 1])
def test_blocks_are_whole_windows_for_parts_of_them_take_longer_to_copy(pad: int) -> None:
    case = Convolution(512, (14, 14), (3, 3), 2, pad)
    assert copying(case, 576) < copying(case, 512) / 2
    (tile,) = tiles(schedule(case.group(), cpu_target(machine())).nest)
    assert tile.size("k") < 4608 and tile.size("k") % 9 == 0


def test_windows_behind_guards_are_no_cheaper_to_copy() -> None:
    """Under guards, pieces of three elements were to cost no more than parts of whole vectors."""
    bare, padded = (Convolution(64, (14, 14), (3, 3), 2, pad) for pad in (0, 1))
    assert copying(padded, 40) >= copying(bare, 40) > 2 * copying(bare, 45)


def test_the_checker_sees_a_row_of_a_window_that_is_missing() -> None:
    case = Convolution(4, (9, 11), (3, 3), 2, 1)
    emitted, arrays = case.run(36), random_buffers(case.group())
    wrong = re.sub(r"\n +store\(scratch[^\n]*\+ 3[^\n]*", "", emitted.source, count=1)
    assert wrong != emitted.source
    x, w, *_ = arrays
    assert case.right(run(emitted, arrays)[2], x, w) and not case.right(
        run(replace(emitted, source=wrong), arrays)[2], x, w
    )
