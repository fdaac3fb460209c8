"""The driver's threads, as LLVM IR: the loop over steps and their shares, workers that wait for jobs, teams of them.

A step has as many *shares* as its team has threads. A thread claims its own share first, then any that nobody has
begun: a worker that is still asleep, or has lost its core to another program, delays nobody. Which thread runs a
share changes no result. The layouts of context, runtime and pool are in ``driver_code``.
"""

from __future__ import annotations

# Spins at a barrier before the processor is offered to another thread: one or two microseconds. Where cores
# are shared with other programs two threads may find themselves on one, and each spin of one delays the other
SPINS = 60
# Offers of the processor after that, before a worker without a job sleeps
IDLE_YIELDS = 2000

# Jobs from one look at the processors to the next: moving takes as long as a small job
LOOK_EVERY = 16
# Words of a set of processors, as the system's functions take it: 1024 of them
SET_WORDS = 16

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
        .replace("{look_every}", str(LOOK_EVERY))
        .replace("{set_words}", str(SET_WORDS))
        .replace("{set_bytes}", str(8 * SET_WORDS))
        .replace("{set_bits}", str(64 * SET_WORDS))
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

; Run those shares of a step that nobody has claimed, one's own first. The argument table is gathered on the thread's
; own stack. Returns how many shares that were.
define internal i64 @run_shares(ptr %context, i64 %number, ptr %at, i64 %tid, i64 %nt) {
entry:
  %table.at = getelementptr i64, ptr %context, i64 1
  %table = load ptr, ptr %table.at
  %completed.at = getelementptr i64, ptr %context, i64 8
  %claims = getelementptr i64, ptr %context, i64 24
  %function = load ptr, ptr %at
  %n.at = getelementptr i64, ptr %at, i64 1
  %n = load i64, ptr %n.at
  %slots = getelementptr i64, ptr %at, i64 2
  %args = alloca i64, i64 %n, align 64
  %args.int = ptrtoint ptr %args to i64
  %number.next = add i64 %number, 1
  %alone = icmp eq i64 %nt, 1
  br label %offer
offer:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %skip ]
  %ran = phi i64 [ 0, %entry ], [ %ran.next, %skip ]
  %ahead = add i64 %tid, %turn
  %past = icmp uge i64 %ahead, %nt
  %wrapped = sub i64 %ahead, %nt
  %share = select i1 %past, i64 %wrapped, i64 %ahead
  br i1 %alone, label %gather.head, label %look
look:
  %claim.at = getelementptr [8 x i64], ptr %claims, i64 %share
  %claim = load atomic i64, ptr %claim.at monotonic, align 8
  %free = icmp eq i64 %claim, %number
  br i1 %free, label %take, label %skip
take:
  %taken = cmpxchg ptr %claim.at, i64 %number, i64 %number.next monotonic monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %gather.head, label %skip
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
  call void %function(i64 %args.int, i64 %share, i64 %nt)
  %ran.now = add i64 %ran, 1
  br i1 %alone, label %skip, label %report
report:
  %before = atomicrmw add ptr %completed.at, i64 1 release
  br label %skip
skip:
  %ran.next = phi i64 [ %ran, %look ], [ %ran, %take ], [ %ran.now, %call ], [ %ran.now, %report ]
  %turn.next = add i64 %turn, 1
  %all = icmp eq i64 %turn.next, %nt
  br i1 %all, label %done, label %offer
done:
  ret i64 %ran.next
}

; The calling thread: every step in turn. A step begins when all shares of the one before are complete.
define internal void @run_steps(ptr %context, i64 %nt) {
entry:
  %steps = load ptr, ptr %context
  %runtime.at = getelementptr i64, ptr %context, i64 2
  %runtime = load ptr, ptr %runtime.at
  %completed.at = getelementptr i64, ptr %context, i64 8
  %current.at = getelementptr i64, ptr %context, i64 16
  %alone = icmp eq i64 %nt, 1
  br label %step
step:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %step.at = getelementptr ptr, ptr %steps, i64 %number
  %at = load ptr, ptr %step.at
  %end = icmp eq ptr %at, null
  br i1 %end, label %done, label %publish
publish:
  store atomic i64 %number, ptr %current.at release, align 8
  %ran = call i64 @run_shares(ptr %context, i64 %number, ptr %at, i64 0, i64 %nt)
  %number.next = add i64 %number, 1
  %all = mul i64 %number.next, %nt
  br i1 %alone, label %next, label %wait
wait:
  %spins = phi i64 [ 0, %publish ], [ %spins.next, %again ]
  %completed = load atomic i64, ptr %completed.at acquire, align 8
  %complete = icmp uge i64 %completed, %all
  br i1 %complete, label %next, label %again
again:
  %spins.next = call i64 @relax(ptr %runtime, i64 %spins)
  br label %wait
next:
  br label %step
done:
  ret void
}

; The processor that this thread is on, noted in a block of the pool. 0 where the system does not tell.
define internal i64 @note_processor(ptr %runtime, ptr %block) {
entry:
  %getcpu.at = getelementptr i64, ptr %runtime, i64 9
  %getcpu = load ptr, ptr %getcpu.at
  %none = icmp eq ptr %getcpu, null
  br i1 %none, label %unknown, label %ask
unknown:
  ret i64 0
ask:
  %cpu.32 = call i32 %getcpu()
  %cpu = sext i32 %cpu.32 to i64
  %mine = add i64 %cpu, 1
  %note.at = getelementptr i64, ptr %block, i64 11
  %before = load atomic i64, ptr %note.at monotonic, align 8
  %same = icmp eq i64 %before, %mine
  br i1 %same, label %done, label %note
note:
  store atomic i64 %mine, ptr %note.at monotonic, align 8
  br label %done
done:
  ret i64 %mine
}

; Threads of one team on one processor take turns, though another may be free: the system puts a thread that is woken
; beside the one that woke it. Worker tid leaves a processor that the caller or a worker before it is on: it forbids
; itself all of theirs, and allows them again at once.
define internal void @move_apart(ptr %runtime, ptr %slot, i64 %tid) {
entry:
  %allowed = alloca [{set_words} x i64], align 64
  %wanted = alloca [{set_words} x i64], align 64
  %pool.at = getelementptr i64, ptr %runtime, i64 8
  %pool = load ptr, ptr %pool.at
  %mine = call i64 @note_processor(ptr %runtime, ptr %slot)
  %unknown = icmp eq i64 %mine, 0
  br i1 %unknown, label %done, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look.on ]
  %block = getelementptr [64 x i64], ptr %pool, i64 %i
  %theirs.at = getelementptr i64, ptr %block, i64 11
  %theirs = load atomic i64, ptr %theirs.at monotonic, align 8
  %crowded = icmp eq i64 %theirs, %mine
  br i1 %crowded, label %ask, label %look.on
look.on:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %tid
  br i1 %more, label %look, label %done
ask:
  %get.at = getelementptr i64, ptr %runtime, i64 10
  %get = load ptr, ptr %get.at
  %set.at = getelementptr i64, ptr %runtime, i64 11
  %set = load ptr, ptr %set.at
  call void @llvm.memset.p0.i64(ptr %allowed, i8 0, i64 {set_bytes}, i1 false)
  %code = call i32 %get(i32 0, i64 {set_bytes}, ptr %allowed)
  %failed = icmp slt i32 %code, 0
  br i1 %failed, label %done, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %wanted, ptr %allowed, i64 {set_bytes}, i1 false)
  br label %strike
strike:
  %j = phi i64 [ 0, %copy ], [ %j.next, %strike.on ]
  %other = getelementptr [64 x i64], ptr %pool, i64 %j
  %taken.at = getelementptr i64, ptr %other, i64 11
  %taken = load atomic i64, ptr %taken.at monotonic, align 8
  %number = sub i64 %taken, 1
  %inside = icmp ult i64 %number, {set_bits}
  br i1 %inside, label %clear, label %strike.on
clear:
  %word.number = lshr i64 %number, 6
  %word.at = getelementptr i64, ptr %wanted, i64 %word.number
  %word = load i64, ptr %word.at
  %position = and i64 %number, 63
  %bit = shl i64 1, %position
  %others = xor i64 %bit, -1
  %left = and i64 %word, %others
  store i64 %left, ptr %word.at
  br label %strike.on
strike.on:
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, %tid
  br i1 %again, label %strike, label %any
any:
  %k = phi i64 [ 0, %strike.on ], [ %k.next, %any.on ]
  %part.at = getelementptr i64, ptr %wanted, i64 %k
  %part = load i64, ptr %part.at
  %some = icmp ne i64 %part, 0
  br i1 %some, label %move, label %any.on
any.on:
  %k.next = add i64 %k, 1
  %rest = icmp ult i64 %k.next, {set_words}
  br i1 %rest, label %any, label %done
move:
  %ignored.1 = call i32 %set(i32 0, i64 {set_bytes}, ptr %wanted)
  %ignored.2 = call i32 %set(i32 0, i64 {set_bytes}, ptr %allowed)
  %now = call i64 @note_processor(ptr %runtime, ptr %slot)
  br label %done
done:
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; A worker of the pool. It polls for a job, sleeps when there is none for a while, and never ends. A job is offered (the
; context), taken (1) for the shares of one step, offered again, and at last withdrawn (0). So a worker that waits for
; the next step has no context in its hands: nobody has to wait until it runs again.
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
  %spins = phi i64 [ 0, %entry ], [ %more, %idle ], [ 0, %wake ], [ 0, %take ], [ %rest, %back ]
  %seen = load atomic i64, ptr %slot monotonic, align 8
  %nothing = icmp eq i64 %seen, 0
  br i1 %nothing, label %idle, label %take
idle:
  %more = call i64 @relax(ptr %runtime, i64 %spins)
  %tired = icmp ugt i64 %more, {idle_spins}
  br i1 %tired, label %sleep, label %poll
sleep:
  %locked = call i32 %lock(ptr %mutex)
  br label %doze
doze:
  ; Here `sleeping` is written, then the job read; the caller writes the job, then reads `sleeping`: in one
  ; total order, so that one of the two sees the other. A job may be withdrawn before its worker is awake.
  store atomic i64 1, ptr %sleeping seq_cst, align 8
  %job.now = load atomic i64, ptr %slot seq_cst, align 8
  %still = icmp eq i64 %job.now, 0
  br i1 %still, label %doze.on, label %wake
doze.on:
  %waited = call i32 %wait(ptr %condition, ptr %mutex)
  br label %doze
wake:
  store atomic i64 0, ptr %sleeping seq_cst, align 8
  %unlocked = call i32 %unlock(ptr %mutex)
  br label %poll
take:
  %taken = cmpxchg ptr %slot, i64 %seen, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %work, label %poll
work:
  %context = inttoptr i64 %seen to ptr
  %tid = load i64, ptr %tid.at
  %nt = load i64, ptr %nt.at
  %steps = load ptr, ptr %context
  %current.at = getelementptr i64, ptr %context, i64 16
  %number = load atomic i64, ptr %current.at acquire, align 8
  %step.at = getelementptr ptr, ptr %steps, i64 %number
  %at = load ptr, ptr %step.at
  %ran = call i64 @run_shares(ptr %context, i64 %number, ptr %at, i64 %tid, i64 %nt)
  store atomic i64 %seen, ptr %slot release, align 8
  %takes.at = getelementptr i64, ptr %slot, i64 12
  %takes = load i64, ptr %takes.at
  %takes.next = add i64 %takes, 1
  store i64 %takes.next, ptr %takes.at
  %phase = urem i64 %takes, {look_every}
  %due = icmp eq i64 %phase, 0
  br i1 %due, label %apart, label %rested
apart:
  call void @move_apart(ptr %runtime, ptr %slot, i64 %tid)
  br label %rested
rested:
  %idled = icmp eq i64 %ran, 0
  br i1 %idled, label %pass, label %back
pass:
  %waited.on = call i64 @relax(ptr %runtime, i64 %spins)
  br label %back
back:
  %rest = phi i64 [ 0, %rested ], [ %waited.on, %pass ]
  br label %poll
}

; Start the workers that a team of `threads` lacks. Returns how large a team can be.
define internal i64 @spawn_workers(ptr %pool, ptr %runtime, i64 %threads) {
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
  %started.before.at = getelementptr i64, ptr %slot, i64 9
  %started.before = load i64, ptr %started.before.at
  %there = icmp ne i64 %started.before, 0
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
  store i64 1, ptr %started.before.at
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
  br i1 %mine, label %spawn, label %alone
alone:
  call void @run_steps(ptr %context, i64 1)
  ret void
spawn:
  %nt = call i64 @spawn_workers(ptr %pool, ptr %runtime, i64 %threads)
  %lock.at = getelementptr i64, ptr %runtime, i64 4
  %lock = load ptr, ptr %lock.at
  %unlock.at = getelementptr i64, ptr %runtime, i64 5
  %unlock = load ptr, ptr %unlock.at
  %signal.at = getelementptr i64, ptr %runtime, i64 7
  %signal = load ptr, ptr %signal.at
  %here = call i64 @note_processor(ptr %runtime, ptr %pool)
  %completed.at = getelementptr i64, ptr %context, i64 8
  store atomic i64 0, ptr %completed.at monotonic, align 8
  %current.at = getelementptr i64, ptr %context, i64 16
  store atomic i64 0, ptr %current.at monotonic, align 8
  %claims = getelementptr i64, ptr %context, i64 24
  br label %clear
clear:
  %share = phi i64 [ 0, %spawn ], [ %share.next, %clear ]
  %claim.at = getelementptr [8 x i64], ptr %claims, i64 %share
  store atomic i64 0, ptr %claim.at monotonic, align 8
  %share.next = add i64 %share, 1
  %cleared = icmp eq i64 %share.next, %nt
  br i1 %cleared, label %offer, label %clear
offer:
  %job = ptrtoint ptr %context to i64
  br label %each
each:
  %i = phi i64 [ 1, %offer ], [ %i.next, %next ]
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
  call void @run_steps(ptr %context, i64 %nt)
  br label %withdraw
withdraw:
  %w = phi i64 [ 1, %work ], [ %w.next, %gone ]
  %none = icmp uge i64 %w, %nt
  br i1 %none, label %leave, label %ask
ask:
  %spins = phi i64 [ 0, %withdraw ], [ %more, %again ]
  %its.slot = getelementptr [64 x i64], ptr %pool, i64 %w
  %was = cmpxchg ptr %its.slot, i64 %job, i64 0 acquire monotonic
  %untaken = extractvalue { i64, i1 } %was, 1
  br i1 %untaken, label %gone, label %again
again:
  ; It is finding out that there is no share left.
  %more = call i64 @relax(ptr %runtime, i64 %spins)
  br label %ask
gone:
  %w.next = add i64 %w, 1
  br label %withdraw
leave:
  store atomic i64 0, ptr %pool release, align 8
  ret void
}

; Run a context whose table is complete. Returns the status word.
define i64 @eqsat_driver_run(ptr %context, i64 %threads) {
entry:
  %status.at = getelementptr i64, ptr %context, i64 3
  store i64 0, ptr %status.at
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %one, label %many
one:
  call void @run_steps(ptr %context, i64 1)
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
