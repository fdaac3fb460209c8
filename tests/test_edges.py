"""Values and shapes at their edges through the whole compiler: integers that wrap around, tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import nn

Array = Any
LIMITS = np.iinfo(np.int32)
INTS = np.array([LIMITS.min, LIMITS.min + 1, -46341, -1, 0, 5, 46341, LIMITS.max - 6, LIMITS.max], np.int32)

WRAPPING: list[Callable[[Array], Array]] = [
    lambda x: np.abs(x) * np.abs(x[::-1]),
    lambda x: np.maximum(x, 0) - np.maximum(-x, 0),
    lambda x: np.maximum(x, 0) + np.maximum(-x, 0),
    lambda x: np.maximum(3 * x, 0),
    lambda x: (3 * x).max(),
    lambda x: (x + 7).max(),
    lambda x: (x[:, None] - x).min(axis=1),
    lambda x: (3 * x).argmax(),
    lambda x: (x * x + x * 3).sum(),
    lambda x: -(x + x) * 2 + x**3,
]


@pytest.mark.parametrize("number", range(len(WRAPPING)))
def test_integers_wrap_around_as_in_numpy(number: int) -> None:
    program = WRAPPING[number]
    found = eqsat.optimize(program)(INTS)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, program(INTS))


def test_windows_beside_products_share_each_axis_once() -> None:
    """Windows walk a tensor by two axes of one stride and extent, of which one is an axis of the product."""

    def program(x: Any) -> Any:
        products = nn.softmax(x @ np.swapaxes(x, -1, -2) * 0.25, axis=-1) @ x
        return products, nn.max_pool3d(x, 4, stride=(3, 3, 2), ceil_mode=True, padding=1)

    x = np.random.default_rng(0).standard_normal((1, 2, 3, 1, 4)).astype(np.float32)
    for found, wanted in zip(eqsat.optimize(program, strict=True)(x), program(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_few_bits_are_divided_by_numbers() -> None:
    """LLVM divides vectors by constants in ways of its own where it knows how few bits are set."""

    def program(x: Any) -> Any:
        return [np.sum(x < bound) // bound + np.count_nonzero(x > bound) % 3 for bound in (3, 7, -5)]

    x = np.arange(-3.0, 2.0)
    np.testing.assert_array_equal(eqsat.optimize(program, strict=True)(x), program(x))


NANS = np.full((4, 2), np.nan, np.float32)

EMPTY: list[Callable[[Array, Array], Array]] = [
    lambda x, y: (x @ x.T[:, :1]) @ y[:1],
    lambda x, y: np.pad(x, ((1, 1), (2, 0)), constant_values=3) @ y[:2],
    lambda x, y: (x.sum(axis=1) + x.prod(axis=1)) * 2,
    lambda x, y: np.concatenate([y, x.T, y]) * 2,
    lambda x, y: x,
    lambda x, y: (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)).sum() + y,
]


@pytest.mark.parametrize("number", range(len(EMPTY)))
def test_what_is_computed_of_no_elements_is_as_in_numpy(number: int) -> None:
    program = EMPTY[number]
    x = np.ones((2, 0), np.float32)
    f = eqsat.optimize(program)
    np.testing.assert_array_equal(f(x, NANS), program(x, NANS), strict=True)
    assert "softmax_written" in f.explain(x, NANS).why("softmax_written")


def test_why_where_nothing_was_searched() -> None:
    f = eqsat.optimize(lambda x: x.sum() + 1)
    x = np.ones((0,), np.float32)
    assert "nothing to search" in f.explain(x).why("softmax_written")


@pytest.mark.parametrize("number", [1e300, 1e-300])
def test_numbers_that_overflow_or_vanish_together_stay_apart(number: float) -> None:
    x = np.array([1 / number, -1 / number, 0.0])
    found = eqsat.optimize(lambda x: (x * number) * number)(x)
    np.testing.assert_allclose(found, x * number * number, rtol=1e-15)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_arrays_without_elements_may_lie_anywhere(shape: tuple[int, ...]) -> None:
    odd = np.frombuffer(b"\0", np.float32, offset=1).reshape(shape)
    assert odd.__array_interface__["data"][0] % 4
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(eqsat.optimize(lambda e, v: v * 2)(odd, x), x * 2)
    assert eqsat.optimize(lambda e, v: (e + 1, v * 2))(odd, x)[0].shape == shape


def test_an_empty_part_in_front_of_one_element() -> None:
    """Seen without axes, the concatenation has none that its parts could be joined along."""

    def joined(none: np.ndarray, one: np.ndarray) -> tuple[object, ...]:
        return np.mean(np.concatenate([none, one])), np.concatenate([none, one]).reshape(()), np.stack([one, one]).T

    none, one = np.zeros(0, np.float32), np.array([3], np.uint8)
    for found, expected in zip(eqsat.optimize(joined, strict=True)(none, one), joined(none, one), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
