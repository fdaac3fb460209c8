"""Functions of images against PyTorch, where it is installed: what PyTorch computes, they compute alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat import nn
from eqsat.errors import EqsatError

torch = pytest.importorskip("torch")
functional = torch.nn.functional

LAST = {1: "NLC", 2: "NHWC", 3: "NDHWC"}
LARGEST = {1: 40, 2: 24, 3: 9}
REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError)

Case = tuple[str, tuple[np.ndarray, ...], dict[str, Any]]


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
    """A function, its arrays, of which the first are images with channels first, and its options."""
    kind = draw(
        st.sampled_from(("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"))
    )
    rank = draw(st.integers(1, 3))

    def each(least: int, most: int) -> Any:
        one = st.integers(least, most)
        return draw(st.one_of(one, st.tuples(*[one] * rank)))

    random = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    groups, depth, width = (draw(st.integers(1, 4)) for _ in range(3))
    groups = groups if kind.startswith("conv") else 1
    space = [draw(st.integers(1, LARGEST[rank])) for _ in range(rank)]
    shapes = [(*draw(st.sampled_from(((), (0,), (1,), (3,)))), groups * depth, *space)]
    kernel = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    if kind == "conv":
        shapes += [(groups * width, depth, *kernel), (groups * width,)]
        options = {"stride": each(1, 4), "padding": each(0, 6), "dilation": each(1, 3), "groups": groups}
        if draw(st.booleans()):
            options |= {
                "stride": draw(st.sampled_from((1, options["stride"]))),
                "padding": draw(st.sampled_from(("same", "valid"))),
            }
    elif kind == "conv_transpose":
        shapes += [(groups * depth, width, *kernel), (groups * width,)]
        options = {
            "stride": each(1, 4),
            "padding": each(0, 3),
            "output_padding": each(0, 2),
            "dilation": each(1, 3),
            "groups": groups,
        }
    elif kind.startswith("adaptive"):
        options = {"output_size": each(1, 12)}
    else:
        size = each(1, 5)
        options = {
            "kernel_size": size,
            "stride": draw(st.sampled_from((None, each(1, 4)))),
            "ceil_mode": draw(st.booleans()),
        }
        options["padding"] = tuple(
            draw(st.integers(0, k // 2)) for k in (size if isinstance(size, tuple) else (size,) * rank)
        )
        if kind == "max_pool":
            options["dilation"] = each(1, 3)
        else:
            options["count_include_pad"] = draw(st.booleans())
            if rank > 1:
                options["divisor_override"] = draw(st.sampled_from((None, 3)))
    return f"{kind}{rank}d", tuple(random.standard_normal(shape).astype(dtype) for shape in shapes), options


def check(case: Case, last: bool) -> None:
    name, (x, *rest), options = case
    rank = int(name[-2])
    try:
        want = getattr(functional, name)(*map(torch.from_numpy, (x, *rest)), **options).numpy()
    except REFUSALS:
        return
    layout = {"layout": LAST[rank]} if last else {}
    try:
        got = getattr(nn, name)(np.moveaxis(x, -rank - 1, -1) if last else x, *rest, **options, **layout)
    except EqsatError:
        # PyTorch has transposed convolutions with empty results, and checks less of an empty batch.
        assert name.startswith("conv_transpose") and 0 in want.shape
        return
    got = np.moveaxis(got, -1, -rank - 1) if last else got
    assert got.shape == want.shape and got.dtype == want.dtype
    scale = math.sqrt(rest[0][0].size) if rest else 1.0
    bound = {np.dtype(np.float32): 4e-6, np.dtype(np.float64): 1e-14}[x.dtype] * 8 * scale
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(1.0, float(np.abs(want).max(initial=0))))


@given(case=cases(), last=st.booleans())
@settings(max_examples=150, deadline=None)
def test_as_pytorch(case: Case, last: bool) -> None:
    check(case, last)


@pytest.mark.slow
@given(case=cases(), last=st.booleans())
@settings(max_examples=4000, deadline=None)
def test_as_pytorch_in_a_long_sweep(case: Case, last: bool) -> None:
    check(case, last)
