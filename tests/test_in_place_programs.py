"""Whole programs in ordinary NumPy that write to arrays: results, and what becomes of the arguments, are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.test_in_place import held

RNG = np.random.default_rng(7)

Program = Callable[..., Any]
PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def program(make: Callable[[], tuple[Any, ...]]) -> Callable[[Program], Program]:
    def add(fn: Program) -> Program:
        PROGRAMS[fn.__name__] = fn, make
        return fn

    return add


# stencils


@program(lambda: (normal(9, 11), normal(9, 11), 1))
def jacobi_2d(a: Any, b: Any, steps: int) -> None:
    for _ in range(steps):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
        a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])


@program(lambda: (normal(17), 4))
def heat_1d(u: Any, steps: int) -> Any:
    for _ in range(steps):
        u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[0], u[-1] = u[1], u[-2]
    return u


@program(lambda: (normal(6, 5, 4), 2))
def heat_3d(a: Any, steps: int) -> Any:
    b = np.zeros_like(a)
    for _ in range(steps):
        inner = a[1:-1, 1:-1, 1:-1]
        b[1:-1, 1:-1, 1:-1] = (
            0.125 * (a[2:, 1:-1, 1:-1] - 2.0 * inner + a[:-2, 1:-1, 1:-1])
            + 0.125 * (a[1:-1, 2:, 1:-1] - 2.0 * inner + a[1:-1, :-2, 1:-1])
            + 0.125 * (a[1:-1, 1:-1, 2:] - 2.0 * inner + a[1:-1, 1:-1, :-2])
            + inner
        )
        a, b = b, a
    return a


@program(lambda: (normal(8, 9), normal(8, 9), normal(8, 9), normal(3), 2))
def fdtd_2d(ex: Any, ey: Any, hz: Any, source: Any, steps: int) -> None:
    for t in range(steps):
        ey[0, :] = source[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


@program(lambda: (normal(8, 8), normal(8, 8), 2))
def red_black(u: Any, f: Any, sweeps: int) -> Any:
    for _ in range(sweeps):
        for first in (0, 1):
            for row in (1, 2):
                column = 1 + (row + first) % 2
                here = (slice(row, -1, 2), slice(column, -1, 2))
                v = np.zeros_like(u)
                v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - f[1:-1, 1:-1])
                u[here] = v[here]
    return u


@program(lambda: (normal(7, 7),))
def life_like(u: Any) -> Any:
    alive = np.zeros(u.shape, dtype=np.int64)
    alive[u > 0] = 1
    count = np.zeros_like(alive)
    count[1:] += alive[:-1]
    count[:-1] += alive[1:]
    count[:, 1:] += alive[:, :-1]
    count[:, :-1] += alive[:, 1:]
    born = (alive == 0) & (count == 3)
    alive[(count < 2) | (count > 3)] = 0
    alive[born] = 1
    return alive


@program(lambda: (normal(6, 8), normal(6, 8), 0.1))
def upwind(q: Any, v: Any, dt: float) -> Any:
    flux = np.empty((q.shape[0], q.shape[1] + 1))
    flux[:, 0] = flux[:, -1] = 0
    face = 0.5 * (v[:, 1:] + v[:, :-1])
    flux[:, 1:-1] = np.where(face > 0, face * q[:, :-1], face * q[:, 1:])
    q -= dt * (flux[:, 1:] - flux[:, :-1])
    return q


@program(lambda: (normal(6, 6),))
def horizontal_diffusion(field: Any) -> Any:
    lap = np.zeros_like(field)
    lap[1:-1, 1:-1] = 4.0 * field[1:-1, 1:-1] - (
        field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
    )
    res = lap[:, 1:] - lap[:, :-1]
    flx = np.where(res * (field[:, 1:] - field[:, :-1]) > 0, 0.0, res)
    out = field.copy()
    out[:, 1:-1] -= 0.025 * (flx[:, 1:] - flx[:, :-1])
    return out


# linear algebra by loops


def spd(n: int) -> Any:
    a = normal(n, n)
    return a @ a.T + n * np.eye(n)


@program(lambda: (spd(4),))
def lu(a: Any) -> None:
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in range(i, n):
            a[i, j] -= a[i, :i] @ a[:i, j]


@program(lambda: (spd(4),))
def cholesky(a: Any) -> Any:
    n = a.shape[0]
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, n):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return np.tril(a)


@program(lambda: (np.tril(spd(5)), normal(5)))
def forward_substitution(low: Any, b: Any) -> Any:
    x = np.zeros_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - low[i, :i] @ x[:i]) / low[i, i]
    return x


@program(lambda: (spd(4), normal(4, 3)))
def gauss_jordan(a: Any, b: Any) -> Any:
    m = np.zeros((4, 7))
    m[:, :4], m[:, 4:] = a, b
    for k in range(4):
        m[k] /= m[k, k]
        others = np.arange(4) != k
        m[others] -= m[others, k][:, None] * m[k]
    return m[:, 4:]


@program(lambda: (normal(6, 4),))
def gram_schmidt(a: Any) -> Any:
    q, r = np.zeros_like(a), np.zeros((4, 4))
    for k in range(4):
        r[k, k] = np.sqrt(np.dot(a[:, k], a[:, k]))
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, 4):
            r[k, j] = np.dot(q[:, k], a[:, j])
            a[:, j] -= q[:, k] * r[k, j]
    return q, r


@program(lambda: (normal(5, 4), normal(4, 6), normal(5, 6), 1.5, 0.5))
def gemm(a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
    c *= beta
    c += alpha * a @ b


@program(lambda: (normal(5, 5), normal(5), normal(5), normal(5), normal(5), normal(5)))
def gemver(a: Any, u: Any, v: Any, x: Any, y: Any, z: Any) -> Any:
    a += np.outer(u, v)
    x += 1.2 * y @ a + z
    w = np.zeros(5)
    w[:] = a @ x
    return w


@program(lambda: (spd(4), normal(4)))
def conjugate_gradient(a: Any, b: Any) -> Any:
    x = np.zeros_like(b)
    r = b.copy()
    p = r.copy()
    for _ in range(4):
        ap = a @ p
        alpha = (r @ r) / (p @ ap)
        x += alpha * p
        old = r @ r
        r -= alpha * ap
        p *= (r @ r) / old
        p += r
    return x


@program(lambda: (normal(7), normal(7) + 4, normal(7), normal(7)))
def thomas(lower: Any, middle: Any, upper: Any, rhs: Any) -> Any:
    n = len(rhs)
    c, d, x = np.empty(n), np.empty(n), np.empty(n)
    c[0], d[0] = upper[0] / middle[0], rhs[0] / middle[0]
    for i in range(1, n):
        scale = middle[i] - lower[i] * c[i - 1]
        c[i] = upper[i] / scale
        d[i] = (rhs[i] - lower[i] * d[i - 1]) / scale
    x[-1] = d[-1]
    for i in range(n - 2, -1, -1):
        x[i] = d[i] - c[i] * x[i + 1]
    return x


@program(lambda: (normal(3), normal(3), spd(3), np.eye(3)))
def kalman_update(x: Any, z: Any, p: Any, h: Any) -> Any:
    states = np.zeros((3, 3))
    for step in range(3):
        gain = np.zeros((3, 3))
        s = np.diagonal(h @ p @ h.T) + 1.0
        gain[:] = p @ h.T / s
        x[:] = x + gain @ (z - h @ x)
        p[...] = (np.eye(3) - gain @ h) @ p
        states[step] = x
    return states


# sums, counts, tables


@program(lambda: (normal(12),))
def prefix_sum(x: Any) -> Any:
    out = np.empty_like(x)
    out[0] = x[0]
    for i in range(1, len(x)):
        out[i] = out[i - 1] + x[i]
    return out


@program(lambda: (np.arange(40) * 7 % 9, normal(40)))
def histogram(bins: Any, weights: Any) -> Any:
    counts, sums = np.zeros(9, dtype=np.int64), np.zeros(9)
    np.add.at(counts, bins, 1)
    np.add.at(sums, bins, weights)
    return counts, sums / counts


@program(lambda: (np.arange(12) % 3, normal(12, 2)))
def group_extremes(group: Any, x: Any) -> Any:
    low, high = np.full((3, 2), np.inf), np.full((3, 2), -np.inf)
    np.minimum.at(low, group, x)
    np.maximum.at(high, group, x)
    return low, high


@program(lambda: (normal(9), np.array([4, 0, 2, 2])))
def one_hot(x: Any, labels: Any) -> Any:
    out = np.zeros((labels.size, 5), np.float32)
    out[np.arange(labels.size), labels] = 1
    x[labels] += 10
    return out


@program(lambda: (normal(5, 6),))
def softmax_in_place(x: Any) -> Any:
    x -= x.max(axis=1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=1, keepdims=True)
    return x


@program(lambda: (normal(6, 5),))
def standardize(data: Any) -> Any:
    data -= data.mean(axis=0)
    spread = data.std(axis=0)
    spread[spread < 0.1] = 1.0
    data /= spread
    return data.T @ data


@program(lambda: (normal(5, 5),))
def correlation(m: Any) -> Any:
    corr = np.eye(5)
    for i in range(4):
        corr[i + 1 :, i] = corr[i, i + 1 :] = m[:, i + 1 :].T @ m[:, i]
    return corr


@program(lambda: (np.abs(normal(5, 5)),))
def floyd_warshall(path: Any) -> Any:
    np.fill_diagonal(path, 0)
    for k in range(5):
        path[:] = np.minimum(path, path[:, k, None] + path[None, k, :])
    return path


@program(lambda: (np.array([3, 1, 2, 3, 0, 2]), np.array([3, 2, 3, 0, 2])))
def longest_common_subsequence(a: Any, b: Any) -> Any:
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            table[i, j] = np.maximum(
                np.maximum(table[i - 1, j], table[i, j - 1]), table[i - 1, j - 1] + (a[i - 1] == b[j - 1])
            )
    return table[-1, -1]


@program(lambda: (normal(10), normal(3)))
def fir_filter(x: Any, taps: Any) -> Any:
    y = np.zeros(len(x) + len(taps) - 1)
    for i in range(len(taps)):
        y[i : i + len(x)] += taps[i] * x
    return y


# images, networks, physics


@program(lambda: (normal(6, 8),))
def blur_with_edges(image: Any) -> Any:
    padded = np.zeros((8, 10))
    padded[1:-1, 1:-1] = image
    padded[0], padded[-1] = padded[1], padded[-2]
    padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
    out = np.zeros_like(image)
    for i in range(3):
        for j in range(3):
            out += padded[i : i + 6, j : j + 8]
    out /= 9
    np.clip(out, -0.5, 0.5, out=out)
    return out


@program(lambda: (normal(4, 6, 3),))
def swap_channels(image: Any) -> Any:
    image[..., 0], image[..., 2] = image[..., 2].copy(), image[..., 0].copy()
    image[:, ::-1][:, :2] *= 2
    flipped = np.empty_like(image)
    flipped[::-1, ::-1] = image
    return flipped


@program(lambda: (normal(2, 6, 6, 3), normal(3, 3, 3, 4), normal(4)))
def conv2d(x: Any, w: Any, bias: Any) -> Any:
    out = np.empty((2, 4, 4, 4), dtype=x.dtype)
    for i in range(4):
        for j in range(4):
            out[:, i, j, :] = np.sum(x[:, i : i + 3, j : j + 3, :, None] * w[None], axis=(1, 2, 3))
    out += bias
    out[out < 0] = 0
    return out


@program(lambda: (normal(2, 6, 6),))
def max_pool(x: Any) -> Any:
    out = np.full((2, 3, 3), -np.inf)
    for i in range(2):
        for j in range(2):
            np.maximum(out, x[:, i::2, j::2], out=out)
    return out


@program(lambda: (normal(5, 3), normal(3, 8), normal(2, 8), normal(8)))
def lstm(inputs: Any, wx: Any, wh: Any, b: Any) -> Any:
    h, c = np.zeros(2), np.zeros(2)
    states = np.zeros((5, 2))
    for t in range(5):
        gates = inputs[t] @ wx + h @ wh + b
        gates[:6] = 1 / (1 + np.exp(-gates[:6]))
        gates[6:] = np.tanh(gates[6:])
        c *= gates[2:4]
        c += gates[:2] * gates[6:]
        h = gates[4:6] * np.tanh(c)
        states[t] = h
    return states


@program(lambda: (normal(4, 3), normal(4, 3), np.ones(4), 0.01))
def n_body(position: Any, velocity: Any, mass: Any, dt: float) -> None:
    for _ in range(2):
        gap = position[None, :, :] - position[:, None, :]
        distance = np.sqrt((gap**2).sum(-1) + 0.1)
        np.fill_diagonal(distance, 1.0)
        velocity += dt * (gap * (mass / distance**3)[..., None]).sum(1)
        position += dt * velocity


@program(lambda: (normal(6), normal(6)))
def leapfrog(q: Any, p: Any) -> Any:
    path = np.empty((3, 2, 6))
    for t in range(3):
        p -= 0.05 * np.sin(q)
        q += 0.1 * p
        p -= 0.05 * np.sin(q)
        path[t, 0], path[t, 1] = q, p
    return path


@program(lambda: (np.abs(normal(8)) + 1, 1.05, 0.97))
def binomial_option(spot: Any, up: float, down: float) -> Any:
    values = np.zeros((5, spot.size))
    for k in range(5):
        values[k] = np.maximum(spot * up**k * down ** (4 - k) - 1.5, 0)
    for step in range(4, 0, -1):
        values[:step] = 0.99 * (0.5 * values[1 : step + 1] + 0.5 * values[:step])
    return values[0]


@program(lambda: (normal(3, 7),))
def running_extremes(x: Any) -> Any:
    best = x.copy()
    for t in range(1, x.shape[1]):
        np.maximum(best[:, t], best[:, t - 1], out=best[:, t])
    worst = np.empty_like(x).T
    worst[0] = x[:, 0]
    for t in range(1, x.shape[1]):
        worst[t] = np.minimum(worst[t - 1], x[:, t])
    return best, worst.T


@program(lambda: (normal(6, 5), np.array([4, 0, 2])))
def masked_updates(x: Any, keep: Any) -> Any:
    mask = np.zeros(6, dtype=bool)
    mask[keep] = True
    x[~mask] *= 0.5
    x[mask] += 1
    np.copyto(x, -1, where=x > 1.5)
    np.putmask(x, x < -1.2, 0)
    return x, mask, x[mask].sum()


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_programs(name: str) -> None:
    fn, make = PROGRAMS[name]
    held(fn, *make())


@pytest.mark.parametrize("name", ["red_black", "histogram", "masked_updates", "upwind"])
def test_whole_programs_as_kernels(name: str) -> None:
    fn, make = PROGRAMS[name]
    held(fn, *make(), backend="numba_cpu", cache=True)
