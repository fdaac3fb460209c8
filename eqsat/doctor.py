"""What may be wrong with an installation, and what a report of a problem should say: versions, machine, caches.

Every finding that is amiss says what to do. Nothing is measured and nothing written, but for a file that tries whether
the cache directory takes one.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, requires, version

from eqsat import cache
from eqsat.cost import machine as machine_model
from eqsat.cost.sanity import failed_checks

__all__ = ["Finding", "examine"]


@dataclass(frozen=True)
class Finding:
    """``what`` was looked at and ``found``; ``amiss``: what is wrong with it and what to do, empty if nothing."""

    what: str
    found: str
    amiss: str = ""


def examine() -> list[Finding]:
    """All findings, in a fixed order."""
    return [*_versions(), *_plugins(), *_machine(), *_threads(), *_cache()]


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}")
    try:
        needed = [text for text in requires("eqsat") or [] if "extra ==" not in text]
        yield Finding("eqsat", version("eqsat"))
    except PackageNotFoundError:
        yield Finding("eqsat", "not installed", "imported from a folder: no plugin is found. Run pip install")
        return
    for text in sorted(needed):
        name = next((text[:n] for n, c in enumerate(text) if not (c.isalnum() or c in "-_.")), text)
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", f"pip install '{text}'")


def _plugins() -> Iterator[Finding]:
    for group, what in (("eqsat.backends", "backends"), ("eqsat.rules", "rule libraries")):
        names, failed = [], []
        for point in sorted(entry_points(group=group), key=lambda point: point.name):
            names.append(point.name)
            try:
                point.load()
            except Exception as error:  # whatever a plugin's import raises is the finding
                failed.append(f"{point.name} ({point.value}) fails: {error!r}")
        yield Finding(what, ", ".join(names), "; ".join(failed) if names else "none is installed: reinstall eqsat")


def _machine() -> Iterator[Finding]:
    yield Finding("processor", f"{machine_model.cpu_name()}, {machine_model.usable_cores()} of {os.cpu_count()} cores")
    chosen = os.environ.get(machine_model.ENVIRONMENT_VARIABLE)
    try:
        width = f"{machine_model.vector_limit()} bits at most"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = machine_model.load() if chosen else machine_model.stored()
    except machine_model.MachineError as error:
        yield Finding("machine model", chosen or "", str(error))
        return
    yield Finding("vectors", width)
    if model is None:
        yield Finding("machine model", "not measured yet: the first compilation does, or `eqsat machine`")
        return
    amiss = [str(warning.message) for warning in told] + [str(check) for check in failed_checks(model)]
    peak = ", ".join(f"{dtype} {figure:.0f}" for dtype, figure in model.fma_gflops)
    found = f"{chosen or 'stored'}: {model.cpu}, FMA peak {peak} GFLOP/s, memory {model.levels[-1].copy_gbs:.1f} GB/s"
    yield Finding("machine model", found, "; ".join(amiss))


def _threads() -> Iterator[Finding]:
    cores = machine_model.usable_cores()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        given = os.environ.get(name)
        if given:
            more = given.isdigit() and int(given) > cores
            yield Finding(name, given, f"more than the {cores} cores of this process: they wait for each other" * more)
    loaded = [name for name in ("torch", "jax", "onnxruntime") if name in sys.modules]
    if loaded:
        yield Finding("other thread pools", ", ".join(loaded))


def _cache() -> Iterator[Finding]:
    root = cache.cache_root()
    try:
        used = f"{len(cache.entries())} entries, {cache.size() / 2**20:.0f} of at most {cache.limit() / 2**20:.0f} MB"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".doctor-"):
            pass
    except (OSError, cache.CacheError) as error:
        yield Finding("cache", str(root), f"{error}: name another directory with {cache.ENVIRONMENT_VARIABLE}")
        return
    yield Finding("cache", f"{root}: {used}")
