"""Functions that cannot be compiled are run by NumPy: with one warning, decided once, and as NumPy means them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import ConcretizationError, EqsatError, EqsatWarning, OptionError, ShapeError, UnsupportedDTypeError
from tests.reports import one_line
from tests.sweeps import a_part

QUICK: Any = {"cache": False, "backend": "numpy"}


class Model:
    """Not a dataclass: eqsat cannot see whether it changes."""

    scale = 3.0

    def forward(self, x: Any) -> Any:
        return x * self.scale


class Text(np.ndarray):
    """A subclass with operators of its own."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        given = [np.asarray(x) for x in inputs]
        return getattr(ufunc, method)(*given, **kwargs)


def branch(x: Any) -> Any:
    if float(x.sum()) > 0:
        return x * 2
    return -x


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "branch": (branch, (np.arange(3.0),), "np. functions"),
    "loop": (lambda x: sum(float(v) for v in x), (np.arange(3.0),), "float value"),
    "object": (Model.forward, (Model(), np.arange(3.0)), "dataclass"),
    "subclass": (lambda x: x + 1, (np.arange(3.0).view(Text),), "Text"),
    "strings": (lambda x: np.char.upper(x), (np.array(["a", "b"]),), "not supported"),
    "attribute": (lambda x: x.tobytes(), (np.arange(3.0),), "tobytes"),
    "random": (lambda x: x + np.random.default_rng().normal(size=3), (np.arange(3.0),), "run to run"),
    "type test": (lambda x: x * (2 if type(x) is np.ndarray else 3), (np.arange(3.0),), "type"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_runs_what_cannot_be_compiled(name: str) -> None:
    fn, args, reason = FUNCTIONS[name]
    f = eqsat.optimize(fn, **QUICK)
    with pytest.warns(EqsatWarning) as caught:
        got = f(*args)
    if name != "random":
        np.testing.assert_array_equal(got, fn(*args))
    (warning,) = caught
    text = str(warning.message)
    assert reason in text and "NumPy runs the function" in text and "strict=True" in text
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(*args)
    with pytest.raises((EqsatError, TypeError, AttributeError)):
        eqsat.optimize(fn, strict=True, **QUICK)(*args)


def test_the_line_is_named_and_explained() -> None:
    f = eqsat.optimize(branch, **QUICK)
    x = np.arange(3.0)
    with pytest.warns(EqsatWarning, match=rf"{branch.__code__.co_firstlineno + 1}: if float\(x.sum\(\)\) > 0"):
        report = f.explain(x)
    assert "if float(x.sum()) > 0" in (report.plain or "") and "if float(x.sum()) > 0" in f.source(x)
    assert f.compile(x).traced is None


def test_a_function_is_traced_once_for_each_kind_of_arguments() -> None:
    runs = []

    @eqsat.optimize(**QUICK)
    def f(x: Any) -> Any:
        runs.append(type(x))
        return branch(x)

    x = np.arange(3.0)
    with pytest.warns(EqsatWarning):
        f(x)
    assert len(runs) == 2
    others = [-x for _ in range(3)]  # held: an array in the place of one that is gone may be taken for it, untraced
    for other in others:
        np.testing.assert_array_equal(f(other), x)
    assert len(runs) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the reason has been told
        f(np.arange(4.0))
    assert len(runs) == 7
    assert f.cache_info().currsize == 2


def test_errors_of_the_function_are_its_own() -> None:
    @eqsat.optimize(**QUICK)
    def f(x: Any) -> Any:
        if float(x.min()) < 0:
            raise KeyError("negative")
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said where the function does not run
        with pytest.raises(KeyError, match="negative"):
            f(np.array([-1.0]))
    with pytest.warns(EqsatWarning):
        assert f(np.array([1.0])) == 2
    with pytest.raises(KeyError, match="negative"):
        f(np.array([-1.0]))


def test_an_error_that_numpy_has_too_names_the_line() -> None:
    f = eqsat.optimize(lambda x, y: x + y, **QUICK)
    with pytest.raises(ShapeError, match="do not broadcast") as caught:
        f(np.ones(3), np.ones(4))
    assert caught.value.where is not None and isinstance(caught.value.__cause__, ValueError)


def test_arguments_are_changed_as_numpy_changes_them() -> None:
    @eqsat.optimize(**QUICK)
    def f(x: Any) -> Any:
        if float(x[0]) > 0:
            x[x > 1] = 0
        return x.sum()

    x = np.arange(1.0, 4)
    with pytest.warns(EqsatWarning):
        assert f(x) == 1
    np.testing.assert_array_equal(x, [1.0, 0, 0])


def test_options_and_calls_that_are_wrong_stay_errors() -> None:
    f = eqsat.optimize(lambda x: x + 1, **QUICK)
    with pytest.raises(TypeError, match="argument"):
        f()
    with pytest.raises(TypeError, match="argument"):
        f(1, 2, 3)
    with pytest.raises(OptionError):
        eqsat.optimize(lambda x, w: x @ w["a"], const="w['b']", **QUICK)(np.ones((2, 2)), {"a": np.ones((2, 2))})
    with pytest.raises(OptionError):
        eqsat.optimize(lambda x: x, strict="yes")
    with pytest.raises(UnsupportedDTypeError):
        eqsat.optimize(lambda x: x, strict=True, **QUICK)(np.array(["a"]))
    with pytest.raises(ConcretizationError):
        eqsat.optimize(branch, strict=True, **QUICK).compile(np.ones(3))


def test_calls_that_come_again_are_known_by_little_and_others_find_their_own() -> None:
    def fn(x: Any, n: Any = 2) -> Any:
        if n == 0:
            raise ZeroDivisionError("of the function")
        seen.append(type(x))
        return sum(float(v) for v in x) * n if x.dtype == np.float64 else x * n

    seen: list[type] = []
    f = eqsat.optimize(fn, **QUICK)
    x, y = np.arange(3.0), np.arange(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EqsatWarning)
        for call in [(x,), (x, 3), (x.astype(np.float32), 3), (y, 3), (x, 3.0)]:
            for _ in range(4):
                assert np.array_equal(f(*call), fn(*call))
            assert np.array_equal(f(call[0].copy(), *call[1:]), fn(*call))
            assert isinstance(f.explain(), eqsat.Explanation)
        calls = f.cache_info()
        assert np.array_equal(f(x, 3), fn(x, 3)) and f.cache_info().hits == calls.hits + 1
        for _ in range(3):
            assert f(x, n=3) == fn(x, n=3) and f(*(x, 3)) == fn(x, 3)
        x.shape = (3, 1)
        for _ in range(3):
            with pytest.raises(TypeError, match="0-dimensional"):
                f(np.ones((3, 2)), 3)
            with pytest.raises(ZeroDivisionError, match="of the function") as caught:
                f(y, 0)
            assert caught.traceback[-1].frame.code.name == "fn"
        assert np.array_equal(eqsat.optimize(lambda z: f(z * 2, 3) + z, **QUICK)(np.float32(y)), 7 * np.float32(y))


def test_threads_share_the_decision() -> None:
    runs = []

    @eqsat.optimize(**QUICK)
    def f(x: Any) -> Any:
        runs.append(1)
        return branch(x)

    x = np.arange(3.0)
    got: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=lambda: got.append(f(x))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) == 6 and all(np.array_equal(g, x * 2) for g in got)
    assert len(runs) == 7, "one trace, and each call"


def test_inside_another_function() -> None:
    inner = eqsat.optimize(branch, **QUICK)
    outer = eqsat.optimize(lambda x: inner(x) + 1, **QUICK)
    with pytest.warns(EqsatWarning, match="float"):
        np.testing.assert_array_equal(outer(np.ones(3)), np.full(3, 3.0))


# Values that decide which way the function goes


def test_each_branch_is_compiled_by_itself() -> None:
    runs = []

    @eqsat.optimize(**QUICK)
    def f(x: Any) -> Any:
        runs.append(1)
        if x.sum() > 0:
            return x * 2
        return {"negative": -x}

    x = np.arange(1.0, 4)
    with pytest.warns(EqsatWarning, match=r"if x.sum\(\) > 0"):
        np.testing.assert_array_equal(f(x), x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(-x)["negative"], x)
        made = len(runs)
        for _ in range(3):
            np.testing.assert_array_equal(f(x), x * 2)
            np.testing.assert_array_equal(f(-x)["negative"], x)
    assert len(runs) == made, "compiled programs run"
    assert f.cache_info().misses == 2 and f.cache_info().currsize == 1
    assert "the value True" in one_line(f.explain(x)) and "the value False" in one_line(f.explain(-x))
    with pytest.raises(ConcretizationError, match="truth value"):
        eqsat.optimize(f.fn, strict=True, **QUICK)(x)


@given(
    values=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=8),
    backend=st.just("numpy"),
)
@settings(max_examples=a_part(15), deadline=None)
def test_whatever_the_order_of_calls_results_are_numpys(values: list[list[int]], backend: str) -> None:
    def fn(x: Any) -> Any:
        if x.min() < -2:
            raise ValueError("too small")
        y = x + 1
        if (y > 2).any():
            y = y * 2
        n = int(np.argmax(x))
        return y[: n + 1].sum(), n if x[0] > 0 else -1

    f = eqsat.optimize(fn, backend=backend, cache=False)
    for value in values:
        x = np.array(value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                want: Any = fn(x)
            except ValueError:
                with pytest.raises(ValueError, match="too small"):
                    f(x)
                continue
            assert f(x) == want


def test_validation_of_arguments() -> None:
    @eqsat.optimize(**QUICK)
    def f(a: Any, b: Any) -> Any:
        if not np.isfinite(a).all():
            raise ValueError("not finite")
        if np.linalg.det(a) == 0:
            return np.zeros_like(b)
        return np.linalg.solve(a, b) + 1

    a, b = np.diag([1.0, 2, 4]), np.ones(3)
    with pytest.warns(EqsatWarning):
        np.testing.assert_allclose(f(a, b), np.linalg.solve(a, b) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(a * 0, b), b * 0)  # where the path taken last raises LinAlgError
        with pytest.raises(ValueError, match="not finite"):
            f(np.full((3, 3), np.inf), b)
        np.testing.assert_allclose(f(a * 2, b), np.linalg.solve(a * 2, b) + 1)


def test_many_branches_are_left_to_numpy() -> None:
    f = eqsat.optimize(lambda x: x[int(np.argmax(x)) :].sum(), **QUICK)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(10):
            x = np.zeros(10)
            x[n] = 3
            assert f(x) == 3
    texts = [str(w.message) for w in caught if issubclass(w.category, EqsatWarning)]
    assert "each of the branches" in texts[0] and "again and again" in texts[-1] and len(texts) == 2
    assert "again and again" in (f.explain(np.zeros(10)).plain or "")


def test_a_loop_until_convergence_is_left_to_numpy() -> None:
    def halve(x: Any) -> Any:
        while np.abs(x).max() > 1e-9:
            x = x * 0.5
        return x

    x = np.arange(4.0)
    f = eqsat.optimize(halve, **QUICK)
    with pytest.warns(EqsatWarning, match="NumPy runs the function"):
        np.testing.assert_array_equal(f(x), halve(x))


def test_a_branch_that_hangs_on_rounding() -> None:
    """The compiled sum may be on the other side of the branch than NumPy's: some branch is taken, and no call hangs."""
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    limit = x.sum()
    f = eqsat.optimize(lambda x: x * 2 if x.sum() > limit else x * 3, cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            got = f(x)
            assert np.array_equal(got, x * 2) or np.array_equal(got, x * 3)
