"""The compiled driver, as LLVM IR: runs a table of steps on a team of threads, with barriers in between.

Layout of a *context* (64-bit words, 64-byte aligned; one per call in flight)::

    0 steps       address of the step words: [function, flags, n, slot…]… then a zero
    1 table       address of the slots' addresses
    2 runtime     address of the functions of the thread library (see below)
    3 n           largest number of slots of a step
    4 done        workers that have run all steps
    5 status      status word of this call
    6 arguments   address of the argument words
    7 threads     most threads that a call may use
    8 arrived     threads waiting at the barrier            (a cache line of its own)
    16 generation number of barriers passed                 (a cache line of its own)

Flags of a step: 1 = a barrier follows, 2 = thread 0 runs it alone.

Runtime words: 0 sched_yield, 1 pthread_create, 2 pthread_mutex_init, 3 pthread_cond_init, 4 pthread_mutex_lock,
5 pthread_mutex_unlock, 6 pthread_cond_wait, 7 pthread_cond_signal, 8 the pool. All zero without POSIX threads.

The pool: blocks of 64 words. Block 0: [1 while a call has it, number of blocks]. Block i is worker i: 0 job (a
context, or 0), 1 its number, 2 size of the team, 8 asleep, 9 started, 10 runtime, 16 mutex, 32 condition.

Python words: 0 PyLong_AsSsize_t, 1 PyLong_FromSsize_t, 2 PyEval_SaveThread, 3 PyEval_RestoreThread, 4 the type
ndarray, 5 the type tuple.

Argument words: [n] then for each array [slot, alignment - 1, required NumPy flags, dtype word, ndim, shape…].
The dtype word is the 8 bytes of NumPy's dtype object that hold kind, type, byte order, flags and type number,
without the flags: equal words mean equal built-in dtypes.
"""

from __future__ import annotations

import sys

CONTEXT_WORDS = 24
STEPS, TABLE, RUNTIME, WIDEST, DONE, STATUS, ARGUMENTS, THREADS = range(8)
BARRIER_AFTER, SERIAL = 1, 2
MISMATCH = -1
DTYPE_MASK = int.from_bytes(b"\xff\xff\xff\0\xff\xff\xff\xff", sys.byteorder, signed=True)
# Spins at a barrier before the processor is offered to another thread: one or two microseconds. Where cores
# are shared with other programs two threads may find themselves on one, and each spin of one delays the other
SPINS = 60
# Offers of the processor after that, before a worker without a job sleeps
IDLE_YIELDS = 2000
POOL_BLOCK_WORDS = 64

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def driver_ir(triple: str, object_header: int, tuple_header: int) -> str:
    """The driver's LLVM IR.

    ``object_header`` is the size of a Python object's header, ``tuple_header`` the offset of a tuple's first
    item. The text is the same in every process: addresses come in at run time.
    """
    arch = triple.split("-")[0]
    declare_pause, pause = _PAUSE.get("aarch64" if arch.startswith("arm64") else arch, ("", ""))
    return (
        _IR.replace("{declare_pause}", declare_pause)
        .replace("{pause}", pause)
        .replace("{triple}", triple)
        .replace("{spins}", str(SPINS))
        .replace("{idle_spins}", str(SPINS + IDLE_YIELDS))
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
{declare_pause}

; Wait a little: spin, and from some point on let other threads have the processor.
define internal i64 @relax(ptr %runtime, i64 %spins) {
entry:
  {pause}
  %next = add i64 %spins, 1
  %patient = icmp ult i64 %next, {spins}
  br i1 %patient, label %done, label %give
give:
  %yield = load ptr, ptr %runtime
  %none = icmp eq ptr %yield, null
  br i1 %none, label %done, label %call
call:
  %ignored = call i32 %yield()
  br label %done
done:
  ret i64 %next
}

; Central barrier: the last thread to arrive resets the count and opens the next generation.
define internal void @barrier(ptr %context, i64 %nt) {
entry:
  %arrived = getelementptr i64, ptr %context, i64 8
  %generation = getelementptr i64, ptr %context, i64 16
  %runtime.at = getelementptr i64, ptr %context, i64 2
  %runtime = load ptr, ptr %runtime.at
  %mine = load atomic i64, ptr %generation acquire, align 8
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel
  %now = add i64 %before, 1
  %last = icmp eq i64 %now, %nt
  br i1 %last, label %open, label %wait
open:
  store atomic i64 0, ptr %arrived monotonic, align 8
  %following = add i64 %mine, 1
  store atomic i64 %following, ptr %generation release, align 8
  ret void
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %again ]
  %seen = load atomic i64, ptr %generation acquire, align 8
  %closed = icmp eq i64 %seen, %mine
  br i1 %closed, label %again, label %done
again:
  %more = call i64 @relax(ptr %runtime, i64 %spins)
  br label %wait
done:
  ret void
}

; Every thread of the team runs every step; a step's argument table is gathered on the thread's own stack.
define internal void @run_steps(ptr %context, i64 %tid, i64 %nt) {
entry:
  %first = load ptr, ptr %context
  %table.at = getelementptr i64, ptr %context, i64 1
  %table = load ptr, ptr %table.at
  %widest.at = getelementptr i64, ptr %context, i64 3
  %widest = load i64, ptr %widest.at
  %args = alloca i64, i64 %widest, align 64
  %args.int = ptrtoint ptr %args to i64
  %alone = icmp eq i64 %nt, 1
  br label %step
step:
  %at = phi ptr [ %first, %entry ], [ %following, %next ]
  %function = load ptr, ptr %at
  %end = icmp eq ptr %function, null
  br i1 %end, label %done, label %prepare
prepare:
  %flags.at = getelementptr i64, ptr %at, i64 1
  %flags = load i64, ptr %flags.at
  %n.at = getelementptr i64, ptr %at, i64 2
  %n = load i64, ptr %n.at
  %slots = getelementptr i64, ptr %at, i64 3
  %following = getelementptr i64, ptr %slots, i64 %n
  %serial.bit = and i64 %flags, 2
  %serial = icmp ne i64 %serial.bit, 0
  %other = icmp ne i64 %tid, 0
  %skip = and i1 %serial, %other
  br i1 %skip, label %after, label %gather.head
gather.head:
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %call, label %gather
gather:
  %i = phi i64 [ 0, %gather.head ], [ %i.next, %gather ]
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %slot = load i64, ptr %slot.at
  %address.at = getelementptr i64, ptr %table, i64 %slot
  %address = load i64, ptr %address.at
  %arg.at = getelementptr i64, ptr %args, i64 %i
  store i64 %address, ptr %arg.at
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %n
  br i1 %more, label %gather, label %call, !llvm.loop !0
call:
  %share = select i1 %serial, i64 1, i64 %nt
  call void %function(i64 %args.int, i64 %tid, i64 %share)
  br label %after
after:
  %barrier.bit = and i64 %flags, 1
  %no.barrier = icmp eq i64 %barrier.bit, 0
  %go.on = or i1 %no.barrier, %alone
  br i1 %go.on, label %next, label %meet
meet:
  call void @barrier(ptr %context, i64 %nt)
  br label %next
next:
  br label %step
done:
  ret void
}

; A worker of the pool. It polls for a job, sleeps when there is none for a while, and never ends.
define internal ptr @worker(ptr %slot) {
entry:
  %runtime.at = getelementptr i64, ptr %slot, i64 10
  %runtime = load ptr, ptr %runtime.at
  %tid.at = getelementptr i64, ptr %slot, i64 1
  %nt.at = getelementptr i64, ptr %slot, i64 2
  %sleeping = getelementptr i64, ptr %slot, i64 8
  %mutex = getelementptr i64, ptr %slot, i64 16
  %condition = getelementptr i64, ptr %slot, i64 32
  %lock.at = getelementptr i64, ptr %runtime, i64 4
  %lock = load ptr, ptr %lock.at
  %unlock.at = getelementptr i64, ptr %runtime, i64 5
  %unlock = load ptr, ptr %unlock.at
  %wait.at = getelementptr i64, ptr %runtime, i64 6
  %wait = load ptr, ptr %wait.at
  br label %poll
poll:
  %spins = phi i64 [ 0, %entry ], [ %more, %idle ], [ 0, %work ]
  %seen = load atomic i64, ptr %slot acquire, align 8
  %nothing = icmp eq i64 %seen, 0
  br i1 %nothing, label %idle, label %work
idle:
  %more = call i64 @relax(ptr %runtime, i64 %spins)
  %tired = icmp ugt i64 %more, {idle_spins}
  br i1 %tired, label %sleep, label %poll
sleep:
  %locked = call i32 %lock(ptr %mutex)
  ; Here `sleeping` is written, then the job read; the caller writes the job, then reads `sleeping`: in one
  ; total order, so that one of the two sees the other.
  store atomic i64 1, ptr %sleeping seq_cst, align 8
  br label %doze
doze:
  %job.now = load atomic i64, ptr %slot seq_cst, align 8
  %still = icmp eq i64 %job.now, 0
  br i1 %still, label %doze.on, label %wake
doze.on:
  %waited = call i32 %wait(ptr %condition, ptr %mutex)
  br label %doze
wake:
  store atomic i64 0, ptr %sleeping seq_cst, align 8
  %unlocked = call i32 %unlock(ptr %mutex)
  br label %work
work:
  %job = load atomic i64, ptr %slot acquire, align 8
  %context = inttoptr i64 %job to ptr
  %tid = load i64, ptr %tid.at
  %nt = load i64, ptr %nt.at
  call void @run_steps(ptr %context, i64 %tid, i64 %nt)
  store atomic i64 0, ptr %slot monotonic, align 8
  %done = getelementptr i64, ptr %context, i64 4
  %finished = atomicrmw add ptr %done, i64 1 release
  br label %poll
}

; Start the workers that a team of `threads` lacks. Returns how large a team can be.
define internal i64 @hire(ptr %pool, ptr %runtime, i64 %threads) {
entry:
  %create.at = getelementptr i64, ptr %runtime, i64 1
  %create = load ptr, ptr %create.at
  %mutex.init.at = getelementptr i64, ptr %runtime, i64 2
  %mutex.init = load ptr, ptr %mutex.init.at
  %condition.init.at = getelementptr i64, ptr %runtime, i64 3
  %condition.init = load ptr, ptr %condition.init.at
  %handle = alloca [8 x i64], align 16
  %capacity.at = getelementptr i64, ptr %pool, i64 1
  %capacity = load i64, ptr %capacity.at
  %limit = call i64 @llvm.umin.i64(i64 %threads, i64 %capacity)
  br label %each
each:
  %i = phi i64 [ 1, %entry ], [ %i.next, %next ]
  %all = icmp uge i64 %i, %limit
  br i1 %all, label %done, label %check
check:
  %slot = getelementptr [64 x i64], ptr %pool, i64 %i
  %hired.at = getelementptr i64, ptr %slot, i64 9
  %hired = load i64, ptr %hired.at
  %there = icmp ne i64 %hired, 0
  br i1 %there, label %next, label %start
start:
  %mutex = getelementptr i64, ptr %slot, i64 16
  %condition = getelementptr i64, ptr %slot, i64 32
  %ignored.1 = call i32 %mutex.init(ptr %mutex, ptr null)
  %ignored.2 = call i32 %condition.init(ptr %condition, ptr null)
  %runtime.at = getelementptr i64, ptr %slot, i64 10
  store ptr %runtime, ptr %runtime.at
  %code = call i32 %create(ptr %handle, ptr null, ptr @worker, ptr %slot)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %done, label %started
started:
  store i64 1, ptr %hired.at
  br label %next
next:
  %i.next = add i64 %i, 1
  br label %each
done:
  ret i64 %i
}

; Run a context on a team from the pool; alone while another call has the pool.
define internal void @run_team(ptr %context, ptr %runtime, i64 %threads) {
entry:
  %pool.at = getelementptr i64, ptr %runtime, i64 8
  %pool = load ptr, ptr %pool.at
  %taken = cmpxchg ptr %pool, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %hire, label %alone
alone:
  call void @run_steps(ptr %context, i64 0, i64 1)
  ret void
hire:
  %nt = call i64 @hire(ptr %pool, ptr %runtime, i64 %threads)
  %lock.at = getelementptr i64, ptr %runtime, i64 4
  %lock = load ptr, ptr %lock.at
  %unlock.at = getelementptr i64, ptr %runtime, i64 5
  %unlock = load ptr, ptr %unlock.at
  %signal.at = getelementptr i64, ptr %runtime, i64 7
  %signal = load ptr, ptr %signal.at
  %done = getelementptr i64, ptr %context, i64 4
  store atomic i64 0, ptr %done monotonic, align 8
  %job = ptrtoint ptr %context to i64
  br label %each
each:
  %i = phi i64 [ 1, %hire ], [ %i.next, %next ]
  %all = icmp uge i64 %i, %nt
  br i1 %all, label %work, label %give
give:
  %slot = getelementptr [64 x i64], ptr %pool, i64 %i
  %tid.at = getelementptr i64, ptr %slot, i64 1
  %nt.at = getelementptr i64, ptr %slot, i64 2
  store i64 %i, ptr %tid.at
  store i64 %nt, ptr %nt.at
  store atomic i64 %job, ptr %slot seq_cst, align 8
  %sleeping = getelementptr i64, ptr %slot, i64 8
  %asleep = atomicrmw xchg ptr %sleeping, i64 0 seq_cst
  %awake = icmp eq i64 %asleep, 0
  br i1 %awake, label %next, label %wake
wake:
  %mutex = getelementptr i64, ptr %slot, i64 16
  %condition = getelementptr i64, ptr %slot, i64 32
  %ignored.1 = call i32 %lock(ptr %mutex)
  %ignored.2 = call i32 %signal(ptr %condition)
  %ignored.3 = call i32 %unlock(ptr %mutex)
  br label %next
next:
  %i.next = add i64 %i, 1
  br label %each
work:
  call void @run_steps(ptr %context, i64 0, i64 %nt)
  %others = sub i64 %nt, 1
  br label %join
join:
  %spins = phi i64 [ 0, %work ], [ %more, %again ]
  %finished = load atomic i64, ptr %done acquire, align 8
  %complete = icmp eq i64 %finished, %others
  br i1 %complete, label %leave, label %again
again:
  %more = call i64 @relax(ptr %runtime, i64 %spins)
  br label %join
leave:
  store atomic i64 0, ptr %pool release, align 8
  ret void
}

; Run a context whose table is complete. Returns the status word.
define i64 @eqsat_driver_run(ptr %context, i64 %threads) {
entry:
  %status.at = getelementptr i64, ptr %context, i64 5
  store i64 0, ptr %status.at
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %one, label %many
one:
  call void @run_steps(ptr %context, i64 0, i64 1)
  br label %done
many:
  %runtime.at = getelementptr i64, ptr %context, i64 2
  %runtime = load ptr, ptr %runtime.at
  %create.at = getelementptr i64, ptr %runtime, i64 1
  %create = load ptr, ptr %create.at
  %none = icmp eq ptr %create, null
  br i1 %none, label %one, label %team
team:
  call void @run_team(ptr %context, ptr %runtime, i64 %threads)
  br label %done
done:
  %status = load i64, ptr %status.at
  ret i64 %status
}

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
  %arguments.at = getelementptr i64, ptr %context, i64 6
  %arguments = load ptr, ptr %arguments.at
  %limit.at = getelementptr i64, ptr %context, i64 7
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
