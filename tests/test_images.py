"""Functions of images against their definitions, NumPy and SciPy: as arrays, traced, and compiled."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import ndimage, signal

import eqsat
from eqsat import nn
from eqsat.errors import EqsatError, OptionError, ShapeError, UnsupportedDTypeError
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.ir.joins import PadAttrs
from eqsat.ir.opaque import calls_of
from eqsat.ir.views import ViewMap
from tests import image_references as reference
from tests.sweeps import a_part
from tests.test_trace import same

LAST = {1: "NLC", 2: "NHWC", 3: "NDHWC"}
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13)
LARGEST = {1: 13, 2: 8, 3: 5}

Draw = Callable[[st.SearchStrategy[Any]], Any]


def function(name: str, rank: int) -> Callable[..., Any]:
    return getattr(nn, f"{name}{rank}d")  # type: ignore[no-any-return]


def last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


def first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1)


def run(fn: Callable[..., Any], x: np.ndarray, layout: str) -> np.ndarray:
    """``fn(x, layout=…)`` of images with channels first, one of them without an axis of batches."""
    rank = x.ndim - 2
    if layout == "last":
        return first(np.asarray(fn(last(x), layout=LAST[rank])))
    if layout == "one":
        return np.stack([fn(one) for one in x]) if len(x) else np.asarray(fn(x))
    return np.asarray(fn(x))


layouts = st.sampled_from(("first", "last", "one"))
dtypes = st.sampled_from(("float32", "float64"))


@st.composite
def images(draw: Draw, rank: int, channels: int | None = None) -> np.ndarray:
    space = [draw(st.sampled_from([n for n in EXTENTS if n <= LARGEST[rank]])) for _ in range(rank)]
    shape = (draw(st.integers(0, 3)), channels or draw(st.integers(1, 4)), *space)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return random.standard_normal(shape).astype(draw(dtypes))


def each(draw: Draw, rank: int, least: int, most: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(least, most)) for _ in range(rank))


def close(got: Any, want: np.ndarray, x: np.ndarray) -> None:
    same(got, want.astype(x.dtype), 8)


# Convolution


@given(data=st.data(), rank=st.sampled_from((1, 2, 2, 3)), layout=layouts)
@settings(max_examples=a_part(150), deadline=None)
def test_convolutions(data: st.DataObject, rank: int, layout: str) -> None:
    draw = data.draw
    groups, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width = groups * draw(st.integers(1, 3))
    x = draw(images(rank, groups * depth))
    kernel = each(draw, rank, 1, 4 if rank < 3 else 3)
    w = np.random.default_rng(1).standard_normal((width, depth, *kernel)).astype(x.dtype)
    bias = draw(st.sampled_from((None, np.arange(width).astype(x.dtype))))
    stride, dilation = each(draw, rank, 1, 3), each(draw, rank, 1, 3)
    widths = tuple(each(draw, 2, 0, 4) for _ in range(rank))
    padding: Any = widths
    how = draw(st.sampled_from(("pairs", "even", "same", "valid")))
    if how == "even":
        padding = tuple(low for low, _ in widths)
        widths = tuple((low, low) for low in padding)
    elif how == "same":
        padding, stride = how, (1,) * rank
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        widths = tuple((span // 2, span - span // 2) for span in spans)
    elif how == "valid":
        padding, widths = how, ((0, 0),) * rank

    def fn(x: Any, **layout: Any) -> Any:
        return function("conv", rank)(x, w, bias, stride, padding, dilation, groups, **layout)

    reach = [n + low + high for n, (low, high) in zip(x.shape[2:], widths, strict=True)]
    if any(d * (k - 1) + 1 > n for n, k, d in zip(reach, kernel, dilation, strict=True)):
        with pytest.raises(ShapeError, match="more than the padded input"):
            fn(x)
        return
    want = reference.convolved(x, w, stride, widths, dilation, groups)
    close(run(fn, x, layout), want + (0 if bias is None else bias.reshape(-1, *[1] * rank)), x)


@given(data=st.data(), rank=st.sampled_from((1, 2, 2, 3)), layout=layouts)
@settings(max_examples=a_part(150), deadline=None)
def test_transposed_convolutions(data: st.DataObject, rank: int, layout: str) -> None:
    draw = data.draw
    groups, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = draw(images(rank, groups * draw(st.integers(1, 2))))
    kernel = each(draw, rank, 1, 4 if rank < 3 else 3)
    w = np.random.default_rng(1).standard_normal((x.shape[1], width, *kernel)).astype(x.dtype)
    bias = draw(st.sampled_from((None, np.arange(width * groups).astype(x.dtype))))
    stride, dilation, padding = each(draw, rank, 1, 4), each(draw, rank, 1, 3), each(draw, rank, 0, 3)
    more = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))

    def fn(x: Any, **layout: Any) -> Any:
        return function("conv_transpose", rank)(x, w, bias, stride, padding, more, groups, dilation, **layout)

    options = zip(x.shape[2:], kernel, stride, padding, more, dilation, strict=True)
    if any((n - 1) * s - 2 * p + d * (k - 1) + e < 0 for n, k, s, p, e, d in options):
        with pytest.raises(ShapeError, match="leave a result of"):
            fn(x)
        return
    want = reference.transposed(x, w, stride, padding, more, dilation, groups)
    close(run(fn, x, layout), want + (0 if bias is None else bias.reshape(-1, *[1] * rank)), x)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [((1, 4), (3, 1), (1, 1)), ((3, 5), (2, 3), (1, 1)), ((3, 2), (4, 2), (2, 3))]
)
def test_special_values_reach_what_they_are_multiplied_with_alone(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    """No zeros between pixels or behind the kernel, of which NaN and infinity would make NaN."""
    random = np.random.default_rng(5)
    x, w = random.standard_normal((2, 3, 5, 4)), random.standard_normal((3, 2, *kernel))
    x = np.where(random.random(x.shape) < 0.1, random.choice([np.nan, np.inf, -np.inf], x.shape), x)
    with np.errstate(invalid="ignore"):
        given = reference.transposed(x, w, stride, (1, 0), (1, 0), dilation, 1)
    assert np.isnan(given).any() and np.isfinite(given).any()
    found = nn.conv_transpose2d(x, w, None, stride, (1, 0), (1, 0), 1, dilation)
    np.testing.assert_allclose(found, given, rtol=1e-12, atol=1e-12)


def test_a_transposed_convolution_of_padding_that_cuts_off_whole_taps() -> None:
    x, w = np.random.default_rng(2).standard_normal((1, 2, 1)), np.random.default_rng(3).standard_normal((2, 1, 3))
    want = reference.transposed(x, w, (3,), (5,), (0,), (5,), 1)
    np.testing.assert_allclose(nn.conv_transpose1d(x, w, stride=3, padding=5, dilation=5), want)


def test_results_share_no_memory_with_arguments() -> None:
    """Nor where nothing is to be done, so that what is written to one never changes the other."""

    def fn(x: Any) -> Any:
        y = nn.max_pool3d(x, 1, dilation=2)
        np.add.at(y, 0, 5)
        return y, nn.interpolate(x, size=(1, 1))

    x = np.arange(7, dtype=np.uint16).reshape(1, 7, 1, 1)
    before = x.copy()
    for run in (fn, eqsat.optimize(fn, strict=True)):
        assert not any(np.shares_memory(x, result) for result in run(x))
        np.testing.assert_array_equal(x, before)


def test_convolutions_are_scipys() -> None:
    random = np.random.default_rng(3)
    x, w = random.standard_normal((9, 8)), random.standard_normal((3, 4))
    got = nn.conv2d(x[None], w[None, None])[0]
    same(got, signal.correlate2d(x, w, "valid"), 8)
    same(nn.conv_transpose2d(x[None], w[None, None])[0], signal.convolve2d(x, w, "full"), 8)
    rows = nn.conv1d(x[:, None], w[:1, None], padding=((3, 0),))
    same(rows[:, 0], signal.lfilter(w[0, ::-1], 1, x), 8)
    cube = random.standard_normal((5, 6, 7))
    same(
        nn.conv3d(cube[None], np.ones((1, 1, 3, 3, 3)), padding=1)[0],
        ndimage.uniform_filter(cube, 3, mode="constant") * 27,
        64,
    )


def test_integers_stay_integers_and_types_are_promoted() -> None:
    x, w = np.arange(20, dtype=np.int16).reshape(1, 1, 4, 5), np.ones((1, 1, 2, 2), np.int32)
    assert nn.conv2d(x, w).dtype == np.int32
    assert nn.conv2d(x, w)[0, 0, 0, 0] == 0 + 1 + 5 + 6
    assert nn.conv2d(x.astype(np.float32), w.astype(np.float64)).dtype == np.float64
    assert nn.max_pool2d(x.astype(np.uint8), 2, padding=1).dtype == np.uint8
    assert nn.avg_pool2d(x, 2).dtype == np.float64
    half = x.astype(np.float16)
    for y in (
        nn.conv2d(half, w.astype(np.float16)), nn.max_pool2d(half, 2), nn.avg_pool2d(half, 2), nn.group_norm(half, 1),
        nn.interpolate(half, 7, mode="bilinear"), nn.adaptive_avg_pool2d(half, 3), nn.pixel_unshuffle(half[..., :4], 2),
    ):  # fmt: skip
        assert y.dtype == np.float16
    assert nn.avg_pool2d(np.full((1, 1, 16, 16), 6e4, np.float16), 16)[0, 0, 0, 0] == np.float16(6e4)


# Pooling


@given(data=st.data(), rank=st.sampled_from((1, 2, 2, 3)), layout=layouts, kind=st.sampled_from(("max", "avg")))
@settings(max_examples=a_part(200), deadline=None)
def test_pooling(data: st.DataObject, rank: int, layout: str, kind: str) -> None:
    draw = data.draw
    x = draw(images(rank))
    kernel = each(draw, rank, 1, 4)
    stride = draw(st.sampled_from((None, each(draw, rank, 1, 4))))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    dilation = each(draw, rank, 1, 2) if kind == "max" else (1,) * rank
    ceil, padded = draw(st.booleans()), draw(st.booleans())
    divisor = draw(st.sampled_from((None, 3))) if rank > 1 else None

    def fn(x: Any, **layout: Any) -> Any:
        if kind == "max":
            return function("max_pool", rank)(x, kernel, stride, padding, dilation, ceil, **layout)
        own = {} if divisor is None else {"divisor_override": divisor}
        return function("avg_pool", rank)(x, kernel, stride, padding, ceil, padded, **own, **layout)

    steps = stride or kernel
    options = list(zip(x.shape[2:], kernel, steps, padding, dilation, strict=True))
    if not all(reference.window_starts(*given, ceil) for given in options):
        with pytest.raises(ShapeError, match="no window"):
            fn(x)
        return
    assume(all(any(0 <= s + d * r < n for r in range(k)) for n, k, t, p, d in options
               for s in reference.window_starts(n, k, t, p, d, ceil)))  # fmt: skip
    close(run(fn, x, layout), reference.pooled(x, kind, kernel, steps, padding, dilation, ceil, padded, divisor), x)


@given(data=st.data(), rank=st.sampled_from((1, 2, 3)), layout=layouts, kind=st.sampled_from(("max", "avg")))
@settings(max_examples=a_part(100), deadline=None)
def test_adaptive_pooling(data: st.DataObject, rank: int, layout: str, kind: str) -> None:
    x = data.draw(images(rank))
    sizes = [data.draw(st.sampled_from((None, *range(1, 10)))) for _ in range(rank)]
    want = reference.adapted(x, kind, [n if m is None else m for n, m in zip(x.shape[2:], sizes, strict=True)])
    close(run(functools.partial(function(f"adaptive_{kind}_pool", rank), output_size=sizes), x, layout), want, x)
    whole = nn.global_max_pool(x) if kind == "max" else nn.global_avg_pool(x)
    close(whole, reference.adapted(x, kind, [1] * rank), x)


def test_nan_is_a_maximum_and_padding_is_none() -> None:
    x = np.full((1, 1, 4), -np.inf)
    assert (nn.max_pool1d(x, 3, 1, 1) == -np.inf).all()
    x[0, 0, 1] = np.nan
    assert np.isnan(nn.max_pool1d(x, 3, 1, 1)).tolist() == [[[True, True, True, False]]]
    assert (nn.max_pool1d(np.full((1, 1, 4), -7), 3, 1, 1) == -7).all()


# Normalization


@given(data=st.data(), rank=st.integers(0, 3), layout=st.sampled_from(("first", "last")))
@settings(max_examples=a_part(80), deadline=None)
def test_normalization(data: st.DataObject, rank: int, layout: str) -> None:
    draw = data.draw
    x = draw(images(rank, 6)) if rank else np.random.default_rng(0).standard_normal((4, 6)).astype(draw(dtypes))
    layout = layout if rank else "first"
    random = np.random.default_rng(draw(st.integers(0, 9)))
    mean, weight, bias = (random.standard_normal(6).astype(x.dtype) for _ in range(3))
    var = random.random(6).astype(x.dtype) + x.dtype.type(0.1)
    weight, bias = (draw(st.sampled_from((None, row))) for row in (weight, bias))

    def row(values: np.ndarray | None, other: float = 0) -> Any:
        return other if values is None else values.astype(np.float64).reshape(6, *[1] * rank)

    real = x.astype(np.float64)
    want = (real - row(mean)) / np.sqrt(row(var) + 1e-3) * row(weight, 1) + row(bias)
    close(
        run(
            functools.partial(nn.batch_norm, running_mean=mean, running_var=var, weight=weight, bias=bias, eps=1e-3),
            x,
            layout,
        ),
        want,
        x,
    )
    for groups in (1, 2, 3, 6):
        parts = real.reshape(len(x), groups, 6 // groups * math.prod(x.shape[2:]))
        centered = parts - parts.mean(-1, keepdims=True)
        normed = (centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
        want = normed * row(weight, 1) + row(bias)
        close(run(functools.partial(nn.group_norm, num_groups=groups, weight=weight, bias=bias), x, layout), want, x)
        if groups == 6:
            close(run(functools.partial(nn.instance_norm, weight=weight, bias=bias), x, layout), want, x)


# Resizing and padding


@given(data=st.data(), rank=st.integers(1, 3), layout=st.sampled_from(("first", "last")))
@settings(max_examples=a_part(120), deadline=None)
def test_interpolation(data: st.DataObject, rank: int, layout: str) -> None:
    draw = data.draw
    x = draw(images(rank))
    space = x.shape[2:]
    if draw(st.booleans()):
        sizes = tuple(draw(st.integers(1, 9)) for _ in range(rank))
        options: dict[str, Any] = {"size": sizes}
        scales = [n / m for n, m in zip(space, sizes, strict=True)]
    else:
        factors = [draw(st.sampled_from((0.5, 1.0, 1.25, 2.0, 3.0, 2.5))) for _ in range(rank)]
        sizes = tuple(math.floor(n * f) for n, f in zip(space, factors, strict=True))
        assume(0 not in sizes)
        again = draw(st.booleans())
        options = {"scale_factor": factors, "recompute_scale_factor": again}
        scales = [n / m if again else 1 / f for n, m, f in zip(space, sizes, factors, strict=True)]
    corners = draw(st.booleans())
    mode = ("linear", "bilinear", "trilinear")[rank - 1]
    want = reference.interpolated(x, sizes, scales, corners)
    close(run(functools.partial(nn.interpolate, **options, mode=mode, align_corners=corners), x, layout), want, x)
    for mode, shift in (("nearest", 0), ("nearest-exact", 0.5)):
        picks = [
            [min(math.floor((i + shift) * scale), n - 1) for i in range(m)]
            for n, m, scale in zip(space, sizes, scales, strict=True)
        ]
        want = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *picks)]
        same(run(functools.partial(nn.interpolate, **options, mode=mode), x, layout), want)


def test_interpolation_is_scipys() -> None:
    x = np.random.default_rng(0).standard_normal((5, 7))
    zoom = functools.partial(ndimage.zoom, order=1)
    same(nn.interpolate(x[None, None], (9, 13), mode="bilinear", align_corners=True)[0, 0], zoom(x, (9 / 5, 13 / 7)), 8)
    doubled = zoom(x, 2, grid_mode=True, mode="nearest")
    same(nn.interpolate(x[None, None], scale_factor=2, mode="bilinear")[0, 0], doubled, 8)


@given(r=st.integers(1, 3), lead=st.lists(st.integers(0, 2), max_size=2), layout=st.sampled_from(("NCHW", "NHWC")))
@settings(max_examples=a_part(40), deadline=None)
def test_channels_become_space_and_back(r: int, lead: list[int], layout: str) -> None:
    x = np.arange(math.prod(lead) * 2 * r * r * 3 * 5).reshape(*lead, 2 * r * r, 3, 5)
    want = np.zeros((*lead, 2, 3 * r, 5 * r), x.dtype)
    for c, i, j in itertools.product(range(2), range(r), range(r)):
        want[..., c, i::r, j::r] = x[..., c * r * r + i * r + j, :, :]
    if layout == "NHWC":
        x, want = (np.moveaxis(v, -3, -1) for v in (x, want))
    same(nn.pixel_shuffle(x, r, layout=layout), want)
    same(nn.pixel_unshuffle(want, r, layout=layout), x)


@given(data=st.data(), mode=st.sampled_from(("constant", "reflect", "replicate", "circular")))
@settings(max_examples=a_part(120), deadline=None)
def test_padding(data: st.DataObject, mode: str) -> None:
    x = data.draw(images(data.draw(st.integers(1, 3))))
    widths = [
        data.draw(st.tuples(st.integers(-2, 3), st.integers(-2, 3))) for _ in range(data.draw(st.integers(0, x.ndim)))
    ]
    want: Any = x
    for axis, pair in zip(reversed(range(x.ndim)), widths, strict=False):
        cut = want[(*[slice(None)] * axis, slice(max(-pair[0], 0), want.shape[axis] + min(pair[1], 0)))]
        assume(cut.shape[axis] == want.shape[axis] + min(pair[0], 0) + min(pair[1], 0))
        most = {"reflect": cut.shape[axis] - 1, "circular": cut.shape[axis]}.get(mode, 9)
        assume(max(pair) <= max(most, 0) and (mode == "constant" or cut.size))
        around = [(max(pair[0], 0), max(pair[1], 0)) if i == axis else (0, 0) for i in range(x.ndim)]
        want = np.pad(cut, around, {"replicate": "edge", "circular": "wrap"}.get(mode, mode))  # type: ignore[call-overload]
    same(nn.pad(x, [n for pair in widths for n in pair], mode), want)


# What is traced and compiled


@given(data=st.data(), shape=st.lists(st.integers(0, 5), min_size=1, max_size=3))
@settings(max_examples=a_part(80), deadline=None)
def test_windows_are_views(data: st.DataObject, shape: list[int]) -> None:
    x = np.arange(math.prod(shape)).reshape(shape)
    axes = data.draw(st.sampled_from((None, 0, -1, (0,), (0, 0), tuple(range(len(shape))))))
    count = len(shape) if axes is None else 1 if isinstance(axes, int) else len(axes)
    sizes: Any = tuple(data.draw(st.integers(0, 4)) for _ in range(count))
    sizes = sizes[0] if isinstance(axes, int) else sizes

    def fn(x: Any) -> Any:
        y = x * 1
        seen = np.lib.stride_tricks.sliding_window_view(y, sizes, axes)
        y[...] += 1  # as a view sees
        return seen * 2

    try:
        want = fn(x)
    except ValueError:
        with pytest.raises(ShapeError):
            run_by_reference(fn, (x,), {})
        return
    same(run_by_reference(fn, (x,), {}), want)
    assert not calls_of(trace(fn, (x,)).graph.outputs)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(4, 2, 1), (3, 2, 1), (2, 2, 0), (8, 4, 2), (6, 3, 4)])
def test_transposed_convolutions_compute_no_more_than_is_asked_for(kernel: int, stride: int, padding: int) -> None:
    """Each result once, of the taps of its phase."""
    x, w = np.ones((1, 3, 4, 4), np.float32), np.ones((3, 5, kernel, kernel), np.float32)
    traced = trace(lambda x, w: nn.conv_transpose2d(x, w, stride=stride, padding=padding), (x, w)).graph
    extent = 3 * stride + kernel - 2 * padding
    whole = -(-extent // stride) * stride  # rows of all phases
    taps = sum(len(range((p + padding) % stride, kernel, stride)) for p in range(whole))
    products = [node for node in traced.nodes() if node.op == "contract"]
    points = (math.prod(node.attrs.extents(*(i.shape for i in node.inputs)).values()) for node in products)
    assert sum(points) == 3 * 5 * taps**2


def test_tiles_end_inside_of_rows_of_a_padded_result() -> None:
    """A row of 21 is no whole vector, and no tile of pixels ends with it; rows of the tile's own are left over, too."""
    rng = np.random.default_rng(0)
    images, w = rng.standard_normal((2, 24, 9, 21), np.float32), rng.standard_normal((37, 24, 1, 1), np.float32)
    images[0, :, 3, 4], images[1, 5, 8, 20], images[1, 5, 0, 0] = np.nan, np.inf, -np.inf
    bias = rng.standard_normal(37, np.float32)

    def padded(x: Any) -> Any:
        return np.pad(nn.relu(nn.conv2d(x, w, bias)), ((0, 0), (0, 0), (1, 2), (3, 1)))

    got = eqsat.optimize(padded, threads=1, check_speed=False, strict=True)(images)
    np.testing.assert_allclose(got, padded(images), rtol=1e-5, atol=1e-5)


def test_a_convolution_is_one_contraction_of_windows() -> None:
    x, w = np.ones((2, 6, 7, 8), np.float32), np.ones((4, 3, 3, 2), np.float32)
    graph = trace(lambda x, w: nn.conv2d(x, w, None, (2, 1), (1, 0), (1, 3), 2), (x, w)).graph
    nodes = [node for node in graph.nodes() if node.op not in ("input", "const")]
    assert sorted(node.op for node in nodes) == ["contract", "pad", "view", "view", "view"]
    (product,) = [node for node in nodes if node.op == "contract"]
    assert str(product.attrs) == "abfdegh,bcfgh->abcde"  # n g c p q r s, g m c r s → n g m p q
    windows, weights = product.inputs
    assert windows.op == "view" and windows.inputs[0].op == "pad" and weights.shape == (2, 2, 3, 3, 2)
    assert isinstance(windows.inputs[0].attrs, PadAttrs)
    assert windows.inputs[0].attrs.widths == ((0, 0), (0, 0), (1, 1), (0, 0))
    assert isinstance(windows.attrs, ViewMap)
    assert windows.attrs.shape == (2, 2, 3, 4, 5, 3, 2)
    assert windows.attrs.strides == (6 * 9 * 8, 3 * 9 * 8, 9 * 8, 2 * 8, 1, 8, 3)


IMAGE = np.random.default_rng(7).standard_normal((2, 6, 11, 10)).astype(np.float32)
KERNEL = np.random.default_rng(8).standard_normal((4, 6, 3, 3)).astype(np.float32)
ROW = np.random.default_rng(9).random(6).astype(np.float32)

COMPILED: dict[str, Callable[..., Any]] = {
    "conv": lambda x, w, r: nn.relu(nn.conv2d(x, w, r[:4], 2, ((1, 0), (2, 1)))),
    "conv nhwc": lambda x, w, r: nn.conv2d(x.transpose(0, 2, 3, 1), w, padding="same", layout="NHWC"),
    "conv1d": lambda x, w, r: nn.conv1d(x[:, :, 0], w[..., 0], None, 1, 2, 2),
    "depthwise": lambda x, w, r: nn.conv2d(x, w[:1].transpose(1, 0, 2, 3), r, 1, 2, 2, groups=6),
    "groups": lambda x, w, r: nn.conv2d(x, w[:, :3], padding=1, groups=2),
    "pointwise": lambda x, w, r: nn.conv2d(x, w[:, :, :1, :1]),
    "transposed": lambda x, w, r: nn.conv_transpose2d(x, w.transpose(1, 0, 2, 3), None, 2, 1, 1),
    "max": lambda x, w, r: nn.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg": lambda x, w, r: nn.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive": lambda x, w, r: (nn.adaptive_avg_pool2d(x, (4, 5)), nn.adaptive_max_pool2d(x, 3)),
    "norms": lambda x, w, r: nn.group_norm(nn.batch_norm(x, r, r, r, r), 2) + nn.instance_norm(x, weight=r),
    "interpolate": lambda x, w, r: (nn.interpolate(x, (7, 21), mode="bilinear"), nn.interpolate(x, scale_factor=2)),
    "shuffle": lambda x, w, r: nn.pixel_unshuffle(nn.pixel_shuffle(x[:, :4, :10], 2), 4) * 2,
    "pad": lambda x, w, r: nn.pad(x, (1, 2, 3, -1), "reflect") * 2,
    "block": lambda x, w, r: nn.max_pool2d(nn.relu(nn.batch_norm(nn.conv2d(x, w, padding=1), r[:4], r[2:])), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_as_on_arrays(name: str) -> None:
    fn = COMPILED[name]
    compiled = eqsat.optimize(fn, strict=True, threads=1)
    same(compiled(IMAGE, KERNEL, ROW), fn(IMAGE, KERNEL, ROW), 16)
    assert not calls_of(trace(fn, (IMAGE, KERNEL, ROW)).graph.outputs)


# Bad input

X, W, V = np.ones((2, 4, 6, 5)), np.ones((6, 2, 3, 3)), np.ones((6, 4, 3, 3))

WRONG: dict[str, tuple[type[EqsatError], Callable[[Any], Any], str]] = {
    "groups": (ShapeError, lambda x: nn.conv2d(x, W[:5], groups=2), r"groups=2 does not divide the 5 channels"),
    "channels": (ShapeError, lambda x: nn.conv2d(x, W, groups=3), r"\(2, 4, 6, 5\) has 4 channels, .* 2 · 3 = 6"),
    "kernel": (
        ShapeError,
        lambda x: nn.conv2d(x, W, groups=2, dilation=(1, 3)),
        r"spans \(3, 7\), more than .* \(6, 5\)",
    ),
    "empty": (ShapeError, lambda x: nn.conv2d(x[:, :, :0], W, groups=2), r"more than the padded input \(0, 5\)"),
    "empty kernel": (ShapeError, lambda x: nn.conv2d(x, W[:, :, :, :0], groups=2), r"\(6, 2, 3, 0\) is empty"),
    "bias": (ShapeError, lambda x: nn.conv2d(x, W, x[0, 0, 0], groups=2), r"bias must have shape \(6,\) .* not \(5,\)"),
    "rank": (ShapeError, lambda x: nn.conv3d(x[0], W), r"axes N, C, D, H, W or C, D, H, W, not the shape \(4, 6, 5\)"),
    "weight": (ShapeError, lambda x: nn.conv2d(x, W[0]), r"4 in all, not the shape \(2, 3, 3\)"),
    "layout": (OptionError, lambda x: nn.conv2d(x, W, layout="HWNC"), "'NCHW', 'NHWC', not 'HWNC'"),
    "padding": (OptionError, lambda x: nn.conv2d(x, V, padding=-1), "padding must be at least 0, not -1"),
    "same": (OptionError, lambda x: nn.conv2d(x, W, None, 2, "same", 1, 2), "padding='same' is for stride 1"),
    "stride": (OptionError, lambda x: nn.conv2d(x, V, None, 0), "stride must be at least 1, not 0"),
    "numbers": (OptionError, lambda x: nn.conv2d(x, V, None, (1, 2, 3)), r"has 3 numbers for 2 axes"),
    "fraction": (OptionError, lambda x: nn.conv2d(x, V, None, 1.5), "stride must be an integer"),
    "nothing": (OptionError, lambda x: nn.conv2d(x, None), "must be arrays, not None"),
    "bool": (UnsupportedDTypeError, lambda x: nn.conv2d(x > 0, W > 0), "conv2d of bool"),
    "transposed": (ShapeError, lambda x: nn.conv_transpose2d(x, W), r"\(2, 4, 6, 5\) has 4 channels, .* takes 6"),
    "transposed groups": (ShapeError, lambda x: nn.conv_transpose2d(x, W[:4], groups=3), "does not divide the 4"),
    "nothing left": (ShapeError, lambda x: nn.conv_transpose2d(x, W[:4], None, 1, 4), r"leave a result of \(0, -1\)"),
    "output_padding": (OptionError, lambda x: nn.conv_transpose2d(x, W[:4], None, 2, 0, 2), r"\(2, 2\) must be less"),
    "half": (ShapeError, lambda x: nn.max_pool2d(x, 3, 1, 2), r"padding \(2, 2\) is more than half .* \(3, 3\)"),
    "window": (ShapeError, lambda x: nn.avg_pool2d(x, (2, 6)), r"no window of \(2, 6\)"),
    "no space": (ShapeError, lambda x: nn.adaptive_avg_pool2d(x[..., :0], 2), "without elements"),
    "divisor": (OptionError, lambda x: nn.avg_pool2d(x, 2, divisor_override=0), "must not be 0"),
    "statistics": (ShapeError, lambda x: nn.batch_norm(x, x[0, 0, 0], x[0, 0, 0]), r"shape \(4,\) .* not \(5,\)"),
    "group_norm": (ShapeError, lambda x: nn.group_norm(x, 3), "num_groups=3 does not divide the 4 channels"),
    "mode": (OptionError, lambda x: nn.interpolate(x, 3, mode="cubic"), "not 'cubic'"),
    "mode's rank": (ShapeError, lambda x: nn.interpolate(x, 3, mode="linear"), "is for 1 axes of space"),
    "corners": (OptionError, lambda x: nn.interpolate(x, 3, align_corners=True), "align_corners is of linear modes"),
    "size": (OptionError, lambda x: nn.interpolate(x), "either size or scale_factor"),
    "scale": (ShapeError, lambda x: nn.interpolate(x, scale_factor=0.1), "has no elements"),
    "shuffle": (ShapeError, lambda x: nn.pixel_shuffle(x, 3), "4 channels .* 3 × 3"),
    "unshuffle": (ShapeError, lambda x: nn.pixel_unshuffle(x, 2), "does not divide the extents 6 × 5"),
    "reflect": (ShapeError, lambda x: nn.pad(x, (5, 0), "reflect"), "at most 4 elements beside axis 3"),
    "cut": (ShapeError, lambda x: nn.pad(x, (-3, -3)), "cuts more"),
    "odd": (ShapeError, lambda x: nn.pad(x, (1, 2, 3)), "must have a pair"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_names_the_line(name: str) -> None:
    kind, fn, message = WRONG[name]
    for call in (lambda: fn(X), lambda: eqsat.optimize(fn, strict=True)(X)):
        with pytest.raises(kind, match=message) as caught:
            call()
        where = caught.value.where
        assert where is not None and where.file == __file__ and "nn." in where.text


def test_options_may_be_numpys_integers() -> None:
    same(nn.max_pool2d(X, np.int64(2), padding=(np.int8(1), 0)), nn.max_pool2d(X, 2, padding=(1, 0)))
    same(nn.group_norm(X, np.int64(2), eps=np.float32(0.5)), nn.group_norm(X, 2, eps=0.5))


def test_nothing_in_a_batch_gives_nothing() -> None:
    got = eqsat.optimize(lambda x: nn.max_pool2d(nn.conv2d(x, W, groups=2), 2), strict=True, threads=1)(X[:0])
    assert got.shape == (0, 6, 2, 1)


def test_complex_convolutions() -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((2, 1, n)) + 1j * random.standard_normal((2, 1, n)) for n in (7, 3))
    want = np.array([[np.convolve(row[0], kernel[0, ::-1], "valid") for kernel in w] for row in x])
    same(nn.conv1d(x, w), want, 8)
