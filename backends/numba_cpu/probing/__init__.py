"""Micro-benchmarks behind the machine model."""
