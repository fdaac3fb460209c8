"""``EQSAT_VECTOR_BITS``: vectors held to a width, in what is generated, measured and remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqsat.cost.machine import Machine, MachineError, held, load
from eqsat.ir.types import COMPUTED
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

PRODUCTS = """
import json, sys
import numpy as np
import eqsat

rng = np.random.default_rng(0)
extents = 1, 2, 3, 5, 7, 8, 9, 14, 17, 31, 33, 40
shapes = [(7, 7, 40), (5, 6, 9)] + [tuple(map(int, rng.choice(extents, 3))) for _ in range(COUNT)]
forms = lambda a, b: a @ b, lambda a, b: b.T @ a.T, lambda a, b: (a @ a.T, b.T @ b), lambda a, b: np.maximum(a @ b, 1)
failed = []
for number, (m, n, k) in enumerate(shapes):
    for dtype in TYPES:
        a, b = (np.asarray(rng.integers(0, 4, shape)).astype(dtype) for shape in ((m, k), (k, n)))
        for form in forms if number < 1 else forms[number % len(forms) :][:1]:
            try:
                found = eqsat.optimize(form, cache=False, strict=True)(a, b)
                for one, other in zip(*([x] if isinstance(x, np.ndarray) else x for x in (found, form(a, b)))):
                    np.testing.assert_array_equal(one, other, strict=True)
            except Exception as error:
                failed.append(f"{dtype} {m, n, k}: {type(error).__name__}: {error}")
print(json.dumps(failed))
"""


def run(folder: Path, bits: int | None, program: str = PROGRAM) -> Any:
    environment = {**os.environ, "EQSAT_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment.pop("EQSAT_VECTOR_BITS", None)
    if bits is not None:
        environment["EQSAT_VECTOR_BITS"] = str(bits)
    environment["EQSAT_MACHINE"] = str(folder / "machine.json")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def products(folder: Path, bits: int, count: int, types: Sequence[str]) -> list[str]:
    """What went wrong in products of odd shapes, of small integers in each type, where vectors are held to a width."""
    (folder / "machine.json").write_text(load().to_json())
    failed: list[str] = run(folder, bits, f"COUNT, TYPES = {count}, {tuple(types)}\n{PRODUCTS}")
    return failed


@pytest.mark.parametrize(("bits", "dtype"), [(128, "float32"), (256, "float64")])
def test_products_of_odd_shapes_run_at_every_width(tmp_path: Path, bits: int, dtype: str) -> None:
    assert products(tmp_path, bits, 0, [dtype]) == []


HALVES = """
import json, logging
import numpy as np
import eqsat
class Told(logging.Handler):
    def emit(self, record): told.append(record.getMessage())
told = []
logging.getLogger("eqsat").addHandler(Told())
x = np.array([0, -0.0, 6e-8, -6e-8, np.nan, np.inf, 1, -65504] * 5, np.float16)
for f in (lambda x: x.astype(bool), lambda x: np.where(x, 1, 2), lambda x: x.reshape(8, 5).any(1), lambda x: x != 0):
    if not (eqsat.optimize(f, cache=False, strict=True)(x) == f(x)).all():
        told.append("wrong")
print(json.dumps(told))
"""


@pytest.mark.parametrize("bits", [128, 256])
def test_halves_are_compared_without_instructions_for_them(tmp_path: Path, bits: int) -> None:
    (tmp_path / "machine.json").write_text(load().to_json())
    assert run(tmp_path, bits, HALVES) == []


@pytest.mark.slow
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_products_of_all_types_run_at_every_width(tmp_path: Path, bits: int) -> None:
    assert products(tmp_path, bits, 12, [dtype.name for dtype in COMPUTED]) == []


@pytest.mark.skipif(native_lanes(32) < 8, reason="the processor has no wider vectors to hold back")
def test_held_programs_use_no_wider_instruction_and_share_no_cache(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(load().to_json())
    full, avx2, sse, again = (run(tmp_path, bits) for bits in (None, 256, 128, 256))
    wider = native_lanes(32) > 8  # else 256 bits hold nothing back
    assert full["compiled"] and sse["compiled"] and bool(avx2["compiled"]) == wider
    assert (again["compiled"], again["cached"]) == (0, True)  # it is found by those of its own width
    made = avx2 if wider else full
    assert avx2["lanes"] == [8] and (made["widest"], made["masks"], made["high"]) == ("ymm", 0, 0)
    assert sse["lanes"] == [4] and (sse["widest"], sse["masks"], sse["high"]) == ("xmm", 0, 0)
    hosts, models = ({each[what] for each in (full, avx2, sse)} for what in ("host", "model"))
    assert (len(hosts), len(models)) == (2 + wider, 3)
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
