"""What is kept between processes: plans, machine code and its printed source, the machine model, tuning records;
a file each.

A cache may be lost, damaged, full, read-only, hostile, or shared by any number of processes and forks at any moment.
None of that may change a result or stop a program: every operation of a :class:`Store` degrades to "not found" or
"not kept", with one :class:`CacheWarning` per process at most.

Layout under the cache directory (environment variable ``EQSAT_CACHE_DIR``, else the user's cache directory)::

    v2/                 private to the user (0700), nobody else able to swap it (see ``folders``)
      CACHEDIR.TAG      says that eqsat made the directory: without it nothing is written or removed
      limit             bytes to keep at most, if the user set a limit
      <key>.plan        a plan (JSON)                       ┐ behind a line with a checksum of name and content
      <key>.o           a code object                       │ and a line of JSON that says what it is of
      <key>.machine     a machine model (JSON)              │
      <key>.record      what tuning measured (JSON)         ┘
      <key>.py          the printed module of <key>.o, as text

Keys are hashes of all that the content depends on. A file's time of modification is that of its last use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eqsat.cache import limits
from eqsat.cache.folders import MOST_BYTES, TEMPORARY, CacheError, Folder, opened
from eqsat.forks import load
from eqsat.scoped import Scoped

ENVIRONMENT_VARIABLE = "EQSAT_CACHE_DIR"
FORMAT = "v2"

Kind = Literal["plan", "o", "machine", "record", "py"]

_MARKER = "CACHEDIR.TAG"  # https://bford.info/cachedir: backups leave such directories out
_MARKER_TEXT = b"Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache that eqsat made and clears.\n"
_KEY = re.compile(r"[0-9a-f]{16,64}")
MAGIC = b"eqsat cache 2 "
_DIGEST_BYTES = 32
HEAD_BYTES = len(MAGIC) + 2 * _DIGEST_BYTES + 1
"""The first line of an entry; the second is what there is to say about it, in JSON."""


class CacheWarning(UserWarning):
    """The cache cannot be used as it should; results are right all the same, only slower to get."""


_warned = threading.Event()


def warn_once(problem: str) -> None:
    if _warned.is_set():
        return
    _warned.set()
    warnings.warn(
        f"eqsat's cache: {problem}. Working without; results do not depend on it. For a cache elsewhere set "
        f"{ENVIRONMENT_VARIABLE} to a directory that you own and only you can write to.",
        CacheWarning,
        stacklevel=3,
    )


def _reason(error: OSError, path: object) -> str:
    return str(error) if isinstance(error, CacheError) else f"{path} cannot be used ({error.strerror or error})"


def cache_root() -> Path:
    """The cache directory in force, whether or not it exists."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        with contextlib.suppress(RuntimeError):  # no home directory: the store will say so
            return Path(chosen).expanduser().absolute() / FORMAT
        return Path(chosen) / FORMAT
    if "platformdirs" not in sys.modules:
        load("platformdirs")
    import platformdirs

    return Path(platformdirs.user_cache_dir("eqsat", appauthor=False)) / FORMAT


@contextlib.contextmanager
def folder_of(root: Path, *, create: bool = False) -> Iterator[Folder]:
    """The cache directory, open, trusted, and made by eqsat.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is not to be trusted or not to be used.
    """
    with opened(root, create=create) as folder:
        marker = folder.read(_MARKER)
        if marker is None:
            # the marker is what eqsat writes first: beside other files it must be there by now
            others = [name for name in folder.names() if not TEMPORARY.fullmatch(name)]
            if others and _MARKER not in others:
                raise CacheError(f"{root} has files that eqsat did not make, such as {others[0]}")
            if not others and not create:
                raise FileNotFoundError(str(root))
            if not others:
                folder.write(_MARKER, _MARKER_TEXT)
        elif marker != _MARKER_TEXT:
            raise CacheError(f"{root} is another program's cache")
        yield folder


@dataclass(frozen=True)
class Store:
    """Entries by kind and key. ``root`` None: nothing is ever found or kept."""

    root: Path | None

    def read(self, kind: Kind, key: str) -> bytes | None:
        """The bytes kept under (kind, key); None when absent, damaged, or nothing that :meth:`write` wrote."""
        name = _name(kind, key)
        if self.root is None:
            return None
        try:
            with folder_of(self.root) as folder:
                data = folder.read(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            warn_once(_reason(error, self.root))
            return None
        if data is None or kind == "py":
            return data
        found = _unframed(name, data)
        if found is None:
            warn_once(f"{self.root / name} is damaged")
        return found

    def write(self, kind: Kind, key: str, data: bytes, **about: str) -> bool:
        """Keep ``data`` under (kind, key), in place of what was there, in one step. Returns whether it was kept.

        ``about``: what ``eqsat cache ls`` shows: ``name`` and ``arguments``, cut to 150 characters.
        """
        name = _name(kind, key)
        if self.root is None:
            return False
        if kind != "py":
            data = _framed(name, {what: _shortened(text) for what, text in about.items()}, data)
        try:
            with folder_of(self.root, create=True) as folder:
                most = limits.of(folder)
                if len(data) > min(most, MOST_BYTES):
                    return False
                folder.write(name, data)
                limits.make_room(folder, len(data), most)
        except OSError as error:
            warn_once(_reason(error, self.root))
            return False
        return True


class KernelStore(Store):
    """Machine code by content hash, with the printed modules that it was made from."""

    def get(self, key: str) -> bytes | None:
        """The code object kept under ``key``; None when absent or damaged."""
        return self.read("o", key)

    def put(self, key: str, data: bytes, name: str = "") -> bool:
        """Keep a code object; ``name`` says what it computes. Returns whether it was kept."""
        return self.write("o", key, data, name=name)

    def put_source(self, key: str, source: str) -> Path | None:
        """Keep a printed module; its path (for messages and debuggers), or None when it could not be kept."""
        text = source.encode()
        if self.root is None or not (self.read("py", key) == text or self.write("py", key, text)):
            return None
        return self.root / _name("py", key)

    def source(self, key: str) -> str | None:
        """The text kept as the printed module of ``key``. To be shown, never to be run: nothing vouches for it."""
        data = self.read("py", key)
        return None if data is None else data.decode(errors="replace")


class PlanStore(Store):
    """JSON payloads by kind and key."""

    def get(self, kind: Kind, key: str) -> Any | None:
        """The payload kept under (kind, key); None when absent or damaged."""
        data = self.read(kind, key)
        try:
            return None if data is None else json.loads(data)
        except (ValueError, RecursionError):  # nothing that put wrote
            warn_once(f"{self.root}/{_name(kind, key)} is damaged")
            return None

    def put(self, kind: Kind, key: str, payload: Any, **about: str) -> bool:
        """Keep a JSON-able payload (not None), in place of what was there, in one step. Returns whether it was kept."""
        return self.write(kind, key, json.dumps(payload, separators=(",", ":")).encode(), **about)


_bypassed: Scoped[bool] = Scoped(False)


@contextlib.contextmanager
def bypassed() -> Iterator[None]:
    """Within, on this thread, no plan and no kernel is found or kept."""
    before = _bypassed.set(True)
    try:
        yield
    finally:
        _bypassed.reset(before)


def kernel_store() -> KernelStore:
    """The kernel store of the cache directory in force."""
    return KernelStore(None if _bypassed.get() else cache_root())


def plan_store() -> PlanStore:
    """The plan store of the cache directory in force."""
    return PlanStore(None if _bypassed.get() else cache_root())


def machine_store() -> Store:
    """Where the machine model is kept."""
    return Store(cache_root())


def _name(kind: Kind, key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"a key is 16 to 64 hexadecimal digits, got {key!r}")
    return f"{key}.{kind}"


def _shortened(text: str, most: int = 150) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _digest(name: str, content: bytes) -> bytes:
    # with the name: no file passes for another entry
    return hashlib.blake2b(name.encode() + b"\0" + content, digest_size=_DIGEST_BYTES).hexdigest().encode()


def _framed(name: str, about: dict[str, str], data: bytes) -> bytes:
    content = json.dumps({**about, "made": int(time.time())}).encode() + b"\n" + data
    return MAGIC + _digest(name, content) + b"\n" + content


def _unframed(name: str, data: bytes) -> bytes | None:
    content = data[HEAD_BYTES:]
    if data[:HEAD_BYTES] != MAGIC + _digest(name, content) + b"\n":
        return None
    return content.partition(b"\n")[2]
