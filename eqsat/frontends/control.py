"""Loops and branches that are said rather than found: JAX's ``scan``, ``fori_loop`` and ``cond``, for NumPy.

While a function is traced, a body is traced once, on inputs of its own, and becomes a :class:`~eqsat.ir.loop.Loop`:
ten thousand trips compile like ten. Outside of tracing they are Python's loops over NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.frontends.branches import where_taken
from eqsat.frontends.carries import Pytree, check_same, is_leaf, type_of
from eqsat.frontends.convert import known_dtype, lift
from eqsat.frontends.plain_loops import PlainLoop, carried, check_plain, scan_plain
from eqsat.frontends.pytree import Leaf, Static, Tree, rebuild, tree_of
from eqsat.frontends.source import user_line
from eqsat.frontends.traced_loops import (
    Closing,
    begun,
    fresh_input,
    in_rows,
    inside,
    on_users_line,
    scan_traced,
    settled_body,
    valued,
)
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.ir import build, complexes
from eqsat.ir.loop import EXPECTED, Loop, loop
from eqsat.ir.types import TensorType

__all__ = ["cond", "fori_loop", "scan", "while_loop"]


def scan(
    f: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]],
    init: Pytree,
    xs: Pytree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Pytree, Pytree]:
    """``carry, y = f(carry, x)`` for every row ``x`` of ``xs``, as ``jax.lax.scan``: the last carry, and all ``y``.

    ``init``, ``xs`` and what ``f`` returns are arrays, numbers, or nested tuples, lists, dicts and dataclasses of them.

    Args:
        f: called once while a function is traced. What it carries keeps structure, shapes and element types; a Python
            number in ``init`` takes the type that ``f`` makes of it. What a trip is given is a copy in row-major order
            of what the one before returned, and a NumPy scalar where it has no axes; writing to it is the body's own
            affair. It must not write to arrays from outside.
        init: the first carry.
        xs: arrays with a first axis of one length, the trips; None for ``length`` trips without rows.
        length: how many trips; needed without ``xs``.
        reverse: begin with the last row; ``y`` of a row stays in its place.
        unroll: taken and not used: the compiler decides.

    Returns:
        The last carry, and the ``y`` of all trips stacked along a first axis.

    Raises:
        CarryError: a carry changes its structure, shape or element type.
        ShapeError: rows of ``xs`` are not ``length``, or of different numbers.
    """
    leaves: list[Any] = []
    tree = tree_of(xs, leaves, is_leaf)
    trips = _trips(leaves, length)
    if CURRENT.get() is None:
        return scan_plain("eqsat.scan", f, init, (tree, leaves), trips, reverse)
    return scan_traced("eqsat.scan", f, init, (tree, leaves), trips, reverse)


def fori_loop(
    lower: int, upper: int, body_fun: Callable[[Any, Pytree], Pytree], init_val: Pytree, *, unroll: int | None = None
) -> Pytree:
    """``for i in range(lower, upper): val = body_fun(i, val)``, as ``jax.lax.fori_loop``: the last ``val``.

    Args:
        lower: the first ``i``, an int. Where it or ``upper`` depends on a traced function's arguments, this is a
            :func:`while_loop`.
        upper: the int that ends it.
        body_fun: called once while a function is traced, with ``i`` as a NumPy int64 and a value like ``init_val``.
        init_val: as ``init`` of :func:`scan`.
        unroll: taken and not used.

    Raises:
        CarryError: the value changes its structure, shape or element type.
        TypeError: a bound is no int.
    """
    if any(isinstance(bound, TracedArray) and bound.known is None for bound in (lower, upper)):

        def turn(carry: tuple[Any, Any, Pytree]) -> tuple[Any, Any, Pytree]:
            i, end, value = carry
            return i + np.int64(1), end, body_fun(i, value)

        begin = [_index(bound) for bound in (lower, upper)]
        return while_loop(lambda carry: carry[0] < carry[1], turn, (*begin, init_val))[2]
    first, end = (_int(bound) for bound in (lower, upper))
    index = np.arange(first, max(first, end), dtype=np.int64)

    def step(value: Pytree, i: Any) -> tuple[Pytree, None]:
        return body_fun(i, value), None

    rows: tuple[Tree, list[Any]] = (Leaf(0), [index])
    if CURRENT.get() is None:
        return scan_plain("eqsat.fori_loop", step, init_val, rows, index.size, stacks=False)[0]
    return scan_traced("eqsat.fori_loop", step, init_val, rows, index.size, False, first)[0]


def while_loop(cond_fun: Callable[[Pytree], Any], body_fun: Callable[[Pytree], Pytree], init_val: Pytree) -> Pytree:
    """``while cond_fun(val): val = body_fun(val)``, as ``jax.lax.while_loop``: the last ``val``.

    Between trips the condition is looked at by Python, which costs some microseconds; the trip itself is compiled.

    Args:
        cond_fun: of the value, a bool or a number that is one.
        body_fun: called once while a function is traced, with a value like ``init_val``.
        init_val: as ``init`` of :func:`scan`.

    Raises:
        CarryError: the value changes its structure, shape or element type.
        ShapeError: the condition is an array.
    """
    name = "eqsat.while_loop"
    given: list[Any] = []
    tree = tree_of(init_val, given, is_leaf)

    def step(value: Pytree, _: None) -> tuple[Pytree, Any]:
        after = body_fun(value)
        return after, _truth(cond_fun(after))

    if CURRENT.get() is None:
        check_plain(name, given)
        body = PlainLoop(name, step, tree, given, Static(None))
        body.settle([])
        value = body.first()
        holds = _truth(cond_fun(value))
        while holds:
            value = body.trip(value, [])
            (holds,) = body.parts
        return value
    types, traced = settled_body(name, step, tree, given, Static(None), [])
    with on_users_line():
        start = [begun(v, t) for v, t in zip(given, types, strict=True)]
    with inside():
        values = [valued(node, type) for node, type in zip(start, types, strict=True)]
        first = lift(_truth(cond_fun(rebuild(tree, values))))
        start = [complexes.joined(lift(value)) for value in values]  # which the condition may have written to
    with on_users_line():
        traced.carries.insert(0, fresh_input(TensorType((), known_dtype(bool))))
        closing = Closing(traced, 1, False, [], None)
        graph = closing.graph([complexes.joined(lift(leaf)) for leaf in (*traced.stacked, *traced.outputs)])
        made = Loop(EXPECTED, graph, 1 + len(start), tuple(closing.steps), conditional=True)
        results = loop(made, [first, *start, *closing.others])[1:]
    return rebuild(tree, [valued(node, type) for node, type in zip(results, types, strict=True)])


def cond(pred: Any, true_fun: Callable[..., Pytree], false_fun: Callable[..., Pytree], *operands: Pytree) -> Pytree:
    """``true_fun(*operands) if pred else false_fun(*operands)``, as ``jax.lax.cond``.

    While a function is traced, and ``pred`` depends on its arguments, both are computed and one is chosen, as
    ``np.where`` does: a branch that is not taken costs its time, and may divide by zero, but changes no value. Its
    indices are not checked, and its :func:`while_loop` makes no trip.

    Args:
        pred: a bool, or a number that is one.
        true_fun: what is returned if ``pred`` holds.
        false_fun: what is returned otherwise: of the same structure, shapes and element types.
        operands: of both.

    Returns:
        What the branch returned, as arrays of their own memory in row-major order, though it returned its operands or
        views of them.

    Raises:
        CarryError: the branches return something different.
    """
    known = pred.known if isinstance(pred, TracedArray) else np.asarray(pred)
    if np.shape(pred) != ():
        raise ShapeError(f"eqsat.cond: the condition has shape {np.shape(pred)}: pass one value", user_line())
    if known is not None:
        returned: list[Any] = []
        tree = tree_of((true_fun if bool(known) else false_fun)(*operands), returned, is_leaf)
        return rebuild(tree, [in_rows(lift(v)) if isinstance(v, TracedArray) else carried(v) for v in returned])
    trace = CURRENT.get()
    assert trace is not None
    outside = {*trace.nodes, *map(lift, (pred, *(o for o in operands if is_leaf(o))))}
    with inside():
        found: list[list[Any]] = [[], []]
        trees = [tree_of(fn(*operands), f, is_leaf) for fn, f in zip((true_fun, false_fun), found, strict=True)]
        nodes = [[lift(leaf) for leaf in leaves] for leaves in found]
    types = [[n.type for n in row] for row in nodes]
    check_same("eqsat.cond", trees, types, "one branch returns {}, the other one {}", "result")
    with on_users_line():
        chosen = build.cast(lift(pred), known_dtype(bool))
        one = where_taken(nodes[0], chosen, outside)
        other = where_taken(nodes[1], build.call("logical_not", chosen), outside)
        results = [
            in_rows(build.call("where", build.broadcast_to(chosen, a.shape), a, b))
            for a, b in zip(one, other, strict=True)
        ]
    return rebuild(trees[0], results)


def _int(bound: Any) -> int:
    return operator.index(bound.known.item() if isinstance(bound, TracedArray) else bound)  # type: ignore[union-attr]


def _index(bound: Any) -> Any:
    """A bound as a NumPy int64."""
    if not isinstance(bound, TracedArray):
        return np.int64(operator.index(bound))
    if bound.shape != () or bound.dtype.kind not in "iu":
        raise ShapeError(f"eqsat.fori_loop: a bound is {type_of(bound)}: pass one integer", user_line())
    return bound.astype(np.int64)


def _trips(leaves: Sequence[Any], length: int | None) -> int:
    shapes = [np.shape(leaf) for leaf in leaves]
    if () in shapes:
        raise ShapeError("eqsat.scan: a part of xs has no axes, and so no rows", user_line())
    lengths = sorted({shape[0] for shape in shapes} | ({operator.index(length)} if length is not None else set()))
    if len(lengths) != 1:
        said = f"rows of different numbers: {', '.join(map(str, lengths))}" if lengths else "neither xs nor length"
        raise ShapeError(f"eqsat.scan: {said}", user_line())
    if lengths[0] < 0:
        raise ShapeError(f"eqsat.scan: {lengths[0]} trips", user_line())
    return lengths[0]


def _truth(value: Any) -> Any:
    """A condition as a bool."""
    if np.shape(value) != ():
        raise ShapeError(f"eqsat.while_loop: the condition has shape {np.shape(value)}: make it one value", user_line())
    return value.astype(bool) if isinstance(value, TracedArray) else np.bool_(value)
