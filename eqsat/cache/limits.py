"""How much is kept, and what is thrown out for it: what was least recently used."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from eqsat.cache.folders import TEMPORARY, CacheError, Folder

ENVIRONMENT_VARIABLE = "EQSAT_CACHE_LIMIT"
DEFAULT = 2 << 30
_FILE = "limit"
_KINDS = {"plan": "plan", "o": "kernel", "py": "kernel", "machine": "machine model", "record": "tuning record"}
_ENTRY = re.compile(rf"([0-9a-f]{{16,64}})\.({'|'.join(_KINDS)})")
_STALE_S = 3600.0
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_written: dict[str, int] = {}
"""Bytes that this process wrote to a directory since it last looked how much there is."""


def parse(text: str) -> int:
    """Bytes in a size such as ``500M``, ``1.5 GB`` or ``1048576`` (a K is 1,024).

    Raises:
        ValueError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a size; write for example 500M, 2G or 1048576")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def of(folder: Folder | None) -> int:
    """The limit in force, in bytes: of the environment variable, of the directory, or the default.

    Raises:
        CacheError: the variable or the file that should name it does not.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    try:
        if chosen:
            return parse(chosen)
        stored = None if folder is None else folder.read(_FILE, 100)
        return DEFAULT if stored is None else parse(stored.decode(errors="replace"))
    except ValueError as error:
        place = f"{folder.path}/{_FILE}" if folder and not chosen else ENVIRONMENT_VARIABLE
        raise CacheError(f"{place}: {error}") from error


def store(folder: Folder, nbytes: int) -> None:
    """Keep a limit in the directory, for every process that uses it, and throw out what is above it."""
    folder.write(_FILE, f"{nbytes}\n".encode())
    trim(folder, of(folder))


@dataclass(frozen=True)
class Group:
    """The files of one entry: a code object goes with its printed module. ``used``: time of the last use."""

    kind: str
    key: str
    names: tuple[str, ...]
    nbytes: int
    used: float


def groups(folder: Folder) -> list[Group]:
    """Everything that eqsat wrote to the directory, by kind and key. Names that it does not use, links, directories
    and files of other users are none of its own."""
    found: dict[tuple[str, str], dict[str, os.stat_result]] = {}
    for name in folder.names():
        parts = _ENTRY.fullmatch(name)
        status = folder.status(name) if parts else None
        if parts and status:
            found.setdefault((_KINDS[parts[2]], parts[1]), {})[name] = status
    return [
        Group(kind, key, tuple(files), sum(s.st_size for s in files.values()), max(s.st_mtime for s in files.values()))
        for (kind, key), files in found.items()
    ]


def make_room(folder: Folder, nbytes: int, most: int) -> None:
    """Note that ``nbytes`` were written, and throw out what is too much.

    Looking takes about 3 µs a file, so a process looks at its first write and after every 64th of the limit.
    """
    written = _written.get(folder.path)
    if written is not None and written + nbytes < most // 64:
        _written[folder.path] = written + nbytes
        return
    _written[folder.path] = 0
    trim(folder, most)


def sweep(folder: Folder) -> None:
    """Remove what processes that were killed had begun to write."""
    for name in folder.names():
        status = folder.status(name) if TEMPORARY.fullmatch(name) else None
        if status and time.time() - status.st_mtime > _STALE_S:
            folder.remove(name)


def trim(folder: Folder, most: int) -> None:
    """Throw out what was least recently used until an eighth below ``most``, if there is more than ``most``.

    Several processes may do so at once: they choose the same files. Whatever a running process loaded stays with it.
    """
    sweep(folder)
    kept = groups(folder)
    total = sum(group.nbytes for group in kept)
    if total <= most:
        return
    for group in sorted(kept, key=lambda group: (group.used, group.names)):
        if total <= most - most // 8:
            return
        if group.kind == "machine model":  # small, and a second or two to measure
            continue
        for name in group.names:
            folder.remove(name)
        total -= group.nbytes
