"""Linear algebra: matmul, dot, tensordot, einsum and what is made of them. All become ``contract``."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError, UnsupportedDTypeError, UnsupportedOpError
from eqsat.frontends.convert import (
    check_casts,
    known_dtype,
    lift,
    normalize_axes,
    normalize_axis,
    promote,
    together,
    traced,
    truth,
    view_of,
)
from eqsat.frontends.reductions import sum_
from eqsat.frontends.registry import call as np_call
from eqsat.frontends.registry import implements
from eqsat.frontends.shapes import diagonal, diagonal_node
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.ufuncs import apply, loop_types
from eqsat.ir import build, views
from eqsat.ir.build import call, scalar
from eqsat.ir.node import LINE, Node
from eqsat.ir.spec import make_spec
from eqsat.ir.types import bfloat16, bool_, int64, row_major
from eqsat.ir.views import ViewMap

Label = str | int


def einsum_nodes(operands: Sequence[Node], labels: Sequence[Sequence[Label]], out: Sequence[Label]) -> Node:
    """Σ over all labels that are not in ``out`` of the product of the operands, two at a time.

    Operands have one element type. A label may repeat within an operand (its diagonal is taken), and an
    extent of 1 meets any other. Pairs are taken by the smallest result, as opt_einsum's greedy path.
    """
    if operands[0].dtype == bool_:  # sums of products of bools are "or" of "and"
        counts = einsum_nodes([build.cast(x, int64) for x in operands], labels, out)
        return build.cast(counts, bool_)
    extents: dict[Label, int] = {}
    for node, names in zip(operands, labels, strict=True):
        for name, n in zip(names, node.shape, strict=True):
            known = extents.setdefault(name, n)
            if known == 1:
                extents[name] = n
            elif n not in (1, known):
                raise ValueError(f"label {name!r} has size {known} in one operand and {n} in another")
    terms = [_plain(node, list(names), extents) for node, names in zip(operands, labels, strict=True)]
    while len(terms) > 1:
        i, j = _cheapest_pair(terms, out, extents)
        (b, b_names), (a, a_names) = terms.pop(j), terms.pop(i)
        needed = {*out, *(name for _, names in terms for name in names)}
        terms.insert(i, _pair(a, a_names, b, b_names, needed))
    node, names = _sum_out(*terms[0], set(out))
    missing = [name for name in out if name not in names]
    node = build.reshape(node, (*node.shape, *[1] * len(missing)))
    names = [*names, *missing]
    node = build.transpose(node, [names.index(name) for name in out])
    return build.broadcast_to(node, [extents[name] for name in out])


def _plain(node: Node, names: list[Label], extents: dict[Label, int]) -> tuple[Node, list[Label]]:
    """Without axes of extent 1 that others repeat, and with diagonals for labels that repeat."""
    while len(set(names)) < len(names):
        second = next(i for i, name in enumerate(names) if name in names[:i])
        first = names.index(names[second])
        name = names[first]
        if node.shape[first] != node.shape[second]:
            raise ValueError(f"label {name!r} repeats over sizes {node.shape[first]} and {node.shape[second]}")
        node = diagonal_node(node, 0, first, second)
        names = [n for i, n in enumerate(names) if i not in (first, second)] + [name]
    keep = [i for i, name in enumerate(names) if node.shape[i] == extents[name]]
    return build.reshape(node, [node.shape[i] for i in keep]), [names[i] for i in keep]


def _sum_out(node: Node, names: list[Label], needed: set[Label]) -> tuple[Node, list[Label]]:
    axes = [i for i, name in enumerate(names) if name not in needed]
    return build.reduce("reduce_sum", node, axes), [name for name in names if name in needed]


def _pair(a: Node, a_names: list[Label], b: Node, b_names: list[Label], needed: set[Label]) -> tuple[Node, list[Label]]:
    """The product of two terms, summed over labels that nobody else needs."""
    a, a_names = _sum_out(a, a_names, needed | set(b_names))
    b, b_names = _sum_out(b, b_names, needed | set(a_names))
    out = [n for n in a_names if n in needed] + [n for n in b_names if n in needed and n not in a_names]
    if all(name in needed for name in (*a_names, *b_names)):  # nothing is summed: a product of maps
        return call("mul", _aligned(a, a_names, out), _aligned(b, b_names, out)), out
    return build.contract(make_spec(a_names, b_names, out), a, b, "einsum"), out


def _aligned(node: Node, names: list[Label], out: list[Label]) -> Node:
    order = sorted(range(len(names)), key=lambda i: out.index(names[i]))
    turned = build.transpose(node, order)
    present = set(names)
    sizes = iter(turned.shape)
    return build.reshape(turned, [next(sizes) if name in present else 1 for name in out])


def _cheapest_pair(
    terms: list[tuple[Node, list[Label]]], out: Sequence[Label], extents: dict[Label, int]
) -> tuple[int, int]:
    """The pair whose product is smallest beside what it replaces; multiply-adds, then position break ties."""

    def size(names: Sequence[Label]) -> int:
        total = 1
        for name in names:
            total *= extents[name]
        return total

    def price(i: int, j: int) -> tuple[int, int, int, int]:
        rest = {*out, *(name for k, (_, names) in enumerate(terms) if k not in (i, j) for name in names)}
        both = dict.fromkeys([*terms[i][1], *terms[j][1]])
        kept = [name for name in both if name in rest]
        return size(kept) - size(terms[i][1]) - size(terms[j][1]), size(list(both)), i, j

    pairs = [(i, j) for i in range(len(terms)) for j in range(i + 1, len(terms))]
    return min(pairs, key=lambda pair: price(*pair))


def _parse(subscripts: str, ranks: Sequence[int]) -> tuple[list[list[Label]], list[Label]]:
    """Labels of every operand and of the result; an ellipsis becomes labels …0, …1 from the right."""
    text = subscripts.replace(" ", "")
    if not all((c.isascii() and c.isalpha()) or c in ",.->" for c in text) or text.count("->") > 1:
        raise ValueError(f"einsum: {subscripts!r} has characters other than letters, ',', '...' and '->'")
    given, arrow, result = text.partition("->")
    parts = given.split(",")
    if len(parts) != len(ranks):
        raise ValueError(f"einsum: {subscripts!r} has {len(parts)} terms for {len(ranks)} operands")
    labels: list[list[Label]] = []
    widest = 0
    for part, rank in zip(parts, ranks, strict=True):
        width = rank - len(part.replace("...", ""))
        if ("..." in part and width < 0) or ("..." not in part and width != 0) or "." in part.replace("...", "", 1):
            raise ValueError(f"einsum: term {part!r} does not fit an operand with {rank} axes")
        widest = max(widest, width)
        labels.append(_expand(part, width))
    if arrow:
        names = _expand(result, widest)
        if len(set(names)) != len(names) or any(n not in {x for term in labels for x in term} for n in names):
            raise ValueError(f"einsum: the result {result!r} repeats a label, or has one that no operand has")
        if "..." not in result and widest:
            raise ValueError("einsum: the result needs '...' for the axes that the operands' '...' stand for")
        return labels, names
    flat = [x for term in labels for x in term]
    once = sorted(x for x in flat if isinstance(x, str) and not x.startswith("…") and flat.count(x) == 1)
    return labels, [*_expand("...", widest), *once]


def _expand(part: str, width: int) -> list[Label]:
    head, dots, tail = part.partition("...")
    return [*head, *([f"…{i}" for i in reversed(range(width))] if dots else []), *tail]


@implements(np.einsum)
def einsum(*operands: Any, out: Any = None, optimize: Any = False, **kwargs: Any) -> TracedArray:
    casting = kwargs.pop("casting", "safe")
    rest = {k: v for k, v in kwargs.items() if k != "order" and v is not None}
    if set(rest) - {"dtype"}:
        raise UnsupportedOpError(f"np.einsum({', '.join(rest)}) is not supported on traced arrays", LINE.get())
    if isinstance(operands[0], str):
        subscripts, *arrays = operands
    else:
        subscripts, arrays = _interleaved(operands)
    arrays = [traced(a) for a in arrays]
    shapes = [a.shape for a in arrays]
    labels, result = _parse(subscripts, [len(s) for s in shapes])
    dtype = known_dtype(rest["dtype"]) if rest else promote(*arrays)
    if rest:
        check_casts("einsum", arrays, dtype, casting)
    if dtype == bfloat16:
        raise UnsupportedDTypeError("NumPy has no einsum of bfloat16: cast to float32, or use np.tensordot", LINE.get())
    try:
        if len(arrays) == 1 and set(labels[0]) == set(result):  # NumPy makes a view, and ignores a dtype
            return view_of(arrays[0], _strides_of(arrays[0].shape, labels[0], result), "einsum")
        return TracedArray(einsum_nodes([lift(a, dtype) for a in arrays], labels, result))
    except ValueError as error:
        listed = ", ".join(map(str, shapes))
        raise ShapeError(f"einsum {subscripts!r} of shapes {listed}: {error}", LINE.get()) from None


def _strides_of(shape: Sequence[int], names: Sequence[Label], result: Sequence[Label]) -> ViewMap:
    """What one operand shows where nothing is summed, as a view: axes in another order, and diagonals."""
    extents: dict[Label, int] = {}
    steps: dict[Label, int] = {}
    for name, n, step in zip(names, shape, row_major(tuple(shape)), strict=True):
        if extents.setdefault(name, n) != n:
            raise ValueError(f"label {name!r} repeats over sizes {extents[name]} and {n}")
        steps[name] = steps.get(name, 0) + step
    return views.strided([extents[name] for name in result], [steps[name] for name in result], 0)


def _interleaved(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """``einsum(a, [0, 1], b, [1, 2], [0, 2])`` as letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def text(names: Any) -> str:
        return "".join("..." if n is Ellipsis else letters[operator.index(n)] for n in names)

    count = len(operands) // 2
    inputs = ",".join(text(operands[2 * i + 1]) for i in range(count))
    result = f"->{text(operands[-1])}" if len(operands) % 2 else ""
    return inputs + result, [operands[2 * i] for i in range(count)]


@implements(np.matmul, np.linalg.matmul)
def matmul(x1: Any, x2: Any, /, out: Any = None, **kwargs: Any) -> TracedArray:
    return TracedArray(_product(*(x.node for x in _factors(np.matmul, x1, x2))))


def _factors(ufunc: np.ufunc, x1: Any, x2: Any) -> list[TracedArray]:
    """In the types of NumPy's loop, which for bfloat16 is that of float32."""
    given = traced(x1), traced(x2)
    return [TracedArray(lift(x, known_dtype(t))) for x, t in zip(given, loop_types(ufunc, given), strict=False)]


def _product(a: Node, b: Node) -> Node:
    if a.dtype == bool_:
        whole = build.matmul(build.cast(a, int64), build.cast(b, int64))
        return build.cast(whole, bool_)
    return build.matmul(a, b)


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    x, y = traced(a), traced(b)
    if x.ndim == 0 or y.ndim == 0:
        return apply(np.multiply, (x, y))  # of arrays: NumPy makes one of a Python number too
    if x.ndim <= 2 and y.ndim <= 2:
        return TracedArray(_product(*together(x, y)))
    return tensordot(x, y, ((-1,), (-2 if y.ndim > 1 else -1,)))


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> TracedArray:
    x, y = (TracedArray(build.reshape(lift(v), (traced(v).size,))) for v in (a, b))
    return TracedArray(_product(*together(x.conj(), y)))


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    x, y = traced(a), traced(b)
    if x.ndim == 0 or y.ndim == 0:
        return apply(np.multiply, (x, y))
    return tensordot(x, y, ((-1,), (-1,)))


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    x, y = traced(a), traced(b)
    column = TracedArray(build.reshape(x.node, (x.size, 1)))
    return apply(np.multiply, (column, TracedArray(build.reshape(y.node, (y.size,)))))


@implements(np.linalg.outer)
def linalg_outer(x1: Any, x2: Any, /) -> Any:
    x, y = traced(x1), traced(x2)
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"outer: the arrays must have one axis each, not shapes {x.shape} and {y.shape}")
    return outer(x, y)


@implements(np.vecdot, np.linalg.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, **kwargs: Any) -> TracedArray:
    return _rows("vecdot", "...i,...i->...", *(_last(traced(v), axis) for v in (traced(x1).conj(), x2)))


def _last(x: TracedArray, axis: int) -> TracedArray:
    at = normalize_axis(axis, x.ndim)
    return TracedArray(build.transpose(x.node, [*(i for i in range(x.ndim) if i != at), at]))


def _rows(name: str, spec: str, x1: Any, x2: Any) -> TracedArray:
    """An einsum over last axes, none of which is stretched."""
    x, y = _factors(getattr(np, name), x1, x2)
    extents: dict[str, int] = {}
    for part, shape in zip(spec.partition("->")[0].split(","), (x.shape, y.shape), strict=True):
        letters = part.removeprefix("...")
        if len(shape) < len(letters) or any(
            extents.setdefault(c, n) != n for c, n in zip(letters, shape[-len(letters) :], strict=True)
        ):
            raise ShapeError(f"{name}: shapes {x.shape} and {y.shape} do not fit", LINE.get())
    return einsum(spec, x, y)


def _matvec(x1: Any, x2: Any, /) -> TracedArray:
    return _rows("matvec", "...ij,...j->...i", x1, x2)


def _vecmat(x1: Any, x2: Any, /) -> TracedArray:
    return _rows("vecmat", "...i,...ij->...j", traced(x1).conj(), x2)


for _name, _implementation in (("matvec", _matvec), ("vecmat", _vecmat)):
    _function = getattr(np, _name, None)  # since NumPy 2.2
    if _function is not None:
        implements(_function)(_implementation)


@implements(np.tensordot, np.linalg.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> TracedArray:
    x, y = traced(a), traced(b)
    if isinstance(axes, (int, np.integer)):
        count = int(axes)
        left, right = list(range(-count, 0)), list(range(count))
    else:
        left, right = ([*side] if isinstance(side, (tuple, list)) else [side] for side in axes)
    left = [normalize_axis(i, x.ndim) for i in left]
    right = [normalize_axis(i, y.ndim) for i in right]
    if len(set(left)) != len(left) or len(set(right)) != len(right):
        raise ValueError(f"tensordot: an axis occurs twice in {left} or {right}")
    if len(left) != len(right) or any(x.shape[i] != y.shape[j] for i, j in zip(left, right, strict=False)):
        raise ValueError(f"tensordot: shapes {x.shape} and {y.shape} do not fit along axes {left} and {right}")
    x_names: list[Label] = [f"a{i}" for i in range(x.ndim)]
    y_names: list[Label] = [f"b{i}" for i in range(y.ndim)]
    for i, j in zip(left, right, strict=True):
        y_names[j] = x_names[i]
    result = [n for i, n in enumerate(x_names) if i not in left] + [n for j, n in enumerate(y_names) if j not in right]
    return TracedArray(einsum_nodes(together(x, y), [x_names, y_names], result))


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    x, y = traced(a), traced(b)
    ndim = max(x.ndim, y.ndim)
    wide_x, wide_y = ((1,) * (ndim - v.ndim) + v.shape for v in (x, y))
    left = build.reshape(x.node, [n for size in wide_x for n in (size, 1)])
    right = build.reshape(y.node, [n for size in wide_y for n in (1, size)])
    product = apply(np.multiply, (TracedArray(left), TracedArray(right)))
    return TracedArray(build.reshape(product.node, [n * m for n, m in zip(wide_x, wide_y, strict=True)]))


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> TracedArray:
    return sum_(diagonal(a, offset, axis1, axis2), -1, dtype)


@implements(np.linalg.trace)
def linalg_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> TracedArray:
    return trace(x, offset, -2, -1, dtype)


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    factors: list[Any] = [traced(a) for a in arrays]
    ranks = [f.ndim for f in factors]
    if len(ranks) < 2:
        raise ValueError("multi_dot: two arrays or more are needed")
    if len(ranks) > 2 and (any(n != 2 for n in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}):
        listed = ", ".join(str(f.shape) for f in factors)
        raise ValueError(f"multi_dot: matrices, and vectors only at the ends, not shapes {listed}")
    if len(factors) == 2:
        return dot(*factors)
    heights = [1 if ranks[0] == 1 else factors[0].shape[0], *(f.shape[0] for f in factors[1:])]
    split = _cheapest_order([*heights, 1 if ranks[-1] == 1 else factors[-1].shape[-1]])

    def product(first: int, last: int) -> Any:
        if first == last:
            return factors[first]
        after = split[first, last]
        return dot(product(first, after), product(after + 1, last))

    return product(0, len(factors) - 1)


def _cheapest_order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For matrices of ``sizes[i]`` × ``sizes[i + 1]``: behind which one the product from ``first`` to ``last`` is cut.

    The one that NumPy takes, for that decides over what overflows: the fewest multiplications, of equals the first
    (Cormen et al., Introduction to Algorithms, 15.2).
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            cost[first, last], split[first, last] = min(
                (cost[first, k] + cost[k + 1, last] + sizes[first] * sizes[k + 1] * sizes[last + 1], k)
                for k in range(first, last)
            )
    return split


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: Any) -> Any:
    count = operator.index(n)
    base = traced(a)
    if base.ndim < 2 or base.shape[-1] != base.shape[-2]:
        raise ValueError(f"matrix_power: the last two axes must be equal, not shape {base.shape}")
    if count < 0:
        raise UnsupportedOpError("np.linalg.matrix_power of n < 0 inverts: use np.linalg.inv", LINE.get())
    if count == 0:
        unit = build.const(np.eye(base.shape[-1], dtype=base.dtype))
        return TracedArray(build.broadcast_to(unit, base.shape))
    result = base
    for _ in range(count - 1):
        result = matmul(result, base)
    return result


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> TracedArray:
    ndim = traced(x).ndim
    if axis is None and ord is None:
        return _vector_norm(lift(x), 2, tuple(range(ndim)), keepdims)
    axes = normalize_axes(axis, ndim)
    if len(axes) == 1:
        return _vector_norm(lift(x), 2 if ord is None else ord, axes, keepdims)
    if len(axes) != 2:
        raise ValueError(f"norm: a vector has one axis and a matrix two, not {len(axes)} of shape {traced(x).shape}")
    if ord in (None, "fro"):
        return _vector_norm(lift(x), 2, axes, keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        first, second = (normalize_axis(i, ndim) for i in (axis or (0, 1)))
        rows = first if abs(ord) == 1 else second
        sums = _vector_norm(lift(x), 1, (rows,), True)
        rest = first + second - rows
        if ord > 0:
            return np_call(np.max, sums, axis=(rows, rest), keepdims=keepdims, initial=0)  # type: ignore[no-any-return]
        return np_call(np.min, sums, axis=(rows, rest), keepdims=keepdims)  # type: ignore[no-any-return]
    raise UnsupportedOpError(f"np.linalg.norm(ord={ord!r}) of a matrix is not supported: use None or 'fro'", LINE.get())


@implements(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> TracedArray:
    return _vector_norm(lift(x), ord, normalize_axes(axis, traced(x).ndim), keepdims)


@implements(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> TracedArray:
    return norm(x, ord, (-2, -1), keepdims)


def _vector_norm(node: Node, ord: Any, axes: tuple[int, ...], keepdims: bool) -> TracedArray:
    if not isinstance(ord, (int, float)) or math.isnan(ord):
        raise ValueError(f"norm: ord={ord!r} is not an order of vectors")
    if node.dtype.kind == "complex":
        node = call("abs", node)
    if not node.dtype.is_float or node.dtype == bfloat16:
        node = build.cast(node, known_dtype(np.float64))
    size = call("abs", node)
    if ord == 2:
        return TracedArray(call("sqrt", build.reduce("reduce_sum", call("square", node), axes, keepdims=keepdims)))
    if ord == math.inf and 0 in node.shape:
        return sum_(TracedArray(size), axes, keepdims=keepdims)
    if ord in (math.inf, -math.inf):
        return TracedArray(build.reduce("reduce_max" if ord > 0 else "reduce_min", size, axes, keepdims=keepdims))
    if ord == 0:
        return TracedArray(build.reduce("reduce_sum", build.cast(truth(node), node.dtype), axes, keepdims=keepdims))
    if ord == 1:
        return TracedArray(build.reduce("reduce_sum", size, axes, keepdims=keepdims))
    total = build.reduce("reduce_sum", call("pow", size, scalar(ord, size)), axes, keepdims=keepdims)
    return TracedArray(call("pow", total, scalar(1 / ord, total)))
