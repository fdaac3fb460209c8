"""Printed modules to machine code and back: right results, self-contained code, no Numba in a warm process."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eqsat import cache
from eqsat.cache import store as stores
from eqsat.compilers import Compilers, Outcome
from eqsat_backends.numba_cpu.compiling import jit, objects
from eqsat_backends.numba_cpu.vectors.lanes import native_lanes

ADD_AND_SCALE = """\
from eqsat_backends.numba_cpu.vectors.simd import add, load_f32x8, mul, splat_f32x8, store, word


def add_arrays(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    z = word(args, 2)
    for i in range(tid, 8, nt):
        store(z + 32 * i, add(load_f32x8(x + 32 * i), load_f32x8(y + 32 * i)))


def double_result(args, tid, nt):
    z = word(args, 2)
    two = splat_f32x8(2.0)
    for i in range(tid, 8, nt):
        store(z + 32 * i, mul(load_f32x8(z + 32 * i), two))
"""
PHASES = ("add_arrays", "double_result")


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    monkeypatch.setattr(jit, "_loaded", {})
    yield tmp_path


def call(address: int, *arrays: np.ndarray, tid: int = 0, nt: int = 1) -> None:
    table = np.array([array.ctypes.data for array in arrays], np.int64)
    word = ctypes.c_ssize_t
    ctypes.CFUNCTYPE(None, word, word, word)(address)(table.ctypes.data, tid, nt)


def check_add_and_scale(addresses: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 64)).astype(np.float32)
    z = np.full(64, np.nan, np.float32)
    for phase in PHASES:
        for tid in range(3):
            call(addresses[phase], x, y, z, tid=tid, nt=3)
    np.testing.assert_array_equal(z, (x + y) * 2)


def test_phases_compute_what_their_source_says() -> None:
    check_add_and_scale(jit.compile_module(ADD_AND_SCALE, PHASES))


def test_one_thread_does_only_its_share() -> None:
    addresses = jit.compile_module(ADD_AND_SCALE, PHASES)
    x, y, z = np.ones(64, np.float32), np.ones(64, np.float32), np.zeros(64, np.float32)
    call(addresses["add_arrays"], x, y, z, tid=1, nt=2)
    np.testing.assert_array_equal(z.reshape(8, 8)[:, 0], [0, 2, 0, 2, 0, 2, 0, 2])


def test_the_printed_module_is_kept_beside_its_code(private_cache: Path) -> None:
    jit.compile_module(ADD_AND_SCALE, PHASES)
    kept = list(private_cache.rglob("*.py"))
    assert [path.read_text() for path in kept] == [ADD_AND_SCALE]
    assert [path.stem for path in private_cache.rglob("*.o")] == [kept[0].stem]


def test_a_warm_process_never_imports_numba() -> None:
    script = (
        "import sys, json\n"
        "from eqsat_backends.numba_cpu.compiling import jit\n"
        "source, phases = json.loads(sys.stdin.read())\n"
        "found = jit.compile_module(source, tuple(phases))\n"
        "print(json.dumps([sorted(found), all(found.values()), 'numba' in sys.modules]))\n"
    )
    seen = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                input=json.dumps([ADD_AND_SCALE, PHASES]),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert seen == [[list(PHASES), True, True], [list(PHASES), True, False]]


def test_a_code_object_of_another_host_is_refused_and_replaced() -> None:
    store, key = cache.kernel_store(), jit.source_key(ADD_AND_SCALE, PHASES)
    data = jit.compile_object(ADD_AND_SCALE, PHASES)
    foreign = data.replace(objects.host().key.encode(), b"0" * 32)
    assert foreign != data
    with pytest.raises(objects.CodeObjectError, match="another processor"):
        objects.load_object(foreign)
    store.put(key, foreign)
    check_add_and_scale(jit.compile_module(ADD_AND_SCALE, PHASES))
    assert store.get(key) != foreign


@pytest.mark.parametrize("damage", ["", "eqsat code object 1\n{}", "eqsat code object 1\n[1]\nxyz", "something else"])
def test_a_damaged_code_object_is_refused_and_replaced(damage: str) -> None:
    with pytest.raises(objects.CodeObjectError):
        objects.load_object(damage.encode())
    cache.kernel_store().put(jit.source_key(ADD_AND_SCALE, PHASES), damage.encode())
    check_add_and_scale(jit.compile_module(ADD_AND_SCALE, PHASES))


@pytest.mark.parametrize("damage", [b"", b"something else"])
def test_what_a_process_sends_is_kept_only_if_it_can_be_loaded(damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    other = jit.compile_object(ADD_AND_SCALE, PHASES[:1])
    for sent in (damage, other):
        monkeypatch.setattr(Compilers, "run", lambda self, tasks, deadline, sent=sent: [Outcome(tasks[0], sent)])
        (found,) = jit.compile_modules([(ADD_AND_SCALE, PHASES)]).values()
        assert isinstance(found, jit.KernelCompileError) and "cannot be loaded" in str(found)
        assert cache.kernel_store().get(jit.source_key(ADD_AND_SCALE, PHASES)) is None


def test_truncated_machine_code_is_refused() -> None:
    with pytest.raises(objects.CodeObjectError, match="damaged"):
        objects.load_object(jit.compile_object(ADD_AND_SCALE, PHASES)[:-1])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    x = np.zeros(tid)\n    x[0] = 1\n", ""),
        ("    if tid == 5:\n        raise ValueError('no')\n", "line 6: a kernel cannot raise"),
        ("    assert tid == 0\n", "cannot raise"),
        ("    print(tid)\n", ""),
        ("    return tid.nothing\n", "nothing"),
        ("    return undefined_name\n", "undefined_name"),
    ],
)
def test_sources_that_are_no_kernels_are_refused_with_their_file(body: str, reason: str) -> None:
    source = f"import numpy as np\n\n\ndef run(args, tid, nt):\n{body}"
    with pytest.raises(jit.KernelCompileError) as caught:
        jit.compile_module(source, ("run",))
    assert reason in str(caught.value)
    assert jit.source_key(source, ("run",)) in str(caught.value)


def test_a_missing_phase_and_a_module_that_does_not_run_are_named() -> None:
    with pytest.raises(jit.KernelCompileError, match="'third'"):
        jit.compile_module(ADD_AND_SCALE, ("third",))
    with pytest.raises(jit.KernelCompileError, match="ZeroDivisionError"):
        jit.compile_module("x = 1 / 0\n", ("run",))


def test_libm_functions_are_found_without_numba() -> None:
    source = """\
import math

from eqsat_backends.numba_cpu.vectors.simd import lane0, load_f64x1, splat_f64x1, store, word


def run(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    for i in range(10):
        store(y + 8 * i, splat_f64x1(math.lgamma(lane0(load_f64x1(x + 8 * i)))))
"""
    x, y = np.linspace(1, 4, 10), np.zeros(10)
    data = jit.compile_object(source, ("run",))
    assert b'"lgamma"' in data.splitlines()[1]
    call(objects.load_object(data)["run"], x, y)
    import math

    np.testing.assert_allclose(y, [math.lgamma(v) for v in x], rtol=1e-14)


FAR = """\
import ctypes, mmap, sys
import numpy as np
from eqsat_backends.numba_cpu.compiling import jit, objects

SOURCE = '''
from eqsat_backends.numba_cpu.vectors.simd import NAME, load_f32x8, store, word


def run(args, tid, nt):
    x = word(args, 0)
    y = word(args, 1)
    for i in range(8):
        store(y + 32 * i, NAME(load_f32x8(x + 32 * i)))
'''
x, y = np.linspace(-3, 3, 64, dtype=np.float32), np.empty(64, np.float32)
table = (ctypes.c_int64 * 2)(x.ctypes.data, y.ctypes.data)
word = ctypes.c_ssize_t
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, (word, word, *[ctypes.c_int] * 3, word)
libc.munmap.argtypes = word, word
taken = lambda size: libc.mmap(0, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
for name in sys.argv[1:]:
    data = jit.compile_object(SOURCE.replace("NAME", name), ("run",))
    kept = objects.load_object(data)  # else it makes room
    start = taken(9 << 30)
    while taken(mmap.PAGESIZE) > start:  # every hole above
        pass
    for hole in (8, 5, 2):
        libc.munmap(start + (hole << 30), mmap.PAGESIZE)
    code = objects.load_object(data)
    ctypes.CFUNCTYPE(None, word, word, word)(code["run"])(ctypes.addressof(table), 0, 1)
    np.testing.assert_allclose(y, getattr(np, name)(x), rtol=1e-5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are given from above, as on Linux")
@pytest.mark.parametrize("name", ["exp", "sin"])
def test_code_is_loaded_where_only_single_pages_far_apart_are_free(name: str) -> None:
    """Its parts lie together, or reach further (``sin`` calls the C library): LLVM aborted where they did not."""
    done = subprocess.run([sys.executable, "-c", FAR, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fast_math_is_opt_in() -> None:
    source = """\
from eqsat_backends.numba_cpu.vectors.simd import lane0, load_f64x1, splat_f64x1, store, word


def run(args, tid, nt):
    x = lane0(load_f64x1(word(args, 0)))
    store(word(args, 0), splat_f64x1(x * 0.0))
"""
    strict, fast = np.array([np.inf]), np.array([np.inf])
    call(jit.compile_module(source, ("run",))["run"], strict)
    call(jit.compile_module("FASTMATH = True\n" + source, ("run",))["run"], fast)
    assert np.isnan(strict[0])
    assert fast[0] == 0


def test_wide_vectors_use_the_widest_registers() -> None:
    lanes = native_lanes(32)
    source = f"""\
from eqsat_backends.numba_cpu.vectors.simd import add, load_f32x{lanes}, store, word


def run(args, tid, nt):
    store(word(args, 2), add(load_f32x{lanes}(word(args, 0)), load_f32x{lanes}(word(args, 1))))
"""
    register = {16: "zmm", 8: "ymm", 4: "xmm"}[lanes]
    text = jit.assembly(source, ("run",))
    if platform.machine() == "x86_64":
        assert register in text
    assert text.count("addps") + text.count("fadd") == 1


def test_keys_follow_everything_the_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [jit.source_key(ADD_AND_SCALE, PHASES), jit.source_key(ADD_AND_SCALE, PHASES[::-1])]
    keys += [jit.source_key(ADD_AND_SCALE + "\n", PHASES), jit.source_key("a", ("bc",)), jit.source_key("c", ("ab",))]
    monkeypatch.setattr(jit, "package_fingerprint", lambda: "changed")
    keys.append(jit.source_key(ADD_AND_SCALE, PHASES))
    assert len(set(keys)) == len(keys)


def test_threads_that_compile_the_same_module_get_the_same_code() -> None:
    found: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(jit.compile_module(ADD_AND_SCALE, PHASES))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(addresses == found[0] for addresses in found)
    check_add_and_scale(found[0])


def test_without_a_usable_cache_kernels_are_compiled_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(blocked))
    monkeypatch.setattr(stores, "_warned", threading.Event())
    with pytest.warns(cache.CacheWarning) as warned:
        check_add_and_scale(jit.compile_module(ADD_AND_SCALE, PHASES))
    assert len(warned) == 1


def test_an_error_in_an_uncached_module_still_shows_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, os.devnull)
    monkeypatch.setattr(stores, "_warned", threading.Event())
    with pytest.warns(cache.CacheWarning), pytest.raises(jit.KernelCompileError, match=r"return tid\.nothing"):
        jit.compile_module("def run(args, tid, nt):\n    return tid.nothing\n", ("run",))
