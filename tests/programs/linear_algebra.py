"""Products of matrices and vectors, and what is made of them in loops over rows."""

import numpy as np

from tests.programs.registry import definite, positive, program, single


@program(lambda r, n: (1.5, 1.2, r.random((n, n)), r.random((n, n)), r.random((n, n))), (8,), (500,))
def gemm(alpha, beta, c, a, b):
    c *= beta
    c += alpha * (a @ b)


@program(lambda r, n: (1.5, 1.2, *[r.random((n, n)) for _ in range(4)]), (8,), (400,))
def two_products(alpha, beta, a, b, c, d):
    d[:] = alpha * a @ b @ c + beta * d


@program(lambda r, n: tuple(r.random((n, n)) for _ in range(4)), (8,), (400,))
def three_products(a, b, c, d):
    e = a @ b
    f = c @ d
    return e @ f


@program(lambda r, n: (r.random((n, n + 3)), r.random(n + 3)), (8,), (1800,))
def normal_equations_product(a, x):
    return (a @ x) @ a


@program(lambda r, n: (r.random((n, n + 3)), r.random(n + 3), r.random(n)), (8,), (1800,))
def biconjugate_kernel(a, p, r):
    return r @ a, a @ p


@program(lambda r, n: (*[r.random(n) for _ in range(4)], r.random((n, n))), (8,), (2000,))
def matrix_vector_both_ways(x1, x2, y1, y2, a):
    x1 += a @ y1
    x2 += y2 @ a


@program(lambda r, n: (1.5, 1.2, r.random((n, n)), *[r.random(n) for _ in range(8)]), (8,), (1500,))
def rank_two_update(alpha, beta, a, u1, v1, u2, v2, w, x, y, z):
    a += np.outer(u1, v1) + np.outer(u2, v2)
    x += beta * y @ a + z
    w += alpha * a @ x


@program(lambda r, n: (1.5, 1.2, r.random((n, n)), r.random((n, n)), r.random(n)), (8,), (1500,))
def sum_of_products(alpha, beta, a, b, x):
    return alpha * a @ x + beta * b @ x


@program(lambda r, n: (1.5, 1.2, r.random((n, n)), r.random((n, n + 2))), (6,), (120,))
def symmetric_rank_k(alpha, beta, c, a):
    for i in range(a.shape[0]):
        c[i, : i + 1] *= beta
        for k in range(a.shape[1]):
            c[i, : i + 1] += alpha * a[i, k] * a[: i + 1, k]


@program(lambda r, n: (1.5, 1.2, r.random((n, n)), r.random((n, n + 2)), r.random((n, n + 2))), (5,), (100,))
def symmetric_rank_2k(alpha, beta, c, a, b):
    for i in range(a.shape[0]):
        c[i, : i + 1] *= beta
        c[i, : i + 1] += alpha * (a[: i + 1] @ b[i]) + alpha * (b[: i + 1] @ a[i])


@program(lambda r, n: (1.5, 1.2, r.random((n, n + 2)), definite(r, n), r.random((n, n + 2))), (6,), (120,))
def symmetric_product(alpha, beta, c, a, b):
    temp = np.empty(c.shape[1], dtype=c.dtype)
    c *= beta
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[:i, j] += alpha * b[i, j] * a[i, :i]
            temp[j] = b[:i, j] @ a[i, :i]
        c[i, :] += alpha * b[i, :] * a[i, i] + alpha * temp


@program(lambda r, n: (1.5, np.tril(r.random((n, n))), r.random((n, n + 2))), (6,), (150,))
def triangular_product(alpha, a, b):
    for i in range(b.shape[0]):
        b[i] += a[i + 1 :, i] @ b[i + 1 :]
    b *= alpha


@program(lambda r, n: (r.random((n, n, n)), r.random((n, n))), (5,), (80,))
def mode_product(a, c4):
    n = a.shape[0]
    for i in range(n):
        a[i] = a[i] @ c4


@program(lambda r, n, b: (single(r, n, n), single(r, n, n), b), (12, 4), (512, 64), 1e-5)
def blocked_product(a, b, block):
    n = a.shape[0]
    c = np.zeros((n, n), a.dtype)
    for i in range(0, n, block):
        for j in range(0, n, block):
            for k in range(0, n, block):
                c[i : i + block, j : j + block] += a[i : i + block, k : k + block] @ b[k : k + block, j : j + block]
    return c


@program(lambda r, n: (r.standard_normal((n, n)) / n, 8), (6,), (200,))
def matrix_exponential_by_series(a, terms):
    result = np.eye(a.shape[0])
    term = np.eye(a.shape[0])
    for k in range(1, terms):
        term = term @ a / k
        result += term
    return result


@program(lambda r, n, m: (single(r, n, n), single(r, m, m)), (3, 4), (30, 40), 1e-5)
def kronecker_by_blocks(a, b):
    n, m = a.shape[0], b.shape[0]
    out = np.zeros((n * m, n * m), dtype=np.float32)
    for i in range(n):
        for j in range(n):
            out[i * m : (i + 1) * m, j * m : (j + 1) * m] = a[i, j] * b
    return out


@program(lambda r, n, w: (r.random((2 * w + 1, n)), r.random(n), w), (12, 2), (200000, 3))
def banded_product(bands, x, w):
    n = x.shape[0]
    y = np.zeros(n)
    for d in range(-w, w + 1):
        lo, hi = max(0, -d), min(n, n - d)
        y[lo:hi] += bands[d + w, lo:hi] * x[lo + d : hi + d]
    return y


@program(lambda r, n: (r.random((n, n)), r.random((n, n))), (6,), (600,))
def commutator_norm(a, b):
    c = a @ b - b @ a
    return np.sqrt((c * c).sum()), np.trace(a @ b)


@program(lambda r, n, k: (single(r, n, k), single(r, n, k)), (8, 3), (1500, 32), 1e-4)
def pairwise_distances(x, y):
    d = np.empty((x.shape[0], y.shape[0]), x.dtype)
    for i in range(x.shape[0]):
        d[i] = np.sqrt(((x[i] - y) ** 2).sum(axis=1))
    return d


@program(lambda r, n, k: (single(r, n, k),), (8, 3), (1500, 64), 1e-4)
def cosine_similarity(x):
    norms = np.sqrt((x**2).sum(axis=1))
    s = x @ x.T
    s /= norms[:, None]
    s /= norms[None, :]
    np.fill_diagonal(s, 0)
    return s, s.max(axis=1)


@program(lambda r, n: (positive(r, n), positive(r, n)), (8,), (1000,))
def cauchy_matrix(x, y):
    n = x.size
    c = np.zeros((n, n))
    for i in range(n):
        c[i, :] = 1.0 / (x[i] + y)
    return c, c.sum(axis=0)


@program(lambda r, n, k: (positive(r, n), k), (10, 4), (20000, 12))
def vandermonde(x, degree):
    v = np.ones((x.size, degree))
    for k in range(1, degree):
        v[:, k] = v[:, k - 1] * x
    return v


@program(lambda r, n: (r.standard_normal((n, n)) + 1j * r.standard_normal((n, n)),), (6,), (300,))
def hermitian_part(a):
    h = np.zeros_like(a)
    h[:] = 0.5 * (a + a.conj().T)
    return h, np.abs(h).max(), h.trace().real
