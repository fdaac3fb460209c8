"""The driver's threads, as LLVM IR: barrier, the loop over steps, workers that wait for jobs, teams of them.

The layouts of context, runtime and pool are in ``driver_code``.
"""

from __future__ import annotations

# Spins at a barrier before the processor is offered to another thread: one or two microseconds. Where cores
# are shared with other programs two threads may find themselves on one, and each spin of one delays the other
SPINS = 60
# Offers of the processor after that, before a worker without a job sleeps
IDLE_YIELDS = 2000

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def team_ir(triple: str) -> str:
    """LLVM IR of ``eqsat_driver_run(context, threads)``, which runs a context whose table is complete."""
    arch = triple.split("-")[0]
    declare_pause, pause = _PAUSE.get("aarch64" if arch.startswith("arm64") else arch, ("", ""))
    return (
        _IR.replace("{declare_pause}", declare_pause)
        .replace("{pause}", pause)
        .replace("{spins}", str(SPINS))
        .replace("{idle_spins}", str(SPINS + IDLE_YIELDS))
    )


_IR = """\
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
  br label %gather.head
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
  call void %function(i64 %args.int, i64 %tid, i64 %nt)
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
"""
