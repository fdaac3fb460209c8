"""Prices, risks and portfolios."""

import numpy as np
from scipy.special import erf

from tests.programs.registry import positive, program


@program(lambda r, n: (100 * positive(r, n), 100 * positive(r, n), positive(r, n)), (12,), (200000,))
def black_scholes(spot, strike, years):
    rate, vol = 0.03, 0.2
    d1 = (np.log(spot / strike) + (rate + 0.5 * vol**2) * years) / (vol * np.sqrt(years))
    d2 = d1 - vol * np.sqrt(years)
    n1 = 0.5 * (1 + erf(d1 / np.sqrt(2)))
    n2 = 0.5 * (1 + erf(d2 / np.sqrt(2)))
    call = spot * n1 - strike * np.exp(-rate * years) * n2
    put = call - spot + strike * np.exp(-rate * years)
    return call, put


@program(lambda r, n: (100.0, 95.0, n), (8,), (500,))
def binomial_american_put(spot, strike, steps):
    dt = 1.0 / steps
    up = np.exp(0.2 * np.sqrt(dt))
    p = (np.exp(0.03 * dt) - 1 / up) / (up - 1 / up)
    prices = spot * up ** (2.0 * np.arange(steps + 1) - steps)
    values = np.maximum(strike - prices, 0)
    for _ in range(steps):
        prices = prices[1:] / up
        values = np.exp(-0.03 * dt) * (p * values[1:] + (1 - p) * values[:-1])
        values = np.maximum(values, strike - prices)
    return values[0]


@program(lambda r, n: (100 * positive(r, 6), n), (6,), (100,))
def binomial_european_calls(spots, steps):
    dt = 1.0 / steps
    up = np.exp(0.2 * np.sqrt(dt))
    p = (np.exp(0.03 * dt) - 1 / up) / (up - 1 / up)
    powers = 2.0 * np.arange(steps + 1) - steps
    values = np.maximum(spots[:, None] * up**powers - 100.0, 0)
    for i in range(steps):
        values[:, : steps - i] = p * values[:, 1 : steps - i + 1] + (1 - p) * values[:, : steps - i]
    return values[:, 0] * np.exp(-0.03)


@program(lambda r, n, t: (np.full(n, 100.0), r.standard_normal((t, n)), 100.0), (10, 4), (20000, 50))
def monte_carlo_asian(prices, shocks, strike):
    steps = shocks.shape[0]
    dt = 1 / steps
    total = np.zeros_like(prices)
    for t in range(steps):
        prices *= np.exp((0.03 - 0.02) * dt + 0.2 * np.sqrt(dt) * shocks[t])
        total += prices
    payoff = np.maximum(total / steps - strike, 0)
    return np.exp(-0.03) * payoff.mean(), payoff.std() / np.sqrt(payoff.size)


@program(lambda r, n, t: (np.full(n, 0.04), r.standard_normal((t, 2, n))), (10, 4), (20000, 50))
def heston_paths(v, shocks):
    kappa, theta, xi, rho, dt = 1.5, 0.04, 0.3, -0.7, 0.01
    s = np.ones_like(v)
    for z1, z2 in shocks:
        w = rho * z1 + np.sqrt(1 - rho**2) * z2
        vp = np.maximum(v, 0)
        s *= np.exp(-0.5 * vp * dt + np.sqrt(vp * dt) * z1)
        v += kappa * (theta - vp) * dt + xi * np.sqrt(vp * dt) * w
    return s


@program(lambda r, n, t: (np.maximum(np.linspace(0, 200, n) - 100, 0), t), (12, 4), (1000, 500))
def explicit_option_grid(v, steps):
    n = v.shape[0]
    s = np.arange(n)
    a = 0.5e-6 * (0.04 * s**2 - 0.03 * s)
    b = 1 - 1e-6 * (0.04 * s**2 + 0.03)
    c = 0.5e-6 * (0.04 * s**2 + 0.03 * s)
    for _ in range(steps):
        old = v.copy()
        v[1:-1] = a[1:-1] * old[:-2] + b[1:-1] * old[1:-1] + c[1:-1] * old[2:]
        v[0] = 0
        v[-1] = 2 * v[-2] - v[-3]
    return v


@program(lambda r, n, m: (0.01 * r.standard_normal((n, m)), np.full(m, 1 / m), 5), (12, 4), (2000, 100))
def mean_variance_weights(returns, w, steps):
    mu = returns.mean(axis=0)
    d = returns - mu
    sigma = d.T @ d / (len(returns) - 1)
    for _ in range(steps):
        grad = mu - 5.0 * (sigma @ w)
        w *= np.exp(0.5 * grad)
        w /= w.sum()
    return w, w @ mu, np.sqrt(w @ sigma @ w)


@program(lambda r, n: (0.01 * r.standard_normal(n),), (12,), (1500,))
def garch_likelihood(returns):
    omega, alpha, beta = 1e-6, 0.05, 0.9
    variance = np.empty(returns.shape[0])
    variance[0] = returns.var()
    for t in range(1, returns.shape[0]):
        variance[t] = omega + alpha * returns[t - 1] ** 2 + beta * variance[t - 1]
    return -0.5 * np.sum(np.log(2 * np.pi * variance) + returns**2 / variance)


@program(lambda r, n: (100 * np.exp(np.cumsum(0.01 * r.standard_normal(n))),), (16,), (3000,))
def drawdown_and_returns(prices):
    peak = np.maximum.accumulate(prices)
    drawdown = prices / peak - 1
    returns = np.diff(prices) / prices[:-1]
    sharpe = returns.mean() / returns.std() * np.sqrt(252)
    return drawdown.min(), sharpe, returns


@program(lambda r, n, m: (positive(r, n, m), 0.05 * positive(r, n)), (8, 5), (20000, 30))
def bond_prices_and_durations(cashflows, yields):
    price = np.zeros(cashflows.shape[0])
    duration = np.zeros(cashflows.shape[0])
    for t in range(cashflows.shape[1]):
        pv = cashflows[:, t] / (1 + yields) ** (t + 1)
        price += pv
        duration += (t + 1) * pv
    duration /= price
    return price, duration


@program(lambda r, n: (10 * positive(r, n), 12 * positive(r, n), positive(r, n), 4), (10,), (100000,))
def implied_volatility(price, spot, years, steps):
    strike = 11.0
    vol = np.full(price.shape, 0.5)
    for _ in range(steps):
        root = vol * np.sqrt(years)
        d1 = np.log(spot / strike) / root + 0.5 * root
        call = spot * 0.5 * (1 + erf(d1 / 2**0.5)) - strike * 0.5 * (1 + erf((d1 - root) / 2**0.5))
        vega = spot * np.sqrt(years) * np.exp(-0.5 * d1**2) / np.sqrt(2 * np.pi)
        vol = np.clip(vol - 0.1 * (call - price) / (vega + 1.0), 0.05, 3.0)
    return vol
