"""Ctrl-C at any moment of a compilation: it ends at once, and the next one is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import compiled
from eqsat.aside import aside, load
from eqsat.compiled import Compiled
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.locks import compiling, is_compiling, locked
from eqsat.scoped import carried

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals to threads")

BOUND = 15.0
"""Seconds that may pass after Ctrl-C on a machine that is busy; whole compilations here take as long."""

PROGRAM = '''
import sys, signal, threading, time
import numpy as np

rng = np.random.default_rng(0)
x, w, u = (rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((9, 12), (12, 12), (12, 12)))

def fn(x, w, u):
    h = x
    for step in range(1):
        gate = 1 / (1 + np.exp(-(h @ w + x @ u)))
        h = gate * np.tanh(h @ u + step) + (1 - gate) * h
    h = h - h.max(axis=1, keepdims=True)
    return np.sort(np.exp(h) / np.exp(h).sum(axis=1, keepdims=True)) @ w

pressed = []

def press():
    pressed.append(time.monotonic())
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def interrupted(delay, again=True):
    """Seconds from Ctrl-C, ``delay`` seconds into compilations, to the exception. ``again``: compiles once more."""
    import eqsat
    timer = threading.Timer(delay, press)
    f = eqsat.optimize(fn, cache=False)
    try:
        timer.start()
        while True:
            f.compile(x, w, u)
            f = eqsat.optimize(fn, cache=False)
    except KeyboardInterrupt:
        late = time.monotonic() - pressed[-1]
    timer.join()
    if again:
        np.testing.assert_allclose(f(x, w, u), fn(x, w, u), rtol=1e-3, atol=1e-4)
    return late
'''


def _run(script: str, *args: object) -> list[float]:
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM + script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EQSAT_JOBS": "2"},
    )
    assert made.returncode == 0, made.stderr
    return [float(word) for word in made.stdout.split()]


@pytest.mark.parametrize("delay", [0.15, 0.6, 1.5])
def test_the_first_compilation_of_a_process_can_be_interrupted(delay: float) -> None:
    """Also while libraries are being imported."""
    (late,) = _run("print(interrupted(float(sys.argv[1])))", delay)
    assert late < BOUND


def test_compilations_can_be_interrupted_again_and_again() -> None:
    rng = random.Random(0)
    delays = sorted(rng.uniform(0.0, 2.5) for _ in range(5))
    found = _run("print(*[interrupted(float(delay), delay == sys.argv[-1]) for delay in sys.argv[1:]])", *delays)
    assert len(found) == len(delays) and max(found) < BOUND


@pytest.mark.slow
def test_many_moments() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        delays = [rng.uniform(0.0, 3.0) for _ in range(8)]
        assert (
            max(_run("print(*[interrupted(float(delay), delay == sys.argv[-1]) for delay in sys.argv[1:]])", *delays))
            < BOUND
        )


def test_a_script_ends_with_ctrl_c_and_leaves_no_process() -> None:
    script = PROGRAM + "print('go', flush=True)\nimport eqsat\nwhile True: eqsat.optimize(fn, cache=False)(x, w, u)\n"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"EQSAT_JOBS": "3"},
    ) as run:
        assert run.stdout is not None and run.stdout.readline() == "go\n"
        time.sleep(1.5)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of the group
        start = time.monotonic()
        _, said = run.communicate(timeout=60)
        assert time.monotonic() - start < BOUND
    assert run.returncode != 0 and said.rstrip().endswith("KeyboardInterrupt")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            os.killpg(run.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("processes of the group are left")


def press(delay: float) -> threading.Timer:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(delay, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    return timer


STAGES: dict[str, Callable[[], tuple[Any, str]]] = {
    "saturate": lambda: (__import__("eqsat.search").search, "saturate"),
    "extract": lambda: (__import__("eqsat.search").search, "extract"),
    "schedule": lambda: (__import__("eqsat.search").search, "schedule"),
    "fold": lambda: (compiled, "evaluate_nodes"),
    "verify": lambda: (compiled, "verify"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_passes_it_on_and_leaves_nothing_behind(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = float(list(STAGES).index(stage))

    def fn(x: Any) -> Any:
        return np.tanh(x) * (number + 3)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    f = eqsat.optimize(fn)
    x = np.arange(3, dtype=np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(*STAGES[stage](), interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(x)
    np.testing.assert_allclose(f(x), fn(x), rtol=1e-6)
    made = f.compile(x)
    assert isinstance(made, Compiled) and not made.cached


def test_a_long_call_is_not_waited_for() -> None:
    done = threading.Event()
    go_on = threading.Event()

    def long() -> None:
        go_on.wait(60)
        done.set()

    timer = press(0.1)
    with pytest.raises(KeyboardInterrupt):
        aside("waiting", NEVER, long)
    timer.join()
    assert not done.is_set()
    go_on.set()
    assert done.wait(60)  # it ends by itself
    with pytest.raises(OutOfTime, match="waiting"):
        aside("waiting", Deadline(0.01), time.sleep, 0.2)


def test_calls_aside_give_results_errors_and_see_the_context() -> None:
    from eqsat.frontends.tracing import CURRENT, Trace

    assert aside("adding", NEVER, lambda a, *, b: a + b, 1, b=2) == 3
    with pytest.raises(ZeroDivisionError):
        aside("dividing", NEVER, lambda: 1 // 0)
    token = CURRENT.set(trace := Trace())
    try:
        assert aside("looking", NEVER, CURRENT.get) is trace
    finally:
        CURRENT.reset(token)
    load("json", "eqsat")
    with pytest.raises(ModuleNotFoundError):
        load("no_such_module_of_eqsat")


def test_what_an_interrupted_compilation_left_set_is_no_compilation() -> None:
    lock, seen = threading.Lock(), list[bool]()
    assert not is_compiling()

    def other() -> None:
        seen.append(is_compiling())

    with locked(lock, 1.0) as mine:
        assert mine and is_compiling()
        for run in (other, carried(other)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        left = compiling.get()
    assert seen == [False, True] and not is_compiling()

    def interrupted() -> None:
        compiling.set((threading.get_ident(), sys._getframe()))
        assert is_compiling()

    interrupted()
    assert left is not None and compiling.get() is not None
    assert not is_compiling() and compiling.get() is None
