"""Lengths that change from call to call become arguments of kernels, with NumPy's results for every one of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.compiled import Compiled
from eqsat.growth import VALUES
from eqsat.lengths import LEAST, RATIO
from eqsat.plan import sized
from eqsat.plan.sized import Misfit, fitted
from eqsat.plan.texts import Known, named
from eqsat_backends.numba_cpu.printing.sizes import reading
from tests.reports import one_line
from tests.sweeps import a_part

QUICK: dict[str, Any] = {"backend": "numpy", "cache": False, "check_speed": False}
KERNELS: dict[str, Any] = {"threads": 1, "check_speed": False}
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def calls(fn: Callable[..., Any], of: Callable[[int], tuple[Any, ...]], lengths: Any, **options: Any) -> Any:
    """Results are NumPy's for every length, in the same types and shapes."""
    f = eqsat.optimize(fn, **options)
    check(f, of, lengths)
    return f


def check(f: Any, of: Callable[[int], tuple[Any, ...]], lengths: Any) -> None:
    for length in lengths:
        args = of(length)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, want = f(*args), f.fn(*args)
        assert type(got) is type(want)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            assert np.asarray(one).dtype == np.asarray(other).dtype and np.shape(one) == np.shape(other)
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def lengths_of(f: Any, *args: Any) -> tuple[int, int] | None:
    """The bounds of the lengths that the kernels of a call are for."""
    f(*args)
    program = f._latest[0]()
    assert isinstance(program, Compiled)
    return program.lengths


def decode(q: Any, k: Any, v: Any) -> Any:
    scores = (k @ q[:, :, None])[:, :, 0] / np.float32(4)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = scores / scores.sum(axis=1, keepdims=True)
    return (weights[:, None, :] @ v)[:, 0, :]


def cache(length: int) -> tuple[Any, ...]:
    return normal(2, 16), normal(2, length, 16), normal(2, length, 16)


def test_attention_over_a_cache_that_grows() -> None:
    f = calls(decode, cache, range(70, 70 + VALUES), **KERNELS)
    assert f.cache_info().misses == VALUES
    check(f, cache, [80, 64, 255, *RNG.integers(64, 256, 12).tolist(), 81, 82, 83])
    assert f.cache_info().misses == VALUES + 1  # and one program for all others
    assert lengths_of(f, *cache(99)) == (LEAST * RATIO, LEAST * RATIO**2 - 1)
    assert f.source(*cache(100)) == f.source(*cache(102)) and "size_0" in f.source(*cache(100))
    assert "lengths of 64 to 255" in one_line(f.explain(*cache(101)))
    check(f, lambda n: (normal(2, 16), normal(n, 2, 16).swapaxes(0, 1), normal(2, 2 * n, 16)[:, ::2]), [90, 91])
    with ThreadPoolExecutor(4) as pool:
        for args, got in [(a, pool.submit(f, *a)) for a in map(cache, range(110, 122))]:
            np.testing.assert_allclose(got.result(), decode(*args), rtol=2e-4, atol=2e-4)
    check(f, cache, [63, 15, 5, 1])  # shorter than all that were seen
    f.cache_clear()
    assert f.cache_info().currsize == 0


def test_shorter_and_empty_lengths_have_programs_of_their_own() -> None:
    f = calls(lambda x: np.tanh(x) * 2, lambda n: (normal(n, 3),), [20, 21, 22, 23, 24], **QUICK)
    assert lengths_of(f, normal(25, 3)) == (LEAST, LEAST * RATIO - 1)
    check(f, lambda n: (normal(n, 3),), [0, 1, 2, 15, 16, 63])
    assert lengths_of(f, normal(0, 3)) is None and lengths_of(f, normal(1, 3)) is None


SOFTMAX = eqsat.optimize(lambda x, y: eqsat.nn.softmax(x * 2, axis=0).T @ y, **QUICK)


@settings(max_examples=a_part(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 70), st.lists(st.integers(0, 3), max_size=6))
def test_any_lengths_in_any_order(start: int, steps: list[int]) -> None:
    lengths = np.cumsum([start, *steps]).tolist()
    check(SOFTMAX, lambda n: (normal(n, 3)[:, ::-1], normal(n, 2)), [n for n in lengths if n])


def test_large_arrays_keep_programs_of_their_own() -> None:
    f = calls(lambda x: x[0] * 2, lambda n: (np.broadcast_to(np.float32(1), (1 << 16, n)),), range(300, 304), **QUICK)
    assert f.cache_info().misses == VALUES + 1 and f._latest[0]().lengths is None


def test_two_threads_and_scratch() -> None:
    def normalized(x: Any) -> Any:
        return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + np.float32(1e-5))

    f = calls(normalized, lambda n: (normal(n, 300),), [300, 301, 302, 303], threads=2, check_speed=False)
    assert lengths_of(f, normal(500, 300)) is not None


@dataclass
class Layer:
    w: Any
    b: Any


def test_rows_of_a_batch() -> None:
    layer = Layer(normal(20, 30), normal(30))

    def run(x: Any, layer: Layer, bias: Any) -> Any:
        return np.maximum(x @ layer.w + layer.b, 0) @ layer.w.T + bias, x.mean(axis=0)

    f = calls(run, lambda n: (normal(n, 20), layer, np.float32(2)), [17, 18, 19, 63, 16, 30, 33, 20], **QUICK)
    assert f.cache_info().misses == VALUES + 1
    # 20 and 30 are columns, too: a length that is known to change is told apart by its place
    assert lengths_of(f, normal(20, 20), layer, np.float32(2)) is not None


@pytest.mark.parametrize("options", [{}, {"const": "w"}])
def test_constants(options: dict[str, Any]) -> None:
    w = normal(20, 7)
    f = calls(lambda x, w: x @ (w * 2), lambda n: (normal(n, 20), w), range(30, 36), **QUICK, **options)
    other = w + 1
    check(f, lambda n: (normal(n, 20), other), range(36, 38))
    assert lengths_of(f, normal(39, 20), w) is not None


def test_two_lengths() -> None:
    def outer(x: Any, y: Any) -> Any:
        return x[:, None] * y

    f = calls(outer, lambda n: (normal(n), normal(n)), [17, 18, 19, 20, 40], **QUICK)
    assert f.cache_info().misses == VALUES + 1  # both at once
    check(f, lambda n: (normal(n), normal(60 - n)), [21, 22, 30])
    assert lengths_of(f, normal(25), normal(26)) is None


def test_what_depends_on_the_length_is_not_served_by_others() -> None:
    def fn(x: Any) -> Any:
        if len(x) > 45:
            return x * 3
        return x * np.float32(np.minimum(len(x), 30)) + len(x) // 7

    f = calls(fn, lambda n: (normal(n, 3),), [20, 21, 22, *range(23, 60)], **QUICK)
    assert lengths_of(f, normal(61, 3)) is None

    def above(x: Any) -> Any:
        return x + 1 if len(x) <= 60 else x * 2

    f = calls(above, lambda n: (normal(n, 3),), [20, 21, 22, *range(23, 64)], **QUICK)


def test_numbers_that_the_length_makes() -> None:
    def fn(x: Any) -> Any:
        return x.sum(axis=0) / len(x) + np.arange(len(x)).sum(), x[1:] - x[:-1], x * np.float32(len(x)) ** -0.5

    f = calls(fn, lambda n: (normal(n, 3),), [20, 21, 22, *range(23, 30), 16, 63], **QUICK)
    assert f.cache_info().misses == VALUES + 1


def test_a_function_that_refuses_other_lengths() -> None:
    def fn(x: Any) -> Any:
        assert len(x) < 30, "too long"
        return x * 2

    f = calls(fn, lambda n: (normal(n, 3),), range(20, 28), **QUICK)
    with pytest.raises(AssertionError, match="too long"):
        f(normal(31, 3))


def test_it_is_said_once() -> None:
    f = eqsat.optimize(lambda x, w: x @ w, **QUICK)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(20, 50):
            f(normal(n, 4), normal(4, 4))
    (warning,) = caught
    assert warning.category is eqsat.RecompilationWarning and warning.filename == __file__
    assert "axis 0 of 'x'" in str(warning.message)


def test_explicit_compilation_is_for_one_length() -> None:
    f = calls(lambda x: x * 2 + 1, lambda n: (normal(n, 4),), range(20, 26), **QUICK)
    compiled = f.compile(normal(40, 4))
    assert isinstance(compiled, Compiled) and compiled.lengths is None


def test_wrong_numbers_of_a_plan_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = sized._polynomial

    def wrong(lengths: Any, values: Any) -> Any:
        of = sound(lengths, values)
        return lambda length: of(length) + (length not in lengths and of(length) % 3 == 0)

    monkeypatch.setattr(sized, "_polynomial", wrong)
    f = calls(lambda x: np.exp(x).sum(axis=1), lambda n: (normal(n, 5),), range(20, 26), **QUICK)
    assert lengths_of(f, normal(30, 5)) is None


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-99, 99), st.integers(-999, 999)), min_size=1, max_size=5),
    st.integers(0, 5000),
)
def test_numbers_are_polynomials(terms: list[tuple[int, int, int]], length: int) -> None:
    def tree(n: int) -> Any:
        numbers = [a * n * n + b * n + c for a, b, c in terms]
        return {"x": tuple(numbers), "y": [numbers[0], "text", True, None, 1.5]}

    assert fitted({n: tree(n) for n in (37, 41, 43)})(length) == tree(length)


@given(st.sampled_from([1.0, -1.0, 0.5, -0.5]), st.sampled_from([1.0, 0.125, 3.0, -2.5]), st.integers(1, 5000))
def test_constants_are_multiples_of_powers(power: float, factor: float, length: int) -> None:
    def of(n: int) -> float:
        return float(np.float32(factor * n**power))

    assert fitted({n: of(n) for n in (131, 137, 139)})(length) == pytest.approx(of(length), rel=1e-6)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 4], [1, 2.0, 3], [(1, 2), (1,), (1, 2)], ["a", "b", "c"], [{1: 2}, {2: 2}, {1: 2}], [1.0, 2.0, 3.5]],
)
def test_what_is_no_function_of_the_length(values: list[Any]) -> None:
    with pytest.raises(Misfit):
        fitted(dict(zip((37, 41, 43), values, strict=True)))


MODULE = '''"""kernel: {n}x8."""

from math import inf
from eqsat_backends.numba_cpu.vectors.simd import loadn_f32x16


def kernel_0(args, tid, nt):
    a0 = word(args, 0)
    for i in range(0, {whole}, 16):
        v1 = load_f32x16(a0 + {stride} * i + 64)
        v2 = mul(v1, splat_f32x16(1e-05))
    loadn_f32x16(a0 + {whole}, {rest})


def kernel_1(args, tid, nt):
    a0 = word(args, 0)
    store(a0, {n})
'''


@settings(max_examples=a_part(30))
@given(st.lists(st.integers(17, 31), min_size=2, max_size=6, unique=True))
def test_printed_integers_are_arguments(lengths: list[int]) -> None:
    def printed(n: int) -> str:
        return MODULE.format(n=n, whole=n // 16 * 16, stride=4 * n, rest=n % 16)

    known: Known = {}
    texts = set()
    for n in lengths:
        source, values = named(0, printed(n), known, lambda: map(printed, lengths))
        found = reading(source, 5)
        texts.add(found)
        assert "word(args, 5)" in found and "1e-05" in found and "f32x16" in found and ", 16):" in found
        lines = [line for line in found.splitlines() if " = word(sizes, " not in line and "word(args, 5)" not in line]
        text = "\n".join(lines)
        for place, value in enumerate(values):
            text = text.replace(f"size_{place}", str(value))
        assert text.split() == printed(n).partition('"""\n')[2].split()
    assert len(texts) == 1


def test_integers_outside_of_functions_are_refused() -> None:
    def printed(n: int) -> str:
        return f"x = {n}\n\n\ndef kernel_0(args, tid, nt):\n    store(x, 1)\n"

    with pytest.raises(ValueError, match="outside of phases"):
        reading(named(0, printed(3), {}, lambda: [printed(4)])[0], 4)


def test_lengths_without_a_kernel_stay_part_of_their_programs_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Padding along a vector of lanes has other kernels at other lengths: nothing of that is the user's to see."""
    run = eqsat.optimize(lambda x, w: np.convolve(x, w, "same"), cache=False, check_speed=False)
    w = np.ones(3, np.float32)
    for n in (16, 17, 18, 19, 20, 63):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_allclose(run(x, w), np.convolve(x, w, "same"))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
