"""Laws that others published, as tables: which of them our own rules derive, and counterexamples for the wrong ones.

``python -m tests.conformance`` prints the table.
"""
