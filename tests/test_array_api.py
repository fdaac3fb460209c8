"""Functions of the Array API standard (2024.12) on traced arrays give what ``array_api_strict`` gives."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import EqsatError, EqsatWarning, UnsupportedOpError
from eqsat.frontends import array_api
from eqsat.frontends.trace import run_by_reference
from tests import array_api_cases as cases
from tests.array_api_cases import CASES, DEVIATIONS, VALUES_DECIDE, seeds, values, words
from tests.sweeps import a_part
from tests.test_trace import same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    strict = pytest.importorskip("array_api_strict")


@pytest.fixture(autouse=True, scope="module")
def _edition() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with strict.ArrayAPIStrictFlags(api_version=array_api.__array_api_version__):
            yield


def _functions(module: Any) -> set[str]:
    found = {name for name in module.__all__ if callable(getattr(module, name, None))}
    return {n for n in found if not n.startswith("_") and not isinstance(getattr(module, n), type)}


def test_every_function_of_the_standard_is_tried() -> None:
    settings_ = words("set_array_api_strict_flags get_array_api_strict_flags reset_array_api_strict_flags")
    types = {n for n in _functions(strict) if hasattr(getattr(strict, n), "_np_dtype")}
    names = _functions(strict) - types - set(settings_)
    from array_api_strict import _fft, _linalg

    names |= {f"linalg.{n}" for n in _functions(_linalg)} | {f"fft.{n}" for n in _functions(_fft)}
    assert len(names) > 170
    assert not names - set(CASES) - set(DEVIATIONS)
    assert not set(DEVIATIONS) & set(CASES)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return np.asarray(value._array) if hasattr(value, "_array") else value


def compare(action: Callable[..., Any], arrays: list[np.ndarray], scale: float = 40) -> None:
    """What the namespace of traced arrays gives is what ``array_api_strict`` gives, in errors too."""
    traced = lambda *v: action(v[0].__array_namespace__(), *v)  # noqa: E731
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want = _plain(action(strict, *(strict.asarray(x) for x in arrays)))
        except (ValueError, IndexError):  # a TypeError is the case's own
            with pytest.raises((TypeError, ValueError, IndexError, OverflowError, EqsatError)):
                run_by_reference(traced, tuple(arrays), {})
            return
        got = run_by_reference(traced, tuple(arrays), {})
    same(_plain(got), want, scale)


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=a_part(12), deadline=None)
@given(data=st.data())
def test_functions_of_the_standard(name: str, data: st.DataObject) -> None:
    arrays, action = CASES[name](data.draw)
    compare(action, arrays)


OPERATORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(words("add sub mul"), cases.NUMBERS),
    "truediv": cases.INEXACT,
    **dict.fromkeys(words("floordiv mod lt le gt ge"), cases.REALS),
    **dict.fromkeys(words("eq ne"), cases.ALL),
    **dict.fromkeys(words("and_ or_ xor"), cases.BITS),
    "matmul": cases.NUMBERS,
    "pow": cases.FLOATS,
}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=a_part(20), deadline=None)
@given(data=st.data())
def test_operators(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(OPERATORS[name]))
    shapes = data.draw(st.sampled_from(cases.PRODUCTS if name == "matmul" else cases.SHAPES))
    x, y = (values(data.draw(seeds), shape, dtype, hard=name != "matmul") for shape in shapes)
    compare(lambda xp, a, b: getattr(operator, name)(a, b), [x, y])
    if name not in ("matmul", "and_", "or_", "xor") and dtype != "bool":
        number = 2.0 if dtype in cases.INEXACT else 2
        compare(lambda xp, a: (getattr(operator, name)(a, number), getattr(operator, name)(number, a)), [x])


@settings(max_examples=a_part(60), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(cases.ALL))
def test_attributes_and_indexing(data: st.DataObject, dtype: str) -> None:
    x = values(data.draw(seeds), data.draw(cases.shaped(1, least=1)), dtype)
    index = tuple(
        data.draw(
            st.one_of(
                st.integers(-n, n - 1), st.just(slice(None)), st.sampled_from([slice(0, n, 2), slice(n - 1, None, -1)])
            )
        )
        for n in x.shape
    )
    compare(lambda xp, v: (v[index], v[..., 0], v[None, ...].mT if v.ndim > 1 else v[None, :].T), [x])

    def facts(xp: Any, v: Any) -> Any:
        assert (v.ndim, v.size, v.shape) == (x.ndim, x.size, x.shape) and v.dtype == getattr(xp, dtype)
        info = xp.__array_namespace_info__()
        assert info.default_dtypes()["real floating"] == xp.float64 and info.default_device() == v.device
        return v.to_device(v.device)

    compare(facts, [x])


@pytest.mark.parametrize("name", VALUES_DECIDE)
def test_functions_of_which_values_decide_the_shape_are_run_by_numpy(name: str) -> None:
    x = np.array([3.0, 0.0, 1.0, 3.0])
    fn = lambda v: VALUES_DECIDE[name](v.__array_namespace__(), v)  # noqa: E731
    with pytest.raises(UnsupportedOpError, match="depends on values"):
        run_by_reference(fn, (x,), {})
    with pytest.warns(EqsatWarning):
        got = eqsat.optimize(fn, cache=False)(x)
    same(_plain(got), _plain(VALUES_DECIDE[name](np, x)))
