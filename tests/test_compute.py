"""Users' operators in index notation, against NumPy; how they are lowered; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import (
    BoundsError,
    ConcretizationError,
    EqsatError,
    OptionError,
    ShapeError,
    UnsupportedDTypeError,
)
from eqsat.frontends.trace import run_by_reference, trace
from tests.sweeps import a_part

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("f4")


@eqsat.op
def correlate(x: Any, w: Any) -> Any:
    d = eqsat.axis(w.shape[0], "d")
    return eqsat.compute((x.shape[0] - w.shape[0] + 1,), lambda i: eqsat.sum(x[i + d] * w[d], over=d))


@eqsat.op
def convolve2d(x: Any, w: Any, stride: int = 1, dilation: int = 1, padding: int = 0) -> Any:
    (c, h, width), (o, _, r, s) = x.shape, w.shape
    ci, di, dj = eqsat.axes(c, r, s)
    rows = (h + 2 * padding - dilation * (r - 1) - 1) // stride + 1
    cols = (width + 2 * padding - dilation * (s - 1) - 1) // stride + 1

    def element(f: Any, i: Any, j: Any) -> Any:
        i, j = stride * i + dilation * di - padding, stride * j + dilation * dj - padding
        return eqsat.sum(x[ci, i, j] * w[f, ci, di, dj], over=(ci, di, dj))

    return eqsat.compute((o, rows, cols), element, outside=0)


def convolve2d_loops(x: np.ndarray, w: np.ndarray, stride: int, dilation: int, padding: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding))).astype("f8")
    o, _, r, s = w.shape
    rows = (x.shape[1] - dilation * (r - 1) - 1) // stride + 1
    cols = (x.shape[2] - dilation * (s - 1) - 1) // stride + 1
    y = np.zeros((o, rows, cols))
    for i in range(rows):
        for j in range(cols):
            top, left = i * stride, j * stride
            window = x[:, top : top + dilation * r : dilation, left : left + dilation * s : dilation][:, :r, :s]
            y[:, i, j] = np.einsum("crs,ocrs->o", window, w)
    return y


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), ()])
def test_elements_take_as_many_axes_as_there_are(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    np.testing.assert_array_equal(eqsat.op(lambda x: eqsat.compute(x.shape, lambda *at: 2 * x[at]))(x), 2 * x)
    if shape:
        got = eqsat.op(lambda x: eqsat.compute(x.shape, lambda i, *rest: x[(i, *rest)]))(x)
        np.testing.assert_array_equal(got, x)


def test_too_many_axes_are_refused() -> None:
    with pytest.raises(ShapeError, match="has 1 axes, the function takes 2"):
        eqsat.op(lambda x: eqsat.compute(x.shape, lambda i, j, *rest: x[i]))(floats(3))


@given(n=st.integers(3, 12), k=st.integers(1, 3))
@settings(max_examples=a_part(20), deadline=None)
def test_correlation_on_arrays_and_traced(n: int, k: int) -> None:
    x, w = floats(n), floats(k)
    want = np.correlate(x.astype("f8"), w)
    np.testing.assert_allclose(correlate(x, w), want, rtol=1e-5, atol=1e-5)
    got = run_by_reference(lambda x, w: correlate(x * 2, w) / 2, (x, w), {})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32


@given(
    stride=st.integers(1, 3), dilation=st.integers(1, 2), padding=st.integers(0, 2), r=st.integers(1, 3),
    s=st.integers(1, 3), c=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=a_part(25), deadline=None)
def test_convolution(stride: int, dilation: int, padding: int, r: int, s: int, c: int) -> None:
    x, w = floats(c, 7, 6), floats(4, c, r, s)
    want = convolve2d_loops(x, w, stride, dilation, padding)
    np.testing.assert_allclose(convolve2d(x, w, stride, dilation, padding), want, rtol=1e-5, atol=1e-5)


def ops_of(fn: Any, *args: Any) -> list[str]:
    return [n.op for n in trace(fn, args, {}).graph.nodes() if n.op not in ("input", "const", "iota")]


def test_lowering() -> None:
    x, w, m = floats(9), floats(3), floats(4, 4)
    assert ops_of(correlate, x, w) == ["view", "contract"]
    k = eqsat.axis(4)

    def product(a: Any, b: Any) -> Any:
        return eqsat.compute((4, 4), lambda i, j: eqsat.sum(a[i, k] * b[k, j], over=k))

    assert ops_of(product, m, m) == ["contract"]
    assert trace(product, (m, m), {}).graph.key() == trace(lambda a, b: a @ b, (m, m), {}).graph.key()
    # A label of one factor alone is summed first.
    j = eqsat.axis(4)

    def early(a: Any, b: Any) -> Any:
        return eqsat.compute((4,), lambda i: eqsat.sum(a[i, j] * b[i, k], over=(j, k)))

    assert ops_of(early, m, m) == ["reduce_sum", "reduce_sum", "mul"]
    # Three factors are contracted in pairs.
    triple = lambda a, b: eqsat.compute((4, 4), lambda i, l: eqsat.sum(a[i, j] * b[j, k] * a[k, l], over=(j, k)))  # noqa: E731, E741
    assert ops_of(triple, m, m) == ["contract", "contract"]
    np.testing.assert_allclose(run_by_reference(triple, (m, m), {}), m @ m @ m, rtol=1e-5, atol=1e-5)
    pool = lambda x: eqsat.compute((4,), lambda i: eqsat.max(x[2 * i + eqsat_window], over=eqsat_window))  # noqa: E731
    eqsat_window = eqsat.axis(2)
    assert ops_of(pool, x) == ["view", "reduce_max"]
    np.testing.assert_array_equal(run_by_reference(pool, (x,), {}), x[:8].reshape(4, 2).max(1))


def test_elements_and_axes_as_values() -> None:
    x, ids = floats(4, 5), np.array([3, -1, 0])
    j = eqsat.axis(5, "j")

    @eqsat.op
    def many(x: Any, ids: Any) -> Any:
        n, m = x.shape
        return {
            "rows": eqsat.compute((3, m), lambda i, j: x[ids[i], j]),
            "picked": eqsat.compute((3,), lambda i: x[i + 1, ids[i]]),
            "tril": eqsat.compute((n, m), lambda i, j: np.where(i >= j, x[i, j], 0)),
            "flip": eqsat.compute((n, m), lambda i, j: x[n - 1 - i, m - 1 - j]),
            "max": eqsat.compute((n,), lambda i: eqsat.max(np.exp(x[i, j]) * 2, over=j)),
            "min": eqsat.compute((n,), lambda i: eqsat.min(-abs(x[i, j]), over=j)),
            "prod": eqsat.compute((n,), lambda i: eqsat.prod(x[i, j], over=[j])),
            "softmax": eqsat.compute((n, m), lambda i, k: np.exp(x[i, k]) / eqsat.sum(np.exp(x[i, j]), over=j)),
            "eye": eqsat.compute((n, m), lambda i, j: i == j),
            "index": eqsat.compute((n, m), lambda i, j: 2 * i + j - 1),
            "broadcast": eqsat.compute((2, n), lambda b, i: x[i, 0] + 1),
            "scalar": eqsat.compute((), lambda: x[-1, 2] * 3),
            "diagonal": eqsat.compute((4,), lambda i: x[i, i]),
            "half": eqsat.compute((8,), lambda i: x[i // 2, i % 5]),
            "poly": eqsat.compute((n,), lambda i: 2 - x[i, 0] ** 2 / (1 + x[i, 1] * x[i, 1])),
            "cast": eqsat.compute((n,), lambda i: x[i, 0].astype(np.float64) * i),
            "clip": eqsat.compute((n, m), lambda i, j: np.clip(x[i, j], -0.5, 0.5)),
        }

    got = many(x, ids)
    e = np.exp(x)
    eight = np.arange(8)
    want = {
        "rows": x[ids], "picked": x[[1, 2, 3], ids], "tril": np.tril(x), "flip": x[::-1, ::-1],
        "max": (e * 2).max(1), "min": (-abs(x)).min(1), "prod": x.prod(1), "softmax": e / e.sum(1, keepdims=True),
        "eye": np.eye(4, 5, dtype=bool), "index": 2 * np.arange(4)[:, None] + np.arange(5) - 1,
        "broadcast": np.stack([x[:, 0] + 1] * 2), "scalar": x[-1, 2] * 3, "diagonal": np.diag(x),
        "half": x[eight // 2, eight % 5], "poly": 2 - x[:, 0] ** 2 / (1 + x[:, 1] ** 2),
        "cast": x[:, 0].astype("f8") * np.arange(4), "clip": np.clip(x, -0.5, 0.5),
    }  # fmt: skip
    assert list(got) == list(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
        assert got[name].dtype == value.dtype, name


def test_integer_and_bool_sums_are_int64() -> None:
    k = eqsat.axis(3)
    total = eqsat.op(lambda x: eqsat.compute((), lambda: eqsat.sum(x[k], over=k)))
    assert total(np.array([1, 2, 3], "i4")).dtype == np.int64
    assert total(np.array([True, True, False])) == 2


def test_values_outside() -> None:
    x = np.arange(1.0, 6.0)
    shift = eqsat.op(lambda x: eqsat.compute((5,), lambda i: x[i - 2], outside=-np.inf))
    np.testing.assert_array_equal(shift(x), [-np.inf, -np.inf, 1, 2, 3])
    both = eqsat.op(lambda x: eqsat.compute((9,), lambda i: x[i - 2] + x[i - 3], outside=0))
    np.testing.assert_array_equal(both(x), np.convolve(np.pad(x, (2, 1)), [1, 1])[:9])


def test_arguments_in_containers_and_closures() -> None:
    x = np.arange(3.0)

    @eqsat.op
    def scaled(parts: Any, by: float = 2.0) -> Any:
        return eqsat.compute((3,), lambda i: parts["a"][0][i] * by + eqsat.asarray(x)[i])

    np.testing.assert_array_equal(scaled({"a": [x]}), x * 3)
    np.testing.assert_array_equal(run_by_reference(lambda y: scaled({"a": (y,)}, by=1.0), (x,), {}), x * 2)
    # A NumPy array beside a traced one.
    np.testing.assert_allclose(run_by_reference(lambda y: correlate(y, np.ones(2)), (x,), {}), [1, 3])


def test_empty_axes() -> None:
    k = eqsat.axis(0)
    total = eqsat.op(lambda x: eqsat.compute((2,), lambda i: eqsat.sum(x[i, k], over=k)))
    np.testing.assert_array_equal(total(np.ones((2, 0))), [0, 0])
    rows = eqsat.op(lambda x: eqsat.compute((0, 2), lambda i, j: x[i + 7, j]))
    assert rows(np.ones((1, 2))).shape == (0, 2)


K = eqsat.axis(3, "k")
REFUSED: list[tuple[Any, type[EqsatError], str]] = [
    (
        lambda x: eqsat.compute((3,), lambda i: x[i + 1]),
        BoundsError,
        r"i \+ 1 reaches 3 on axis 0 of size 3 \(i in 0…2\)",
    ),
    (lambda x: eqsat.compute((3,), lambda i: x[-i]), BoundsError, "reaches -2 on axis 0"),
    (lambda x: eqsat.compute((2,), lambda i: x[i, i]), BoundsError, r"2 indices for an array of shape \(3,\)"),
    (lambda x: eqsat.compute((2,), lambda i: x[i, :]), BoundsError, "2 indices"),
    (lambda x: eqsat.compute((-1,), lambda i: x[i]), ShapeError, "negative extent"),
    (lambda x: eqsat.compute((2, 2), lambda i: x[i]), ShapeError, "has 2 axes, the function takes 1"),
    (lambda x: eqsat.compute((2,), lambda i: x), ShapeError, "index it"),
    (lambda x: eqsat.compute((2,), lambda i: x[K]), ShapeError, "axis k is neither"),
    (lambda x: eqsat.compute((2,), lambda i: eqsat.sum(x[i], over=K)), ShapeError, "does not depend on it"),
    (lambda x: eqsat.compute((2,), lambda i: eqsat.sum(x[i], over=[3])), ShapeError, "eqsat.axis"),
    (lambda x: eqsat.compute((2,), lambda i: x[i] if i > 1 else 0), ConcretizationError, "np.where"),
    (lambda x: eqsat.compute((2,), lambda i: np.frombuffer(bytes(16))[i]), ConcretizationError, "eqsat.asarray"),
    (lambda x: eqsat.compute((2,), lambda i: x[x[i]]), UnsupportedDTypeError, "integer"),
    (lambda x: eqsat.compute((2,), lambda i: np.sort(x[i])), EqsatError, "elementwise"),
    (lambda x: eqsat.axis(-1), ShapeError, "negative extent"),
    (lambda x: eqsat.compute((2,), x), ShapeError, "an element is a function of its axes"),
    (lambda x: eqsat.op(3), OptionError, "an operator is a function of arrays, not 3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    import re

    fn, kind, message = REFUSED[number]
    with pytest.raises(kind) as caught:
        eqsat.op(fn)(np.arange(3.0))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.where is not None and caught.value.where.file == __file__


def test_indices_out_of_range_at_run_time() -> None:
    rows = eqsat.op(lambda x, ids: eqsat.compute((2,), lambda i: x[ids[i]]))
    with pytest.raises(IndexError, match="out of bounds"):
        rows(np.arange(3.0), np.array([0, 3]))
