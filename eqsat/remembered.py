"""What is remembered of a compilation, and what it says of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eqsat.explain.provenance import provenance
from eqsat.explain.report import step_reports
from eqsat.frontends.trace import Traced
from eqsat.plan.plan import Plan, SearchReport


@dataclass
class Record:
    """What is remembered of a compilation, as JSON data: ``constants`` are the folded tensors, numbered ``numbers``."""

    emitted: dict[str, Any]
    constants: dict[str, Any]
    numbers: list[int]
    report: dict[str, Any]


@dataclass(frozen=True)
class Given:
    """A program that needs no search; its kernels are for lengths within ``lengths``. ``verified``: so they are."""

    record: Record
    lengths: tuple[int, int]
    verified: bool


def report_of(plan: Plan, traced: Traced, kinds: Sequence[str]) -> dict[str, Any]:
    r = plan.report
    return {
        "steps": [asdict(s) for s in step_reports(plan, kinds)],
        "provenance": [asdict(p) for p in provenance(plan, traced.graph, traced.const)],
        "rolled": traced.in_loop_form,
        "ends": plan.ends(),
        "records": r.records,
        "search": search_of(r),
    }


def search_of(r: SearchReport) -> dict[str, Any]:
    """How the search went, as it is kept and explained."""
    return {
        "operators": r.operators,
        "regions": r.regions,
        "distinct_regions": r.distinct_regions,
        "enodes": sum(s.enodes for s in r.saturations),
        "stops": r.stops,
        "saturation_seconds": r.saturation_seconds,
        "extraction_seconds": r.extraction_seconds,
        "schedule_seconds": r.schedule_seconds,
        "extraction_gap": r.extraction_gap,
        "extractions_late": r.extractions_late,
        "extractions_cut": r.extractions_cut,
        "saturations_cut": dict(Counter(s.stop for s in r.saturations if s.stop != "saturated")),
        "loop_terms": r.loop_terms,
        "loop_matches": r.loop_matches,
        "predicted": r.predicted,
        "team": r.team,
        "rules": r.rules,
        "matches": _matches(r.saturations),
    }


def _matches(saturations: Sequence[Any]) -> dict[str, dict[str, Any]]:
    total: dict[str, dict[str, Any]] = {}
    for report in saturations:
        for rule, stats in report.rules.items():
            row = total.setdefault(rule, {"matches": 0, "fired": 0, "pending": 0, "refused": {}, "held": False})
            row["matches"] += stats.matches
            row["fired"] += stats.fired
            row["pending"] += stats.pending
            row["held"] |= stats.held
            for reason, count in stats.refused.items():
                row["refused"][reason] = row["refused"].get(reason, 0) + count
    return total
