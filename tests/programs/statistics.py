"""Data mining and statistics: moments, regressions, bootstraps, density estimates."""

import numpy as np

from tests.programs.registry import positive, program, single


@program(lambda r, n, m: (r.random((n, m)),), (10, 6), (1400, 300))
def covariance(data):
    mean = data.mean(axis=0)
    data -= mean
    cov = np.zeros((data.shape[1], data.shape[1]), dtype=data.dtype)
    for i in range(data.shape[1]):
        cov[i:, i] = cov[i, i:] = data[:, i] @ data[:, i:] / (data.shape[0] - 1.0)
    return cov


@program(lambda r, n, m: (r.random((n, m)),), (10, 5), (1400, 300))
def correlation(data):
    n, m = data.shape
    mean = data.mean(axis=0)
    std = data.std(axis=0)
    std[std <= 0.1] = 1.0
    data -= mean
    data /= np.sqrt(n) * std
    corr = np.eye(m, dtype=data.dtype)
    for i in range(m - 1):
        corr[i + 1 :, i] = corr[i, i + 1 :] = data[:, i] @ data[:, i + 1 :]
    return corr


@program(lambda r, n, m: (r.random((n, m)),), (8, 3), (100000, 10))
def standardize(x):
    x -= x.mean(axis=0)
    x /= x.std(axis=0, ddof=1)
    return x


@program(lambda r, n: (r.standard_normal(n),), (20,), (200000,))
def moments(x):
    m = x.mean()
    d = x - m
    var = (d**2).mean()
    skew = (d**3).mean() / var**1.5
    kurt = (d**4).mean() / var**2 - 3
    return m, var, skew, kurt


@program(lambda r, n, k: (r.standard_normal((n, k)), r.standard_normal(n), 0.1, 4), (12, 3), (5000, 50))
def ridge_by_gradient_descent(x, y, lam, steps):
    n, k = x.shape
    w = np.zeros(k)
    history = np.zeros(steps)
    for i in range(steps):
        r = x @ w - y
        history[i] = (r * r).mean() + lam * (w @ w)
        w -= 0.1 * (2 / n * (x.T @ r) + 2 * lam * w)
    return w, history


@program(lambda r, n, k, t: (r.standard_normal((n, k)), np.round(r.random(n)), t), (12, 3, 3), (5000, 40, 30))
def logistic_regression(x, y, steps):
    w = np.zeros(x.shape[1])
    b = 0.0
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(x @ w + b)))
        error = p - y
        w -= 0.5 * (x.T @ error) / len(y)
        b -= 0.5 * error.mean()
    return w, b


@program(lambda r, n, k, t: (r.standard_normal((n, k)), r.standard_normal(n), 0.01, t), (12, 3, 3), (3000, 60, 40))
def lasso_by_soft_thresholds(x, y, lam, steps):
    n = x.shape[0]
    lip = (x * x).sum() / n
    w = np.zeros(x.shape[1])
    for _ in range(steps):
        g = x.T @ (x @ w - y) / n
        z = w - g / lip
        w = np.sign(z) * np.maximum(np.abs(z) - lam / lip, 0)
    return w


@program(lambda r, n, g: (r.standard_normal(n), np.linspace(-3, 3, g), 0.3), (12, 8), (2000, 500))
def kernel_density(samples, grid, h):
    out = np.zeros(grid.shape)
    for i in range(len(grid)):
        z = (grid[i] - samples) / h
        out[i] = np.exp(-0.5 * z * z).sum()
    out /= len(samples) * h * np.sqrt(2 * np.pi)
    return out


@program(lambda r, n, b: (r.standard_normal(n), r.integers(0, n, (b, n))), (10, 4), (1000, 200))
def bootstrap_means(x, picks):
    means = np.empty(picks.shape[0])
    for i in range(picks.shape[0]):
        means[i] = x[picks[i]].mean()
    return means, means.std()


@program(lambda r, n, w: (r.standard_normal(n), w), (20, 4), (100000, 50))
def moving_average(x, window):
    out = np.zeros(x.size - window + 1)
    for k in range(window):
        out += x[k : k + out.size]
    out /= window
    return out


@program(lambda r, n: (single(r, n), np.float32(0.2)), (12,), (2000,), 1e-5)
def exponential_smoothing(x, alpha):
    s = np.empty_like(x)
    s[0] = x[0]
    for t in range(1, len(x)):
        s[t] = alpha * x[t] + (1 - alpha) * s[t - 1]
    return s


@program(lambda r, n, lags: (r.standard_normal(n), lags), (20, 5), (50000, 40))
def autocorrelation(x, lags):
    d = x - x.mean()
    out = np.ones(lags + 1)
    v = d @ d
    for k in range(1, lags + 1):
        out[k] = d[k:] @ d[:-k] / v
    return out


@program(lambda r, n: (r.integers(0, 6, n), 6), (20,), (100000,))
def one_hot_counts(labels, classes):
    table = np.zeros((len(labels), classes))
    for c in range(classes):
        table[:, c] = labels == c
    return table.sum(axis=0), table


@program(lambda r, n: (r.integers(0, 4, n), r.integers(0, 4, n), 4), (20,), (100000,))
def confusion_matrix(truth, guess, classes):
    m = np.zeros((classes, classes), dtype=np.int64)
    for i in range(classes):
        for j in range(classes):
            m[i, j] = np.sum((truth == i) & (guess == j))
    accuracy = np.trace(m) / m.sum()
    return m, accuracy


@program(lambda r, n, k: (r.standard_normal((n, k)), k), (12, 4), (5000, 40), 1e-6)
def mahalanobis(x, k):
    d = x - x.mean(axis=0)
    s = d.T @ d / (x.shape[0] - 1)
    inverse = np.eye(k)
    scale = np.trace(s)
    inverse /= scale
    for _ in range(6):
        inverse = inverse @ (2 * np.eye(k) - s @ inverse)
    return np.sqrt(np.einsum("ij,jk,ik->i", d, inverse, d))


@program(lambda r, n: (r.standard_normal((n, 3)),), (10,), (200000,))
def clip_outliers(x):
    mu, sd = x.mean(axis=0), x.std(axis=0)
    lo, hi = mu - 2 * sd, mu + 2 * sd
    x[:] = np.clip(x, lo, hi)
    missing = np.abs(x) < 0.01
    x[missing] = 0.0
    return missing.sum()


@program(lambda r, n: (np.where(r.random(n) > 0.2, r.standard_normal(n), np.nan),), (20,), (100000,))
def fill_missing(x):
    bad = np.isnan(x)
    good = ~bad
    mean = np.where(good, x, 0.0).sum() / good.sum()
    x[bad] = mean
    return mean


@program(lambda r, n, m: (r.standard_normal((n, m)), r.standard_normal((n, m))), (9, 3), (20000, 20))
def paired_t_statistics(a, b):
    d = a - b
    n = d.shape[0]
    return d.mean(axis=0) / (d.std(axis=0, ddof=1) / np.sqrt(n))


@program(lambda r, n: (positive(r, n), positive(r, n)), (16,), (200000,))
def divergences(p, q):
    p /= p.sum()
    q /= q.sum()
    m = 0.5 * (p + q)
    kl = np.sum(p * np.log(p / q))
    js = 0.5 * np.sum(p * np.log(p / m)) + 0.5 * np.sum(q * np.log(q / m))
    return kl, js, np.sqrt(np.sum((np.sqrt(p) - np.sqrt(q)) ** 2) / 2)
