"""How much of each sweep runs: a part by default, all of it with ``EQSAT_SWEEPS=1``, more with more."""

from __future__ import annotations

import math
import os

SHARE = float(os.environ.get("EQSAT_SWEEPS", "0.35"))


def a_part(count: int) -> int:
    """Of ``count`` examples, cases or rounds as many as run; a few are not made fewer."""
    return count if count <= 6 and SHARE <= 1 else max(6, math.ceil(count * SHARE))
