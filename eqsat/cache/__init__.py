"""What is kept between processes (see ``store``), who may have written it (``folders``), and how much (``limits``)."""

from __future__ import annotations

from eqsat.cache.folders import CacheError
from eqsat.cache.limits import ENVIRONMENT_VARIABLE as LIMIT_VARIABLE
from eqsat.cache.manage import Entry, clear, entries, limit, set_limit, size
from eqsat.cache.store import (
    ENVIRONMENT_VARIABLE,
    FORMAT,
    CacheWarning,
    KernelStore,
    PlanStore,
    Store,
    bypassed,
    cache_root,
    kernel_store,
    machine_store,
    plan_store,
)

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "FORMAT",
    "LIMIT_VARIABLE",
    "CacheError",
    "CacheWarning",
    "Entry",
    "KernelStore",
    "PlanStore",
    "Store",
    "bypassed",
    "cache_root",
    "clear",
    "entries",
    "kernel_store",
    "limit",
    "machine_store",
    "plan_store",
    "set_limit",
    "size",
]
