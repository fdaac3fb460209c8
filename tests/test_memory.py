"""Memory that is kept between calls is bounded, and given back when asked for. Each case has a process of its own."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import eqsat
from eqsat import programs
from eqsat.buffers import KEPT_BLOCKS, KEPT_BYTES, Recycler
from eqsat_backends.numba_cpu.running import driver

F4 = np.dtype(np.float32)
MB = 1 << 20

PREAMBLE = """
import gc, warnings
import numpy as np
import eqsat
warnings.simplefilter("ignore", eqsat.RecompilationWarning)

def rss():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def ones(*shape):
    return np.ones(shape, np.float32)
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


def printed(program: str) -> list[float]:
    """What a program prints in a process of its own."""
    text = PREAMBLE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@needs_proc
def test_results_of_many_sizes_do_not_stay() -> None:
    start, after, cleared = printed("""
        f = eqsat.optimize(lambda x: x + 1, verify=False, threads=1)
        f(ones(5))
        start = rss()
        for n in range(16):
            f(ones(8 * 2**20 + 1000 * n))
        after = rss()
        eqsat.cache_clear()
        print(start, after, rss())
    """)
    assert after - start < 500  # 16 sizes of 32 MB, two blocks of each at most: 1,000
    assert cleared - start < 100


@needs_proc
def test_constants_of_many_contents_do_not_stay() -> None:
    start, after, kept, cleared = printed("""
        f = eqsat.optimize(lambda x, w: x @ w, const="w", verify=False, threads=1)
        x = ones(4, 1000)
        for seed in range(2):
            f(x, np.full((1000, 1000), seed, np.float32))
        start = rss()
        for n in range(48):
            w = np.full((1000, 1000), n, np.float32)
            assert f(x, w)[0, 0] == 1000 * n
        after = rss()
        info = f.cache_info()
        assert info.nbytes <= 256 * 2**20
        f.cache_clear()
        print(start, after, info.currsize, rss())
    """)
    assert after - start < 400  # 48 times the array and its packed copy on huge pages: 480
    assert kept < 48
    assert cleared - start < 100


@needs_proc
@pytest.mark.slow
def test_programs_of_many_shapes_do_not_stay() -> None:
    start, middle, after = printed("""
        f = eqsat.optimize(lambda x: np.tanh(x) * 2 + x, verify=False, threads=1, programs=16)
        for n in range(50):
            f(ones(10 + n))
        start = rss()
        for n in range(150):
            f(ones(100 + n))
        middle = rss()
        for n in range(150):
            f(ones(300 + n))
        print(start, middle, rss())
    """)
    assert after - middle < 30
    assert after - start < 80


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_program_that_nobody_holds_is_freed_at_once(outputs: int) -> None:
    f = eqsat.optimize(lambda x: (x * 2, x + 1)[:outputs], cache=False, threads=1)
    compiled = f.compile(np.ones(3, np.float32))
    executable, run = weakref.ref(compiled.executable), compiled.executable.direct
    assert run is not None and executable() is not None
    gc.collect()
    gc.disable()
    try:
        del compiled
        f.cache_clear()
        del run
        assert executable() is None  # its code and its constants may be large: they do not wait for the collector
    finally:
        gc.enable()


def test_the_least_recently_used_program_is_forgotten() -> None:
    f = eqsat.optimize(lambda x: x * 2, programs=2, threads=1)
    a, b, c = (np.ones(n, np.float32) for n in (3, 4, 5))
    f(a)
    f(b)
    f(a)  # found directly: that is a use, too
    f(c)
    assert f.cache_info()[:4] == (1, 3, 2, 2)
    f(a)
    assert f.cache_info().misses == 3
    f(b)
    assert f.cache_info()[:4] == (2, 4, 2, 2)
    for x in (a, b, c, a, b, c):
        np.testing.assert_array_equal(f(x), x * 2)
    f.cache_clear()
    assert f.cache_info() == (0, 0, 2, 0, 0)
    np.testing.assert_array_equal(f(a), a * 2)


def test_programs_are_forgotten_while_other_threads_add_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    f = eqsat.optimize(lambda x: x * 2, programs=4, threads=1)
    made = f.compile(np.ones(3))
    monkeypatch.setattr(f, "_make", lambda *of: (copy.copy(made), True))
    monkeypatch.setattr(f, "_growth", mock.Mock())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(lambda: [f.compile(np.ones(3 + n % 50)) for n in range(3000)])
            while not adding.done():
                f.cache_clear()
            adding.result()
    finally:
        sys.setswitchinterval(interval)
    assert f.cache_info().currsize == len(f._programs._used) <= 4


def test_any_number_of_programs() -> None:
    f = eqsat.optimize(lambda x: x * 2, programs=None)
    f(np.ones(3))
    assert f.cache_info()[1:4] == (1, None, 1)
    (program,) = next(iter(f._programs.values()))
    for most, expected in ((None, 300), (128, 128)):
        kept = programs.Programs(most)
        for n in range(300):
            kept.add((n,), copy.copy(program))
        assert kept.count == expected


def test_two_programs_stay_however_large_their_constants_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ALIKE_BYTES", 1)
    f = eqsat.optimize(lambda x, w: x @ w, const="w")
    x = np.ones((2, 3), np.float32)
    weights = [np.full((3, 4), n, np.float32) for n in range(3)]
    for w in (weights[0], weights[1], weights[0], weights[1]):
        np.testing.assert_array_equal(f(x, w), x @ w)
    assert f.cache_info().misses == 2
    np.testing.assert_array_equal(f(x, weights[2]), x @ weights[2])
    assert f.cache_info().currsize == 2
    np.testing.assert_array_equal(f(x, weights[0]), x @ weights[0])
    assert f.cache_info().misses == 4


def test_a_program_that_is_forgotten_while_it_runs_runs_on() -> None:
    f = eqsat.optimize(lambda x, w: np.tanh(x @ w), threads=2)
    x, w = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    program = f.compile(x, w)
    eqsat.cache_clear()
    for n in range(3):  # other code is loaded where that of a forgotten program was
        eqsat.optimize(lambda x, n=n: x * n)(np.ones(7 + n, np.float32))
    np.testing.assert_allclose(program(x, w), np.tanh(x @ w), rtol=1e-6)


# Results' memory


@pytest.mark.parametrize("size", [4 * MB, 96 * MB])
def test_a_loop_over_one_size_uses_its_memory_again(size: int) -> None:
    recycler = Recycler()
    seen = set()
    x = recycler.empty((size // 4,), F4)
    for _ in range(6):
        x = recycler.empty((size // 4,), F4)
        seen.add(x.ctypes.data)
    assert len(seen) == 2


def test_blocks_are_bounded_in_bytes_and_the_last_ones_stay() -> None:
    recycler = Recycler()
    for n in range(40):
        recycler.empty((16 * MB // 4 + n * 1024,), F4)
    assert recycler.kept_bytes <= KEPT_BYTES
    large = [recycler.empty((100 * MB // 4 + n * 1024,), F4) for n in range(6)]
    assert recycler.kept_bytes <= KEPT_BLOCKS * 101 * MB
    where = large[-1].ctypes.data
    del large
    assert recycler.empty((100 * MB // 4 + 5 * 1024,), F4).ctypes.data == where
    recycler.release()
    assert recycler.kept_bytes == 0


def test_idle_arenas_of_other_programs_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "KEPT_BYTES", 8 * MB)
    monkeypatch.setattr(driver, "KEPT_BLOCKS", 2)
    made: list[Any] = [driver.Program([], [], [], arena_bytes=3 * MB) for _ in range(6)]
    for program in made:
        assert program(()) == 0
    assert [len(program._pool) for program in made] == [0, 0, 0, 0, 1, 1]
    assert made[0](()) == 0
    assert [len(program._pool) for program in made] == [1, 0, 0, 0, 0, 1]
    driver.release_arenas()
    assert not any(program._pool for program in made)
