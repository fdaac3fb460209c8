"""Programs compiled ahead of their calls: for arrays, or for shapes and element types alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.compiled import Compiled
from eqsat.errors import EqsatWarning, OptionError, ShapeError, UnsupportedDTypeError

rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


@dataclass
class Layer:
    w: Any
    b: Any


def layer(x: Any, params: Any, scale: float = 1.0) -> Any:
    return {"y": np.tanh(x @ params.w + params.b) * scale, "x": x}


def test_a_compiled_program_is_called_as_the_function_is() -> None:
    f = eqsat.optimize(layer)
    x, params = normal(5, 3), Layer(normal(3, 4), normal(4))
    compiled = f.compile(x, params, scale=2.0)
    assert isinstance(compiled, Compiled)
    for given in (x, normal(5, 3), np.asfortranarray(normal(5, 3))):
        got, expected = compiled(given, params, scale=2.0), layer(given, params, 2.0)
        assert got.keys() == expected.keys()
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got["x"], given)
    assert f.cache_info().misses == 1


@pytest.mark.parametrize(
    "args", [(normal(6, 3),), (normal(5, 3).astype(np.float64),), (normal(5, 3), 2.0), (3.0,), (normal(5, 3)[None],)]
)
def test_other_types_are_refused(args: tuple[Any, ...]) -> None:
    compiled = eqsat.optimize(lambda x, k=1.0: x * k).compile(normal(5, 3))
    with pytest.raises(TypeError, match=r"compiled for \(x: float32\[5,3\]\).*arguments of other types"):
        compiled(*args)
    with pytest.raises(TypeError, match="argument"):
        compiled()


def test_constants_of_other_values_are_refused() -> None:
    w = normal(3, 4)
    compiled = eqsat.optimize(lambda x, w: x @ w, const="w").compile(eqsat.spec((5, 3), "float32"), w)
    x = normal(5, 3)
    for same in (w, w.copy()):
        np.testing.assert_allclose(compiled(x, same), x @ w, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="other values of constants"):
        compiled(x, w + 1)


def test_arguments_are_changed_by_a_compiled_program() -> None:
    def fn(x: Any, y: Any) -> Any:
        x += y
        return x.sum()

    compiled = eqsat.optimize(fn).compile(np.ones(4), np.ones(4))
    x = np.arange(4.0)
    assert compiled(x, np.ones(4)) == 10 and x.tolist() == [1, 2, 3, 4]
    assert compiled(x, x) == 20 and x.tolist() == [2, 4, 6, 8]  # the same memory twice: NumPy's meaning
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        compiled(x, np.ones(4))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (4, 3), 5])
def test_what_is_compiled_for_a_shape_serves_its_arrays(dtype: str, shape: Any) -> None:
    f = eqsat.optimize(lambda x: (x + x, x.reshape(-1)), backend="numpy")
    given = eqsat.spec(shape, dtype)
    f.compile(given)
    x = np.asarray(rng.standard_normal(given.shape) * 3).astype(dtype)
    got, expected = f(x), f.fn(x)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert f.cache_info()[:2] == (1, 1)


def test_specs_stand_anywhere_among_arguments() -> None:
    f = eqsat.optimize(layer)
    compiled = f.compile(eqsat.spec((5, 3), "float32"), Layer(normal(3, 4), eqsat.spec(4, np.float32)), scale=2.0)
    x, params = normal(5, 3), Layer(normal(3, 4), normal(4))
    np.testing.assert_allclose(compiled(x, params, scale=2.0)["y"], layer(x, params, 2.0)["y"], rtol=1e-5, atol=1e-6)
    report = f.explain(eqsat.spec((5, 3), "float32"), Layer(normal(3, 4), normal(4)), 2.0)
    assert report.measured and f.cache_info().misses == 1
    assert "def " in f.source(eqsat.spec((5, 3), "float32"), Layer(normal(3, 4), normal(4)), 2.0)


def test_integers_of_a_spec_are_valid_indices() -> None:
    f = eqsat.optimize(lambda table, ids: table[ids] * 2)
    compiled = f.compile(eqsat.spec((7, 3), "float32"), eqsat.spec(4, "int32"))
    table = normal(7, 3)
    np.testing.assert_array_equal(compiled(table, np.array([6, 0, 3, 3], np.int32)), table[[6, 0, 3, 3]] * 2)


def test_specs_that_make_no_sense_are_refused() -> None:
    for shape in ((-1, 3), (2.5,), "ab", None):
        with pytest.raises(ShapeError, match="spec"):
            eqsat.spec(shape, "float32")  # type: ignore[arg-type]
    for dtype in ("float128", "datetime64[s]", "no type", object):
        with pytest.raises(UnsupportedDTypeError, match="spec"):
            eqsat.spec(3, dtype)
    with pytest.raises(OptionError, match="named in const"):
        eqsat.optimize(lambda x, w: x @ w, const="w").compile(normal(2, 3), eqsat.spec((3, 2), "float32"))
    assert repr(eqsat.spec((2, 3), ">f4")) == "eqsat.spec((2, 3), 'float32')"


@pytest.mark.filterwarnings("ignore::eqsat.EqsatWarning")
def test_a_compiled_program_is_right_on_every_branch() -> None:
    def branch(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else -x

    f = eqsat.optimize(branch)
    ones = np.ones(3)
    compiled = f.compile(ones)
    assert compiled(ones).tolist() == [2, 2, 2] and compiled(-ones).tolist() == [1, 1, 1]
    f(-ones)
    assert "False" in f.explain().guards[0] and "True" in f.explain(ones).guards[0]
    assert compiled(ones).tolist() == [2, 2, 2] and compiled(-ones).tolist() == [1, 1, 1]


def test_what_cannot_be_compiled_is_the_function_itself() -> None:
    def branch(x: Any) -> Any:
        return x * 2 if x.tolist()[0] > 0 else -x

    with pytest.warns(EqsatWarning):
        compiled = eqsat.optimize(branch).compile(np.ones(3))
    assert compiled(-np.ones(3)).tolist() == [1, 1, 1]
