"""Kernel groups at random, on data on which whatever order of execution gives one result, bit for bit.

Numbers are small integers, so sums are exact in float32; factors of long products are powers of two. Some operands hold
NaN, infinities and the ends of integer types.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from eqsat.ir.contraction import product_of
from eqsat.ir.interpret import run_group
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
    map_expr,
    unique,
)
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp, show
from eqsat.ir.siblings import are_siblings
from eqsat.ir.types import DType, bool_, float32, float64, int32, int64
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.printing.emitted import Emitted

Case = tuple[KernelGroup, list[np.ndarray]]
Value = tuple[Expr, int]
"""An expression, and the greatest magnitude that it takes where operands hold small integers."""

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 65, 130)
POINTS = 40_000
"""Points of an iteration space at most: enough for some reductions to be split."""
SMALL = 48
"""Magnitude of what later stages and products read: what is greater is taken modulo this."""
EXACT = 1 << 23
"""Sums below are exact in float32."""
FILL = 0x5A
"""Every byte of what nobody has written yet."""


@dataclass
class _Maker:
    """Operands of a group as they are drawn. ``made``: for each stage that is there its kernel, and its bound."""

    draw: st.DrawFn
    rng: np.random.Generator
    hard: bool
    shared: int = 0
    operands: list[Operand] = field(default_factory=list)
    arrays: list[np.ndarray] = field(default_factory=list)
    made: list[tuple[Kernel, int]] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    """Operands that hold small numbers: several loads may read them."""

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(1, one_in)) == 1

    def operand(self, array: np.ndarray, dtype: DType, const: bool = False) -> int:
        self.operands.append(Operand(dtype, array.size, const))
        self.arrays.append(array.astype(dtype.numpy))
        return len(self.operands) - 1

    def numbers(self, size: int, dtype: DType) -> np.ndarray:
        if dtype == bool_:
            return self.rng.random(size) < 0.5
        found = self.rng.integers(-3, 4, size).astype(dtype.numpy)
        if self.hard and self.chance(2):
            ends = [np.nan, np.inf, -np.inf] if dtype.is_float else [np.iinfo(dtype.numpy).max]
            places = self.rng.random(size) < self.draw(st.sampled_from([0.002, 0.02, 0.3]))
            found[places] = self.rng.choice(np.array(ends, dtype.numpy), int(places.sum()))
        return found


@dataclass
class _StageMaker:
    """One stage as it is drawn: expressions over axes of ``extents``, the first ``parallel`` of them parallel."""

    group: _Maker
    extents: tuple[int, ...]
    parallel: int
    sources: list[int | FromStage] = field(default_factory=list)

    # where loads read

    def strides(self, axes: Sequence[int], extents: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
        """Any walk over ``axes``: permuted, backwards, with gaps, as a window; offset, and elements that it needs."""
        draw, strides, low, high = self.group.draw, [0] * len(extents), 0, 0
        step = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
        before = step
        for axis in draw(st.permutations(axes)):
            kind = draw(st.sampled_from(["plain"] * 8 + ["backwards", "gap", "window", "broadcast"]))
            if kind == "broadcast":
                continue
            before = strides[axis] = before if kind == "window" else step
            reach = before * max(0, extents[axis] - 1)
            if kind == "backwards":
                strides[axis], low = -before, low - reach
            else:
                high += reach
            step = max(step, high - low + 1 + 2 * (kind == "gap"))
        offset = draw(st.sampled_from([0, 0, 0, 1, 5])) - low
        return tuple(strides), offset, offset + high + 1

    def local(self, source: int | FromStage) -> int:
        if source not in self.sources:
            self.sources.append(source)
        return self.sources.index(source)

    def external(self, axes: Sequence[int], extents: Sequence[int], dtype: DType, gathers: bool = True) -> Value:
        """A load of an operand, by some axes; ``gathers``: or at positions that an index operand holds."""
        group = self.group
        strides, offset, size = self.strides(axes, extents)
        gather: tuple[tuple[Expr, int], ...] = ()
        if gathers and group.chance(6):
            rows = group.draw(st.integers(1, 9))
            gather = ((self.index(axes, extents, rows), size),)
            size *= rows
        known = [n for n in group.plain if group.operands[n].dtype == dtype and group.operands[n].size >= size]
        if known and group.chance(3):
            number = group.draw(st.sampled_from(known))
        else:
            number = group.operand(group.numbers(size, dtype), dtype, group.chance(4))
            group.plain.append(number)
        return Load(self.local(number), offset, strides, dtype, gather), 3 if dtype.kind != "bool" else 1

    def index(self, axes: Sequence[int], extents: Sequence[int], rows: int) -> Expr:
        """An index in ``[0, rows)``: of an operand of indices, negative ones too, or a position modulo it."""
        group = self.group
        dtype = group.draw(st.sampled_from([int64, int32]))
        near = [a for a in axes if group.chance(2)]
        small = [a for a in near if 0 < extents[a] <= rows]
        if small and group.chance(4):
            return Index(0, tuple(int(a == small[0]) for a in range(len(extents))), dtype)
        strides, offset, size = self.strides(near, extents)
        number = group.operand(group.rng.integers(-rows, rows, size), dtype)
        return Call("wrap_index", (Load(self.local(number), offset, strides, dtype),), dtype, rows)

    def staged(self, axes: Sequence[int], dtype: DType) -> Value | None:
        """What an earlier stage made, at the same shared position: any walk over its own axes, parts, windows."""
        group, draw = self.group, self.group.draw
        found = [n for n, (kernel, _) in enumerate(group.made) if kernel.out.dtype == dtype]
        if not found or not set(range(group.shared)) <= set(axes):
            return None
        number = draw(st.sampled_from(found))
        kernel, bound = group.made[number]
        strides, offset = [0] * len(self.extents), kernel.store_offset
        strides[: group.shared] = kernel.store_strides[: group.shared]
        free = [a for a in axes if a >= group.shared]
        for axis in range(group.shared, kernel.parallel):
            room, stride = kernel.extents[axis], kernel.store_strides[axis]
            for _ in range(2 if group.chance(5) else 1):  # two axes: a window
                fits = [a for a in free if self.extents[a] <= room]
                if not fits:
                    break
                # the axis of the same length, if there is one: then both stages may be one pass
                same = [a for a in fits if self.extents[a] == room]
                own = draw(st.sampled_from(same if same and not group.chance(4) else fits))
                free.remove(own)
                reach = max(0, self.extents[own] - 1)
                backwards = group.chance(8)
                strides[own] = -stride if backwards else stride
                offset += stride * reach * backwards
                room -= reach
            offset += stride * draw(st.integers(0, max(0, room - 1)))
        return Load(self.local(FromStage(number)), offset, tuple(strides), dtype), bound

    # what is computed

    def cast(self, value: Value, dtype: DType) -> Value:
        expr, bound = value
        if expr.dtype == dtype:
            return value
        if expr.dtype.is_float and not dtype.is_float:  # NaN has no integer
            one = Call("gt", (expr, Literal(0, expr.dtype)), bool_)
            return (one, 1) if dtype == bool_ else (Call("cast", (one,), dtype), 1)
        if expr.dtype != bool_ and (bound > EXACT or (self.group.hard and dtype.is_float)):
            expr, bound = self.folded((expr, EXACT + 1), True)  # the end of an integer type is no small number
        if dtype == bool_:
            return Call("ne", (expr, Literal(0, expr.dtype)), bool_), 1
        return Call("cast", (expr,), dtype), bound

    def folded(self, value: Value, small: bool) -> Value:
        """The value, kept ``small`` for who reads it: its remainder, or cut off."""
        expr, bound = value
        if not small or bound <= SMALL or expr.dtype == bool_:
            return value
        dtype = expr.dtype
        if self.group.chance(4):
            low = Call("maximum", (expr, Literal(-SMALL, dtype)), dtype)
            return Call("minimum", (low, Literal(SMALL, dtype)), dtype), SMALL
        return Call("remainder", (expr, Literal(SMALL, dtype)), dtype), SMALL

    def leaf(self, axes: Sequence[int], extents: Sequence[int], dtype: DType, alone: bool = False) -> Value:
        """A load of an operand or (unless ``alone``) of a stage, or positions."""
        group = self.group
        if not alone and not group.chance(4):
            of = dtype if group.chance(2) else group.draw(st.sampled_from([float32, float64, int64, bool_]))
            found = self.staged(axes, of) or self.staged(axes, dtype)
            if found:
                return self.cast(found, dtype)
        if group.chance(8) and dtype != bool_:
            strides = tuple(group.draw(st.integers(-2, 2)) if a in axes else 0 for a in range(len(extents)))
            position = Index(group.draw(st.integers(-9, 9)), strides, group.draw(st.sampled_from([int64, int32])))
            return self.cast((position, 9 + sum(2 * n for n in extents)), dtype)
        of = group.draw(st.sampled_from([dtype] * 9 + [float32, int64, int32, bool_]))
        return self.cast(self.external(axes, extents, of), dtype)

    def value(self, axes: Sequence[int], dtype: DType, depth: int = 2, extents: tuple[int, ...] = ()) -> Value:
        """An expression over ``axes`` of small numbers."""
        group, alone = self.group, bool(extents)
        extents = extents or self.extents
        kind = group.draw(st.sampled_from(["leaf", "leaf", "guard", "call"])) if depth else "leaf"
        if kind == "guard" and axes:
            return self.guarded(axes, dtype, depth, extents, alone)
        if kind != "call":
            return self.leaf(axes, extents, dtype, alone)

        def one(of: DType = dtype) -> Value:
            return self.folded(self.value(axes, of, depth - 1, extents if alone else ()), True)

        if group.chance(4):
            kinds = group.draw(st.sampled_from([float32, int64, int32, float64]))
            compared = Call(group.draw(st.sampled_from(["lt", "ge", "eq"])), (one(kinds)[0], one(kinds)[0]), bool_)
            if dtype == bool_:
                return compared, 1
            (x, m), (y, n) = one(), one()
            return Call("where", (compared, x, y), dtype), max(m, n)
        (x, m), (y, n) = one(), one()
        if dtype == bool_:
            return Call(group.draw(st.sampled_from(["logical_and", "logical_or", "logical_xor"])), (x, y), dtype), 1
        fn = group.draw(st.sampled_from(["add", "sub", "maximum", "minimum", "mul", "neg", "abs", "square", "sign"]))
        if fn in ("neg", "abs", "square", "sign"):
            return Call(fn, (x,), dtype), {"square": m * m, "sign": 1}.get(fn, m)
        return Call(fn, (x, y), dtype), {"add": m + n, "sub": m + n, "mul": m * n}.get(fn, max(m, n))

    def guarded(self, axes: Sequence[int], dtype: DType, depth: int, extents: tuple[int, ...], alone: bool) -> Value:
        """A value within a part of one axis or of a sum of axes; one of one axis may have nothing to read outside."""
        group, draw = self.group, self.group.draw
        axis = draw(st.sampled_from(list(axes)))
        extent, rank = extents[axis], len(extents)
        outside = self.value(axes, dtype, depth - 1, extents if alone else ())
        if group.chance(3):
            outside = Literal(draw(st.sampled_from([0, 1])), dtype), 1
        if extent and not group.chance(3):
            low = draw(st.integers(0, extent - 1))
            high = draw(st.integers(low + 1, extent))
            within = (*extents[:axis], high - low, *extents[axis + 1 :])
            (inside, bound) = self.value(axes, dtype, depth - 1, within)

            def moved(expr: Expr) -> Expr:
                if isinstance(expr, Load | Index):
                    return replace(expr, offset=expr.offset - expr.strides[axis] * low)
                return expr

            inside = map_expr(inside, moved)
            stride = draw(st.sampled_from([1, 1, 1, -1, 2]))
            index = Index(0, tuple(stride * (a == axis) for a in range(rank)), int64)
            ends = sorted((stride * low, stride * (high - 1)))
            guard = Guarded(index, ends[0], ends[1] + 1, inside, outside[0])
        else:
            (inside, bound) = self.value(axes, dtype, depth - 1, extents if alone else ())
            index = Index(0, tuple(draw(st.integers(-1, 2)) if a in axes else 0 for a in range(rank)), int64)
            low = draw(st.integers(-extent, 2 * extent))
            guard = Guarded(index, low, low + draw(st.integers(0, 2 * extent + 1)), inside, outside[0])
        return guard, max(bound, outside[1])

    # kernels

    def kernel(self, combine: Combine | None, body: Value, last: bool) -> Kernel:
        """The kernel of a body, with any epilogue and store."""
        group, draw = self.group, self.group.draw
        expr, bound = body
        kept = range(self.parallel)
        acc = int64 if combine in ("argmax", "argmin") else expr.dtype
        result: Value = Acc(acc), bound
        if combine is not None and group.chance(2):
            result = self.cast(result, draw(st.sampled_from([acc, acc, float32, int64])))
            of = result[0].dtype
            other, more = self.value(list(kept), of, 1)
            fn = "logical_or" if of == bool_ else draw(st.sampled_from(["add", "sub", "maximum", "minimum"]))
            if bound + more < EXACT or not of.is_float:
                result = Call(fn, (result[0], other), of), bound + more
        if not last:
            result = self.folded(result, True)
        stored, bound = result
        if combine is None:
            expr, stored = stored if not isinstance(stored, Acc) else expr, Acc(expr.dtype)
            if isinstance(result[0], Call):
                expr = map_expr(result[0], lambda e: body[0] if isinstance(e, Acc) else e)
        strides, step, low = [0] * self.parallel, draw(st.sampled_from([1, 1, 1, 2])), 0
        for axis in draw(st.permutations(list(kept))) if group.chance(3) else reversed(kept):
            strides[axis] = step
            if last and group.chance(20):
                strides[axis], low = -step, low + step * max(0, self.extents[axis] - 1)
            step *= max(1, self.extents[axis])
        offset = low + (draw(st.sampled_from([0, 0, 2])) if last else 0)
        out = Operand(stored.dtype, offset + step)
        operands = tuple(group.operands[s] if isinstance(s, int) else group.made[s.stage][0].out for s in self.sources)
        made = Kernel(self.extents, self.parallel, combine, expr, stored, operands, out, offset, tuple(strides))
        group.made.append((made, bound))
        return made

    def draw_kernel(self, kind: str, dtype: DType, last: bool) -> Kernel:
        group, draw = self.group, self.group.draw
        axes, count = list(range(len(self.extents))), math.prod(self.extents[self.parallel :])
        if kind == "map":
            return self.kernel(None, self.value(axes, dtype), last)
        if kind == "product":
            roles = [draw(st.sampled_from("mmnnb")) for _ in range(group.shared, self.parallel)]
            if "n" not in roles and not group.chance(5):
                roles[-1:] = ["n"]
            role = [*draw(st.sampled_from(["m" * group.shared] * 5 + ["b" * group.shared])), *roles]
            first, second = ([a for a in axes if a >= self.parallel or role[a] in own] for own in ("mb", "nb"))
            both: list[Value] = []
            for own in (first, second):
                plain = not group.chance(4)
                late = self.staged(own, dtype) if plain and own is first else None
                value = late or (self.external(own, self.extents, dtype) if plain else self.value(own, dtype, 1))
                both.append(self.folded(value, True))
            (a, m), (b, n) = both if group.chance(2) else both[::-1]
            return self.kernel("sum", (Call("mul", (a, b), dtype), m * n * max(1, count)), last)
        combine: Combine = kind  # type: ignore[assignment]
        if combine == "prod" and dtype.is_float:
            strides, offset, size = self.strides(axes, self.extents)
            odd = group.rng.random(size) < min(0.5, 60 / max(1, count))
            powers = np.where(odd, group.rng.choice([0.5, 2.0, -1.0, -2.0], size), 1.0)
            return self.kernel(
                "prod", (Load(self.local(group.operand(powers, dtype)), offset, strides, dtype), EXACT), last
            )
        body = self.value(axes, dtype)
        if combine in ("sum", "prod"):
            if dtype.is_float and body[1] * count > EXACT:
                body = self.folded(body, True)
            return self.kernel(combine, (body[0], body[1] * max(1, count)), last)
        return self.kernel(combine, (body[0], count if "arg" in combine else body[1]), last)


KINDS = (
    "map",
    "map",
    "product",
    "product",
    "product",
    "product",
    "sum",
    "sum",
    "prod",
    "max",
    "min",
    "argmax",
    "argmin",
)


def _kind(draw: st.DrawFn, dtype: DType) -> str:
    return draw(st.sampled_from([k for k in KINDS if dtype != bool_ or k not in ("product", "sum", "prod")]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A group of 1 to 4 stages, kernels of up to 7 axes, and its operands; results are bytes that nobody wrote."""
    group = _Maker(draw, np.random.default_rng(draw(st.integers(0, 1 << 16))), draw(st.integers(0, 5)) == 0)
    stages = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 0]))
    if not stages:
        return _beside(draw, group, draw(st.integers(2, 4)))
    extents = st.sampled_from(EXTENTS)
    group.shared = 0 if stages == 1 else draw(st.sampled_from([1, 1, 2, 3]))
    shared = [draw(extents) for _ in range(group.shared)]
    while math.prod(shared) > 800:
        shared[shared.index(max(shared))] //= 4
    common = [draw(extents) for _ in range(2)]
    empty = draw(st.integers(0, 30)) == 0
    floats = draw(st.sampled_from([[float32], [float32], [float64], [float32, float64]]))
    dtypes = [*floats * 3, *draw(st.sampled_from([[], [int32, int64, bool_]]))]
    made: list[tuple[Kernel, tuple[int | FromStage, ...]]] = []
    for number in range(stages):
        dtype = draw(st.sampled_from(dtypes))
        kind = _kind(draw, dtype)
        ranks = st.integers(1, 4 - group.shared) if stages > 1 else st.integers(3 if kind == "product" else 1, 7)
        own = [draw(st.sampled_from(common) if stages > 1 else extents) for _ in range(draw(ranks))]
        parallel = draw(st.integers(group.shared > 0 and kind != "map", len(own))) if kind != "map" else len(own)
        parallel = len(own) - 1 if "arg" in kind else min(parallel, len(own) - (kind != "map"))
        if kind == "product":
            own += [draw(st.sampled_from(common))] * (len(own) < 2)
            parallel = max(1, parallel)
        if stages == 1 and kind != "product" and draw(st.integers(0, 7)) == 0:
            own[draw(st.integers(0, len(own) - 1))] = draw(st.sampled_from([700, 3000, POINTS]))
        if empty and draw(st.booleans()):
            own[-1] = 0
        room = max(1, POINTS // max(1, math.prod(shared)))
        while math.prod(max(1, n) for n in own) > room:
            own[own.index(max(own))] = max(1, min(max(own) // 3, 17))
        if kind in ("max", "min", "argmax", "argmin"):
            own[parallel:] = [max(1, n) for n in own[parallel:]]
        maker = _StageMaker(group, (*shared, *own), group.shared + parallel)
        made.append((maker.draw_kernel(kind, dtype, number == stages - 1), ()))
        made[-1] = made[-1][0], tuple(maker.sources)
    return _case(draw, group, made)


@st.composite
def long_cases(draw: st.DrawFn) -> Case:
    """Kernels that other cases are too short for: maps of results that may go past the caches, products of few rows
    whose second factor is read once."""
    group = _Maker(draw, np.random.default_rng(draw(st.integers(0, 1 << 16))), draw(st.integers(0, 5)) == 0)
    dtype = draw(st.sampled_from([float32, float32, float64]))
    if draw(st.booleans()):
        rows = draw(st.sampled_from([1, 2, 3, 5]))
        columns = draw(st.sampled_from([(1 << 16) // rows + 16, 22_000, 65_552 // rows]))
        maker = _StageMaker(group, (rows, columns), 2)
        kernel = maker.draw_kernel("map", dtype, True)
    else:
        columns, summed = draw(st.sampled_from([(300, 90), (520, 64), (130, 300), (1000, 17)]))
        maker = _StageMaker(group, (draw(st.integers(2, 4)), columns, summed), 2)
        first, bound = maker.folded(maker.value([0, 2], dtype, 1), True)
        row, offset = columns + draw(st.sampled_from([0, 0, 3])), draw(st.sampled_from([0, 5]))
        rows = maker.local(group.operand(group.numbers(offset + row * summed, dtype), dtype, group.chance(6)))
        second = Load(rows, offset, (0, 1, row), dtype)
        kernel = maker.kernel("sum", (Call("mul", (first, second), dtype), 3 * bound * summed), True)
    return _case(draw, group, [(kernel, tuple(maker.sources))])


def _beside(draw: st.DrawFn, group: _Maker, count: int) -> Case:
    """So many reductions over one iteration space, side by side."""
    own = [draw(st.sampled_from(EXTENTS)) for _ in range(draw(st.integers(1, 4)))]
    parallel = draw(st.integers(0, len(own) - 1))
    if draw(st.integers(0, 2)) == 0:
        own[draw(st.integers(0, len(own) - 1))] = draw(st.sampled_from([700, 3000, POINTS]))
    while math.prod(own) > POINTS:
        own[own.index(min(n for n in own if n > 1))] = 1
    kinds = ["sum", "sum", "prod", "max", "min"]
    if draw(st.integers(0, 15)) == 0:
        own[draw(st.integers(0, len(own) - 1))] = 0
        kinds = kinds[:3] if 0 in own[parallel:] else kinds
    made: list[tuple[Kernel, tuple[int | FromStage, ...]]] = []
    for number in range(count):
        kind = draw(st.sampled_from(kinds))
        dtype = draw(st.sampled_from([float32, float32, float32, float64, int32, int64]))
        maker = _StageMaker(group, tuple(own), parallel)
        kernel = maker.draw_kernel(kind, dtype, number == 0)
        group.made.clear()  # none reads another
        if made:
            first = made[0][0]
            out = Operand(kernel.out.dtype, first.out.size)
            kernel = replace(kernel, store_strides=first.store_strides, store_offset=first.store_offset, out=out)
        made.append((kernel, tuple(maker.sources)))
    return _case(draw, group, made)


def _case(draw: st.DrawFn, group: _Maker, made: Sequence[tuple[Kernel, tuple[int | FromStage, ...]]]) -> Case:
    """The group of these kernels, each with what it reads: results that nobody reads are stored, of others some."""
    read = {s.stage for _, sources in made for s in sources if isinstance(s, FromStage)}
    outputs, found = [], []
    for number, (kernel, sources) in enumerate(made):
        result = None
        if number not in read or draw(st.integers(0, 2)) == 0:
            result = group.operand(np.zeros(kernel.out.size), kernel.out.dtype)
            group.arrays[-1].view(np.uint8)[:] = FILL if kernel.out.dtype != bool_ else 1
            outputs.append(result)
        found.append(Stage(kernel, sources, result))
    return KernelGroup(tuple(found), group.shared, tuple(group.operands), tuple(outputs), "random"), group.arrays


# running


def aligned(array: np.ndarray) -> np.ndarray:
    """A flat copy on a cache line, with some bytes behind it that nobody should write."""
    raw = np.full(array.nbytes + 192, FILL, np.uint8)
    start = -raw.ctypes.data % 64
    flat = raw[start : start + array.nbytes].view(array.dtype)
    flat[:] = array.reshape(-1)
    return flat


def run(emitted: Emitted, arrays: Sequence[np.ndarray], threads: int) -> list[np.ndarray]:
    """Run a printed group on copies of its operands, thread after thread; returns them, outputs written."""
    packs = {pack.operand: pack for pack in emitted.packs}
    buffers = [aligned(packs[i].apply(a) if i in packs else a) for i, a in enumerate(arrays)]
    shared = aligned(np.full(emitted.shared_bytes, FILL, np.uint8))
    scratch = aligned(np.full(emitted.thread_bytes * threads, FILL, np.uint8))
    status = np.zeros(8, np.int64)
    table = np.array([x.ctypes.data for x in (*buffers, shared, scratch, status)], np.int64)
    addresses = compile_module(emitted.source, emitted.phases)
    for phase in emitted.phases:
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(addresses[phase])
        for thread in reversed(range(threads)):
            call(table.ctypes.data, thread, threads)
    assert not status[0], "an index out of range was reported"
    for buffer in (*buffers, shared, scratch):
        end = (buffer.ctypes.data + buffer.nbytes) - buffer.base.ctypes.data  # type: ignore[union-attr]
        assert (buffer.base[end : end + 32] == FILL).all(), "bytes behind a buffer were written"  # type: ignore[index]
    return [arrays[i] if i in packs else buffer for i, buffer in enumerate(buffers)]


def wanted(case: Case) -> list[np.ndarray]:
    """All operands after the group has run, by the meaning of its kernels."""
    group, arrays = case
    found = [array.copy() for array in arrays]
    run_group(group, found)
    return found


def same(emitted: Emitted, case: Case, want: Sequence[np.ndarray], nest: Nest, threads: int) -> None:
    """Every element of every operand is as it should be, those that nothing stores to included."""
    for number, (mine, right) in enumerate(zip(run(emitted, case[1], threads), want, strict=True)):
        message = f"operand {number} by {show(nest)}, {threads} threads\n{case[0]}\n{emitted.source}"
        np.testing.assert_array_equal(mine, right, err_msg=message)


# what was drawn


def terms(nest: Nest) -> Iterator[Nest]:
    yield nest
    for body in nest.bodies if isinstance(nest, Seq) else () if isinstance(nest, TileOp) else (nest.body,):
        yield from terms(body)


def features(group: KernelGroup) -> set[str]:
    """What the kernels of a group are: the words of the sentence that the tests are held to."""
    found = {f"{len(group.stages)} stages", *["side by side"] * are_siblings(group)}
    for stage in group.stages:
        kernel, exprs = stage.kernel, unique(stage.kernel.body, stage.kernel.epilogue)
        found |= {f"{len(kernel.extents)} axes", str(kernel.combine), str(kernel.body.dtype), str(kernel.out.dtype)}
        loads = [e for e in exprs if isinstance(e, Load)]
        long = [a for a, n in enumerate(kernel.extents) if n > 1]
        late = [n for n, source in enumerate(stage.sources) if isinstance(source, FromStage)]
        product = product_of(kernel, max(0, group.shared - 1), min(1, group.shared), late)

        def moving(load: Load, long: Sequence[int] = long) -> int:
            return sum(load.strides[a] != 0 for a in long)

        checks = {
            "negative stride": any(s < 0 for e in loads for s in e.strides),
            "broadcast": any(e.strides[a] == 0 for e in loads for a in long),
            "offset": any(e.offset for e in loads),
            "window": any(
                len({e.strides[a] for a in long} - {0}) < sum(e.strides[a] != 0 for a in long) for e in loads
            ),
            "gathered": any(e.gathers for e in loads),
            "gathered in a branch": any(
                isinstance(e, Load) and e.gathers for g in exprs if isinstance(g, Guarded) for e in unique(g.inside)
            ),
            "guarded": any(isinstance(e, Guarded) for e in exprs),
            "guarded by several axes": any(isinstance(e, Guarded) and e.held is None for e in exprs),
            "guards in guards": any(
                isinstance(e, Guarded) for g in exprs if isinstance(g, Guarded) for e in unique(g.inside, g.outside)
            ),
            "guarded epilogue": any(isinstance(e, Guarded) for e in unique(kernel.epilogue)),
            "empty": 0 in kernel.extents,
            "extent 1": 1 in kernel.extents,
            "several reduced axes": len(kernel.extents) - kernel.parallel > 1,
            "split": kernel.points >= 1 << 15 and kernel.combine is not None,
            "contraction": product is not None,
            "several batch axes": product is not None and len(product.b) > 1,
            "several rows' axes": product is not None and len(product.m) > 1 and len(group.stages) == 1,
            "several columns' axes": product is not None and len(product.n) > 1,
            "several summed axes": product is not None and len(product.k) > 1,
            "computed factor": product is not None and not all(isinstance(f, Load) for f in product.factors(kernel)),
            "constant operand": any(o.const for o in kernel.operands),
            "stores backwards": any(s < 0 for s in kernel.store_strides),
            "reads a stage": bool(late),
            "contraction of a stage": product is not None and bool(late),
        }
        found |= {name for name, holds in checks.items() if holds}
    return found


def terms_of(nest: Nest) -> set[str]:
    """Which terms a nest has."""
    found = set()
    for term in terms(nest):
        match term:
            case Loop(parallel=parallel, split=split, cyclic=cyclic, peel=peel):
                found |= {"loop", *["parallel loop"] * parallel, *["split loop"] * split, *["cyclic loop"] * cyclic}
                found |= {*["peeled loop"] * peel}
            case Pack(ahead=ahead, fused=fused, piece=piece):
                found.add("packed ahead" if ahead else "packed")
                found |= {*["fused copy"] * fused, *["copied in pieces"] * (piece > 0)}
            case Seq(bodies):
                found.add("sequence")
                found |= {"tiles side by side"} if all(isinstance(body, TileOp) for body in bodies) else set()
            case TileOp(name, sizes, stream=stream, prefetch=prefetch, ahead=ahead, claim=claim):
                jams = name in ("map", "reduce") and len(sizes) > 1
                found |= {name, *["streamed"] * stream, *["jammed"] * jams, *["prefetch"] * (prefetch > 0)}
                found |= {*["claim"] * claim, *["panels ahead"] * (ahead > 0)}
    return found
