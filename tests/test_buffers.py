"""Aligned memory, and results in recycled memory: never two owners of one block."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat import buffers
from eqsat.buffers import READY_BYTES, Recycler, Shelf, aligned_bytes, aligned_empty

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


@given(st.integers(65536, 5 << 20), st.sampled_from([1, 64, 512]))
def test_large_memory_begins_away_from_where_other_arrays_do(nbytes: int, alignment: int) -> None:
    """On the heap and mapped; an alignment to whole pages comes first."""
    assert aligned_bytes(nbytes, alignment).ctypes.data % 4096 == 1536
    assert all(aligned_bytes(nbytes, whole).ctypes.data % whole == 0 for whole in (1024, 4096))


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["f4", "f8", "i4", "i8", "?"]))
def test_aligned_empty_is_an_ordinary_array(shape: list[int], dtype: str) -> None:
    array = aligned_empty(tuple(shape), np.dtype(dtype))
    assert (array.shape, array.dtype) == (tuple(shape), np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.size == 0 or array.ctypes.data % 64 == 0


@given(st.lists(st.sampled_from([0, 1, 1000, 16384, 16385, 100_000, 600_000, 3_000_000, 5_000_000]), max_size=9))
def test_arrays_of_a_shelf_share_no_byte(sizes: list[int]) -> None:
    """Of any sizes: on the heap, in one block, past its end, larger than one."""
    shelf = Shelf()
    held = [shelf.empty((size,), F4) for size in sizes]
    for number, array in enumerate(held):
        assert array.shape == (sizes[number],)
        assert array.size == 0 or array.ctypes.data % 64 == 0
        array[:1], array[-1:] = number, number
    for number, array in enumerate(held):
        assert (array[:1] == number).all()
        assert (array[-1:] == number).all()


def test_arrays_of_a_shelf_lie_close() -> None:
    shelf = Shelf()
    starts = [address(shelf.empty((150_000,), F4)) for _ in range(3)]
    assert np.diff(starts).tolist() == [602112, 602112]
    assert {start % 4096 for start in starts} == {1536}


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


def touching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "eqsat: memory"]


def resident() -> int:
    """Bytes of this process that have memory."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Rss:"))


def wait_for_touching() -> None:
    for thread in touching():
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_made_ready_is_there_and_is_the_results() -> None:
    recycler, size = Recycler(), 2 * READY_BYTES
    before = resident()
    with recycler.ready([((size // 4,), F4), ((size // 8, 2), F4)]):
        wait_for_touching()
    assert resident() - before > 1.9 * size
    addresses = {address(block._bytes) for blocks in recycler._blocks.values() for block in blocks}
    results = [recycler.empty((size // 4,), F4) for _ in range(2)]
    assert {address(r) for r in results} == addresses
    there = resident()
    for result in results:
        result.fill(1)
    assert resident() - there < size // 4
    assert recycler.kept_bytes == 2 * size


@pytest.mark.parametrize("nbytes", [0, 8, READY_BYTES - 4, buffers.KEPT_BYTES + 4])
def test_small_and_huge_results_are_not_made_ready(nbytes: int) -> None:
    recycler = Recycler()
    with recycler.ready([((nbytes // 4,), F4)]):
        assert not touching()
        assert not recycler._blocks


def test_touching_stops_when_it_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    recycler, left = Recycler(), threading.Event()
    left.set()
    recycler._touch([((READY_BYTES,), np.dtype(np.uint8))], left)  # as if left at once: looks before the first stretch
    with pytest.raises(KeyboardInterrupt), recycler.ready([((READY_BYTES,), np.dtype(np.uint8))]):
        raise KeyboardInterrupt
    assert not touching()
    start = time.monotonic()
    monkeypatch.setattr(buffers, "aligned_bytes", _no_memory)
    with recycler.ready([((buffers.KEPT_BYTES // 2,), np.dtype(np.uint8))]):  # the program itself will say so
        wait_for_touching()
    assert time.monotonic() - start < 30


def _no_memory(nbytes: int, alignment: int = 64, purpose: str = "") -> np.ndarray:
    raise MemoryError(purpose)
