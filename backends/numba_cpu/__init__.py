"""The Numba CPU backend: explicit-SIMD kernels, one compiled driver. Numba itself is imported when compiling."""

from eqsat_backends.numba_cpu.backend import NumbaCpuBackend

__all__ = ["NumbaCpuBackend"]
