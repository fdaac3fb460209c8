"""The compiled driver: order, barriers, argument checks, calls from several threads, forks."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat import cache
from eqsat.buffers import aligned_bytes
from eqsat.plan.table import Arena, Argument, ArraySpec, Constant, Status, Step
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.running.driver import MISMATCH, Program
from eqsat_backends.numba_cpu.running.threads import Runtime, runtime

N = 64
SOURCE = f"""\
from eqsat_backends.numba_cpu.vectors.simd import add, load_f64x1, load_i64x1, splat_f64x1, splat_i64x1, store, word


def add_arrays(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    z = word(args, 2)
    for i in range(tid, {N}, nt):
        store(z + 8 * i, add(load_f64x1(x + 8 * i), load_f64x1(y + 8 * i)))


def reverse_and_increment(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    one = splat_f64x1(1.0)
    for i in range(tid, {N}, nt):
        store(y + 8 * i, add(load_f64x1(x + 8 * ({N - 1} - i)), one))


def set_status(args, tid, nt):
    store(word(args, 0), splat_i64x1(7))


def count_share(args, tid, nt):
    counts = word(args, 0) + 64 * tid
    store(counts, add(load_i64x1(counts), splat_i64x1(1)))


def note_team(args, tid, nt):
    notes = word(args, 0)
    store(notes + 8 * tid, splat_i64x1(100 + nt))
"""
F8 = np.dtype(np.float64)
PAIR = (ArraySpec((N,), F8), ArraySpec((N,), F8, writeable=True))
TRIPLE = (ArraySpec((N,), F8), ArraySpec((N,), F8), ArraySpec((N,), F8, writeable=True))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield compile_module(SOURCE, ("add_arrays", "reverse_and_increment", "set_status", "count_share", "note_team"))


@pytest.fixture(params=[True, False])
def pool(request: pytest.FixtureRequest) -> Runtime:
    found = runtime() if request.param else Runtime(threads=False)
    if found.parallel != request.param:
        pytest.skip("no POSIX threads here")
    return found


def ping_pong(kernels: dict[str, int], steps: int, threads: int, pool: Runtime | None = None) -> Program:
    """``steps`` reversals through two buffers in the arena: each needs what other threads wrote before it."""
    table = [Argument(0), Argument(1), Arena(0), Arena(8 * N)]
    places = [0, *(2 + i % 2 for i in range(steps - 1)), 1]
    program = [Step(kernels["reverse_and_increment"], pair) for pair in itertools.pairwise(places)]
    return Program(program, table, PAIR, 16 * N, threads, pool=pool)


def expected_ping_pong(x: np.ndarray, steps: int) -> np.ndarray:
    return (x[::-1] if steps % 2 else x) + steps


def test_a_step_writes_its_result(kernels: dict[str, int]) -> None:
    program = Program([Step(kernels["add_arrays"], (0, 1, 2))], [Argument(0), Argument(1), Argument(2)], TRIPLE)
    x, y, z = np.arange(N, dtype=F8), np.ones(N), np.zeros(N)
    assert program((x, y, z)) == 0
    np.testing.assert_array_equal(z, x + 1)


def test_constants_are_read_where_they_lie(kernels: dict[str, int]) -> None:
    y = np.linspace(0, 1, N)
    program = Program([Step(kernels["add_arrays"], (0, 1, 2))], [Argument(0), Constant(y), Argument(1)], PAIR)
    x, z = np.arange(N, dtype=F8), np.zeros(N)
    assert program((x, z)) == 0
    np.testing.assert_array_equal(z, x + y)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_barriers_keep_steps_apart(kernels: dict[str, int], pool: Runtime, threads: int) -> None:
    program = ping_pong(kernels, 25, threads, pool)
    x = np.random.default_rng(1).integers(0, 100, N).astype(F8)
    for _ in range(20):
        y = np.full(N, np.nan)
        assert program((x, y), threads) == 0
        np.testing.assert_array_equal(y, expected_ping_pong(x, 25))


def test_negative_control_without_barriers_the_steps_go_wrong(kernels: dict[str, int]) -> None:
    """The test above can fail: let thread 0 run ahead through all steps, and thread 1 come after it."""
    word = ctypes.c_ssize_t
    kernel = ctypes.CFUNCTYPE(None, word, word, word)(kernels["reverse_and_increment"])
    x = np.arange(N, dtype=F8)
    buffers = [x, np.zeros(N), np.zeros(N), np.zeros(N)]
    for tid in range(2):
        for step in range(3):
            table = np.array([buffers[step].ctypes.data, buffers[step + 1].ctypes.data])
            kernel(table.ctypes.data, tid, 2)
    assert not np.array_equal(buffers[3], expected_ping_pong(x, 3))


def test_every_thread_runs_a_step(kernels: dict[str, int], pool: Runtime) -> None:
    specs = (ArraySpec((4,), np.dtype(np.int64), writeable=True),)
    notes = np.zeros(4, np.int64)
    assert Program([Step(kernels["note_team"], (0,))], [Argument(0)], specs, 0, 4, pool=pool)((notes,), 4) == 0
    team = 4 if pool.parallel else 1
    assert notes.tolist() == [100 + team] * team + [0] * (4 - team)


def test_a_call_never_gets_more_threads_than_the_program_has_scratch_for(kernels: dict[str, int]) -> None:
    specs = (ArraySpec((8,), np.dtype(np.int64), writeable=True),)
    program = Program([Step(kernels["note_team"], (0,))], [Argument(0)], specs, 0, 2)
    notes = np.zeros(8, np.int64)
    assert program((notes,), 8) == 0
    assert np.count_nonzero(notes) <= 2


def test_the_status_word_belongs_to_one_call(kernels: dict[str, int]) -> None:
    specs = (ArraySpec((), np.dtype(np.int64), writeable=True),)
    marks = Program([Step(kernels["set_status"], (1,))], [Argument(0), Status()], specs)
    other = Program([Step(kernels["set_status"], (0,))], [Argument(0), Status()], specs)
    scalar = np.zeros((), np.int64)
    assert [marks((scalar,)), marks((scalar,)), other((scalar,))] == [7, 7, 0]
    assert scalar == 7


def variants() -> list[tuple[str, Any]]:
    base = np.zeros(2 * N)
    read_only = np.zeros(N)
    read_only.flags.writeable = False
    unaligned = np.zeros(8 * N + 1, np.uint8)[1:].view(F8)
    return [
        ("right", np.zeros(N)),
        ("view", base[N:]),
        ("unpickled", pickle.loads(pickle.dumps(np.zeros(N)))),
        ("annotated", np.zeros(N, np.dtype(F8, metadata={"unit": "m"}))),
        ("strided", base[::2]),
        ("backwards", base[:N][::-1]),
        ("float32", np.zeros(N, np.float32)),
        ("int64", np.zeros(N, np.int64)),
        ("swapped", np.zeros(N, F8.newbyteorder())),
        ("matrix", np.zeros((8, N // 8))),
        ("short", np.zeros(N - 1)),
        ("scalar", np.zeros(())),
        ("read-only", read_only),
        ("unaligned", unaligned),
        ("subclass", np.zeros(N).view(np.matrix).reshape(1, N)),
        ("masked", np.ma.zeros(N)),
        ("list", [0.0] * N),
        ("none", None),
        ("number", 3.0),
    ]


@given(st.lists(st.sampled_from(variants()), min_size=0, max_size=4), st.booleans())
def test_the_native_check_accepts_exactly_what_fits(
    kernels: dict[str, int], chosen: list[tuple[str, Any]], in_a_list: bool
) -> None:
    program = Program([], [Argument(0), Argument(1), Argument(2)], TRIPLE)
    arrays = tuple(array for _, array in chosen)
    ran = program(arrays) == 0
    accepted = {"right", "view", "unpickled", "annotated", "read-only"}
    names = [name for name, _ in chosen]
    assert ran == (len(names) == 3 and set(names) <= accepted and names[2] != "read-only")
    if in_a_list:
        assert program(list(arrays)) == MISMATCH  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["f4", "f8", "i4", "i8", "?"])
@pytest.mark.parametrize(
    "given_", ["f2", "f4", "f8", "i2", "i4", "i8", "u4", "u8", "?", "i1", "c8", "S8", "O", ">f4", ">i8"]
)
def test_only_the_stated_dtype_is_accepted(wanted: str, given_: str) -> None:
    program = Program([], [Argument(0)], (ArraySpec((2,), np.dtype(wanted)),))
    assert (program((np.zeros(2, given_),)) == 0) == (wanted == given_)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4), (1,) * 8])
def test_shapes_of_every_rank_are_checked(kernels: dict[str, int], shape: tuple[int, ...]) -> None:
    program = Program([], [], (ArraySpec(shape, F8),))
    assert program((np.zeros(shape),)) == 0
    assert program((np.zeros((*shape, 1)),)) == MISMATCH
    if shape:
        assert program((np.zeros((*shape[:-1], shape[-1] + 1)),)) == MISMATCH


def test_a_stated_alignment_is_required(kernels: dict[str, int]) -> None:
    program = Program([], [Argument(0)], (ArraySpec((N,), F8, alignment=64),))
    block = aligned_bytes(8 * N + 64)
    assert program((block[: 8 * N].view(F8),)) == 0
    assert program((block[8 : 8 * N + 8].view(F8),)) == MISMATCH


def test_one_program_serves_many_python_threads(kernels: dict[str, int], pool: Runtime) -> None:
    program = ping_pong(kernels, 12, 2, pool)
    failures: list[str] = []

    def serve(seed: int) -> None:
        x = np.random.default_rng(seed).integers(0, 1000, N).astype(F8)
        for _ in range(30):
            y = np.zeros(N)
            if program((x, y), 2) != 0 or not np.array_equal(y, expected_ping_pong(x, 12)):
                failures.append(f"thread {seed}")
                return

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_workers_that_fell_asleep_are_woken(kernels: dict[str, int]) -> None:
    program = ping_pong(kernels, 3, 4)
    x = np.arange(N, dtype=F8)
    for threads in (4, 2, 3, 4, 1, 4):
        y = np.zeros(N)
        assert program((x, y), threads) == 0
        np.testing.assert_array_equal(y, expected_ping_pong(x, 3))
        time.sleep(0.03)


def test_a_worker_that_never_runs_delays_nobody(kernels: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another program has its core: the calling thread runs the shares that nobody begins."""
    started: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def create(handle: int, attributes: int, function: int, argument: int) -> int:
        started.append(argument)
        return 0  # so it says

    pool = Runtime()
    if not pool.parallel:
        pytest.skip("no POSIX threads here")
    pool._words[1] = ctypes.cast(create, ctypes.c_void_p).value or 0
    program = ping_pong(kernels, 7, 3, pool)
    x, y = np.arange(N, dtype=F8), np.zeros(N)
    for _ in range(3):
        assert program((x, y), 3) == 0
        np.testing.assert_array_equal(y, expected_ping_pong(x, 7))
    assert len(started) == 2
    notes = np.zeros(4, np.int64)
    specs = (ArraySpec((4,), np.dtype(np.int64), writeable=True),)
    every = Program([Step(kernels["note_team"], (0,))], [Argument(0)], specs, 0, 3, pool=pool)
    assert every((notes,), 3) == 0
    np.testing.assert_array_equal(notes, [103, 103, 103, 0])


@pytest.mark.parametrize("threads", [2, 5])
def test_every_share_of_every_step_is_run_once(kernels: dict[str, int], threads: int) -> None:
    """Whoever runs it: a share that was run twice would count twice."""
    steps, calls = 40, 200
    counts = np.zeros(8 * threads, np.int64)
    specs = (ArraySpec((8 * threads,), np.dtype(np.int64), writeable=True),)
    program = Program([Step(kernels["count_share"], (0,))] * steps, [Argument(0)], specs, 0, threads)
    for call in range(calls):
        assert program((counts,), threads) == 0
        if call % 50 == 0:
            time.sleep(0.01)  # workers fall asleep
    np.testing.assert_array_equal(counts[::8], [steps * calls] * threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_computes_and_so_does_its_parent(kernels: dict[str, int]) -> None:
    program = ping_pong(kernels, 9, 2)
    x, y = np.arange(N, dtype=F8), np.zeros(N)
    assert program((x, y), 2) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a hang must not outlive the test
        y[:] = 0
        fine = program((x, y), 2) == 0 and np.array_equal(y, expected_ping_pong(x, 9))
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    y[:] = 0
    assert program((x, y), 2) == 0
    np.testing.assert_array_equal(y, expected_ping_pong(x, 9))


@pytest.mark.parametrize(
    ("steps", "slots", "message"),
    [
        ([Step(0, ())], [], "no function"),
        ([Step(1, (2,))], [Argument(0)], "uses slots"),
        ([], [Argument(3)], "argument 3"),
        ([], [Arena(65)], "byte 65"),
        ([], [Constant(np.zeros((4, 4)).T[1:])], "C-contiguous"),
        ([], [Argument(0), Argument(0)], "two slots"),
    ],
)
def test_programs_that_make_no_sense_are_refused(steps: list[Step], slots: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Program(steps, slots, PAIR, 64)
    with pytest.raises(ValueError, match="threads"):
        Program([], [], (), 0, 0)


class Placement:
    """A pool whose threads are told that they run on ``processor(thread)``, and what they may run on."""

    def __init__(self, processor: Callable[[int], int], allowed: set[int]) -> None:
        self.wanted: list[tuple[int, set[int]]] = []
        self.asked: dict[int, int] = {}
        self.pool = Runtime()

        def where() -> int:
            thread = threading.get_native_id()
            self.asked[thread] = self.asked.get(thread, 0) + 1
            return processor(thread)

        def get(pid: int, nbytes: int, to: int) -> int:
            words = (ctypes.c_uint64 * (nbytes // 8)).from_address(to)
            for number in allowed:
                words[number // 64] |= 1 << number % 64
            return 0

        def put(pid: int, nbytes: int, at: int) -> int:
            words = (ctypes.c_uint64 * (nbytes // 8)).from_address(at)
            found = {n for n in range(8 * nbytes) if words[n // 64] >> n % 64 & 1}
            self.wanted.append((threading.get_native_id(), found))
            return 0

        mask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
        functions = ctypes.CFUNCTYPE(ctypes.c_int)(where), mask(get), mask(put)
        words = (ctypes.c_int64 * 12).from_address(self.pool.address)
        words[9:12] = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
        self.pool.keep_for_ever()
        for function in functions:  # its workers may be polling after the test
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))

    def run(self, kernels: dict[str, int], threads: int, enough: Callable[[], bool]) -> None:
        """Call until ``enough``: a worker may come too late for many calls."""
        notes = np.zeros(8, np.int64)
        specs = (ArraySpec((8,), np.dtype(np.int64), writeable=True),)
        program = Program([Step(kernels["note_team"], (0,))], [Argument(0)], specs, 0, threads, pool=self.pool)
        end = time.monotonic() + 60
        while not enough() and time.monotonic() < end:
            assert program((notes,), threads) == 0
            time.sleep(0.001)  # the workers' turn
        assert enough()
        assert list(notes[:threads]) == [100 + threads] * threads


@pytest.mark.skipif(not runtime().parallel, reason="no POSIX threads here")
def test_a_team_on_one_processor_moves_apart(kernels: dict[str, int]) -> None:
    """Each worker forbids itself the processors of those before it, and allows itself all again."""
    place = Placement(lambda thread: 70, {3, 70, 900})

    def moves() -> dict[int, list[set[int]]]:
        found: dict[int, list[set[int]]] = {}
        for thread, processors in list(place.wanted):
            found.setdefault(thread, []).append(processors)
        return found

    place.run(kernels, 3, lambda: [len(sets) >= 2 for sets in moves().values()] == [True, True])
    assert len(moves()) == 2 and threading.get_native_id() not in moves()
    for found in moves().values():
        assert found[:2] == [{3, 900}, {3, 70, 900}]


@pytest.mark.skipif(not runtime().parallel, reason="no POSIX threads here")
def test_a_team_that_is_apart_or_cannot_be_stays(kernels: dict[str, int]) -> None:
    threads: dict[int, int] = {}
    apart = Placement(lambda thread: threads.setdefault(thread, len(threads)), {0, 1, 2, 3})
    only = Placement(lambda thread: 2, {2})
    unknown = Placement(lambda thread: -1, {0, 1})
    for place in (apart, only, unknown):
        asked = place.asked
        place.run(kernels, 3, lambda asked=asked: sorted(asked.values())[-3:-1] > [3, 3])  # the caller most often
        assert place.wanted == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not place threads")
def test_threads_may_run_where_they_could_before(kernels: dict[str, int]) -> None:
    program = ping_pong(kernels, 3, 2)
    x, y = np.zeros(N), np.zeros(N)
    for _ in range(200):
        assert program((x, y), 2) == 0

    def masks() -> set[frozenset[int]]:
        return {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}

    end = time.monotonic() + 60
    while masks() != {frozenset(os.sched_getaffinity(0))} and time.monotonic() < end:
        time.sleep(0.01)  # a worker may be on its way
    assert masks() == {frozenset(os.sched_getaffinity(0))}
