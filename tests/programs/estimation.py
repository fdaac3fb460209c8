"""Estimation and learning: filters of states, clusters, ranks, processes."""

import numpy as np

from tests.programs.registry import definite, positive, program, single


@program(lambda r, t: (r.standard_normal((t, 2)),), (5,), (300,))
def kalman_filter(measured):
    dt = 0.1
    a = np.eye(4)
    a[0, 2] = a[1, 3] = dt
    h = np.zeros((2, 4))
    h[0, 0] = h[1, 1] = 1
    q, r = 0.01 * np.eye(4), 0.5 * np.eye(2)
    x, p = np.zeros(4), np.eye(4)
    track = np.zeros((measured.shape[0], 4))
    for t in range(measured.shape[0]):
        x = a @ x
        p = a @ p @ a.T + q
        s = h @ p @ h.T + r
        det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
        inv = np.array([[s[1, 1], -s[0, 1]], [-s[1, 0], s[0, 0]]]) / det
        k = p @ h.T @ inv
        x = x + k @ (measured[t] - h @ x)
        p = (np.eye(4) - k @ h) @ p
        track[t] = x
    return track, p


@program(lambda r, t, n: (r.standard_normal((t, n)),), (4, 4), (1000, 100))
def scalar_kalman_channels(z):
    x = np.zeros(z.shape[1])
    p = np.ones(z.shape[1])
    out = np.empty_like(z)
    for t in range(z.shape[0]):
        p += 0.01
        k = p / (p + 0.5)
        x += k * (z[t] - x)
        p *= 1 - k
        out[t] = x
    return out


@program(lambda r, n, k, t: (r.standard_normal((n, 3)), r.standard_normal((k, 3)), t), (12, 3, 2), (5000, 10, 10))
def k_means(x, centers, steps):
    k = centers.shape[0]
    for _ in range(steps):
        d = ((x[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
        labels = d.argmin(axis=1)
        for j in range(k):
            member = labels == j
            centers[j] = (x * member[:, None]).sum(axis=0) / np.maximum(member.sum(), 1)
    return labels


@program(lambda r, n, k, t: (r.standard_normal((n, 2)), r.standard_normal((k, 2)), t), (10, 2, 2), (5000, 5, 10), 1e-8)
def gaussian_mixture(x, mu, steps):
    k = mu.shape[0]
    var = np.ones(k)
    pi = np.full(k, 1 / k)
    for _ in range(steps):
        d = ((x[:, None] - mu[None]) ** 2).sum(-1)
        logp = np.log(pi) - np.log(var) - 0.5 * d / var
        logp -= logp.max(axis=1, keepdims=True)
        resp = np.exp(logp)
        resp /= resp.sum(axis=1, keepdims=True)
        total = resp.sum(axis=0)
        mu[:] = resp.T @ x / total[:, None]
        var = (resp * d).sum(axis=0) / (2 * total)
        pi = total / len(x)
    return mu, var, pi


@program(lambda r, n, t: ((r.random((n, n)) > 0.7).astype(np.float64), 0.85, t), (8, 4), (800, 50))
def page_rank(links, damping, steps):
    n = links.shape[0]
    out = links.sum(axis=0)
    out[out == 0] = 1
    m = links / out
    rank = np.full(n, 1.0 / n)
    for _ in range(steps):
        rank = damping * (m @ rank) + (1 - damping) / n
    return rank


@program(lambda r, n, m: (r.random((n, 2)), r.random((m, 2)), r.random(n)), (6, 4), (120, 200), 1e-6)
def gaussian_process(x, grid, y):
    n = len(x)
    k = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1) / 0.3**2)
    k[np.diag_indices(n)] += 0.1
    ks = np.exp(-0.5 * ((x[:, None] - grid[None]) ** 2).sum(-1) / 0.3**2)
    alpha = np.linalg.solve(k, y)
    v = np.linalg.solve(k, ks)
    return ks.T @ alpha, 1.0 - (ks * v).sum(axis=0)


@program(
    lambda r, n, t: (r.random((n, 4)), r.standard_normal((n, 4)), r.standard_normal((t, n)), r.random((t, n, 4))),
    (8, 2),
    (5000, 20),
)
def particle_weights(particles, velocity, observed, noise):
    weights = np.full(len(particles), 1 / len(particles))
    means = np.zeros((len(observed), 4))
    for t in range(len(observed)):
        particles += 0.1 * velocity + 0.01 * noise[t]
        weights *= np.exp(-0.5 * (observed[t] - particles[:, 0]) ** 2)
        weights /= weights.sum()
        means[t] = weights @ particles
    return means


@program(
    lambda r, n, m, k: (positive(r, n, m), positive(r, n, k), positive(r, k, m), 4), (6, 5, 2), (300, 200, 10), 1e-8
)
def factorize_non_negative(v, w, h, steps):
    for _ in range(steps):
        h *= (w.T @ v) / (w.T @ w @ h + 1e-9)
        w *= (v @ h.T) / (w @ h @ h.T + 1e-9)
    return ((v - w @ h) ** 2).sum()


@program(lambda r, n, m: (single(r, n, m), single(r, 2, m), 3), (8, 3), (5000, 10), 1e-4)
def nearest_neighbours(x, queries, k):
    d = np.sqrt(((queries[:, None] - x) ** 2).sum(-1))
    order = np.argsort(d, axis=1)[:, :k]
    return order, np.take_along_axis(d, order, axis=1)


@program(lambda r, n, m: (r.standard_normal((n, m)), 0.1), (8, 4), (500, 64), 1e-7)
def principal_components_by_oja(x, rate):
    w = np.ones(x.shape[1]) / np.sqrt(x.shape[1])
    for t in range(x.shape[0]):
        y = x[t] @ w
        w += rate * y * (x[t] - y * w)
        w /= np.sqrt((w * w).sum())
    return w


@program(lambda r, a, b: (positive(r, a, b), 6), (5, 6), (300, 300))
def sinkhorn(cost, steps):
    k = np.exp(-cost / 0.5)
    u = np.ones(cost.shape[0])
    v = np.ones(cost.shape[1])
    for _ in range(steps):
        u = (1 / len(u)) / (k @ v)
        v = (1 / len(v)) / (k.T @ u)
    plan = u[:, None] * k * v[None, :]
    return plan, (plan * cost).sum()


@program(lambda r, n: (definite(r, n), r.standard_normal((n, 1)), r.standard_normal((n, 40))), (3,), (10,), 1e-7)
def recursive_least_squares(p, w, inputs):
    for t in range(4):
        u = inputs[:, t : t + 1]
        gain = p @ u / (0.99 + u.T @ p @ u)
        w += gain * (1.0 - u.T @ w)
        p -= gain @ (u.T @ p)
        p /= 0.99
    return w, np.trace(p)


@program(lambda r, n, d: (r.random((n, d)), r.integers(0, 3, n)), (9, 2), (20000, 10))
def naive_bayes(x, y):
    means = np.zeros((3, x.shape[1]))
    variances = np.zeros((3, x.shape[1]))
    for c in range(3):
        of = (y == c)[:, None]
        count = of.sum()
        means[c] = (x * of).sum(axis=0) / count
        variances[c] = (((x - means[c]) ** 2) * of).sum(axis=0) / count + 1e-3
    score = np.zeros((x.shape[0], 3))
    for c in range(3):
        score[:, c] = -0.5 * (((x - means[c]) ** 2) / variances[c] + np.log(variances[c])).sum(axis=1)
    return score.argmax(axis=1)


@program(lambda r, n: (r.random((n, 2)), r.random(n) > 0.5, 5), (8,), (2000,), 1e-8)
def boosted_stumps(x, label, rounds):
    y = np.where(label, 1.0, -1.0)
    weight = np.full(len(y), 1 / len(y))
    score = np.zeros(len(y))
    for t in range(rounds):
        guess = np.where(x[:, t % 2] > 0.2 * t, 1.0, -1.0)
        error = np.sum(weight[:] * (guess != y))
        error = np.clip(error, 1e-3, 1 - 1e-3)
        alpha = 0.5 * np.log((1 - error) / error)
        score += alpha * guess
        weight *= np.exp(-alpha * y * guess)
        weight /= weight.sum()
    return score, weight


@program(lambda r, n, t: (r.random((n, 8)), r.random((t, 8)), 0.3), (6, 3), (400, 30))
def self_organizing_map(nodes, samples, rate):
    grid = np.arange(nodes.shape[0])
    for i in range(len(samples)):
        d = ((nodes - samples[i]) ** 2).sum(axis=1)
        winner = d.argmin()
        near = np.exp(-((grid - winner) ** 2) / 8.0)
        nodes += rate * near[:, None] * (samples[i] - nodes)
    return nodes
