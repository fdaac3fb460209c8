"""Templates of universal functions and of what NumPy computes element by element."""

from __future__ import annotations

from tests.numpy_net.draft import Draft
from tests.numpy_net.program import words

UNARY = words("""
    absolute abs fabs rint sign conj exp exp2 expm1 log log2 log10 log1p sqrt square cbrt reciprocal sin cos tan
    arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh degrees radians deg2rad rad2deg floor ceil trunc
    negative positive isfinite isinf isnan signbit logical_not spacing
""")
TAME = words("""
    sin cos tanh exp sqrt log square negative abs floor arctan expm1 log1p sign rint ceil reciprocal
""")
RENAMED = words("""
    acos asin atan acosh asinh atanh
""")
BINARY = words("""
    add subtract multiply divide true_divide floor_divide power float_power remainder mod fmod maximum minimum
    fmax fmin arctan2 hypot logaddexp logaddexp2 copysign heaviside nextafter greater greater_equal less
    less_equal equal not_equal logical_and logical_or logical_xor pow atan2
""")
PLAIN = words("""
    add subtract multiply divide maximum minimum less greater_equal
""")
BITS = words("""
    bitwise_and bitwise_or bitwise_xor left_shift right_shift gcd lcm
""")
POWERS = (
    *("{f} ** 2", "{n} ** 2", "{f} ** 3", "abs({f}) ** {c}", "{c} ** {f}", "{f} ** -1", "{f} ** 0.5", "{i} ** 3"),
    *("2 ** abs({f})", "abs({f}) ** -0.5", "{n} ** {n1}", "{f} ** 2.0", "{i} ** 2.0", "(1 + abs({f})) ** {y}"),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=")


def unary(d: Draft) -> str:
    """One ufunc of one operand, in its forms."""
    names = UNARY + RENAMED if d.rng.random() < 0.5 else TAME
    name = d.rng.choice(names)
    kind = d.rng.choice("fffffxi")
    domain = {"arcsin": "np.sin({f})", "arccos": "np.cos({f})", "arctanh": "np.sin({f})", "arccosh": "1 + abs({f})"}
    domain |= {"asin": "np.sin({f})", "acos": "np.cos({f})", "atanh": "np.sin({f})", "acosh": "1 + abs({f})"}
    operand = domain.get(name, "{" + kind + "}")
    if name in ("log", "log2", "log10", "sqrt") and d.rng.random() < 0.7:
        operand = "abs({f})"
    r = d.rng.random()
    if r < 0.8:
        return f"np.{name}({operand})"
    if r < 0.86:
        return f"np.{name}({operand}, dtype={{fdt}})"
    if r < 0.93:
        return f"{{t:T}} = np.zeros_like({{f:A}})\nnp.{name}({{=A}}, out={{=T}})"
    return f"np.{name}({{f:A}}, where={{=A}} > 0, out=np.full_like({{=A}}, {{s}}))"


def binary(d: Draft) -> str:
    """One ufunc of two operands, in its forms."""
    name = d.rng.choice(BINARY if d.rng.random() < 0.5 else PLAIN)
    first = d.rng.choice(("{f}", "{f}", "{f}", "{i}", "{n}", "{x}"))
    if "power" in name or name == "pow":
        first = "abs({f})"
    pair = f"{first}, {{y}}" if d.rng.random() < 0.75 else f"*reversed([{first}, {{y}}])"
    r = d.rng.random()
    if r < 0.8:
        return f"np.{name}({pair})"
    if r < 0.86:
        return f"np.{name}({pair}, dtype={{fdt}})"
    if r < 0.9:
        return f"np.{name}({{f:A}}, {{y}}, where={{=A}} < 1, out={{=A}}.copy())"
    if r < 0.93:
        return f"np.{name}({{f:A}}, {{y}}, out=np.empty_like({{=A}}))"
    if r < 0.96:
        return f"np.{name}.outer({{v}}, {{v}})"
    return f"np.{name}({pair}, casting='same_kind')"


def operator(d: Draft) -> str:
    """Operators of the language, chained, reflected and in place."""
    sign = d.rng.choice(OPERATORS if d.rng.random() < 0.5 else ("+", "-", "*", "/"))
    r = d.rng.random()
    if sign == "**":
        return d.rng.choice(POWERS)
    if r < 0.45:
        return f"{{n}} {sign} {{y}}"
    if r < 0.6:
        return f"{{s}} {sign} {{n}}"
    if r < 0.8:
        return f"({{f}} {sign} {{y}}) {d.rng.choice(('+', '*', '-'))} {{y}}"
    if sign in "<=>=!=":
        return f"({{n}} {sign} {{y}}) {d.rng.choice('&|^')} {{b}}"
    if r < 0.9:
        return f"{{t:T}} = {{f}} * 1\n{{=T}} {sign}= {{y}}"
    return f"{{t:T}} = {{n}} + 0\n{{=T}} {sign}= {{s}}\n{{=T}} += {{=T}}"


def bitwise(d: Draft) -> str:
    """Integers and bools by bits."""
    return d.rng.choice(
        (
            f"np.{d.rng.choice(BITS)}({{i}}, {{i}} % 5)",
            f"{{i}} {d.rng.choice(('&', '|', '^'))} {{y}}",
            f"{{b}} {d.rng.choice(('&', '|', '^'))} {{y}}",
            f"{{i}} {d.rng.choice(('<<', '>>'))} {{n1}}",
            "~{i}",
            "~{b}",
            "np.invert({i})",
            "np.bitwise_count({i})",
            "{i:A} ^ ({=A} >> 3)",
            "1 << ({i} & 7)",
            "np.right_shift({i}, 40)",
            "(({i:A} * 0x9E3779B1) ^ {=A}) * 31",
        )
    )


OTHER = """
np.where({b}, {f}, {s})
np.where({f:A} > 0, {=A}, {y})
np.where({f:A} > {s}, {y}, {y})
np.where({f:A} > 0, 1, 0)
np.where({i:A} % 2 == 0, {=A} // 2, 3 * {=A} + 1)
np.where({f:A} > 0, np.log(abs({=A})), 0.0)
np.select([{f:A} < -0.5, {=A} > 0.5], [-{=A}, {=A} ** 2], default=0)
np.select([{f:A} < 0, {=A} < {y}], [{y}, 1.0])
np.choose({i:A} % 3, [{=A}, {=A} + 1, -{=A}])
np.choose(({f:A} > 0).astype(int), ({=A}, {y}))
np.piecewise({f:A}, [{=A} < 0, {=A} >= 0], [lambda t: -t, lambda t: t * 2])
np.piecewise({f:A}, [{=A} < 0], [1.0, 2.0])
np.clip({f}, -1, 1)
np.clip({f}, None, {c})
np.clip({n}, {s}, None)
np.clip({f}, {y}, {y})
{n}.clip(-2, 3)
{f}.clip(min=0)
{f}.clip(max={c})
np.clip({f:A}, a_min=-0.5, a_max={=A} + 1)
np.clip({i}, 0, 2.5)
np.clip({n}, min=1)
{x}.astype({dt})
{x}.astype({fdt})
{x}.astype({fdt}, copy=False)
np.astype({x}, {fdt})
({f} > 0).astype({dt})
np.floor({f} * 3).astype(np.int64)
np.round({f}, {n1})
np.round({f})
{f}.round(2)
round({f}, 1)
np.around({f} * 10, -1)
np.fix({f})
abs({n})
-{n}
+{n}
divmod({i}, 3)
divmod({f}, {c})
np.divmod({n}, 4)
np.modf({f})
np.frexp({f})
np.ldexp({f}, {n1})
np.ldexp({f}, {i} % 5)
np.nan_to_num({f})
np.nan_to_num({f}, nan=1.5, posinf=3.0, neginf={s})
np.sinc({f})
np.i0({f})
np.isposinf({f})
np.isneginf({f})
np.isclose({f}, {y})
np.isclose({f:A}, {=A} * (1 + 1e-6), rtol=1e-5, atol=0, equal_nan=True)
np.allclose({f:A}, {=A} + 0)
np.array_equal({f:A}, {=A} * 1)
np.array_equal({i}, {i})
np.array_equiv({f:A}, {=A})
np.real({f})
{f}.real
np.imag({f})
{f}.imag
np.conj({n})
{f}.conj()
np.angle({f})
np.isreal({f})
np.iscomplexobj({f})
np.zeros_like({x})
np.ones_like({x}) * {y}
np.full_like({f}, {s})
np.full_like({i}, 7.9)
np.full({f}.shape, 2) + {=A} if False else {f:A} + np.full({=A}.shape, 2)
np.empty_like({f}) * 0 == 0 if False else {f} * 2
{f:A} - {=A}
{f:A} / {=A}
{f:A} * 0
0 * {f} + {y}
{f:A} + {=A} + {=A}
({f:A} * {y}) + ({=A} * {y})
{f:A} * {=A}
{n:A} / 1
{i:A} / 2
{i} // {y}
{i} % {y}
{i:A} * {=A}
{i} + 2**31 - 1
np.abs({i})
-{i}
np.minimum(np.maximum({f:A}, 0), 6) / 6
np.maximum({f:A}, -{=A})
np.sqrt({f:A} * {=A} + 1)
np.exp(-{f:A} ** 2 / 2)
1 / (1 + np.exp(-{f}))
np.log(1 + np.exp({f}))
np.log1p(np.exp(-abs({f})))
np.sqrt(np.square({f}))
np.exp(np.log(abs({f}) + 1))
np.log(np.exp({f}))
np.sin({f:A}) ** 2 + np.cos({=A}) ** 2
np.logical_and({f:A} > -1, {=A} < 1)
np.logical_and.reduce([{f:A} > -1, {=A} < 1, {=A} != 0])
({f:A} > 0) * {=A}
({f} > 0) + ({f} > 1)
True + {b}
{b} * 3
{b} / 2
{b} + {b}
-1.0 * {b}
{b:A} == True
np.float32(2.5) * {f}
np.float64(2.5) * {f}
np.int64(2) * {i}
np.array(3) * {n}
np.array(0.1) + {f}
np.array([2.0]) * {f}
{f} * math.pi + math.sqrt(2)
{i} * 0.5
{i} + 1.0
{i} + True
{f} + 1
np.copysign(0.0, {f})
np.vectorize(lambda t: t + 1)({f})
np.interp({f}, [-1, 0, 1], [3.0, 2.0, 5.0])
np.unwrap({v})
np.heaviside({f}, 0.5)
np.float_power(abs({f}), 1.5)
np.digitize({f}, [-1.0, 0.0, 1.0])
np.searchsorted(np.array([-1.0, 0.0, 1.0]), {f})
np.searchsorted(np.sort({v}), {f}, side='right')
np.isin({i}, [1, 2, 3])
np.polyval([1.0, -2.0, 0.5], {f})
np.polynomial.polynomial.polyval({f}, [1.0, 2.0])
np.gradient({v})
np.result_type({f}, np.float64) == np.float64
{f:A} * {=A}.ndim + {=A}.size
np.linalg.norm({f:A} - 1) * {=A}
{f}.view(np.int32) & 0x7fffffff
{f}.view(np.int64) >> 52
{n}.copy()
np.copy({n})
np.array({f})
np.array({f}, copy=True)
np.asarray({f})
np.ascontiguousarray({f})
np.require({f}, requirements='C')
np.squeeze(np.array([{f}]))
np.errstate is not None and {f} * 1
{f:A} if {=A}.ndim > 1 else -{=A}
{f:A} if {=A}.dtype == np.float32 else {=A}.astype(np.float32)
{f:A} * len({=A}.shape)
({f:A}, {=A} + 1)[{=A}.ndim % 2]
{f} if isinstance(2, int) else 0
""".strip().splitlines()


def other(d: Draft) -> str:
    return d.rng.choice(OTHER)
