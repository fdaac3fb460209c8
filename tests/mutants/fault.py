"""A fault in the compiler itself, and the data that programs which show it work on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from eqsat import compilers
from eqsat_backends.numba_cpu.compiling import jit
from eqsat_backends.numba_cpu.tiles import micro_kernels as tiles

RNG = np.random.default_rng(13)
X = RNG.standard_normal((9, 21)).astype(np.float32)
W = RNG.standard_normal((21, 37)).astype(np.float32)
V = RNG.standard_normal((37, 9)).astype(np.float32)
B = RNG.standard_normal(37).astype(np.float32)
S = RNG.standard_normal((12, 12)).astype(np.float32)
T = RNG.standard_normal((12, 12)).astype(np.float32)
C = RNG.standard_normal((3, 4, 5)).astype(np.float32)
IDS = np.array([3, 0, 8, 1, -1])
LARGE = (RNG.standard_normal((40, 50)) * 3).astype(np.float32)
D = RNG.standard_normal((12, 12))
P = (RNG.standard_normal((40, 40)) * 0.3).astype(np.float32)
Q = (RNG.standard_normal((40, 40)) * 0.3).astype(np.float32)
LONG = tuple(RNG.standard_normal((2, 300, 8)).astype(np.float32) for _ in range(3))
UNSEEN = tuple(np.random.default_rng(14).standard_normal((2, 300, 128)).astype(np.float32) for _ in range(3))
UNSEEN[1][0, 299] = np.nan
UNFUSED = (("disable", ("fuse.read_store",)),)

Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """``apply`` patches the compiler; ``program`` then computes something else on ``arguments``.

    ``traced``: the fault is in tracing or in the reference of an operator, so that the trace agrees with the compiled
    program and only the plain function tells.
    """

    name: str
    apply: Apply
    program: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    options: tuple[tuple[str, Any], ...] = ()
    traced: bool = False

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While this holds, the fault is there, and nothing made with it is mistaken for sound code later."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jit, "package_fingerprint", lambda: f"with the fault {self.name!r}")
            patch.setenv(compilers.ENVIRONMENT_VARIABLE, "1")  # other processes compile without the fault
            _forget_tiles()
            self.apply(patch)
            try:
                yield
            finally:
                _forget_tiles()


def _forget_tiles() -> None:
    for made in vars(tiles).values():
        if hasattr(made, "cache_clear"):
            made.cache_clear()
