"""What the installed rules are, without importing them: part of the key of a remembered plan."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

_PROCESS = secrets.token_hex(8)


@cache
def _installed() -> str:
    digest = hashlib.blake2b(digest_size=12)
    for point in sorted(entry_points(group="eqsat.rules"), key=lambda p: p.name):
        spec = find_spec(point.module)
        places = list(spec.submodule_search_locations or []) if spec is not None else []
        files = [f for place in places for f in Path(place).rglob("*.py")]
        if spec is not None and spec.origin and not files:
            files = [Path(spec.origin)]
        for file in sorted(files):
            stat = file.stat()
            digest.update(f"{point.name}:{file.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()


def _added() -> str:
    """The rules added in this process; one whose file cannot be seen is like no other process's."""
    registry = sys.modules.get("eqsat.rules.registry")
    parts = []
    for rule, number in getattr(registry, "_added", {}).values():
        file = Path(rule.file)
        mark = f"{file.stat().st_mtime_ns}" if file.is_file() else f"{_PROCESS}-{os.getpid()}-{number}"
        parts.append(f"{rule}:{rule.file}:{rule.line}:{mark}")
    return ";".join(parts)


def rules_fingerprint() -> str:
    """Changes when a file of an installed rule library does, or when a rule is added in this process."""
    return _installed() + hashlib.blake2b(_added().encode(), digest_size=12).hexdigest()
