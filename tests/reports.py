"""Reports as one line of text."""

from __future__ import annotations

from eqsat.explain.report import Explanation


def one_line(report: Explanation) -> str:
    """Its text without line breaks, which fall where the figures' widths want them."""
    return " ".join(str(report).split())
