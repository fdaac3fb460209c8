"""Kernels compiled by several processes: the same machine code, nothing lost, nobody left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import cache, compilers
from eqsat.compilers import Compilers, Task, jobs
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat_backends.numba_cpu.compiling import jit
from eqsat_backends.numba_cpu.compiling.jit import KernelCompileError, compile_object, prepare, source_key
from eqsat_backends.numba_cpu.compiling.worker import BOOT
from tests.test_jit import ADD_AND_SCALE, PHASES, check_add_and_scale

posix = pytest.mark.skipif(os.name != "posix", reason="signals and process groups of POSIX")


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    monkeypatch.setenv(compilers.ENVIRONMENT_VARIABLE, "3")
    monkeypatch.setattr(jit, "_loaded", {})
    yield tmp_path


def kernels(count: int) -> list[Task]:
    """Different modules, which all compute the same."""
    sources = [f"# {number}\n{ADD_AND_SCALE}" for number in range(count)]
    return [Task(source_key(source, PHASES), source, PHASES) for source in sources]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def nobody(source: str, phases: tuple[str, ...]) -> bytes:
    """In place of what compiles here: waits until the processes have done everything."""
    raise AssertionError("compiled here")


class OnlyProcesses(Compilers):
    """Compiles nothing in this process."""

    def _compile_here(self) -> None:
        self._here = True


def test_processes_make_the_same_code_as_this_one() -> None:
    tasks = kernels(4)
    with OnlyProcesses(nobody, (), prepare, BOOT) as at_work:
        at_work.start(99)
        assert len(at_work._processes) == 2  # three jobs, one of which is this process
        outcomes = {o.task.key: o for o in at_work.run(tasks, Deadline(120))}
    assert outcomes.keys() == {task.key for task in tasks}
    for task in reversed(tasks):  # in another order, after other functions
        assert outcomes[task.key].error is None
        assert outcomes[task.key].data == compile_object(task.source, task.phases)


def test_processes_end_with_the_work() -> None:
    with Compilers(compile_object, (KernelCompileError,), prepare, BOOT) as at_work:
        at_work.start(99)
        pids = [process.pid for process, _ in at_work._processes]
        assert pids and all(map(alive, pids))
        list(at_work.run(kernels(2), Deadline(120)))
    assert not any(map(alive, pids))  # not even as zombies
    assert all(process.stdin.closed and process.stdout.closed for process, _ in at_work._processes)  # type: ignore[union-attr]


@posix
def test_nothing_is_lost_with_a_process() -> None:
    tasks = kernels(12)
    with Compilers(compile_object, (KernelCompileError,), prepare, BOOT) as at_work:
        at_work.start(99)
        found = []
        for number, outcome in enumerate(at_work.run(tasks, Deadline(300))):
            found.append(outcome.task.key)
            if number == 2:
                for process, _ in at_work._processes:
                    process.send_signal(signal.SIGKILL)
    assert sorted(found) == sorted(task.key for task in tasks)


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/bin/false"])
def test_without_processes_all_is_compiled_here(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    found = jit.compile_modules([(task.source, task.phases) for task in kernels(4)], Deadline(120))
    assert len(found) == 4
    for addresses in found.values():
        assert isinstance(addresses, dict)
        check_add_and_scale(addresses)


def test_a_refused_module_is_no_matter_of_the_others() -> None:
    bad = ("def run(args, tid, nt):\n    return tid.nothing\n", ("run",))
    good = [(task.source, task.phases) for task in kernels(3)]
    found = jit.compile_modules([good[0], bad, *good[1:], bad], Deadline(120))
    assert isinstance(found[bad], KernelCompileError)
    assert all(isinstance(found[each], dict) for each in good)
    with OnlyProcesses(nobody, (), prepare, BOOT) as at_work:
        at_work.start(99)
        (outcome,) = at_work.run([Task(source_key(*bad), *bad)], Deadline(120))
    assert outcome.error is not None and "refuses the printed module" in outcome.error


@posix
def test_a_crash_of_the_compiler_is_an_error_and_not_tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os, sys; from eqsat.compilers import send; "
    crash += "send(sys.stdout.buffer, {'key': ''}, b''); sys.stdin.buffer.read(8); os.abort()"
    with OnlyProcesses(nobody, (), prepare, crash) as at_work:
        at_work.start(6)
        (outcome,) = at_work.run(kernels(1), Deadline(120))
    assert outcome.error is not None and "SIGABRT" in outcome.error


def test_a_process_with_other_code_is_not_believed() -> None:
    (task,) = kernels(1)
    other = Task("0" * 40, task.source, task.phases)
    with Compilers(compile_object, (KernelCompileError,), prepare, BOOT) as at_work:
        at_work.start(99)
        at_work._here = True  # not before the processes have had it

        def after() -> None:
            for process, _ in at_work._processes:
                process.wait()
            with at_work._news:
                at_work._here = False
                at_work._news.notify_all()

        thread = threading.Thread(target=after)
        thread.start()
        (outcome,) = at_work.run([other], Deadline(120))
        thread.join()
    assert outcome.data == compile_object(task.source, task.phases)


def test_everything_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Compilers.run
    asked: list[str] = []

    def noted(self: Compilers, tasks: list[Task], deadline: Deadline) -> object:
        asked.extend(task.key for task in tasks)
        return run(self, tasks, deadline)

    monkeypatch.setattr(Compilers, "run", noted)
    f = eqsat.optimize(lambda *xs: [np.exp(x) @ x.T for x in xs], verify=False)
    f.compile(*(np.ones((5, 6), np.float32) for _ in range(6)), np.ones((4, 3), np.float32))
    assert len(asked) == len(set(asked)) == 2


def test_without_a_cache_no_file_is_written(private_cache: Path) -> None:
    with cache.bypassed():
        found = jit.compile_modules([(task.source, task.phases) for task in kernels(4)], Deadline(120))
    assert all(isinstance(addresses, dict) for addresses in found.values())
    assert not list(private_cache.rglob("*.o")) and not list(private_cache.rglob("*.py"))


def test_the_deadline_ends_the_waiting_and_the_processes() -> None:
    stop = threading.Event()

    def slow(source: str, phases: tuple[str, ...]) -> bytes:
        stop.wait(60)
        return b""

    start = time.monotonic()
    with pytest.raises(OutOfTime, match="compiling kernels"), Compilers(slow, (), prepare, BOOT) as at_work:
        list(at_work.run(kernels(1), Deadline(0.1)))
    stop.set()
    assert time.monotonic() - start < 30


def test_what_fails_here_is_raised_where_it_is_waited_for() -> None:
    def full(source: str, phases: tuple[str, ...]) -> bytes:
        raise MemoryError

    with pytest.raises(MemoryError), Compilers(full, (KernelCompileError,), prepare, BOOT) as at_work:
        list(at_work.run(kernels(1), NEVER))


def test_an_error_inside_the_compiler_is_an_error_of_one_kernel_in_a_process_too() -> None:
    name = "def compile_object(source, phases): raise SystemError('LLVM says no')"
    boot = "import sys; sys.path[:] = sys.argv[2:]; from eqsat_backends.numba_cpu.compiling import jit, worker; "
    boot += f"exec({name!r}); jit.compile_object = compile_object; worker.main(int(sys.argv[1]))"
    with OnlyProcesses(nobody, (), prepare, boot, 6) as at_work:
        outcomes = list(at_work.run(kernels(3), Deadline(120)))
    assert len(outcomes) == 3 and all(o.error is not None and "LLVM says no" in o.error for o in outcomes)


def test_processes_that_are_started_when_ctrl_c_arrives_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def once(*args: Any, **kwargs: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.append(popen(*args, **kwargs))
        return made[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", once)
    with pytest.raises(KeyboardInterrupt), jit.helpers(99):
        pytest.fail("not entered")
    assert [process.returncode is None for process in made] == [False]


OPTIONS = """
import sys
from eqsat import compilers
from eqsat.compilers import receive

say = "[getattr(sys.flags, n) for n in ('isolated', 'ignore_environment', 'no_user_site', 'optimize', 'utf8_mode')]"
say += " + [sorted(sys._xoptions), sys.warnoptions]"
boot = (
    "import sys; sys.path[:] = sys.argv[2:]; from eqsat.compilers import send; "
    "send(sys.stdout.buffer, {'key': " + say + "}, b'')"
)
told = []
compilers.Compilers._serve = lambda self, process: told.append(receive(process.stdout)[0]["key"])
with compilers.Compilers(None, (), None, boot, 99) as at_work:
    for _, thread in at_work._processes:
        thread.join()
assert len(told) == 2 and told[0] == told[1] == eval(say), (told, eval(say))
"""


@pytest.mark.parametrize("options", [["-I"], ["-E", "-s", "-O"], ["-X", "utf8", "-W", "ignore::ResourceWarning"]])
def test_processes_run_as_this_one_does(options: list[str]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", OPTIONS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_jobs_follow_the_environment_and_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("1", 1), ("7", 7), ("1000", compilers.MOST)):
        monkeypatch.setenv(compilers.ENVIRONMENT_VARIABLE, given)
        assert jobs() == expected
    for given in ("", "0", "many"):
        monkeypatch.setenv(compilers.ENVIRONMENT_VARIABLE, given)
        assert 1 <= jobs() <= compilers.MOST


ORPHAN = """
import os, sys
from eqsat.compilers import Compilers
from eqsat_backends.numba_cpu.compiling.worker import BOOT
at_work = Compilers(None, (), None, BOOT)
at_work.start(99)
print(*(process.pid for process, _ in at_work._processes), flush=True)
if sys.argv[1] == "fork" and os.fork() == 0:
    import time
    time.sleep(60)  # holds the other ends of the pipes
os.kill(os.getpid(), 9)
"""


@posix
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_processes_end_when_their_parent_is_killed(how: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert run.wait(60) == -9 and len(pids) == 2
        until = time.monotonic() + 60
        while any(map(alive, pids)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(alive, pids))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.stdout.close()  # type: ignore[union-attr]
        run.wait()


def test_a_program_is_the_same_whoever_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    x = np.random.default_rng(0).standard_normal((9, 7)).astype(np.float32)
    for count in ("1", "3"):
        monkeypatch.setenv(compilers.ENVIRONMENT_VARIABLE, count)
        monkeypatch.setattr(jit, "_loaded", {})
        objects: dict[str, bytes] = {}
        monkeypatch.setattr(
            jit,
            "_keep",
            lambda task, data, *end, kept=objects, keep=jit._keep: (
                kept.update({task.key: data}) or keep(task, data, *end)
            ),
        )
        f = eqsat.optimize(lambda x: [np.sort(np.exp(x[:n])) * 2 for n in range(1, 9)], cache=False)
        f(x)
        made.append(objects)
    assert len(made[0]) >= jit.EACH and made[0] == made[1]
