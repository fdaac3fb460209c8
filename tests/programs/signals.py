"""Signals: filters, transforms, oscillators."""

import numpy as np

from tests.programs.registry import program, single


@program(lambda r, n, k: (single(r, n), single(r, k)), (20, 5), (200000, 33), 1e-5)
def finite_impulse_response(x, taps):
    y = np.zeros_like(x)
    for k in range(len(taps)):
        y[k:] += taps[k] * x[: len(x) - k]
    return y


@program(lambda r, n, c: (single(r, n, c),), (10, 4), (2000, 64), 1e-5)
def biquad_channels(x):
    b0, b1, b2, a1, a2 = 0.2, 0.4, 0.2, -0.3, 0.1
    y = np.zeros_like(x)
    for n in range(2, x.shape[0]):
        y[n] = b0 * x[n] + b1 * x[n - 1] + b2 * x[n - 2] - a1 * y[n - 1] - a2 * y[n - 2]
    return y


@program(lambda r, n, w: (r.standard_normal(n), w), (24, 6), (50000, 512))
def framed_energies(x, width):
    count = (len(x) - width) // (width // 2) + 1
    frames = np.empty((count, width))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    for i in range(count):
        frames[i] = x[i * (width // 2) : i * (width // 2) + width] * window
    return np.log((frames**2).sum(axis=1) + 1e-10)


@program(lambda r, n: (r.standard_normal(n),), (8,), (700,), 1e-8)
def naive_fourier_transform(x):
    n = x.size
    k = np.arange(n)
    angle = 2 * np.pi * np.outer(k, k) / n
    re = np.cos(angle) @ x
    im = -np.sin(angle) @ x
    return np.sqrt(re**2 + im**2)


@program(lambda r, n: (r.standard_normal(n) + 1j * r.standard_normal(n),), (8,), (1024,))
def radix_two_fft(x):
    n = x.shape[0]
    level = x.reshape(1, n)
    even_odd = np.exp(-2j * np.pi * np.arange(1) / 1).reshape(-1, 1)
    level = level * even_odd
    size = 1
    while size < n:
        half = level.shape[1] // 2
        even, odd = level[:, :half], level[:, half:]
        twiddle = np.exp(-1j * np.pi * np.arange(size) / size)[:, None]
        level = np.vstack([even + twiddle * odd, even - twiddle * odd])
        size *= 2
    return level.ravel()


@program(lambda r, n: (r.standard_normal((4, n)),), (32,), (1024,), 1e-8)
def spectrum_of_frames(x):
    spectrum = np.fft.rfft(x * np.hanning(x.shape[1]), axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    power /= power.sum(axis=1, keepdims=True)
    return power


@program(lambda r, n, levels: (r.standard_normal(n), levels), (16, 3), (1 << 17, 8))
def haar_wavelet(x, levels):
    out = x.copy()
    n = len(x)
    for _ in range(levels):
        half = n // 2
        a = (out[0:n:2] + out[1:n:2]) / np.sqrt(2)
        d = (out[0:n:2] - out[1:n:2]) / np.sqrt(2)
        out[:half] = a
        out[half:n] = d
        n = half
    return out


@program(lambda r, n, m: (r.standard_normal(n), r.standard_normal(n), m, 0.05), (10, 3), (1500, 16))
def least_mean_squares(x, target, taps, rate):
    w = np.zeros(taps)
    error = np.zeros(len(x))
    for n in range(taps, len(x)):
        u = x[n - taps : n][::-1]
        error[n] = target[n] - w @ u
        w += rate * error[n] * u
    return w, error


@program(lambda r, n: (single(r, n),), (12,), (48000,), 1e-5)
def wave_shaper(x):
    y = x - x.mean()
    y /= np.abs(y).max()
    loud = np.abs(y) > 0.5
    y[loud] = np.sign(y[loud]) * (0.5 + np.tanh(np.abs(y[loud]) - 0.5))
    y[1:] -= np.float32(0.95) * y[:-1]
    return y


@program(lambda r, n: (r.integers(-1000, 1000, n).astype(np.int32),), (12,), (100000,))
def delta_encode_and_decode(samples):
    delta = np.empty_like(samples)
    delta[0] = samples[0]
    delta[1:] = samples[1:] - samples[:-1]
    back = np.cumsum(delta, dtype=np.int32)
    return delta, (back == samples).all()


@program(lambda r, n, m: (single(r, n), single(r, m)), (12, 4), (4000, 64), 1e-5)
def cross_correlation(x, pattern):
    n, m = len(x), len(pattern)
    out = np.empty(n - m + 1, dtype=np.float32)
    for i in range(n - m + 1):
        out[i] = np.dot(x[i : i + m], pattern)
    return out, out.argmax()


@program(lambda r, n: (r.standard_normal((n, 3)),), (10,), (100000,))
def complementary_filter(gyro):
    angle = np.zeros_like(gyro)
    angle[:, 0] = np.cumsum(gyro[:, 0]) * 0.01
    angle[:, 1] = np.arctan2(gyro[:, 1], np.sqrt(gyro[:, 0] ** 2 + gyro[:, 2] ** 2))
    angle[:, 2] = np.hypot(gyro[:, 0], gyro[:, 1])
    return np.degrees(angle)
