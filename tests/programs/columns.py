"""Columns of the atmosphere and the ocean: many of them at once, loops over levels and time steps."""

import numpy as np

from tests.programs.registry import positive, program, single


@program(lambda r, n, k: (positive(r, n, n, k), positive(r, n, n, k), 1.0, 0.1), (3, 6), (128, 60))
def implicit_vertical_diffusion(t, kappa, dt, dz):
    nz = t.shape[2]
    a = np.zeros_like(t)
    c = np.zeros_like(t)
    a[:, :, 1:] = -dt * 0.5 * (kappa[:, :, 1:] + kappa[:, :, :-1]) / dz
    c[:, :, :-1] = a[:, :, 1:]
    b = 1.0 - a - c
    cp = np.zeros_like(t)
    dp = np.zeros_like(t)
    cp[:, :, 0] = c[:, :, 0] / b[:, :, 0]
    dp[:, :, 0] = t[:, :, 0] / b[:, :, 0]
    for k in range(1, nz):
        m = 1.0 / (b[:, :, k] - a[:, :, k] * cp[:, :, k - 1])
        cp[:, :, k] = c[:, :, k] * m
        dp[:, :, k] = (t[:, :, k] - a[:, :, k] * dp[:, :, k - 1]) * m
    t[:, :, -1] = dp[:, :, -1]
    for k in range(nz - 2, -1, -1):
        t[:, :, k] = dp[:, :, k] - cp[:, :, k] * t[:, :, k + 1]


@program(lambda r, n, k: (positive(r, k, n, n), positive(r, k, n, n)), (3, 5), (128, 60))
def hydrostatic_pressure(density, thickness):
    p = np.zeros(density.shape)
    g = 9.81
    p[0] = 0.5 * g * density[0] * thickness[0]
    for k in range(1, density.shape[0]):
        p[k] = p[k - 1] + 0.5 * g * (density[k - 1] * thickness[k - 1] + density[k] * thickness[k])
    return p


@program(lambda r, n: (30 + positive(r, n, n), 10 * positive(r, n, n), 1000 * positive(r, n, n)), (6,), (700,))
def sea_water_density(salt, theta, pressure):
    rho0 = 999.842594 + 6.793952e-2 * theta - 9.09529e-3 * theta**2 + 1.001685e-4 * theta**3 - 1.120083e-6 * theta**4
    a = 8.24493e-1 - 4.0899e-3 * theta + 7.6438e-5 * theta**2 - 8.2467e-7 * theta**3
    b = -5.72466e-3 + 1.0227e-4 * theta - 1.6546e-6 * theta**2
    surface = rho0 + a * salt + b * salt * np.sqrt(salt) + 4.8314e-4 * salt**2
    bulk = 19652.21 + 148.4206 * theta - 2.327105 * theta**2 + (54.6746 - 0.603459 * theta) * salt + 3.2 * pressure
    return surface / (1 - pressure / bulk)


@program(lambda r, n: (280 + 20 * r.random((n, n)), 1e5 * positive(r, n, n), 0.02 * r.random((n, n))), (6,), (700,))
def saturation_adjustment(t, p, q):
    lv, cp, rv = 2.5e6, 1004.0, 461.5
    for _ in range(3):
        es = 611.2 * np.exp(17.67 * (t - 273.15) / (t - 29.65))
        qs = 0.622 * es / (p - 0.378 * es)
        slope = qs * lv / (rv * t**2)
        excess = np.where(q > qs, (q - qs) / (1 + lv / cp * slope), 0.0)
        q -= excess
        t += lv / cp * excess
    return t, q


@program(lambda r, n, k: (single(r, k, n, n), single(r, k, n, n)), (8, 2), (256, 40), 1e-5)
def horizontal_diffusion(field, coefficient):
    lap = np.zeros_like(field)
    lap[:, 1:-1, 1:-1] = 4 * field[:, 1:-1, 1:-1] - (
        field[:, 2:, 1:-1] + field[:, :-2, 1:-1] + field[:, 1:-1, 2:] + field[:, 1:-1, :-2]
    )
    fx = lap[:, 2:, 1:-1] - lap[:, 1:-1, 1:-1]
    fx = np.where(fx * (field[:, 2:, 1:-1] - field[:, 1:-1, 1:-1]) > 0, 0, fx)
    fy = lap[:, 1:-1, 2:] - lap[:, 1:-1, 1:-1]
    fy = np.where(fy * (field[:, 1:-1, 2:] - field[:, 1:-1, 1:-1]) > 0, 0, fy)
    out = field.copy()
    out[:, 2:-2, 2:-2] -= coefficient[:, 2:-2, 2:-2] * (
        fx[:, 1:-1, 1:-1] - fx[:, :-2, 1:-1] + fy[:, 1:-1, 1:-1] - fy[:, 1:-1, :-2]
    )
    return out


@program(lambda r, n, k, t: (r.random((k, n, n)), r.random((k + 1, n, n)) - 0.5, t), (4, 6, 2), (128, 40, 10))
def vertical_advection(q, w, steps):
    dt, dz = 0.1, 1.0
    for _ in range(steps):
        flux = np.zeros_like(w)
        flux[1:-1] = np.maximum(w[1:-1], 0) * q[:-1] + np.minimum(w[1:-1], 0) * q[1:]
        q -= dt / dz * (flux[1:] - flux[:-1])
    return q


@program(lambda r, n, t: (r.random((n, n)), r.random((n, n)), 1 + r.random((n, n)), t), (6, 3), (300, 60))
def shallow_water(u, v, h, steps):
    g, dt, dx, f = 9.81, 0.001, 1.0, 1e-4
    for _ in range(steps):
        u[:, 1:-1] += dt * (f * v[:, 1:-1] - g * (h[:, 2:] - h[:, :-2]) / (2 * dx))
        v[1:-1, :] += dt * (-f * u[1:-1, :] - g * (h[2:, :] - h[:-2, :]) / (2 * dx))
        h[1:-1, 1:-1] -= dt * (
            (h[1:-1, 2:] * u[1:-1, 2:] - h[1:-1, :-2] * u[1:-1, :-2]) / (2 * dx)
            + (h[2:, 1:-1] * v[2:, 1:-1] - h[:-2, 1:-1] * v[:-2, 1:-1]) / (2 * dx)
        )
        u[:, 0] = u[:, -1] = 0
        v[0, :] = v[-1, :] = 0


@program(lambda r, n, t: (r.random((n, n)), t), (8, 2), (128, 30))
def barotropic_vorticity(psi, steps):
    n = psi.shape[0]
    zeta = np.zeros((n, n))
    dt = 0.01
    for _ in range(steps):
        zeta[1:-1, 1:-1] = psi[2:, 1:-1] + psi[:-2, 1:-1] + psi[1:-1, 2:] + psi[1:-1, :-2] - 4 * psi[1:-1, 1:-1]
        px = 0.5 * (psi[1:-1, 2:] - psi[1:-1, :-2])
        py = 0.5 * (psi[2:, 1:-1] - psi[:-2, 1:-1])
        zx = 0.5 * (zeta[1:-1, 2:] - zeta[1:-1, :-2])
        zy = 0.5 * (zeta[2:, 1:-1] - zeta[:-2, 1:-1])
        zeta[1:-1, 1:-1] -= dt * (px * zy - py * zx + px)
        for _ in range(4):
            psi[1:-1, 1:-1] = 0.25 * (
                psi[2:, 1:-1] + psi[:-2, 1:-1] + psi[1:-1, 2:] + psi[1:-1, :-2] - zeta[1:-1, 1:-1]
            )
    return psi, zeta


@program(lambda r, n, k: (250 + 50 * r.random((k, n)), r.random((k, n))), (5, 6), (10000, 50))
def longwave_radiation(temperature, optical_depth):
    levels = temperature.shape[0]
    sigma = 5.67e-8
    emissivity = 1 - np.exp(-1.66 * optical_depth)
    source = sigma * temperature**4
    up = np.zeros((levels + 1, temperature.shape[1]))
    down = np.zeros_like(up)
    up[0] = source[0]
    for k in range(levels):
        up[k + 1] = up[k] * (1 - emissivity[k]) + emissivity[k] * source[k]
    for k in range(levels - 1, -1, -1):
        down[k] = down[k + 1] * (1 - emissivity[k]) + emissivity[k] * source[k]
    net = up - down
    return (net[1:] - net[:-1]) * 1e-3


@program(lambda r, n, k, t: (280 + r.random((k, n)), t), (5, 6, 2), (10000, 40, 10))
def dry_convective_adjustment(theta, passes):
    for _ in range(passes):
        for k in range(theta.shape[0] - 1):
            unstable = theta[k] > theta[k + 1]
            mean = 0.5 * (theta[k] + theta[k + 1])
            theta[k] = np.where(unstable, mean, theta[k])
            theta[k + 1] = np.where(unstable, mean, theta[k + 1])
    return theta


@program(lambda r, n, k, t: (r.random((k, n)), r.random(n), t), (6, 4, 3), (10000, 8, 100))
def soil_temperature(soil, forcing, steps):
    dt, c = 0.05, 1.3
    for t in range(steps):
        flux = np.zeros((soil.shape[0] + 1, soil.shape[1]))
        flux[0] = forcing * np.sin(0.1 * t) - 0.2 * soil[0]
        flux[1:-1] = c * (soil[:-1] - soil[1:])
        soil += dt * (flux[:-1] - flux[1:])
    return soil


@program(lambda r, n, t: (r.random(n), r.random(n), t), (5, 4), (20000, 100))
def bucket_hydrology(store, rain, steps):
    runoff = np.zeros((steps, store.size))
    for t in range(steps):
        store += rain * (0.5 + 0.5 * np.cos(0.3 * t))
        over = np.maximum(store - 1.5, 0.0)
        store -= over
        store *= 0.95
        runoff[t] = over
    return runoff


@program(lambda r, n, m: (r.random((m, n)) * 10, np.sort(r.random(n)) * 100, r.random((m, n))), (6, 3), (200, 2000))
def mixed_layer_depth(temperature, depth, salinity):
    surface = temperature[:, :1]
    colder = np.abs(temperature - surface) > 2.0
    first = np.argmax(colder, axis=1)
    mld = np.where(colder.any(axis=1), depth[first], depth[-1])
    heat = (temperature * (depth <= mld[:, None])).sum(axis=1)
    fresh = np.where(depth <= mld[:, None], salinity, 0.0).max(axis=1)
    return mld, heat, fresh
