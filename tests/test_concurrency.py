"""Threads, forks, signals, finalizers: at any moment, in processes of their own, each within a time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PREAMBLE = """
import concurrent.futures, contextvars, faulthandler, gc, multiprocessing, os, signal, sys, threading, time, warnings
import numpy as np
import numpy.testing  # by no handler of a signal first, which may come in the middle of that
import eqsat
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)

def ones(*shape):
    return np.ones(shape, np.float32)

def model(x, w):
    return np.tanh(x @ w) + 1

def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

def reap(pid, seconds=40):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGUSR1)  # where it hangs, on stderr
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit("the child hangs")

if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1)

def child(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
"""

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(program: str, *, cache: Path | None = None, seconds: float = 150) -> str:
    """Run a program in a process of its own; what it prints. A hang is a failure."""
    env = dict(os.environ) if cache is None else {**os.environ, "EQSAT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


SERVER = (
    PREAMBLE
    + """
import json, traceback
for line in sys.stdin:
    said = ""
    try:
        exec(json.loads(line), {**globals()})
    except BaseException:
        said = traceback.format_exc()
    os.write(1, json.dumps(said).encode() + b"\\n")
"""
)


class Process:
    """A process that runs programs one after another, for those that need not be the first in theirs."""

    running: subprocess.Popen[bytes] | None = None

    def __call__(self, program: str, seconds: float = 150) -> None:
        """Run a program among names of its own. After one that fails or hangs, the next runs in a new process."""
        if self.running is None:
            self.running = subprocess.Popen(
                [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        requests, answers = self.running.stdin, self.running.stdout
        assert requests is not None and answers is not None
        requests.write(json.dumps(textwrap.dedent(program)).encode() + b"\n")
        came, *_ = select.select([answers], [], [], seconds)
        said = answers.readline() if came else b"it hangs"
        if said != b'""\n':
            self.end()
            pytest.fail(json.loads(said) if came and said else said.decode() or "it ended")

    def end(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.communicate()
            self.running = None


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()


def test_a_program_that_fails_or_hangs_is_seen(shared: Process) -> None:
    for program, said in (
        ("assert ones(3).sum() == 4", "AssertionError"),
        ("os._exit(0)", "it ended"),
        ("time.sleep(60)", "it hangs"),
    ):
        with pytest.raises(pytest.fail.Exception, match=said):
            shared(program, 30 if "sleep" not in program else 0.1)


# Forks


@forks
@pytest.mark.parametrize("delay", [0.02, 0.3, 0.7, *(pytest.param(d, marks=pytest.mark.slow) for d in (0.0, 0.1, 0.5))])
def test_fork_while_another_thread_compiles_for_the_first_time(delay: float, tmp_path: Path) -> None:
    run(
        f"""
        f = eqsat.optimize(model)
        x = ones(8, 8)
        thread = threading.Thread(target=lambda: f(x, x))
        thread.start()
        time.sleep({delay})
        def work():
            same(f(x, x), model(x, x))
            assert "fork" not in f.compile(x, x).report["search"]["stops"]
        reap(child(work))
        thread.join()
        same(f(x, x), model(x, x))
        """,
        cache=tmp_path,
    )


@forks
@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_forks_from_one_thread_while_others_compile(count: int, tmp_path: Path) -> None:
    run(
        f"""
        count = {count}
        stop = threading.Event()
        def compile_for_ever():
            n = 0
            while not stop.is_set():
                n += 1
                x = ones(3, n)
                same(eqsat.optimize(lambda x: np.exp(x) + n)(x), np.exp(x) + n)
        thread = threading.Thread(target=compile_for_ever)
        thread.start()
        f = eqsat.optimize(model)
        for n in range(count):
            time.sleep(0.1 + 0.56 / count * n)
            x = ones(4, 5 + n)
            reap(child(lambda: same(f(x, x.T), model(x, x.T))))
        stop.set()
        thread.join()
        """,
        cache=tmp_path,
    )


@forks
def test_a_forked_child_and_its_child_search_with_rules(tmp_path: Path) -> None:
    """The library that the parent loaded waits for threads that a child lacks."""
    said = run(
        """
        def chain(a, b, c):
            return (a @ b) @ c
        def rules_of(f, n):
            return set(f.compile(ones(40, 30 + n), ones(30 + n, 50), ones(50, 2)).report["search"]["rules"])
        expected = rules_of(eqsat.optimize(chain), 0)
        assert expected
        def work():
            assert rules_of(eqsat.optimize(chain), 1) == expected
            def deeper():
                assert rules_of(eqsat.optimize(chain), 2) == expected
            reap(child(deeper))
        reap(child(work))
        assert rules_of(eqsat.optimize(chain), 3) == expected
        """,
        cache=tmp_path,
    )
    assert said == ""


@forks
def test_a_library_that_was_loaded_before_eqsat_and_a_fork(tmp_path: Path) -> None:
    run(
        """
        import egglog
        def work():
            f = eqsat.optimize(model)
            x = ones(6, 6)
            same(f(x, x), model(x, x))
            assert "fork" not in f.compile(x, x).report["search"]["stops"]
        reap(child(work))
        """,
        cache=tmp_path,
    )


@forks
def test_a_child_that_cannot_search_says_so_and_is_right(tmp_path: Path) -> None:
    run(
        """
        from eqsat.egraph import library
        f = eqsat.optimize(model)
        x = ones(6, 6)
        f(x, x)
        def refuse(origin):
            raise ImportError("no room")
        library._copy = refuse
        def work():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for n in range(2):
                    x = ones(7 + n, 7 + n)
                    same(f(x, x), model(x, x))
            found = [w for w in caught if w.category is eqsat.ForkWarning]
            assert len(found) == 1, caught
            text = str(found[0].message)
            assert "without rewrite rules" in text and "spawn" in text and "no room" in text, text
        reap(child(work))
        """,
        cache=tmp_path,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(method: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys, warnings
        import numpy as np
        import eqsat
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)

        @eqsat.optimize
        def f(x):
            return np.exp(x) * 2

        if __name__ == "__main__":
            if "{method}" not in multiprocessing.get_all_start_methods():
                sys.exit(0)
            f(np.ones(3))
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                got = pool.map_async(f, [np.full(3 + n, n / 8) for n in range(6)]).get(100)
            for n, row in enumerate(got):
                np.testing.assert_allclose(row, np.exp(np.full(3 + n, n / 8)) * 2)
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def test_every_import_of_a_compilation_is_one_that_a_fork_waits_for(tmp_path: Path) -> None:
    said = run(
        """
        import eqsat.api
        from eqsat.forks import IMPORTING
        from eqsat_backends.numba_cpu.compiling import jit
        free = []
        class Finder:
            def find_spec(self, name, path=None, target=None):
                frame = sys._getframe(1)
                while frame is not None and frame.f_code.co_name != "_find_and_load":
                    frame = frame.f_back
                if frame is not None and not IMPORTING._is_owned() and not jit._lock._is_owned():
                    free.append(name)
        rng = np.random.default_rng(0)
        sys.meta_path.insert(0, Finder())
        f = eqsat.optimize(lambda x, w: (eqsat.nn.gelu(x @ w), np.sort(x), eqsat.nn.softmax(x)), const="w")
        x, w = ones(9, 7), ones(7, 5)
        f(x, w)
        print(f.explain(x, w), file=open(os.devnull, "w"))
        free = [name for name in free if name in sys.modules]
        print(*free)
        """,
        cache=tmp_path,
    )
    assert said.split() == []


# Threads


def test_functions_that_call_each_other_traced_in_two_threads(shared: Process) -> None:
    shared(
        """
        both = threading.Barrier(2)
        arrays = ones(3), ones(4)
        def meet():
            try:
                both.wait(5)
            except threading.BrokenBarrierError:
                pass
        @eqsat.optimize(verify=False)  # which would refuse what differs when it is traced
        def f(x):
            if not isinstance(x, np.ndarray) or type(x) is not np.ndarray:
                meet()
                return x.sum() + g(arrays[0]).sum()
            return x + 1
        @eqsat.optimize(verify=False)  # which would refuse what differs when it is traced
        def g(x):
            if not isinstance(x, np.ndarray) or type(x) is not np.ndarray:
                meet()
                return x.sum() + f(arrays[1]).sum()
            return x + 2
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            one, two = pool.submit(f, ones(5)), pool.submit(g, ones(6))
            assert (one.result(60), two.result(60)) == (5 + 9, 6 + 8)
        """
    )


def test_sixteen_threads_call_and_compile() -> None:
    run(
        """
        functions = [eqsat.optimize(lambda x, w, n=n: np.tanh(x @ w) * n + x.sum(), threads=2) for n in range(3)]
        start = threading.Barrier(16)
        def work(number):
            start.wait()
            for turn in range(60):
                n, size = (number + turn) % 3, 8 + (number + turn) % 4
                x, w = np.full((size, 8), number, np.float32), np.full((8, size), 0.01, np.float32)
                same(functions[n](x, w), np.tanh(x @ w) * n + x.sum())
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for future in [pool.submit(work, n) for n in range(16)]:
                future.result()
        assert [f.cache_info().currsize for f in functions] == [4, 4, 4]
        """
    )


def test_a_call_does_not_wait_for_ever_for_another_threads_compilation() -> None:
    run(
        """
        import email.parser, numpy.ma, numpy.random  # the budget is for less
        from eqsat import locks
        locks.PATIENCE = 0.2
        go = threading.Event()
        @eqsat.optimize(budget=0.01)
        def f(x):
            if type(x) is not np.ndarray:
                go.wait(60)
            return x * 2
        thread = threading.Thread(target=lambda: f(ones(3)))
        thread.start()
        time.sleep(0.1)
        same(f(ones(3)), ones(3) * 2)
        assert f.cache_info().currsize == 0
        go.set()
        thread.join()
        """
    )


def test_a_traced_array_in_another_thread_is_refused(shared: Process) -> None:
    shared(
        """
        raised = []
        @eqsat.optimize
        def f(x):
            def use():
                try:
                    x + 1
                except eqsat.errors.ConcretizationError as error:
                    raised.append(str(error))
            for context in (contextvars.copy_context(), contextvars.Context()):
                thread = threading.Thread(target=context.run, args=(use,))
                thread.start()
                thread.join(60)
            return x * 2
        same(f(ones(3)), ones(3) * 2)
        assert len(raised) >= 2 and all("thread" in text for text in raised), raised
        """
    )


def test_a_context_copied_while_tracing_is_an_ordinary_one_afterwards(shared: Process) -> None:
    shared(
        """
        kept = []
        @eqsat.optimize
        def f(x):
            kept.append(contextvars.copy_context())
            return x * 2
        f(ones(3))
        same(kept[0].run(f, ones(4)), ones(4) * 2)
        assert f.cache_info().currsize == 2
        """
    )


def test_asyncio(shared: Process) -> None:
    shared(
        """
        import asyncio
        f = eqsat.optimize(model)
        async def main():
            inputs = [ones(4, 4 + n % 2) for n in range(8)]
            found = await asyncio.gather(*(asyncio.to_thread(f, x, x.T) for x in inputs))
            for x, y in zip(inputs, found):
                same(y, model(x, x.T))
        asyncio.run(main())
        """
    )


# In the middle of anything


@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="needs timers")
def test_calls_in_signal_handlers_while_compiling(tmp_path: Path) -> None:
    run(
        """
        f = eqsat.optimize(lambda x: np.exp(x) + 1)
        g = eqsat.optimize(lambda x: np.exp(x) * 2)
        big = ones(300_000)
        g(big)
        count = depth = 0
        def handle(number, frame):
            global count, depth
            count += 1
            if depth > 4:  # on a busy machine it takes longer than the timer's interval, and would nest without end
                return
            depth += 1
            x = ones(3 + count % 3)
            same(f(x), np.exp(x) + 1)
            same(g(big), np.exp(big) * 2)
            depth -= 1
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.02)
        for n in range(4):
            x = ones(6 + n)
            same(f(x), np.exp(x) + 1)
            for _ in range(50):
                same(g(big), np.exp(big) * 2)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert count > 5
        """,
        cache=tmp_path,
    )


def test_calls_in_finalizers_while_compiling() -> None:
    run(
        """
        f = eqsat.optimize(lambda x: x + 1)
        right = []
        class Last:
            def __init__(self):
                self.me = self
            def __del__(self):
                x = ones(3 + len(right) % 2)
                right.append(np.array_equal(f(x), x + 1))  # without np.errstate: python/cpython#148891
        gc.set_threshold(50, 2, 2)
        for n in range(3):
            for _ in range(20):
                Last()
            x = ones(10 + n)
            same(f(x), x + 1)
        gc.set_threshold(700, 10, 10)
        assert len(right) > 5 and all(right)
        """
    )


def test_calls_in_finalizers_while_tracing(shared: Process) -> None:
    shared(
        """
        g = eqsat.optimize(lambda x: x * 2)
        right = []
        class Last:
            def __init__(self):
                self.me = self
            def __del__(self):
                x = ones(3 + len(right) % 2)
                right.append(np.array_equal(g(x), x * 2))
        @eqsat.optimize
        def f(x):
            for _ in range(40):
                Last()
                x = x + 1
            return x
        g(ones(3))
        gc.set_threshold(50, 1000, 1000)
        for n in range(3):
            x = ones(10 + n)
            same(f(x), x + 40)
        gc.set_threshold(700, 10, 10)
        assert len(right) > 100 and all(right)
        """
    )


def test_recursion_from_several_threads(shared: Process) -> None:
    shared(
        """
        @eqsat.optimize
        def f(x, depth):
            return x + 1 if depth == 0 else f(x, depth - 1) * 2
        def expected(x, depth):
            return x + 1 if depth == 0 else expected(x, depth - 1) * 2
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for n, found in enumerate(pool.map(lambda n: f(ones(3), n % 3), range(12))):
                same(found, expected(ones(3), n % 3))
        """
    )


# Interpreters


def test_free_threaded_python_is_refused() -> None:
    program = "import sys; sys.version = sys.version.replace(' (', ' free-threading build ('); import eqsat"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "ImportError: eqsat does not support free-threaded" in done.stderr


# Logging


def test_the_log_at_level_info_is_short() -> None:
    program = """
        import logging
        logging.basicConfig(level="INFO")
        logging.getLogger("egglog.egraph").setLevel({level!r})
        f = eqsat.optimize(lambda x, w: eqsat.nn.gelu(x @ w), cache=False)
        f(ones(4, 8), ones(8, 8))
    """
    lines = run(program.format(level=0)).splitlines()
    assert 1 <= len(lines) <= 5, lines
    assert not any("egglog" in line for line in lines)
    assert any("egglog" in line for line in run(program.format(level="INFO")).splitlines())
