"""Functions of images against PyTorch, where it is installed: what it computes, they compute alike.

What it refuses, they refuse too, or they compute what is defined.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_references import adapted, convolved, pooled, transposed

import eqsat
from eqsat import nn
from eqsat.errors import EqsatError
from tests.sweeps import a_part

torch = pytest.importorskip("torch")
functional = torch.nn.functional

LAST = {1: "NLC", 2: "NHWC", 3: "NDHWC"}
LARGEST = {1: 40, 2: 24, 3: 9}
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
KINDS = (
    "conv", "conv_transpose", "conv", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool",
    "global_avg_pool", "global_max_pool",
)  # fmt: skip
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
SEEN: Counter[str] = Counter()
"""How the cases of a run ended, for who looks at a long one."""

Case = tuple[str, int, tuple[np.ndarray, ...], dict[str, Any]]


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
    """A function, its axes of space, its arrays, of which the first are images with channels first, and its options."""
    kind = draw(st.sampled_from(KINDS))
    rank = draw(st.integers(1, 3))

    def each(least: int, most: int) -> Any:
        one = st.integers(least, most)
        return draw(st.one_of(one, st.tuples(*[one] * rank)))

    def rarely(value: int, other: int) -> int:
        return other if draw(st.integers(0, 29)) == 17 else value

    random = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    largest = LARGEST[rank]
    extent = st.one_of(
        st.integers(1, largest), st.sampled_from([n for n in PRIMES if n <= largest]), st.sampled_from((1, 2, largest))
    )
    space = [rarely(draw(extent), 0) for _ in range(rank)]
    groups, depth, width = (draw(st.integers(1, 4)) for _ in range(3))
    if draw(st.integers(0, 4)) == 0:
        depth = 1  # depthwise
    channels = groups * depth if kind.startswith("conv") else draw(st.integers(1, 5))
    shapes = [(*draw(st.sampled_from(((), (0,), (1,), (3,)))), rarely(channels, channels + 1), *space)]
    longest = draw(st.sampled_from((1, 3, 5, 5, 7, 2 * largest)))
    kernel = tuple(draw(st.integers(1, min(longest, {1: 40, 2: 9, 3: 5}[rank]))) for _ in range(rank))
    options: dict[str, Any] = {}
    if kind == "conv":
        shapes += [(rarely(groups * width, groups * width + 1), depth, *kernel), (groups * width,)]
        options = {"stride": each(1, 7), "padding": each(0, 9), "dilation": each(1, 3), "groups": groups}
        form = draw(st.sampled_from(("number", "name", "pairs")))
        if form == "name":
            options |= {
                "stride": draw(st.sampled_from((1, options["stride"]))),
                "padding": draw(st.sampled_from(("same", "valid"))),
            }
        elif form == "pairs":
            one = st.integers(0, 6)
            options["padding"] = tuple(draw(st.tuples(one, one)) for _ in range(rank))
    elif kind == "conv_transpose":
        shapes += [(groups * depth, width, *kernel), (groups * width,)]
        options = {
            "stride": each(1, 5),
            "padding": each(0, 4),
            "output_padding": each(0, 3),
            "dilation": each(1, 3),
            "groups": rarely(groups, groups + 1),
        }
    elif kind.startswith("adaptive"):
        options = {"output_size": each(rarely(1, 0), 12)}
    elif kind.endswith("pool") and not kind.startswith("global"):
        size = draw(st.sampled_from((kernel, kernel[0])))
        options = {
            "kernel_size": size,
            "stride": draw(st.sampled_from((None, each(1, 7)))),
            "ceil_mode": draw(st.booleans()),
        }
        options["padding"] = tuple(
            draw(st.integers(0, rarely(k // 2, k))) for k in (size if isinstance(size, tuple) else (size,) * rank)
        )
        if kind == "max_pool":
            options["dilation"] = each(1, 3)
        else:
            options["count_include_pad"] = draw(st.booleans())
            if rank > 1:
                options["divisor_override"] = draw(st.sampled_from((None, 3, -2)))
    return kind, rank, tuple(random.standard_normal(shape).astype(dtype) for shape in shapes), options


def by_pytorch(kind: str, rank: int, arrays: tuple[np.ndarray, ...], options: dict[str, Any]) -> np.ndarray | None:
    """What PyTorch computes; None where it refuses."""
    x, *rest = map(torch.from_numpy, arrays)
    try:
        if kind.startswith("global"):  # PyTorch has none of its own
            axes = tuple(range(2, x.dim()))
            return (x.amax(axes, keepdim=True) if "max" in kind else x.mean(axes, keepdim=True)).numpy()
        if isinstance(options.get("padding"), tuple) and isinstance(options["padding"][0], tuple):
            x = functional.pad(x, [n for pair in reversed(options["padding"]) for n in pair])
            options = options | {"padding": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch says where 'same' padding costs it a copy
            found: np.ndarray = getattr(functional, f"{kind}{rank}d")(x, *rest, **options).numpy()
        return found
    except REFUSALS:
        return None


def by_definition(kind: str, rank: int, arrays: tuple[np.ndarray, ...], options: dict[str, Any]) -> np.ndarray:
    """What loops over positions compute, of images with an axis of batches."""
    x, *rest = arrays
    given = {name: v if isinstance(v, tuple) else (v,) * rank for name, v in options.items()}
    if kind == "conv":
        widths = given["padding"]
        if isinstance(options["padding"], str):
            spans = [d * (k - 1) for d, k in zip(given["dilation"], rest[0].shape[2:], strict=True)]
            widths = tuple((s // 2, s - s // 2) if options["padding"] == "same" else (0, 0) for s in spans)
        pairs = [w if isinstance(w, tuple) else (w, w) for w in widths]
        out = convolved(x, rest[0], given["stride"], pairs, given["dilation"], options["groups"])
    elif kind == "conv_transpose":
        names = ("stride", "padding", "output_padding", "dilation")
        out = transposed(x, rest[0], *(given[name] for name in names), options["groups"])
    elif kind.startswith("adaptive"):
        return adapted(x, kind.split("_")[1], given["output_size"])
    else:
        step = given["kernel_size"] if options["stride"] is None else given["stride"]
        return pooled(
            x, kind.split("_")[0], given["kernel_size"], step, given["padding"], given.get("dilation", (1,) * rank),
            options["ceil_mode"], options.get("count_include_pad", True), options.get("divisor_override"),
        )  # fmt: skip
    return out + rest[1].reshape(-1, *(1,) * rank)


def check(case: Case, last: bool, compiled: bool = False) -> None:
    kind, rank, (x, *rest), options = case
    if kind.startswith("global") and x.ndim == rank + 1:
        x = x[None]
    want = by_pytorch(kind, rank, (x, *rest), options)
    function = getattr(nn, kind if kind.startswith("global") else f"{kind}{rank}d")
    layout = {"layout": LAST[rank]} if last else {}
    seen = np.ascontiguousarray(np.moveaxis(x, -rank - 1, -1)) if last else x

    def program(*arrays: Any) -> Any:
        return function(*arrays, **options, **layout)

    try:
        got = program(seen, *rest)
        if compiled:
            got = eqsat.optimize(program, threads=1, check_speed=False, strict=True)(seen, *rest)
    except EqsatError:
        # PyTorch has transposed convolutions with empty results, checks less of an empty batch, and divides 0 by 0.
        SEEN["refused" if want is None else "refused, empty in PyTorch"] += 1
        assert want is None or 0 in want.shape or 0 in x.shape
        return
    SEEN["compiled" if compiled else "run"] += 1
    got = np.moveaxis(got, -1, -rank - 1) if last else got
    if want is None:
        SEEN["refused by PyTorch alone"] += 1
        whole = by_definition(kind, rank, (x if x.ndim == rank + 2 else x[None], *rest), options)
        want = (whole if x.ndim == rank + 2 else whole[0]).astype(x.dtype)
    assert got.shape == want.shape and got.dtype == want.dtype
    scale = math.sqrt(rest[0][0].size) if rest else 1.0
    bound = {np.dtype(np.float32): 4e-6, np.dtype(np.float64): 1e-14}[x.dtype] * 8 * scale
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(1.0, float(np.abs(want).max(initial=0))))


@given(case=cases(), last=st.booleans())
@settings(max_examples=a_part(150), deadline=None)
def test_as_pytorch(case: Case, last: bool) -> None:
    check(case, last)


@pytest.mark.slow
@given(case=cases(), last=st.booleans(), compiled=st.sampled_from((False,) * 9 + (True,)))
@settings(max_examples=a_part(4000), deadline=None)
def test_as_pytorch_in_a_long_sweep(case: Case, last: bool, compiled: bool) -> None:
    check(case, last, compiled)
