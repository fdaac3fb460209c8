"""A cache directory and a machine model of the tests' own: no test reads or writes the user's, or uses all cores."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from eqsat.cost.machine import Level, Machine, cpu_name
from eqsat_backends.numba_cpu.compiling.jit import prepare
from tests.sweeps import a_part

settings.register_profile("repeatable", derandomize=True, max_examples=a_part(100), deadline=None)
settings.register_profile("random", deadline=None)  # machines are shared: a time proves nothing
settings.load_profile("repeatable")  # `pytest --hypothesis-profile=random` looks for what these examples do not show

MACHINE = Machine(
    cpu=cpu_name(),
    cores=2,
    vector_bytes=32,
    registers=16,
    fma_gflops=(("float32", 60.0), ("float64", 30.0)),
    levels=(
        Level("L1", 32 << 10, False, 150.0, 150.0, 300.0, 300.0),
        Level("L2", 1 << 20, False, 80.0, 80.0, 160.0, 160.0),
        Level("memory", 0, True, 15.0, 15.0, 20.0, 20.0),
    ),
    call_us=0.3,
    step_us=0.01,
    launch_us=5.0,
    barrier_us=0.5,
    function_ns=(("div", 0.1), ("exp", 0.3), ("log", 0.5), ("pow", 3.0), ("sqrt", 0.2), ("tanh", 0.4)),
)
"""A plain computer with 256-bit vectors: plans do not depend on where the tests run."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and libraries stay for the session: collections of garbage, a fifth of all time else, pass them over."""
    gc.disable()
    try:
        return (yield)
    finally:
        prepare()
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of neighbouring tests a process has a long row: they share what they draw, import and compile."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_arrives() -> Iterator[None]:
    """Shells start what runs in the background with SIGINT ignored, and its children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache directory for the session, shared by the workers of pytest-xdist: kernels are compiled once."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "eqsat-cache"
    root.mkdir(mode=0o700, exist_ok=True)
    model = root / "machine.json"
    model.write_text(MACHINE.to_json())
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:  # not beside the sources: else each of a hundred processes compiles all modules
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(root.with_name("bytecode")))
        patch.setenv("EQSAT_CACHE_DIR", str(root))
        patch.setenv("EQSAT_MACHINE", str(model))
        patch.setenv("EQSAT_JOBS", "1")  # pytest-xdist keeps the cores busy; tests of it say otherwise
        patch.setenv("EQSAT_CHECK_SPEED", "0")  # programs do not depend on what else runs; tests of it say otherwise
        yield root


@pytest.fixture(autouse=True)
def alone() -> None:
    """Calls that an earlier test gave up have ended: libraries catch warnings in them, for all threads (Numba does)."""
    for thread in threading.enumerate():
        if thread.name.startswith("eqsat: ") and not thread.daemon:
            thread.join(60)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone: the directory that entries are in, once there are some."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v2"


@pytest.fixture(scope="module")
def loops_stay() -> Iterator[None]:
    """Loops are looked at before those whose trips do not need one another become operators (``test_batched.py``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eqsat.frontends.trace.batched", lambda graph: None)
        yield
