"""What NumPy makes of the user's function is what the compiled one returns; where it cannot be, the error says why."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import nn
from eqsat.errors import VerificationError
from eqsat.verify.plain import function_digest

rng = np.random.default_rng(0)
QUICK: Any = {"cache": False, "backend": "numpy", "strict": True}  # nothing here depends on the kernels


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def test_a_write_that_the_trace_does_not_show_is_named_with_its_line() -> None:
    def fn(x: Any) -> Any:
        if type(x) is np.ndarray:
            x += 1
        return x * 2

    with pytest.raises(VerificationError) as caught:
        eqsat.optimize(fn, **QUICK)(normal(5))
    assert "writes to its argument 'x' where its trace does not" in str(caught.value)
    assert "Fix:" in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.text == "x += 1"
    assert caught.value.where.file == __file__


def test_an_argument_that_the_trace_changes_otherwise_is_found() -> None:
    def fn(x: Any) -> Any:
        x += 1 if type(x) is np.ndarray else 2
        return x.shape[0]

    with pytest.raises(VerificationError, match="output 0 has other values"):
        eqsat.optimize(fn, **QUICK)(normal(5))


def test_writing_to_arrays_of_its_own_is_fine() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        y += 1
        z = np.zeros_like(x)
        np.add(y, x, out=z)
        return z, y

    x = normal(4, 5)
    for found, expected in zip(eqsat.optimize(fn, **QUICK)(x), fn(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_changed_container_among_the_arguments_is_an_error() -> None:
    def fn(state: dict[str, Any]) -> Any:
        state["x"] = state["x"] + 1
        return state["x"] * 2

    with pytest.raises(VerificationError, match="changes a list, dict or dataclass"):
        eqsat.optimize(fn, **QUICK)({"x": normal(4)})


def raising(x: Any) -> Any:
    with np.errstate(all="raise"):
        return np.log(x)


def test_floating_point_errors_that_numpy_would_raise() -> None:
    x = np.array([1.0, 0.0])
    with pytest.raises(VerificationError, match=r"raises FloatingPointError: divide by zero.*np.errstate") as caught:
        eqsat.optimize(raising, **QUICK)(x)
    assert caught.value.where is not None
    assert "np.log(x)" in caught.value.where.text

    def plain(x: Any) -> Any:
        return np.log(x)

    with np.errstate(divide="raise"), pytest.raises(VerificationError, match="FloatingPointError"):
        eqsat.optimize(plain, **QUICK)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(VerificationError, match="RuntimeWarning"):
            eqsat.optimize(plain, **QUICK)(x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(eqsat.optimize(plain, **QUICK)(x), [0.0, -np.inf])
    assert not said  # eqsat says nothing where NumPy would only warn


def test_an_error_filter_behind_one_that_ignores_other_warnings() -> None:
    def plain(x: Any) -> Any:
        return np.log(x)

    def overflows(x: Any) -> Any:
        return np.exp(x)

    x = np.array([1.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
        with pytest.raises(VerificationError, match="RuntimeWarning: divide by zero"):
            eqsat.optimize(plain, **QUICK)(x)
        np.testing.assert_array_equal(eqsat.optimize(overflows, **QUICK)(x * 1e3), [np.inf, 1.0])
        warnings.simplefilter("ignore", RuntimeWarning)  # in front of all
        np.testing.assert_array_equal(eqsat.optimize(plain, **QUICK)(x), [0.0, -np.inf])


def test_random_numbers_are_found_unless_they_are_the_same_each_time() -> None:
    def noisy(x: Any) -> Any:
        return x + np.random.default_rng().standard_normal(x.shape)

    def seeded(x: Any) -> Any:
        return x + np.random.default_rng(3).standard_normal(x.shape)

    x = normal(6)
    with pytest.raises(VerificationError, match=r"draws random numbers.*pass them as arguments"):
        eqsat.optimize(noisy, **QUICK)(x)
    np.testing.assert_allclose(eqsat.optimize(seeded, **QUICK)(x), seeded(x), rtol=1e-6)


def test_a_traced_array_is_an_array() -> None:
    def fn(x: Any, y: Any) -> Any:
        if not isinstance(x, np.ndarray):
            raise TypeError("an array, please")
        return x * 2 if isinstance(y, (list, np.ndarray)) else x * 3

    x, y = normal(4), normal(4)
    np.testing.assert_allclose(eqsat.optimize(fn, **QUICK)(x, y), x * 2)


MANY, MORE = rng.random((2, 2500, 4), np.float32)
"""NumPy adds their products term by term, and keeps three digits of a sum of six million."""

LOOKS: dict[str, tuple[Callable[..., Any], str]] = {
    "values": (lambda x: x * 2 if type(x) is np.ndarray else x * 3, "output 0 has other values"),
    "shape": (lambda x: x * 2 if type(x) is np.ndarray else x[:1] * 2, r"output 0 is float32\[4\]"),
    "element type": (lambda x: x * 2 if type(x) is np.ndarray else x.astype(np.float64), r"output 0 is float32\[4\]"),
    "structure": (lambda x: [x, x] if type(x) is np.ndarray else (x, x), "result is a list of 2"),
    "number": (lambda x: (x, 2) if type(x) is np.ndarray else (x, 3), r"result\[1\] is the int 2"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_depends_on_being_traced_is_found(name: str) -> None:
    fn, message = LOOKS[name]
    with pytest.raises(VerificationError, match=message) as caught:
        eqsat.optimize(fn, **QUICK)(normal(4))
    assert "type(x)" in str(caught.value)
    eqsat.optimize(fn, verify=False, **QUICK)(normal(4))


@pytest.mark.parametrize("much", [1.003, 1.00001])
def test_rounding_hides_no_difference_that_float64_has_as_well(much: float) -> None:
    def fn(x: Any, y: Any) -> Any:
        made = np.einsum("ij,kj->j", x, y)
        return made if type(x) is np.ndarray else made * much

    assert abs(np.einsum("ij,kj->j", MANY, MORE) / np.einsum("ij->j", MANY) / np.einsum("ij->j", MORE) - 1).max() > 1e-3
    with pytest.raises(VerificationError, match="output 0 has other values"):
        eqsat.optimize(fn, **QUICK)(MANY, MORE)


def _is_plain(x: Any) -> bool:
    return type(x) is np.ndarray


def _small_ones_lost(x: Any) -> Any:
    y = x * x
    return np.where(y < 1e-15, 0, y) if _is_plain(x) else y


def _small_sums_lost(x: Any) -> Any:
    y = np.stack([x * x, x * x]).sum(axis=0)
    return np.where(y < 1e-15, 0, y) if _is_plain(x) else y


SINGLE: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "small values": (_small_ones_lost, [1, 1e-8, 2e-8, 2, 3e-9]),
    "small sums": (_small_sums_lost, [1, 1e-8, 2e-8, 2, 3e-9]),
    "infinity for NaN": (lambda x: np.where(np.isnan(x), np.inf, x) if _is_plain(x) else x * 1, [1, 2, np.nan, 4]),
    "the same, of sums": (
        lambda x: np.where(np.isnan(x), np.inf, x) + x[:1].sum() if _is_plain(x) else x + x[:1].sum(),
        [1, 2, np.nan, 4],
    ),
    "float32 alone": (lambda x: x.sum() * 2 + (1 if _is_plain(x) and x.dtype == np.float32 else 0), [1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", SINGLE)
def test_what_float64_hides_is_found(name: str) -> None:
    fn, numbers = SINGLE[name]
    with pytest.raises(VerificationError, match="output 0 has other values"):
        eqsat.optimize(fn, **QUICK)(np.array(numbers, np.float32))


def test_a_function_that_changes_its_mind_is_not_excused_by_a_later_run() -> None:
    runs: list[int] = []

    def fn(x: Any) -> Any:
        runs.append(1) if _is_plain(x) else None
        return x.sum(axis=0) * (1.001 if _is_plain(x) and len(runs) == 1 else 1)

    with pytest.raises(VerificationError, match="differs from run to run"):
        eqsat.optimize(fn, **QUICK)(normal(30, 4))


def test_the_log_tells_where_numpy_is_less_exact(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "eqsat"):
        eqsat.optimize(lambda x, y: np.einsum("ij,kj->j", x, y), **QUICK)(MANY, MORE)
    assert "NumPy's own result is further" in caplog.text


@dataclass
class Layer:
    w: Any
    b: Any


calls: list[tuple[int, ...]] = []
_masks: dict[int, Any] = {}


def _mask(n: int) -> Any:
    if n not in _masks:
        _masks[n] = np.tri(n, dtype=bool)
    return _masks[n]


def _noted(x: Any) -> Any:
    calls.append(x.shape)
    return x + 1


ORDINARY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "prints": (lambda x: print("shape", x.shape) or x * 2, (normal(3),)),
    "views of arguments": (lambda x: (x, x[1:], x.T, x.reshape(-1)), (normal(3, 4),)),
    "keeps what it made": (lambda x: np.where(_mask(x.shape[0]), x, 0), (normal(4, 4),)),
    "notes its calls": (_noted, (normal(3),)),
    "dataclasses": (lambda p, x: Layer(x @ p.w + p.b, p.b), (Layer(normal(4, 3), normal(3)), normal(2, 4))),
    "named functions": (lambda x, f: f(x), (normal(3), np.tanh)),
    "NumPy scalars": (lambda x, s: x * s + s, (normal(3), np.float32(2.5))),
    "0-d": (lambda x: (x.sum(), x.mean() * 2), (normal(5),)),
    "big-endian": (lambda x: (x * 2, x), (normal(4).astype(">f4"),)),
    "fortran order": (lambda x: x.sum(axis=0), (np.asfortranarray(normal(4, 5)),)),
    "read-only": (lambda x: x + 1, (np.broadcast_to(normal(1, 3), (4, 3)),)),
    "nn": (lambda x: nn.softmax(nn.gelu(x)) + nn.silu(x), (normal(4, 5),)),
    "asarray": (lambda x, i: eqsat.asarray(TABLE)[i] + x, (normal(4), np.array([1, 0, 2, 1]))),
    "an operator": (lambda x: backwards(x) * 2, (normal(4),)),
    "empty": (lambda x: x.sum(axis=0) + 1, (normal(0, 3),)),
    "NaN": (lambda x: (x * 2, np.isnan(x)), (np.array([np.nan, 1.0, np.inf]),)),
    "keywords": (lambda x, **more: x * more["scale"], (normal(3),)),
    "cancels": (lambda x: (x - x.mean()).sum() + np.var(x * 1e-3 + 100), (normal(300),)),
    "sums term by term": (lambda x, y: np.einsum("ij,kj->j", x, y) * 2, (MANY, MORE)),
    "of complex numbers": (lambda x, y: np.einsum("ij,kj->j", x, y * 1j), (MANY, MORE)),
    "of 16 bits": (lambda x: np.einsum("ij->j", x), (MANY[:1500].astype(np.float16),)),
    "into an argument": (lambda x, y, out: np.einsum("ij,kj->j", x, y, out=out), (MANY, MORE, np.zeros(4, np.float32))),
    "jumps": (lambda x: (np.argsort(np.tanh(x @ x.T), axis=1), np.floor(x @ x.T * 100)), (normal(30, 30) * 3,)),
}
TABLE = normal(5)


@eqsat.op
def backwards(x: Any) -> Any:
    return eqsat.compute((x.shape[0],), lambda i: x[x.shape[0] - 1 - i])


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_functions_are_not_accused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    fn, args = ORDINARY[name]
    more = {"scale": np.float32(3)} if name == "keywords" else {}
    eqsat.optimize(fn, **QUICK)(*args, **more)
    assert "does not run on NumPy arrays" not in caplog.text


def test_what_numpy_returns_as_a_python_bool_is_one() -> None:
    def fn(x: Any, y: Any) -> Any:
        return {
            "same": np.array_equal(x, y),
            "itself": (np.array_equal(x, x), True),
            "sum": x + y,
            "all": (x == x).all(),
        }

    x = np.arange(3.0)
    f = eqsat.optimize(fn)
    for y in (x.copy(), x + 1):
        got, want = f(x, y), fn(x, y)
        assert got["same"] is want["same"] and got["itself"] == (True, True) and got["itself"][0] is True
        assert type(got["all"]) is np.bool_ is type(want["all"])
        np.testing.assert_array_equal(got["sum"], want["sum"])
    g = eqsat.optimize(lambda x, y: np.array_equal(x, y))
    assert g(x, x) is True and g(x, x + 1) is False and g(x, x) is True
    counted = eqsat.optimize(lambda x, y: np.where(np.array_equal(x, y), x, -x))
    np.testing.assert_array_equal(counted(x, x + 1), -x)


def test_an_optimized_function_inside_is_run_plainly() -> None:
    compiled: list[str] = []

    @eqsat.optimize(**QUICK)
    def inner(x: Any) -> Any:
        compiled.append("traced" if type(x) is not np.ndarray else "plain")
        return np.tanh(x)

    x = normal(5)
    np.testing.assert_allclose(eqsat.optimize(lambda x: inner(x) * 2, **QUICK)(x), np.tanh(x) * 2, rtol=1e-5)
    assert compiled == ["traced", "plain"]
    assert not inner._programs


def test_a_function_that_numpy_cannot_run_is_verified_by_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    def only_traced(x: Any) -> Any:
        if type(x) is np.ndarray:
            raise RuntimeError("never called so")
        return x * 2

    x = normal(4)
    with caplog.at_level("WARNING", "eqsat"):
        np.testing.assert_allclose(eqsat.optimize(only_traced, **QUICK)(x), x * 2)
    assert "does not run on NumPy arrays" in caplog.text


def test_large_arguments_are_cut_for_the_plain_function(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def fn(x: Any) -> Any:
        sizes.append(x.size)
        return x * 2 if type(x) is np.ndarray else x * 3

    monkeypatch.setattr("eqsat.verify.check.SHARE_SECONDS", 0.0)
    monkeypatch.setattr("eqsat.verify.check.SHARE", 0.0)
    monkeypatch.setattr("eqsat.verify.check.reference_seconds", lambda graph: 60.0)  # longer than tracing took
    with pytest.raises(VerificationError, match="other values"):
        eqsat.optimize(fn, **QUICK)(normal(1000, 40))
    assert sizes[0] == 40_000
    assert max(sizes[1:]) < 1000


def test_the_log_tells_where_the_plain_function_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(x: Any) -> Any:
        return x * np.ones(1000)

    monkeypatch.setattr("eqsat.verify.check.SHARE_SECONDS", 0.0)
    monkeypatch.setattr("eqsat.verify.check.SHARE", 0.0)
    monkeypatch.setattr("eqsat.verify.check.reference_seconds", lambda graph: 60.0)  # longer than tracing took
    with caplog.at_level("INFO", "eqsat"):
        eqsat.optimize(fn, **QUICK)(np.ones(1000))
    assert "not held against its trace" in caplog.text and "smaller arguments do not fit" in caplog.text


def test_functions_that_trace_alike_are_each_held_against_their_trace() -> None:
    """A plan is kept for the graph, which does not tell such functions apart."""

    def right(x: Any) -> Any:
        y = x + 1
        return np.cos(y) * 7

    def wrong(x: Any) -> Any:
        y = x + 1
        return np.cos(y) * 7 if type(x) is not np.ndarray else y

    x = normal(9)
    eqsat.optimize(right)(x)
    again = eqsat.optimize(right).compile(x)
    assert again.cached
    with pytest.raises(VerificationError, match="other values"):
        eqsat.optimize(wrong, strict=True)(x)


def test_a_function_is_known_by_its_code_and_that_of_its_helpers() -> None:
    def made(number: float) -> Callable[..., Any]:
        scope: dict[str, Any] = {"__name__": "made"}
        exec(f"def helper(x):\n    return x + {number}\ndef fn(x):\n    return helper(x)", scope)
        found: Callable[..., Any] = scope["fn"]
        return found

    assert function_digest(made(1)) == function_digest(made(1))
    assert function_digest(made(1)) != function_digest(made(2))
    assert function_digest(np.tanh) != function_digest(np.sin)
    assert function_digest(partial(made(1), 3)) != function_digest(partial(made(2), 3))


def test_a_function_is_known_in_other_processes_too() -> None:
    code = """
import functools, numpy as np
from eqsat.verify.plain import function_digest
class Model:
    def __init__(self, w): self.w = w
    def __call__(self, x): return helper(x) if x in {"tanh", "exp", "log", "sqrt", "cos"} else self.method(x)
    def method(self, x): return np.tanh(x @ self.w)
@functools.wraps(np.tanh)
def helper(x, *, axes=frozenset({"a", "b", "c"}), deep=lambda x: x in {"k", "l", "m"}): return deep(x), notes.append(x)
notes, model, weights = [], Model(np.ones(3)), np.ones(3)
def captures(x): return x @ weights, [m for m in (np.sin, helper)], model
for fn in (helper, model, model.method, captures, functools.partial(helper, axes={"d", "e"}), np.tanh):
    print(function_digest(fn))
    notes.append(1)
    assert function_digest(fn) == function_digest(fn)
"""
    found = set()
    for seed in "123":
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    (text,) = found
    assert len(set(text.split())) == 6


def test_a_function_whose_code_cannot_be_told_is_like_no_other() -> None:
    def fn(x: Any) -> Any:
        return x + eval("1")

    assert function_digest(fn) != function_digest(fn)
    assert function_digest(operator.methodcaller("sum")) != function_digest(operator.methodcaller("max"))
    assert function_digest(Fraction) != function_digest(Path)
