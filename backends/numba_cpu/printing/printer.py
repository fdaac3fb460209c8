"""From expressions in index notation to lines of SIMD Python.

A :class:`Printer` prints them into scopes: what does not depend on the inner loop is loaded outside it, once. Usage::

    p = Printer(lanes=16)
    with p.scope("for i in range(0, 8):", "i"):          # binds the variable i
        with p.scope("for j in range(0, 64, 16):", "j"):
            view = View(axes=("i", "j"), vector=1, load=rule)
            p.store("out + 256 * i + 4 * j", 1, p.value(kernel.body, view), view)
    source = p.module()

``View.axes`` gives, for each axis of the kernel, the Python expression of its position (a variable name, a
sum of names, or a number); along the vectorized axis it is the position of lane 0. ``View.load`` says where an
operand's element lives; a load may also be answered by a value already in a register. Nothing is printed for a load
that is not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from eqsat.ir.axes import merged
from eqsat.ir.kernel import Acc, Call, Expr, Guarded, Index, Literal, Load, unique
from eqsat.ir.types import DType, bool_, int64
from eqsat_backends.numba_cpu.printing.scopes import Scopes, Value, kind_of, names_in

__all__ = ["Access", "Printer", "View", "affine", "reports"]

_SHIFTED = re.compile(r"(\w+) \+ (\d+)")


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load's element is: ``base`` (an address expression) plus an affine map, in elements.

    ``gathers``: strides of the load's index expressions, where they differ from the load's own.
    ``after``: names that must be bound before the element may be read, besides those in ``base`` (see
    :meth:`Printer.mark`): what else writes there.
    """

    base: str
    offset: int
    strides: tuple[int, ...]
    gathers: tuple[int, ...] | None = None
    after: frozenset[str] = frozenset()


LoadRule = Callable[[Load], Access | Value]


@dataclass(frozen=True)
class View:
    """How a kernel's axes and operands are seen at one point of the printed code.

    ``axes[a]``: Python expression for the position along axis a (of lane 0 along ``vector``).
    ``vector``: the vectorized axis, None if none is (then every value is uniform).
    ``count``: number of lanes in use, as an expression; None for all. ``acc``: the combined value.
    In a branch of a guard, ``mask`` has the lanes whose value it is: no other may be read. ``within``: names that
    must be bound before anything is read or checked (see :meth:`Printer.mark`).
    """

    axes: tuple[str, ...]
    vector: int | None
    load: LoadRule
    count: str | None = None
    acc: Value | None = None
    mask: Value | None = None
    within: frozenset[str] = frozenset()


class Printer(Scopes):
    """Prints expressions into a source text with ``lanes`` lanes to a vector.

    ``status``: variable with the status word's address. ``varying``: extents that are not known when code is made.
    """

    def __init__(self, lanes: int, status: str = "status", varying: frozenset[int] = frozenset()) -> None:
        super().__init__(lanes)
        self.varying = varying
        self.status = status
        self._ranges: dict[str, tuple[int, int]] = {}
        self._merged: dict[int, tuple[Expr, Expr]] = {}

    def reach(self, name: str, low: int, high: int) -> None:
        """A variable is in ``[low, high)``: what guards need not test."""
        self._ranges[name] = (low, high)

    def value(self, expr: Expr, view: View) -> Value:
        """Print ``expr`` as seen through ``view``; equal sub-expressions are printed once."""
        done: dict[int, Value] = {}
        if id(expr) not in self._merged:
            one = merged(expr)
            self._merged |= {id(expr): (expr, one), id(one): (one, one)}
        expr = self._merged[id(expr)][1]
        for e in unique(expr, branches=False):
            done[id(e)] = self._print(e, view, done)
        return done[id(expr)]

    def _print(self, expr: Expr, view: View, done: dict[int, Value]) -> Value:
        match expr:
            case Literal(value, dtype):
                return self.literal(value, dtype)
            case Acc():
                if view.acc is None:
                    raise ValueError("Acc outside an epilogue")
                return view.acc
            case Index(offset, strides, dtype):
                return self.index(offset, strides, dtype, view)
            case Load():
                return self._load(expr, view, done)
            case Call():
                return self._call(expr, view, done)
            case Guarded():
                return self._guarded(expr, view)
        raise TypeError(f"not an expression: {expr!r}")

    def index(self, offset: int, strides: tuple[int, ...], dtype: DType, view: View) -> Value:
        step = 0 if view.vector is None else strides[view.vector]
        start = affine("", offset, strides, view.axes)
        return self.emit(f"iota_{self.type(dtype)}({start}, {step})", dtype, names_in(start), step == 0)

    def _guarded(self, guard: Guarded, view: View) -> Value:
        """One of two branches, lane by lane; only that one where it is the same for all lanes, or an address decides.

        Values are printed where the test's variables are bound, so a test is outside of the loops that it is free of.
        """
        index, settled = guard.index, self._settled(guard, view)
        if settled is not None:
            return self.value(settled, view)
        step = 0 if view.vector is None else index.strides[view.vector]
        place = None if step else self._choice(guard, view)
        if place is not None:
            base, depends, stride = place
            if stride and view.vector is not None:
                base = affine(base, 0, (stride,), (view.axes[view.vector],), guard.dtype.itemsize)
                depends |= names_in(base)
            return self.load(base, guard.dtype, stride, depends, view.count, self._lanes_read(view))
        if step == 0 and any(isinstance(e, Call) for branch in (guard.inside, guard.outside) for e in unique(branch)):
            return self._branches(guard, view)
        start = affine("", index.offset, index.strides, view.axes)
        text = f"within_{self.type(bool_)}({start}, {step}, {guard.low}, {guard.high})"
        holds = self.emit(text, bool_, names_in(start), step == 0)
        inside = self.value(guard.inside, self._masked(view, holds))
        if self._leaves_zeros(guard, view):
            return inside
        if isinstance(guard.outside, Literal):
            outside = self.value(guard.outside, view)
        else:
            outside = self.value(guard.outside, self._masked(view, self.call("logical_not", holds)))
        return self.call("where", holds, inside, outside)

    def _leaves_zeros(self, guard: Guarded, view: View) -> bool:
        """Whether a masked load is the value, without a selection."""
        if view.vector is None or not guard.masks(view.vector):
            return False
        inside = guard.inside
        while isinstance(inside, Guarded):
            inside = inside.inside
        access = view.load(inside) if isinstance(inside, Load) else None
        return isinstance(access, Access) and access.strides[view.vector] != 0

    def _branches(self, guard: Guarded, view: View) -> Value:
        """A test that is the same for all lanes, as a statement: what takes arithmetic is not computed in vain."""
        start, name = affine("", guard.index.offset, guard.index.strides, view.axes), self.fresh()
        uniform = True
        test = f"if {guard.low} <= {start} < {guard.high}:"
        for header, branch in ((test, guard.inside), ("else:", guard.outside)):
            here = self.fresh("in")
            with self.scope(header, here):
                value = self.value(branch, replace(view, within=view.within | {here}))
                self.line(f"{name} = {value.name}")
                uniform &= value.uniform
        self.mark(name)
        return Value(name, guard.dtype, frozenset((name,)), uniform)

    def _masked(self, view: View, mask: Value) -> View:
        return replace(view, mask=mask if view.mask is None else self.call("logical_and", view.mask, mask))

    def _settled(self, guard: Guarded, view: View) -> Expr | None:
        """The branch that all lanes take, where the ranges of variables tell."""
        bounds = []
        for axis, (stride, text) in enumerate(zip(guard.index.strides, view.axes, strict=True)):
            known = self._range(text) if stride else (0, 1)
            if known is None:
                return None
            lanes = self.lanes if axis == view.vector else 1
            if axis == view.vector and view.count is not None and view.count.isdigit():
                lanes = int(view.count)
            bounds.append((known[0], known[1] + lanes - 1))
        return guard.branch(tuple(bounds))

    def _range(self, text: str) -> tuple[int, int] | None:
        """The first value of a position and the one after the last, where they are known."""
        if text.isdigit():
            return int(text), int(text) + 1
        shifted = _SHIFTED.fullmatch(text)
        known = self._ranges.get(shifted[1] if shifted else text)
        if known is None or shifted is None:
            return known
        return known[0] + int(shifted[2]), known[1] + int(shifted[2])

    def _choice(self, expr: Expr, view: View) -> tuple[str, frozenset[str], int] | None:
        """A load at lane 0 of position 0 of the vectorized axis, or one of several that tests equal in all lanes choose
        from: its address, the step between lanes, and variables. None for other expressions."""
        if isinstance(expr, Load):
            access = None if expr.gathers else view.load(expr)
            if access is None or isinstance(access, Value):
                return None
            step = 0 if view.vector is None else access.strides[view.vector]
            strides = tuple(0 if a == view.vector else s for a, s in enumerate(access.strides))
            return *self._address(expr, replace(access, strides=strides), view, {}), step
        if not isinstance(expr, Guarded) or (view.vector is not None and expr.index.strides[view.vector]):
            return None
        inside, outside = self._choice(expr.inside, view), self._choice(expr.outside, view)
        if inside is None or outside is None or inside[2] != outside[2]:
            return None
        start = affine("", expr.index.offset, expr.index.strides, view.axes)
        depends = inside[1] | outside[1] | names_in(start)
        text = f"({inside[0]}) if {expr.low} <= {start} < {expr.high} else ({outside[0]})"
        return self.emit(text, int64, depends, True).name, depends, inside[2]

    def _lanes_read(self, view: View) -> Value | None:
        """The lanes that a load in a branch of a guard may read; None outside of guards."""
        if view.mask is None or view.count is None:
            return view.mask
        text = f"first({view.mask.name}, {view.count}, {self.literal(False, bool_).name})"
        return self.emit(text, bool_, view.mask.depends | names_in(view.count), False)

    def _call(self, call: Call, view: View, done: dict[int, Value]) -> Value:
        args = [done[id(arg)] for arg in call.args]
        match call.fn:
            case "cast" | "flushing_cast":
                if kind_of(args[0].dtype) == kind_of(call.dtype):
                    return args[0]
                return self.call(f"to_{self.type(call.dtype)}", args[0], dtype=call.dtype)
            case "wrap_index":
                assert isinstance(call.attrs, int)
                return self._checked("wrap_index", args[0], (call.attrs,), view)
            case "pow" if reports(call):
                args[1] = self._checked("exponent", args[1], (), view)
            case "pow" if call.dtype.is_float and isinstance(n := call.args[1], Literal) and n.value in (2, 3, 4):
                return self._power(args[0], int(n.value))
            case "maximum" | "minimum" if isinstance(call.args[1], Literal):
                # a constant first makes it one instruction; both orders mean the same
                if not math.isnan(call.args[1].value):
                    args.reverse()
        return self.call(call.fn, *args, dtype=call.dtype)

    def _power(self, x: Value, power: int) -> Value:
        """``x`` to a power of 2 to 4 by multiplications: at most 1.5 ulp, and a hundredth of libm's time."""
        square = self.call("mul", x, x)
        if power == 2:
            return square
        return self.call("mul", square, x if power == 3 else square)

    def _checked(self, check: str, x: Value, arguments: tuple[int, ...], view: View) -> Value:
        """``check(x, arguments…, status)``; only the lanes in use count."""
        if view.mask is not None:
            x = self.call("where", view.mask, x, self.literal(0, x.dtype))
        words = [x.name, *map(str, arguments), self.status]
        partial = view.count is not None and not x.uniform
        text = f"{check}n({', '.join(words)}, {view.count})" if partial else f"{check}({', '.join(words)})"
        return self.emit(text, x.dtype, x.depends | view.within, x.uniform)

    def _load(self, load: Load, view: View, done: dict[int, Value]) -> Value:
        access = view.load(load)
        if isinstance(access, Value):
            return access
        step = 0 if view.vector is None else access.strides[view.vector]
        address, depends = self._address(load, access, view, done)
        varying = [(i, s) for i, s in self._indices(load, access, view, done) if not i.uniform]
        if varying:
            return self._gather(load, address, depends, step, varying, view)
        return self.load(address, load.dtype, step, depends, view.count, self._lanes_read(view))

    def load(
        self,
        address: str,
        dtype: DType,
        step: int,
        depends: frozenset[str],
        count: str | None = None,
        mask: Value | None = None,
    ) -> Value:
        """Load lanes ``step`` elements apart (0: one element in all lanes), the first ``count`` of them.

        With ``mask`` only its lanes are read; it is then none but the first ``count``.
        """
        kind, size = self.type(dtype), dtype.itemsize
        if mask is not None:
            depends |= mask.depends
            if step in (0, 1):
                name = "bcastm" if step == 0 else "loadm"
                return self.emit(f"{name}_{kind}({address}, {mask.name})", dtype, depends, step == 0)
            return self.emit(f"stridedm_{kind}({address}, {step * size}, {mask.name})", dtype, depends, False)
        tail, n = ("", "") if count is None else ("n", f", {count}")
        if step == 0:
            return self.emit(f"bcast_{kind}({address})", dtype, depends, True)
        depends |= names_in(n)
        if step == 1:
            return self.emit(f"load{tail}_{kind}({address}{n})", dtype, depends, False)
        return self.emit(f"strided{tail}_{kind}({address}, {step * size}{n})", dtype, depends, False)

    def _address(self, load: Load, access: Access, view: View, done: dict[int, Value]) -> tuple[str, frozenset[str]]:
        """Address of lane 0, with the indices that are the same in all lanes added as scalars."""
        size = load.dtype.itemsize
        text = affine(access.base, access.offset, access.strides, view.axes, size)
        depends = names_in(text) | access.after | view.within
        for value, stride in self._indices(load, access, view, done):
            if value.uniform:
                text = f"{text} + {stride * size} * {self._scalar(value)}"
                depends |= value.depends
        return text, depends

    def _indices(self, load: Load, access: Access, view: View, done: dict[int, Value]) -> list[tuple[Value, int]]:
        """Printed index expressions, each with its stride in elements."""
        strides = access.gathers or tuple(stride for _, stride in load.gathers)
        return [(done[id(i)], s) for (i, _), s in zip(load.gathers, strides, strict=True)]

    def _scalar(self, value: Value) -> str:
        scope = self._home(value.depends)
        return self.emit(f"lane0({value.name})", value.dtype, value.depends, True, scope).name

    def _gather(
        self, load: Load, address: str, depends: frozenset[str], step: int, varying: list[tuple[Value, int]], view: View
    ) -> Value:
        total: Value | None = None
        for index, stride in varying:
            if kind_of(index.dtype) != "i64":
                index = self.call(f"to_{self.type(int64)}", index, dtype=int64)
            if stride != 1:
                index = self.call("mul", self.literal(stride, int64), index)
            total = index if total is None else self.call("add", total, index)
        assert total is not None
        if step:
            lanes = self.emit(f"iota_{self.type(int64)}(0, {step})", int64, frozenset(), False)
            total = self.call("add", total, lanes)
        tail, n = ("", "") if view.count is None else ("n", f", {view.count}")
        mask = self._lanes_read(view)
        if mask is not None:
            tail, n, depends = "m", f", {mask.name}", depends | mask.depends
        text = f"gather{tail}_{self.type(load.dtype)}({address}, {total.name}{n})"
        return self.emit(text, load.dtype, depends | total.depends, False)

    # stores

    def store(self, address: str, step: int, value: Value, count: str | None = None) -> None:
        """Store the lanes ``step`` elements apart; the first ``count`` of them. Step 0: lane 0 alone."""
        tail, n = ("", "") if count is None else ("n", f", {count}")
        if step == 0:
            self.line(f"storen({address}, {value.name}, 1)")
        elif step == 1:
            self.line(f"store{tail}({address}, {value.name}{n})")
        else:
            self.line(f"scatter{tail}({address}, {value.name}, {step * value.dtype.itemsize}{n})")


def affine(base: str, offset: int, strides: Sequence[int], axes: Sequence[str], size: int = 1) -> str:
    """``base + size·(offset + Σ strides[a]·axes[a])`` as Python, without the terms that are zero."""
    terms = [base] if base else []
    constant = offset
    for stride, axis in zip(strides, axes, strict=True):
        if not stride:
            continue
        if shifted := _SHIFTED.fullmatch(axis):  # "j + 16": a constant that joins the others
            axis = shifted[1]
            constant += stride * int(shifted[2])
        if axis.isdigit():
            constant += stride * int(axis)
            continue
        factor = stride * size
        inner = axis if axis.isidentifier() else f"({axis})"
        terms.append(inner if factor == 1 else f"{factor} * {inner}")
    if constant or not terms:
        terms.append(str(constant * size))
    return " + ".join(terms).replace("+ -", "- ")


def reports(expr: Expr) -> bool:
    """Whether a kernel of this expression may have to set the status word."""
    if not isinstance(expr, Call):
        return False
    if expr.fn == "pow":
        return expr.dtype.kind == "int" and expr.dtype.is_signed and not isinstance(expr.args[1], Literal)
    return expr.fn == "wrap_index"
