"""Extraction: choice problems against brute force, and programs that are well-formed, right and deterministic."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.cost.calibration import ELEMENTWISE
from eqsat.cost.machine import Level, Machine
from eqsat.cost.roofline import Roofline, roofline_of
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import ENode, SaturatedEGraph, SaturationReport
from eqsat.extract import select as selection_of
from eqsat.extract.candidates import Candidates
from eqsat.extract.pairs import add_pairs
from eqsat.extract.select import ExtractionError, extract
from eqsat.extract.streams import Stream
from eqsat.extract.terms import Read, Selection, Term
from eqsat.extract.walks import in_blocks, turned
from eqsat.ir import build, views
from eqsat.ir.composite import composite, expand
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.interpret import run_kernel
from eqsat.ir.kernel import unique
from eqsat.ir.node import Node, topological
from eqsat.ir.sources import InputAttrs
from eqsat.ir.spec import make_spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import DType, TensorType, float32, float64, int8, int64
from eqsat.plan.lower import lower
from eqsat.plan.place import describe
from eqsat.rules import select
from tests.sweeps import a_part
from tests.wellformed import MalformedError, check_kernel, check_selection

RATES = Roofline(
    fma32=2e-11, fma64=4e-11, levels=((32e3, 2e11), (1e6, 8e10), (3e7, 3e10), (float("inf"), 1e10)), step=5e-7
)


# E-graphs by hand


class Builder:
    """An e-graph from nodes: one class per node, to which equal nodes can be added."""

    def __init__(self, constants: tuple[int, ...] = ()) -> None:
        self.constants = constants
        self.of: dict[Node, int] = {}
        self.classes: dict[int, list[ENode]] = {}
        self.types: dict[int, TensorType] = {}
        self.const: set[int] = set()

    def enode(self, node: Node) -> ENode:
        return ENode(node.op, node.attrs, tuple(self.of[i] for i in node.inputs))

    def add(self, *nodes: Node) -> None:
        for node in topological(nodes):
            if node in self.of:
                continue
            enode = self.enode(node)
            c = len(self.classes)
            self.of[node], self.classes[c], self.types[c] = c, [enode], node.type
            given_now = isinstance(node.attrs, InputAttrs) and node.attrs.index in self.constants
            if given_now or node.op == "const" or (enode.children and self.const.issuperset(enode.children)):
                self.const.add(c)
            if OPS[node.op].kind == "composite":
                self.equal(node, expand(node))

    def equal(self, node: Node, other: Node) -> None:
        """Put ``other``'s e-node into the class of ``node``."""
        self.add(*other.inputs)
        enode = self.enode(other)
        if enode not in self.classes[self.of[node]]:
            self.classes[self.of[node]].append(enode)

    def finish(self, *outputs: Node) -> SaturatedEGraph:
        classes = {c: tuple(nodes) for c, nodes in self.classes.items()}
        out = tuple(self.of[o] for o in outputs)
        return SaturatedEGraph(classes, self.types, frozenset(self.const), out, SaturationReport())


def egraph_of(*outputs: Node, constants: tuple[int, ...] = ()) -> SaturatedEGraph:
    builder = Builder(constants)
    builder.add(*outputs)
    return builder.finish(*outputs)


def inputs_of(egraph: SaturatedEGraph) -> frozenset[int]:
    return frozenset(
        c for c, nodes in egraph.classes.items() if c not in egraph.const and any(n.op == "input" for n in nodes)
    )


def arg(index: int, *shape: int, dtype: DType = float32) -> Node:
    return build.input_node(index, TensorType(shape, dtype))


def can_lower(term: Term) -> bool:
    return lower(term) is not None


def text(term: Term | Read) -> str:
    if isinstance(term, Read):
        return f"{term.eclass}"
    return f"{term.op}({','.join(text(c) for c in term.children)})"


def ops(term: Term | Read) -> list[str]:
    return [] if isinstance(term, Read) else [term.op, *(op for child in term.children for op in ops(child))]


def run_selection(egraph: SaturatedEGraph, selection: Selection, arrays: dict[int, np.ndarray]) -> list[np.ndarray]:
    """The outputs, kernel by kernel in index notation. ``arrays`` by input index."""
    values: dict[int, np.ndarray] = {}
    for c, nodes in egraph.classes.items():
        for node in nodes:
            if isinstance(node.attrs, InputAttrs):
                values[c] = arrays[node.attrs.index]
    for term in selection.constants:
        if term.op != "input":
            given = [values[r.eclass] for r in term.reads()]
            values[term.eclass] = OPS[term.op].reference(given, term.attrs).astype(term.type.dtype.numpy)
    for term in selection.kernels:
        if OPS[term.op].kind == "opaque":
            values[term.eclass] = OPS[term.op].reference([values[r.eclass] for r in term.reads()], term.attrs)
            continue
        lowered = lower(term)
        assert lowered is not None
        out = np.zeros(term.type.size, term.type.dtype.numpy)
        for kernel, reads in zip(lowered.kernels, lowered.reads, strict=True):
            run_kernel(kernel, [np.ascontiguousarray(values[r.eclass]).reshape(-1) for r in reads], out)
        values[term.eclass] = out.reshape(term.type.shape)
    return [values[o] for o in selection.outputs]


# Kernels


def kernels(egraph: SaturatedEGraph, **options: object) -> list[Term]:
    return list(extract(egraph, RATES, lowers=can_lower, seconds=10.0, **options)[0].kernels)  # type: ignore[arg-type]


def test_windows_read_one_stored_tensor_instead_of_computing_it_each() -> None:
    """Of which each window alone costs more stored: the choice of all of them at once is tried."""
    x, index = arg(0, 600, 600), arg(1, 600, dtype=int64)
    y = build.gather(build.gather(x, index, 0), index, 1)
    found = [build.slices(y, divmod(start, 3), (1, 1), (598, 598)) for start in range(9)]
    while len(found) > 1:
        one, two, *rest = found
        found = [*rest, build.call("maximum", one, two)]
    terms = kernels(egraph_of(*found))
    assert sorted(ops(term).count("gather") for term in terms) == [0, 1, 1]


def test_rows_that_windows_share_are_computed_once() -> None:
    """Of windows of three rows three of six for four, of three columns all: neighbours in a row share no vector."""
    x = arg(0, 64, 4096)
    y = build.call("exp", x)
    slots = []
    for axis in range(2):
        sizes = [(62, 4096), (64, 4094)][axis]
        parts = [build.slices(y, (start, 0) if axis == 0 else (0, start), (1, 1), sizes) for start in range(3)]
        egraph = egraph_of(build.call("maximum", build.call("maximum", *parts[:2]), parts[2]))
        candidates = Candidates(egraph, replace(RATES, step=1.0))
        candidates.run()
        (whole,) = (s for s in candidates.streams[egraph.outputs[0]] if not s.needs and not s.is_read)
        slots.append((whole.slots / whole.type.size - 2 * RATES.slots("maximum")) / RATES.slots("exp"))
    assert slots == [pytest.approx(1.5), pytest.approx(3.0)]


def test_bias_and_gelu_join_the_matrix_product() -> None:
    x, w, b = arg(0, 512, 384), arg(1, 384, 1536), arg(2, 1536)
    y = composite("gelu", [build.call("add", build.matmul(x, w), b)])
    (kernel,) = kernels(egraph_of(y, constants=(1, 2)))
    assert set(ops(kernel)) == {"mul", "contract", "add", "erf", "const"}
    check_kernel(kernel)


def test_a_shared_product_is_stored_once() -> None:
    x, w = arg(0, 512, 512), arg(1, 512, 512)
    p = build.matmul(x, w)
    y, z = build.matmul(p, w), build.reduce("reduce_sum", p, (1,))
    stored = kernels(egraph_of(y, z))
    assert len(stored) == 3
    assert sum(op == "contract" for k in stored for op in ops(k)) == 2


@pytest.mark.parametrize("first", ["", "exp", "div", "sort"])
def test_a_costly_function_with_several_users_is_stored_once(first: str) -> None:
    """Of bodies that attract one another: for one of three forces alone it would be cheaper to compute it again. Also
    where all of them read something else that costs much."""
    place, mass = arg(0, 300, 3, dtype=float64), arg(1, 300, 1, dtype=float64)
    given: dict[str, list[Node]] = {
        "exp": [place],
        "div": [place, build.call("add", place, build.scalar(3.0, float64))],
    }
    if first:
        place = make("sort", [place], 0) if first == "sort" else build.call(first, *given[first])
    axes = [build.take_range(place, 1, n, n + 1) for n in range(3)]
    apart = [build.call("sub", build.transpose(x, (1, 0)), x) for x in axes]
    squares = [build.call("square", d) for d in apart]
    r2 = build.call("add", build.call("add", *squares[:2]), build.call("add", squares[2], build.scalar(0.01, float64)))
    weight = build.call("pow", r2, build.scalar(-1.5, float64))
    forces = [build.matmul(build.call("mul", d, weight), mass) for d in apart]
    egraph = saturate([build.concat(forces, 1)], rules=select("reassociates", ()), nodes=2000, seconds=20.0)
    rates = replace(RATES, functions={"sqrt": 6.8, "div": 3.8, "pow": 160.0})
    stored = extract(egraph, rates, lowers=can_lower, seconds=10.0)[0].kernels
    assert sum(op == "sqrt" for kernel in stored for op in ops(kernel)) == 1


def test_softmax_is_three_kernels_that_share_the_exponential_or_not() -> None:
    x = arg(0, 256, 1000)
    stored = kernels(egraph_of(composite("softmax", [x], 1)))
    assert [k.op for k in stored].count("reduce_max") == 1
    assert len(stored) in (3, 4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_class_has_a_kernel(axis: int) -> None:
    """Reductions with kept axes lie in memory as those without do, and are not read themselves."""
    x = arg(0, 8, 8, 8, 1, dtype=float64)
    out = composite("log_softmax", [build.call("tanh", x)], axis)
    egraph = saturate([out], rules=select("reassociates", ()), nodes=2000, seconds=20.0)
    for step in (0.0, 5e-7, 1e-3):
        candidates = Candidates(egraph, replace(RATES, step=step))
        candidates.run()
        computed = [c for c in candidates.order if c not in candidates.inputs | egraph.const]
        assert all(candidates.pool[c] for c in computed)


def test_one_row_reads_small_known_weights_in_panels() -> None:
    """Rows of a whole matrix have their sums in memory between them; those of few columns stay in registers."""
    x, w = arg(0, 1, 256), arg(1, 256, 2048, dtype=int8)
    product = build.matmul(x, build.cast(w, float32))
    shapes = {}
    for disabled in ((), ("small_weights_in_panels",)):
        rules = select("reassociates", disabled)
        (kernel,) = kernels(saturate([product], rules=rules, const=frozenset({w}), nodes=2000, seconds=20.0))
        while not isinstance(kernel, Read) and kernel.op != "cast":
            kernel = kernel.children[-1]  # type: ignore[assignment]
        shapes[disabled] = kernel.type.shape
    assert shapes == {(): (32, 256, 64), ("small_weights_in_panels",): (256, 2048)}


def test_elementwise_chains_are_one_kernel_and_fusion_can_be_off() -> None:
    x = arg(0, 100_000)
    y = build.call("sqrt", build.call("add", build.call("mul", x, x), build.scalar(1.0, x)))
    graph = egraph_of(y)
    assert [text(k) for k in kernels(graph)] == ["sqrt(add(mul(0,0),const()))"]
    unfused = kernels(graph, fuse=False)
    assert [k.op for k in unfused] == ["mul", "add", "sqrt"]
    assert all(len(set(ops(k)) - {"const"}) == 1 for k in unfused)


def test_what_one_kernel_stores_for_another_alone_is_computed_in_it() -> None:
    """But not what is an output, has two users, does not fuse, or where fusion is off."""
    x, y, w = arg(0, 40, 64), arg(1, 40, 64), arg(2, 64, 64)
    product = build.matmul(x, w)
    summed = build.call("add", product, y)
    last = build.call("sqrt", build.call("exp", summed))

    def stored(*outputs: Node, fuse: bool = True) -> tuple[Candidates, list[Stream]]:
        """Every operator's kernel over stored operands."""
        candidates = Candidates(egraph_of(*outputs), RATES, fuse=fuse)
        candidates.run()
        made = []
        for c, pool in candidates.pool.items():
            if c not in candidates.inputs:
                made.append(next(s for s in pool.values() if s.plain and s.size == len(s.children) + 1))
                candidates.pool[c] = {made[-1].uid: made[-1]}  # as if nothing else had been thought of
        return candidates, made

    candidates, chosen = stored(last)
    found = add_pairs(candidates, chosen)
    texts = [text(candidates.term(s)) for s in found]
    assert sorted(texts) == ["add(contract(0,1),3)", "exp(add(2,3))", "sqrt(exp(4))"]
    assert all(s.seconds < sum(k.seconds for k in chosen) for s in found)
    assert not add_pairs(candidates, chosen), "they are in the pool by now"
    assert len(add_pairs(*stored(last, summed))) == 2
    assert len(add_pairs(*stored(last, build.call("neg", summed)))) == 2
    assert not add_pairs(*stored(last, fuse=False))
    assert not add_pairs(*stored(build.matmul(product, w)))


def test_expensive_operands_of_large_products_are_stored() -> None:
    # Inlined, the operand would be computed again for each panel of 4096 columns.
    x, w = arg(0, 4096, 256), arg(1, 256, 4096)
    stored = kernels(egraph_of(build.matmul(build.call("pow", x, build.scalar(1.5, x)), w)))
    assert [k.op for k in stored] == ["pow", "contract"]


def test_nothing_is_packed_for_a_product_with_one_column() -> None:
    """Arithmetic costs what it does in a sum; n bodies stored three matrices, and took half as long again."""
    x, y, scale, w = arg(0, 300, 1), arg(1, 1, 300), arg(2, 300, 300), arg(3, 300, 1)
    apart = build.call("mul", build.call("sub", x, y), scale)
    weighed = build.call("mul", apart, build.transpose(w, (1, 0)))
    near = replace(RATES, levels=((float("inf"), 1e13),))
    product, total = (
        extract(egraph_of(out), near, lowers=can_lower)[0]
        for out in (build.matmul(apart, w), build.reduce("reduce_sum", weighed, (1,)))
    )
    assert len(product.kernels) == len(total.kernels) == 1
    assert product.seconds < total.seconds


def test_sums_of_what_lies_in_two_ways_are_stored_for_products() -> None:
    """A copy for a product goes one way, and takes lanes of the other tensor apart: stored, it is turned in blocks."""
    first, last, bias, w = arg(0, 256, 196), arg(1, 196, 256), arg(2, 256), arg(3, 256, 512)
    turned_over = build.transpose(first, (1, 0))
    near = replace(RATES, levels=((float("inf"), 5e10),), vector_bytes=64)

    def programs_of(*terms: Node) -> list[list[str]]:
        total = build.call("relu", build.call("add", *terms))
        found = extract(egraph_of(build.matmul(total, w)), near, lowers=can_lower)[0]
        return [ops(kernel) for kernel in found.kernels]

    assert len(programs_of(last, last)) == len(programs_of(turned_over, turned_over)) == 1
    assert len(programs_of(last, bias)) == len(programs_of(turned_over, bias)) == 1
    assert len(programs_of(turned_over, last)) == 2


def test_few_rows_pay_for_lanes_of_a_copy() -> None:
    """Four sums of seven images, channels last, stored channels first, took 970 µs; turned over afterwards 105."""
    near = replace(RATES, levels=((float("inf"), 1e13),), vector_bytes=64)

    def seconds(rows: int, images: str, out: str, constants: tuple[int, ...] = ()) -> float:
        extents = {"i": rows, "p": 7, "x": 196, "c": 256}
        factors = (arg(0, rows, 7), arg(1, *(extents[label] for label in images)))
        product = build.contract(make_spec("ip", images, out), *factors)
        return extract(egraph_of(product, constants=constants), near, lowers=can_lower)[0].seconds

    def apart(step: int) -> Node:
        return build.slices(arg(1, 7, step * 50176), [0, 0], [1, step], [7, 50176])

    last, first = seconds(4, "pxc", "ixc"), seconds(4, "pxc", "icx")
    lanes = near.fma32 * ELEMENTWISE * near.apart(float32) * 7 * 196 * 256
    assert first - last == pytest.approx(lanes, rel=0.1)
    assert last < seconds(4, "xcp", "ixc") < first, "what lies along what is summed is turned by blocks"
    assert seconds(4, "pxc", "icx", constants=(1,)) == pytest.approx(last, rel=0.1), "packed when compiled"
    second, third = (
        extract(egraph_of(build.matmul(arg(0, 4, 7), apart(step))), near, lowers=can_lower)[0].seconds
        for step in (2, 3)
    )
    assert second < third, "every second element is shuffled"
    assert seconds(64, "pxc", "icx") == pytest.approx(seconds(64, "pxc", "ixc"), rel=0.1), "arithmetic takes longer"


def test_joins_are_computed_in_what_reads_them_or_part_by_part() -> None:
    x, y = arg(0, 64, 300), arg(1, 64, 200)
    joined = build.concat([build.call("exp", x), build.call("neg", y)], 1)
    (kernel,) = kernels(egraph_of(build.call("tanh", joined)))
    assert sorted(ops(kernel)) == ["concat", "exp", "neg", "tanh"]
    many = build.concat([build.call("exp", build.take_range(x, 1, n, n + 60)) for n in range(0, 300, 60)], 1)
    stored = kernels(egraph_of(build.call("tanh", many)))
    assert [k.op for k in stored] == ["concat", "tanh"]
    assert set(ops(stored[0])) == {"concat", "exp", "view"}


def test_joins_and_paddings_of_what_is_accumulated_are_not_inlined() -> None:
    total = build.reduce("reduce_sum", arg(0, 64, 300), (1,))
    for joined in (build.concat([total, build.call("neg", total)], 0), build.pad(total, [(1, 2)], 0.0)):
        for kernel in kernels(egraph_of(build.call("tanh", joined))):
            assert not {"reduce_sum", "tanh"} <= set(ops(kernel))


def test_opaque_operators_run_over_stored_operands() -> None:
    x = arg(0, 64, 32)
    y = make("cumsum", (build.call("exp", x),), 1)
    stored = kernels(egraph_of(build.call("neg", y)))
    assert [text(k) for k in stored] == ["exp(0)", "cumsum(1)", "neg(2)"]


def test_cheaper_equal_program_is_chosen() -> None:
    # (a·b)·v = a·(b·v)
    a, b, v = arg(0, 300, 300), arg(1, 300, 300), arg(2, 300)
    builder = Builder()
    y = build.matmul(build.matmul(a, b), v)
    builder.add(y)
    builder.equal(y, build.matmul(a, build.matmul(b, v)))
    best, *others = extract(builder.finish(y), RATES, lowers=can_lower, seconds=10.0)
    assert [k.type.shape for k in best.kernels] == [(300,), (300,)]
    assert all(best.seconds <= other.seconds for other in others)
    assert best.bound == pytest.approx(best.seconds)


def steps_of_a_recurrence(merge: bool) -> SaturatedEGraph:
    """h ← tanh(x[t]@u + h@w) over five steps; ``merge``: the x[t]@u are also slices of x@u."""
    steps, width = 5, 512
    x, h, u, w = arg(0, steps, width), arg(1, 1, width), arg(2, width, width), arg(3, width, width)
    builder = Builder((2, 3))
    whole = build.matmul(x, u)
    slices = []
    for t in range(steps):
        slices.append(build.matmul(build.take_range(x, 0, t, t + 1), u))
        h = build.call("tanh", build.call("add", slices[-1], build.matmul(h, w)))
    builder.add(h)
    for t, part in enumerate(slices):
        if merge:
            builder.equal(part, build.take_range(whole, 0, t, t + 1))
    return builder.finish(h)


def test_slices_of_one_product_are_bought_together() -> None:
    """The weights of one product are read once instead of once a step, though no step alone gains by it."""
    best = extract(steps_of_a_recurrence(True), RATES, lowers=can_lower, seconds=10.0)[0]
    assert (5, 512) in [k.type.shape for k in best.kernels]
    assert len(best.kernels) == 6
    alone = extract(steps_of_a_recurrence(False), RATES, lowers=can_lower, seconds=10.0)[0]
    assert best.seconds < 0.7 * alone.seconds


def test_a_product_that_is_too_large_for_its_slices_is_not_bought() -> None:
    x, u = arg(0, 4096, 512), arg(1, 512, 512)
    whole = build.matmul(x, u)
    builder = Builder((1,))
    outputs = [build.call("tanh", build.matmul(build.take_range(x, 0, t, t + 1), u)) for t in (3, 77)]
    builder.add(*outputs)
    for t, y in zip((3, 77), outputs, strict=True):
        builder.equal(y.inputs[0], build.take_range(whole, 0, t, t + 1))
    stored = kernels(builder.finish(*outputs))
    assert all(k.type.shape == (1, 512) for k in stored)


def test_constants_are_folded_and_only_those_needed() -> None:
    x, w, s = arg(0, 8, 8), arg(1, 8, 8), arg(2, 8, 8)
    folded = build.matmul(w, s)
    y = build.matmul(x, folded)
    (selection,) = extract(egraph_of(y, constants=(1, 2)), RATES, seconds=10.0)[:1]
    assert [t.op for t in selection.constants] == ["input", "input", "contract"]
    (kernel,) = selection.kernels
    assert [read.const for read in kernel.reads()] == [False, True]
    check_selection(selection, frozenset({0}))


def test_computable_constants_are_still_there_as_tables() -> None:
    index = arg(0, 7, dtype=int64)
    table = build.call("add", build.iota(5), build.iota(5))
    builder = Builder()
    y = build.gather(table, index, 0)
    builder.add(table)
    builder.const = {builder.of[n] for n in topological([table])}
    builder.add(y)
    builder.equal(table, build.call("add", build.iota(5), table.inputs[1]))
    egraph = builder.finish(y)
    (selection,) = extract(egraph, RATES, lowers=can_lower)[:1]
    check_selection(selection, inputs_of(egraph))
    where = np.array([0, 4, -1, -5, 2, 2, 1])
    np.testing.assert_array_equal(run_selection(egraph, selection, {0: where})[0], (2 * np.arange(5))[where])


def test_outputs_that_need_no_kernel() -> None:
    x, c = arg(0, 4), build.const(np.arange(4.0), float64)
    builder = Builder()
    builder.add(x, c)
    (selection,) = extract(builder.finish(x, c, x), RATES)
    assert selection.kernels == () and [t.op for t in selection.constants] == ["const"]
    assert selection.outputs == (0, 1, 0) and selection.seconds == 0.0
    check_selection(selection, frozenset({0}))


def test_an_output_without_a_finite_term_is_an_error() -> None:
    x = arg(0, 4)
    graph = egraph_of(build.call("neg", x))
    looped = SaturatedEGraph({1: (ENode("neg", None, (1,)),)}, {1: x.type}, frozenset(), (1,), graph.report)
    with pytest.raises(ExtractionError, match=r"e-class 1 \(float32\[4\]\)"):
        extract(looped, RATES)


def test_kernels_that_cannot_be_lowered_are_not_used() -> None:
    x = arg(0, 1000, 100)
    y = build.call("exp", build.call("add", build.call("sqrt", x), build.call("neg", x)))
    graph = egraph_of(y)

    def at_most_two(term: Term) -> bool:
        return len(ops(term)) <= 2

    for selection in extract(graph, RATES, lowers=at_most_two):
        assert all(at_most_two(k) for k in selection.kernels)
        check_selection(selection, inputs_of(graph))


@settings(max_examples=a_part(15), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.booleans())
def test_whatever_cannot_be_lowered_there_is_a_program(seed: int, refused: float, views_only: bool) -> None:
    """Terms are refused by chance, many more than there are rounds of repair; single operators then run alone."""
    x, index = arg(0, 12, 33), arg(1, 2, 3, dtype=int64)
    y = build.gather(build.gather(x, index, 0), index, 2)
    for n in range(8):
        flat = build.reshape(y, (y.type.size,))
        flipped = build.view(flat, views.slices(flat.shape, (flat.type.size - 1,), (-1,), flat.shape))
        y = build.call(("sqrt", "exp", "tanh")[n % 3], build.reshape(build.call("add", flipped, flat), y.shape))
    graph = egraph_of(y, build.reduce("reduce_sum", y, (0,)))
    decided: dict[str, bool] = {}

    def lowers(term: Term) -> bool:
        said = text(term)
        if views_only and not {"view", "gather"} & set(ops(term)):
            return True
        return decided.setdefault(said, random.Random(f"{seed}{said}").random() >= refused)

    selections = extract(graph, RATES, lowers=lowers)
    assert selections
    for selection in selections:
        check_selection(selection, inputs_of(graph))
        for kernel in selection.kernels:
            assert decided.get(text(kernel), True) or all(isinstance(child, Read) for child in kernel.children)


@pytest.mark.parametrize("parts", [3, 24, 25, 200, 1000])
def test_concatenations_of_any_length_are_kernels_that_compute_their_parts(parts: int) -> None:
    x = arg(0, parts, 5)
    rows = [build.call("exp", build.take_range(x, 0, n, n + 1)) for n in range(parts)]
    (kernel,) = kernels(egraph_of(build.concat(rows, 0)))
    lowered = lower(kernel)
    assert kernel.op == "concat" and lowered is not None and len(lowered.kernels) == parts
    assert all(len(reads) == 1 for reads in lowered.reads)


def test_alternatives_differ_and_are_programs() -> None:
    x, w, b = arg(0, 256, 256), arg(1, 256, 256), arg(2, 256)
    y = composite("softmax", [build.call("add", build.matmul(x, w), b)], 1)
    graph = egraph_of(y)
    found = extract(graph, RATES, lowers=can_lower, seconds=10.0, alternatives=3, gap=0.0)
    assert len(found) == 3
    assert len({tuple(text(k) for k in s.kernels) for s in found}) == 3
    assert [s.seconds for s in found] == sorted(s.seconds for s in found)
    for selection in found:
        check_selection(selection, inputs_of(graph))
        assert selection.bound <= selection.seconds


def test_the_best_program_is_first_whatever_looks_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = arg(0, 256, 256), arg(1, 256, 256), arg(2, 256)
    graph = egraph_of(composite("softmax", [build.call("add", build.matmul(x, w), b)], 1))
    sound = selection_of.optimum

    def with_a_twin(*args: Any, **options: Any) -> Any:
        found = sound(*args, **options)
        twin = replace(found.solution, cost=2 * found.solution.cost)
        return replace(found, others=(found.others[0], twin))

    monkeypatch.setattr(selection_of, "optimum", with_a_twin)
    best, *others = extract(graph, RATES, lowers=can_lower, seconds=10.0, gap=0.0)
    assert best.method != "alternative" and others
    assert {other.method for other in others} == {"alternative"}
    assert best.seconds <= min(other.seconds for other in others)


# Random programs

UNARY = ("neg", "abs", "square", "relu", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Builder, list[Node]]:
    """Up to 12 operators on 3×4, 4×3, … tensors, with equal e-nodes added, also cyclic ones."""
    rows, cols = draw(st.sampled_from([(3, 4), (1, 5), (2, 2), (0, 3), (4, 1)]))
    pool = [arg(0, rows, cols), arg(1, rows, cols), arg(2, rows, rows), arg(3, cols)]
    builder = Builder(constants=(3,))
    builder.add(*pool)
    for _ in range(draw(st.integers(1, 12))):
        x = draw(st.sampled_from(pool))
        kind = draw(
            st.sampled_from(["unary", "binary", "matmul", "view", "reduce", "concat", "gather", "pad", "opaque"])
        )
        fits = [n for n in pool if n.shape == x.shape or n.type.ndim == 0]
        y: Node | None = None
        if kind == "unary":
            y = build.call(draw(st.sampled_from(UNARY)), x)
        elif kind == "binary":
            y = build.call(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(fits)))
        elif kind == "matmul" and x.type.ndim == 2:
            y = build.matmul(build.transpose(x, (1, 0)), x)
        elif kind == "view" and x.type.ndim:
            flipped = views.slices(x.shape, [n - 1 if n else 0 for n in x.shape], [-1] * x.type.ndim, x.shape)
            y = draw(
                st.sampled_from(
                    [
                        build.reshape(x, (x.type.size,)),
                        build.transpose(x, tuple(range(x.type.ndim))[::-1]),
                        build.view(x, flipped),
                        build.broadcast_to(x, (2, *x.shape)),
                    ]
                )
            )
        elif kind == "reduce" and x.type.ndim:
            axis = draw(st.integers(0, x.type.ndim - 1))
            y = build.reduce("reduce_sum", x, (axis,), keepdims=draw(st.booleans()))
        elif kind == "concat" and x.type.ndim:
            same = [n for n in pool if n.shape == x.shape]
            y = build.concat([x, draw(st.sampled_from(same))], 0)
        elif kind == "gather" and x.type.ndim and x.shape[0] > 0:
            y = build.gather(x, build.const(np.array([0, -1, 0]), int64), 0)
        elif kind == "pad" and x.type.ndim:
            y = build.pad(x, [(1, 0), *[(0, 2)] * (x.type.ndim - 1)])
        elif kind == "opaque" and x.type.ndim:
            y = make("cumsum", (x,), 0)
        if y is None or y.type.size > 200 or y.type.ndim > 3:
            continue
        builder.add(y)
        if OPS[y.op].commutes and draw(st.booleans()):
            builder.equal(y, make(y.op, y.inputs[::-1], y.attrs))
        if y.op == "square":
            builder.equal(y, make("mul", (y.inputs[0], y.inputs[0])))
        if draw(st.integers(0, 3)) == 0:
            builder.equal(y, build.call("neg", build.call("neg", y)))  # a cycle
        pool.append(y)
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=2))
    return builder, outputs


@settings(max_examples=a_part(200), deadline=None)
@given(programs(), st.booleans())
def test_random_programs_are_well_formed_and_right(program: tuple[Builder, list[Node]], fuse: bool) -> None:
    builder, outputs = program
    egraph = builder.finish(*outputs)
    rng = np.random.default_rng(0)
    leaves = [n for n in builder.of if isinstance(n.attrs, InputAttrs)]
    bound = {n: rng.standard_normal(n.shape).astype(np.float32) for n in leaves}
    expected = evaluate_nodes(outputs, bound, double=True)
    arrays = {n.attrs.index: bound[n] for n in leaves if isinstance(n.attrs, InputAttrs)}
    for selection in extract(egraph, RATES, fuse=fuse, lowers=can_lower, seconds=10.0):
        check_selection(selection, inputs_of(egraph))
        assert 0 <= selection.bound <= selection.seconds * (1 + 1e-9)
        for value, want in zip(run_selection(egraph, selection, arrays), expected, strict=True):
            # Squares of squares may grow; the error of float32 grows with them.
            scale = max(1.0, float(np.abs(want).max(initial=0.0)))
            if np.isfinite(scale) and scale < 1e30:
                np.testing.assert_allclose(value, want, rtol=1e-3, atol=1e-4 * scale)


def test_fusion_never_costs() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        x, w = arg(0, 64, 64), arg(1, 64, 64)
        y = x
        for kind in rng.integers(5, size=6):
            if kind == 0:
                y = build.call("exp", y)
            elif kind == 1:
                y = build.call("add", y, x)
            elif kind == 2:
                y = build.matmul(y, w)
            elif kind == 3:
                y = build.call("sub", y, build.reduce("reduce_max", y, (1,), keepdims=True))
            else:
                y = build.transpose(y, (1, 0))
        graph = egraph_of(y)
        fused, plain = (extract(graph, RATES, fuse=f, seconds=10.0)[0] for f in (True, False))
        assert fused.seconds <= plain.seconds * (1 + 1e-9)


PROGRAM = """
from tests.test_extract import RATES, arg, build, can_lower, composite, egraph_of, extract, text
x, w, b = arg(0, 64, 64), arg(1, 64, 64), arg(2, 64)
y = composite("softmax", [build.call("add", build.matmul(x, w), b)], 1)
z = composite("layer_norm", [build.call("add", build.matmul(y, x), x), b, b], 1e-5)
for s in extract(egraph_of(z, y, constants=(1,)), RATES, lowers=can_lower, seconds=60.0):
    print(s.seconds, s.bound, s.method, [text(k) for k in s.kernels], [t.eclass for t in s.constants])
"""


def test_the_result_does_not_depend_on_hashing() -> None:
    root = Path(__file__).parent.parent
    seen = set()
    for seed in ("0", "1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root), "PATH": ""},
            capture_output=True,
            text=True,
            cwd=root,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        seen.add(run.stdout)
    assert len(seen) == 1


# The checker's negative controls


def term(node: Node, numbers: dict[Node, int]) -> Term | Read:
    if node in numbers:
        return Read(numbers[node], node.type)
    return Term(100 + len(numbers), node.op, node.attrs, node.type, tuple(term(i, numbers) for i in node.inputs))


def test_the_checker_refuses_what_is_no_kernel() -> None:
    x, w = arg(0, 4, 4), arg(1, 4, 4)
    numbers = {x: 0, w: 1}
    p = build.matmul(x, w)
    total = build.reduce("reduce_sum", x, (1,), keepdims=True)
    cases = {
        "two accumulations": build.call("add", p, build.matmul(w, x)),
        "below another accumulation": build.matmul(p, w),
        "one-to-one": build.broadcast_to(total, (4, 4)),
        "broadcasts": build.call("sub", x, total),
        "cannot be inlined": build.call("exp", build.concat([x, w], 0)),
        "stored": build.gather(build.call("exp", x), build.const(np.zeros(2), int64), 0),
        "not executable": composite("softmax", [x], 1),
        "stored operands": make("cumsum", (build.call("exp", x),), 0),
    }
    for reason, node in cases.items():
        made = term(node, numbers)
        assert isinstance(made, Term)
        with pytest.raises(MalformedError, match=reason):
            check_kernel(made)
    good = term(build.call("mul", p, build.call("sigmoid", p)), numbers)
    assert isinstance(good, Term)
    check_kernel(good)
    transposed = term(build.call("add", build.transpose(p, (1, 0)), p), numbers)
    assert isinstance(transposed, Term)
    with pytest.raises(MalformedError, match="two accumulations"):
        check_kernel(transposed)


def test_the_checker_refuses_what_is_no_program() -> None:
    t = TensorType((4,), float32)
    neg = Term(1, "neg", None, t, (Read(0, t),))
    late = Term(2, "neg", None, t, (Read(3, t),))
    itself = Term(4, "neg", None, t, (Read(4, t),))

    def selection(*terms: Term, outputs: tuple[int, ...] = (1,)) -> Selection:
        return Selection(terms, (), outputs, 1.0, 1.0, "greedy")

    check_selection(selection(neg), frozenset({0}))
    for wrong, reason in (
        (selection(neg), "not there yet"),
        (selection(late, outputs=(2,)), "not there yet"),
        (selection(neg, outputs=(7,)), "not computed"),
        (selection(itself, outputs=(4,)), "reads itself"),
    ):
        with pytest.raises(MalformedError, match=reason):
            check_selection(wrong, frozenset({0, 4} if "not there" not in reason else ()))
    with pytest.raises(MalformedError, match="twice"):
        check_selection(selection(neg, neg), frozenset({0}))
    wrong_type = Term(1, "neg", None, TensorType((5,), float32), (Read(0, t),))
    with pytest.raises(MalformedError, match="gives"):
        check_selection(selection(wrong_type), frozenset({0}))


# The roofline


def test_roofline_levels_and_threads() -> None:
    levels = (
        Level("L1", 32 << 10, False, 200, 150, 400, 300),
        Level("L3", 32 << 20, True, 40, 30, 60, 45),
        Level("memory", 0, True, 12, 10, 20, 15),
    )
    machine = Machine("any", 2, 64, 32, (("float32", 100.0), ("float64", 50.0)), levels, 1, 0.2, 5, 1, (("exp", 0.3),))
    one, two = roofline_of(machine), roofline_of(machine, 2)
    assert one.move(16e3) == pytest.approx(16e3 / 150e9)
    assert one.move(1e6) == pytest.approx(1e6 / 30e9) and two.move(1e6) == pytest.approx(1e6 / 45e9)
    assert one.move(1e9) == pytest.approx(1e9 / 10e9)
    assert one.compute(1e9, 0, float32) == pytest.approx(0.02) and two.compute(1e9, 0, float32) == pytest.approx(0.01)
    assert one.compute(1e9, 0, float64) == pytest.approx(0.04)
    assert one.step == pytest.approx(0.2e-6) and two.step == pytest.approx(1.2e-6)
    # A measured function is priced by its measurement, any other by the op table.
    assert one.compute(0, one.slots("exp") * 1e6, float32) == pytest.approx(0.3e-3)
    assert one.slots("tanh") == OPS["tanh"].cost
    long, short = one.compute(1e9, 0, float32), one.move(1e9)
    assert one.seconds(1e9, 0, 1e9, float32) >= max(long, short) + one.step


def test_windows_are_turned_lane_by_lane() -> None:
    """An image with channels first is turned by blocks of its rows; pairs of pixels, every second one, are not."""
    whole = views.strided((14, 16, 64), (16, 1, 256))
    pairs = views.strided((2, 2, 7, 7, 64), (16, 1, 32, 2, 256))
    assert turned(whole) and in_blocks(whole)
    assert turned(pairs) and not in_blocks(pairs)

    def seconds(map: views.ViewMap) -> float:
        turned_over = build.call("neg", build.view(arg(0, 64, 16, 16), map))
        near = replace(RATES, levels=((float("inf"), 1e13),), step=0.0, vector_bytes=64)
        return extract(egraph_of(turned_over), near, seconds=10.0)[0].seconds / math.prod(map.shape)

    assert seconds(pairs) > 1.5 * seconds(whole)


def test_terms_in_one_another_many_times_are_walked_once() -> None:
    """Doubled forty times it is a tree of 10^12 terms. A decomposition of 9×9 in place took 11 s to select kernels of,
    and takes 2.6."""
    type = TensorType((4, 5), float32)
    term: Term | Read = Read(0, type)
    for level in range(1, 41):
        term = Term(level, "mul", None, type, (term, term))
    assert isinstance(term, Term)
    same, other = (Term(number, "mul", None, type, term.children) for number in (40, 41))
    assert hash(term) == hash(same) and term == same and term != other
    assert [inner.eclass for inner in term.inlined()] == list(range(40, 0, -1))
    assert [read.eclass for read in term.reads()] == [0, 0]
    assert describe(term) == "mul"
    low = lower(term)
    assert low is not None and len(low.kernels) == 1
    assert low.reads == ((Read(0, type),),)
    assert len(unique(low.kernels[0].body)) == 41, "40 products, and what is loaded"
