"""Builders of random statements that write to arrays: their own, the program's arguments, and views of both.

See :mod:`eqsat.verify.operators`. What is written to may share memory with other values, which change with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from eqsat.verify.drafts import Builder, Draft, Made, Reject, Value

WRITE_OPERATORS: dict[str, Builder] = {}
_RANKS = "bifc"


def _operator(*names: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        for name in names:
            WRITE_OPERATORS[name] = build
        return build

    return add


@_operator("copy", "zeros", "empty_like")
def _array(d: Draft) -> Made:
    """An array to write to."""
    x = d.pick(lambda v: v.ndim > 0)
    forms = (
        (f"{x.name}.copy()", x.exact),
        (f"np.zeros({x.shape}, np.{x.dtype})".replace("np.bool", "bool"), True),
        (f"np.zeros_like({x.name})", True),
        (f"np.full_like({x.name}, 1)", True),
        (f"np.ones({x.shape[::-1]}, np.{x.dtype})".replace("np.bool", "bool"), True),
        (f"np.array({x.name})", x.exact),
    )
    expression, exact = d.choose(forms)
    return Made(expression, exact=exact, fresh=True)


def _target(d: Draft, ndim: int = 1) -> Value:
    return d.pick(lambda v: v.writable and v.ndim >= ndim and v.array.size > 0)


def _place(d: Draft, t: Value) -> tuple[str, np.ndarray]:
    """A part of an array: its text, and what is there."""
    parts = []
    for extent in t.shape[: 1 + d.below(t.ndim)]:
        case = d.below(6)
        if case == 0:
            parts.append(str(d.below(2 * extent) - extent))
        elif case == 1:
            parts.append(":")
        else:
            parts.append(d.choose(("1:", ":-1", "::2", "1:-1", "-3:", "::-1", "1::3", "-2::-2", "2:100")))
    text = f"{t.name}[{', '.join(parts)}]"
    found = eval(text, {t.name: t.array})
    return text, np.asarray(found)


def _fits(t: Value, v: Value) -> bool:
    """Whether values may be assigned: a float into integers only where it is exact and small."""
    if _RANKS.index(v.kind) <= _RANKS.index(t.kind):
        return True
    return t.kind == "i" and v.kind == "f" and v.exact and v.top <= 100 and bool(np.isfinite(v.array).all())


def _value(d: Draft, t: Value, shape: tuple[int, ...]) -> tuple[str, bool, float]:
    """What to write to a place of a shape: text, whether it is exact, and its magnitude."""

    def fits(v: Value) -> bool:
        try:
            return _fits(t, v) and np.broadcast_shapes(v.shape, shape) == shape
        except ValueError:
            return False

    if d.below(3) == 0 or not any(map(fits, d.values)):
        return d.choose(("2", "0", "1", "3") if t.kind in "ib" else ("0.5", "-1.0", "2", "0")), True, 3.0
    v = d.pick(fits)
    kept = t.kind != "f" or v.integral or np.can_cast(v.array.dtype, t.array.dtype)
    return v.name, v.exact and kept and v.top <= t.limit, v.top


@_operator("assign", "assign_part")
def _assign(d: Draft) -> Made:
    t = _target(d)
    place, part = _place(d, t)
    value, exact, _ = _value(d, t, part.shape)
    return Made(f"{place} = {value}", exact=exact, target=t.name)


@_operator("add_in_place", "mul_in_place")
def _augmented(d: Draft) -> Made:
    t = d.pick(lambda v: v.writable and v.array.size > 0 and v.kind != "b")
    place, part = _place(d, t) if t.ndim and d.flag() else (t.name, t.array)
    value, exact, top = _value(d, t, part.shape)
    if t.ndim == 0 and place == t.name:
        raise Reject  # ``v += 1`` of a scalar binds the name anew
    operator = d.choose(("+=", "-=", "*="))
    grown = t.top * top if operator == "*=" else t.top + top
    return Made(f"{place} {operator} {value}", exact=exact and t.integral and grown < t.limit, target=t.name)


@_operator("bits_in_place")
def _bits(d: Draft) -> Made:
    t = d.pick(lambda v: v.writable and v.ndim > 0 and v.array.size > 0 and v.kind in "ib")
    place, _ = _place(d, t)
    operators = ("|= True", "&= False", "^= True") if t.kind == "b" else ("|= 5", "&= 6", "^= 3", "<<= 1", ">>= 1")
    return Made(f"{place} {d.choose(operators)}", target=t.name)


@_operator("out")
def _out(d: Draft) -> Made:
    t = d.pick(lambda v: v.writable and v.ndim > 0 and v.array.size > 0 and v.kind == "f")
    place, part = _place(d, t) if d.flag() else (t.name, t.array)

    def fits(v: Value) -> bool:
        return v.shape == part.shape and np.can_cast(v.array.dtype, t.array.dtype, "same_kind") and v.kind == "f"

    x = d.pick(fits)
    forms = ("np.tanh({0}, out={2})", "np.add({0}, {1}, out={2})", "np.multiply({0}, {1}, out={2})")
    return Made(d.choose(forms).format(x.name, d.pick(fits).name, place), target=t.name)


@_operator("assign_masked")
def _masked(d: Draft) -> Made:
    t = _target(d)
    masks = [v for v in d.values if v.kind == "b" and v.shape == t.shape]
    mask = d.choose(masks) if masks and d.flag() else d.fresh(t.shape, "bool")
    value, exact, top = _value(d, t, ())
    case = d.below(4)
    if case == 0:
        return Made(f"np.copyto({t.name}, {value}, where={mask.name})", exact=exact, target=t.name)
    if case == 1 and t.kind != "b":
        exact = exact and t.integral and t.top + top < t.limit
        return Made(f"{t.name}[{mask.name}] += {value}", exact=exact, target=t.name)
    return Made(f"{t.name}[{mask.name}] = {value}", exact=exact, target=t.name)


@_operator("assign_rows", "add_at")
def _rows(d: Draft) -> Made:
    t = d.pick(lambda v: v.writable and v.ndim > 0 and v.array.size > 0 and v.kind != "c")
    index = d.fresh((d.choose((3, 1, 5)),), d.choose(("int64", "int32")), low=-t.shape[0], high=t.shape[0] - 1)
    shape = (*index.shape, *t.shape[1:])
    if d.flag() and t.kind != "b":
        value, exact, top = _value(d, t, shape)
        types = [v.array.dtype for v in d.values if v.name == value]
        if not types and t.array.dtype == np.uint64:  # a Python number is one of int64 there, and the sum of float64
            raise Reject
        if not np.can_cast(np.result_type(t.array.dtype, *types), t.array.dtype, "same_kind"):
            raise Reject  # for which NumPy's ``at`` has other rules than its operators
        exact = exact and t.integral and t.top + 8 * top < t.limit
        return Made(f"np.add.at({t.name}, {index.name}, {value})", exact=exact, target=t.name)
    value, exact, _ = _value(d, t, ())
    return Made(f"{t.name}[{index.name}] = {value}", exact=exact, target=t.name)


@_operator("fill", "copyto", "sort_in_place", "fill_diagonal", "put_along_axis")
def _methods(d: Draft) -> Made:
    t = _target(d)
    case = d.below(5)
    if case == 0 and t.ndim > 1 and len(set(t.shape)) == 1:
        value, exact, _ = _value(d, t, ())
        return Made(f"np.fill_diagonal({t.name}, {value})", exact=exact, target=t.name)
    if case == 1 and t.kind != "c":
        return Made(f"{t.name}.sort(axis={d.axis(t)})", exact=t.exact, target=t.name)
    if case == 2 and t.kind != "c":
        axis = d.axis(t) % t.ndim
        shape = (*t.shape[:axis], 1, *t.shape[axis + 1 :])
        index = d.fresh(shape, "int64", low=0, high=t.shape[axis] - 1)
        value, exact, _ = _value(d, t, shape)
        return Made(f"np.put_along_axis({t.name}, {index.name}, {value}, axis={axis})", exact=exact, target=t.name)
    if case == 3:
        value, exact, _ = _value(d, t, t.shape)
        return Made(f"np.copyto({t.name}, {value})", exact=exact, target=t.name)
    constant = d.choose(("1", "0"))
    return Made(f"{t.name}.fill({constant})", exact=True, target=t.name)


@_operator("swap_rows")
def _swap(d: Draft) -> Made:
    t = _target(d)
    i, j = d.below(t.shape[0]), d.below(t.shape[0])
    return Made(f"{t.name}[[{i}, {j}]] = {t.name}[[{j}, {i}]]", exact=t.exact, target=t.name)


@_operator("moving_rows", "moving_blocks")
def _moving(d: Draft) -> Made:
    """A loop whose slices grow, or shrink, from step to step: long enough to be one body."""
    square = [v for v in d.values if v.kind == "f" and v.ndim == 2 and 33 <= v.shape[0] == v.shape[1] and v.top <= 50]
    n = d.choose((36, 44))
    x: Value = d.choose(square) if square and d.flag() else d.fresh((n, n), d.choose(("float32", "float64")))
    n = x.shape[0]
    forms = (
        ("np.zeros(n)", "range(n)", f"y[i] = 1 - a[i, :i] @ y[:i] / {8 * n}"),
        ("np.zeros(n)", "reversed(range(n))", f"y[i] = a[i, i] - a[i, i + 1 :] @ y[i + 1 :] / {8 * n}"),
        ("a.copy()", "range(n - 1)", f"y[i + 1 :, i + 1 :] -= np.outer(y[i + 1 :, i], y[i, i + 1 :]) / {64 * n}"),
        ("np.zeros((n, 2))", "range(n)", "y[i] = a[i:, : i + 1].max(), a[: i + 1].mean()"),
        ("a[0].copy()", "range(1, n)", "y[:i] += 0.01 * y[:i][::-1] + a[i, :i] / 8"),
        ("np.zeros((n, n))", "range(n)", "y[i, : i + 1] = np.tanh(a[: i + 1, i])"),
    )
    start, steps, statement = d.choose(forms)
    name = f"f{len(d.values)}"
    lines = (f"def {name}(a):", f"n = {n}", f"y = {start}", f"for i in {steps}:", f"    {statement}", "return y")
    return Made(f"{name}({x.name}).astype(np.{x.dtype})", before="\n    ".join(lines))


@_operator("recurrence", "stencil")
def _loop(d: Draft) -> Made:
    """A loop over rows or steps that writes what later trips read."""
    t = d.pick(lambda v: v.writable and v.ndim > 0 and v.shape[0] > 2 and v.kind == "f" and v.top <= 50)
    x = d.pick(lambda v: v.kind == "f" and v.shape == t.shape and v.top <= 50)
    n = t.shape[0]
    trips = d.choose((3, 6, 12))
    step = f"0.25 * ({t.name}[2:] + {t.name}[:-2]) + 0.5 * {t.name}[1:-1]"
    forms = (
        f"for i in range(1, {n}):\n    {t.name}[i] = 0.5 * {t.name}[i - 1] + {x.name}[i]",
        f"for i in range({n - 2}, -1, -1):\n    {t.name}[i] -= 0.25 * {t.name}[i + 1]",
        f"for _ in range({trips}):\n    {t.name}[1:-1] = {step}",
        f"for i in range({min(n, 20)}):\n    {t.name}[i] += np.sum({x.name}[:i + 1])",
    )
    return Made(d.choose(forms), target=t.name)
