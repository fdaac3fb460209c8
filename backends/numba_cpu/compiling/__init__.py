"""From source to machine code: Numba, worker processes, object files, the cache of kernels."""
