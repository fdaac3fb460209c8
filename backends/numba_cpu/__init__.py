"""The Numba CPU backend: explicit-SIMD kernels, one compiled driver. Numba itself is imported when compiling."""

from typing import Any

__all__ = ["NumbaCpuBackend"]


def __getattr__(name: str) -> Any:
    """On demand: processes that only compile kernels need none of what plans are made of."""
    if name != "NumbaCpuBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eqsat_backends.numba_cpu.backend import NumbaCpuBackend

    return NumbaCpuBackend
