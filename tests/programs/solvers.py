"""Factorizations and solvers, direct and iterative."""

import numpy as np

from tests.programs.registry import definite, program


@program(lambda r, n: (definite(r, n),), (6,), (60,))
def cholesky(a):
    n = a.shape[0]
    a[0, 0] = np.sqrt(a[0, 0])
    for i in range(1, n):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[j, :j]
            a[i, j] /= a[j, j]
        a[i, i] -= a[i, :i] @ a[i, :i]
        a[i, i] = np.sqrt(a[i, i])


@program(lambda r, n: (definite(r, n),), (6,), (60,))
def lu(a):
    for i in range(a.shape[0]):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in range(i, a.shape[0]):
            a[i, j] -= a[i, :i] @ a[:i, j]


@program(lambda r, n: (definite(r, n),), (7,), (150,))
def lu_by_outer_products(a):
    n = a.shape[0]
    for k in range(n - 1):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


@program(lambda r, n: (np.tril(definite(r, n)), r.random(n)), (7,), (150,))
def forward_substitution(lower, b):
    x = np.zeros_like(b)
    for i in range(b.shape[0]):
        x[i] = (b[i] - lower[i, :i] @ x[:i]) / lower[i, i]
    return x


@program(lambda r, n: (np.triu(definite(r, n)), r.random(n)), (7,), (150,))
def back_substitution(upper, b):
    n = b.shape[0]
    x = np.zeros(n)
    for i in range(n - 1, -1, -1):
        x[i] = (b[i] - upper[i, i + 1 :] @ x[i + 1 :]) / upper[i, i]
    return x


@program(lambda r, n: (r.random(n) / n,), (6,), (60,))
def durbin(r):
    y = np.empty_like(r)
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + r[:k][::-1] @ y[:k]) / beta
        y[:k] += alpha * y[:k][::-1]
        y[k] = alpha
    return y


@program(lambda r, n, m: (r.random((m, n)),), (5, 7), (60, 80))
def gram_schmidt(a):
    n = a.shape[1]
    q = np.zeros_like(a)
    r = np.zeros((n, n), a.dtype)
    for k in range(n):
        r[k, k] = np.sqrt(a[:, k] @ a[:, k])
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, n):
            r[k, j] = q[:, k] @ a[:, j]
            a[:, j] -= q[:, k] * r[k, j]
    return q, r


@program(lambda r, n, m: (r.random((m, n)),), (4, 6), (40, 80))
def householder(a):
    n = a.shape[1]
    r = a.copy()
    for k in range(n):
        v = r[k:, k].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        v /= np.sqrt(v @ v)
        r[k:, k:] -= 2.0 * np.outer(v, v @ r[k:, k:])
    return r


@program(lambda r, n: (definite(r, n), r.random(n)), (5,), (60,))
def gaussian_elimination(a, b):
    n = b.size
    for k in range(n):
        for i in range(k + 1, n):
            factor = a[i, k] / a[k, k]
            a[i, k:] -= factor * a[k, k:]
            b[i] -= factor * b[k]
    x = np.zeros(n)
    for i in reversed(range(n)):
        x[i] = (b[i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


@program(lambda r, n: (definite(r, n),), (5,), (60,))
def gauss_jordan_inverse(a):
    n = a.shape[0]
    m = np.zeros((n, 2 * n))
    m[:, :n] = a
    m[:, n:] = np.eye(n)
    for k in range(n):
        m[k] /= m[k, k]
        column = m[:, k].copy()
        column[k] = 0.0
        m -= np.outer(column, m[k])
    return m[:, n:]


@program(lambda r, n: (r.random(n), 4 + r.random(n), r.random(n), r.random(n)), (10,), (300,))
def thomas(lower, diagonal, upper, rhs):
    n = rhs.shape[0]
    c = np.zeros(n)
    d = np.zeros(n)
    c[0] = upper[0] / diagonal[0]
    d[0] = rhs[0] / diagonal[0]
    for i in range(1, n):
        w = diagonal[i] - lower[i] * c[i - 1]
        c[i] = upper[i] / w
        d[i] = (rhs[i] - lower[i] * d[i - 1]) / w
    for i in range(n - 2, -1, -1):
        d[i] -= c[i] * d[i + 1]
    return d


@program(lambda r, n, k: (definite(r, n), r.random(n), k), (8, 5), (600, 50), 1e-7)
def conjugate_gradient(a, b, steps):
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    rs = r @ r
    for _ in range(steps):
        ap = a @ p
        alpha = rs / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        new = r @ r
        p = r + (new / rs) * p
        rs = new
    return x, np.sqrt(rs)


@program(lambda r, n, k: (definite(r, n) + 3 * np.eye(n), r.random(n), k), (8, 6), (800, 100))
def jacobi_solver(a, b, steps):
    d = np.diag(a)
    rest = a - np.diag(d)
    x = np.zeros_like(b)
    for _ in range(steps):
        x = (b - rest @ x) / d
    return x


@program(lambda r, n, k: (definite(r, n), r.random(n), k), (5, 2), (60, 10))
def gauss_seidel_solver(a, b, sweeps):
    n = len(b)
    x = np.zeros(n)
    for _ in range(sweeps):
        for i in range(n):
            x[i] = (b[i] - a[i, :i] @ x[:i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


@program(lambda r, n, k: (definite(r, n), r.random(n), k), (8, 6), (800, 60), 1e-7)
def power_iteration(a, v, steps):
    for _ in range(steps):
        w = a @ v
        v = w / np.sqrt(w @ w)
    return v, v @ (a @ v)


@program(lambda r, n, k: (definite(r, n), r.random(n), k), (8, 3), (500, 20), 1e-6)
def lanczos(a, v, steps):
    n = v.size
    basis = np.zeros((steps, n))
    alpha = np.zeros(steps)
    beta = np.zeros(steps)
    q = v / np.sqrt(v @ v)
    previous = np.zeros(n)
    for j in range(steps):
        basis[j] = q
        w = a @ q - (beta[j - 1] * previous if j else 0.0)
        alpha[j] = w @ q
        w -= alpha[j] * q
        beta[j] = np.sqrt(w @ w)
        previous, q = q, w / beta[j]
    return basis, alpha, beta


@program(lambda r, n, k: (definite(r, n) / n, k), (5, 4), (120, 12), 1e-7)
def newton_schulz_inverse(a, steps):
    x = a.T / (np.abs(a).sum(axis=0).max() * np.abs(a).sum(axis=1).max())
    eye2 = 2.0 * np.eye(a.shape[0])
    for _ in range(steps):
        x = x @ (eye2 - a @ x)
    return x
