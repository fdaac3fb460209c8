"""The driver's threads in LLVM code: the loop over steps and their shares, workers that wait for jobs, teams of them.

A step has as many *shares* as its team has threads. A thread claims its own share first, then any that nobody has
begun: a worker that is still asleep, or has lost its core to another program, delays nobody. Which thread runs a
share changes no result.

Layout of a *context* (64-bit words, 64-byte aligned; one per call in flight)::

    STEPS        address of the addresses of the steps' words, then a zero
    TABLE        address of the slots' addresses
    RUNTIME      address of the runtime's words
    STATUS       status word of this call
    ARGUMENTS    address of the argument words
    THREADS      most threads that a call may use
    COMPLETED    shares of all steps that are complete       (a cache line of its own)
    CURRENT      how many steps have been run, and the words of the one that is (a cache line of its own); -1, and any
                 step's words, before the first
    CLAIMS       for each share, steps whose share somebody has claimed  (a cache line each)

The words of a step are [function, n, slot…]. Steps without a function (0) change the table of slots, by the calling
thread alone, so that steps run again on other addresses. They make loops::

    [0, ENTER, counter, n, (slot, from, bytes)…]   slot = from + bytes; the counter of trips is 0
    [0, AGAIN, counter, trips, first, n, (to, from, bytes)…, n, (slot, bytes)…, n, (read, written, other)…]

AGAIN ends a trip: it copies memory ``from`` one place ``to`` another. Before the next trip, which begins with step
``first``, each ``slot`` moves by ``bytes``, and what was ``written`` is ``read``, while the next one writes where this
one read: after the first, at ``other``.

The runtime: addresses of ``FUNCTIONS`` of the thread library (zeros without POSIX threads), of the pool, and of
``PLACEMENT`` (zeros where the system has none of these).

The pool: blocks of ``BLOCK`` words. Block 0: JOB [1 while a call has it], CAPACITY, and the caller's processor; block i
is worker i. JOB: a context that is offered, 1 while the worker is at one, or 0. Processors are counted from 1; 0 is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from eqsat_backends.numba_cpu.running.words import Word, Words
from eqsat_backends.numba_cpu.vectors.flow import I32

LINE = 8
"""Words of a cache line."""
STEPS, TABLE, RUNTIME, STATUS, ARGUMENTS, THREADS, COMPLETED, CURRENT, CLAIMS = *range(6), LINE, 2 * LINE, 3 * LINE

FUNCTIONS = (
    *("sched_yield", "pthread_create", "pthread_mutex_init", "pthread_cond_init", "pthread_mutex_lock"),
    *("pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_signal"),
)
PLACEMENT = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")
_YIELD, _CREATE, _MUTEX_INIT, _CONDITION_INIT, _LOCK, _UNLOCK, _WAIT, _SIGNAL = range(len(FUNCTIONS))
POOL = len(FUNCTIONS)
_GET_PROCESSOR, _GET_ALLOWED, _SET_ALLOWED = range(POOL + 1, POOL + 1 + len(PLACEMENT))

BLOCK = 8 * LINE
_JOB, _NUMBER, _TEAM, _ASLEEP, _STARTED, _OWN_RUNTIME, _PROCESSOR, _TAKES, _MUTEX, _CONDITION = (
    *(0, 1, 2, LINE, LINE + 1, LINE + 2, LINE + 3, LINE + 4),
    *(2 * LINE, 4 * LINE),
)
CAPACITY = 1
ENTER, AGAIN = 0, 1

# Spins at a barrier before the processor is offered to another thread: one or two microseconds. Where cores
# are shared with other programs two threads may find themselves on one, and each spin of one delays the other
SPINS = 60
# Offers of the processor after that, before a worker without a job sleeps
IDLE_YIELDS = 2000

# Jobs from one look at the processors to the next: moving takes as long as a small job
LOOK_EVERY = 16
# Words of a set of processors, as the system's functions take it: 1024 of them
SET_WORDS = 16

_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}


def write_team(module: ir.Module) -> Words:
    """Add a function of a context, whose table is complete, and a number of threads: run it. Its result: the status."""
    relax = _relax(module)
    run_shares = _run_shares(module)
    run_steps = _run_steps(module, run_shares, _turn(module), relax)
    note_processor = _note_processor(module)
    worker = _worker(module, run_shares, _move_apart(module, note_processor), relax)
    run_team = _run_team(module, _spawn_workers(module, worker), run_steps, note_processor, relax)
    w = Words(module, "run", 2)
    w.function.attributes.add("noinline")  # the caller's frame stays small
    context, threads = w.arguments
    w.put(context, STATUS, 0)
    threaded = w.get(w.get(context, RUNTIME), _CREATE).test("!=", 0)
    with w.b.if_else(w.b.and_(threads.test(">", 1), threaded)) as (many, one):
        with many:
            w.call(run_team, context, threads)
        with one:
            w.call(run_steps, context, 1)
    w.ret(w.get(context, STATUS))
    return w


def _relax(module: ir.Module) -> Words:
    """Wait a little: spin, and from some point on let other threads have the processor. Returns the spins until now."""
    w = Words(module, "relax", 2)
    runtime, spins = w.arguments
    arch = module.triple.split("-")[0]
    name, hints = _PAUSE.get("aarch64" if arch.startswith("arm64") else arch, ("", ()))
    if name:
        pause = ir.Function(module, ir.FunctionType(ir.VoidType(), [I32] * len(hints)), name)
        w.b.call(pause, [ir.Constant(I32, hint) for hint in hints])
    spun, give = spins + 1, w.get(runtime, _YIELD)
    with w.b.if_then(w.b.and_(spun.test(">=", SPINS), give.test("!=", 0))):
        w.call(give)
    w.ret(spun)
    return w


def _run_shares(module: ir.Module) -> Words:
    """Run those shares of a step that nobody has claimed, one's own first. Returns how many those were.

    The argument table is gathered on the thread's own stack.
    """
    w = Words(module, "run_shares", 5)
    context, number, step, tid, nt = w.arguments
    table, function, n = w.get(context, TABLE), w.get(step, 0), w.get(step, 1)
    args, ran, mine = w.room(n), w.changing(0), w.variable(ir.Constant(ir.IntType(1), 1))
    in_team = nt.test("!=", 1)
    with w.each(nt) as turn:
        ahead = tid + turn
        share = w.choose(ahead.test(">=", nt), ahead - nt, ahead)
        with w.b.if_then(in_team):
            claim = context + (share * LINE + CLAIMS) * 8
            mine.set(w.get(claim, 0, "monotonic").test("==", number))
            with w.b.if_then(mine.now):
                mine.set(w.replace(claim, number, number + 1, "monotonic"))
        with w.b.if_then(mine.now):
            with w.each(n) as i:
                w.put(args, i, w.get(table, w.get(step, i + 2)))
            w.call(function, args, share, nt)
            ran.set(ran.now + 1)
            with w.b.if_then(in_team):
                w.update("add", context, COMPLETED, 1, "release")
    w.ret(ran.now)
    return w


def _turn(module: ir.Module) -> Words:
    """Run a step that changes the table; the number of the step that follows."""
    w = Words(module, "turn", 3)
    w.function.attributes.add("noinline")
    table, step, here = w.arguments
    counter, at = w.get(step, 2), w.changing(step + 8 * 4)
    with w.b.if_then(w.get(step, 1).test("==", ENTER)):
        w.put(table, counter, 0)
        with w.each(w.get(step, 3)):
            slot, source, nbytes = (w.get(at.now, k) for k in range(3))
            w.put(table, slot, w.get(table, source) + nbytes)
            at.set(at.now + 8 * 3)
        w.ret(here + 1)
    first, n = w.get(at.now), w.get(at.now, 1)
    at.set(at.now + 8 * 2)
    with w.each(n):
        to, source, nbytes = (w.get(at.now, k) for k in range(3))
        w.copy(w.get(table, to), w.get(table, source), nbytes)
        at.set(at.now + 8 * 3)
    trip = w.get(table, counter) + 1
    w.return_if(trip.test(">=", w.get(step, 3)), here + 1)
    w.put(table, counter, trip)
    n = w.get(at.now)
    at.set(at.now + 8)
    with w.each(n):
        slot = w.get(at.now)
        w.put(table, slot, w.get(table, slot) + w.get(at.now, 1))
        at.set(at.now + 8 * 2)
    n = w.get(at.now)
    at.set(at.now + 8)
    with w.each(n):
        read, written, other = (w.get(at.now, k) for k in range(3))
        before = w.get(table, read)
        w.put(table, read, w.get(table, written))
        w.put(table, written, w.choose(trip.test("==", 1), w.get(table, other), before))
        at.set(at.now + 8 * 3)
    w.ret(first)
    return w


def _run_steps(module: ir.Module, run_shares: Words, turn: Words, relax: Words) -> Words:
    """The calling thread: every step in turn. A step begins when all shares of the one before are complete."""
    w = Words(module, "run_steps", 2)
    w.function.attributes.add("alwaysinline")
    context, nt = w.arguments
    steps, runtime, here, number = w.get(context, STEPS), w.get(context, RUNTIME), w.changing(0), w.changing(0)
    with w.forever() as done:
        step = w.get(steps, here.now)
        w.leave_if(step.test("==", 0), done)
        with w.b.if_else(w.get(step).test("==", 0)) as (other, kernel):
            with other:
                here.set(w.call(turn, w.get(context, TABLE), step, here.now))
            with kernel:
                # the words first: whoever reads this number finds them, or later ones, of which it can claim no share
                w.put(context, CURRENT + 1, step, "monotonic")
                w.put(context, CURRENT, number.now, "release")
                w.call(run_shares, context, number.now, step, 0, nt)
                number.set(number.now + 1)
                here.set(here.now + 1)
                with w.b.if_then(nt.test("!=", 1)):
                    _wait(w, relax, runtime, lambda: w.get(context, COMPLETED, "acquire").test(">=", number.now * nt))
    w.ret()
    return w


def _wait(w: Words, relax: Words, runtime: Word, condition: Callable[[], Any]) -> None:
    spins = w.changing(0)
    with w.forever() as behind:
        w.leave_if(condition(), behind)
        spins.set(w.call(relax, runtime, spins.now))


def _note_processor(module: ir.Module) -> Words:
    """The processor that this thread is on, noted in a block of the pool. 0 where the system does not tell."""
    w = Words(module, "note_processor", 2)
    runtime, block = w.arguments
    ask = w.get(runtime, _GET_PROCESSOR)
    w.return_if(ask.test("==", 0))
    here = w.call(ask, result=I32) + 1
    with w.b.if_then(w.get(block, _PROCESSOR, "monotonic").test("!=", here)):
        w.put(block, _PROCESSOR, here, "monotonic")
    w.ret(here)
    return w


def _move_apart(module: ir.Module, note_processor: Words) -> Words:
    """Worker tid leaves a processor that the caller or a worker before it is on.

    It forbids itself all of theirs, and allows them again at once. Threads of one team on one processor take turns,
    though another may be free: the system puts a thread that is woken beside the one that woke it.
    """
    w = Words(module, "move_apart", 3)
    runtime, slot, tid = w.arguments
    allowed, wanted, pool = w.room(SET_WORDS), w.room(SET_WORDS), w.get(runtime, POOL)
    here = w.call(note_processor, runtime, slot)
    w.return_if(here.test("==", 0))
    crowded, left = w.changing(0), w.changing(0)
    with w.each(tid) as i:
        theirs = w.get(pool + i * (8 * BLOCK), _PROCESSOR, "monotonic")
        crowded.set(w.choose(theirs.test("==", here), 1, crowded.now))
    w.return_if(crowded.now.test("==", 0))
    with w.each(SET_WORDS) as k:
        w.put(allowed, k, 0)
    w.return_if(w.call(w.get(runtime, _GET_ALLOWED), 0, 8 * SET_WORDS, allowed, result=I32).test("<", 0))
    with w.each(SET_WORDS) as k:
        w.put(wanted, k, w.get(allowed, k))
    with w.each(tid) as i:
        number = w.get(pool + i * (8 * BLOCK), _PROCESSOR, "monotonic") - 1
        with w.b.if_then(w.b.and_(number.test(">=", 0), number.test("<", 64 * SET_WORDS))):
            others = (w.word(1) << (number & 63)) ^ -1
            w.put(wanted, number >> 6, w.get(wanted, number >> 6) & others)
    with w.each(SET_WORDS) as k:
        left.set(left.now | w.get(wanted, k))
    w.return_if(left.now.test("==", 0))
    for processors in (wanted, allowed):
        w.call(w.get(runtime, _SET_ALLOWED), 0, 8 * SET_WORDS, processors)
    w.call(note_processor, runtime, slot)
    w.ret()
    return w


def _worker(module: ir.Module, run_shares: Words, move_apart: Words, relax: Words) -> Words:
    """A worker of the pool. It polls for a job, sleeps when there is none for a while, and never ends.

    A job is offered (the context), taken (1) for the shares of one step, offered again, and at last withdrawn (0). So a
    worker that waits for the next step has no context in its hands: nobody has to wait until it runs again.
    """
    w = Words(module, "worker", 1)
    (slot,) = w.arguments
    runtime, spins = w.get(slot, _OWN_RUNTIME), w.changing(0)
    mutex, condition = slot + 8 * _MUTEX, slot + 8 * _CONDITION
    with w.forever():
        job = w.get(slot, _JOB, "monotonic")
        with w.b.if_else(job.test("==", 0)) as (idle, busy):
            with idle:
                spins.set(w.call(relax, runtime, spins.now))
                with w.b.if_then(spins.now.test(">", SPINS + IDLE_YIELDS)):
                    w.call(w.get(runtime, _LOCK), mutex)
                    with w.forever() as awake:
                        # Here it says that it sleeps, then looks for a job; the caller leaves a job, then looks whether
                        # it sleeps: in one total order, so that one of the two sees the other. A job may be withdrawn
                        # before its worker is awake
                        w.put(slot, _ASLEEP, 1, "seq_cst")
                        w.leave_if(w.get(slot, _JOB, "seq_cst").test("!=", 0), awake)
                        w.call(w.get(runtime, _WAIT), condition, mutex)
                    w.put(slot, _ASLEEP, 0, "seq_cst")
                    w.call(w.get(runtime, _UNLOCK), mutex)
                    spins.set(0)
            with busy, w.b.if_else(w.replace(slot, job, 1, "acquire")) as (taken, withdrawn):
                with taken:
                    number, tid = w.get(job, CURRENT, "acquire"), w.get(slot, _NUMBER)
                    step = w.get(job, CURRENT + 1, "monotonic")
                    ran = w.call(run_shares, job, number, step, tid, w.get(slot, _TEAM))
                    w.put(slot, _JOB, job, "release")
                    takes = w.get(slot, _TAKES)
                    w.put(slot, _TAKES, takes + 1)
                    with w.b.if_then((takes % LOOK_EVERY).test("==", 0)):
                        w.call(move_apart, runtime, slot, tid)
                    with w.b.if_else(ran.test("==", 0)) as (nothing, something):
                        with nothing:
                            spins.set(w.call(relax, runtime, spins.now))
                        with something:
                            spins.set(0)
                with withdrawn:
                    spins.set(0)
    w.b.unreachable()
    return w


def _spawn_workers(module: ir.Module, worker: Words) -> Words:
    """Start the workers that a team of so many threads lacks. Returns how large a team can be."""
    w = Words(module, "spawn_workers", 3)
    pool, runtime, threads = w.arguments
    limit, i, handle = w.least(threads, w.get(pool, CAPACITY)), w.changing(1), w.room(LINE)
    with w.forever() as done:
        w.leave_if(i.now.test(">=", limit), done)
        slot = pool + i.now * (8 * BLOCK)
        with w.b.if_then(w.get(slot, _STARTED).test("==", 0)):
            w.call(w.get(runtime, _MUTEX_INIT), slot + 8 * _MUTEX, 0)
            w.call(w.get(runtime, _CONDITION_INIT), slot + 8 * _CONDITION, 0)
            w.put(slot, _OWN_RUNTIME, runtime)
            code = w.call(w.get(runtime, _CREATE), handle, 0, w.address(worker), slot, result=I32)
            w.leave_if(code.test("!=", 0), done)
            w.put(slot, _STARTED, 1)
        i.set(i.now + 1)
    w.ret(i.now)
    return w


def _run_team(module: ir.Module, spawn_workers: Words, run_steps: Words, note_processor: Words, relax: Words) -> Words:
    """Run a context on a team from the pool; alone while another call has the pool."""
    w = Words(module, "run_team", 2)
    context, threads = w.arguments
    runtime = w.get(context, RUNTIME)
    pool = w.get(runtime, POOL)
    with w.b.if_then(w.b.not_(w.replace(pool, 0, 1, "acquire"))):
        w.ret(w.call(run_steps, context, 1))
    nt = w.call(spawn_workers, pool, runtime, threads)
    w.call(note_processor, runtime, pool)
    w.put(context, COMPLETED, 0, "monotonic")
    w.put(context, CURRENT, -1, "monotonic")  # no share is to be had before the first step
    with w.each(nt) as share:
        w.put(context, share * LINE + CLAIMS, 0, "monotonic")
    with w.each(nt, first=1) as i:
        slot = pool + i * (8 * BLOCK)
        w.put(slot, _NUMBER, i)
        w.put(slot, _TEAM, nt)
        w.put(slot, _JOB, context, "seq_cst")
        with w.b.if_then(w.update("xchg", slot, _ASLEEP, 0, "seq_cst").test("!=", 0)):
            mutex = slot + 8 * _MUTEX
            w.call(w.get(runtime, _LOCK), mutex)
            w.call(w.get(runtime, _SIGNAL), slot + 8 * _CONDITION)
            w.call(w.get(runtime, _UNLOCK), mutex)
    w.call(run_steps, context, nt)
    with w.each(nt, first=1) as i:
        slot = pool + i * (8 * BLOCK)
        # a worker that has it is finding out that there is no share left
        _wait(w, relax, runtime, lambda: w.replace(slot, context, 0, "acquire"))
    w.put(pool, _JOB, 0, "release")
    w.ret()
    return w
