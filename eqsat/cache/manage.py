"""What is in the cache, for its user: a list, the size, the limit, and how to empty it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from eqsat.cache import limits
from eqsat.cache.store import HEAD_BYTES, MAGIC, cache_root, folder_of


@dataclass(frozen=True)
class Entry:
    """One thing kept. Times are in Unix seconds.

    Attributes:
        kind: ``plan``, ``kernel``, ``machine model`` or ``tuning record``.
        key: hash of all that it depends on.
        name: the program's, or what the kernel computes.
        arguments: the program's arguments with their shapes and element types.
        nbytes: size of its files.
        made: when it was written; 0 where that is unknown.
        used: when it was last used, to a minute.
    """

    kind: str
    key: str
    name: str
    arguments: str
    nbytes: int
    made: float
    used: float


def entries() -> list[Entry]:
    """Everything kept, what was used last first.

    Raises:
        OSError: the cache directory is not to be trusted or not to be used.
    """
    found = []
    try:
        with folder_of(cache_root()) as folder:
            for group in limits.groups(folder):
                about: dict[str, object] = {}
                for name in group.names:
                    if not name.endswith(".py"):
                        about = _about(folder.read(name, HEAD_BYTES + 4096, whole=False) or b"")
                made = about.get("made")
                found.append(
                    Entry(
                        group.kind,
                        group.key,
                        str(about.get("name", "")),
                        str(about.get("arguments", "")),
                        group.nbytes,
                        float(made) if isinstance(made, int) and 0 <= made < 1 << 40 else 0.0,
                        group.used,
                    )
                )
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda entry: (-entry.used, entry.kind, entry.key))


def _about(head: bytes) -> dict[str, object]:
    """What the second line of an entry says; nothing where it is damaged."""
    if not head.startswith(MAGIC):
        return {}
    try:
        said = json.loads(head[HEAD_BYTES:].partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def size() -> int:
    """Bytes kept.

    Raises:
        OSError: as :func:`entries`.
    """
    try:
        with folder_of(cache_root()) as folder:
            return sum(group.nbytes for group in limits.groups(folder))
    except FileNotFoundError:
        return 0


def limit() -> int:
    """Bytes to keep at most.

    Raises:
        OSError: as :func:`entries`, or the limit that was set is not readable.
    """
    try:
        with folder_of(cache_root()) as folder:
            return limits.of(folder)
    except FileNotFoundError:
        return limits.of(None)


def set_limit(nbytes: int) -> None:
    """Keep at most ``nbytes`` from now on, in every process that uses this cache directory.

    Raises:
        OSError: as :func:`entries`, or it cannot be written.
    """
    with folder_of(cache_root(), create=True) as folder:
        limits.store(folder, nbytes)


def clear(kind: str | None = None) -> int:
    """Remove everything kept (of one kind), but for the limit; the bytes freed. Running programs are not disturbed.

    Only files that eqsat wrote are removed: regular files of this user with names of its own, in a directory that it
    made and marked. What else is there stays.

    Raises:
        OSError: as :func:`entries`, or a file could not be removed.
    """
    freed = 0
    try:
        with folder_of(cache_root()) as folder:
            limits.sweep(folder)
            for group in limits.groups(folder):
                if kind not in (None, group.kind):
                    continue
                for name in group.names:
                    folder.remove(name)
                freed += group.nbytes
    except FileNotFoundError:
        pass
    return freed
