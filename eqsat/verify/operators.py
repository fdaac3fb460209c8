"""Builders of random steps: every supported NumPy operator, with operands and options that fit.

One builder per operator or family; those that only move elements are in
:mod:`eqsat.verify.shape_operators`; those that write to arrays, that libraries run, of images, and loops are in modules
of their own.
A builder picks operands and returns the expression (see
:mod:`eqsat.verify.drafts`), or raises ``Reject``. ``exact`` says that every evaluation order gives the
same bits: true of structural operators on exact operands, and of sums of small integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from eqsat.ir.table import OPS, Op
from eqsat.verify.drafts import (
    DTYPES,
    EXACT_LIMIT,
    MAX_SIZE,
    Builder,
    Draft,
    Made,
    Reject,
    Value,
    exact_limit,
    near_one,
    within,
)
from eqsat.verify.image_operators import IMAGE_OPERATORS
from eqsat.verify.library_operators import LIBRARY_OPERATORS
from eqsat.verify.loop_operators import loop_operators
from eqsat.verify.programs import modules
from eqsat.verify.shape_operators import SHAPE_OPERATORS
from eqsat.verify.write_operators import WRITE_OPERATORS

OPERATORS: dict[str, Builder] = {**SHAPE_OPERATORS, **LIBRARY_OPERATORS, **WRITE_OPERATORS, **IMAGE_OPERATORS}


def _operator(*names: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        for name in names:
            OPERATORS[name] = build
        return build

    return add


def _put(name: str, build: Builder) -> None:
    OPERATORS[name] = build


def _exact_input(v: Value) -> bool:
    return v.exact


# -- elementwise --------------------------------------------------------------------------------------------


def _unary(
    function: str, top: float = math.inf, *, keeps_exact: bool = False, wrap: str = "{}", compound: bool = False
) -> Builder:
    """``compound``: of complex numbers, too."""

    def build(d: Draft) -> Made:
        x = d.pick_number(compound=compound)
        inner = x.name if x.top <= top and x.kind in "fc" else wrap.format(x.name)
        return Made(f"{function}({inner})", exact=keeps_exact and x.exact and inner == x.name)

    return build


_put("neg", _unary("np.negative", keeps_exact=True, compound=True))
_put("neg_operator", _unary("-", keeps_exact=True, compound=True))
_put("abs", _unary("np.abs", keeps_exact=True))
_put("square", _unary("np.square", compound=True))
_put("gelu", _unary("nn.gelu", 50.0, wrap="np.sin({})"))
_put("silu", _unary("nn.silu", 50.0, wrap="np.sin({})"))


@_operator("gelu_tanh")
def _gelu_tanh(d: Draft) -> Made:
    return Made(f"nn.gelu({d.pick_float(50.0).name}, approximate=True)")


@_operator("relu")
def _relu(d: Draft) -> Made:
    x = d.pick_number()
    return Made(f"np.maximum({x.name}, 0)", exact=x.exact)


def _of_row(row: Op, low: float, high: float) -> Builder:
    def build(d: Draft) -> Made:
        x = d.pick_float() if low > -math.inf and math.isinf(high) else d.pick_number()
        argument = within(x, low, high)
        call = row.call([argument]).replace("scipy.special", "special")
        alone = call.endswith(f"({argument})") or argument == x.name
        return Made(call if alone else row.call([f"({argument})"]))

    return build


for _row in OPS.values():
    if _row.tried is not None:
        _put(_row.name, _of_row(_row, *_row.tried))


def _discrete(function: str) -> Builder:
    def build(d: Draft) -> Made:
        x = d.pick(lambda v: v.exact and v.kind == "f")
        return Made(f"{function}({x.name})", exact=True, discrete=True)

    return build


for _name in ("sign", "floor", "ceil", "rint", "isnan", "isfinite"):
    _put(_name, _discrete(f"np.{_name}"))
_put("round", _discrete("np.round"))


def _sum_is_exact(x: Value, y: Value, product: bool) -> bool:
    top = x.top * y.top if product else x.top + y.top
    return x.integral and y.integral and top < min(x.limit, y.limit)


def _binary(function: str, operator: str, product: bool) -> Builder:
    def build(d: Draft) -> Made:
        x = d.pick_number(compound=True)
        y = d.partner(x)
        if d.below(4) == 3:
            constant = d.choose(("2", "0.5", "-1", "3.0", "1", "0"))
            return Made(f"{x.name} {operator} {constant}" if d.flag() else f"{constant} {operator} {x.name}")
        form = "{} " + operator + " {}" if d.flag() else function + "({}, {})"
        return Made(form.format(x.name, y.name), exact=_sum_is_exact(x, y, product))

    return build


_put("add", _binary("np.add", "+", False))
_put("sub", _binary("np.subtract", "-", False))
_put("mul", _binary("np.multiply", "*", True))


@_operator("div")
def _div(d: Draft) -> Made:
    x = d.pick()
    if d.below(3) == 2:
        return Made(f"{x.name} / {d.choose(('2', '3.0', '7', '0.1'))}")
    y = d.partner(x)
    away = y.array.size == 0 or float(np.abs(y.array.astype(np.complex128)).min()) > 0.1
    return Made(f"{x.name} / {y.name}" if away else f"{x.name} / (np.abs({y.name}) + 0.5)")


@_operator("floor_divide", "remainder")
def _floor_divide(d: Draft) -> Made:
    x = d.pick(lambda v: v.integral or v.kind == "i")
    form = d.choose(("{} // {}", "{} % {}", "np.floor_divide({}, {})", "np.remainder({}, {})"))
    if d.flag():
        return Made(form.format(x.name, d.choose(("3", "-4", "2"))), exact=True, discrete=True)
    y = d.partner(x, same_dtype=True)
    if not (y.integral or y.kind == "i") or (y.kind == "f" and not np.all(y.array)):
        raise Reject
    return Made(form.format(x.name, y.name), exact=True, discrete=True)


@_operator("pow")
def _pow(d: Draft) -> Made:
    x = d.pick_number()
    if x.kind == "i":
        return Made(f"{x.name} ** {d.choose(('2', '3', '0', '1'))}")
    case = d.below(4)
    if case < 2:
        return Made(f"{x.name} ** {d.choose(('2', '3', '1', '2.0'))}" if case else f"np.power({x.name}, 2)")
    base = f"(np.abs({x.name}) + 0.5)"
    if case == 2:
        return Made(f"{base} ** {d.choose(('0.5', '-1', '-0.5', '1.5', '-2.0'))}")
    y = d.partner(x)
    if y.top > 3 or y.kind != "f" or x.top > 20:
        raise Reject
    return Made(f"np.power({base}, {y.name})")


@_operator("maximum", "minimum")
def _extremum(d: Draft) -> Made:
    x = d.pick_ordered()
    y = d.partner(x)
    if y.kind == "c":
        raise Reject
    return Made(f"np.{d.choose(('maximum', 'minimum'))}({x.name}, {y.name})", exact=x.exact and y.exact)


@_operator("compare")
def _compare(d: Draft) -> Made:
    x = d.pick(_exact_input)
    operator = d.choose(("==", "!=") if x.kind == "c" else ("<", "<=", ">", ">=", "==", "!="))
    if d.flag():
        return Made(f"{x.name} {operator} {d.choose(('0', '1', '0.5'))}", discrete=True)
    y = d.partner(x)
    if not y.exact or (y.kind == "c" and len(operator) == 1) or (y.kind == "c" and operator in ("<=", ">=")):
        raise Reject
    return Made(f"{x.name} {operator} {y.name}", discrete=True)


@_operator("parts", "compound")
def _parts(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind in "fc")
    if x.kind == "c":
        # Copies: what is written to a complex array later is not seen in views of its parts.
        forms = ("{}.real.copy()", "-np.imag({})", "np.conj({})", "{}.conj()", "np.abs({})", "np.exp({}.real * 1j)")
        form = d.choose(forms)
        return Made(form.format(x.name), exact=x.exact and "abs" not in form and "exp" not in form)
    y = d.partner(x)
    if y.kind == "c":
        raise Reject
    return Made(d.choose(("{} + {} * 1j", "{1} * np.exp(np.tanh({0}) * 1j)")).format(x.name, y.name))


@_operator("logical")
def _logical(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "b")
    if d.below(4) == 3:
        return Made(f"np.logical_not({x.name})" if d.flag() else f"~{x.name}")
    y = d.partner(x, same_dtype=True)
    form = d.choose(("{} & {}", "{} | {}", "{} ^ {}", "np.logical_and({}, {})", "np.logical_or({}, {})"))
    return Made(form.format(x.name, y.name))


@_operator("bits")
def _bits(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "i")
    y = d.partner(x, same_dtype=True)
    forms = ("{} & {}", "{} | {}", "{} ^ {}", "{} << {}", "{} >> {}", "~{}", "{} << 1", "{} >> 2", "{} & 3", "{} | 8")
    return Made(d.choose(forms).format(x.name, y.name))


@_operator("where")
def _where(d: Draft) -> Made:
    c = d.pick(lambda v: v.kind == "b")
    x = d.partner(c)
    if d.flag():
        return Made(f"np.where({c.name}, {x.name}, {d.choose(('0', '1', '-1'))})", exact=x.exact)
    y = d.partner(x)
    return Made(f"np.where({c.name}, {x.name}, {y.name})", exact=x.exact and y.exact)


@_operator("clip")
def _clip(d: Draft) -> Made:
    x = d.pick_number()
    low, high = d.choose((("-1", "1"), ("0", "None"), ("None", "2"), ("-3", "2")))
    form = "np.clip({}, {}, {})" if d.flag() else "{}.clip({}, {})"
    return Made(form.format(x.name, low, high), exact=x.exact)


@_operator("cast")
def _cast(d: Draft) -> Made:
    x = d.pick()
    target = d.choose(DTYPES)
    if x.kind == "c" and not target.startswith("complex"):
        raise Reject
    if x.kind == "f" and not target.startswith(("float", "complex")):
        if not x.exact or x.top > 1e6 or not np.isfinite(x.array).all():
            raise Reject
        return Made(f"{x.name}.astype(np.{target})", discrete=True)
    widens = x.kind == "b" or (x.kind == "i" and x.top <= exact_limit(target)) or target == x.dtype
    widens |= target in ("float64", "complex128")
    return Made(f"{x.name}.astype(np.{target})", exact=x.exact and widens)


# -- contractions -------------------------------------------------------------------------------------------


def _contraction(expression: str, x: Value, y: Value, terms: int) -> Made:
    exact = x.integral and y.integral and x.top * y.top * max(1, terms) < min(x.limit, y.limit)
    return Made(expression, exact=exact)


def _moderate(v: Value) -> bool:
    return v.kind != "b" and v.top <= 1e6


@_operator("matmul", "matmul_fresh")
def _matmul(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and _moderate(v))
    k = x.shape[-1]

    def fits(v: Value) -> bool:
        return v.ndim > 0 and _moderate(v) and v.shape[-2 if v.ndim > 1 else 0] == k

    y = d.fresh((k, d.choose((3, 1, 8, 17))), x.dtype) if d.flag() else d.pick(fits)
    form = d.choose(("{} @ {}", "np.matmul({}, {})"))
    return _contraction(form.format(x.name, y.name), x, y, k)


@_operator("matmul_transposed")
def _matmul_transposed(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 1 and _moderate(v))
    y = d.pick(lambda v: v.ndim > 1 and _moderate(v) and v.shape[-1] == x.shape[-1])
    turned = f"{y.name}.T" if y.ndim == 2 else f"np.swapaxes({y.name}, -1, -2)"
    return _contraction(f"{x.name} @ {turned}", x, y, x.shape[-1])


BFLOAT16_LIMIT = 256
"""Integers that bfloat16 holds, up to here: others round, and a sum that is a little off by a unit of its last
place."""


@_operator("matmul_bfloat16")
def _matmul_bfloat16(d: Draft) -> Made:
    """A product of small whole numbers in bfloat16, which is of float32, or of bfloat16 where none of it rounds."""
    if "ml_dtypes" not in modules():
        raise Reject
    x = d.pick(lambda v: v.ndim > 0 and v.integral and v.kind in "fi" and v.top <= BFLOAT16_LIMIT)
    k = x.shape[-1]
    y = d.fresh((k, d.choose((3, 1, 8, 17, 40))), "int64", low=-6, high=6)
    small = "{}.astype(ml_dtypes.bfloat16)"
    left, right = small.format(x.name), small.format(y.name)
    top = x.top * y.top * max(1, k)
    if d.flag() and top <= BFLOAT16_LIMIT:
        return Made(f"np.dot({left}, {right}).astype(np.float32)", exact=True)
    if top >= EXACT_LIMIT:
        raise Reject
    return Made(f"{left} @ {right}", exact=True)


@_operator("siblings")
def _siblings(d: Draft) -> Made:
    """Two products of one input, as in a QKV projection."""
    x = d.pick(lambda v: v.ndim > 1 and v.kind == "f" and v.top <= 1e6)
    k, n = x.shape[-1], d.choose((4, 8, 3))
    u, w = d.fresh((k, n), x.dtype), d.fresh((k, n), x.dtype)
    combined = d.choose(
        ("{0} @ {1} + {0} @ {2}", "({0} @ {1}) * ({0} @ {2})", "np.concatenate([{0} @ {1}, {0} @ {2}], -1)")
    )
    return Made(combined.format(x.name, u.name, w.name))


@_operator("chain")
def _chain(d: Draft) -> Made:
    """A chain of products, whose best order is not the written one."""
    x = d.pick(lambda v: v.ndim == 2 and v.kind == "f" and v.top <= 1e3)
    u = d.fresh((x.shape[1], d.choose((2, 9))), x.dtype)
    w = d.fresh((u.shape[1], d.choose((1, 5))), x.dtype)
    return Made(f"({x.name} @ {u.name}) @ {w.name}")


@_operator("einsum")
def _einsum(d: Draft) -> Made:
    x = d.pick(lambda v: 0 < v.ndim <= 3 and _moderate(v))
    y = d.pick(lambda v: 0 < v.ndim <= 3 and _moderate(v) and set(v.shape) & set(x.shape) != set())
    letters = "abcdefgh"
    left = letters[: x.ndim]
    right = ""
    for at, extent in enumerate(y.shape):
        shared = [c for c in left if x.shape[left.index(c)] == extent and c not in right]
        right += d.choose(shared) if shared and d.flag() else letters[x.ndim + at]
    every = sorted(set(left + right))
    out = "".join(c for c in every if d.flag())
    if d.flag():
        out = out[::-1]
    sizes = dict(zip(left + right, x.shape + y.shape, strict=True))
    if math.prod(sizes.values()) > 1 << 18 or math.prod(sizes[c] for c in out) > MAX_SIZE:
        raise Reject
    terms = math.prod(sizes[c] for c in every if c not in out)
    return _contraction(f"np.einsum('{left},{right}->{out}', {x.name}, {y.name})", x, y, terms)


@_operator("einsum_three")
def _einsum_three(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim == 2 and v.kind == "f" and v.top <= 1e3)
    u = d.fresh((x.shape[1], d.choose((3, 6))), x.dtype)
    w = d.fresh((u.shape[1],), x.dtype)
    return Made(f"np.einsum('{d.choose(('ij,jk,k->i', 'ij,jk,k->ki', 'ij,jk,k->'))}', {x.name}, {u.name}, {w.name})")


@_operator("einsum_one")
def _einsum_one(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim == 2 and _moderate(v))
    spec = d.choose(("ij->ji", "ij->j", "ij->"))
    return Made(f"np.einsum('{spec}', {x.name})", exact=x.integral and x.top * x.array.size < x.limit)


@_operator("tensordot", "inner", "outer", "vdot", "dot")
def _products(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim > 0 and _moderate(v))
    case = d.below(5)
    if case == 0:
        y = d.pick(lambda v: v.ndim > 0 and _moderate(v) and v.shape[0] == x.shape[-1])
        return _contraction(f"np.tensordot({x.name}, {y.name}, axes=1)", x, y, x.shape[-1])
    if case == 1:
        y = d.pick(lambda v: v.ndim > 0 and _moderate(v) and v.shape[-1] == x.shape[-1])
        return _contraction(f"np.inner({x.name}, {y.name})", x, y, x.shape[-1])
    if case == 2:
        y = d.pick(lambda v: _moderate(v) and v.array.size * x.array.size <= MAX_SIZE)
        return _contraction(f"np.outer({x.name}, {y.name})", x, y, 1)
    if case == 3:
        y = d.pick(lambda v: _moderate(v) and v.array.size == x.array.size)
        return _contraction(f"np.vdot({x.name}, {y.name})", x, y, x.array.size)
    y = d.pick(lambda v: v.ndim > 0 and _moderate(v) and v.shape[-2 if v.ndim > 1 else 0] == x.shape[-1])
    return _contraction(f"np.dot({x.name}, {y.name})", x, y, x.shape[-1])


@_operator("trace")
def _trace(d: Draft) -> Made:
    x = d.pick(lambda v: v.ndim == 2 and _moderate(v))
    if d.flag():
        y = d.pick(lambda v: v.ndim == 2 and _moderate(v) and v.shape[0] == x.shape[1])
        return Made(f"np.trace({x.name} @ {y.name})")
    return Made(f"np.trace({x.name})", exact=x.integral and x.top * x.array.size < x.limit)


# -- reductions ---------------------------------------------------------------------------------------------


def _reduction(function: str, *, ddof: bool = False) -> Builder:
    def build(d: Draft) -> Made:
        x = d.pick_ordered() if function in ("max", "min") else d.pick()
        name = x.name
        if function == "prod" and x.kind in "fc" and (x.top > 2 or x.array.size > 32):
            name = near_one(x)
        axes = d.axes(x)
        options = [f"axis={axes[0] if axes and len(axes) == 1 else axes}"]
        if d.flag():
            options.append("keepdims=True")
        if ddof and d.flag():
            options.append("ddof=1")
        if function in ("max", "min"):
            exact = x.exact
        else:
            exact = function == "sum" and x.integral and x.top * x.array.size < x.limit
        form = (
            f"{name}.{function}({', '.join(options)})" if d.flag() else f"np.{function}({name}, {', '.join(options)})"
        )
        return Made(form, exact=exact)

    return build


for _name in ("sum", "prod", "max", "min", "mean"):
    _put(_name, _reduction(_name))
_put("var", _reduction("var", ddof=True))
_put("std", _reduction("std", ddof=True))


@_operator("any", "all")
def _any_all(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "b")
    axes = d.axes(x)
    return Made(f"np.{d.choose(('any', 'all'))}({x.name}, axis={axes}, keepdims={d.flag()})")


@_operator("argmax", "argmin")
def _argmax(d: Draft) -> Made:
    x = d.pick(lambda v: v.exact and v.ndim > 0 and v.kind != "c")
    axis = d.choose((None, d.axis(x)))
    return Made(f"np.{d.choose(('argmax', 'argmin'))}({x.name}, axis={axis}, keepdims={d.flag()})", discrete=True)


@_operator("softmax", "log_softmax")
def _softmax(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim > 0)
    axis = d.axis(x)
    case = d.below(3)
    if case < 2:
        return Made(f"nn.{('softmax', 'log_softmax')[case]}({x.name}, axis={axis})")
    shifted = f"np.exp({x.name} - np.max({x.name}, axis={axis}, keepdims=True))"
    return Made(f"{shifted} / np.sum({shifted}, axis={axis}, keepdims=True)")


@_operator("layer_norm", "rms_norm")
def _norm(d: Draft) -> Made:
    x = d.pick(lambda v: v.kind == "f" and v.ndim > 0 and v.shape[-1] > 1)
    scale = d.fresh(x.shape[-1:], x.dtype)
    if d.flag():
        return Made(f"nn.rms_norm({x.name}, {scale.name})")
    shift = d.fresh(x.shape[-1:], x.dtype)
    if d.flag():
        return Made(f"nn.layer_norm({x.name}, {scale.name}, {shift.name})")
    centered = f"({x.name} - {x.name}.mean(-1, keepdims=True))"
    return Made(f"{centered} / np.sqrt({x.name}.var(-1, keepdims=True) + 1e-5) * {scale.name} + {shift.name}")


@_operator("attention")
def _attention(d: Draft) -> Made:
    q = d.pick(lambda v: v.kind == "f" and v.ndim >= 2 and v.top <= 50 and v.shape[-1] > 0)
    k = d.pick(lambda v: v.dtype == q.dtype and v.ndim == q.ndim and v.shape == q.shape and v.top <= 50)
    return Made(f"nn.softmax({q.name} @ np.swapaxes({k.name}, -1, -2) * 0.25, axis=-1) @ {k.name}")


# What a library returns is learned from values, which the body of a loop has none of.
OPERATORS |= loop_operators({name: build for name, build in OPERATORS.items() if name not in LIBRARY_OPERATORS})
