"""Tile operations: micro-kernels, and the rows by which the target offers them."""
