"""Lowering, grouping, regions and memory: every transformation leaves the program's results alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.buffers import PAGE, PLACED
from eqsat.extract.terms import Read, Term
from eqsat.ir import Graph, build
from eqsat.ir.composite import composite, expand
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.interpret import run_group
from eqsat.ir.kernel import KernelGroup, Stage
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.serialize import nodes_from_json, nodes_to_json
from eqsat.ir.siblings import are_siblings
from eqsat.ir.spec import make_spec
from eqsat.ir.types import TensorType, float32, int64
from eqsat.plan.group import PRODUCTS, Grouping, Piece
from eqsat.plan.lower import lower
from eqsat.plan.memory import PLACES, Lifetime, assign
from eqsat.plan.placed import PlacedGroup, Price
from eqsat.plan.policy import ScheduledPrice
from eqsat.plan.regions import cut
from eqsat.plan.stages import _Sharing
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, TINY
from tests.sweeps import a_part

rng = np.random.default_rng(0)


def arg(index: int, *shape: int) -> Node:
    return build.input_node(index, TensorType(shape, float32))


def weight(*shape: int) -> Node:
    return build.const(rng.standard_normal(shape).astype(np.float32))


class Fewest:
    """The price of groups where only their number counts, and those with more than ``products`` are not wanted."""

    def __init__(self, products: int = 99) -> None:
        self.products = products

    def prepare(self, groups: Iterable[KernelGroup]) -> None:
        pass

    def seconds(self, group: KernelGroup) -> float:
        return 1.0 if sum(stage.kernel.is_contraction for stage in group.stages) <= self.products else math.inf

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        return 0.0


class Program:
    """A graph whose contractions and reductions (and outputs) are kernels, with everything else inlined."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self.ids: dict[Node, int] = {}
        order = topological(outputs)
        self.stored = set(outputs) | {n for n in order if n.op in ("contract", "reduce_sum", "reduce_max")}
        self.outputs = outputs
        self.pieces: list[Piece] = []
        for node in order:
            if node in self.stored and node.op != "input":
                term = self.term(node, node)
                assert isinstance(term, Term)
                low = lower(term)
                assert low is not None, node
                for kernel, given_reads in zip(low.kernels, low.reads, strict=True):
                    reads = tuple(r.eclass for r in given_reads)
                    self.pieces.append(Piece(self.id(node), kernel, reads, len(low.kernels) == 1))

    def id(self, node: Node) -> int:
        return self.ids.setdefault(node, len(self.ids))

    def term(self, node: Node, root: Node) -> Term | Read:
        leaf = node.op == "input" or (node.op == "const" and node.type.size > 1)
        if leaf or (node in self.stored and node is not root):
            return Read(self.id(node), node.type, node.op == "const")
        children = tuple(self.term(c, root) for c in node.inputs)
        return Term(self.id(node), node.op, node.attrs, node.type, children)

    def values(self) -> tuple[dict[int, np.ndarray], dict[Node, np.ndarray]]:
        buffers, bound = {}, {}
        for node, number in self.ids.items():
            if node.op == "input":
                integers = rng.integers(0, 8, node.shape)
                bound[node] = integers if node.dtype == int64 else rng.standard_normal(node.shape).astype(np.float32)
                buffers[number] = bound[node].reshape(-1)
            elif isinstance(node.attrs, ConstArray):
                buffers[number] = node.attrs.array.reshape(-1)
        return buffers, bound

    def check(self, price: Price | None = None) -> list[PlacedGroup]:
        """Run the groups and compare with the reference."""
        stored = frozenset(self.id(o) for o in self.outputs)
        groups = [g for g in Grouping(self.pieces, stored, price or Fewest()).run() if isinstance(g, PlacedGroup)]
        buffers, bound = self.values()
        for placed in groups:
            for tensor, operand in zip(placed.tensors, placed.group.operands, strict=True):
                buffers.setdefault(tensor, np.zeros(operand.size, operand.dtype.numpy))
            run_group(placed.group, [buffers[t] for t in placed.tensors])
        for node, exact in zip(self.outputs, evaluate_nodes(self.outputs, bound, double=True), strict=True):
            np.testing.assert_allclose(buffers[self.id(node)].reshape(node.shape), exact, rtol=3e-4, atol=1e-5)
        return groups


def heads(x: Node, n: int) -> Node:
    batch, length, width = x.shape
    return build.transpose(build.reshape(x, (batch, length, n, width // n)), (0, 2, 1, 3))


def attention(q: Node, k: Node, v: Node, n: int) -> Node:
    scores = build.matmul(heads(q, n), build.transpose(heads(k, n), (0, 1, 3, 2)))
    weights = expand(composite("softmax", [build.call("mul", scores, build.scalar(0.3, scores))], 3))
    mixed = build.matmul(weights, heads(v, n))
    return build.reshape(build.transpose(mixed, (0, 2, 1, 3)), q.shape)


def test_equal_layers_share_their_groups_and_no_group_has_too_many_products() -> None:
    x = arg(0, 4, 8)
    for layer in range(2 * PRODUCTS):
        x = build.call("tanh", build.matmul(x, arg(1 + layer, 8, 8)))
    groups = Program([x]).check()
    counts = [sum(stage.kernel.is_contraction for stage in placed.group.stages) for placed in groups]
    assert sum(counts) == 2 * PRODUCTS and max(counts) == PRODUCTS
    pieces = Program([x]).pieces
    alone = [item for item in Grouping(pieces, frozenset(), None).run() if isinstance(item, PlacedGroup)]
    assert len({id(placed.group) for placed in alone}) == len({piece.kernel for piece in pieces}) < len(alone)


def test_softmax_is_one_group_that_computes_its_exponentials_once() -> None:
    for axis in (1, 2):
        (placed,) = Program([expand(composite("softmax", [arg(0, 4, 6, 8)], axis))]).check()
        costly = [s for s in placed.group.stages if "exp" in repr(s.kernel)]
        assert len(costly) == 1


def test_stages_that_share_a_costly_index_are_compiled_and_compute_it_once() -> None:
    """Index expressions are inside loads: they are found, and replaced, like any other part."""
    table, ids = arg(0, 30, 8), build.input_node(1, TensorType((12,), int64))
    index = build.call("floor_divide", build.call("wrap_index", ids, attrs=30), build.const(np.array(2)))
    rows = build.gather(table, index, 0)
    norm = build.call("sqrt", build.reduce("reduce_sum", build.call("square", rows), (1,), keepdims=True))
    program = Program([build.call("div", rows, norm)])
    (placed,) = program.check()
    divided = [stage for stage in placed.group.stages if "floor_divide" in repr(stage.kernel)]
    assert len(placed.group.stages) > 2 and len(divided) == 1


def test_parts_that_differ_in_the_sign_of_a_zero_are_not_one() -> None:
    x = arg(0, 6, 8)
    zeros = (build.const(np.array(0.0, np.float32)), build.const(np.array(-0.0, np.float32)))
    infinite = [build.call("div", build.call("exp", x), zero) for zero in zeros]
    total = build.reduce("reduce_max", infinite[0], (1,), keepdims=True)
    Program([build.call("add", build.call("sign", infinite[1]), build.call("sign", total))]).check()


def test_sharing_costs_about_as_much_as_the_stages_are_long() -> None:
    """An equation of state: the same long polynomial in the sum and in what is divided by it."""

    def looked_up(degree: int) -> int:
        x = p = arg(0, 6, 8)
        for _ in range(degree):
            p = build.call("div", build.call("mul", p, x), build.call("sqrt", x))
        total = build.reduce("reduce_sum", p, (1,), keepdims=True)
        stages = [Stage(piece.kernel, piece.reads, None) for piece in Program([build.call("div", p, total)]).pieces]
        sharing = _Sharing([replace(s, sources=(0,) * len(s.sources)) for s in stages if s.kernel is not None], 0)
        calls = 0
        number = sharing._number

        def counted(key: object) -> int:
            nonlocal calls
            calls += 1
            return number(key)

        sharing._number = counted  # type: ignore[method-assign]
        assert len(list(sharing.forms())[-1]) == len(stages) + 1
        return calls

    assert looked_up(80) < 2.5 * looked_up(40)


def test_groups_never_need_one_another() -> None:
    """Each half of a ladder reads the other's product: as two groups neither could run first."""
    x, y, z, scale = arg(0, 40, 33), arg(1, 40, 33), arg(2, 40, 33), arg(3, 40)
    one = build.matmul(x, build.transpose(x, (1, 0)))
    two = build.matmul(y, build.transpose(z, (1, 0)))
    normed = expand(composite("rms_norm", [build.call("erf", one), scale], 1e-5))
    top = build.call("maximum", two, normed)
    bottom = build.call("minimum", two, build.call("expm1", build.call("tanh", one)))

    for outputs in ([top, bottom], [bottom, top], [bottom, top, one]):
        Program(outputs).check(Fewest(products=1))


def test_axes_that_are_contiguous_stay_inside_a_block() -> None:
    """Softmax over the first axis: rows of the group would be single elements, far apart."""
    assert len(Program([expand(composite("softmax", [arg(0, 4, 48)], 0))]).check()) > 1
    product = build.matmul(arg(0, 32, 64), weight(64, 16))
    (placed,) = Program([build.call("exp", product)]).check()
    assert placed.group.shared == 1


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
def test_reductions_of_the_same_data_are_one_group(axes: tuple[int, ...]) -> None:
    """Several results of one pass: none of them needs another."""
    x = arg(0, 6, 40, 3)
    results = [build.reduce(kind, x, axes) for kind in ("reduce_max", "reduce_sum", "reduce_min")]
    (placed,) = Program(results).check()
    assert len(placed.group.outputs) == 3 and are_siblings(placed.group)
    assert len([t for n, t in enumerate(placed.tensors) if n not in placed.group.outputs]) == 1


def test_reductions_that_walk_other_axes_or_need_one_another_are_no_siblings() -> None:
    x, y = arg(0, 6, 41), arg(1, 6, 41)
    total = build.reduce("reduce_sum", x, (0, 1))
    centred = build.call("sub", x, build.reshape(total, (1, 1)))
    for results in (
        [total, build.reduce("reduce_max", x, (0,))],
        [total, build.reduce("reduce_max", y, (0, 1))],
        [total, build.reduce("reduce_sum", build.call("mul", centred, centred), (0, 1))],
    ):
        assert not any(are_siblings(placed.group) for placed in Program(results).check())
    both = [total, build.reduce("reduce_max", build.call("mul", x, y), (0, 1))]
    (placed,) = Program(both).check()
    assert are_siblings(placed.group)


@pytest.mark.parametrize(("size", "groups"), [(4096, 1), (6 * 97, 1), (1009, 2), (96, 2)])
def test_one_long_axis_is_cut_to_be_shared(size: int, groups: int) -> None:
    """Runs of a divisor's length; a prime number of elements, or few, have none."""
    x = arg(0, size)
    found = Program([build.call("sin", x), build.call("cos", x)]).check()
    assert len(found) == groups and sum(len(placed.group.outputs) for placed in found) == 2


def test_shifted_reads_of_one_tensor_may_share_rows() -> None:
    x = arg(0, 9, 64)
    upper, lower = build.take_range(x, 0, 0, 8), build.take_range(x, 0, 1, 9)
    (placed,) = Program([build.call("exp", upper), build.call("tanh", lower)]).check()
    assert len(placed.group.outputs) == 2


def test_siblings_with_a_path_between_them_stay_apart() -> None:
    """The second reads x and, through another group, the first: as one group they would need that one both ways."""
    x = arg(0, 8, 24)
    rows = build.reduce("reduce_max", x, (1,), keepdims=True)
    columns = build.reduce("reduce_sum", build.call("mul", x, rows), (0,), keepdims=True)
    Program([build.reduce("reduce_sum", build.call("mul", x, columns), (1,)), rows]).check()


class ByCount:
    """Groups priced by how many stages they have."""

    def __init__(self, *prices: float) -> None:
        self.prices = prices

    def prepare(self, groups: Iterable[KernelGroup]) -> None:
        pass

    def seconds(self, group: KernelGroup) -> float:
        return self.prices[min(len(group.stages), len(self.prices)) - 1]

    def least(self, group: KernelGroup, parts: Sequence[KernelGroup]) -> float:
        return 0.0


def test_three_may_pay_where_two_do_not() -> None:
    softmax = [expand(composite("softmax", [arg(0, 6, 40)], 1))]
    assert len(Program(softmax).check(ByCount(1.0, 2.5, 2.7, 1.5))) == 1
    assert len(Program(softmax).check(ByCount(1.0, 2.5, 3.5, 4.5))) == 3


def test_groups_form_where_their_rows_stay_in_a_cache() -> None:
    softmax = [expand(composite("softmax", [arg(0, 256, 1 << 13)], 1))]
    large, small = (ScheduledPrice(cpu_target(machine)) for machine in (DESK, TINY))
    assert len(Program(softmax).check(large)) == 1
    assert len(Program(softmax).check(small)) == 2, "rows of 32 KB do not stay: only computing exp once saves"


def test_two_that_save_little_are_merged_in_the_end() -> None:
    """Half a hundredth of the smaller one; not a thousandth."""
    softmax = [expand(composite("softmax", [arg(0, 6, 40)], 1))]
    assert len(Program(softmax).check(ByCount(1.0, 1.995, 9.0, 9.0))) == 2
    assert len(Program(softmax).check(ByCount(1.0, 1.999, 9.0, 9.0))) == 3


def test_layer_norm_and_its_input_are_one_group() -> None:
    x, scale = arg(0, 5, 16), weight(16)
    total = build.call("add", x, arg(1, 5, 16))
    normed = expand(composite("layer_norm", [total, scale, scale], 1e-5))
    assert len(Program([normed]).check()) == 1
    assert len(Program([normed, total]).check()) <= 2


def test_attention_is_one_group_over_batch_heads_and_rows() -> None:
    q, k, v = arg(0, 2, 10, 12), arg(1, 2, 14, 12), arg(2, 2, 14, 12)
    (placed,) = Program([attention(q, k, v, 3)]).check()
    assert [placed.group.stages[0].kernel.extents[a] for a in range(placed.group.shared)] == [2, 3, 10]
    for stage in placed.group.stages:
        assert stage.kernel.extents[: placed.group.shared] == (2, 3, 10)


def test_split_heads_are_strides_of_the_projection() -> None:
    y = build.call("add", build.matmul(arg(0, 4, 6, 8), weight(8, 12)), weight(12))
    (placed,) = Program([heads(y, 3)]).check()
    product, copy = placed.group.stages
    assert product.result is None and copy.kernel.combine is None
    assert len(copy.kernel.extents) >= 3


def test_grouping_keeps_dependencies_through_outside_kernels() -> None:
    """x → sum → (a reduction over the other axis) → product with x: no group may contain a path that leaves it."""
    x = arg(0, 6, 8)
    rows = build.reduce("reduce_sum", x, (1,), keepdims=True)
    y = build.call("mul", x, rows)
    columns = build.reduce("reduce_sum", y, (0,), keepdims=True)
    Program([build.call("add", build.call("mul", y, columns), rows)]).check()


@settings(max_examples=a_part(60), deadline=None)
@given(st.integers(0, 10**6))
def test_random_programs_survive_lowering_and_grouping(seed: int) -> None:
    draw = random.Random(seed)
    pool = [arg(0, 4, 6), arg(1, 6, 8), arg(2, 4, 1), weight(6)]
    for _ in range(draw.randint(2, 9)):
        x = draw.choice(pool)
        match draw.randrange(7):
            case 0:
                pool.append(build.call(draw.choice(["tanh", "square", "neg"]), x))
            case 1:
                y = draw.choice(pool)
                try:
                    pool.append(build.call(draw.choice(["add", "mul"]), x, y))
                except ValueError:
                    continue
            case 2 if x.type.ndim:
                axis = draw.randrange(x.type.ndim)
                kind = draw.choice(["reduce_sum", "reduce_max"])
                pool.append(build.reduce(kind, x, (axis,), keepdims=draw.random() < 0.6))
            case 3 if x.type.ndim:
                order = list(range(x.type.ndim))
                draw.shuffle(order)
                pool.append(build.transpose(x, order))
            case 4:
                y = draw.choice(pool)
                if x.type.ndim and y.type.ndim and x.shape[-1] == y.shape[max(0, y.type.ndim - 2)]:
                    pool.append(build.matmul(x, y))
            case 5 if x.type.ndim and x.shape[0] > 1:
                pool.append(build.take_range(x, 0, 1, x.shape[0]))
            case 6 if x.type.ndim == 2 and x.shape[0] % 2 == 0:
                pool.append(build.reshape(x, (2, x.shape[0] // 2, x.shape[1])))
    outputs = [n for n in pool[4:] if n.op != "input"][-2:]
    limited = [build.call("tanh", o) for o in outputs]
    if limited and all(_lowers(limited)):
        Program(limited).check()


def _lowers(outputs: Sequence[Node]) -> list[bool]:
    try:
        Program(outputs)
    except AssertionError:
        return [False]
    return [True]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gathers_through_views(axis: int) -> None:
    x = arg(0, 4, 6, 8)
    index = build.const(np.array([[1, -1], [0, 2]]))
    node = build.gather(build.transpose(x, (2, 0, 1)), index, axis)
    Program([build.call("add", node, node)]).check()


def test_concat_and_pad_store_parts() -> None:
    x, y = arg(0, 4, 6), arg(1, 4, 3)
    joined = build.concat([build.call("exp", x), y], 1)
    assert len(Program([joined]).pieces) == 2
    Program([joined]).check()
    Program([build.pad(x, [(1, 0), (2, 3)], 7.0)]).check()


def test_what_has_no_common_cut_is_not_lowered() -> None:
    x = arg(0, 6, 4)
    merged = build.reshape(build.transpose(x, (1, 0)), (24,))
    node = build.take_range(merged, 0, 1, 8)
    program = Program.__new__(Program)
    program.ids, program.stored = {}, set()
    term = program.term(node, node)
    assert isinstance(term, Term)
    assert lower(term) is None


def test_spec_of_einsum_lowered() -> None:
    spec = make_spec("bqhd", "bkhd", "bhqk")
    Program([build.contract(spec, arg(0, 2, 5, 3, 4), arg(1, 2, 7, 3, 4))]).check()


def block(x: Node, *, width: int = 16) -> Node:
    """A transformer block with weights of its own."""
    q, k, v = (build.matmul(x, weight(width, width)) for _ in range(3))
    mixed = attention(q, k, v, 2)
    x = build.call("add", x, build.matmul(mixed, weight(width, width)))
    x = composite("layer_norm", [x, weight(width), weight(width)], 1e-5)
    inner = composite("gelu", [build.call("add", build.matmul(x, weight(width, 32)), weight(32))])
    y = build.call("add", x, build.matmul(inner, weight(32, width)))
    return composite("layer_norm", [y, weight(width), weight(width)], 1e-5)


def test_equal_blocks_are_equal_regions() -> None:
    x = h = arg(0, 1, 6, 16)
    for _ in range(12):
        h = block(h)
    regions = cut(Graph((x,), (h,)), frozenset())
    assert len(regions) >= 12
    assert len({r.key() for r in regions}) <= 5
    # The regions in order compute the program.
    values = {x: rng.standard_normal(x.shape).astype(np.float32)}
    exact = evaluate_nodes([h], values)[0]
    for region in regions:
        bound = {
            inner: values[outer] if outer in values else evaluate_nodes([outer], {})[0]
            for inner, outer in zip(region.graph.inputs, region.inputs, strict=True)
        }
        results = evaluate_nodes(region.graph.outputs, bound)
        values.update(zip(region.outputs, results, strict=True))
    np.testing.assert_allclose(values[h], exact, rtol=1e-5)


def test_kernels_share_what_they_read_in_the_same_layout() -> None:
    """Whichever operand it is to them: two copies of NasRNN's weights took the last cache, and a quarter more time."""
    w = rng.standard_normal((64, 64)).astype(np.float32)

    def twice(x: Any, y: Any) -> Any:
        first = np.tanh(x @ w)
        return np.tanh(first + y + np.exp(first * y) @ w)

    x, y = rng.standard_normal((2, 1, 64)).astype(np.float32)
    program = eqsat.optimize(twice, check_speed=False).compile(x, y)
    steps = program.executable.emitted["steps"]
    places = [
        place for step in steps for place, name in enumerate(step["tensors"]) if name in program.executable._known
    ]
    assert len(places) == 2 and len(set(places)) == 2  # one constant, a different operand of two kernels
    assert program.executable.nbytes < 2 * w.nbytes
    np.testing.assert_allclose(program(x, y), twice(x, y), rtol=1e-5, atol=1e-5)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9), st.integers(0, 4)), max_size=12))
def test_arena_keeps_living_buffers_apart(buffers: list[tuple[int, int, int]]) -> None:
    lives = {n: Lifetime(size, first, first + more) for n, (size, first, more) in enumerate(buffers)}
    offsets, total = assign(lives)
    assert total <= sum(-(-life.nbytes // 64) * 64 for life in lives.values())
    for a, one in lives.items():
        assert offsets[a] % 64 == 0 and offsets[a] + one.nbytes <= total
        for b, other in lives.items():
            if a < b and one.first <= other.last and other.first <= one.last:
                assert offsets[a] + one.nbytes <= offsets[b] or offsets[b] + other.nbytes <= offsets[a]


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_large_buffers_have_places_of_their_own_in_a_page(buffers: list[tuple[int, int, int]]) -> None:
    """Else loads of one wait for stores to another, or to a result, which begins where arenas do."""
    lives = {n: Lifetime(PLACED // 32 * size, first, first + more) for n, (size, first, more) in enumerate(buffers)}
    offsets, total = assign(lives)
    large = [n for n, life in lives.items() if life.nbytes >= PLACED and life.first < life.last]
    assert total <= sum(life.nbytes + PAGE for life in lives.values())
    for a, one in lives.items():
        for b, other in lives.items():
            if a < b and one.first <= other.last and other.first <= one.last:
                assert offsets[a] + one.nbytes <= offsets[b] or offsets[b] + other.nbytes <= offsets[a]
    places = Counter(offsets[n] % PAGE for n in large)
    assert 0 not in places and len(places) == min(len(large), PLACES)
    assert not places or max(places.values()) - min(places.values()) <= 1
    ends = sorted([0, *places, PAGE])
    assert all(b - a >= 9 * 64 for a, b in pairwise(ends))
    scratch = Lifetime(1 << 30, 10, 10)  # of one step, and the first to be placed
    assert assign({**lives, 100: scratch})[0][100] == 0


@pytest.mark.parametrize("large", [1e9, -3e20, 1.0])
def test_what_cancels_in_a_sum_is_added_first(large: float) -> None:
    """The order of a canonical sum is no order of size: a log softmax of one element swallowed what was added to it."""
    x, y = np.full(9, large, np.float32), np.linspace(-1, 1, 9, dtype=np.float32)
    for fn in (lambda x, y: np.cos(y) + (x - x), lambda x, y: (x - x) - y, lambda x, y: y - (x * y - x * y)):
        found = eqsat.optimize(fn, verify=False)(x, y)
        np.testing.assert_allclose(found, fn(x, y), rtol=1e-6)


def test_nodes_survive_json() -> None:
    import json

    x = arg(0, 4, 6)
    inf = build.const(np.array([np.nan, np.inf, -0.0], np.float32))
    big = weight(10, 10)
    nodes = [
        build.pad(block(arg(1, 1, 6, 16)), [(0, 1), (0, 0), (2, 0)], float("-inf")),
        build.concat([build.cast(x, int64), build.call("wrap_index", build.const(np.zeros((4, 6), int)), attrs=9)], 0),
        inf,
        build.transpose(build.gather(x, build.iota(3), 0), (1, 0)),
        big,
    ]
    table = {n.attrs.digest: n.attrs for n in topological(nodes) if isinstance(n.attrs, ConstArray)}
    data = json.loads(json.dumps(nodes_to_json(nodes)))
    assert nodes_from_json(data, table.__getitem__) == nodes
    # Arrays that the reader does not have, such as those that the search folded, are in the data themselves.
    folded = [build.const(np.arange(100).reshape(4, 25)), build.const(rng.standard_normal((9, 9)) > 0), *nodes]
    data = json.loads(json.dumps(nodes_to_json(folded, table)))
    assert nodes_from_json(data, table.__getitem__) == folded
