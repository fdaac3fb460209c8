"""Directories that nobody else can change, held open, and files that only their owner can have written.

Trust is decided on open descriptors, anew at every use: the directory and everything above it is opened one name at
a time, without following links, and each is looked at once it is open; files are then opened relative to the
descriptor. Whatever is renamed or linked meanwhile, what was looked at is what is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import grp
    import pwd

MOST_BYTES = 256 << 20
"""A larger file is none of ours."""
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""Names of files that are being written, or were when their process ended."""
_MOST_LINKS = 40  # as many as Linux follows
_TOUCHED_S = 60.0
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_SEARCH = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)  # parents need not be readable
_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | _FILE | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # a FIFO must not block
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE


class CacheError(OSError):
    """The cache directory, or a file in it, is not to be trusted or not to be used."""


class Folder:
    """An open directory of the user's own. ``path`` is for messages only: files are found through ``fd``."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def names(self) -> list[str]:
        """What is in it, in order."""
        return sorted(os.listdir(self.fd))

    def status(self, name: str) -> os.stat_result | None:
        """Of a file that only this user can have written; None for whatever else goes by the name, or nothing."""
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None
        return found if _private(found) else None

    def read(self, name: str, most: int = MOST_BYTES, *, whole: bool = True) -> bytes | None:
        """A file's content, or its first ``most`` bytes if that is all that is wanted; None where there is no file.

        Raises:
            CacheError: it is a link or no file, others can write to it, or it is too large.
        """
        try:
            fd = os.open(name, _READ, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheError(f"{self.path}/{name} is no file that eqsat wrote ({error.strerror})") from error
        try:
            found = os.fstat(fd)
            if not _private(found):
                raise CacheError(f"{self.path}/{name} is no file that only this user can have written")
            if whole and found.st_size > most:
                raise CacheError(f"{self.path}/{name} has {found.st_size} bytes, eqsat writes {most} at most")
            if whole and abs(time.time() - found.st_mtime) > _TOUCHED_S:
                with contextlib.suppress(OSError):  # a read-only file system: nothing is thrown out there
                    os.utime(fd)  # the time of the last use decides what is thrown out
            return _read(fd, min(most, found.st_size))
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place in one step: a reader sees all of it or none.

        Raises:
            CacheError: something else than a file of this user goes by the name.
            OSError: it cannot be written.
        """
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise CacheError(f"{self.path}/{name} is in the way: eqsat did not write it")
        temporary = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(temporary, _WRITE, 0o600, dir_fd=self.fd)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.fd)
            raise

    def remove(self, name: str) -> None:
        """Remove a name; a link's target stays. Nothing happens where another process was quicker."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)


def _private(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(fd, size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def opened(path: Path, *, create: bool) -> Iterator[Folder]:
    """The directory ``path``, open. It belongs to this user alone, is no link, and nobody else can swap it.

    With ``create``, directories that are missing are made, private to the user.

    Raises:
        FileNotFoundError: it is not there.
        CacheError: it, or a directory above it, belongs to or can be changed by another user, or is no directory.
        OSError: it cannot be opened or made.
    """
    fd = _descend(str(path), create)
    try:
        yield Folder(fd, str(path))
    finally:
        os.close(fd)


def _descend(path: str, create: bool) -> int:
    """A descriptor of ``path``, each directory on the way opened and judged. Links above the last name are resolved
    here, name by name, if this user or the superuser made them."""
    if os.open not in os.supports_dir_fd or not hasattr(os, "geteuid"):
        raise CacheError("this system cannot open files relative to a directory")
    if not os.path.isabs(path):
        raise CacheError(f"{path} is not absolute: this user has no home directory")
    parents, last = os.path.split(path)
    names = [name for name in reversed(parents.split("/")) if name]
    fd, here, links = os.open("/", _SEARCH), "/", 0
    try:
        _judge(fd, here)
        while names:
            name = names.pop()
            try:
                inner = _enter(fd, name, _SEARCH, create)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                target = _target(fd, name, here)
                links += 1
                if links > _MOST_LINKS:
                    raise CacheError(f"{path} leads through more than {_MOST_LINKS} symbolic links") from None
                names.extend(n for n in reversed(target.split("/")) if n)
                if not target.startswith("/"):
                    continue
                inner, name = os.open("/", _SEARCH), "/"
            os.close(fd)
            fd, here = inner, os.path.normpath(os.path.join(here, name))
            _judge(fd, here)
        try:
            inner = _enter(fd, last, os.O_RDONLY | _DIRECTORY, create)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise CacheError(f"{path} is a symbolic link, or no directory") from None
            raise
    finally:
        os.close(fd)
    found = os.fstat(inner)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(inner)
        raise CacheError(f"{path} belongs to, or is writable by, another user")
    return inner


def _enter(fd: int, name: str, flags: int, create: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=fd)
    return os.open(name, flags, dir_fd=fd)


def _target(fd: int, name: str, here: str) -> str:
    """Where a symbolic link in the directory ``fd`` leads."""
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    place = os.path.join(here, name)
    if not stat.S_ISLNK(found.st_mode):
        raise CacheError(f"{place} is not a directory")
    if found.st_uid not in (0, os.geteuid()):
        raise CacheError(f"{place} is a symbolic link of another user")
    return os.readlink(name, dir_fd=fd)


def _judge(fd: int, here: str) -> None:
    """Whether nobody but this user and the superuser can swap what lies in a directory above the cache.

    In a directory with the sticky bit, as ``/tmp``, others can add names but not replace those of this user; names
    that they added are found by their owner, a step further down.

    Raises:
        CacheError: somebody else can.
    """
    found = os.fstat(fd)
    if found.st_uid not in (0, os.geteuid()):
        raise CacheError(f"{here} belongs to another user, who can swap what lies below it")
    others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _own_group(fd, found.st_gid))
    if others and not found.st_mode & stat.S_ISVTX:
        raise CacheError(f"{here} is writable by other users, who can swap what lies below it")


def _own_group(fd: int, gid: int) -> bool:
    """Whether only this user and the superuser are in the group: it is the superuser's or named like the user, and
    lists nobody else; and no access list grants more than the mode tells."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
        if (gid != 0 and group.gr_name != user) or not {*group.gr_mem} <= {user, "root"}:
            return False
    except KeyError:
        return False
    if not hasattr(os, "getxattr"):
        return True
    try:
        os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access")
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.ENOTSUP)
    return False
