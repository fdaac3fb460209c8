"""The compiled driver, as LLVM IR: runs a table of steps on a team of threads, one step after the other.

Layout of a *context* (64-bit words, 64-byte aligned; one per call in flight)::

    0 steps       address of the addresses of the steps' words ([function, n, slot…]), then a zero
    1 table       address of the slots' addresses
    2 runtime     address of the functions of the thread library (see below)
    3 status      status word of this call
    4 arguments   address of the argument words
    5 threads     most threads that a call may use
    8 completed   shares of all steps that are complete           (a cache line of its own)
    16 current    the step that is run                            (a cache line of its own)
    24 + 8·i      steps whose share i somebody has claimed        (a cache line each)

Runtime words: 0 sched_yield, 1 pthread_create, 2 pthread_mutex_init, 3 pthread_cond_init, 4 pthread_mutex_lock,
5 pthread_mutex_unlock, 6 pthread_cond_wait, 7 pthread_cond_signal, 8 the pool. All zero without POSIX threads.
9 sched_getcpu, 10 sched_getaffinity, 11 sched_setaffinity: zero where the system has none of these.

The pool: blocks of 64 words. Block 0: 0 [1 while a call has it], 1 number of blocks, 11 the caller's processor.
Block i is worker i: 0 job (a context; 1 while it is at one; or 0), 1 its number, 2 size of the team, 8 asleep, 9
started, 10 runtime, 11 its processor, 12 steps looked at, 16 mutex, 32 condition. Processors are counted from 1; 0 is
unknown.

Python words: 0 PyLong_AsSsize_t, 1 PyLong_FromSsize_t, 2 PyEval_SaveThread, 3 PyEval_RestoreThread, 4 the type
ndarray, 5 the type tuple.

Argument words: [n] then for each array [slot, alignment - 1, required NumPy flags, dtype word, ndim, shape…].
The dtype word is the 8 bytes of NumPy's dtype object that hold kind, type, byte order, flags and type number,
without the flags: equal words mean equal built-in dtypes.
"""

from __future__ import annotations

import sys

from eqsat_backends.numba_cpu.running.driver_team import team_ir

CONTEXT_WORDS, SHARE_WORDS = 24, 8
STEPS, TABLE, RUNTIME, STATUS, ARGUMENTS, THREADS = range(6)
MISMATCH = -1
DTYPE_MASK = int.from_bytes(b"\xff\xff\xff\0\xff\xff\xff\xff", sys.byteorder, signed=True)
POOL_BLOCK_WORDS = 64


def driver_ir(triple: str, object_header: int, tuple_header: int) -> str:
    """The driver's LLVM IR.

    ``object_header`` is the size of a Python object's header, ``tuple_header`` the offset of a tuple's first
    item. The text is the same in every process: addresses come in at run time.
    """
    return (
        _IR.replace("{team}", team_ir(triple))
        .replace("{triple}", triple)
        .replace("{tuple_items}", str(tuple_header))
        .replace("{tuple_size}", str(object_header))
        .replace("{ob_type}", str(object_header - 8))
        .replace("{data}", str(object_header))
        .replace("{nd}", str(object_header + 8))
        .replace("{kind}", str(object_header + 8))
        .replace("{dtype_mask}", str(DTYPE_MASK))
        .replace("{dims}", str(object_header + 16))
        .replace("{descr}", str(object_header + 40))
        .replace("{flags}", str(object_header + 48))
    )


_IR = """\
target triple = "{triple}"
{team}

; Take the arrays' addresses from a tuple of NumPy arrays, then run. -1, with nothing run, unless every
; item is an ndarray of the dtype, shape, flags and alignment that the argument words ask for.
define internal i64 @run_on_arrays(ptr %context, ptr %tuple, i64 %threads, ptr %ndarray, ptr %tuple.type) {
entry:
  %tuple.type.at = getelementptr i8, ptr %tuple, i64 {ob_type}
  %its.type = load ptr, ptr %tuple.type.at
  %is.tuple = icmp eq ptr %its.type, %tuple.type
  br i1 %is.tuple, label %check.size, label %refuse
check.size:
  %table.at = getelementptr i64, ptr %context, i64 1
  %table = load ptr, ptr %table.at
  %arguments.at = getelementptr i64, ptr %context, i64 4
  %arguments = load ptr, ptr %arguments.at
  %limit.at = getelementptr i64, ptr %context, i64 5
  %limit = load i64, ptr %limit.at
  %team = call i64 @llvm.smin.i64(i64 %threads, i64 %limit)
  %n = load i64, ptr %arguments
  %first = getelementptr i64, ptr %arguments, i64 1
  %items = getelementptr i8, ptr %tuple, i64 {tuple_items}
  %size.at = getelementptr i8, ptr %tuple, i64 {tuple_size}
  %size = load i64, ptr %size.at
  %size.ok = icmp eq i64 %size, %n
  br i1 %size.ok, label %arrays, label %refuse
arrays:
  br label %array
array:
  %i = phi i64 [ 0, %arrays ], [ %i.next, %accept ]
  %at = phi ptr [ %first, %arrays ], [ %at.next, %accept ]
  %all = icmp uge i64 %i, %n
  br i1 %all, label %run, label %check
check:
  %item.at = getelementptr i64, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %type.at = getelementptr i8, ptr %item, i64 {ob_type}
  %type = load ptr, ptr %type.at
  %is.array = icmp eq ptr %type, %ndarray
  br i1 %is.array, label %check.fields, label %refuse
check.fields:
  %mask.at = getelementptr i64, ptr %at, i64 1
  %mask = load i64, ptr %mask.at
  %required.at = getelementptr i64, ptr %at, i64 2
  %required = load i64, ptr %required.at
  %dtype.at = getelementptr i64, ptr %at, i64 3
  %dtype = load i64, ptr %dtype.at
  %ndim.at = getelementptr i64, ptr %at, i64 4
  %ndim = load i64, ptr %ndim.at
  %data.at = getelementptr i8, ptr %item, i64 {data}
  %data = load i64, ptr %data.at
  %nd.at = getelementptr i8, ptr %item, i64 {nd}
  %nd = load i32, ptr %nd.at
  %dims.at = getelementptr i8, ptr %item, i64 {dims}
  %dims = load ptr, ptr %dims.at
  %descr.at = getelementptr i8, ptr %item, i64 {descr}
  %descr = load ptr, ptr %descr.at
  %flags.at = getelementptr i8, ptr %item, i64 {flags}
  %flags = load i32, ptr %flags.at
  %nd.wide = sext i32 %nd to i64
  %flags.wide = zext i32 %flags to i64
  %low = and i64 %data, %mask
  %aligned = icmp eq i64 %low, 0
  %has = and i64 %flags.wide, %required
  %flags.ok = icmp eq i64 %has, %required
  %its.dtype.at = getelementptr i8, ptr %descr, i64 {kind}
  %its.dtype.word = load i64, ptr %its.dtype.at
  %its.dtype = and i64 %its.dtype.word, {dtype_mask}
  %descr.ok = icmp eq i64 %its.dtype, %dtype
  %nd.ok = icmp eq i64 %nd.wide, %ndim
  %ok.1 = and i1 %aligned, %flags.ok
  %ok.2 = and i1 %descr.ok, %nd.ok
  %ok = and i1 %ok.1, %ok.2
  %shape = getelementptr i64, ptr %at, i64 5
  %at.next = getelementptr i64, ptr %shape, i64 %ndim
  br i1 %ok, label %axis, label %refuse
axis:
  %a = phi i64 [ 0, %check.fields ], [ %a.next, %axis.check ]
  %axes.done = icmp uge i64 %a, %ndim
  br i1 %axes.done, label %accept, label %axis.check
axis.check:
  %dim.at = getelementptr i64, ptr %dims, i64 %a
  %dim = load i64, ptr %dim.at
  %extent.at = getelementptr i64, ptr %shape, i64 %a
  %extent = load i64, ptr %extent.at
  %same = icmp eq i64 %dim, %extent
  %a.next = add i64 %a, 1
  br i1 %same, label %axis, label %refuse
accept:
  %slot = load i64, ptr %at
  %address.at = getelementptr i64, ptr %table, i64 %slot
  store i64 %data, ptr %address.at
  %i.next = add i64 %i, 1
  br label %array
run:
  %status = call i64 @eqsat_driver_run(ptr %context, i64 %team)
  ret i64 %status
refuse:
  ret i64 -1
}

; The same as a Python function (METH_FASTCALL): call(context, arrays, threads) -> status. `self` is an array
; that holds the Python words. The GIL is released meanwhile; the caller keeps the tuple alive.
define ptr @eqsat_driver_call(ptr %self, ptr %args, i64 %nargs) {
  %api.at = getelementptr i8, ptr %self, i64 {data}
  %api = load ptr, ptr %api.at
  %as.int = load ptr, ptr %api
  %from.int.at = getelementptr i64, ptr %api, i64 1
  %from.int = load ptr, ptr %from.int.at
  %save.at = getelementptr i64, ptr %api, i64 2
  %save = load ptr, ptr %save.at
  %restore.at = getelementptr i64, ptr %api, i64 3
  %restore = load ptr, ptr %restore.at
  %ndarray.at = getelementptr i64, ptr %api, i64 4
  %ndarray = load ptr, ptr %ndarray.at
  %tuple.type.at = getelementptr i64, ptr %api, i64 5
  %tuple.type = load ptr, ptr %tuple.type.at
  %context.object = load ptr, ptr %args
  %context.int = call i64 %as.int(ptr %context.object)
  %context = inttoptr i64 %context.int to ptr
  %tuple.at = getelementptr i64, ptr %args, i64 1
  %tuple = load ptr, ptr %tuple.at
  %threads.at = getelementptr i64, ptr %args, i64 2
  %threads.object = load ptr, ptr %threads.at
  %threads = call i64 %as.int(ptr %threads.object)
  %state = call ptr %save()
  %status = call i64 @run_on_arrays(ptr %context, ptr %tuple, i64 %threads, ptr %ndarray, ptr %tuple.type)
  call void %restore(ptr %state)
  %result = call ptr %from.int(i64 %status)
  ret ptr %result
}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
"""
