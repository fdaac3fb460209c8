"""What is installed: entry points and versions, looked up once, for that reads the folders of all packages."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint

_all = cache(metadata.entry_points)
version = cache(metadata.version)
"""The version of a package. ``PackageNotFoundError`` if there is none."""


@cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in order of name."""
    return tuple(sorted(_all().select(group=group), key=lambda point: (point.name, point.value)))
