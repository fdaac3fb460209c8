"""Particles, fields, grids and quantum states."""

import numpy as np

from tests.programs.registry import program, single


@program(lambda r, n, t: (r.random((n, 3)), r.random((n, 3)), r.random((n, 1)), t), (5, 2), (300, 10), 1e-7)
def n_body(pos, vel, mass, steps):
    dt, soft, g = 0.01, 0.1, 1.0

    def acceleration(pos):
        x, y, z = pos[:, 0:1], pos[:, 1:2], pos[:, 2:3]
        dx, dy, dz = x.T - x, y.T - y, z.T - z
        inv = (dx**2 + dy**2 + dz**2 + soft**2) ** (-1.5)
        return np.hstack((g * (dx * inv) @ mass, g * (dy * inv) @ mass, g * (dz * inv) @ mass))

    acc = acceleration(pos)
    energy = np.zeros(steps)
    for i in range(steps):
        vel += acc * dt / 2
        pos += vel * dt
        acc = acceleration(pos)
        vel += acc * dt / 2
        energy[i] = 0.5 * np.sum(mass * vel**2)
    return energy


@program(
    lambda r, n, t: (np.stack(np.meshgrid(*[np.arange(n)] * 3), -1).reshape(-1, 3) + 0.1 * r.random((n**3, 3)), t),
    (2, 2),
    (6, 10),
    1e-6,
)
def lennard_jones(x, steps):
    v = np.zeros_like(x)
    box = float(round(len(x) ** (1 / 3)))
    for _ in range(steps):
        d = x[:, None, :] - x[None, :, :]
        d -= box * np.round(d / box)
        r2 = (d**2).sum(-1)
        np.fill_diagonal(r2, 1e9)
        inv6 = 1 / r2**3
        force = 24 * ((2 * inv6**2 - inv6) / r2)[:, :, None] * d
        v += 1e-4 * force.sum(axis=1)
        x += 1e-4 * v
    return x, v


@program(lambda r, n, t: (r.random((n, 2)), r.random((n, 2)) - 0.5, t), (8, 3), (50000, 50))
def bouncing_particles(x, v, steps):
    for _ in range(steps):
        x += 0.1 * v
        low, high = x < 0, x > 1
        x[low] *= -1
        x[high] = 2 - x[high]
        v[low | high] *= -1


@program(lambda r, n, t: (np.exp(-((np.linspace(-3, 3, n)) ** 2)), np.zeros(n), t), (12, 3), (20000, 200))
def schroedinger_real_and_imaginary(re, im, steps):
    k = 0.1
    for _ in range(steps):
        re[1:-1] -= k * (im[2:] - 2 * im[1:-1] + im[:-2])
        im[1:-1] += k * (re[2:] - 2 * re[1:-1] + re[:-2])
    return re**2 + im**2


@program(lambda r, n, t: (np.exp(1j * np.linspace(0, 6, n)), r.random(n), t), (12, 3), (20000, 50))
def split_step_phase(psi, potential, steps):
    kick = np.exp(-0.5j * 0.01 * potential)
    for _ in range(steps):
        psi *= kick
        psi[1:-1] += 0.005j * (psi[2:] - 2 * psi[1:-1] + psi[:-2])
        psi *= kick
    return np.abs(psi) ** 2


@program(lambda r, n, s: (np.linspace(-2, 0.5, n), np.linspace(-1.2, 1.2, n), s), (8, 6), (300, 60))
def mandelbrot_with_masks(x, y, steps):
    c = x + 1j * y[:, None]
    z = np.zeros_like(c)
    count = np.zeros(c.shape, dtype=np.int64)
    for n in range(steps):
        inside = np.abs(z) < 2.0
        count[inside] = n
        z[inside] = z[inside] ** 2 + c[inside]
    return count


@program(lambda r, n, s: (np.linspace(-1.5, 1.5, n), s), (8, 5), (400, 40))
def julia_in_reals(axis, steps):
    zr = np.zeros((axis.size, axis.size)) + axis
    zi = np.zeros((axis.size, axis.size)) + axis[:, None]
    count = np.zeros(zr.shape, dtype=np.int32)
    for _ in range(steps):
        inside = zr * zr + zi * zi < 4
        count += inside
        new = zr * zr - zi * zi - 0.7
        zi = np.where(inside, 2 * zr * zi + 0.27, zi)
        zr = np.where(inside, new, zr)
    return count


@program(lambda r, n, t: (r.integers(0, 2, (n, n)) * 2 - 1, r.random((t, n, n))), (6, 2), (256, 20))
def ising_checkerboard(spins, draws):
    n = spins.shape[0]
    board = np.add.outer(np.arange(n), np.arange(n)) % 2
    energy = np.zeros(len(draws))
    for t in range(len(draws)):
        for colour in (0, 1):
            near = np.roll(spins, 1, 0) + np.roll(spins, -1, 0) + np.roll(spins, 1, 1) + np.roll(spins, -1, 1)
            accept = (draws[t] < np.exp(-2 * 0.44 * spins * near)) & (board == colour)
            spins[accept] *= -1
        energy[t] = -(spins * np.roll(spins, 1, 0) + spins * np.roll(spins, 1, 1)).sum()
    return energy


@program(lambda r, n, t: (single(r, 9, n, n) ** 2 + 1, t), (6, 2), (128, 50), 1e-4)
def lattice_boltzmann(f, steps):
    cx = [0, 1, 0, -1, 0, 1, -1, -1, 1]
    cy = [0, 0, 1, 0, -1, 1, 1, -1, -1]
    weight = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    for _ in range(steps):
        for i in range(9):
            f[i] = np.roll(np.roll(f[i], cx[i], axis=1), cy[i], axis=0)
        rho = f.sum(axis=0)
        ux = sum(f[i] * cx[i] for i in range(9)) / rho
        uy = sum(f[i] * cy[i] for i in range(9)) / rho
        for i in range(9):
            cu = 3 * (cx[i] * ux + cy[i] * uy)
            f[i] += 0.6 * (rho * weight[i] * (1 + cu + 0.5 * cu**2 - 1.5 * (ux**2 + uy**2)) - f[i])
    return rho, ux, uy


@program(lambda r, n: (r.random((n, 3)), r.random((n, 3)), r.random((n, 3))), (10,), (200000,))
def triangle_areas_and_normals(a, b, c):
    u, v = b - a, c - a
    normal = np.empty_like(a)
    normal[:, 0] = u[:, 1] * v[:, 2] - u[:, 2] * v[:, 1]
    normal[:, 1] = u[:, 2] * v[:, 0] - u[:, 0] * v[:, 2]
    normal[:, 2] = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    length = np.sqrt((normal**2).sum(axis=1))
    normal /= length[:, None]
    return 0.5 * length, normal


@program(lambda r, n, t: (np.array([1.0, 1.0, 1.0]) + r.random((n, 3)), t), (6, 3), (20000, 100))
def lorenz_runge_kutta(state, steps):
    def slope(s):
        d = np.empty_like(s)
        d[:, 0] = 10 * (s[:, 1] - s[:, 0])
        d[:, 1] = s[:, 0] * (28 - s[:, 2]) - s[:, 1]
        d[:, 2] = s[:, 0] * s[:, 1] - 8 / 3 * s[:, 2]
        return d

    h = 0.005
    for _ in range(steps):
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


@program(lambda r, n, m: (r.random((n, 3)), r.random((m, 3)), r.random(m)), (5, 6), (300, 400), 1e-8)
def coulomb_potential(points, charges, q):
    out = np.zeros(points.shape[0])
    for i in range(charges.shape[0]):
        d = points - charges[i]
        out += q[i] / np.sqrt((d * d).sum(axis=1) + 1e-3)
    return out


@program(lambda r, n, t: (r.random(n), np.zeros(n), np.zeros(n), t), (10, 4), (1000, 500))
def hodgkin_like_neurons(current, v, w, steps):
    spikes = np.zeros(v.shape, dtype=np.int64)
    for _ in range(steps):
        v += 0.1 * (v - v**3 / 3 - w + current)
        w += 0.01 * (v + 0.7 - 0.8 * w)
        fired = v > 1.5
        v[fired] = -1.0
        spikes[fired] += 1
    return spikes


@program(lambda r, n, t: (r.random((n, n)), r.random((n, n)), r.random((n, n)), t), (6, 3), (300, 50))
def maxwell_with_absorber(ez, hx, hy, steps):
    n = ez.shape[0]
    loss = np.ones((n, n))
    for k in range(3):
        value = 0.7 + 0.1 * k
        loss[k, :] = loss[-1 - k, :] = loss[:, k] = loss[:, -1 - k] = value
    for t in range(steps):
        hx[:, :-1] -= 0.5 * (ez[:, 1:] - ez[:, :-1])
        hy[:-1, :] += 0.5 * (ez[1:, :] - ez[:-1, :])
        ez[1:, 1:] += 0.5 * (hy[1:, 1:] - hy[:-1, 1:] - hx[1:, 1:] + hx[1:, :-1])
        ez[n // 2, n // 2] += np.sin(0.2 * t)
        ez *= loss
    return ez
