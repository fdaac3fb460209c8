"""Time steps over grids, in one to three dimensions."""

import numpy as np

from tests.programs.registry import program, single


@program(lambda r, t, n: (t, r.random(n), r.random(n)), (3, 12), (200, 20000))
def jacobi_1d(steps, a, b):
    for _ in range(1, steps):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])


@program(lambda r, t, n: (t, r.random((n, n)), r.random((n, n))), (3, 8), (50, 500))
def jacobi_2d(steps, a, b):
    for _ in range(1, steps):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
        a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])


@program(lambda r, t, n: (t, r.random((n, n, n)), r.random((n, n, n))), (2, 6), (20, 70))
def heat_3d(steps, a, b):
    for _ in range(1, steps):
        for u, v in ((a, b), (b, a)):
            c = u[1:-1, 1:-1, 1:-1]
            v[1:-1, 1:-1, 1:-1] = (
                0.125 * (u[2:, 1:-1, 1:-1] - 2.0 * c + u[:-2, 1:-1, 1:-1])
                + 0.125 * (u[1:-1, 2:, 1:-1] - 2.0 * c + u[1:-1, :-2, 1:-1])
                + 0.125 * (u[1:-1, 1:-1, 2:] - 2.0 * c + u[1:-1, 1:-1, :-2])
                + c
            )


@program(
    lambda r, t, n: (r.random((n, n + 2)), r.random((n, n + 2)), r.random((n, n + 2)), r.random(t)), (3, 7), (50, 400)
)
def fdtd_2d(ex, ey, hz, source):
    for t in range(source.shape[0]):
        ey[0, :] = source[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


@program(lambda r, t, n: (t, r.random((n, n))), (1, 5), (4, 40))
def seidel_2d(steps, a):
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            a[i, 1:-1] += (
                a[i - 1, :-2] + a[i - 1, 1:-1] + a[i - 1, 2:] + a[i, 2:] + a[i + 1, :-2] + a[i + 1, 1:-1] + a[i + 1, 2:]
            )
            for j in range(1, n - 1):
                a[i, j] += a[i, j - 1]
                a[i, j] /= 9.0


@program(lambda r, t, n: (single(r, n, n), np.float32(0.1), t), (3, 8), (100, 500), 1e-5)
def heat_in_place(u, k, steps):
    for _ in range(steps):
        u[1:-1, 1:-1] += k * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
    return u


@program(lambda r, t, n: (single(r, n, n), single(r, n, n), t), (3, 8), (50, 500), 1e-5)
def wave_2d(u, previous, steps):
    for _ in range(steps):
        new = np.zeros_like(u)
        lap = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        new[1:-1, 1:-1] = 2 * u[1:-1, 1:-1] - previous[1:-1, 1:-1] + np.float32(0.2) * lap
        previous, u = u, new
    return u


@program(lambda r, t, n: (r.random((n, n)), r.random((n, n)), t), (2, 8), (50, 256))
def gray_scott(u, v, steps):
    du, dv, f, k = 0.16, 0.08, 0.035, 0.065
    for _ in range(steps):
        lu = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
        lv = np.roll(v, 1, 0) + np.roll(v, -1, 0) + np.roll(v, 1, 1) + np.roll(v, -1, 1) - 4 * v
        uvv = u * v * v
        u += du * lu - uvv + f * (1 - u)
        v += dv * lv + uvv - (f + k) * v
    return u, v


@program(lambda r, t, n: (r.integers(0, 2, (n, n)), t), (2, 8), (50, 400))
def game_of_life(z, steps):
    for _ in range(steps):
        n = z[:-2, :-2] + z[:-2, 1:-1] + z[:-2, 2:] + z[1:-1, :-2] + z[1:-1, 2:] + z[2:, :-2] + z[2:, 1:-1] + z[2:, 2:]
        birth = (n == 3) & (z[1:-1, 1:-1] == 0)
        survive = ((n == 2) | (n == 3)) & (z[1:-1, 1:-1] == 1)
        z[...] = 0
        z[1:-1, 1:-1][birth | survive] = 1
    return z


@program(lambda r, t, n: (r.random((n, n)), r.random((n, n)), r.random((n, n)), t, 5), (2, 8), (10, 60))
def cavity_flow(u, v, p, steps, sweeps):
    n = u.shape[0]
    dx = 2.0 / (n - 1)
    rho, nu, dt = 1.0, 0.1, 1e-4
    b = np.zeros((n, n))
    for _ in range(steps):
        un, vn = u.copy(), v.copy()
        b[1:-1, 1:-1] = rho * (
            ((un[1:-1, 2:] - un[1:-1, :-2]) + (vn[2:, 1:-1] - vn[:-2, 1:-1])) / (2 * dx * dt)
            - ((un[1:-1, 2:] - un[1:-1, :-2]) / (2 * dx)) ** 2
        )
        for _ in range(sweeps):
            pn = p.copy()
            p[1:-1, 1:-1] = (
                0.25 * (pn[1:-1, 2:] + pn[1:-1, :-2] + pn[2:, 1:-1] + pn[:-2, 1:-1]) - dx**2 / 4 * b[1:-1, 1:-1]
            )
            p[:, -1] = p[:, -2]
            p[0, :] = p[1, :]
            p[:, 0] = p[:, 1]
            p[-1, :] = 0
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, :-2])
            + nu * dt / dx**2 * (un[1:-1, 2:] + un[1:-1, :-2] + un[2:, 1:-1] + un[:-2, 1:-1] - 4 * un[1:-1, 1:-1])
        )
        v[1:-1, 1:-1] = vn[1:-1, 1:-1] - dt / (2 * rho * dx) * (p[2:, 1:-1] - p[:-2, 1:-1])
        u[0, :] = u[:, 0] = u[:, -1] = 0
        u[-1, :] = 1
        v[0, :] = v[-1, :] = v[:, 0] = v[:, -1] = 0
    return u, v, p


@program(lambda r, t, n: (r.random(n), t), (3, 12), (100, 50000))
def burgers_1d(u, steps):
    dt, dx, nu = 1e-4, 0.01, 0.07
    for _ in range(steps):
        un = u.copy()
        u[1:-1] = (
            un[1:-1] - un[1:-1] * dt / dx * (un[1:-1] - un[:-2]) + nu * dt / dx**2 * (un[2:] - 2 * un[1:-1] + un[:-2])
        )
        u[0] = u[-1] = un[0]
    return u


@program(lambda r, t, n: (r.random((n, n)), r.random((n, n)), r.random((n, n)), t), (2, 8), (50, 300))
def upwind_advection(q, u, v, steps):
    c = 0.1
    for _ in range(steps):
        fx = np.where(u[:, 1:] > 0, q[:, :-1], q[:, 1:]) * u[:, 1:]
        fy = np.where(v[1:, :] > 0, q[:-1, :], q[1:, :]) * v[1:, :]
        q[:, 1:-1] -= c * (fx[:, 1:] - fx[:, :-1])
        q[1:-1, :] -= c * (fy[1:, :] - fy[:-1, :])
    return q


@program(lambda r, t, n: (r.random((n, n)), r.random((n, n)), t), (2, 6), (3, 60))
def alternating_directions(u, f, steps):
    n = u.shape[0]
    a, b = -0.25, 1.5
    for _ in range(steps):
        p = np.zeros((n, n))
        q = np.zeros((n, n))
        for j in range(1, n - 1):
            p[1:-1, j] = -a / (a * p[1:-1, j - 1] + b)
            q[1:-1, j] = (f[1:-1, j] + u[1:-1, j] - a * q[1:-1, j - 1]) / (a * p[1:-1, j - 1] + b)
        for j in range(n - 2, 0, -1):
            u[1:-1, j] = p[1:-1, j] * u[1:-1, j + 1] + q[1:-1, j]
    return u


@program(lambda r, t, n: (r.random((n, n)), t), (2, 9), (40, 401))
def red_black_relaxation(u, steps):
    for _ in range(steps):
        for start in (1, 2):
            u[1:-1:2, start:-1:2] = 0.25 * (
                u[:-2:2, start:-1:2] + u[2::2, start:-1:2] + u[1:-1:2, start - 1 : -2 : 2] + u[1:-1:2, start + 1 :: 2]
            )
    return u


@program(lambda r, n: (r.random((n, n, n)),), (6,), (100,))
def laplacian_27(u):
    out = np.zeros_like(u)
    n = u.shape[0]
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            for k in (-1, 0, 1):
                w = 0.5 ** (abs(i) + abs(j) + abs(k))
                out[1:-1, 1:-1, 1:-1] += w * u[1 + i : n - 1 + i, 1 + j : n - 1 + j, 1 + k : n - 1 + k]
    return out


@program(lambda r, n, levels: (r.random((n, n)), levels), (9, 2), (513, 5))
def restrict_and_prolong(u, levels):
    stack = [u]
    for _ in range(levels):
        f = stack[-1]
        c = np.zeros(((f.shape[0] + 1) // 2, (f.shape[1] + 1) // 2))
        c[...] = f[::2, ::2]
        c[1:-1, 1:-1] = 0.5 * f[2:-2:2, 2:-2:2] + 0.125 * (
            f[1:-3:2, 2:-2:2] + f[3:-1:2, 2:-2:2] + f[2:-2:2, 1:-3:2] + f[2:-2:2, 3:-1:2]
        )
        stack.append(c)
    e = stack.pop()
    while stack:
        f = stack.pop()
        p = np.zeros_like(f)
        p[::2, ::2] = e
        p[1::2, ::2] = 0.5 * (e[:-1] + e[1:])
        p[:, 1::2] = 0.5 * (p[:, :-1:2] + p[:, 2::2])
        e = f - p
    return e
