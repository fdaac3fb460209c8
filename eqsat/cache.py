"""What is kept between processes: machine code in content-named files, plans as JSON in one SQLite file.

A cache may be lost, damaged, full, read-only, or shared by any number of processes and forks at any moment.
None of that may change a result or stop a program: every operation here degrades to "not found" or "not
kept", with one :class:`CacheWarning` per process at most.

Layout under the cache directory (environment variable ``EQSAT_CACHE_DIR``, else the user's cache directory)::

    v1/                       private to the user (0700); another owner, or write access for others, is refused
      kernels/ab/abcd….o      machine code behind a checksum
      kernels/ab/abcd….py     the printed module it was made from
      plans.sqlite            table entries(kind, key, payload, digest, modified)
      machine-….json          the machine model
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

ENVIRONMENT_VARIABLE = "EQSAT_CACHE_DIR"
FORMAT = "v1"
BUSY_TIMEOUT_S = 5.0
_DIGEST_BYTES = 32


class CacheWarning(UserWarning):
    """The cache cannot be used as it should; results are right all the same, only slower to get."""


_warned = threading.Event()


def _warn_once(problem: str) -> None:
    if _warned.is_set():
        return
    _warned.set()
    warnings.warn(
        f"eqsat's cache is not usable: {problem}. Working without it; set {ENVIRONMENT_VARIABLE} to a directory "
        f"that you own and can write to.",
        CacheWarning,
        stacklevel=3,
    )


def cache_root() -> Path:
    """The cache directory in force, whether or not it exists."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute() / FORMAT
    import platformdirs

    return Path(platformdirs.user_cache_dir("eqsat", appauthor=False)) / FORMAT


@functools.lru_cache(maxsize=64)
def _usable(root: Path) -> bool:
    """Create ``root`` private to the user. False, with a warning, when it is not to be trusted or not there."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        found = root.stat()
    except OSError as error:
        _warn_once(f"{root} cannot be created ({error.strerror or error})")
        return False
    if not stat.S_ISDIR(found.st_mode):
        _warn_once(f"{root} is not a directory")
        return False
    # Machine code is loaded from here: nobody else may be able to put it there.
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        _warn_once(f"{root} belongs to, or is writable by, another user")
        return False
    return True


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def write_atomically(path: Path, data: bytes) -> bool:
    """Put ``data`` at ``path`` in one step, so that a reader sees all of it or none. False (one warning) on failure."""
    temporary: str | None = None
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        _warn_once(f"{path} cannot be written ({error.strerror or error})")
        return False
    return True


@dataclass(frozen=True)
class KernelStore:
    """Machine code by content hash. ``root`` None: nothing is ever found or kept."""

    root: Path | None

    def _path(self, root: Path, key: str, suffix: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a kernel's key is letters and digits, got {key!r}")
        return root / "kernels" / key[:2] / (key + suffix)

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``; None when absent, truncated or not written by :meth:`put`."""
        if self.root is None:
            return None
        try:
            data = self._path(self.root, key, ".o").read_bytes()
        except OSError:
            return None
        content = data[_DIGEST_BYTES:]
        return content if data[:_DIGEST_BYTES] == _checksum(content) else None

    def put(self, key: str, data: bytes) -> bool:
        """Keep ``data`` under ``key``. Returns whether it was kept."""
        return self._write(self.root, key, ".o", _checksum(data) + data)

    def put_source(self, key: str, source: str) -> Path | None:
        """Keep a printed module; its path, or None when it could not be kept."""
        if self.root is None:
            return None
        path = self._path(self.root, key, ".py")
        text = source.encode()
        with contextlib.suppress(OSError):
            if path.read_bytes() == text:
                return path
        return path if self._write(self.root, key, ".py", text) else None

    def source_path(self, key: str) -> Path | None:
        """Where the printed module of ``key`` is, if it is there."""
        if self.root is None:
            return None
        path = self._path(self.root, key, ".py")
        return path if path.is_file() else None

    def _write(self, root: Path | None, key: str, suffix: str, data: bytes) -> bool:
        if root is None:
            return False
        path = self._path(root, key, suffix)
        try:
            path.parent.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            _warn_once(f"{path.parent.parent} cannot be created ({error.strerror or error})")
            return False
        return write_atomically(path, data)


@dataclass(frozen=True)
class PlanStore:
    """JSON payloads by (kind, key) in one SQLite file. ``root`` None: nothing is ever found or kept.

    Each operation opens its own connection (about 0.1 ms): nothing is shared between threads or carried
    over a fork.
    """

    root: Path | None

    def get(self, kind: str, key: str) -> Any | None:
        """The payload stored under (kind, key); None when absent or damaged."""
        row = self._run("SELECT payload, digest FROM entries WHERE kind = ? AND key = ?", (kind, key))
        if not row or not all(isinstance(part, kept) for part, kept in zip(row[0], (str, bytes), strict=True)):
            return None
        payload, digest = row[0]
        if _checksum(payload.encode()) != digest:
            return None
        try:
            return json.loads(payload)
        except ValueError:
            return None

    def put(self, kind: str, key: str, payload: Any) -> bool:
        """Keep a JSON-able payload (not None), replacing what was there. Returns whether it was kept."""
        text = json.dumps(payload, separators=(",", ":"))
        values = (kind, key, text, _checksum(text.encode()), time.time())
        return self._run("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", values) is not None

    def delete(self, kind: str, key: str) -> None:
        """Forget one entry, e.g. one that turned out not to fit."""
        self._run("DELETE FROM entries WHERE kind = ? AND key = ?", (kind, key))

    def rows(self) -> list[tuple[str, str, int, float]]:
        """(kind, key, payload bytes, time of writing) of every entry, in order."""
        found = self._run("SELECT kind, key, length(payload), modified FROM entries ORDER BY kind, key", ())
        return [(str(kind), str(key), int(size), float(when)) for kind, key, size, when in found or ()]

    @property
    def path(self) -> Path | None:
        return None if self.root is None else self.root / "plans.sqlite"

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
        """Run one statement; None on failure. A file that is no database is removed and started again."""
        if self.path is None:
            return None
        import sqlite3

        reading = statement.startswith("SELECT")
        for last_try in (False, True):
            try:
                if reading and not self.path.exists():
                    return []
                with self._connect(self.path, reading) as connection:
                    return connection.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                if reading and "no such table" in str(error):
                    return []
                _warn_once(f"{self.path}: {error}")
                return None
            except sqlite3.DatabaseError as error:
                if last_try or not _remove_database(self.path):
                    _warn_once(f"{self.path}: {error}")
                    return None
            except OSError as error:
                _warn_once(f"{self.path} cannot be used ({error.strerror or error})")
                return None
        return None

    @contextlib.contextmanager
    def _connect(self, path: Path, reading: bool) -> Iterator[sqlite3.Connection]:
        import sqlite3

        if reading:
            # SQLite must not create journals beside a database in a read-only directory
            connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", timeout=BUSY_TIMEOUT_S, uri=True)
        else:
            connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)
        try:
            with connection:
                if not reading:
                    connection.execute(
                        "CREATE TABLE IF NOT EXISTS entries (kind TEXT, key TEXT, payload TEXT, digest BLOB,"
                        " modified REAL, PRIMARY KEY (kind, key)) WITHOUT ROWID"
                    )
                yield connection
        finally:
            connection.close()


def _remove_database(path: Path) -> bool:
    try:
        for name in (path, path.with_name(path.name + "-journal")):
            name.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _root() -> Path | None:
    root = cache_root()
    return root if _usable(root) else None


_bypassed: ContextVar[bool] = ContextVar("eqsat_cache_bypassed", default=False)


@contextlib.contextmanager
def bypassed() -> Iterator[None]:
    """Within, on this thread, no plan and no kernel is found or kept."""
    token = _bypassed.set(True)
    try:
        yield
    finally:
        _bypassed.reset(token)


def kernel_store() -> KernelStore:
    """The kernel store of the cache directory in force."""
    return KernelStore(None if _bypassed.get() else _root())


def plan_store() -> PlanStore:
    """The plan store of the cache directory in force."""
    return PlanStore(None if _bypassed.get() else _root())


def document_path(name: str) -> Path | None:
    """Path of a small file kept in the cache directory, such as the machine model; None without a cache."""
    root = _root()
    return None if root is None else root / name


@dataclass(frozen=True)
class CacheEntry:
    """One thing kept: ``kind`` is "code", "source", "document" or a plan store's kind; ``modified`` in Unix seconds."""

    kind: str
    key: str
    nbytes: int
    modified: float


_KINDS = {".o": "code", ".py": "source", ".json": "document"}


def entries() -> list[CacheEntry]:
    """Everything kept, in a fixed order."""
    root = cache_root()
    found: list[CacheEntry] = []
    for path in _files(root):
        kind = _KINDS.get(path.suffix)
        if kind is None:
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append(CacheEntry(kind, path.stem, status.st_size, status.st_mtime))
    if root.is_dir():
        found.extend(CacheEntry(*row) for row in plan_store().rows())
    return sorted(found, key=lambda entry: (entry.kind, entry.key))


def size() -> int:
    """Bytes on disk."""
    total = 0
    for path in _files(cache_root()):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def clear() -> int:
    """Remove everything kept; the bytes freed. Running programs are not disturbed.

    Raises:
        OSError: a file could not be removed.
    """
    freed = 0
    root = cache_root()
    for path in _files(root):
        nbytes = path.stat().st_size
        path.unlink(missing_ok=True)
        freed += nbytes
    return freed


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()) if root.is_dir() else []
