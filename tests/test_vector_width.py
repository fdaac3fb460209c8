"""``EQSAT_VECTOR_BITS``: vectors held to a width, in what is generated, measured and remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqsat.cost.machine import Machine, MachineError, held, load
from eqsat_backends.numba_cpu.vectors.lanes import native_lanes

ROOT = Path(__file__).parent.parent

PROGRAM = """
import json, re
import numpy as np
import eqsat
from eqsat.cost import machine
from eqsat_backends.numba_cpu.compiling import jit, objects

made = []
emit = jit.emit
def noted(module, target, entries):
    made.append(str(target.emit_assembly(module)))
    return emit(module, target, entries)
jit.emit = noted
rng = np.random.default_rng(0)
x, w = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
def program(x, w):
    h = x @ w
    e = np.exp(h - h.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)) @ w, np.tanh(x).T + np.abs(w) ** 1.3
f = eqsat.optimize(program, threads=1)
for found, expected in zip(f(x, w), program(x, w)):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
code = "\\n".join(made)
print(json.dumps({
    "compiled": len(made), "cached": f.compile(x, w).cached,
    "host": objects.host().key, "model": machine.document_key(),
    "widest": max((name for name in ("xmm", "ymm", "zmm") if "%" + name in code), default=""),
    "masks": len(re.findall(r"%k[0-7]\\b", code)), "high": len(re.findall(r"%[xy]mm(?:1[6-9]|[23][0-9])\\b", code)),
    "lanes": sorted(set(map(int, re.findall(r"f32x([0-9]+)", f.source(x, w))))),
}))
"""


def run(folder: Path, bits: int | None) -> dict[str, Any]:
    environment = {**os.environ, "EQSAT_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment.pop("EQSAT_VECTOR_BITS", None)
    if bits is not None:
        environment["EQSAT_VECTOR_BITS"] = str(bits)
    environment["EQSAT_MACHINE"] = str(folder / "machine.json")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(native_lanes(32) < 8, reason="the processor has no wider vectors to hold back")
def test_held_programs_use_no_wider_instruction_and_share_no_cache(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(load().to_json())
    full, avx2, sse, again = (run(tmp_path, bits) for bits in (None, 256, 128, 256))
    assert full["compiled"] and avx2["compiled"] and sse["compiled"]
    assert (again["compiled"], again["cached"]) == (0, True)  # it is found by those of its own width
    assert avx2["lanes"] == [8] and (avx2["widest"], avx2["masks"], avx2["high"]) == ("ymm", 0, 0)
    assert sse["lanes"] == [4] and (sse["widest"], sse["masks"], sse["high"]) == ("xmm", 0, 0)
    assert len({full["host"], avx2["host"], sse["host"]}) == len({full["model"], avx2["model"], sse["model"]}) == 3
    if native_lanes(32) == 16 and load().vector_bytes == 64:
        assert full["widest"] == "zmm"


def test_a_model_of_wider_vectors_is_held_back() -> None:
    model = replace(load(), vector_bytes=64, registers=32, fma_gflops=(("float32", 200.0), ("float64", 100.0)))
    narrow = held(model, 256)
    assert (narrow.vector_bytes, narrow.registers) == (32, 16)
    assert narrow.fma_gflops == (("float32", 100.0), ("float64", 50.0))
    assert held(model, 512) == model and held(narrow, 256) == narrow
    assert Machine.from_json(narrow.to_json()) == narrow


def test_a_width_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.cost import machine

    for given in ("7", "avx2", "-256"):
        monkeypatch.setenv(machine.VECTOR_VARIABLE, given)
        with pytest.raises(MachineError, match=r"must be one of 128, 256, 512"):
            machine.vector_limit.__wrapped__()
    monkeypatch.setenv(machine.VECTOR_VARIABLE, "")
    assert machine.vector_limit.__wrapped__() == 512
