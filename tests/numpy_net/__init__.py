"""Random NumPy programs as text, run by NumPy and by eqsat under all options, and compared.

Written from NumPy's documentation alone: no table of operators, generator or tolerance of the package is used, so
that what its authors did not think of is not left out here too. ``python -m tests.numpy_net --help``.
"""
