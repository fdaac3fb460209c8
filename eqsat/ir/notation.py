"""Index notation: kernels written down by the axes of their accesses, and expressions unified with one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations

from eqsat.ir.kernel import Acc, Call, Combine, Expr, Kernel, Literal, Load, Operand
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, row_major

__all__ = ["Binding", "notation", "unify"]

Binding = dict[Load, Expr]
"""What each load of a pattern stands for."""


def notation(
    result: str,
    operands: Sequence[str],
    dtypes: Sequence[DType],
    extents: Mapping[str, int],
    body: Callable[..., Expr],
    combine: Combine | None = None,
) -> Kernel:
    """The kernel ``out[result] = combine over the other axes of body(x[operands[0]], y[operands[1]], …)``.

    Axes are single letters, as in ``einsum``; those of ``result`` are parallel, all others reduced, in the order in
    which they appear. Operand ``i`` has elements of ``dtypes[i]``, and is C-contiguous in its own order of axes.

    >>> product = notation("mn", ["mk", "nk"], [float32] * 2, {"m": 4, "n": 8, "k": 16},
    ...                    lambda a, b: Call("mul", (a, b), float32), "sum")
    """
    axes = list(dict.fromkeys(result + "".join(operands)))
    if len(axes) > len(result) and combine is None:
        raise ValueError(f"axes {''.join(axes[len(result) :])} are not in the result {result!r}, and nothing combines")

    def strides(letters: str) -> dict[str, int]:
        return dict(zip(letters, row_major(tuple(extents[a] for a in letters)), strict=True))

    def size(letters: str) -> int:
        total = 1
        for letter in letters:
            total *= extents[letter]
        return total

    loads = []
    for number, (letters, dtype) in enumerate(zip(operands, dtypes, strict=True)):
        steps = strides(letters)
        loads.append(Load(number, 0, tuple(steps.get(a, 0) for a in axes), dtype))
    made = body(*loads)
    store = strides(result)
    return Kernel(
        extents=tuple(extents[a] for a in axes),
        parallel=len(result),
        combine=combine,
        body=made,
        epilogue=Acc(made.dtype),
        operands=tuple(Operand(dtype, size(x)) for x, dtype in zip(operands, dtypes, strict=True)),
        out=Operand(made.dtype, size(result)),
        store_offset=0,
        store_strides=tuple(store[a] for a in result),
    )


def unify(pattern: Expr, expr: Expr, bound: Binding | None = None) -> Iterator[Binding]:
    """Every way in which ``expr`` is ``pattern`` with something of the same element type for each of its loads.

    Arguments of functions that commute are tried in every order.
    """
    bound = {} if bound is None else bound
    match pattern:
        case Load():
            if pattern.dtype == expr.dtype and bound.get(pattern, expr) == expr:
                yield {**bound, pattern: expr}
        case Call(fn, args, dtype, attrs):
            if not isinstance(expr, Call) or (expr.fn, expr.dtype, expr.attrs) != (fn, dtype, attrs):
                return
            commutes = fn in OPS and OPS[fn].commutes
            for order in permutations(expr.args) if commutes else (expr.args,):
                yield from _all(args, order, bound)
        case Literal():
            if pattern == expr:
                yield bound


def _all(patterns: Sequence[Expr], exprs: Sequence[Expr], bound: Binding) -> Iterator[Binding]:
    if len(patterns) != len(exprs):
        return
    if not patterns:
        yield bound
        return
    for found in unify(patterns[0], exprs[0], bound):
        yield from _all(patterns[1:], exprs[1:], found)
