"""Functions that their own libraries run between kernels: results, errors, identity, caching, verification."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import ResultChangedError, UnsupportedOpError, VerificationError
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.opaque import calls_of
from eqsat.verify.check import verify

QUICK: Any = {"cache": False, "backend": "numpy", "strict": True}


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive_definite(n: int, dtype: Any = np.float64) -> np.ndarray:
    a = normal(n, n, dtype=dtype)
    return a @ a.T + n * np.eye(n, dtype=dtype)


def same(got: Any, want: Any) -> None:
    """Equal structure, shapes and types, and values up to rounding."""
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
        return
    assert np.shape(got) == np.shape(want) and np.asarray(got).dtype == np.asarray(want).dtype
    tolerance = 2e-3 if np.asarray(want).dtype == np.float32 else 1e-8
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


SQUARE: dict[str, Callable[[Any], Any]] = {
    "inv": np.linalg.inv,
    "det": np.linalg.det,
    "slogdet": np.linalg.slogdet,
    "cholesky": np.linalg.cholesky,
    "qr": np.linalg.qr,
    "eigh": np.linalg.eigh,
    "svd": lambda x: np.linalg.svd(x, full_matrices=False),
    "singular values": lambda x: np.linalg.svd(x, compute_uv=False),
    "solve": lambda x: np.linalg.solve(x, np.ones((x.shape[0], 2), x.dtype)),
    "pinv": np.linalg.pinv,
    "matrix_rank": np.linalg.matrix_rank,
    "cond": np.linalg.cond,
    "matrix_power": lambda x: np.linalg.matrix_power(x, -2),
    "spectral norm": lambda x: np.linalg.norm(x, 2),
    "median": lambda x: np.median(x, axis=0),
    "percentile": lambda x: np.percentile(x, [5, 50], axis=1),
    "quantile": lambda x: np.quantile(x, 0.3),
    "histogram": lambda x: np.histogram(x, bins=7),
    "searchsorted": lambda x: np.searchsorted(np.linspace(-3, 3, 9), x),
    "interp": lambda x: np.interp(x, np.arange(4.0), np.array([1.0, 0, 2, 5])),
    "digitize": lambda x: np.digitize(x, np.linspace(-3, 3, 5)),
    "partition": lambda x: np.partition(x, 0, axis=0),
    "unwrap": np.unwrap,
    "convolve": lambda x: np.convolve(x[0], np.ones(3), "same"),
    "sum where": lambda x: x.sum(where=x > 0),
    "pad mode": lambda x: np.pad(x, 1, mode="maximum"),
    "arcsin": lambda x: np.arcsin(x / np.abs(x).max()),
    "Fortran order": lambda x: x.reshape(-1, order="F"),
    "gammaln": scipy.special.gammaln,
    "expm": eqsat.opaque(scipy.linalg.expm),
    "triangular solve": lambda x: eqsat.opaque(scipy.linalg.solve_triangular)(x, np.ones(len(x)), lower=True),
    "dict": lambda x: tuple(eqsat.opaque(lambda a: {"low": a.min(0), "high": [a.max()]})(x).values()),
}


@pytest.mark.parametrize("name", SQUARE)
@given(size=st.integers(1, 6), dtype=st.sampled_from([np.float32, np.float64]))
@settings(max_examples=6, deadline=None)
def test_results_are_the_librarys(name: str, size: int, dtype: Any) -> None:
    fn = SQUARE[name]
    x = positive_definite(size, dtype)
    same(run_by_reference(fn, (x,), {}), fn(x))


@pytest.mark.parametrize("name", ["eigh", "svd", "percentile", "histogram", "expm"])
@pytest.mark.parametrize("backend", ["numpy", "numba_cpu"])
def test_steps_between_kernels(name: str, backend: str) -> None:
    def fn(x: Any) -> Any:
        found = SQUARE[name](np.exp(-x * x) + np.eye(x.shape[0]))
        parts = found if isinstance(found, tuple) else (found,)
        return [part * 2 + 1 for part in parts]

    x = normal(5, 5)
    f = eqsat.optimize(fn, backend=backend, strict=True)
    same(f(x), fn(x))
    kinds = [step.kind for step in f.explain(x).steps]
    if backend == "numba_cpu":
        assert kinds.count("opaque") == 1, "a call is made once for all its results"
        assert "kernel" in kinds
    else:
        assert len(kinds) >= 3


def test_stacks_and_empty_arrays() -> None:
    f = eqsat.optimize(lambda x: np.linalg.inv(x) * 2, **QUICK)
    x = np.stack([positive_definite(3), positive_definite(3) + 1])
    same(f(x), np.linalg.inv(x) * 2)
    same(f(x[:0]), np.linalg.inv(x[:0]) * 2)
    same(f(x[::-1, ::-1]), np.linalg.inv(x[::-1, ::-1]) * 2)


def test_errors_are_the_librarys_own() -> None:
    f = eqsat.optimize(lambda x: np.linalg.inv(x) + 1, backend="numpy", cache=False)
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            f(np.zeros((3, 3)))
        same(f(np.eye(3)), np.eye(3) + 1)
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        f(np.zeros((3, 4)))
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        eqsat.optimize(lambda x: np.linalg.inv(x) + 1, **QUICK)(np.zeros((3, 3)))


def positives(x: np.ndarray) -> np.ndarray:
    return x[x > 0]


def test_another_shape_than_before() -> None:
    cut = eqsat.opaque(positives)
    f = eqsat.optimize(lambda x: cut(x) * 2, **QUICK)
    x, y = np.array([1.0, -1, 3]), np.array([1.0, 2, 3])
    same(f(x), np.array([2.0, 6]))
    with pytest.raises(ResultChangedError, match=r"positives returned float64\[3\] where it returned float64\[2\]"):
        f(y)
    same(f(x), np.array([2.0, 6]))
    g = eqsat.optimize(lambda x: cut(x) * 2, backend="numpy", cache=False)
    same(g(x), np.array([2.0, 6]))
    with pytest.warns(eqsat.EqsatWarning, match="positives returned"):
        same(g(y), y * 2)
    same(g(x), np.array([2.0, 6]))
    assert "positives" in (g.explain(x).plain or "")


@pytest.mark.parametrize("second", [1.0, (1.0, 2.0), None, "text", np.ones(3, np.float32)])
def test_another_structure_or_type_than_before(second: Any) -> None:
    results: list[Any] = [np.ones(3)]
    f = eqsat.optimize(lambda x: eqsat.opaque(lambda a: results[0])(x) + x, verify=False, **QUICK)
    same(f(np.ones(3)), np.full(3, 2.0))
    results[0] = second
    with pytest.raises(ResultChangedError, match="returned"):
        f(np.ones(3))


def test_what_cannot_be_a_step() -> None:
    rng = np.random.default_rng(0)

    def writes(a: np.ndarray) -> np.ndarray:
        a[0] = 5
        return a

    refused: dict[str, Callable[[Any], Any]] = {
        "random": lambda x: eqsat.opaque(lambda a: rng.normal(size=3) + a)(x),
        "writes": lambda x: eqsat.opaque(writes)(x),
        "nothing": lambda x: eqsat.opaque(lambda a: None)(x),
        "object": lambda x: eqsat.opaque(lambda a: object())(x),
        "masked": lambda x: eqsat.opaque(lambda a: np.ma.masked_less(a, 0))(x),
        "unique": np.unique,
        "nonzero": np.nonzero,
    }
    for fn in refused.values():
        with pytest.raises(UnsupportedOpError):
            trace(fn, (normal(3),), {})


def test_equal_calls_are_one() -> None:
    made = []

    @eqsat.opaque
    def counted(a: np.ndarray, power: int = 1) -> np.ndarray:
        made.append(1)
        return a**power

    def fn(x: Any) -> Any:
        return counted(x) + counted(x) + counted(x, 2) + counted(x, power=2)

    x = normal(4)
    graph = trace(fn, (x,), {}).graph
    assert len(calls_of(graph.outputs)) == 3  # by position and by keyword are two
    f = eqsat.optimize(fn, **QUICK)
    f(x)
    made.clear()
    same(f(x), 2 * x + 2 * x**2)
    assert len(made) == 3


def test_numbers_and_constants() -> None:
    w = positive_definite(4)
    f = eqsat.optimize(lambda x, w: x @ np.linalg.inv(w), const="w", backend="numba_cpu", strict=True)
    x = normal(3, 4)
    same(f(x, w), x @ np.linalg.inv(w))
    assert [step.kind for step in f.explain(x, w).steps] == ["kernel"], "it is computed when the program is compiled"
    g = eqsat.optimize(lambda x: eqsat.opaque(lambda a: int(a.size))(x), **QUICK)
    assert g(x) == 12 and isinstance(g(x), int)


def test_results_are_the_callers_own() -> None:
    kept = np.arange(3.0)
    kept.flags.writeable = False
    f = eqsat.optimize(lambda x: (eqsat.opaque(lambda a: a[::-1])(x), eqsat.opaque(lambda a: kept)(x)), **QUICK)
    x = np.arange(3.0)
    reverse, other = f(x)
    reverse += 1
    other += 1
    same(x, np.arange(3.0))
    same(kept, np.arange(3.0))


def test_an_ill_conditioned_function_does_not_look_like_an_error() -> None:
    """A singular vector's sign may be either where a matrix is computed in another order; nothing after it is off."""

    def fn(x: Any, y: Any) -> Any:
        u, s, v = np.linalg.svd((x * 3) @ (y + x.T), full_matrices=False)
        return np.tanh(u) @ v, s * 2

    x, y = normal(6, 40, dtype=np.float32), normal(40, 6, seed=1, dtype=np.float32)
    f = eqsat.optimize(fn, strict=True)
    rotation, values = f(x, y)
    assert rotation.shape == (6, 6)
    same(values, np.linalg.svd((x * 3) @ (y + x.T))[1] * 2)


@pytest.mark.parametrize("wrong", ["operand", "result"])
def test_errors_around_calls_are_found(wrong: str) -> None:
    """Negative control: a program that gives a library other operands, or makes something else of its results."""
    x = normal(5)
    interp = eqsat.opaque(np.interp)
    graph = trace(lambda x: np.sort(interp(x * 2, np.arange(3.0), np.arange(3.0) ** 2)) + 1, (x,), {}).graph
    (call,) = calls_of(graph.outputs)

    def run(arrays: Any) -> Any:
        scale = 2.001 if wrong == "operand" else 2.0
        given = [arrays[0] * scale, *(n.attrs.array for n in graph.nodes() if n.op == "const" and n.type.size == 3)]
        operands = [next(a for a in given if a.shape == t.shape and a.dtype == t.dtype.numpy) for t in call.operands]
        operands[1:] = [np.arange(3.0), np.arange(3.0) ** 2]
        (found,) = call.run(operands)
        return [np.sort(found) + (1.001 if wrong == "result" else 1.0)]

    with pytest.raises(VerificationError):
        verify(graph, {}, run, [x])


@pytest.mark.parametrize("scale", [2.0, 2.001, 30.0])
def test_each_of_several_calls_is_held_to_its_own_operands(scale: float) -> None:
    """Negative control, beside the right program: one of two calls, or both, with other operands."""
    x = normal(3, 3) + 4 * np.eye(3)
    graph = trace(lambda x: np.linalg.inv(x + 1) + np.tanh(np.linalg.inv(x * 2)), (x,), {}).graph
    call, *_ = calls_of(graph.outputs)

    def run(arrays: Any) -> Any:
        (one,), (two,) = call.run([arrays[0] + 1]), call.run([arrays[0] * scale])
        return [one + np.tanh(two)]

    if scale == 2:
        verify(graph, {}, run, [x])
        return
    with pytest.raises(VerificationError):
        verify(graph, {}, run, [x])


def test_a_call_that_nothing_needs_is_not_taken_for_another() -> None:
    def fn(x: Any, y: Any) -> Any:
        dead = np.linalg.inv(y * 2)[:, 3:]
        return np.sin(np.linalg.inv(x + 1)), np.concatenate([dead, dead]) * 2

    x, y = normal(3, 3) + 4 * np.eye(3), normal(3, 3, seed=1) + 4 * np.eye(3)
    inverse, empty = eqsat.optimize(fn, strict=True)(x, y)
    same(inverse, np.sin(np.linalg.inv(x + 1)))
    assert empty.shape == (6, 0)


def test_a_call_of_known_operands_is_not_taken_for_one_near_it() -> None:
    """It is made when the program is compiled, so that the one call of each run is the other."""

    def program(x: Any) -> Any:
        zeros = np.zeros_like(x)
        return [np.linalg.inv(each.T @ each + 3 * np.eye(1)) for each in (zeros, x)]

    x = np.array([[0.08], [0.03]])
    np.testing.assert_allclose(eqsat.optimize(program, strict=True)(x), program(x), rtol=1e-12)


def test_threads() -> None:
    f = eqsat.optimize(lambda x: np.linalg.solve(x @ x.T + np.eye(8), x) * 2, strict=True)
    xs = [normal(8, 8, seed=n) for n in range(8)]
    f(xs[0])
    got: dict[int, np.ndarray] = {}
    threads = [threading.Thread(target=lambda n=n: got.update({n: f(xs[n])})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, x in enumerate(xs):
        same(got[n], np.linalg.solve(x @ x.T + np.eye(8), x) * 2)


PROGRAM = """
import numpy as np, scipy.linalg, eqsat
cholesky = eqsat.opaque(scipy.linalg.cholesky)
@eqsat.optimize(strict=True)
def f(x):
    u, s, v = np.linalg.svd(cholesky(x @ x.T + np.eye(4), lower=True))
    return s * 2, np.abs(u) + 1
x = np.arange(16.0).reshape(4, 4)
got = f(x)
np.testing.assert_allclose(got[0], f.fn(x)[0])
print(f.compile(x).cached)
"""


def test_plans_are_remembered(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    runs = [subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True) for _ in "ab"]
    assert [run.stdout.strip() for run in runs] == ["False", "True"], runs[1].stderr


def test_outside_of_tracing_nothing_changes() -> None:
    assert eqsat.opaque(np.linalg.det)(np.eye(3)) == 1.0
    x = normal(3, 3)
    same(eqsat.opaque(scipy.linalg.expm)(x), scipy.linalg.expm(x))


def test_what_has_no_axes_is_looked_up_too() -> None:
    x = np.array(0.5)
    same(eqsat.optimize(lambda x: scipy.special.digamma(np.abs(x) + 1.5), strict=True)(x), scipy.special.digamma(2.0))


def test_counts_have_a_length_that_is_known_or_asked_for() -> None:
    def counts(x: Any, w: Any) -> Any:
        return np.bincount(x, minlength=4) * 2, np.bincount(x, w).sum()

    rng = np.random.default_rng(2)
    f = eqsat.optimize(counts, cache=False, check_speed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for top in (3, 4, 7, 4, 9, 3, 12, 20):
            x, w = rng.integers(0, top, 50), rng.standard_normal(50)
            for got, want in zip(f(x, w), counts(x, w), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12)
        with pytest.raises(ValueError, match="negative"):
            f(x - 5, w)
    image = rng.integers(0, 256, 99).astype(np.uint8)
    exact = eqsat.optimize(lambda x: np.bincount(x, minlength=256) + 1, cache=False, strict=True)
    np.testing.assert_array_equal(exact(image), np.bincount(image, minlength=256) + 1)
    np.testing.assert_array_equal(exact(image[:0]), np.ones(256))
    with pytest.raises(UnsupportedOpError, match="strict=True"):
        eqsat.optimize(lambda x: np.bincount(x), cache=False, strict=True)(x)
    with pytest.raises(ValueError, match="weights and list"):
        eqsat.optimize(lambda x, w: np.bincount(x, w, 256), cache=False, strict=True)(image, rng.random(3))
