"""Kernel groups and machines that tests schedule."""

from __future__ import annotations

from dataclasses import replace

from eqsat.cost.machine import Level, Machine
from eqsat.ir.kernel import (
    Acc,
    Call,
    Combine,
    Expr,
    FromStage,
    Guarded,
    Index,
    Kernel,
    KernelGroup,
    Literal,
    Load,
    Operand,
    Stage,
)
from eqsat.ir.types import DType, float32, int64


def machine(l1: int = 32 << 10, l2: int = 1 << 20, l3: int = 32 << 20, registers: int = 32, width: int = 64) -> Machine:
    """A made-up processor; by default like the one the design figures were measured on."""
    levels = (
        Level("L1", l1, False, 230.0, 230.0, 460.0, 460.0),
        Level("L2", l2, False, 108.0, 108.0, 216.0, 216.0),
        Level("L3", l3, True, 60.0, 60.0, 100.0, 100.0),
        Level("memory", 0, True, 28.0, 28.0, 36.0, 36.0),
    )
    peak = 117.0 * width / 64
    return Machine(
        "made up", 4, width, registers, (("float32", peak), ("float64", peak / 2)), levels, 1.0, 0.1, 4.0, 0.5
    )


DESK = machine()
TINY = machine(l1=1 << 10, l2=4 << 10, l3=32 << 10, registers=16, width=16)
"""Caches so small that short axes are blocked at every level."""


def gemm(
    m: int, n: int, k: int, batch: int = 0, dtype: DType = float32, const: str = "", transposed: bool = False
) -> KernelGroup:
    """``out[b, m, n] = Σ a[b, m, k] · b[b, k, n]`` (or ``b[b, n, k]``), all C-contiguous."""
    second = (0, k, 1) if transposed else (0, 1, n)
    a, b, c = (k, 0, 1), second, (n, 1)
    extents = (m, n, k)
    if batch:
        extents, a, b, c = (batch, m, n, k), (m * k, *a), (n * k, *b), (m * n, *c)  # type: ignore[assignment]
    count = max(1, batch)
    operands = (Operand(dtype, count * m * k, "a" in const), Operand(dtype, count * n * k, "b" in const))
    body = Call("mul", (Load(0, 0, a, dtype), Load(1, 0, b, dtype)), dtype)
    out = Operand(dtype, count * m * n)
    return single(Kernel(extents, len(extents) - 1, "sum", body, Acc(dtype), operands, out, 0, c))


def single(kernel: Kernel) -> KernelGroup:
    count = len(kernel.operands)
    return KernelGroup((Stage(kernel, tuple(range(count)), count),), 0, (*kernel.operands, kernel.out), (count,))


def reduction(extents: tuple[int, ...], parallel: int, order: tuple[int, ...]) -> KernelGroup:
    """A sum over the last axes of a C-contiguous array whose axes are laid out in ``order``."""
    strides, step = [0] * len(extents), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= extents[axis]
    out, store = 1, []
    for extent in reversed(extents[:parallel]):
        store.append(out)
        out *= extent
    operand = Operand(float32, step)
    combine: Combine | None = "sum" if parallel < len(extents) else None
    body = Load(0, 0, tuple(strides), float32)
    result = Operand(float32, out)
    return single(Kernel(extents, parallel, combine, body, Acc(float32), (operand,), result, 0, tuple(reversed(store))))


def padded(rows: int, columns: int, combine: Combine | None = None, first: int = 3, end: int = 5) -> KernelGroup:
    """A matrix in a frame of ones, ``first`` wide at its start and ``end`` wide at its end; or its rows combined."""
    inside: Expr = Load(0, -first * (columns + 1), (columns, 1), float32)
    for axis, extent in ((1, columns), (0, rows)):
        index = Index(0, (int(axis == 0), int(axis == 1)), int64)
        inside = Guarded(index, first, first + extent, inside, Literal(1.0, float32))
    extents = rows + first + end, columns + first + end
    parallel = 1 if combine else 2
    store = (1,) if combine else (extents[1], 1)
    acc = int64 if combine in ("argmax", "argmin") else float32
    out = Operand(acc, extents[0] * store[0])
    operand = Operand(float32, rows * columns)
    return single(Kernel(extents, parallel, combine, inside, Acc(acc), (operand,), out, 0, store))


def windowed(channels: int, extent: int, kernel: int, stride: int, padding: int = 1) -> KernelGroup:
    """Channels, each weighted and summed by windows of its padded image, which is a stage of its own."""
    size, count = extent + 2 * padding, (extent + 2 * padding - kernel) // stride + 1
    body: Expr = Load(0, -padding * (extent + 1), (extent**2, extent, 1), float32)
    for axis in (2, 1):
        at = Index(0, tuple(int(a == axis) for a in range(3)), int64)
        body = Guarded(at, padding, padding + extent, body, Literal(0.0, float32))
    x, w = Operand(float32, channels * extent**2), Operand(float32, channels * kernel**2)
    around = Operand(float32, channels * size**2)
    pad = Kernel((channels, size, size), 3, None, body, Acc(float32), (x,), around, 0, (size**2, size, 1))
    seen = Load(1, 0, (size**2, stride * size, stride, size, 1), float32)
    product = Call("mul", (Load(0, 0, (kernel**2, 0, 0, kernel, 1), float32), seen), float32)
    extents, out = (channels, count, count, kernel, kernel), Operand(float32, channels * count**2)
    store = (count**2, count, 1)
    summed = Kernel(extents, 3, "sum", product, Acc(float32), (w, around), out, 0, store)
    return KernelGroup((Stage(pad, (0,), None), Stage(summed, (1, FromStage(0)), 2)), 1, (x, w, out), (2,))


def attention(heads: int, queries: int, keys: int, width: int, shift: int = 0) -> KernelGroup:
    """Scores, softmax (maximum, exponentials, sum) and the weighted sum of values, by rows of queries."""
    f, h, q, s, d = float32, heads, queries, keys, width
    scores, rows = Operand(f, h * q * s), Operand(f, h * q)

    def load(operand: int, *strides: int) -> Load:
        return Load(operand, 0, strides, f)

    product = Call("mul", (load(0, q * d, d, 0, 1), load(1, s * d, 0, d, 1)), f)
    inputs = tuple(Operand(f, n) for n in (h * q * d, h * s * d, h * s * d, h * q * d))
    one = Kernel((h, q, s, d), 3, "sum", product, Acc(f), inputs[:2], scores, 0, (q * s, s, 1))
    top = Kernel((h, q, s), 2, "max", Load(0, shift, (q * s, s, 1), f), Acc(f), (scores,), rows, 0, (q, 1))
    power = Call("exp", (Call("sub", (load(0, q * s, s, 1), load(1, q, 1, 0)), f),), f)
    grown = Kernel((h, q, s), 3, None, power, Acc(f), (scores, rows), scores, 0, (q * s, s, 1))
    total = Kernel((h, q, s), 2, "sum", load(0, q * s, s, 1), Acc(f), (scores,), rows, 0, (q, 1))
    mixed = Call("mul", (load(0, q * s, s, 0, 1), load(1, s * d, 0, 1, d)), f)
    share = Call("div", (Acc(f), load(2, q, 1, 0, 0)), f)
    last = Kernel((h, q, d, s), 3, "sum", mixed, share, (scores, inputs[2], rows), inputs[3], 0, (q * d, d, 1))
    stages = (
        Stage(one, (0, 1), None),
        Stage(top, (FromStage(0),), None),
        Stage(grown, (FromStage(0), FromStage(1)), None),
        Stage(total, (FromStage(2),), None),
        Stage(last, (FromStage(2), 2, FromStage(3)), 3),
    )
    return KernelGroup(stages, 2, inputs, (3,), "attention")


def softmax(rows: int, columns: int, dtype: DType = float32) -> KernelGroup:
    """max; exp(x - max); sum; divide."""
    row, full = Operand(dtype, rows), Operand(dtype, rows * columns)
    x, broadcast, extents = Load(0, 0, (columns, 1), dtype), Load(1, 0, (1, 0), dtype), (rows, columns)
    exp = Call("exp", (Call("sub", (x, broadcast), dtype),), dtype)
    share = Call("div", (x, broadcast), dtype)
    stages = (
        Stage(Kernel(extents, 1, "max", x, Acc(dtype), (full,), row, 0, (1,)), (0,), None),
        Stage(
            Kernel(extents, 2, None, exp, Acc(dtype), (full, row), full, 0, (columns, 1)),
            (0, FromStage(0)), None,
        ),
        Stage(Kernel(extents, 1, "sum", x, Acc(dtype), (full,), row, 0, (1,)), (FromStage(1),), None),
        Stage(
            Kernel(extents, 2, None, share, Acc(dtype), (full, row), full, 0, (columns, 1)),
            (FromStage(1), FromStage(2)), 1,
        ),
    )  # fmt: skip
    return KernelGroup(stages, 1, (full, full), (1,), "softmax")


def perceptron(rows: int, width: int, hidden: int, const: bool = True) -> KernelGroup:
    """Two products with an activation between them, by rows."""
    f = float32
    x, u, v, y = (Operand(f, rows * width), *[Operand(f, width * hidden, const)] * 2, Operand(f, rows * width))
    between = Operand(f, rows * hidden)
    first = Call("mul", (Load(0, 0, (width, 0, 1), f), Load(1, 0, (0, 1, hidden), f)), f)
    second = Call("mul", (Load(0, 0, (hidden, 0, 1), f), Load(1, 0, (0, 1, width), f)), f)
    one = Kernel((rows, hidden, width), 2, "sum", first, Call("tanh", (Acc(f),), f), (x, u), between, 0, (hidden, 1))
    two = Kernel((rows, width, hidden), 2, "sum", second, Acc(f), (between, v), y, 0, (width, 1))
    return KernelGroup((Stage(one, (0, 1), None), Stage(two, (FromStage(0), 2), 3)), 1, (x, u, v, y), (3,), "mlp")


def product_and_map(rows: int, columns: int, depth: int) -> KernelGroup:
    """A product whose second factor lies transposed, kept, and a function of it, by rows."""
    f = float32
    x, w, y = Operand(f, rows * depth), Operand(f, columns * depth), Operand(f, rows * columns)
    product = Call("mul", (Load(0, 0, (depth, 0, 1), f), Load(1, 0, (0, depth, 1), f)), f)
    one = Kernel((rows, columns, depth), 2, "sum", product, Acc(f), (x, w), y, 0, (columns, 1))
    kept = Call("relu", (Load(0, 0, (columns, 1), f),), f)
    two = Kernel((rows, columns), 2, None, kept, Acc(f), (y,), y, 0, (columns, 1))
    return KernelGroup((Stage(one, (0, 1), 2), Stage(two, (FromStage(0),), 3)), 1, (x, w, y, y), (2, 3), "kept")


def turned_values(group: KernelGroup, keys: int, width: int) -> KernelGroup:
    """An attention whose values lie transposed, so that both products need their second factor packed."""
    last = group.stages[-1]
    assert isinstance(last.kernel.body, Call)
    weights, values = last.kernel.body.args
    assert isinstance(values, Load)
    body = replace(last.kernel.body, args=(weights, replace(values, strides=(keys * width, 0, keys, 1))))
    return replace(group, stages=(*group.stages[:-1], replace(last, kernel=replace(last.kernel, body=body))))
