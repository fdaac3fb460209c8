"""The compiled driver: runs a table of steps on a team of threads, one step after the other (see ``driver_team``).

Python words: addresses of ``API``, of the type ndarray, and of the type tuple.

Argument words: [n] then for each array [slot, alignment - 1, required NumPy flags, dtype word, ndim, shape…].
The dtype word is the 8 bytes of NumPy's dtype object that hold kind, type, byte order, flags and type number,
without the flags: equal words mean equal built-in dtypes.
"""

from __future__ import annotations

import sys

from llvmlite import ir

from eqsat_backends.numba_cpu.running.driver_team import ARGUMENTS, TABLE, THREADS, write_team
from eqsat_backends.numba_cpu.running.words import Words
from eqsat_backends.numba_cpu.vectors.flow import I32

MISMATCH = -1
DTYPE_MASK = int.from_bytes(b"\xff\xff\xff\0\xff\xff\xff\xff", sys.byteorder, signed=True)
API = ("PyLong_AsSsize_t", "PyLong_FromSsize_t", "PyEval_SaveThread", "PyEval_RestoreThread")


def driver_ir(triple: str, header: int, items: int) -> str:
    """LLVM IR of ``eqsat_driver_call``, a Python function (METH_FASTCALL): call(context, arrays, threads) -> status.

    ``header``: bytes of a Python object's header; ``items``: offset of a tuple's first item. ``self`` is an array that
    holds the Python words. The GIL is released meanwhile; the caller keeps the tuple alive. The text is the same in
    every process: addresses come in at run time.
    """
    module = ir.Module()
    module.triple = triple
    run_on_arrays = _run_on_arrays(module, write_team(module), header, items)
    w = Words(module, "eqsat_driver_call", 3, internal=False)
    own, args, _ = w.arguments
    words = w.field(own, header)
    as_int, from_int, save, restore, array_type, tuple_type = (w.get(words, k) for k in range(len(API) + 2))
    context, arrays, threads = w.call(as_int, w.get(args, 0)), w.get(args, 1), w.call(as_int, w.get(args, 2))
    state = w.call(save)
    status = w.call(run_on_arrays, context, arrays, threads, array_type, tuple_type)
    w.call(restore, state)
    w.ret(w.call(from_int, status))
    return str(module)


def _run_on_arrays(module: ir.Module, run: Words, header: int, items: int) -> Words:
    """Take the arrays' addresses from a tuple of NumPy arrays, then run.

    ``MISMATCH``, with nothing run, unless every item is an ndarray of the dtype, shape, flags and alignment that the
    argument words ask for.
    """
    w = Words(module, "run_on_arrays", 5)
    context, arrays, threads, array_type, tuple_type = w.arguments
    w.return_if(w.field(arrays, header - 8).test("!=", tuple_type), MISMATCH)
    table, wanted = w.get(context, TABLE), w.get(context, ARGUMENTS)
    n, at = w.get(wanted), w.changing(wanted + 8)
    w.return_if(w.field(arrays, header).test("!=", n), MISMATCH)
    with w.each(n) as i:
        array = w.get(arrays + items, i)
        w.return_if(w.field(array, header - 8).test("!=", array_type), MISMATCH)
        slot, mask, required, dtype, ndim = (w.get(at.now, k) for k in range(5))
        data, dims, descr = (w.field(array, header + nbytes) for nbytes in (0, 16, 40))
        its_ndim, flags = (w.field(array, header + nbytes, I32) for nbytes in (8, 48))
        its_dtype = w.field(descr, header + 8) & DTYPE_MASK
        for given, right in ((data & mask, 0), (flags & required, required), (its_dtype, dtype), (its_ndim, ndim)):
            w.return_if(given.test("!=", right), MISMATCH)
        shape = at.now + 8 * 5
        with w.each(ndim) as axis:
            w.return_if(w.get(dims, axis).test("!=", w.get(shape, axis)), MISMATCH)
        w.put(table, slot, data)
        at.set(shape + ndim * 8)
    w.ret(w.call(run, context, w.least(threads, w.get(context, THREADS))))
    return w
