"""Discovering laws over operators: small terms that compute the same, though no rule says so."""
