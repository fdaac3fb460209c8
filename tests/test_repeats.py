"""Large arrays that repeat what they hold are worth what they hold: as arguments, constants and captured arrays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import eqsat
from eqsat.errors import ReadOnlyError
from eqsat.ir.repeats import LARGE, base_of, copy_of, repeated_axes

ROWS = 10**10
ENDS = np.array([0, 5, -1, ROWS - 1])


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Nothing of the full size: NumPy tells tracemalloc of its arrays."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 << 20


def rows(dtype: Any = np.float64, first: float = 0) -> np.ndarray:
    """Ten thousand million rows of seven numbers."""
    return np.broadcast_to((np.arange(7) + first).astype(dtype), (ROWS, 7))


def holds(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    run = eqsat.optimize(fn, **options)
    for _ in range(2):
        np.testing.assert_allclose(run(*args), fn(*args))
    return run


FUNCTIONS = {
    "rows": lambda x: x[5:9] * 2,
    "element": lambda x: x[-1, 3] + 1,
    "steps": lambda x: x[:: ROWS // 4, ::-1].sum(0),
    "transposed": lambda x: x.T[2, 5:9],
    "taken": lambda x: x[ENDS] + 1,
    "few of many": lambda x: np.concatenate([x[:2], x[-2:]]).max(0),
}


@pytest.mark.parametrize("backend", ["numba_cpu", "numpy"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("const", [(), "x"])
def test_what_is_read_of_an_argument(name: str, const: Any, backend: str) -> None:
    fn = FUNCTIONS[name]
    run = holds(lambda x: fn(x), rows(), const=const, backend=backend)
    np.testing.assert_allclose(run(rows(first=3)), fn(rows(first=3)))
    assert run.cache_info().currsize == (2 if const else 1)
    assert run.cache_info().nbytes < 1 << 20


@pytest.mark.parametrize("dtype", [np.float32, ">f8", np.int32, bool])
def test_element_types_and_rows_read_at_indices(dtype: Any) -> None:
    holds(lambda x, i: x[i] & True if x.dtype == bool else x[i] * 2, rows(dtype), ENDS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_captured_arrays(dtype: Any) -> None:
    table = rows(dtype)
    holds(lambda a: table[5] * a + table[-2:], np.arange(7, dtype=dtype))
    run = eqsat.optimize(lambda i: eqsat.asarray(table)[i] * 2)
    np.testing.assert_array_equal(run(ENDS), table[ENDS] * 2)


def test_arrays_in_containers_and_several_axes() -> None:
    once = as_strided(np.array([3.0]), (ROWS,), (0,))
    middle = np.broadcast_to(np.arange(6.0).reshape(2, 1, 3), (2, 10**9, 3))
    holds(lambda d, y: d["a"][0][1, 7:9, ::2] + d["b"][-1] + y[:2, None], {"a": [middle], "b": (rows()[0, :2],)}, once)


def test_a_full_array_of_the_same_shape_is_another_type() -> None:
    shape = (LARGE // 4, 4)
    run = eqsat.optimize(lambda x: x[3:5] + x[-1])
    full, flat = np.arange(LARGE, dtype=np.float32).reshape(shape), np.arange(4, dtype=np.float32)
    for x in (full, np.broadcast_to(flat, shape), full, np.broadcast_to(full[:, :1], shape), flat[None]):
        if len(x) == 1:
            x = np.concatenate([x] * 6)
        np.testing.assert_array_equal(run(x), x[3:5] + x[-1])
    assert run.cache_info().currsize == 3 + 1 - (repeated_axes(np.broadcast_to(full[:, :1], shape)) == ())


def test_constants_are_known_by_what_they_hold() -> None:
    run = eqsat.optimize(lambda x: x[2:4] * 2, const="x")
    for first in (0, 1, 0, 1):
        np.testing.assert_array_equal(run(rows(first=first)), rows(first=first)[2:4] * 2)
    assert run.cache_info()[:2] == (2, 2)


def test_writes_to_such_an_argument_are_refused() -> None:
    def writes(x: np.ndarray) -> np.ndarray:
        x += 1
        return x[:2]

    base = np.ones(3)
    x = as_strided(base, (LARGE, 3), (0, 8))
    with pytest.raises(ReadOnlyError, match="argument 'x' has elements that share memory"):
        eqsat.optimize(writes, strict=True)(x)
    assert (base == 1).all()


def test_copies_repeat_and_small_arrays_are_taken_as_they_are() -> None:
    large = np.broadcast_to(np.arange(3.0)[:, None], (3, LARGE))
    copy = copy_of(large)
    assert repeated_axes(copy) == repeated_axes(large) == (1,) and base_of(copy).shape == (3, 1)
    copy[1, 5] = 9.0
    assert copy[1, -1] == 9.0 and large[1, 5] == 1.0
    assert not repeated_axes(np.broadcast_to(1.0, (1000, 1000))) and not repeated_axes(np.broadcast_to(1.0, (0, ROWS)))
    twice = np.broadcast_to(np.zeros(LARGE, bool), (2, LARGE))
    assert not repeated_axes(twice) and copy_of(twice).strides[0]
