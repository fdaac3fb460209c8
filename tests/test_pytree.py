"""Arguments and results of any nesting, by position and by name; keys; const inputs; captured arrays."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.errors import OptionError, UnsupportedDTypeError
from eqsat.frontends.pytree import ArgSpec, TracedArgument
from eqsat.frontends.trace import Traced, run_by_reference, trace
from eqsat.frontends.tracer import TracedArray
from eqsat.ir.evaluate import evaluate
from eqsat.ir.node import Node
from tests.sweeps import a_part


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any
    name: str = "layer"
    size: Any = dataclasses.field(init=False, default=None)


def key_of(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return ArgSpec(fn).flatten(args, kwargs)[1]


def test_arguments_by_name_and_default() -> None:
    def f(a: Any, b: Any = 2, *rest: Any, c: Any, d: Any = None, **more: Any) -> Any:
        return {"a": a + b, "rest": [r * c for r in rest], "d": d, "more": {k: -v for k, v in more.items()}}

    x, y = np.arange(3.0), np.ones(3)
    for args, kwargs in (
        ((x,), {"c": y}),
        ((x, y, x, 3.0), {"c": 2}),
        ((x, 1), {"c": y, "d": "text", "z": x, "w": y}),
        ((), {"a": x, "c": y, "b": y}),
    ):
        want, got = f(*args, **kwargs), run_by_reference(f, args, kwargs)
        assert repr(got) == repr(want)
    names = trace(f, (x, y, x), {"c": y, "z": x}).graph.names
    assert names == ("a", "b", "rest[0]", "c", "z")
    with pytest.raises(TypeError, match=r"f\(\).*missing.*'c'"):
        trace(f, (x,), {})
    with pytest.raises(TypeError, match=r"<lambda>\(\).*too many"):
        trace(lambda a: a, (x, y), {})
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        trace(lambda a: a, (x,), {"q": y})


def test_a_default_that_is_skipped_stays_the_functions() -> None:
    def f(a: Any, b: Any = 2.0, c: Any = 3.0) -> Any:
        return a + b * c

    x = np.arange(3.0)
    np.testing.assert_array_equal(run_by_reference(f, (x,), {"c": x}), f(x, c=x))


def test_names_of_leaves() -> None:
    def f(model: Any, x: Any) -> Any:
        return x

    x = np.ones(2)
    model = {"layers": [Layer(x, x), Layer(x, None)], "head": Pair(x, (x,)), 3: x}
    traced = trace(f, (model, x), {})
    assert traced.graph.names == (
        "model['layers'][0].w", "model['layers'][0].b", "model['layers'][1].w",
        "model['head'][0]", "model['head'][1][0]", "model[3]", "x",
    )  # fmt: skip


def test_const_by_name_or_prefix() -> None:
    def f(x: Any, layers: Any, scale: Any = None) -> Any:
        return x

    x = np.ones(2)
    layers = [{"w": x, "b": x}, {"w": x, "b": x}]

    def const(*names: str) -> tuple[int, ...]:
        return trace(f, (x, layers), {}, const=names).const

    assert const("layers") == (1, 2, 3, 4)
    assert const("layers[1]", "x") == (0, 3, 4)
    assert const("layers[0]['b']") == (2,)
    assert const("scale") == () == const()  # an argument that holds no array now
    with pytest.raises(OptionError, match=r"layer'.*x, layers\[0\]\['w'\]"):
        const("layer")


def trees() -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda n, d, v: np.full(n, v).astype(d),
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
        st.sampled_from(("f4", "f8", "i4", "i8", "?")),
        st.integers(-3, 3),
    )
    scalars = st.one_of(st.integers(-3, 3), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=3))
    leaves = st.one_of(arrays, arrays, scalars, st.builds(np.float32, st.floats(-2, 2)))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.builds(Pair, inner, inner),
            st.builds(Layer, inner, inner),
            st.dictionaries(st.text(max_size=2), inner, max_size=3),
            st.dictionaries(st.integers(), inner, max_size=2).map(OrderedDict),
        ),
        max_leaves=8,
    )


def assert_same_tree(got: Any, want: Any) -> None:
    if isinstance(want, (np.ndarray, np.generic)):
        assert isinstance(got, (np.ndarray, np.generic)) and got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)
        return
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_same_tree(g, w)
    elif dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            assert_same_tree(getattr(got, field.name), getattr(want, field.name))
    else:
        assert got == want


@given(tree=trees())
@settings(max_examples=a_part(150), deadline=None)
def test_any_tree_goes_in_and_out(tree: Any) -> None:
    got = run_by_reference(lambda t: {"out": t, "again": (t,)}, (tree,), {})
    assert_same_tree(got, {"out": tree, "again": (tree,)})


@given(tree=trees())
@settings(max_examples=a_part(80), deadline=None)
def test_leaves_of_a_call_match_the_graphs_inputs(tree: Any) -> None:
    def f(t: Any, x: Any) -> Any:
        return x

    spec = ArgSpec(f)
    leaves, key = spec.flatten((tree, np.ones(2)), {})
    traced = trace(f, (tree, np.ones(2)), {})
    assert traced.key == key and hash(key) == hash(traced.key)
    assert [node.shape for node in traced.graph.inputs] == [np.shape(leaf) for leaf in leaves]
    assert len(traced.graph.names) == len(leaves)


def test_keys_tell_programs_apart() -> None:
    def f(x: Any, option: Any = None) -> Any:
        return x

    x = np.ones((2, 3), "f4")
    same = [
        (key_of(f, x), key_of(f, np.zeros((2, 3), "f4"))),
        (key_of(f, x), key_of(f, x=x)),
        (key_of(f, x), key_of(f, x.T.copy().T)),
        (key_of(f, x), key_of(f, x.astype(">f4"))),
        (key_of(f, x, float("nan")), key_of(f, x, float("nan"))),
        (key_of(f, np.float32(1)), key_of(f, np.float32(2))),
    ]
    for a, b in same:
        assert a == b
    keys = [
        key_of(f, x), key_of(f, x[:1]), key_of(f, x.astype("f8")), key_of(f, x, 1), key_of(f, x, 1.0),
        key_of(f, x, True), key_of(f, x, 0.0), key_of(f, x, -0.0), key_of(f, x, "a"), key_of(f, x, x), key_of(f, [x]),
        key_of(f, (x,)), key_of(f, {"a": x}), key_of(f, {"b": x}), key_of(f, Pair(x, x)), key_of(f, (x, x)),
        key_of(f, Layer(x, x)), key_of(f, x, np.float32), key_of(f, x, slice(1, 2)), key_of(f, x, None),
        key_of(f, np.float32(1)), key_of(f, np.array(1, "f4")),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)


class HasArray:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


class HasDLPack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_other_arrays_and_refused_arguments() -> None:
    x = np.arange(3.0)
    for other in (HasArray(x), HasDLPack(x), x.astype(">f8"), x[::-1], np.float64(3)):
        got = run_by_reference(lambda a: a * 2, (other,), {})
        want = np.asarray(other.array if hasattr(other, "array") else other) * 2
        np.testing.assert_array_equal(got, want)
    for bad in (x.astype(np.clongdouble), np.array(["a"]), np.array([None]), x.astype(np.longdouble)):
        with pytest.raises(UnsupportedDTypeError, match=r"argument 'p\[0\]': element type .* is not supported"):
            trace(lambda p: p[0], ([bad],), {})
    with pytest.raises(TypeError, match="argument 'p' is a set"):
        trace(lambda p: p, ({1},), {})


def test_calls_with_traced_arrays_are_told() -> None:
    seen: list[bool] = []

    def outer(x: Any) -> Any:
        with pytest.raises(TracedArgument):
            ArgSpec(lambda a, b: a).flatten((1, [x]), {})
        seen.append(True)
        return x

    trace(outer, (np.ones(2),), {})
    assert seen


def constants(traced: Traced) -> list[Node]:
    return [n for n in traced.graph.nodes() if n.op == "const"]


def test_captured_arrays_are_constants_by_content() -> None:
    table = np.random.default_rng(0).normal(size=(3, 4))
    again = table.copy()
    traced = trace(lambda x: (x @ table + 1) @ again.T @ again, (np.ones((2, 3)),), {})
    assert sum(n.shape == (3, 4) for n in constants(traced)) == 1
    # Uniform arrays and ranges are not kept as data.
    plain = trace(lambda x: x + np.zeros((50, 50)) + np.arange(50.0) * 0 + np.arange(50), (np.ones((50, 50)),), {})
    assert all(n.type.size == 1 for n in constants(plain))
    zeros = trace(lambda x: x * np.array([0.0, -0.0]), (np.ones(2),), {})
    (got,) = evaluate(zeros.graph, [np.ones(2)])
    assert np.signbit(got).tolist() == [False, True]


def test_results_that_are_not_traced() -> None:
    def f(x: Any) -> Any:
        return x, 3, np.arange(2), None, "a", np.float32(2)

    got = run_by_reference(f, (np.ones(2),), {})
    assert got[1] == 3 and got[3] is None and got[4] == "a" and got[5] == np.float32(2)
    np.testing.assert_array_equal(got[2], [0, 1])


def test_zero_dimensional_results_are_numpy_scalars() -> None:
    x = np.ones((2, 2), "f4")
    got = run_by_reference(lambda x: x.sum(), (x,), {})
    assert type(got) is np.float32
    assert type(run_by_reference(lambda x: {"a": x.mean()}, (x,), {})["a"]) is np.float32


def test_graphs_do_not_depend_on_the_hash_seed() -> None:
    import subprocess
    import sys

    code = (
        "import numpy as np\nfrom eqsat.frontends.trace import trace\n"
        "f = lambda a, b: np.einsum('ij,jk,kl->il', a, b, a) + {'x': a}['x'].sum() * np.where(a > 0, a, b)\n"
        "print(trace(f, (np.ones((3, 3)), np.ones((3, 3))), {}).graph.key())"
    )
    keys = set()
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        keys.add(run.stdout)
    assert len(keys) == 1


def test_a_traced_array_keeps_to_its_trace() -> None:
    kept: list[TracedArray] = []
    trace(lambda x: kept.append(x), (np.ones(2),), {})
    with pytest.raises(TypeError, match="outside the call that made it"):
        trace(lambda x: x + kept[0], (np.ones(2),), {})
    with pytest.raises(TypeError, match="outside the call that made it"):
        _ = kept[0] + 1


def test_masked_arrays_are_refused() -> None:
    spec = ArgSpec(lambda x: x)
    with pytest.raises(UnsupportedDTypeError, match="masked"):
        spec.flatten((np.ma.masked_equal(np.arange(3.0), 1.0),), {})


def test_matrices_and_arrays_with_rules_of_their_own_are_refused() -> None:
    """``*`` of a matrix is a product of matrices: taken for an array it would give another number."""

    class Measured(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
            return "with a unit"

    class Named(np.ndarray):
        name = "plain in all but name"

    def add_to(captured: Any) -> Any:
        return lambda a: np.add(a, captured)

    x = np.arange(4.0).reshape(2, 2)
    matrix = np.ones((2, 2)).view(np.matrix)
    for odd in (matrix, x.view(Measured)):
        with pytest.raises(UnsupportedDTypeError, match="argument 'a'"):
            run_by_reference(lambda a: a * a, (odd,), {})
        with pytest.raises(UnsupportedDTypeError, match="captured"):
            run_by_reference(add_to(odd), (x,), {})
    with pytest.raises(UnsupportedDTypeError, match="captured array is a masked array"):
        run_by_reference(lambda a: a + np.ma.masked_array(x, mask=x > 1), (x,), {})
    assert np.array_equal(run_by_reference(lambda a: a * a, (x.view(Named),), {}), x * x)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("generator", lambda x: (row for row in x)),
        ("map", lambda x: map(np.exp, x)),
        ("dict_values", lambda x: {"a": x}.values()),
        ("set", lambda x: {1, 2}),
        ("object", lambda x: object()),
        ("Element", lambda x: x[eqsat.axis(3)]),
    ],
)
def test_results_that_cannot_be_made_again_are_refused(kind: str, make: Any) -> None:
    """An iterator is spent by the first call; an object may hold traced arrays."""
    for fn, path in ((make, "result"), (lambda x: {"a": [make(x)]}, r"result\['a'\]\[0\]")):
        with pytest.raises(TypeError, match=rf"{path} is a {kind}"):
            run_by_reference(fn, (np.arange(3.0),), {})


def test_defaultdicts_keep_their_factory() -> None:
    given_to = defaultdict(lambda: 7, a=np.arange(3.0))
    got = run_by_reference(lambda d: (d, d["a"] * d["missing"]), (given_to,), {})
    assert got[0]["other"] == 7
    assert np.array_equal(got[1], 7 * np.arange(3.0))
    assert key_of(lambda d: 0, defaultdict(int)) != key_of(lambda d: 0, defaultdict(list))
