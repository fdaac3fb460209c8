"""SIMD values: element types, lanes, arithmetic, and the mathematics of elementwise functions."""
