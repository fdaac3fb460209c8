"""Image processing: filters, morphology, colours, resampling."""

import numpy as np

from tests.programs.registry import photo, program, single


@program(lambda r, n: (photo(r, n, n, 3),), (8,), (1000,))
def to_gray(rgb):
    return (0.299 * rgb[..., 0] + 0.587 * rgb[..., 1] + 0.114 * rgb[..., 2]).astype(np.uint8)


@program(lambda r, n: (photo(r, n, n),), (8,), (1000,))
def invert_and_threshold(image):
    out = 255 - image
    out[out < 100] = 0
    return out


@program(lambda r, n: (photo(r, n, n), photo(r, n, n)), (8,), (1000,))
def blend(a, b):
    mixed = (a.astype(np.uint16) + b) // 2
    wrapped = a + b
    return mixed.astype(np.uint8), wrapped


@program(lambda r, n: (single(r, n, n),), (9,), (1000,), 1e-5)
def sobel(image):
    gx = np.zeros_like(image)
    gy = np.zeros_like(image)
    gx[1:-1, 1:-1] = (
        image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:] - image[:-2, :-2] - 2 * image[1:-1, :-2] - image[2:, :-2]
    )
    gy[1:-1, 1:-1] = (
        image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:] - image[:-2, :-2] - 2 * image[:-2, 1:-1] - image[:-2, 2:]
    )
    return np.sqrt(gx**2 + gy**2)


@program(lambda r, n, k: (single(r, n, n), r.random((k, k)).astype(np.float32)), (9, 3), (800, 7), 1e-5)
def filter_2d(image, kernel):
    kh, kw = kernel.shape
    padded = np.pad(image, ((kh // 2, kh // 2), (kw // 2, kw // 2)))
    out = np.zeros_like(image)
    for i in range(kh):
        for j in range(kw):
            out += kernel[i, j] * padded[i : i + image.shape[0], j : j + image.shape[1]]
    return out


@program(lambda r, n, k: (single(r, n, n), k), (9, 2), (1000, 5), 1e-5)
def gaussian_blur(image, radius):
    x = np.arange(-radius, radius + 1)
    weights = np.exp(-(x**2) / (2.0 * radius))
    weights = (weights / weights.sum()).astype(np.float32)
    h, w = image.shape
    rows = np.pad(image, ((radius, radius), (0, 0)), mode="edge")
    out = np.zeros_like(image)
    for k in range(2 * radius + 1):
        out += weights[k] * rows[k : k + h]
    cols = np.pad(out, ((0, 0), (radius, radius)), mode="edge")
    out = np.zeros_like(image)
    for k in range(2 * radius + 1):
        out += weights[k] * cols[:, k : k + w]
    return out


@program(lambda r, n: (single(r, n, n), np.float32(2.0), np.float32(0.8), 2), (8,), (400,), 1e-4)
def bilateral(image, sigma_space, sigma_value, radius):
    h, w = image.shape
    padded = np.pad(image, radius, mode="reflect")
    total = np.zeros_like(image)
    weight = np.zeros_like(image)
    for dy in range(2 * radius + 1):
        for dx in range(2 * radius + 1):
            shifted = padded[dy : dy + h, dx : dx + w]
            near = np.exp(-((dy - radius) ** 2 + (dx - radius) ** 2) / (2 * sigma_space**2))
            like = np.exp(-((shifted - image) ** 2) / (2 * sigma_value**2))
            total += near * like * shifted
            weight += near * like
    return total / weight


@program(lambda r, n: (r.random((n, n)) > 0.7, 2), (9,), (1000,))
def dilate_and_erode(mask, times):
    grown = mask.copy()
    for _ in range(times):
        next_ = grown.copy()
        next_[1:] |= grown[:-1]
        next_[:-1] |= grown[1:]
        next_[:, 1:] |= grown[:, :-1]
        next_[:, :-1] |= grown[:, 1:]
        grown = next_
    for _ in range(times):
        next_ = grown.copy()
        next_[1:] &= grown[:-1]
        next_[:-1] &= grown[1:]
        next_[:, 1:] &= grown[:, :-1]
        next_[:, :-1] &= grown[:, 1:]
        grown = next_
    return grown


@program(lambda r, n: (photo(r, n, n),), (8,), (600,))
def median_3x3(image):
    h, w = image.shape
    padded = np.pad(image, 1, mode="edge")
    stack = np.empty((9, h, w), dtype=image.dtype)
    for k in range(9):
        i, j = divmod(k, 3)
        stack[k] = padded[i : i + h, j : j + w]
    return np.median(stack, axis=0).astype(np.uint8)


@program(lambda r, n: (photo(r, n, n),), (8,), (1000,))
def equalize_histogram(image):
    counts = np.bincount(image.ravel(), minlength=256)
    cdf = counts.cumsum()
    table = (255 * (cdf - cdf.min()) / (cdf.max() - cdf.min())).astype(np.uint8)
    return table[image]


@program(lambda r, n: (photo(r, n, n, 3),), (6,), (700,))
def sepia(image):
    weights = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]])
    toned = image @ weights.T
    toned[toned > 255] = 255
    return toned.astype(np.uint8)


@program(lambda r, n: (photo(r, n, n, 3),), (6,), (500,))
def to_hsv(image):
    rgb = image / 255.0
    r, g, b = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high = rgb.max(axis=-1)
    low = rgb.min(axis=-1)
    span = high - low
    safe = np.where(span == 0, 1.0, span)
    hue = np.zeros(high.shape)
    hue = np.where(high == r, (g - b) / safe % 6, hue)
    hue = np.where((high == g) & (high != r), (b - r) / safe + 2, hue)
    hue = np.where((high == b) & (high != r) & (high != g), (r - g) / safe + 4, hue)
    hue[span == 0] = 0
    out = np.empty(image.shape)
    out[..., 0] = hue / 6
    out[..., 1] = np.where(high == 0, 0.0, span / np.where(high == 0, 1.0, high))
    out[..., 2] = high
    return out


@program(lambda r, n, m: (single(r, n, n), m), (6, 9), (400, 900), 1e-5)
def resize_bilinear(image, size):
    h, w = image.shape
    ys = np.linspace(0, h - 1, size).astype(np.float32)
    xs = np.linspace(0, w - 1, size).astype(np.float32)
    y0 = np.minimum(ys.astype(int), h - 2)
    x0 = np.minimum(xs.astype(int), w - 2)
    fy = (ys - y0).astype(np.float32)[:, None]
    fx = (xs - x0).astype(np.float32)[None, :]
    top = image[y0][:, x0] * (1 - fx) + image[y0][:, x0 + 1] * fx
    bottom = image[y0 + 1][:, x0] * (1 - fx) + image[y0 + 1][:, x0 + 1] * fx
    return top * (1 - fy) + bottom * fy


@program(lambda r, n: (r.random((n, n)),), (8,), (1000,))
def integral_image_box(image):
    table = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    table[1:, 1:] = image.cumsum(axis=0).cumsum(axis=1)
    k = 3
    return (table[k:, k:] - table[:-k, k:] - table[k:, :-k] + table[:-k, :-k]) / k**2


@program(lambda r, n: (photo(r, n, n, 3),), (8,), (800,))
def pixelate(image):
    out = image.copy()
    for i in range(4):
        for j in range(4):
            out[i::4, j::4] = image[::4, ::4]
    return out


@program(lambda r, n: (single(r, n, n), 3), (8,), (400,), 1e-5)
def anisotropic_diffusion(image, steps):
    u = image.copy()
    for _ in range(steps):
        north = np.zeros_like(u)
        south = np.zeros_like(u)
        east = np.zeros_like(u)
        west = np.zeros_like(u)
        north[1:] = u[:-1] - u[1:]
        south[:-1] = u[1:] - u[:-1]
        east[:, :-1] = u[:, 1:] - u[:, :-1]
        west[:, 1:] = u[:, :-1] - u[:, 1:]
        for d in (north, south, east, west):
            d *= np.exp(-(d**2))
        u += np.float32(0.2) * (north + south + east + west)
    return u


def composed(background, layer):
    """What ``alpha_composite`` cuts off, and four roundings of float32, in any order, of each of the terms."""
    alpha = layer[..., 3:] / 255.0
    terms = layer[..., :3] + 2.0 * background
    return layer[..., :3] * alpha + background * (1 - alpha), 4 * np.finfo(np.float32).eps / 2 * terms


@program(lambda r, n: (photo(r, n, n, 3), photo(r, n, n, 4)), (6,), (600,), cut=composed)
def alpha_composite(background, layer):
    alpha = layer[..., 3:].astype(np.float32) / 255
    background[...] = (layer[..., :3] * alpha + background * (1 - alpha)).astype(np.uint8)


@program(lambda r, n: (r.standard_normal((n, n)), 5), (8,), (300,))
def total_variation_denoise(noisy, steps):
    u = noisy.copy()
    for _ in range(steps):
        gx = np.zeros_like(u)
        gy = np.zeros_like(u)
        gx[:, :-1] = np.diff(u, axis=1)
        gy[:-1, :] = np.diff(u, axis=0)
        norm = np.sqrt(gx**2 + gy**2 + 1e-3)
        gx /= norm
        gy /= norm
        div = gx + gy
        div[:, 1:] -= gx[:, :-1]
        div[1:, :] -= gy[:-1, :]
        u += 0.1 * (div - 0.5 * (u - noisy))
    return u


@program(lambda r, n, d: (single(r, n, n), single(r, n, n), d), (9, 3), (300, 16), 1e-4)
def stereo_disparity(left, right, shifts):
    best = np.full(left.shape, np.inf, dtype=np.float32)
    disparity = np.zeros(left.shape, dtype=np.int64)
    for d in range(shifts):
        cost = np.full(left.shape, 1e9, dtype=np.float32)
        cost[:, d:] = np.abs(left[:, d:] - right[:, : left.shape[1] - d])
        better = cost < best
        best[better] = cost[better]
        disparity[better] = d
    return disparity, best
