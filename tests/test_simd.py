"""The SIMD layer: accuracy of the mathematical functions, NumPy's semantics of the others, memory access."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable

import numpy as np
import pytest

import eqsat
from eqsat.ir.table import OPS
from eqsat.ir.types import DTYPES, TensorType, bool_
from eqsat_backends.numba_cpu.compiling.jit import compile_module
from eqsat_backends.numba_cpu.vectors.elementwise import FUNCTIONS
from eqsat_backends.numba_cpu.vectors.lanes import EACH, KIND, native_lanes
from tests.fenced import Fenced
from tests.sweeps import crossed

KINDS = {kind: DTYPES[name].numpy.type for name, kind in KIND.items()}
INTEGERS = [kind for kind in KINDS if kind[0] in "iu"]
LANES = 16


def call(address: int, *arrays: np.ndarray, words: tuple[int, ...] = ()) -> None:
    """Run a phase on a table of these arrays' addresses and then ``words``."""
    table = np.array([a.ctypes.data for a in arrays] + list(words), np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 3)(address)(table.ctypes.data, 0, 1)


def elementwise_module(names: list[tuple[str, str]], lanes: int) -> tuple[str, tuple[str, ...]]:
    """Phases ``name_kind``: table [arguments…, out, number of vectors]; the result is stored as its own kind."""
    body, imports = "", {"store", "word"}
    for name, kind in names:
        arity = FUNCTIONS[name].arity
        size = np.dtype(KINDS[kind]).itemsize
        out = 1 if FUNCTIONS[name].result == "mask" else size
        imports |= {name, f"load_{kind}x{lanes}"}
        loads = [f"load_{kind}x{lanes}(word(args, {i}) + {size * lanes} * i)" for i in range(arity)]
        if name == "where":
            imports.add(f"load_b1x{lanes}")
            loads[0] = f"load_b1x{lanes}(word(args, 0) + {lanes} * i)"
        body += f"def {name}_{kind}(args, tid, nt):\n"
        body += f"    for i in range(word(args, {arity + 1})):\n"
        body += f"        store(word(args, {arity}) + {out * lanes} * i, {name}({', '.join(loads)}))\n\n"
    head = f"from eqsat_backends.numba_cpu.vectors.simd import {', '.join(sorted(imports))}\n\n"
    return head + body, tuple(f"{name}_{kind}" for name, kind in names)


_compiled: dict[tuple[str, str, int], int] = {}
_modules: list[object] = []  # the code is unloaded with them


def function(name: str, kind: str, lanes: int = LANES) -> Callable[..., np.ndarray]:
    """A SIMD function as one on arrays."""
    key = (name, kind, lanes)
    if key not in _compiled:
        # one module per kind: compiling together is faster than one by one
        names = [(n, kind) for n, f in FUNCTIONS.items() if kind in f.kinds] if lanes == LANES else [(name, kind)]
        source, phases = elementwise_module(names, lanes)
        code = compile_module(source, phases)
        _modules.append(code)
        for (n, k), phase in zip(names, phases, strict=True):
            _compiled[n, k, lanes] = code[phase]

    def run(*arrays: np.ndarray) -> np.ndarray:
        size = -(-arrays[0].size // lanes) * lanes
        padded = [np.resize(a, size) for a in arrays]
        out = np.empty(size, np.bool_ if FUNCTIONS[name].result == "mask" else KINDS[kind])
        call(_compiled[key], *padded, out, words=(size // lanes,))
        return out[: arrays[0].size]

    return run


def ulp_error(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of ``got``'s type at the exact value; subnormals have the least unit."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(exact)
        exponent = np.maximum(exponent - info.nmant - 1, info.minexp - info.nmant)
        return np.abs(np.ldexp(got.astype(exact.dtype) - exact, -exponent)).astype(np.float64)


def samples(kind: str) -> np.ndarray:
    """Bit patterns all over the range, and the interesting numbers."""
    if kind == "f32":
        values = np.arange(0, 2**32, 2049, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        rng = np.random.default_rng(1)
        values = rng.integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64)
    dtype = KINDS[kind]
    near = np.concatenate([np.linspace(-b, b, 40_001) for b in (1e-3, 1.0, 12.0, 110.0, 800.0)]).astype(dtype)
    info = np.finfo(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, info.tiny, -info.tiny, info.max, info.min]
    special += [info.smallest_subnormal, -info.smallest_subnormal, 0.5, 2.0, np.nextafter(dtype(1), dtype(0))]
    turns = (np.arange(0, 66_000) * np.longdouble("1.5707963267948966192313")).astype(dtype)  # where sines vanish
    return np.concatenate([np.array(special, dtype), near, turns, values])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# greatest error in units in the last place: (float32, float64), as stated in vmath and vcircular
ACCURACY: dict[str, tuple[Callable[..., np.ndarray], float, float]] = {
    "exp": (np.exp, 1.2, 1.2),
    "expm1": (np.expm1, 2, 2),
    "log": (np.log, 1, 1),
    "log1p": (np.log1p, 2, 2),
    "tanh": (np.tanh, 3, 3),
    "sigmoid": (_sigmoid, 2.5, 2.5),
    "sin": (np.sin, 1.2, 1.2),
    "cos": (np.cos, 1.2, 1.2),
    "sqrt": (np.sqrt, 0.51, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "reciprocal": (lambda x: 1 / x, 0.51, 0.51),
}


@crossed(name=list(ACCURACY), kind=["f32", "f64"], lanes=[LANES, 4])
def test_accuracy(name: str, kind: str, lanes: int) -> None:
    reference, single, double = ACCURACY[name]
    x = samples(kind)
    got = function(name, kind, lanes)(x)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64 if kind == "f32" else np.longdouble))
        expected = exact.astype(x.dtype)
    assert (np.isnan(got) == np.isnan(expected)).all(), x[np.isnan(got) != np.isnan(expected)][:5]
    if name == "sigmoid":  # exp(-x) overflows where the result is subnormal: 0 by definition
        exact = np.where(x < -np.log(np.finfo(x.dtype).max), np.float64(0), exact)
    finite = np.isfinite(expected) & np.isfinite(got)
    infinite = np.isinf(expected)
    overflowed = infinite & (np.abs(exact) < np.inf)
    assert (got[infinite & ~overflowed] == expected[infinite & ~overflowed]).all()
    error = ulp_error(got[finite], exact[finite])
    worst = int(np.argmax(error))
    assert error[worst] <= (single if kind == "f32" else double), (x[finite][worst], got[finite][worst], error[worst])
    zero = expected == 0
    assert (np.signbit(got[zero]) == np.signbit(expected[zero])).all()


@pytest.mark.skipif(os.name != "posix", reason="reads the flags of the floating-point unit through the C library")
@pytest.mark.parametrize("lanes", [LANES, 4])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_exp_of_masked_scores_does_not_underflow(kind: str, lanes: int) -> None:
    """Rounding a result that underflows takes a processor a hundred cycles; a sum of masked scores has little else."""
    flags, exp = ctypes.CDLL(None), function("exp", kind, lanes)
    underflow = 0x10 if platform.machine() in ("x86_64", "AMD64") else 0x08

    def underflows(value: float) -> bool:
        x = np.full(64, value, KINDS[kind])
        flags.feclearexcept(underflow)
        got = exp(x)
        raised = bool(flags.fetestexcept(underflow))  # before NumPy clears it
        assert (got < np.finfo(x.dtype).tiny).all()
        return raised

    assert underflows(-95.0 if kind == "f32" else -730.0)
    for value in (-1e3, -1e9, -1e30, -np.inf):
        assert not underflows(value), value


@pytest.mark.parametrize("lanes", [LANES, 4])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_powers_that_have_a_float_are_exact(kind: str, lanes: int) -> None:
    """Squares and cubes of integers, roots of squares, first powers: what users compare with ``==``."""
    whole = np.stack(np.meshgrid(np.arange(-300, 4097), np.arange(25))).reshape(2, -1)
    squares = np.stack([np.arange(4097) ** 2, np.full(4097, 0.5)])
    same = np.stack([samples(kind), np.ones_like(samples(kind))])
    for x, y in (pair.astype(KINDS[kind]) for pair in (whole, squares, same)):
        with np.errstate(all="ignore"):
            power = np.power(x.astype(np.longdouble), y)
            exact = power == power.astype(KINDS[kind])
            assert exact.sum() > 4000
        np.testing.assert_array_equal(function("pow", kind, lanes)(x, y)[exact], power[exact])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("spread", [1e-7, 1e-3, 0.05, 1.0, 15.0])
def test_powers_are_within_a_unit(spread: float, kind: str) -> None:
    """Where errors of the logarithm grow: bases near 1 with great exponents, and the rest."""
    rng = np.random.default_rng(8)
    limit = 100 if kind == "f32" else 800
    x = np.exp(rng.normal(size=200_000) * spread).astype(KINDS[kind])
    y = (rng.uniform(-limit, limit, 200_000) / spread).astype(KINDS[kind])  # about half of the powers are finite
    with np.errstate(all="ignore"):
        got, exact = function("pow", kind)(x, y), np.power(x.astype(np.longdouble), y)
        rounded = exact.astype(KINDS[kind])
    finite = np.isfinite(got) & np.isfinite(rounded)
    assert ulp_error(got[finite], exact[finite]).max() <= 1
    assert (np.isinf(got) == np.isinf(rounded)).all()


@pytest.mark.parametrize(("kind", "bound"), [("f32", 2), ("f64", 4)])
def test_erf(kind: str, bound: float) -> None:
    from scipy.special import erf

    x = samples(kind)
    got = function("erf", kind)(x)
    with np.errstate(invalid="ignore"):
        exact = erf(x.astype(np.float64))
    assert (np.isnan(got) == np.isnan(x)).all()
    number = ~np.isnan(x)
    assert (np.abs(got[number]) <= 1).all()
    # SciPy's own subnormals are rounded twice
    normal = number & ((np.abs(exact) > np.finfo(x.dtype).tiny) | (x == 0))
    assert ulp_error(got[normal], exact[normal]).max() <= bound


@pytest.mark.parametrize("lanes", [LANES, 4])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_special_powers(kind: str, lanes: int) -> None:
    """Every pair of the numbers that C names in its definition of pow, and where rounding errors might be too great."""
    info = np.finfo(KINDS[kind])
    sizes = [0.0, 1.0, 0.5, 2.0, 3.0, 0.1, info.max, 2.0 ** (info.nmant + 1) - 1, 2.0 ** (info.nmant + 1) + 2]
    sizes += [info.tiny / 8, info.smallest_subnormal, 1 + info.eps, 1 - info.epsneg, 1e19, 1e30, np.inf]
    grid = np.array([*sizes, *(-size for size in sizes), np.nan], KINDS[kind])
    x, y = (g.reshape(-1) for g in np.meshgrid(grid, grid))
    with np.errstate(all="ignore"):
        got, exact = function("pow", kind, lanes)(x, y), np.power(x.astype(np.longdouble), y)
        want = exact.astype(KINDS[kind])
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))
    finite = np.isfinite(want)
    assert ulp_error(got[finite], exact[finite]).max() <= 1


@pytest.mark.parametrize(("kind", "bound"), [("f32", 2), ("f64", 4)])
def test_special_values_of_erf(kind: str, bound: float) -> None:
    """Its slope at 0 is 2/√π, which subnormal numbers show."""
    info = np.finfo(KINDS[kind])
    small = np.array([info.smallest_subnormal, info.tiny / 8, info.tiny, 1e-30], KINDS[kind])
    x = np.concatenate([small, -small])
    exact = x * (2 / np.sqrt(np.longdouble(np.pi)))
    assert ulp_error(function("erf", kind)(x), exact).max() <= bound
    whole = np.array([0.0, -0.0, np.inf, -np.inf, 6.0, -6.0, info.max], KINDS[kind])
    got = function("erf", kind)(whole)
    np.testing.assert_array_equal(got, [0, 0, 1, -1, 1, -1, 1])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(whole))
    assert np.isnan(function("erf", kind)(np.full(4, np.nan, KINDS[kind]))).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_pow(kind: str) -> None:
    """Held to NumPy in more precision."""
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.choice(samples(kind)[:200_000], 4000), rng.uniform(-3, 9, 4000)]).astype(KINDS[kind])
    y = np.concatenate([rng.choice(samples(kind)[:200_000], 4000), rng.integers(-4, 9, 4000)]).astype(KINDS[kind])
    with np.errstate(all="ignore"):
        got, expected = function("pow", kind)(x, y), np.power(x, y)
        exact = np.power(x.astype(np.float64 if kind == "f32" else np.longdouble), y)
    assert (np.isnan(got) == np.isnan(expected)).all()
    finite = np.isfinite(expected) & np.isfinite(got)
    assert (got[np.isinf(expected)] == expected[np.isinf(expected)]).all()
    assert ulp_error(got[finite], exact[finite]).max() <= 2


# NumPy's function for each of ours, where the results are exactly equal
EXACT: dict[str, Callable[..., np.ndarray]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "logical_not": np.logical_not,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "where": np.where,
    "invert": np.invert,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


EXPANDED = {"cast", "flushing_cast", "wrap_index", "add_n"}
"""What the printer makes of others, or by instructions of its own."""


def test_every_elementwise_operator_has_code() -> None:
    """For the kinds that its row says; held to NumPy above or below."""
    held = {*ACCURACY, *EXACT, "erf", "pow"}
    for row in OPS.values():
        if row.kind != "map" or row.name in EXPANDED:
            continue
        entry = FUNCTIONS[row.name]
        assert entry.arity == row.arity and row.name in held, row.name
        dtypes = [d for d in DTYPES.values() if d.kind in row.kinds and not d.is_half]
        assert {KIND[d.name] for d in dtypes} <= entry.kinds, row.name
        results = {row.type_rule([TensorType((2,), d)] * entry.arity, None).dtype for d in dtypes}
        assert results == ({bool_} if entry.result == "mask" else set(dtypes)) or row.name == "where"


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal elements, NaN too, which NumPy's comparison does not see in bfloat16."""
    np.testing.assert_array_equal(*(x.astype(np.float32) if x.dtype.kind == "V" else x for x in (got, want)))


def values(kind: str, rng: np.random.Generator, size: int) -> np.ndarray:
    """Numbers with many coincidences, signs, zeros and extremes."""
    if kind == "b1":
        return rng.random(size) < 0.5
    if kind in INTEGERS:
        info = np.iinfo(KINDS[kind])
        small = rng.integers(max(-5, info.min), 6, size).astype(KINDS[kind])
        wide = rng.integers(info.min, info.max, size, KINDS[kind], endpoint=True)
        edge = rng.choice(np.array([info.min, info.max, max(-1, info.min), 0, 1], KINDS[kind]), size)
        return np.where(rng.random(size) < 0.6, small, np.where(rng.random(size) < 0.5, wide, edge)).astype(KINDS[kind])
    halves = rng.integers(-9, 10, size) / 2
    edge = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e-30]), size)
    drawn = np.where(rng.random(size) < 0.5, halves, np.where(rng.random(size) < 0.5, edge, rng.normal(size=size)))
    with np.errstate(over="ignore"):
        return drawn.astype(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXACT)
def test_elementwise_is_numpy(name: str, kind: str) -> None:
    entry = FUNCTIONS[name]
    if kind not in entry.kinds:
        pytest.skip("not defined in NumPy either")
    rng = np.random.default_rng(3)
    arguments = [values(kind, rng, 5000) for _ in range(entry.arity)]
    if name == "where":
        arguments[0] = values("b1", rng, 5000)
    got = function(name, kind)(*arguments)
    with np.errstate(all="ignore"):
        expected = EXACT[name](*arguments)
    expected = expected.astype(got.dtype)
    same(got, expected)
    if kind in ("f32", "f64") and name in ("remainder", "floor_divide", "floor", "ceil", "round", "neg"):
        number = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_power(kind: str) -> None:
    rng = np.random.default_rng(4)
    x, y = values(kind, rng, 3000), rng.integers(0, 70, 3000).astype(KINDS[kind])
    np.testing.assert_array_equal(function("pow", kind)(x, y), np.power(x, y))


def test_fma_rounds_once() -> None:
    x = np.full(16, 1 + 2.0**-23, np.float32)
    got = function("fma", "f32")(x, x, -np.full(16, 1 + 2.0**-22, np.float32))
    assert (got == 2.0**-46).all()
    ints = np.arange(16, dtype=np.int32)
    np.testing.assert_array_equal(function("fma", "i32")(ints, ints, ints), ints * ints + ints)


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_casts(source: str, target: str) -> None:
    lanes, size, out = 8, np.dtype(KINDS[source]).itemsize, np.dtype(KINDS[target]).itemsize
    text = (
        f"from eqsat_backends.numba_cpu.vectors.simd import load_{source}x8, to_{target}x8, store, word\n"
        "def cast(args, tid, nt):\n    for i in range(word(args, 2)):\n"
        f"        v = to_{target}x8(load_{source}x8(word(args, 0) + {lanes * size} * i))\n"
        f"        store(word(args, 1) + {lanes * out} * i, v)\n"
    )
    x = values(source, np.random.default_rng(5), 4000)
    if source.startswith(("f", "bf")) and target in INTEGERS:
        least, most = max(np.iinfo(KINDS[target]).min, -(2**31)), min(np.iinfo(KINDS[target]).max, 2**31 - 1000)
        x = np.where((x > least - 1) & (x < most + 1), x, 7).astype(x.dtype)
    got = np.empty(x.size, KINDS[target])
    call(compile_module(text, ("cast",))["cast"], x, got, words=(x.size // lanes,))
    with np.errstate(all="ignore"):
        same(got, x.astype(KINDS[target]))


@crossed(kind=list(KINDS), lanes=[1, 2, 8, 16])
def test_memory(kind: str, lanes: int) -> None:
    """Partial, strided, gathered and transposed accesses touch the elements they name, and no others."""
    size, vector, count = np.dtype(KINDS[kind]).itemsize, f"{kind}x{lanes}", max(1, lanes - 3)
    few = max(1, lanes - 5)
    lines = [
        f"storen(out, loadn_{vector}(x, {count}), {count})",
        f"store(out + {size * 16}, strided_{vector}(x, {3 * size}))",
        f"store(out + {size * 32}, stridedn_{vector}(x, {-2 * size}, {count}))".replace("(x,", f"(x + {size * 40},"),
        f"scatter(out + {size * 48}, load_{vector}(x), {2 * size})",
        f"scattern(out + {size * 80}, load_{vector}(x), {2 * size}, {count})",
        f"store(out + {size * 112}, bcast_{vector}(x + {size}))",
        f"index = iota_i64x{lanes}(2, 2)",
        f"store(out + {size * 128}, gather_{vector}(x, index))",
        f"store(out + {size * 144}, gathern_{vector}(x, index, {count}))",
        f"transpose_{vector}(out + {size * 160}, {size * lanes}, x, {size * lanes})",
        f"transpose_{vector}(out + {size * 420}, {size * 20}, x + {size}, {size * 17})",
        f"transposen_{vector}(out + {size * 740}, {size * 19}, x, {size * 18}, {count}, {few})",
    ]
    names = ["word", "store", "storen", "scatter", "scattern", f"iota_i64x{lanes}"]
    names += [
        f"{n}_{vector}"
        for n in ["load", "loadn", "strided", "stridedn", "bcast", "gather", "gathern", "transpose", "transposen"]
    ]
    text = f"from eqsat_backends.numba_cpu.vectors.simd import {', '.join(names)}\n"
    text += "def access(args, tid, nt):\n    x = word(args, 0)\n    out = word(args, 1)\n    "
    text += "\n    ".join(lines) + "\n"
    x = values(kind, np.random.default_rng(6), 300)
    before = values(kind, np.random.default_rng(7), 1060)
    got, want = before.copy(), before.copy()
    call(compile_module(text, ("access",))["access"], x, got)
    lane = np.arange(lanes)
    want[:count] = x[:count]
    want[16 : 16 + lanes] = x[3 * lane]
    want[32 : 32 + lanes] = np.where(lane < count, x[40 - 2 * lane], x[40])
    want[48 + 2 * lane] = x[:lanes]
    want[80 + 2 * lane[:count]] = x[:count]
    want[112 : 112 + lanes] = x[1]
    want[128 : 128 + lanes] = x[2 + 2 * lane]
    want[144 : 144 + lanes] = np.where(lane < count, x[2 + 2 * lane], x[0])
    for at, row, start, step, rows, columns in (
        (160, lanes, 0, lanes, lanes, lanes),
        (420, 20, 1, 17, lanes, lanes),
        (740, 19, 0, 18, count, few),
    ):
        i, j = np.ogrid[:rows, :columns]
        want[at + row * i + j] = x[start + step * j + i]
    same(got, want)


@crossed(kind=list(KINDS), lanes=[1, 2, 4, 8, 16])
def test_counts_that_code_does_not_know(kind: str, lanes: int) -> None:
    """Of lanes whose number is an argument: none before, behind, or where there are fewer than none."""
    vector, size = f"{kind}x{lanes}", np.dtype(KINDS[kind]).itemsize
    text = f"""from eqsat_backends.numba_cpu.vectors.simd import loadn_{vector}, store, storen, word

def access(args, tid, nt):
    count = word(args, 2)
    storen(word(args, 1) + {size * 3}, loadn_{vector}(word(args, 0), count), count)
    store(word(args, 1) + {size * 40}, loadn_{vector}(word(args, 0), count))
"""
    run = compile_module(text, ("access",))["access"]
    x, before = values(kind, np.random.default_rng(6), 20), values(kind, np.random.default_rng(7), 80)
    for count in range(-3, lanes + 2):
        got, want = before.copy(), before.copy()
        call(run, x, got, words=(count,))
        taken = min(max(count, 0), lanes)
        want[3 : 3 + taken] = x[:taken]
        want[40 : 40 + lanes] = np.where(np.arange(lanes) < taken, x[:lanes], np.zeros((), x.dtype))
        same(got, want)


@pytest.mark.skipif(os.name != "posix", reason="forbids access to a page")
@crossed(kind=["f32", "f64", "i8"], lanes=[4, 8, 16])
def test_lanes_that_are_not_counted_are_not_touched(kind: str, lanes: int) -> None:
    """The last elements before a page that nobody may read or write."""
    vector, size = f"{kind}x{lanes}", np.dtype(KINDS[kind]).itemsize
    text = f"""from eqsat_backends.numba_cpu.vectors.simd import loadn_{vector}, storen, word

def access(args, tid, nt):
    count = word(args, 0)
    at = word(args, 1) - {size} * count
    storen(at, loadn_{vector}(at, count), count)
"""
    run = compile_module(text, ("access",))["access"]
    fenced = Fenced(256)
    held = fenced.at(last=True).view(np.uint8)
    held[:] = before = np.arange(held.size) % 251
    for count in range(1, lanes + 1):
        call(run, words=(count, held.ctypes.data + held.size))
    assert np.array_equal(held, before)


def test_many_stores_of_one_lane() -> None:
    """Masked, they took LLVM 13 s once it had unrolled the loops, and three times as many were not done in a minute."""
    text = """from eqsat_backends.numba_cpu.vectors.simd import splat_f64x8, store, storen, word
def fill(args, tid, nt):
    out = word(args, 0)
    zero = splat_f64x8(0.0)
    if tid == 0:
        for plane in range(2):
            for row in range(17):
                for image in range(6):
                    store(out + 4760 * image + 2312 * plane + 136 * row + 64, zero)
                for image in range(6):
                    storen(out + 4760 * image + 2312 * plane + 136 * row + 128, zero, 1)
"""
    got = np.ones((6, 35, 17))
    call(compile_module(text, ("fill",))["fill"], got)
    want = np.ones((6, 35, 17))
    want[:, :34, 8:] = 0
    same(got, want)


@crossed(kind=["f32", "f64", "i32", "i64", "u8", "i16"], lanes=[2, 4, 8, 16])
def test_lanes_of_several_vectors_are_combined_side_by_side(kind: str, lanes: int) -> None:
    """As the lanes of each vector by itself, with NaN and infinities; NumPy's extremes."""
    size, vector, names = np.dtype(KINDS[kind]).itemsize, f"{kind}x{lanes}", ("sum", "prod", "max", "min")
    for count in (n for n in EACH if n <= lanes):
        used = {f"{name}_{how}" for name in names for how in ("lanes", f"each{count}")}
        text = f"from eqsat_backends.numba_cpu.vectors.simd import load_{vector}, store, word, {', '.join(used)}\n\n"
        text += "def each(args, tid, nt):\n"
        text += "".join(f"    v{i} = load_{vector}(word(args, 0) + {size * lanes * i})\n" for i in range(count))
        several = ", ".join(f"v{i}" for i in range(count))
        for n, name in enumerate(names):
            text += f"    store(word(args, 1) + {size * lanes * n}, {name}_each{count}({several}))\n"
            for i in range(count):
                text += f"    store(word(args, 2) + {size * lanes * (n * count + i)}, {name}_lanes(v{i}))\n"
        x = values(kind, np.random.default_rng(count), count * lanes).reshape(count, lanes)
        got, alone = np.zeros((4, lanes), x.dtype), np.zeros((4, count, lanes), x.dtype)
        call(compile_module(text, ("each",))["each"], x, got, alone)
        np.testing.assert_array_equal(got[:, :count], alone[:, :, 0])
        np.testing.assert_array_equal(got[2:, :count], [x.max(axis=1), x.min(axis=1)])


@pytest.mark.skipif(os.name != "posix", reason="forbids access to a page")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", [2, 16])
def test_every_second_element(kind: str, lanes: int) -> None:
    """As many as are wanted, or where a mask is set, also where behind the last wanted one is no memory."""
    size, vector, count = np.dtype(KINDS[kind]).itemsize, f"{kind}x{lanes}", max(1, lanes - 3)
    names = ["word", "store", f"within_b1x{lanes}", f"strided_{vector}", f"stridedn_{vector}", f"stridedm_{vector}"]
    far = (lanes - count) * 2 * size
    text = f"""from eqsat_backends.numba_cpu.vectors.simd import {", ".join(names)}
def access(args, tid, nt):
    x = word(args, 0)
    out = word(args, 1)
    store(out, strided_{vector}(x, {2 * size}))
    store(out + {size * 16}, stridedn_{vector}(x + {far}, {2 * size}, {count}))
    mask = within_b1x{lanes}(0, 1, 1, {count})
    store(out + {size * 32}, stridedm_{vector}(x + {far}, {2 * size}, mask))
"""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        x = np.frombuffer(memory, KINDS[kind], 2 * lanes - 1, page - (2 * lanes - 1) * size)
        start = x.ctypes.data + x.nbytes
        x[:] = values(kind, np.random.default_rng(6), x.size)
        got = np.zeros(48, KINDS[kind])
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(start, page, 0) == 0
        try:
            call(compile_module(text, ("access",))["access"], x, got)
        finally:
            protect(start, page, mmap.PROT_READ | mmap.PROT_WRITE)
        every = x[::2].copy()
        del x
    np.testing.assert_array_equal(got[:lanes], every)
    np.testing.assert_array_equal(got[16 : 16 + count], every[lanes - count :])
    np.testing.assert_array_equal(got[33 : 32 + count], every[lanes - count :][1:])


def test_native_lanes_is_a_power_of_two() -> None:
    assert native_lanes(32) in (4, 8, 16)
    assert native_lanes(32) == 2 * native_lanes(64)


def test_unknown_names_are_refused() -> None:
    from eqsat_backends.numba_cpu.vectors import simd

    with pytest.raises(AttributeError, match="power of two"):
        _ = simd.load_f32x3
    with pytest.raises(AttributeError, match="load_f31x16"):
        _ = simd.load_f31x16


def test_ulp_error_is_not_blind() -> None:
    """Negative control: a neighbour is one unit away."""
    x = np.linspace(0.1, 10, 1000, dtype=np.float32)
    assert np.allclose(ulp_error(np.nextafter(x, np.float32(np.inf)), x.astype(np.float64)), 1)


@pytest.mark.parametrize("source", ["float64", "int64", "int32"])
@pytest.mark.parametrize("target", ["uint8", "int16", "int32", "float16"])
def test_one_narrowed_lane_is_all_that_is_stored(source: str, target: str) -> None:
    """What is left over of a row is one element, and behind it begins the next row."""

    def narrowed(x: np.ndarray, k: np.ndarray) -> np.ndarray:
        return np.where((k > 3)[:, None], x, x + 2).astype(target)

    for columns in (17, 33):
        x, k = np.ones((8, columns), source), np.arange(8)
        found = eqsat.optimize(narrowed, strict=True, cache=False, verify=False)(x, k)
        np.testing.assert_array_equal(found, narrowed(x, k), strict=True)
