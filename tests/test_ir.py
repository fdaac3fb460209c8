"""The op table: every row is complete, and its definition in index notation means what its reference computes."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.ir import build, types, views
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.interpret import run_kernel
from eqsat.ir.joins import PadAttrs, define_part, part_offsets
from eqsat.ir.kernel import Acc, Call, Kernel, Load, Operand
from eqsat.ir.node import ConstArray, Graph, topological
from eqsat.ir.sources import InputAttrs, IotaAttrs
from eqsat.ir.spec import make_spec
from eqsat.ir.table import OPS, Op, make, register
from eqsat.ir.types import (
    DTYPES,
    INTEGERS,
    DType,
    TensorType,
    bfloat16,
    bool_,
    dtype_of,
    float32,
    float64,
    int32,
    int64,
    row_major,
)
from eqsat.ir.views import ViewMap, compose, strided
from tests.sweeps import a_part

BY_KIND = {"float": (float32, float64), "int": INTEGERS, "bool": (bool_,)}
NUMBERS = (float32, float64, int32, int64)
HARD = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30)

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
full_shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


def array_of(t: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Random values of a type, a third of the floats from a list of hard ones."""
    if t.dtype == bool_:
        return rng.integers(0, 2, t.shape).astype(bool)
    if t.dtype.kind == "int":
        return rng.integers(-5, 6, t.shape).astype(t.dtype.numpy)
    values = rng.normal(0, 2, t.shape)
    hard = rng.choice(np.array(HARD), t.shape)
    return np.where(rng.random(t.shape) < 0.3, hard, values).astype(t.dtype.numpy)


def check_definition(op: str, types: list[TensorType], attrs: object, rng: np.random.Generator) -> None:
    """The kernel of a row gives its reference's values on random inputs of these types."""
    row = OPS[op]
    out = row.type_rule(types, attrs)
    arrays = [array_of(t, rng) for t in types]
    assert row.definition is not None
    kernel = row.definition(types, attrs)
    assert kernel.out.size == out.size and kernel.out.dtype == out.dtype
    assert [o.size for o in kernel.operands] == [t.size for t in types]
    got = np.full(out.size, 77).astype(out.dtype.numpy)
    with np.errstate(all="ignore"):
        want = np.asarray(row.reference(arrays, attrs))
        run_kernel(kernel, [a.reshape(-1) for a in arrays], got)
    assert want.shape == out.shape and want.dtype == out.dtype.numpy
    bound = 0.0 if out.dtype.kind != "float" else {32: 1e-5, 64: 1e-13}[out.dtype.bits]
    np.testing.assert_allclose(got.reshape(out.shape), want, rtol=bound, atol=bound, equal_nan=True)


MAPS = sorted(name for name, row in OPS.items() if row.kind == "map")
ARITY = {"where": 3, "cast": 1, "flushing_cast": 1, "wrap_index": 1, "add_n": 3}


def arity(name: str) -> int:
    if name in ARITY:
        return ARITY[name]
    for count in (1, 2):
        for dtype in (float64, bool_, int64):
            try:
                OPS[name].type_rule([TensorType((), dtype)] * count, None)
            except ValueError:
                continue
            return count
    raise AssertionError(f"no operand types fit {name}")


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_row_is_complete(name: str) -> None:
    row = OPS[name]
    assert row.name == name and (row.cost > 0 or name == "opaque")  # of which each call is measured
    if row.kind not in ("source", "opaque", "composite", "loop"):
        assert row.definition is not None
    if row.kind == "composite":
        assert row.expansion is not None and row.doc


def mistakes(row: Op) -> list[str]:
    """What a row of one float claims that its reference does not bear out."""

    def of(name: str, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(OPS[name].reference([x], None))

    rng = np.random.default_rng(0)
    x = np.sort(
        np.concatenate([rng.choice([-1.0, 1.0], 300) * 10.0 ** rng.uniform(-9, 9, 300), rng.uniform(-9, 9, 300)])
    )
    (low, high), (least, most) = row.range, row.domain
    with np.errstate(all="ignore"):
        y = np.asarray(row.reference([x], None))
    inside = (x > least) & (x < most)
    told = y[inside & np.isfinite(y)]
    scope = {"np": np, "scipy": scipy, "x": x}
    with np.errstate(all="ignore"):
        as_text = eval(row.call(["x"]), scope)
    wrong = {
        "domain": bool(np.isnan(y[inside]).any() or np.isfinite(y[~inside]).any()),
        "range": bool((told < low).any() or (told > high).any()),
        "text": not np.allclose(as_text, y, rtol=1e-15, equal_nan=True),
        "by": row.by is not None and not np.allclose(row.by(of, x[x > -1]), y[x > -1], rtol=1e-6, equal_nan=True),
        "tried": row.tried is not None and not (least <= row.tried[0] < row.tried[1] <= most),
        "odd": "odd" in row.traits and not np.array_equal(row.reference([-x], None), -y),
        "even": "even" in row.traits and not np.array_equal(row.reference([-x], None), y),
        "increasing": "increasing" in row.traits and bool((y[1:] < y[:-1]).any()),
    }
    if row.grows:  # which may be too little to see where it is flat
        seen = np.sort(rng.uniform(max(least, -3.0), min(most, 3.0), 500))
        values = np.asarray(row.reference([seen], None))
        wrong["grows"] = bool((values[1:] <= values[:-1]).any() or values[0] <= low or values[-1] >= high)
    return [claim for claim, is_wrong in wrong.items() if is_wrong]


UNARY = [row for row in OPS.values() if row.arity == 1 and "float" in row.kinds]


@pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name)
def test_what_a_row_says_of_its_function_holds(row: Op) -> None:
    assert not mistakes(row)


def test_what_a_row_says_wrongly_is_seen() -> None:
    def of(name: str, **claims: Any) -> list[str]:
        return mistakes(dataclasses.replace(OPS[name], **claims))

    assert of("log", domain=(-1, 8)) == ["domain", "tried"]
    assert of("sin", range=(0, 1)) == ["range"]
    assert of("tanh", text="np.sinh({0})") == ["text"]
    assert of("erf", by=lambda of, x: of("tanh", x)) == ["by"]
    assert of("cos", traits=frozenset({"odd", "increasing"}), grows=True) == ["odd", "increasing", "grows"]
    assert of("sin", traits=frozenset({"even"})) == ["even"]
    assert of("exp", range=(0.5, math.inf)) == ["range", "grows"]


@pytest.mark.parametrize("name", MAPS)
@given(shape=shapes, data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(12), deadline=None)
def test_elementwise_definitions(name: str, shape: tuple[int, ...], data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = arity(name)
    kinds = [d for group in BY_KIND.values() for d in group]
    dtype = data.draw(st.sampled_from(kinds))
    # Operands broadcast: each lacks some leading axes, and has extent 1 on some others.
    types = []
    for _ in range(count):
        lead = data.draw(st.integers(0, len(shape)))
        keep = [n if data.draw(st.booleans()) else 1 for n in shape[lead:]]
        types.append(TensorType(tuple(keep), dtype))
    attrs: object = None
    if name == "where":
        types[0] = TensorType(types[0].shape, bool_)
    elif name == "cast":
        attrs = data.draw(st.sampled_from(kinds))
    elif name == "flushing_cast":
        types = [TensorType(shape, bfloat16)]
    elif name == "wrap_index":
        types, attrs = [TensorType(shape, data.draw(st.sampled_from((int32, int64))))], 6
    elif name == "add_n":
        attrs = tuple(data.draw(st.sampled_from((1, -1))) for _ in types)
    try:
        OPS[name].type_rule(types, attrs)
    except ValueError:
        return  # not defined for this element type
    if name == "cast" and dtype.is_float and isinstance(attrs, DType) and attrs.kind == "int":
        return  # out of range it is undefined in C
    if name == "pow" and dtype.kind == "int":
        return  # NumPy refuses negative exponents; see below
    check_definition(name, types, attrs, rng)


def test_integer_power() -> None:
    t = TensorType((4,), int64)
    kernel = OPS["pow"].definition([t, t], None)  # type: ignore[misc]
    got = np.zeros(4, np.int64)
    run_kernel(kernel, [np.array([2, 3, -2, 0]), np.array([10, 0, 3, 0])], got)
    assert got.tolist() == [1024, 1, -8, 1]


def test_an_empty_space_takes_no_memory_whatever_its_other_axes() -> None:
    extents = (1 << 12, 1 << 12, 1 << 12, 0)
    one = Operand(float32, 0)
    kernel = Kernel(extents, 4, None, Load(0, 0, (0, 1, 1, 0), float32), Acc(float32), (one,), one, 0, (1, 1, 1, 0))
    run_kernel(kernel, [np.empty(0, np.float32)], np.empty(0, np.float32))


@st.composite
def view_maps(draw: Any) -> tuple[tuple[int, ...], ViewMap]:
    """A shape and a view of it made of a few of the constructors, composed where they compose."""
    shape = draw(full_shapes)
    map = views.identity(shape)
    for _ in range(draw(st.integers(1, 3))):
        now = map.shape
        kind = draw(st.sampled_from(("transpose", "slice", "broadcast", "reshape")))
        if kind == "transpose":
            step = views.transpose(now, draw(st.permutations(range(len(now)))))
        elif kind == "slice":
            starts, steps, sizes = [], [], []
            for n in now:
                start = draw(st.integers(0, n - 1)) if n else 0
                by = draw(st.sampled_from((1, 2, -1, -2)))
                room = 0 if n == 0 else len(range(start, n, by)) if by > 0 else len(range(start, -1, by))
                starts.append(start)
                steps.append(by)
                sizes.append(draw(st.integers(0, room)))
            step = views.slices(now, starts, steps, sizes)
        elif kind == "broadcast":
            step = views.broadcast(now, (draw(st.integers(1, 3)), *now))
        else:
            size = int(np.prod(now))
            split = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0] or [1]))
            step = views.reshape(now, (split, size // split) if size else now)
        both = compose(map, step)
        if both is not None:
            map = both
    return shape, map


@given(case=view_maps(), dtype=st.sampled_from((float32, int64, bool_)), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(150), deadline=None)
def test_view_definition(case: tuple[tuple[int, ...], ViewMap], dtype: DType, seed: int) -> None:
    shape, map = case
    check_definition("view", [TensorType(shape, dtype)], map, np.random.default_rng(seed))


@given(case=view_maps(), other=st.data())
@settings(max_examples=a_part(150), deadline=None)
def test_composed_views_equal_views_of_views(case: tuple[tuple[int, ...], ViewMap], other: st.DataObject) -> None:
    shape, first = case
    if 0 in first.shape:
        return
    second = views.transpose(first.shape, other.draw(st.permutations(range(len(first.shape)))))
    both = compose(first, second)
    if both is None:
        return
    x = np.arange(np.prod(shape)).reshape(shape)
    view = OPS["view"].reference
    np.testing.assert_array_equal(view([x], both), view([view([x], first)], second))


@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(80), deadline=None)
def test_contract_definition(data: st.DataObject, seed: int) -> None:
    labels = data.draw(st.lists(st.sampled_from("ijklmn"), unique=True, min_size=1, max_size=4))
    extents = {x: data.draw(st.integers(0, 3)) for x in labels}
    roles = {x: data.draw(st.sampled_from(("batch", "row", "col", "sum"))) for x in labels}
    a = data.draw(st.permutations([x for x in labels if roles[x] != "col"]))
    b = data.draw(st.permutations([x for x in labels if roles[x] != "row"]))
    out = data.draw(st.permutations([x for x in labels if roles[x] != "sum"]))
    spec = make_spec(a, b, out)
    dtype = data.draw(st.sampled_from((float64, int32, int64)))
    rng = np.random.default_rng(seed)
    types = [TensorType(tuple(extents[x] for x in part), dtype) for part in (a, b)]
    arrays = [rng.integers(-4, 5, t.shape).astype(dtype.numpy) for t in types]
    want = np.einsum(f"{''.join(a)},{''.join(b)}->{''.join(out)}", *arrays)
    np.testing.assert_array_equal(OPS["contract"].reference(arrays, spec), want)
    got = np.zeros(want.size, dtype.numpy)
    kernel = OPS["contract"].definition(types, spec)  # type: ignore[misc]
    run_kernel(kernel, [x.reshape(-1) for x in arrays], got)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("name", sorted(name for name, row in OPS.items() if row.kind == "reduce"))
@given(shape=shapes, data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(30), deadline=None)
def test_reduction_definitions(name: str, shape: tuple[int, ...], data: st.DataObject, seed: int) -> None:
    dtype = data.draw(st.sampled_from((*NUMBERS, bool_)))
    axes = tuple(i for i in range(len(shape)) if data.draw(st.booleans()))
    t = TensorType(shape, dtype)
    if not axes:
        return
    try:
        OPS[name].type_rule([t], axes)
    except ValueError:
        return
    check_definition(name, [t], axes, np.random.default_rng(seed))


@given(shape=full_shapes.filter(bool), data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(40), deadline=None)
def test_pad_definition(shape: tuple[int, ...], data: st.DataObject, seed: int) -> None:
    widths = tuple((data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape)
    t, attrs = TensorType(shape, float32), PadAttrs(widths, 0.5)
    x = array_of(t, np.random.default_rng(seed))
    want = np.pad(x, widths, constant_values=0.5)
    np.testing.assert_array_equal(OPS["pad"].reference([x], attrs), want)
    # The kernel stores the tensor into a buffer that holds the value already.
    got = np.full(want.size, 0.5, np.float32)
    run_kernel(OPS["pad"].definition([t], attrs), [x.reshape(-1)], got)  # type: ignore[misc]
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@given(data=st.data(), shape=full_shapes.filter(bool))
@settings(max_examples=a_part(40), deadline=None)
def test_concat_definition(data: st.DataObject, shape: tuple[int, ...]) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    types = []
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(0, 3))
        types.append(TensorType((*shape[:axis], size, *shape[axis + 1 :]), int64))
    arrays = [np.arange(t.size).reshape(t.shape) + 100 * i for i, t in enumerate(types)]
    out = OPS["concat"].type_rule(types, axis)
    got = np.full(out.size, -1)
    for part, offset in enumerate(part_offsets(types, axis)):
        run_kernel(define_part(types, out, part, offset), [a.reshape(-1) for a in arrays], got)
    np.testing.assert_array_equal(got.reshape(out.shape), np.concatenate(arrays, axis=axis))


@given(data=st.data(), shape=full_shapes.filter(bool), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=a_part(40), deadline=None)
def test_gather_definition(data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    index_shape = data.draw(shapes)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    index = rng.integers(0, shape[axis], index_shape).astype(data.draw(st.sampled_from((np.int32, np.int64))))
    types = [TensorType(x.shape, float64), TensorType(index.shape, dtype_of(index.dtype))]
    want = np.take(x, index, axis=axis)
    np.testing.assert_array_equal(OPS["gather"].reference([x, index], axis), want)
    got = np.zeros(want.size)
    run_kernel(OPS["gather"].definition(types, axis), [x.reshape(-1), index.reshape(-1)], got)  # type: ignore[misc]
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("dtype", [int32, int64])
def test_iota_definition(dtype: DType) -> None:
    check_definition("iota", [], IotaAttrs(5, dtype), np.random.default_rng(0))


@pytest.mark.parametrize("name", sorted(name for name, row in OPS.items() if row.kind == "composite"))
def test_composites_equal_their_formulas(name: str) -> None:
    from scipy import special

    rng = np.random.default_rng(3)
    x, scale, shift = rng.normal(size=(4, 6)), rng.normal(size=6), rng.normal(size=6)
    centered = x - x.mean(-1, keepdims=True)
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    formulas: dict[str, tuple[list[np.ndarray], object, np.ndarray]] = {
        "softmax": ([x], 1, special.softmax(x, axis=1)),
        "log_softmax": ([x], 0, special.log_softmax(x, axis=0)),
        "layer_norm": ([x, scale, shift], 1e-5, centered / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift),
        "rms_norm": ([x, scale], 1e-6, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale),
        "gelu": ([x], None, x * special.ndtr(x)),
        "gelu_tanh": ([x], None, 0.5 * x * (1 + tanh)),
        "silu": ([x], None, x * special.expit(x)),
    }
    arrays, attrs, want = formulas[name]
    node = make(name, [build.const(a) for a in arrays], attrs)
    (got,) = evaluate_nodes([node], {})
    np.testing.assert_allclose(got, want, rtol=1e-12)


WRONG: list[tuple[str, list[TensorType], object]] = [
    ("add", [TensorType((2,), float32), TensorType((3,), float32)], None),
    ("add", [TensorType((2,), float32), TensorType((2,), float64)], None),
    ("add", [TensorType((2,), bool_), TensorType((2,), bool_)], None),
    ("exp", [TensorType((2,), int32)], None),
    ("where", [TensorType((), float32), TensorType((), float32), TensorType((), float32)], None),
    ("wrap_index", [TensorType((2,), float32)], 3),
    ("add_n", [TensorType((2,), float32)], (1, 1)),
    ("view", [TensorType((0,), float32)], strided((2,), (1,))),
    ("contract", [TensorType((2, 3), float32), TensorType((4, 5), float32)], make_spec("ik", "kj", "ij")),
    ("reduce_sum", [TensorType((2,), float32)], (1,)),
    ("reduce_max", [TensorType((0,), float32)], (0,)),
    ("argmax", [TensorType((2, 2), float32)], (0, 1)),
    ("concat", [TensorType((2,), float32), TensorType((2, 2), float32)], 0),
    ("pad", [TensorType((2,), float32)], PadAttrs(((-1, 0),), 0)),
    ("gather", [TensorType((2,), float32), TensorType((2,), float32)], 0),
    ("cumsum", [TensorType((2,), float32)], 1),
    ("softmax", [TensorType((2,), int32)], 0),
    ("layer_norm", [TensorType((2, 3), float32), TensorType((2,), float32), TensorType((3,), float32)], 1e-5),
]


@pytest.mark.parametrize(("op", "types", "attrs"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)])
def test_type_rules_refuse(op: str, types: list[TensorType], attrs: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        OPS[op].type_rule(types, attrs)


def test_a_wrong_definition_is_caught() -> None:
    """Negative control: the checker sees a definition that adds where the reference subtracts."""

    def definition(types: Any, attrs: object) -> Kernel:
        (t,) = types
        load = Load(0, 0, row_major(t.shape), t.dtype)
        body = Call("add", (load, load), t.dtype)
        return Kernel(
            t.shape, t.ndim, None, body, Acc(t.dtype), (Operand(t.dtype, t.size),),
            Operand(t.dtype, t.size), 0, row_major(t.shape),
        )  # fmt: skip

    sub: Callable[..., np.ndarray] = lambda arrays, attrs: arrays[0] - arrays[0]  # noqa: E731
    register(Op("wrong_for_test", "map", lambda types, attrs: types[0], sub, definition))
    try:
        with pytest.raises(AssertionError):
            check_definition("wrong_for_test", [TensorType((3,), int64)], None, np.random.default_rng(1))
    finally:
        del OPS["wrong_for_test"]


def test_incomplete_rows_are_refused() -> None:
    rule: Any = lambda types, attrs: types[0]  # noqa: E731
    with pytest.raises(ValueError, match="needs a definition"):
        register(Op("half", "map", rule, lambda arrays, attrs: arrays[0]))
    with pytest.raises(ValueError, match="needs an expansion"):
        register(Op("half", "composite", rule, lambda arrays, attrs: arrays[0]))
    with pytest.raises(ValueError, match="already"):
        register(OPS["add"])


def test_nodes_are_interned_by_content() -> None:
    x = build.input_node(0, TensorType((2,), float32))
    assert build.call("add", x, build.scalar(1, x)) is build.call("add", x, build.scalar(1.0, x))
    assert build.scalar(1, float32) is not build.scalar(1, float64)
    assert build.scalar(0.0, float32) is not build.scalar(-0.0, float32)
    assert ConstArray(np.array([np.nan])) == ConstArray(np.array([np.nan]))
    graph = Graph((x,), (build.call("add", x, x),))
    assert graph.key() == Graph((x,), (build.call("add", x, x),), ("other",)).key()
    assert topological(graph.outputs)[0] is x and isinstance(x.attrs, InputAttrs)


def test_element_types() -> None:
    assert dtype_of(">f4") == float32 and dtype_of(float) == float64 and dtype_of(bool) == bool_
    for bad in (object, np.clongdouble, str, np.longdouble, "datetime64[s]"):
        with pytest.raises(TypeError, match="not supported"):
            dtype_of(bad)


def test_bfloat16_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    types._bfloat16.cache_clear()
    with pytest.raises(TypeError, match=re.escape("pip install 'eqsat[bfloat16]'")):
        _ = DTYPES["bfloat16"].numpy


def test_a_kernel_keeps_its_hash_in_one_process_only() -> None:
    import pickle

    from tests.kernel_groups import padded

    kernel = padded(6, 7).stages[0].kernel
    assert hash(kernel) == hash(kernel) and "_hash" in vars(kernel)
    other = pickle.loads(pickle.dumps(kernel))
    assert "_hash" not in vars(other) and other == kernel and hash(other) == hash(kernel)
