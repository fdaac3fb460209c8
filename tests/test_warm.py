"""What is remembered between processes: warm starts, damage, foreign entries, determinism."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import cache

PROGRAM = """
import json, sys
import numpy as np
import eqsat
from eqsat_backends.numba_cpu import NumbaCpuBackend

rng = np.random.default_rng(0)
def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)

@eqsat.optimize(threads=2, const=("w", "v"))
def block(x, w, b, v, g):
    h = np.tanh(x @ w + b) @ v + x
    e = np.exp(h - h.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return (p - p.mean(axis=-1, keepdims=True)) * g

args = normal(33, 24), normal(24, 40), normal(40), normal(40, 24), normal(24)
found = block(*args)
expected = block.fn(*args)
explained = block.explain(*args)
heavy = [m for m in ("egglog", "numba", "scipy", "rich") if m in sys.modules]
program = block.compile(*args)
print(json.dumps({
    "error": float(np.abs(found - expected).max()),
    "cached": explained.cached,
    "text": str(explained),
    "heavy": heavy,
    "seconds": program.seconds,
    "source": block.source(*args),
    "plan": NumbaCpuBackend().kept(program.executable.emitted),
}))
"""


def run(directory: Path, **environment: str) -> dict[str, Any]:
    """Run the program in a process of its own; what it prints."""
    env = {**os.environ, "EQSAT_CACHE_DIR": str(directory), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    result["stderr"] = done.stderr
    assert result["error"] < 1e-5
    return result


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache directory after one process, and what that process said."""
    directory = tmp_path_factory.mktemp("warm")
    return directory, run(directory, PYTHONHASHSEED="1")


@pytest.fixture
def used(first: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of that directory, to spoil."""
    copy = tmp_path / "cache"
    shutil.copytree(first[0], copy)
    return copy


def test_second_process_starts_warm(first: tuple[Path, dict[str, Any]]) -> None:
    directory, cold = first
    assert not cold["cached"]
    warm = run(directory, PYTHONHASHSEED="2")
    assert warm["cached"] and "remembered from an earlier process" in warm["text"]
    assert warm["heavy"] == []  # nothing that takes long to import
    assert warm["seconds"] < cold["seconds"]
    assert warm["source"] == cold["source"] and warm["plan"] == cold["plan"]
    assert warm["stderr"] == ""


def test_plans_and_kernels_do_not_depend_on_the_hash_seed(first: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    other = run(tmp_path, PYTHONHASHSEED="3")
    assert not other["cached"]
    assert other["plan"] == first[1]["plan"]
    assert other["source"] == first[1]["source"]


def _plan(directory: Path) -> Path:
    (path,) = directory.rglob("*.plan")
    return path


def _payload(directory: Path) -> Any:
    return cache.PlanStore(_plan(directory).parent).get("plan", _plan(directory).stem)


def _rewrite(directory: Path, change: Any) -> None:
    """Change the payload of the plan, with the checksum that fits."""
    key = _plan(directory).stem
    store = cache.PlanStore(_plan(directory).parent)
    payload = store.get("plan", key)
    assert payload is not None and store.put("plan", key, change(payload))


def _edit(**changes: Any) -> Any:
    return lambda payload: {**payload, **changes}


DAMAGE: dict[str, Any] = {
    "of another program": lambda d: _rewrite(d, _edit(key="0" * 32)),
    "without steps": lambda d: _rewrite(d, _edit(emitted={})),
    "no plan at all": lambda d: _rewrite(d, lambda payload: [1, 2, 3]),
    "truncated": lambda d: _plan(d).write_bytes(_plan(d).read_bytes()[:700]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_plans_are_made_again(name: str, used: Path) -> None:
    DAMAGE[name](used)
    again = run(used)
    assert not again["cached"]


def test_damaged_and_foreign_kernels_are_made_again(used: Path) -> None:
    objects = sorted(used.rglob("*.o"))
    assert len(objects) >= 2
    objects[0].write_bytes(objects[0].read_bytes()[:100])
    for path in objects[1:]:
        cache.KernelStore(path.parent).put(path.stem, b"not machine code of this host")
    assert not run(used)["cached"]
    assert run(used)["cached"]


def test_machine_code_under_the_key_of_other_code_is_not_run(used: Path) -> None:
    """Also where the checksum fits: a kernel with other phases than the plan says is no kernel of it."""
    store = cache.KernelStore(_plan(used).parent)
    kernels = [step["kernel"] for step in _payload(used)["emitted"]["steps"]]
    other = min({path.stem for path in used.rglob("*.o")} - set(kernels))  # the driver's, or a lap's
    data = store.get(other)
    assert data is not None
    store.put(kernels[0], data)
    again = run(used)
    assert not again["cached"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_no_source_from_the_cache_is_run(used: Path, tmp_path: Path, everywhere: bool) -> None:
    """Neither that of a plan nor that of a printed module, with machine code there or not, whatever the checksums."""
    trap = f"open({str(tmp_path / 'run')!r}, 'w').close()\n"
    assert "source" not in json.dumps(_payload(used)["emitted"])

    def change(payload: Any) -> Any:
        steps = [{**step, "source": trap + "x = 1\n"} for step in payload["emitted"]["steps"]]
        return {**payload, "emitted": {**payload["emitted"], "steps": steps}}

    _rewrite(used, change)
    for path in used.rglob("*.py"):
        path.write_text(trap + path.read_text())
    for path in used.rglob("*.o"):
        if everywhere or path.stem in {step["kernel"] for step in _payload(used)["emitted"]["steps"]}:
            path.unlink()
    run(used)
    assert not (tmp_path / "run").exists()


def test_a_plan_whose_kernels_are_gone_is_made_again(used: Path) -> None:
    for path in used.rglob("*.o"):
        path.unlink()
    again = run(used)
    assert not again["cached"] and "import" in again["source"]
    assert run(used)["cached"]


def test_source_that_is_not_the_kernels_is_not_shown(used: Path) -> None:
    for path in used.rglob("*.py"):
        path.write_text("something else\n")
    again = run(used)
    assert again["cached"] and "something else" not in again["source"]
    assert "is not in the cache any more" in again["source"]


def test_what_is_in_the_way_is_left_there(used: Path, tmp_path: Path) -> None:
    """A FIFO instead of the plan, a link and a directory instead of kernels: one warning, right results, no hang."""
    plan, objects = _plan(used), sorted(used.rglob("*.o"))
    (tmp_path / "elsewhere").write_bytes(objects[0].read_bytes())
    for path in (plan, *objects):
        path.unlink()
    os.mkfifo(plan)
    objects[0].symlink_to(tmp_path / "elsewhere")
    for path in objects[1:]:
        path.mkdir()
    again = run(used)
    assert not again["cached"]
    assert again["stderr"].count("CacheWarning") == 1
    assert plan.is_fifo() and objects[0].is_symlink() and all(path.is_dir() for path in objects[1:])


def test_a_directory_that_others_can_swap_is_not_used(used: Path) -> None:
    used.chmod(0o777)
    again = run(used)
    used.chmod(0o700)
    assert not again["cached"]
    assert again["stderr"].count("CacheWarning") == 1 and "writable by other users" in again["stderr"]
    assert run(used)["cached"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_read_only_directory(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [used, *used.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(used))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cache.CacheWarning)
            x = np.arange(5, dtype=np.float32)
            np.testing.assert_array_equal(eqsat.optimize(lambda x: x * 7 - 1)(x), x * 7 - 1)
        assert run(used)["cached"]
    finally:
        for path in paths:
            path.chmod(0o700)


def test_nothing_is_kept_without_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    x = np.arange(5, dtype=np.float32)
    f = eqsat.optimize(lambda x: x * 9 - 1, cache=False)
    np.testing.assert_array_equal(f(x), x * 9 - 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "storen(" in f.source(x)
    eqsat.optimize(lambda x: x * 13 - 1)(x)
    assert list(tmp_path.rglob("*.plan")) and list(tmp_path.rglob("*.o"))


def test_a_plan_kept_without_verification_is_verified_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))

    def fn(x: Any) -> Any:
        return x * 11 - 1

    x = np.arange(5, dtype=np.float32)
    for verify, errors, cached in ((False, 0, False), (True, 1, True), (True, 1, True), (False, 1, True)):
        program = eqsat.optimize(fn, verify=verify).compile(x)
        assert (len(program.errors), program.cached) == (errors, cached)


KEYED: dict[str, dict[str, Any]] = {
    "numerics": {"numerics": "exact"},
    "threads": {"threads": 1},
    "disable": {"disable": "neg_neg"},
    "tune": {"tune": 1},
    "const": {"const": "w"},
    "budget": {"budget": 4.0},
    "backend": {"backend": "numpy"},
}


def test_the_key_tells_everything_apart_that_a_plan_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.cost import machine

    small = np.ones((2, 3), np.float32)

    def key(fn: Any = lambda x, w: x @ w, x: Any = small, **options: Any) -> str:
        program = eqsat.optimize(fn, **{"verify": False, "threads": 2, **options}).compile(x, np.ones((3, 2), x.dtype))
        return program._key()

    keys = {name: key(**options) for name, options in KEYED.items()}
    keys["as is"] = key()
    keys["shape"] = key(x=np.ones((4, 3), np.float32))
    keys["dtype"] = key(x=np.ones((2, 3)))
    keys["program"] = key(lambda x, w: w.T @ x.T)
    keys["captured"] = key(lambda x, w: x @ w + np.array([1.0, 2.0], np.float32))
    keys["captured value"] = key(lambda x, w: x @ w + np.array([1.0, 3.0], np.float32))
    slower = json.loads(machine.load().to_json())
    slower["launch_us"] *= 2
    monkeypatch.setattr("eqsat.making.machine_model.load", lambda: machine.Machine.from_json(json.dumps(slower)))
    keys["machine"] = key()
    monkeypatch.undo()
    assert key() == keys["as is"]
    assert len(set(keys.values())) == len(keys), sorted(keys, key=keys.__getitem__)
