"""``optimize``: every kind of argument and result, options and their errors, threads, forks, nesting."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.compiled import Compiled
from eqsat.errors import OptionError, ShapeError, UnsupportedDTypeError
from eqsat.options import Options
from tests.sweeps import a_part

rng = np.random.default_rng(0)
Array = np.ndarray[Any, np.dtype[Any]]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def close(found: Any, expected: Any) -> None:
    """Equal in type and shape, and to 1e-5 of the largest value."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    finite = np.abs(expected[np.isfinite(expected)]).max(initial=0.0) if expected.dtype.kind == "f" else 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * finite)


# The decorator


def test_decorator_with_and_without_options() -> None:
    @eqsat.optimize
    def plain(x: Any) -> Any:
        """What it does."""
        return x + 1

    @eqsat.optimize()
    def empty(x: Any) -> Any:
        return x + 1

    @eqsat.optimize(threads=1, verify=False)
    def given(x: Any) -> Any:
        return x + 1

    x = normal(5)
    for f in (plain, empty, given, eqsat.optimize(lambda x: x + 1)):
        close(f(x), x + 1)
    assert plain.__name__ == "plain" and plain.__doc__ == "What it does."
    assert "plain(x" in repr(plain)


@dataclasses.dataclass
class Layer:
    w: Any
    b: Any
    slope: float = 0.5

    @eqsat.optimize
    def forward(self, x: Any) -> Any:
        y = x @ self.w + self.b
        return np.where(y > 0, y, self.slope * y)


def expected_forward(layer: Layer, x: Array) -> Any:
    y = x @ layer.w + layer.b
    return np.where(y > 0, y, layer.slope * y)


def test_methods_of_dataclasses() -> None:
    x = normal(4, 6)
    for slope in (0.5, 0.0):  # a static value: another program
        layer = Layer(normal(6, 3), normal(3), slope)
        close(layer.forward(x), expected_forward(layer, x).astype(np.float32))
    assert "forward" in str(layer.forward.explain(x))
    assert layer.forward.source(x)
    assert "Layer" in repr(layer.forward)


def test_method_of_another_object_is_refused_with_advice() -> None:
    class Model:
        @eqsat.optimize(strict=True)
        def forward(self, x: Any) -> Any:
            return x + 1

    with pytest.raises(TypeError, match="dataclass"):
        Model().forward(normal(3))


def test_wrong_calls_are_python_errors() -> None:
    f = eqsat.optimize(lambda x, y: x + y)
    x = normal(3)
    for args, kwargs in (((x,), {}), ((x, x, x), {}), ((x,), {"z": x}), ((x, x), {"y": x})):
        with pytest.raises(TypeError, match="argument"):
            f(*args, **kwargs)
    f(x, x)
    for args in ((x,), (x, x, x)):  # the quick way in refuses too
        with pytest.raises(TypeError, match="argument"):
            f(*args)
    with pytest.raises(OptionError, match="takes a function"):
        eqsat.optimize(3)  # type: ignore[call-overload]
    with pytest.raises(ShapeError, match="add"):
        f(normal(3), normal(4))


# Arguments and results


def test_nested_arguments_and_results() -> None:
    @eqsat.optimize
    def f(params: dict[str, Any], pair: tuple[Any, list[Any]], *rest: Any, scale: float = 1.0, **more: Any) -> Any:
        w, (a, (b, c)) = params["w"], pair
        return {
            "sum": a + b * scale,
            "layer": Layer(w, c),
            "rest": [r * 2 for r in rest],
            "more": (more["z"], None, "s"),
        }

    def plain(w: Array, a: Array, b: Array, c: Array, r: Array, z: Array) -> list[Array]:
        return [a + b * np.float32(2), w, c, r * 2, z]

    arrays = [normal(3) for _ in range(6)]
    w, a, b, c, r, z = arrays
    got = f({"w": w}, (a, [b, c]), r, scale=2.0, z=z)
    assert list(got) == ["sum", "layer", "rest", "more"]
    assert isinstance(got["layer"], Layer) and got["more"][1:] == (None, "s")
    found = [got["sum"], got["layer"].w, got["layer"].b, got["rest"][0], got["more"][0]]
    for one, other in zip(found, plain(w, a, b, c, r, z), strict=True):
        close(one, other)


def test_python_scalars_are_part_of_the_program() -> None:
    f = eqsat.optimize(lambda x, n, flag=True: x * n if flag else x)
    x = normal(4)
    for n in (2, 2.0, True, -0.0):
        close(f(x, n), x * n)
    assert _programs(f) == 4
    close(f(x, 3, flag=False), x)
    close(f(x, 3, False), x)
    close(f(np.arange(4), 2), np.arange(4) * 2)
    close(f(np.arange(4), 2.5), np.arange(4) * 2.5)


def test_defaults_keywords_and_positions_agree() -> None:
    w = normal(3)

    @eqsat.optimize
    def f(x: Any, y: Any = w, *, z: float = 2.0) -> Any:
        return x * y + z

    x = normal(3)
    close(f(x), x * w + np.float32(2))
    close(f(x, w), x * w + np.float32(2))
    close(f(y=w, x=x, z=3.0), x * w + np.float32(3))
    close(f(x), x * w + np.float32(2))


def test_captured_arrays_are_constants() -> None:
    table, bias = normal(10, 4), normal(4)
    f = eqsat.optimize(lambda ids: eqsat.asarray(table)[ids] + bias)
    ids = np.array([3, 0, 9, -1])
    close(f(ids), table[ids] + bias)


@pytest.mark.parametrize(
    "variant", ["fortran", "strided", "negative", "read-only", "byte-swapped", "misaligned", "subclass", "broadcast"]
)
def test_any_memory_layout(variant: str) -> None:
    x, y = normal(6, 6), normal(6, 6)
    layout(x, y)
    odd = _laid_out(x, variant)
    plain = np.array(odd, np.float32)
    for found, expected in zip(layout(odd, y), (plain * 2 + y, y.T), strict=True):
        close(found, expected)
    for found, expected in zip(layout(y, odd), (y * 2 + plain, plain.T), strict=True):
        close(found, expected)
    f = eqsat.optimize(lambda x, y: (x * 2 + y, y.T))  # the layout met first, and as a constant
    close(f(odd, odd)[0], plain * 3)
    close(eqsat.optimize(lambda x, w: x @ w, const="w")(y, odd), y @ plain)


@pytest.mark.parametrize("kind", [None, "quicksort", "mergesort", "heapsort", "stable", "S"])
@pytest.mark.parametrize("sort", [np.sort, np.argsort], ids=lambda f: f.__name__)
def test_sorting_gives_what_numpys_kind_gives(sort: Any, kind: Any) -> None:
    """Bit for bit: of equals, and zeros of both signs, the order that this kind has, whatever it is."""
    x = rng.integers(-1, 2, (20, 60)) * np.where(rng.random((20, 60)) < 0.5, 1.0, -1.0)
    x[3, ::7] = np.nan
    for array in (x, x.astype(np.float32), x[:, ::3], (x > 0).astype(int)):
        for axis in (0, 1, None):
            found = eqsat.optimize(lambda a, axis=axis: sort(a, axis=axis, kind=kind), cache=False)(array)
            assert found.tobytes() == sort(np.ascontiguousarray(array), axis=axis, kind=kind).tobytes()


def test_unknown_kinds_of_sorting_are_refused() -> None:
    with pytest.raises(ShapeError, match="kind must be 'quicksort'"):
        eqsat.optimize(lambda x: np.sort(x, kind="bubble"))(np.ones(3))
    with pytest.raises(ShapeError, match="can't be provided at the same time"):
        eqsat.optimize(lambda x: np.sort(x, kind="stable", stable=True))(np.ones(3))


@pytest.mark.parametrize("backend", ["numba_cpu", "numpy"])
@pytest.mark.parametrize("code", [">f4", ">f8", ">i4", ">i8", "<f8"])
def test_any_byte_order(backend: str, code: str) -> None:
    """Also where steps run through NumPy, which reduces and sorts in native order only."""
    x = np.arange(12.0).reshape(3, 4)[::-1]
    f = eqsat.optimize(lambda x: (x.sum(), x.mean(0), np.prod(x, 1), np.sort(x), x @ x.T), backend=backend)
    for found, expected in zip(f(x.astype(code)), f.fn(x.astype(np.dtype(code).newbyteorder("="))), strict=True):
        close(found, expected)
        assert found.dtype.isnative


@eqsat.optimize
def layout(x: Any, y: Any) -> Any:
    return x * 2 + y, y.T


def _laid_out(x: Array, variant: str) -> Any:
    match variant:
        case "fortran":
            return np.asfortranarray(x)
        case "strided":
            wide = np.zeros((12, 18), x.dtype)
            wide[::2, ::3] = x
            return wide[::2, ::3]
        case "negative":
            return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
        case "read-only":
            same = x.copy()
            same.flags.writeable = False
            return same
        case "byte-swapped":
            return x.astype(x.dtype.newbyteorder())
        case "misaligned":
            raw = np.zeros(x.nbytes + 1, np.uint8)
            view = raw[1:].view(x.dtype).reshape(x.shape)
            view[...] = x
            return view
        case "subclass":

            class Special(np.ndarray):
                pass

            return x.view(Special)
        case _:
            return np.broadcast_to(x[:1], x.shape)


def test_overlapping_inputs() -> None:
    f = eqsat.optimize(lambda x, y: x @ y + x)
    base = normal(9, 8)
    x, y = base[:8], base[1:]
    close(f(x, y), x @ y + x)
    close(f(x, x), x @ x + x)


@given(
    shape=st.sampled_from([(), (0,), (1,), (0, 3), (3, 0), (2, 3), (1, 1), (5, 1)]),
    other=st.sampled_from([(), (1,), (3,), (2, 1)]),
)
@settings(max_examples=a_part(12), deadline=None)
def test_zero_dimensional_and_empty(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    x, y = normal(*shape), normal(*other)
    try:
        expected = np.maximum(x * y, 0) + 1
    except ValueError:
        with pytest.raises(ShapeError):
            combine(x, y)
        return
    close(combine(x, y), expected)
    found = combine(x, y)
    assert isinstance(found, np.ndarray) == (expected.ndim > 0)  # 0-d results are NumPy scalars, as NumPy's


@eqsat.optimize
def combine(x: Any, y: Any) -> Any:
    return np.maximum(x * y, 0) + 1


def test_empty_reductions_and_products() -> None:
    f = eqsat.optimize(lambda x, w: (x @ w, x.sum(axis=1), x.sum(), np.concatenate([x, x])))
    x, w = normal(4, 0), normal(0, 3)
    for found, expected in zip(f(x, w), (x @ w, x.sum(axis=1), x.sum(), np.concatenate([x, x])), strict=True):
        close(found, expected)


def test_nan_and_infinity_propagate() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e38, 1e-38], np.float32)
    x, y = (g.astype(np.float32) for g in np.meshgrid(values, values))

    def fn(x: Any, y: Any) -> Any:
        return (
            x * 0,
            x - x,
            x / x,
            np.maximum(x, y),
            np.minimum(x, y),
            x * y - y * x,
            np.where(x > y, x, y),
            (x + y).sum(0),
        )

    f = eqsat.optimize(fn)
    with np.errstate(all="ignore"):
        for found, expected in zip(f(x, y), fn(x, y), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_results_are_fresh_arrays() -> None:
    constant = normal(3)

    @eqsat.optimize
    def f(x: Any, y: Any) -> Any:
        s = x + y
        return s, s, x, eqsat.asarray(constant), np.zeros(3, np.float32), x.T, s

    x, y = normal(3), normal(3)
    first, second = f(x, y), f(x, y)
    arrays = [*first, *second]
    for n, one in enumerate(arrays):
        assert one.flags.writeable and not any(np.shares_memory(one, given) for given in (x, y, constant))
        assert not any(np.shares_memory(one, other) for other in arrays[:n])
    kept = [a.copy() for a in second]
    for a in first:
        a[...] = 7
    for found, expected in zip(f(x, y), kept, strict=True):
        close(found, expected)


@pytest.mark.parametrize("size", [10, 200_000])
def test_results_survive_later_calls(size: int) -> None:
    f = eqsat.optimize(lambda x: x + 1)
    results = [(n, f(np.full(size, n, np.float32))) for n in range(6)]
    views = [(n, r[1:]) for n, r in results]
    del results
    for _ in range(6):
        f(np.full(size, -1, np.float32))
        assert all((v == m + 1).all() for m, v in views)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.bool_])
def test_element_types(dtype: Any) -> None:
    f = eqsat.optimize(lambda x, y: (x + y, x * y, x > y, (x * y).sum(), x.astype(np.float32) * np.float32(0.5)))
    x, y = (rng.integers(0, 2 if dtype is np.bool_ else 100, (4, 5)).astype(dtype) for _ in range(2))
    expected = (x + y, x * y, x > y, (x * y).sum(), x.astype(np.float32) * np.float32(0.5))
    for found, want in zip(f(x, y), expected, strict=True):
        close(found, want)


def test_mixed_types_promote_as_numpy() -> None:
    f = eqsat.optimize(lambda a, b, c, d: (a + b, b * c, c - d.astype(np.int64), a @ b.astype(np.float32), (a > 0) & d))
    a, b, c = normal(3, 3), normal(3, 3, dtype=np.float64), np.arange(9).reshape(3, 3)
    d = normal(3, 3) > 0
    expected = (a + b, b * c, c - d.astype(np.int64), a @ b.astype(np.float32), (a > 0) & d)
    for found, want in zip(f(a, b, c, d), expected, strict=True):
        close(found, want)


def test_refused_element_types() -> None:
    f = eqsat.optimize(lambda x: x + 1, strict=True)
    for bad in (np.zeros(3, "M8[s]"), np.array(["a"]), np.array([object()])):
        with pytest.raises(UnsupportedDTypeError, match="argument 'x'"):
            f(bad)


def test_new_shapes_and_types_compile_anew() -> None:
    f = eqsat.optimize(lambda x: x * 2 + 1)
    for x in (normal(3), normal(4), normal(2, 2), normal(3, dtype=np.float64), normal(3), normal(4)):
        close(f(x), x * 2 + 1)
    assert _programs(f) == 4


def test_index_out_of_range_raises_when_run() -> None:
    f = eqsat.optimize(lambda table, ids: table[ids] * 2)
    table, ids = normal(5, 3), np.array([0, 4, -5])
    close(f(table, ids), table[ids] * 2)
    for bad in (5, -6, 10**12):
        with pytest.raises(IndexError):
            f(table, np.array([0, bad, 1]))
    close(f(table, ids), table[ids] * 2)
    with pytest.raises(IndexError):
        eqsat.optimize(lambda table, ids: table[ids] * 3)(table, np.array([0, 5, 1]))


# const=


def test_constant_arguments_by_name_and_path() -> None:
    def fn(x: Any, params: Any, scale: Any) -> Any:
        return (x @ params["layers"][0].w + params["layers"][0].b) * scale

    x, scale = normal(4, 6), normal(3)
    params = {"layers": [Layer(normal(6, 3), normal(3))]}
    expected = fn(x, params, scale)
    for const in ("params", ("params['layers'][0].w",), ("params['layers']", "scale"), ["scale"]):
        f = eqsat.optimize(fn, const=const)
        close(f(x, params, scale), expected)
        close(f(x, params=params, scale=scale), expected)
        assert _programs(f) == 1


def test_constant_arguments_are_known_by_content() -> None:
    f = eqsat.optimize(lambda x, w: x @ w, const="w")
    x, w = normal(3, 4), normal(4, 5)
    close(f(x, w), x @ w)
    close(f(x, w.copy()), x @ w)
    close(f(x, np.asfortranarray(w)), x @ w)
    assert _programs(f) == 1
    other = normal(4, 5)
    close(f(x, other), x @ other)
    assert _programs(f) == 2
    close(f(x, w), x @ w)
    assert _programs(f) == 2


def test_calls_with_the_same_constants_are_direct_and_others_are_not_mixed_up() -> None:
    f = eqsat.optimize(lambda x, w: x @ w, const="w", threads=1)
    x, w, other = normal(3, 4), normal(4, 5), normal(4, 5)
    for again in (w, w, w, other, w, other, other, w.copy(), w):
        close(f(x, again), x @ again)
    assert _programs(f) == 2
    with pytest.raises(TypeError):
        f(x)
    close(f(normal(2, 4), w).shape, (2, 5))


def test_constant_changed_in_place_is_not_mixed_up() -> None:
    f = eqsat.optimize(lambda x, w, b: x @ w + b, const=("w", "b"))
    x, w, b = normal(3, 4), normal(4, 5), normal(5)
    before = x @ w + b
    close(f(x, w, b), before)
    w *= 2
    b *= 2
    close(f(x, w, b), before)  # documented: the same objects stand for what they were
    close(f(x, w.copy(), b.copy()), x @ w + b)


@pytest.mark.parametrize("backend", ["numba_cpu", "numpy"])
def test_a_constant_changed_in_place_is_old_everywhere(backend: str) -> None:
    """In a product, as an output, in a view, folded, and beside a constant that is new."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b, w, w[1:], w.T, w + 1, w.reshape(-1), np.sort(w, axis=0), b

    f = eqsat.optimize(fn, const=("w", "b"), backend=backend)
    x, w, b = normal(3, 4), normal(4, 5), normal(5)
    old_w, old_b = w.copy(), b.copy()

    def check(found: Any, w: Array, b: Array) -> None:
        for one, other in zip(found, fn(x, w, b), strict=True):
            close(one, other)

    check(f(x, w, b), old_w, old_b)
    check(f(x, w.copy(), b), old_w, old_b)  # the first array stands for it all the same
    w[:] = 7
    b[:] = 8
    check(f(x, w, b), old_w, old_b)
    check(f(x, w.copy(), b.copy()), w, b)
    check(f(x, w, b), old_w, old_b)
    check(f(x, old_w, old_b), old_w, old_b)
    assert _programs(f) == 2
    f.cache_clear()
    check(f(x, w, b), w, b)
    assert _programs(f) == 1


def _programs(f: Any) -> int:
    count: int = f.cache_info().currsize
    return count


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"thread": 2}, ["unknown option 'thread'", "did you mean 'threads'", "numerics", "backend"]),
        ({"backend": "cuda"}, ["cuda", "numba_cpu", "numpy"]),
        ({"disable": ("no-such-rule",)}, ["no-such-rule", "Valid:", "mul_one"]),
        ({"disable": 3}, ["disable"]),
        ({"numerics": "fast"}, ["'exact', 'reassociates', 'approximates'"]),
        ({"budget": -1}, ["budget", "at least 0"]),
        ({"budget": "1"}, ["budget"]),
        ({"budget": float("nan")}, ["budget", "nan"]),
        ({"budget": True}, ["budget"]),
        ({"budget": 10**400}, ["budget"]),
        ({"budget": -(10**5000)}, ["budget"]),
        ({"threads": 0}, ["threads", "positive"]),
        ({"threads": 10**6}, ["threads", "512"]),
        ({"threads": 10**5000}, ["threads"]),
        ({"threads": 2.0}, ["threads", "2.0"]),
        ({"threads": np.bool_(True)}, ["threads"]),
        ({"programs": 0}, ["programs", "positive"]),
        ({"programs": False}, ["programs"]),
        ({"verify": 1}, ["verify", "True or False"]),
        ({"cache": "no"}, ["cache", "True or False"]),
        ({"tune": True}, ["tune"]),
        ({"const": "weights"}, ["weights", "x", "w"]),
        ({"const": (1,)}, ["const"]),
    ],
)
def test_bad_options_list_the_valid_ones(options: dict[str, Any], words: Sequence[str]) -> None:
    with pytest.raises(OptionError) as caught:
        eqsat.optimize(lambda x, w: x @ w, **options)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_constant_path_that_names_nothing() -> None:
    f = eqsat.optimize(lambda x, w: x @ w["a"], const="w['b']")
    with pytest.raises(OptionError, match=r"w\['a'\]"):
        f(normal(2, 3), {"a": normal(3, 2)})


def test_numbers_of_numpy_are_options_like_any_other() -> None:
    given = Options(
        threads=np.int64(2), budget=np.float32(2), tune=np.uint8(3), programs=np.int32(4), verify=np.bool_(0)
    )
    assert given == Options(threads=2, budget=2.0, tune=3, programs=4, verify=False)
    assert [type(v) for v in (given.threads, given.budget, given.tune, given.verify)] == [int, float, int, bool]
    assert Options(budget=float("inf")).budget == float("inf")
    f = eqsat.optimize(lambda x: x + 1, threads=np.int64(1), budget=float("inf"))
    close(f(normal(3) * 0), normal(3) * 0 + 1)


def test_more_threads_than_cores() -> None:
    x, w = normal(64, 64), normal(64, 64)
    close(eqsat.optimize(lambda x, w: np.tanh(x @ w), threads=64)(x, w), np.tanh(x @ w))


def test_options_are_frozen_and_hashable() -> None:
    assert hash(Options()) == hash(Options(budget=60.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().threads = 3  # type: ignore[misc]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "mlp": (
        lambda x, w, b, v: np.maximum(x @ w + b, 0) @ v,
        [normal(33, 17), normal(17, 20), normal(20), normal(20, 7)],
    ),
    "softmax": (
        lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
        [normal(19, 37)],
    ),
    "chain": (lambda a, b, c: (a @ b) @ c, [normal(40, 30), normal(30, 50), normal(50, 2)]),
}


@pytest.mark.filterwarnings("ignore::eqsat.errors.BudgetWarning")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "options",
    [{"numerics": "exact"}, {"backend": "numpy"}, {"budget": 0.001}, {"verify": False, "cache": False}, {"threads": 1}],
    ids=str,
)
def test_options_never_change_results(name: str, options: dict[str, Any]) -> None:
    fn, args = PROGRAMS[name]
    close(eqsat.optimize(fn, **options)(*args), fn(*args))


@pytest.mark.usefixtures("own_cache")  # what it records would decide the nests of other tests
def test_tuning_gives_the_same_results() -> None:
    fn, args = PROGRAMS["chain"]
    close(eqsat.optimize(fn, tune=2)(*args), fn(*args))


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_change_results_by_rounding_alone_and_always_alike(name: str) -> None:
    """Nests for more threads may add in another order; which thread runs a share of the work is not seen."""
    fn, args = PROGRAMS[name]
    one, two = (eqsat.optimize(fn, threads=n) for n in (1, 2))
    for f in (one, two):
        first = f(*args)
        for _ in range(20):
            np.testing.assert_array_equal(f(*args), first)
    scale = np.abs(one(*args)).max(initial=1)
    np.testing.assert_allclose(two(*args), one(*args), rtol=1e-5, atol=1e-5 * scale)


def test_exact_numerics_rounds_products_before_they_are_added() -> None:
    """Other classes may add them unrounded, of which an infinity, and what cancels, would be left."""
    a = np.random.default_rng(0).standard_normal((64, 2))
    huge = np.array([[3e38, 3e38]] * 16, np.float32)
    f = eqsat.optimize(lambda a, b: (a * b).sum(axis=1), numerics="exact", strict=True)
    assert not f(a, np.stack([-a[:, 1], a[:, 0]], 1)).any()
    assert np.isnan(f(huge, np.array([[2, -2]] * 16, np.float32))).all()
    assert "accumulate" not in f.source()


def test_exact_numerics_keeps_the_rounding_of_elementwise_programs() -> None:
    def fn(x: Any, y: Any) -> Any:
        return ((x + y) * x - y) / (x * x + 1), np.sqrt(np.abs(x)) * 2 - x, x * 3 * y

    x, y = normal(50, 7), normal(50, 7)
    f = eqsat.optimize(fn, numerics="exact")
    for found, expected in zip(f(x, y), fn(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert _rules_used(f, x, y) <= {r.id for r in eqsat.rules.list("exact")}


def _rules_used(f: Any, *args: Any) -> set[str]:
    return set(f.compile(*args).report["search"]["rules"])


def test_rules_that_lose_a_nan_are_off_by_default() -> None:
    f = eqsat.optimize(lambda x: x * 0 + (x - x))
    x = np.array([np.nan, np.inf, 1.0], np.float32)
    np.testing.assert_array_equal(f(x), np.array([np.nan, np.nan, 0], np.float32))
    loose = {r.id for r in eqsat.rules.list()} - {r.id for r in eqsat.rules.list("reassociates")}
    assert loose and not loose & set(f.compile(x).report["search"]["matches"])


def test_disabled_rules_are_not_used() -> None:
    fn, args = PROGRAMS["chain"]
    used = _rules_used(eqsat.optimize(fn), *args)
    assert used
    f = eqsat.optimize(fn, disable=sorted(used))
    close(f(*args), fn(*args))
    assert not used & _rules_used(f, *args)
    assert not used & set(f.compile(*args).report["search"]["matches"])


# Threads, forks, nesting


def test_calls_from_many_threads() -> None:
    f = eqsat.optimize(lambda x, w: np.tanh(x @ w) + 1, threads=2)
    inputs = [(normal(8, 16), normal(16, 8)) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: [f(*pair) for _ in range(50)], inputs))
    for (x, w), results in zip(inputs, found, strict=True):
        for result in results:
            close(result, np.tanh(x @ w) + 1)
    assert _programs(f) == 1


def test_compiling_in_many_threads() -> None:
    f = eqsat.optimize(lambda x: x * 2 + 1)
    barrier = threading.Barrier(4)

    def call(n: int) -> Array:
        barrier.wait()
        result: Array = f(np.full(n % 2 + 3, n, np.float32))
        return result

    with ThreadPoolExecutor(4) as pool:
        for n, result in enumerate(pool.map(call, range(4))):
            close(result, np.full(n % 2 + 3, 2 * n + 1, np.float32))
    assert _programs(f) == 2


@eqsat.optimize(threads=2)
def affine(x: Any, w: Any) -> Any:
    return x @ w + 1


def _in_child(connection: Any, x: Array, w: Array, wide: Array) -> None:
    connection.send((affine(x, w), affine(wide, w)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_use() -> None:
    x, w, wide = normal(8, 16), normal(16, 8), normal(9, 16)
    affine(x, w)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with affine._lock:  # as if another thread were compiling at the moment of the fork
        child = context.Process(target=_in_child, args=(theirs, x, w, wide))
        child.start()
    assert ours.poll(60)
    known, new = ours.recv()
    child.join()
    close(known, x @ w + 1)
    close(new, wide @ w + 1)
    close(affine(x, w), x @ w + 1)


def test_optimized_functions_inside_others() -> None:
    @eqsat.optimize
    def inner(x: Any) -> Any:
        return x * 2

    @eqsat.optimize
    def outer(x: Any) -> Any:
        return inner(x + 1) + inner(x)

    x = normal(4)
    inner(x)
    close(outer(x), (x + 1) * 2 + x * 2)
    close(inner(x), x * 2)


def test_a_function_that_calls_itself_on_arrays_while_traced() -> None:
    weights = normal(3)

    @eqsat.optimize
    def f(x: Any) -> Any:
        return x + (0 if isinstance(x, np.ndarray) else f(weights)) if depth else x * 2

    depth = 0
    close(f(weights), weights * 2)
    g = eqsat.optimize(lambda x: x + f(weights))
    close(g(weights), weights * 3)


def test_errors_of_the_function_pass_and_leave_nothing() -> None:
    calls = []

    @eqsat.optimize(strict=True)
    def f(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("mine")
        return x + 1

    with pytest.raises(KeyError, match="mine"):
        f(normal(3))
    x = normal(3)
    close(f(x), x + 1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [1, 3, 16, 37])
@pytest.mark.parametrize("verify", [True, False])
def test_integers_to_negative_powers_raise_in_every_call(dtype: Any, size: int, verify: bool) -> None:
    """As NumPy: also where the first call, which is verified, had none. Lanes past the end do not count."""

    def power(x: Any, y: Any) -> Any:
        return x ** (y - 1), np.sum(x ** (y - 1))

    f = eqsat.optimize(power, verify=verify, threads=1)
    x = np.arange(1, size + 1, dtype=dtype)
    good = np.arange(size, dtype=dtype) % 4 + 1
    for got, want in zip(f(x, good), power(x, good), strict=True):
        np.testing.assert_array_equal(got, want)
    bad = good.copy()
    bad[size // 2] = 0
    for call in (power, f):
        with pytest.raises(ValueError, match=r"(?i)integers to negative integer powers are not allowed"):
            call(x, bad)
    np.testing.assert_array_equal(f(x, good)[0], power(x, good)[0])


def _powers(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    for _ in range(12):
        v = a @ v
        v = v / np.sqrt((v * v).sum())
    return v


def test_threads_are_used_where_they_save_more_than_waking_them_costs() -> None:
    """Barriers between the steps count, and a team that sleeps; one thread then runs kernels made for one."""

    def compiled(fn: Any, *args: np.ndarray, threads: int = 2) -> Compiled:
        return eqsat.optimize(fn, threads=threads, backend="numpy", verify=False).compile(*args)

    small, large = np.ones((64, 64), np.float32), np.ones((700, 700), np.float32)
    assert compiled(lambda x, y: x @ y, small, small).team == 1
    assert compiled(lambda x, y: x @ y, large, large).team == 2
    assert compiled(_powers, np.ones((50, 50)), np.ones(50)).team == 1
    assert compiled(lambda x: np.tanh(x) + 1, np.ones(1_000_000)).team == 2
    assert compiled(lambda x, y: x @ y, large, large, threads=1).team == 1
    nests = [
        [getattr(step, "nest", None) for step in compiled(lambda x, y: x @ y, small, small, threads=n).search().steps]
        for n in (1, 2)
    ]
    assert nests[0] == nests[1]


def spread(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return x.min(axis=-1), x.max(axis=-1), x.mean(axis=-1)


def waves(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.sin(x), np.cos(x)


@pytest.mark.parametrize(("function", "shape"), [(spread, (1000, 700)), (waves, (1 << 19,)), (waves, (3, 1 << 18))])
def test_several_results_of_one_pass_are_one_kernel(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    optimized = eqsat.optimize(function, threads=2)
    compiled = optimized.compile(x)
    assert len(compiled.search().steps) == 1
    for ours, exact in zip(optimized(x), function(x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6)
