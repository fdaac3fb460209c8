"""Python's collections of cyclic garbage while a program is compiled: rarer, for compiling makes much that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""New objects between two collections of the young ones, where Python's own figure (700 to 10,000) is less: imports,
traces and e-graphs are kept, and going through them again and again takes 7 % of a compilation. Garbage of other
threads may grow by as many objects meanwhile."""

_inside: set[object] = set()
_before: list[tuple[int, int, int]] = []
"""The thresholds that were replaced, if any are."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Inside it, collections are rare, in all threads. Afterwards the thresholds are the user's again.

    Without a lock, for a signal's handler may come here at any moment: where two threads meet in between, collections
    are as frequent as ever.
    """
    token = object()
    try:
        _inside.add(token)
        _adjust()
        yield
    finally:
        _inside.discard(token)
        _adjust()


def _adjust() -> None:
    found = gc.get_threshold()
    if _inside and not _before and 0 < found[0] < YOUNG:
        _before.append(found)
        gc.set_threshold(YOUNG, *found[1:])
    elif not _inside and _before:
        before = _before.pop()
        if found == (YOUNG, *before[1:]):  # else the user has set others meanwhile
            gc.set_threshold(*before)
