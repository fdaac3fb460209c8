"""Arrays larger than 32-bit numbers count, or than memory: right, or refused in words; never wrong, never endless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import eqsat
from eqsat.buffers import Recycler, aligned_bytes, aligned_empty
from eqsat.errors import ShapeError
from eqsat.ir import build
from eqsat.ir.table import make
from eqsat.ir.types import TensorType, int32

LONG = 3_000_000_000


def quick(fn: Callable[..., np.ndarray], *args: np.ndarray) -> np.ndarray:
    """Without verification, which would compute it in NumPy."""
    result: np.ndarray = eqsat.optimize(fn, verify=False, strict=True)(*args)
    return result


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_indices_into_axes_longer_than_their_type(index_type: type, mode: Any) -> None:
    x, index = np.array([5.0, 7.0]), np.array([0, -1, 5, 2_000_000_000], index_type)
    assert (quick(lambda x, i: np.broadcast_to(x, (LONG, 2)).T[1][i], x, index) == 7.0).all()
    assert (quick(lambda x, i: np.take(np.broadcast_to(x[0], (LONG,)), i, mode=mode), x, index) == 5.0).all()


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_where_a_row_begins_may_be_beyond_32_bits(index_type: type) -> None:
    """A table of 2.8 thousand million booleans, of which the system gives the pages that are written."""
    table, index = np.zeros((70_000, 40_000), bool), np.array([1, 69_999, -2], index_type)
    table[69_999, 39_998] = table[69_998, 0] = True
    found = quick(lambda t, i: t[i], table, index)
    assert (np.argwhere(found) == [[1, 39_998], [2, 0]]).all()
    assert quick(lambda t: t[-2:].any(), table) and not quick(lambda t: t[:2, ::39_000].any(), table)


def test_an_index_type_that_does_not_reach_the_end_is_refused() -> None:
    index = build.input_node(0, TensorType((3,), int32))
    with pytest.raises(ValueError, match="int32 does not reach the end of an axis of size 3000000000"):
        make("wrap_index", (index,), LONG)
    assert build.gather(build.broadcast_to(build.const(1.0), (LONG,)), index, 0).shape == (3,)


def test_sums_of_more_elements_than_memory_has() -> None:
    x = np.array([5.0, 7.0])
    assert quick(lambda x: np.broadcast_to(x[0], (10**10,)).sum(), x) == 5e10
    np.testing.assert_allclose(quick(lambda x: np.broadcast_to(x[:, None], (2, 10**10)).sum(1), x), 1e10 * x)
    assert quick(lambda x: np.broadcast_to(x, (10**10, 2)).max(), x) == 7.0


@pytest.mark.parametrize("backend", ["numba_cpu", "numpy"])
def test_results_that_do_not_fit_are_memory_errors_with_their_size(backend: str) -> None:
    run = eqsat.optimize(lambda x: np.broadcast_to(x[:, None], (2, 10**13)) + 1, verify=False, backend=backend)
    with pytest.raises(MemoryError, match=r"\(2, 10000000000000\)"):
        run(np.ones(2))


def test_what_no_machine_finishes_is_refused() -> None:
    def one_by_one(x: np.ndarray, n: int) -> np.ndarray:
        rows, columns = np.broadcast_to(x[0], (n,)), np.broadcast_to(x[1], (n,))
        total: np.ndarray = (np.sin(rows)[:, None] * columns).max()
        return total

    with pytest.raises(ShapeError, match="10,000,000,000,000,000 values to compute"):
        quick(lambda x: one_by_one(x, 10**8), np.ones(2))
    with pytest.raises(ShapeError, match="too big"):
        quick(lambda x: one_by_one(x, 10**10), np.ones(2))


def test_buffers_that_cannot_be_had_say_what_for() -> None:
    with pytest.raises(MemoryError, match=r"shape \(4, 1099511627776\) and type float64: 35,184,372,088,832 bytes"):
        Recycler().empty((4, 1 << 40), np.dtype(float))
    with pytest.raises(MemoryError, match="float32"):
        aligned_empty((1 << 62,), np.dtype(np.float32))
    with pytest.raises(MemoryError, match="for the arena: 4,611,686,018,427,387,904 bytes"):
        aligned_bytes(1 << 62, purpose="the arena")


def test_overlapping_windows_that_do_not_fit_are_named() -> None:
    windows = sliding_window_view(np.arange(1e6), 500_000)
    for verify in (True, False):
        run = eqsat.optimize(lambda x, w: x + w[5, :3].sum(), verify=verify)
        with pytest.raises(MemoryError, match=r"'w' of shape \(500001, 500000\).*2,000,004,000,000 bytes.*8,000,000"):
            run(np.ones(2), windows)
