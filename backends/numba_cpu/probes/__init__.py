"""Micro-benchmarks behind the machine model."""

from eqsat_backends.numba_cpu.probes.timers import measure

__all__ = ["measure"]
