"""Layers of neural networks as courses write them: loops over windows, filters and time steps."""

import numpy as np

from tests.programs.registry import program, single


@program(
    lambda r, b, n, ci, co: (single(r, b, n, n, ci), single(r, 3, 3, ci, co), single(r, co)),
    (2, 6, 2, 3),
    (8, 32, 16, 32),
    1e-4,
)
def convolution(x, weights, bias):
    k = weights.shape[0]
    h, w = x.shape[1] - k + 1, x.shape[2] - k + 1
    out = np.empty((x.shape[0], h, w, weights.shape[3]), dtype=np.float32)
    for i in range(h):
        for j in range(w):
            out[:, i, j, :] = np.sum(
                x[:, i : i + k, j : j + k, :, np.newaxis] * weights[np.newaxis, :, :, :], axis=(1, 2, 3)
            )
    return out + bias


@program(lambda r, b, n, ci, co: (single(r, b, ci, n, n), single(r, co, ci, 3, 3)), (2, 6, 2, 3), (8, 32, 16, 32), 1e-4)
def convolution_by_taps(x, w):
    h, v = x.shape[2] - 2, x.shape[3] - 2
    out = np.zeros((x.shape[0], w.shape[0], h, v), dtype=x.dtype)
    for i in range(3):
        for j in range(3):
            out += np.einsum("bchw,oc->bohw", x[:, :, i : i + h, j : j + v], w[:, :, i, j])
    return out


@program(lambda r, b, n, ci, co: (single(r, b, ci, n, n), single(r, co, ci, 3, 3)), (2, 5, 2, 3), (8, 32, 16, 32), 1e-4)
def convolution_by_columns(x, w):
    b, c, n, _ = x.shape
    m = n - 2
    columns = np.empty((b, c, 3, 3, m, m), x.dtype)
    for i in range(3):
        for j in range(3):
            columns[:, :, i, j] = x[:, :, i : i + m, j : j + m]
    flat = columns.reshape(b, c * 9, m * m)
    return (w.reshape(w.shape[0], -1) @ flat).reshape(b, -1, m, m)


@program(lambda r, b, n, c: (single(r, b, n, n, c),), (2, 6, 2), (8, 64, 32))
def max_pool(x):
    out = np.empty((x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]), dtype=x.dtype)
    for i in range(x.shape[1] // 2):
        for j in range(x.shape[2] // 2):
            out[:, i, j, :] = np.max(x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, :], axis=(1, 2))
    return out


@program(lambda r, b, n: (single(r, b, n), single(r, n, n), single(r, n), single(r, n, 10)), (4, 8), (128, 512), 1e-4)
def perceptron(x, w1, b1, w2):
    h = np.maximum(x @ w1 + b1, 0)
    z = h @ w2
    z -= z.max(axis=1, keepdims=True)
    e = np.exp(z)
    e /= e.sum(axis=1, keepdims=True)
    return e


@program(
    lambda r, b, n: (
        single(r, b, n),
        np.eye(3, dtype=np.float32)[r.integers(0, 3, b)],
        single(r, n, n) / n,
        single(r, n, 3) / n,
    ),
    (4, 6),
    (128, 256),
    1e-4,
)
def perceptron_training(x, y, w1, w2):
    rate = np.float32(0.1)
    for _ in range(3):
        h = np.tanh(x @ w1)
        z = h @ w2
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        d = (p - y) / len(x)
        dh = (d @ w2.T) * (1 - h * h)
        w2 -= rate * (h.T @ d)
        w1 -= rate * (x.T @ dh)
    return w1, w2


@program(
    lambda r, t, b, n: (single(r, t, b, n), single(r, n, n) / n, single(r, n, n) / n, single(r, n)),
    (4, 2, 5),
    (64, 16, 128),
    1e-4,
)
def elman(x, wx, wh, b):
    h = np.zeros((x.shape[1], wh.shape[0]), np.float32)
    outputs = np.zeros_like(x)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ wx + h @ wh + b)
        outputs[t] = h
    return outputs, h


@program(
    lambda r, t, b, n: (single(r, t, b, n), single(r, 2 * n, 4 * n) / n, single(r, 4 * n)),
    (4, 2, 5),
    (32, 16, 128),
    1e-4,
)
def lstm(x, w, bias):
    steps, batch, n = x.shape
    h = np.zeros((batch, n), dtype=x.dtype)
    c = np.zeros((batch, n), dtype=x.dtype)
    out = np.empty((steps, batch, n), dtype=x.dtype)
    for t in range(steps):
        z = np.concatenate([x[t], h], axis=1) @ w + bias
        i, f, o, g = z[:, :n], z[:, n : 2 * n], z[:, 2 * n : 3 * n], z[:, 3 * n :]
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        out[t] = h
    return out


@program(
    lambda r, t, b, n: (single(r, t, b, n), *[single(r, n, n) / n for _ in range(6)]), (4, 2, 5), (32, 16, 128), 1e-4
)
def gru(x, wz, uz, wr, ur, wh, uh):
    h = np.zeros(x.shape[1:], dtype=np.float32)
    for t in range(len(x)):
        z = 1 / (1 + np.exp(-(x[t] @ wz + h @ uz)))
        r = 1 / (1 + np.exp(-(x[t] @ wr + h @ ur)))
        candidate = np.tanh(x[t] @ wh + (r * h) @ uh)
        h = (1 - z) * h + z * candidate
    return h


@program(lambda r, b, n, c: (single(r, b, n, n, c), single(r, c), single(r, c)), (2, 4, 3), (8, 56, 64), 1e-4)
def batch_norm(x, gamma, beta):
    mean = np.mean(x, axis=(0, 1, 2), keepdims=True)
    std = np.std(x, axis=(0, 1, 2), keepdims=True)
    return gamma * (x - mean) / np.sqrt(std**2 + 1e-5) + beta


@program(lambda r, h, n, d: (single(r, n, h * d), single(r, h * d, 3 * h * d) / d, h), (2, 6, 4), (8, 256, 64), 1e-4)
def attention_by_heads(x, w, heads):
    n, width = x.shape
    d = width // heads
    qkv = x @ w
    out = np.empty_like(x)
    for h in range(heads):
        q = qkv[:, h * d : (h + 1) * d]
        k = qkv[:, width + h * d : width + (h + 1) * d]
        v = qkv[:, 2 * width + h * d : 2 * width + (h + 1) * d]
        s = q @ k.T / np.sqrt(d).astype(np.float32)
        s[np.triu(np.ones((n, n), dtype=bool), 1)] = -1e9
        s = np.exp(s - s.max(axis=-1, keepdims=True))
        out[:, h * d : (h + 1) * d] = s / s.sum(axis=-1, keepdims=True) @ v
    return out


@program(lambda r, n, v, d: (r.integers(0, v, n), single(r, v, d), 4), (6, 9, 4), (512, 5000, 128), 1e-5)
def embed_with_positions(tokens, table, waves):
    n, d = tokens.shape[0], table.shape[1]
    x = table[tokens]
    pos = np.arange(n)[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
    code = np.zeros((n, d))
    code[:, 0::2] = np.sin(pos)
    code[:, 1::2] = np.cos(pos)
    x += code.astype(np.float32)
    return x


@program(lambda r, n, d: (single(r, n, d), 4), (5, 8), (512, 128), 1e-5)
def rotary_positions(x, base):
    n, d = x.shape
    angle = np.arange(n)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    out = np.empty_like(x)
    out[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
    out[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
    return out


@program(
    lambda r, n: (single(r, n), single(r, n), np.zeros(n, np.float32), np.zeros(n, np.float32), 3),
    (9,),
    (100000,),
    1e-5,
)
def adam(w, g, m, v, steps):
    b1, b2, rate = 0.9, 0.999, 0.001
    for t in range(1, steps + 1):
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g**2
        w -= rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8)


@program(lambda r, n, d: (single(r, n, d), single(r, n, d)), (4, 5), (256, 64), 1e-4)
def contrastive_loss(a, b):
    a = a / np.sqrt((a * a).sum(1, keepdims=True))
    b = b / np.sqrt((b * b).sum(1, keepdims=True))
    logits = a @ b.T / np.float32(0.07)
    logits -= logits.max(1, keepdims=True)
    loss = np.log(np.exp(logits).sum(1)) - np.diag(logits)
    return loss.mean()


@program(lambda r, b, n, c: (single(r, b, c, n), single(r, c, 3), single(r, c)), (2, 9, 3), (8, 2000, 64), 1e-5)
def depthwise_1d(x, taps, bias):
    out = np.zeros_like(x)
    out[:, :, 1:] += x[:, :, :-1] * taps[:, :1]
    out += x * taps[:, 1:2]
    out[:, :, :-1] += x[:, :, 1:] * taps[:, 2:]
    out += bias[:, None]
    np.maximum(out, 0, out=out)
    return out
