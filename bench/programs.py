"""Whole programs in ordinary NumPy, of ``tests/programs``: the same source for NumPy, Numba and JAX."""

from __future__ import annotations

import inspect

import numpy as np

from bench.workload import Inputs, Workload, leaves
from tests.programs import PROGRAMS, Program

CHOSEN = (
    "jacobi_2d", "heat_3d", "fdtd_2d", "gray_scott", "seidel_2d",
    "implicit_vertical_diffusion", "horizontal_diffusion", "shallow_water",
    "floyd_warshall", "viterbi", "minimal_seam_costs",
    "kalman_filter", "k_means", "page_rank",
    "black_scholes", "heston_paths", "explicit_option_grid", "bond_prices_and_durations",
    "gaussian_blur", "bilateral", "to_hsv", "median_3x3",
    "convolution", "convolution_by_columns", "lstm", "batch_norm",
    "two_products", "symmetric_rank_k", "pairwise_distances", "normal_equations_product",
    "n_body", "lattice_boltzmann", "mandelbrot_with_masks",
    "biquad_channels", "naive_fourier_transform", "cross_correlation",
    "lu_by_outer_products", "thomas", "conjugate_gradient",
    "covariance", "kernel_density", "bootstrap_means",
)  # fmt: skip
"""Three or more of every kind: by elements, by rows and by steps, with products and without."""


def workload(program: Program, size: tuple[int, ...]) -> Workload:
    """The program at a size. Operations are not counted: the limit is that of its arguments' and results' bytes."""
    names = list(inspect.signature(program.function).parameters)
    tried = program.arguments(program.small)
    _, after = program.run(program.function, tried)
    changes = tuple(
        name
        for name, before, left in zip(names, tried, after, strict=True)
        if isinstance(left, np.ndarray) and not np.array_equal(before, left)
    )

    def inputs(rng: np.random.Generator) -> Inputs:
        return dict(zip(names, program.make(rng, *size), strict=True))

    single = any(leaf.dtype == np.float32 for leaf in leaves(list(tried)))
    tolerance = max(10 * program.tolerance, 1e-4 if single else 0.0)
    return Workload(
        "numpy", program.name, "program", program.function, inputs, 0.0, tolerance=tolerance, changes=changes
    )


def workloads() -> list[Workload]:
    return [workload(PROGRAMS[name], PROGRAMS[name].full) for name in CHOSEN]
