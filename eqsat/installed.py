"""What is installed: entry points and versions, looked up once, for that reads the folders of all packages."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint

_all = cache(metadata.entry_points)
version = cache(metadata.version)
"""The version of a package. ``PackageNotFoundError`` if there is none."""


@cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in order of name. One whose value names no object is left out, with a warning."""
    found = []
    for point in sorted(_all().select(group=group), key=lambda point: (point.name, point.value)):
        if EntryPoint.pattern.match(point.value) is not None:
            found.append(point)
            continue
        warnings.warn(
            f"the entry point {point.name!r} of {group} is left out: {point.value!r} names no module",
            RuntimeWarning,
            stacklevel=3,
        )
    return tuple(found)
