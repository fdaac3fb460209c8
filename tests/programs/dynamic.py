"""Dynamic programming, by rows, diagonals and steps, and graphs."""

import numpy as np

from tests.programs.registry import positive, program, single


@program(lambda r, n: (r.integers(1, 20, (n, n)),), (6,), (200,))
def floyd_warshall(path):
    for k in range(path.shape[0]):
        path[:] = np.minimum(path[:], np.add.outer(path[:, k], path[k, :]))


@program(lambda r, n: (positive(r, n, n),), (6,), (200,))
def shortest_paths_by_products(d):
    n = d.shape[0]
    for _ in range(3):
        d = np.min(d[:, :, None] + d[None, :, :], axis=1) if n < 50 else np.minimum(d, d[:, :1] + d[:1, :])
    return d


@program(lambda r, n, m: (r.integers(0, 4, n), r.integers(0, 4, m)), (4, 5), (300, 200))
def edit_distance_by_rows(a, b):
    m = len(b)
    row = np.arange(m + 1)
    offsets = np.arange(m + 1)
    for i in range(len(a)):
        step = np.empty(m + 1, dtype=row.dtype)
        step[0] = i + 1
        step[1:] = np.minimum(row[1:] + 1, row[:-1] + (b != a[i]))
        row = np.minimum.accumulate(step - offsets) + offsets
    return row[-1]


@program(lambda r, n, c: (r.integers(1, 5, n), r.integers(1, 9, n), c), (4, 12), (60, 2000))
def knapsack_values(weights, values, capacity):
    best = np.zeros(capacity + 1, dtype=np.int64)
    index = np.arange(capacity + 1)
    for i in range(len(weights)):
        moved = best[np.maximum(index - weights[i], 0)] + values[i]
        best = np.where(index >= weights[i], np.maximum(best, moved), best)
    return best


@program(lambda r, t, n: (r.random((n, n)), r.random((n, 5)), r.random(n), r.integers(0, 5, t)), (4, 3), (200, 30))
def viterbi(transition, emission, start, observed):
    lt, le = np.log(transition), np.log(emission)
    steps, n = len(observed), len(start)
    score = np.log(start) + le[:, observed[0]]
    back = np.zeros((steps, n), dtype=np.int64)
    for t in range(1, steps):
        candidates = score[:, None] + lt
        back[t] = candidates.argmax(axis=0)
        score = candidates.max(axis=0) + le[:, observed[t]]
    return score, back


@program(lambda r, t, n: (r.random((n, n)) / n, r.random((n, 5)), r.random(n), r.integers(0, 5, t)), (4, 3), (100, 30))
def hidden_markov_forward(transition, emission, start, observed):
    alpha = np.zeros((len(observed), len(start)))
    alpha[0] = start * emission[:, observed[0]]
    likelihood = 0.0
    for t in range(1, len(observed)):
        alpha[t] = (alpha[t - 1] @ transition) * emission[:, observed[t]]
        scale = alpha[t].sum()
        alpha[t] /= scale
        likelihood += np.log(scale)
    return alpha, likelihood


@program(lambda r, n, t: (r.random((n, n, 3)), r.random((n, 3)), t), (4, 3), (100, 50))
def value_iteration(transition, reward, steps):
    value = np.zeros(transition.shape[0])
    p = transition / transition.sum(axis=1, keepdims=True)
    for _ in range(steps):
        q = reward + 0.9 * np.einsum("ija,j->ia", p, value)
        value = q.max(axis=1)
    return value, q.argmax(axis=1)


@program(lambda r, n, m: (positive(r, n, m),), (5, 4), (200, 300))
def minimal_seam_costs(energy):
    cost = energy.copy()
    for i in range(1, cost.shape[0]):
        above = cost[i - 1]
        best = above.copy()
        best[1:] = np.minimum(best[1:], above[:-1])
        best[:-1] = np.minimum(best[:-1], above[1:])
        cost[i] += best
    return cost, cost[-1].argmin()


@program(lambda r, n: (positive(r, n), positive(r, n)), (4,), (30,))
def time_warping(x, y):
    n, m = len(x), len(y)
    d = np.full((n + 1, m + 1), np.inf)
    d[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost = abs(x[i - 1] - y[j - 1])
            d[i, j] = cost + min(d[i - 1, j], d[i, j - 1], d[i - 1, j - 1])
    return d[n, m]


@program(lambda r, n: (positive(r, n, n),), (4,), (200,))
def matrix_path_counts(grid):
    open_ = grid > 0.6
    ways = np.zeros(grid.shape, dtype=np.int64)
    ways[0] = np.cumprod(open_[0])
    for i in range(1, grid.shape[0]):
        ways[i, 0] = ways[i - 1, 0] * open_[i, 0]
        for j in range(1, 4):
            ways[i, j] = (ways[i - 1, j] + ways[i, j - 1]) * open_[i, j] % 1000003
    return ways


@program(lambda r, n, m: (r.integers(0, 3, n), r.integers(0, 3, m)), (4, 5), (20, 30))
def longest_common_subsequence(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    for i in range(len(a)):
        match = table[i, :-1] + (b == a[i])
        table[i + 1, 1:] = np.maximum.accumulate(np.maximum(match, table[i, 1:]))
    return table[-1, -1]


@program(lambda r, n, t: ((r.random((n, n)) > 0.7), t), (6, 3), (300, 10))
def reachability(adjacent, steps):
    reach = adjacent.copy()
    np.fill_diagonal(reach, True)
    for _ in range(steps):
        reach |= (reach.astype(np.float32) @ adjacent.astype(np.float32)) > 0
    return reach, reach.sum(axis=1)


@program(lambda r, n: (single(r, n, n),), (6,), (512,), 1e-5)
def prefix_sums_2d(a):
    for i in range(1, a.shape[0]):
        a[i] += a[i - 1]
    for j in range(1, a.shape[1]):
        a[:, j] += a[:, j - 1]
    return a


@program(lambda r, n: (r.integers(0, 10, n),), (9,), (1000,))
def best_subarray(x):
    best = np.zeros(len(x), dtype=np.int64)
    shifted = x - 5
    best[0] = shifted[0]
    for i in range(1, len(x)):
        best[i] = np.maximum(shifted[i], best[i - 1] + shifted[i])
    return best.max()
