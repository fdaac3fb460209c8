"""Benchmarks of eqsat against other systems: ``python -m bench`` from the repository's root."""
