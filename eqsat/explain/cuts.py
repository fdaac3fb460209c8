"""What budgets cut off a search, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqsat.egraph.saturated import FULL

NAMED = 4
"""Rules that are named, those with the most matches first."""
LIMITS = {
    "nodes": "their limit of e-nodes",
    "work": "their share of the work",
    "seconds": "the clock",
    "memory": "their limit of memory",
    "iterations": "their limit of rounds",
    "fork": "a fork, after which nothing is searched",
}


def cut_off(search: Mapping[str, Any]) -> list[str]:
    """A sentence for each limit that ``search`` (see ``Explanation.search``) met; none where it ran to its end.

    Limits of rounds, work, e-nodes, memory and time of saturations, and the matches that were left; classes that had as
    many forms as are kept; laws that are tried in small e-graphs only; selections that ended before the best was known.
    """
    found, regions = [], search["distinct_regions"]
    for stop, count in sorted(search["saturations_cut"].items()):
        found.append(f"saturation was stopped by {LIMITS[stop]} in {count} of {regions} different regions")
    rules = search["matches"].items()
    left = {rule: row["pending"] for rule, row in rules if row["pending"]}
    if left:
        found.append(f"{sum(left.values()):,} matches were not tried: {_most(left)}")
    full = {rule: row["refused"][FULL] for rule, row in rules if FULL in row["refused"]}
    if full:
        found.append(f"{sum(full.values()):,} matches were left alone, for {FULL}: {_most(full)}")
    held = [rule for rule, row in rules if row["held"]]
    if held:
        more = f" and {len(held) - NAMED} more" * (len(held) > NAMED)
        found.append(f"tried in part only, for the e-graph had grown: {', '.join(held[:NAMED])}{more}")
    if search["extractions_cut"]:
        found.append(
            f"the choice among programs ended at its limit in {search['extractions_cut']} regions, "
            f"at most {search['extraction_gap']:.1%} from the best there"
        )
    return found


def _most(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and of {len(ranked) - NAMED} more rules" * (len(ranked) > NAMED)
    return ", ".join(f"{rule} ×{count:,}" for rule, count in ranked[:NAMED]) + more
