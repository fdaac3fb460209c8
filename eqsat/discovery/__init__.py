"""Discovering laws over operators: small terms that compute the same, though no rule says so."""

from eqsat.discovery.laws import Law
from eqsat.discovery.search import Discovery, discover

__all__ = ["Discovery", "Law", "discover"]
