"""Expressions that make input arrays: every type, value range, layout and rank."""

from __future__ import annotations

import random

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33)
FLOATS = ("np.float32", "np.float64")
INTS = ("np.int32", "np.int64")

SHAPES = {
    0: ("()",),
    1: ("(p,)", "(q,)", "(r,)", "(p,)", "(1,)", "(0,)", "(p * q,)"),
    2: ("(p, q)", "(p, q)", "(p, q)", "(q, p)", "(q, r)", "(p, p)", "(p, 1)", "(1, q)", "(1, 1)", "(0, q)", "(p, 0)"),
    3: ("(p, q, r)", "(r, p, q)", "(2, p, q)", "(p, 1, q)", "(1, p, q)", "(r, 0, q)", "(p, q, q)"),
    4: ("(2, r, p, q)", "(1, p, q, r)", "(2, 1, p, 1)"),
}


def shape(rng: random.Random, ndim: int | None = None) -> str:
    """A shape over the sizes ``p``, ``q``, ``r``."""
    if ndim is None:
        ndim = rng.choices((0, 1, 2, 3, 4), (6, 30, 45, 15, 4))[0]
    return rng.choice(SHAPES[ndim])


def values(rng: random.Random, kind: str, shape: str, *, special: bool = False) -> tuple[str, str]:
    """An expression for an array of ``shape``, contiguous and native, and its element type."""
    if kind == "b":
        return f"rng.random({shape}) < {rng.choice(('0.5', '0.5', '0.9', '0.1'))}", "np.bool_"
    if kind == "i":
        dtype = rng.choice(INTS)
        if rng.random() < 0.15:
            return f"edges({shape}, {dtype}, seed)", dtype
        low, high = rng.choice(((-9, 10), (-9, 10), (0, 5), (1, 100), (-1000, 1000), (-2, 3)))
        return f"rng.integers({low}, {high}, {shape}, dtype={dtype})", dtype
    dtype = rng.choice(FLOATS)
    if special:
        return f"special({shape}, {dtype}, seed)", dtype
    made = rng.choice(
        (
            f"rng.standard_normal({shape})",
            f"rng.standard_normal({shape})",
            f"rng.standard_normal({shape})",
            f"rng.uniform(0.1, 3.0, {shape})",
            f"rng.uniform(-1.0, 1.0, {shape})",
            f"rng.integers(-4, 5, {shape}) / 2",
            f"rng.standard_normal({shape}) * 100",
            f"10.0 ** rng.uniform(-6, 6, {shape})",
        )
    )
    scalar = f"np.asarray({made}, {dtype})" if shape == "()" else f"({made}).astype({dtype})"
    return scalar, dtype


def layout(rng: random.Random, expression: str, shape: str, dtype: str) -> str:
    """The expression, or an array of the same shape and type that lies otherwise in memory."""
    if shape == "()":
        swapped = f"np.asarray({expression}).astype(np.dtype({dtype}).newbyteorder())"
        return rng.choice((expression, f"np.asarray({expression})", f"np.asarray({expression})[()]", swapped))
    choices = [
        f"np.asfortranarray({expression})",
        f"np.repeat({expression}, 2, axis=-1)[..., ::2]",
        f"np.repeat({expression}, 3, axis=0)[1::3]",
        f"({expression})[::-1]",
        f"({expression})[..., ::-1]",
        f"frozen({expression})",
        f"misaligned({expression})",
        f"({expression}).T.copy().T",
        f"np.stack([{expression}] * 2, axis=-1)[..., 0]",
    ]
    if dtype != "np.bool_":
        choices += [f"({expression}).astype(np.dtype({dtype}).newbyteorder())"] * 3
    return rng.choice(choices)


def strided(rng: random.Random) -> tuple[str, str]:
    """An array that overlaps itself or stands for many more elements than it has, and its kind."""
    dtype = rng.choice(FLOATS)
    made = rng.choice(
        (
            f"np.broadcast_to(rng.standard_normal((q,)).astype({dtype}), (p, q))",
            f"np.broadcast_to(rng.standard_normal((p, 1)).astype({dtype}), (p, q))",
            f"np.broadcast_to({dtype}(rng.standard_normal()), (r, p, q))",
            f"sliding_window_view(rng.standard_normal(p + q).astype({dtype}), q)",
            f"sliding_window_view(rng.standard_normal((p + 2, q + 1)).astype({dtype}), (3, 2))",
            "as_strided(rng.standard_normal(p + q).astype(np.float64), (p, q), (8, 8))",
            "as_strided(rng.standard_normal(p * q).astype(np.float32)[-1:], (p * q,), (-4,))",
            "as_strided(rng.standard_normal((p, 97)), (p, q), (776, 16))",
            "as_strided(np.ones(1, np.float32), (p, q), (0, 0))",
        )
    )
    return made, "f"


HUGE = (
    "np.broadcast_to(np.float32(1.5), (100_000, 100_000))",
    "np.broadcast_to(rng.standard_normal(7), (10**9, 7))",
    "np.broadcast_to(rng.standard_normal((5, 1)).astype(np.float32), (5, 2 * 10**9))",
    "as_strided(rng.standard_normal(9), (10**10,), (0,))",
    "np.broadcast_to(np.int64(3), (10**5, 1, 10**5))",
)
"""Arrays of ten thousand million elements and a few bytes."""
