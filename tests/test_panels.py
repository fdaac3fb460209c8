"""First factors that lie along m, and are copied: into panels of as many rows as a tile has."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.cost import calibration as c
from eqsat.ir.kernel import Acc, Call, Kernel, KernelGroup, Load, Operand, Stage
from eqsat.ir.nest import Loop, Nest, Pack, TileOp
from eqsat.ir.types import DType, float32, float64
from eqsat.schedule import schedule
from eqsat.schedule.legal import check
from eqsat.schedule.price import Block, Pricer
from eqsat.schedule.problem import problem_of
from eqsat_backends.numba_cpu.printing.contract_layout import spread_panel
from eqsat_backends.numba_cpu.target import host
from eqsat_backends.numba_cpu.tiles.micro_kernels import reach
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.fenced import Fenced
from tests.kernel_groups import machine
from tests.sweeps import a_part
from tests.test_contract import printed, random_buffers, verify
from tests.test_tiles import GUARD, call, random


def product(m: int, n: int, k: int, pitch: int = 0, batch: int = 1, dtype: DType = float32) -> KernelGroup:
    """``out[b, m, n] = Σ_k x[b, k, m] w[b, k, n]``: neighbours along k lie ``pitch`` elements apart, at least m."""
    pitch = max(m, pitch)
    a = Load(0, 0, (pitch * k, 1, 0, pitch), dtype)
    operands = Operand(dtype, batch * pitch * k), Operand(dtype, batch * k * n)
    body = Call("mul", (a, Load(1, 0, (k * n, 0, 1, n), dtype)), dtype)
    out = Operand(dtype, batch * m * n)
    kernel = Kernel((batch, m, n, k), 3, "sum", body, Acc(dtype), operands, out, 0, (m * n, n, 1))
    return KernelGroup((Stage(kernel, (0, 1), 2),), 0, (*operands, out), (2,), "product")


def nest_of(
    sizes: tuple[int, int, int], rows: int, block: int, depth: int, lanes: int, batch: int = 1, ahead: int = 0
) -> Nest:
    """Blocks of ``block`` rows and ``depth`` positions of k of the first factor, copied, by tiles of ``rows``."""
    m, n, k = sizes
    tile = TileOp("fma", (("m", rows), ("n", lanes), ("k", depth)))
    inside: Nest = Loop("n", n, lanes, Loop("m", min(block, m), rows, tile)) if rows < m else Loop("n", n, lanes, tile)
    packed: Nest = Pack("a", inside, prefetch=ahead)
    packed = Loop("k", k, depth, packed) if depth < k else packed
    packed = Loop("b", batch, 1, packed) if batch > 1 else packed
    return Pack("b", Loop("m", m, block, packed, True) if block < m else packed)


@pytest.mark.parametrize(
    ("width", "lanes", "dtype", "ahead"),
    [
        (1, 4, "float32", 0),
        (3, 4, "float32", 3),
        (6, 8, "float32", 3),
        (6, 8, "float32", 0),
        (12, 8, "float32", 0),
        (8, 16, "float32", 0),
        (14, 16, "float32", 3),
        (17, 16, "float32", 0),
        (6, 4, "float64", 3),
        (7, 8, "float64", 0),
        (5, 2, "float64", 0),
    ],
)
def test_any_width_is_cut_into_panels(width: int, lanes: int, dtype: str, ahead: int) -> None:
    """Each panel has what it should, and what is behind the last row's vectors is left alone."""
    size, rows = np.dtype(dtype).itemsize, 5
    over = reach(width, lanes) - width
    assert 0 <= over < lanes
    for columns in (0, 1, width - 1, width, width + 1, 3 * width, 4 * width - 1, 70):
        source = random(rows, 90, dtype=dtype)
        panels = -(-max(columns, 1) // width)
        to = np.full((panels, rows * width + over + 3), GUARD, dtype)
        apart = f"{to.shape[1] * size}, {width * size}, {90 * size}"
        call(f'pack_panels("{dtype}", {lanes}, {width}, {apart}, ahead={ahead})', (to, source), rows, columns)
        for number, panel in enumerate(to):
            part = source[:, number * width : min(columns, (number + 1) * width)]
            cut = panel[: rows * width].reshape(rows, width)
            assert np.array_equal(cut[:, : part.shape[1]], part)
            assert (panel[rows * width + over :] == GUARD).all()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("width", "lanes"), [(6, 8), (14, 16), (12, 8), (5, 16), (3, 4)])
def test_nothing_is_read_outside_of_the_rows(width: int, lanes: int, last: bool) -> None:
    for columns in (1, width, 2 * width + 1, 31):
        fenced = Fenced(4 * columns)
        source = fenced.at(last)
        source[:] = np.arange(4 * columns)
        panels, room = -(-columns // width), 4 * width + lanes
        to = np.zeros((panels, room), np.float32)
        call(
            f'pack_panels("float32", {lanes}, {width}, {4 * room}, {4 * width}, {4 * columns}, ahead=16)',
            (to, source), 4, columns,
        )  # fmt: skip
        found = to[:, : 4 * width].reshape(panels, 4, width).transpose(1, 0, 2).reshape(4, -1)[:, :columns]
        assert np.array_equal(found, source.reshape(4, columns))


@settings(max_examples=a_part(60), deadline=None)
@given(
    sizes=st.tuples(st.integers(2, 70), st.integers(2, 40), st.integers(2, 70)),
    rows=st.integers(1, 6),
    tiles_of_block=st.integers(1, 5),
    depth=st.integers(1, 70),
    pitch=st.integers(0, 90),
    batch=st.integers(1, 3),
    lanes=st.sampled_from([4, 8, 16]),
    ahead=st.sampled_from([0, 16]),
    dtype=st.sampled_from([float32, float32, float64]),
    threads=st.integers(1, 2),
)
def test_any_product_of_a_first_factor_along_m(
    sizes: tuple[int, int, int],
    rows: int,
    tiles_of_block: int,
    depth: int,
    pitch: int,
    batch: int,
    lanes: int,
    ahead: int,
    dtype: DType,
    threads: int,
) -> None:
    m, _, k = sizes
    lanes = min(lanes, host().lanes())
    group, rows = product(*sizes, pitch, batch, dtype), min(rows, m)
    columns = max(1, 4 * lanes // dtype.itemsize)
    nest = nest_of(sizes, rows, min(m, rows * tiles_of_block), min(depth, k), columns, batch, ahead)
    verify(group, random_buffers(group), nest, lanes, threads)


def test_a_tile_reads_rows_that_lie_one_behind_the_other() -> None:
    """Panels take as many lines as they have elements; in columns of a block each step of k would be a line."""
    emitted = verify(
        product(40, 32, 30), random_buffers(product(40, 32, 30)), nest_of((40, 32, 30), 6, 18, 30, 8, ahead=16), 8
    )
    assert re.search(r'pack_panels\("float32", 8, 6, \d+, 24, 160, ahead=16\)', emitted.source)
    assert 'fma_tile("float32", 6, 1, 8, 4, 24,' in emitted.source


def test_tiles_that_start_inside_of_panels_read_columns() -> None:
    """Blocks of rows that are no whole tiles: tiles of the next block start anywhere in a panel."""
    group = product(40, 32, 30)
    tile = TileOp("fma", (("m", 6), ("n", 8), ("k", 30)))
    nest = Pack("b", Pack("a", Loop("n", 32, 8, Loop("m", 40, 10, Loop("m", 10, 6, tile)))))
    emitted = verify(group, random_buffers(group), nest, 8)
    assert "pack_panels" not in emitted.source.split("# pack a")[1]
    asked = Pack("b", Pack("a", Loop("n", 32, 8, Loop("m", 40, 10, Loop("m", 10, 6, tile))), prefetch=16))
    with pytest.raises(ValueError, match="asked for ahead"):
        check(asked, group, 8, 16)


def test_what_is_copied_as_it_lies_is_not_asked_for() -> None:
    """Rows along k, which prefetching follows."""
    group = product(40, 32, 30)
    (stage,) = group.stages
    a = Load(0, 0, (40 * 30, 30, 0, 1), float32)
    kernel = stage.kernel
    body = Call("mul", (a, kernel.body.args[1]), float32)  # type: ignore[union-attr]
    kernel = Kernel(kernel.extents, 3, "sum", body, Acc(float32), kernel.operands, kernel.out, 0, kernel.store_strides)
    along_k = KernelGroup((Stage(kernel, (0, 1), 2),), 0, group.operands, (2,), "product")
    verify(along_k, random_buffers(along_k), nest_of((40, 32, 30), 6, 18, 30, 8), 8)
    with pytest.raises(ValueError, match="asked for ahead"):
        check(nest_of((40, 32, 30), 6, 18, 30, 8, ahead=16), along_k, 8, 16)


@pytest.mark.parametrize("row", [4, 8, 24, 32, 56, 64, 112])
def test_panels_do_not_begin_in_one_set(row: int) -> None:
    for size in range(row, 40_000, 1237):
        found = spread_panel(row, size)
        assert found >= size and found % row == 0 and 128 <= found % 4096 <= 4096 - 128
        assert found - size < 512


def test_the_chosen_nest_asks_for_pieces_of_rows() -> None:
    """A product of 196 rows by 512 columns (a 1×1 convolution of NasNet-A's); its first factor's rows are cut."""
    group = product(196, 512, 2560)
    nest = schedule(group, cpu_target(machine(width=32, registers=16), 1)).nest
    copies, at = [], nest
    while isinstance(at, Loop | Pack):
        copies += [at] if isinstance(at, Pack) and at.operand == "a" else []
        at = at.body
    assert [copy.prefetch for copy in copies] == [c.COPY_AHEAD]
    assert "ahead=16" in printed(group, nest, 8).source


def test_pieces_of_rows_take_longer_to_copy_than_rows() -> None:
    """No hardware prefetcher follows 168 bytes of each row of 784."""
    group = product(196, 512, 2560)
    target = cpu_target(machine(width=32, registers=16), 1)
    problem = problem_of(group, target)
    pricer = Pricer(problem, target)

    def seconds(rows: int) -> float:
        block = Block(frozenset({0}), (("b0", 1), ("m0", rows), ("n0", 512), ("k0", 512)), frozenset())
        return pricer.pack(0, "a", block)[0] / rows

    assert seconds(42) > seconds(84) > 1.1 * seconds(196)


def test_lines_that_are_read_in_part_are_charged_where_they_do_not_stay() -> None:
    """Six of the sixteen elements of a line: in L1 for the next tile, or fetched again."""
    group = product(196, 512, 2560)
    target = cpu_target(machine(width=32, registers=16), 1)
    problem = problem_of(group, target)
    pricer = Pricer(problem, target)
    (first, _) = problem.stages[0].factors
    assert pricer.parts_of_lines(first, 6, 512, 64) > 0 == pricer.parts_of_lines(first, 6, 64, 64)
    assert pricer.parts_of_lines(first, 16, 512, 64) == 0
    deepest = max(k for k in range(16, 512) if not pricer.parts_of_lines(first, 6, k, 64))
    assert pricer.parts_of_lines(first, 6, deepest, 128) > 0  # the other panel takes more of L1
