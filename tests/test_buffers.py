"""Aligned memory, and results in recycled memory: never two owners of one block."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat_backends.numba_cpu.buffers import Recycler, aligned_bytes, aligned_empty

F4 = np.dtype(np.float32)
SIZES = (100_000, 1_000_000)  # float32: on the heap, and mapped


@given(st.integers(0, 5 << 20), st.sampled_from([1, 64, 4096]))
def test_aligned_memory_is_aligned_and_usable(nbytes: int, alignment: int) -> None:
    block = aligned_bytes(nbytes, alignment)
    assert block.nbytes == nbytes
    assert block.flags.writeable
    assert nbytes == 0 or block.ctypes.data % alignment == 0
    block[:] = 1
    assert int(block[:: max(1, nbytes // 7)].sum()) == len(range(0, nbytes, max(1, nbytes // 7)))


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["f4", "f8", "i4", "i8", "?"]))
def test_aligned_empty_is_an_ordinary_array(shape: list[int], dtype: str) -> None:
    array = aligned_empty(tuple(shape), np.dtype(dtype))
    assert (array.shape, array.dtype) == (tuple(shape), np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.size == 0 or array.ctypes.data % 64 == 0


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("size", SIZES)
def test_a_dropped_result_is_used_again(size: int) -> None:
    recycler = Recycler()
    first = recycler.empty((size,), F4)
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert address(first) % 64 == 0
    where = address(first)
    del first
    second = recycler.empty((2, size // 2), F4)
    assert address(second) == where
    assert second.shape == (2, size // 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y,
        lambda y: y[3:5],
        lambda y: y[::2].reshape(-1, 2).T,
        lambda y: y.view(np.int32)[:1],
        memoryview,
        lambda y: memoryview(y)[1:],
        np.from_dlpack,
        lambda y: y.reshape(2, -1)[0].base,
        lambda y: iter(y.flat),
        lambda y: np.frombuffer(y, np.uint8),
    ],
)
def test_memory_that_is_referred_to_is_left_alone(size: int, hold: object) -> None:
    recycler = Recycler()
    result = recycler.empty((size,), F4)
    result[:] = 7
    where = address(result)
    assert callable(hold)
    held = hold(result)
    del result
    others = [recycler.empty((size,), F4) for _ in range(5)]
    assert all(address(other) != where for other in others)
    del held, others


@given(st.lists(st.integers(0, 5), max_size=30))
def test_results_held_together_never_overlap(choices: list[int]) -> None:
    recycler = Recycler(least_bytes=64)
    held: list[np.ndarray] = []
    for number, choice in enumerate(choices):
        if choice and held:
            del held[choice % len(held)]
        result = recycler.empty((100 + choice % 2,), F4)
        assert not any(np.shares_memory(result, other) for other in held)
        result[:] = number
        held.append(result)
    assert all((array == array[0]).all() for array in held)
    assert len({float(array[0]) for array in held}) == len(held)


def test_threads_never_get_the_same_block() -> None:
    recycler = Recycler(keep=4)
    failures: list[int] = []

    def work(seed: int) -> None:
        for _ in range(300):
            result = recycler.empty((70_000,), F4)
            result[::1000] = seed
            if not (result[::1000] == seed).all():
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_few_blocks_are_kept_and_small_results_are_numpys() -> None:
    recycler = Recycler(keep=2)
    held = [recycler.empty((100_000,), F4) for _ in range(6)]
    del held
    assert sum(map(len, recycler._blocks.values())) == 2
    recycler.release()
    assert not recycler._blocks
    assert recycler.empty((10,), F4).base is None
