"""A compiled program held against the float64 reference, and the user's function itself, before it is trusted.

The program runs on the caller's own arguments and on arguments drawn to be valid and telling
(:mod:`eqsat.verify.draws`), and each result is judged (:mod:`eqsat.verify.judge`). All of it stays within a memory
limit, by blocks of the outputs; of large outputs that are computed alike everywhere, some blocks are compared, the
first and the last among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.errors import EqsatError
from eqsat.explain.work import naive_peak
from eqsat.frontends.trace import Traced
from eqsat.ir.batched import batched
from eqsat.ir.known import trial
from eqsat.ir.loop import of_loop
from eqsat.ir.node import Graph, Node
from eqsat.ir.opaque import calls_of
from eqsat.options import Numerics
from eqsat.verify import draws
from eqsat.verify.bounds import OutputError
from eqsat.verify.calls import Calls
from eqsat.verify.draws import Draws, Kind
from eqsat.verify.estimate import reference_seconds
from eqsat.verify.judge import DEAR_SECONDS, Invalid, Judge, PlainDiffers, Run, mib
from eqsat.verify.noise import Undetermined
from eqsat.verify.plain import Plain, wrong_values
from eqsat.verify.suspects import Seen

log = logging.getLogger("eqsat")

Result = TypeVar("Result")

LEAST_MEMORY = 256 << 20
MEMORY_FACTOR = 1.5
"""Verification takes at most this many times the memory of the program (arguments, results, intermediates), or
``LEAST_MEMORY`` where that is more."""
SHARE_SECONDS = 0.25
"""Time, as estimated from the work, that draws beyond the first two may take, and the plain function."""
NOISE_SECONDS = 1.0
"""Time, as estimated, of rounding noise in those draws after which no further one is begun."""
ENDLESS_SECONDS = 1e9
SHARE = 0.1
"""Part of the time spent so far that the plain function may take where that is more."""


@dataclass(frozen=True)
class Sizes:
    """Bytes that a program takes by itself, and that verification may take beside it."""

    program: int
    limit: int

    def __str__(self) -> str:
        return (
            f"verification needs up to {mib(self.limit)} beside the {mib(self.program)} of the program itself "
            "(arguments, results and intermediates), which there are not; verify=False leaves it out"
        )


def sizes(graph: Graph, intermediates: int) -> Sizes:
    """Those of a graph whose compiled program needs ``intermediates`` bytes beside arguments and results."""
    program = sum(n.type.nbytes for n in (*graph.inputs, *graph.outputs)) + intermediates
    return Sizes(program, max(LEAST_MEMORY, int(MEMORY_FACTOR * program)))


def fits_twice(graph: Graph, size: Sizes) -> bool:
    """Whether NumPy may run a program on arguments of twice the size."""
    return 2 * naive_peak(graph) + size.program <= size.limit


def verify(
    graph: Graph,
    constants: dict[Node, np.ndarray],
    run: Run,
    examples: Sequence[np.ndarray],
    *,
    numerics: Numerics = "reassociates",
    seed: int = 0,
    options: str = "",
    intermediates: int = 0,
    plain: Sequence[np.ndarray] | None = None,
    in_double: Callable[[], Sequence[np.ndarray] | None] | None = None,
    ends: Sequence[Sequence[int]] | None = None,
    tried: Run | None = None,
    patience: float = SHARE_SECONDS,
    complex: frozenset[int] = frozenset(),
    deadline: Deadline = NEVER,
) -> list[OutputError]:
    """Errors of every output on random arguments (on the caller's own where no others are valid).

    Args:
        graph: the program as traced.
        constants: values of inputs known at compile time.
        run: the compiled program on the other inputs.
        examples: the caller's arrays for those.
        numerics: what rules were free to do: with other than ``exact`` the order of evaluation may decide over what
            leaves the range of a type on the way.
        options: those it was compiled with, as text.
        intermediates: bytes that the compiled program needs beside arguments and results.
        plain: results of the user's function on the caller's arguments, to be held against the reference too.
        in_double: the same of float64, asked for where they are further from the reference than rounding explains.
        ends: for each output, positions in its elements where the program's stores begin and end. With them, some
            blocks of a dear program are enough, unless its results are held against ``plain``.
        tried: the compiled program with loops of fewer trips (:func:`eqsat.ir.known.trial`): where all trips take the
            reference longer than ``SHARE_SECONDS``, that is what is verified. It is the same code.
        patience: seconds that all trips may take the reference nevertheless, once, on the caller's arguments.
        complex: the outputs that are complex numbers, by number: their parts lie on a last axis of 2.
        deadline: of the whole compilation.

    Raises:
        VerificationError: a result is outside its bound; with a program to paste, which compiles with ``options``.
        PlainDiffers: a result of the user's function is.
        IndexError, ValueError: the caller's own arguments are not valid.
        MemoryError: with the sizes, and whether verification or the program needs them.
        OutOfTime: the deadline passed.
    """
    free = [n for n in graph.inputs if n not in constants]
    size = sizes(graph, intermediates)
    drawn = Draws(graph, free, examples, seed)
    sampled = ends if plain is None else None
    apart = bool(calls_of(graph.outputs))
    in_double = in_double if fits_twice(graph, size) else None
    assert plain is None or not apart, "the function calls libraries with values of its own"

    def judge(graph: Graph, run: Run, drawn: Draws, ends: Sequence[Sequence[int]] | None) -> Judge:
        calls = Calls(graph, constants) if apart else None
        if calls is not None:
            graph, ends = calls.graph, None if ends is None else [*ends, *([] for _ in calls.operands)]
        limit = size.limit
        return Judge(
            graph, constants, run, drawn, numerics, options, limit, deadline, seed, calls, ends, complex, in_double
        )

    seconds = reference_seconds(graph)
    endless = seconds >= ENDLESS_SECONDS  # how often is decided by values, and by rounding
    if tried is not None and seconds > SHARE_SECONDS and any(of_loop(node) for node in graph.nodes()):
        if not endless and (seconds <= patience or plain is not None):
            whole = judge(graph, run, drawn, None)
            _guarded(size, lambda: _own(whole, plain))
        summed = None if numerics == "exact" else batched(graph, rounding=True)  # as it is planned
        graph, run, plain = trial(graph if summed is None else summed.graph, frozenset(constants)), tried, None
        drawn = Draws(graph, free, examples, seed)
    made = judge(graph, run, drawn, sampled)
    return _guarded(size, lambda: _draw_all(made, plain))[: len(graph.outputs)]


def _guarded(size: Sizes, examine: Callable[[], Result]) -> Result:
    """``examine()``, whose ``MemoryError`` names the sizes."""
    try:
        return examine()
    except MemoryError as error:
        if error.args and "the program" in str(error.args[0]):
            raise
        raise MemoryError(str(size)) from None


def run_plain(
    plain: Plain,
    traced: Traced,
    *,
    intermediates: int = 0,
    spent: float = 0.0,
    patience: float = SHARE_SECONDS,
    deadline: Deadline = NEVER,
) -> list[np.ndarray] | None:
    """What the user's function returns on the caller's own arguments when NumPy runs it, one array per output.

    Where it takes more memory than verification may, or long, it is traced and run anew on the first elements of every
    axis, held against that trace, and None is returned. Where it does not allow that either, the log says so.
    ``spent``: seconds that the compilation took so far, ``patience``: that it may take in any case.

    Raises ``VerificationError`` that names what the function does which its trace does not.
    """
    graph = traced.graph
    size = sizes(graph, intermediates)
    seconds = reference_seconds(graph)
    dear = ENDLESS_SECONDS > seconds > max(SHARE_SECONDS, SHARE * spent, patience)
    try:
        if not dear and naive_peak(graph) + size.program <= size.limit:
            results = plain.results(traced)
            if results is None or seconds <= ENDLESS_SECONDS:
                return results
            hold_plain(plain, traced, results, intermediates=intermediates, deadline=deadline)
            return None
        small = plain.reduced()
        if small is None or any(of_loop(node) for node in graph.nodes()):  # fewer elements, but not fewer trips
            _say_not_held(traced, "NumPy would take long, or much memory")
            return None
        try:
            traced = small.trace(guarded=bool(traced.guards))
        except Exception as error:
            _say_not_held(traced, f"NumPy would take long, or much memory, and smaller arguments do not fit: {error!r}")
            return None
        results = small.results(traced)
        if results is not None:
            hold_plain(small, traced, results, deadline=deadline)
    except MemoryError:
        raise MemoryError(str(size)) from None
    return None


def _say_not_held(traced: Traced, why: str) -> None:
    log.info("the function was not held against its trace: %s", why)


def hold_plain(
    plain: Plain,
    traced: Traced,
    results: Sequence[np.ndarray],
    *,
    intermediates: int = 0,
    deadline: Deadline = NEVER,
) -> None:
    """Hold what the user's function returned against its trace evaluated by NumPy.

    Outputs of loops that run for as long as a condition holds are left out: how often may be decided by rounding.
    Raises ``VerificationError`` where they differ by more than rounding.
    """
    arrays, inputs, outputs = plain.arrays(), traced.graph.inputs, traced.graph.outputs
    held = [*range(len(outputs))]
    if reference_seconds(traced.graph) > ENDLESS_SECONDS:
        held = [n for n in held if reference_seconds(Graph(inputs, (outputs[n],))) <= ENDLESS_SECONDS]
    graph = Graph(inputs, tuple(outputs[n] for n in held))
    size = sizes(traced.graph, intermediates)
    limit = size.limit
    drawn = Draws(graph, inputs, arrays)
    pairs = frozenset(at for at, n in enumerate(held) if n in traced.complex)

    def in_double() -> list[np.ndarray] | None:
        found = plain.in_double(traced, results)
        return None if found is None else [found[n] for n in held]

    judge = Judge(
        graph,
        {},
        lambda given: given,
        drawn,
        "reassociates",
        "",
        limit,
        deadline,
        complex=pairs,
        in_double=in_double if fits_twice(traced.graph, size) else None,
    )
    try:
        if held:
            judge.examine_plain(arrays, [results[n] for n in held])
    except Invalid as error:
        log.info("the function was not held against its trace: %r", error.__cause__)
    except PlainDiffers as error:
        raise plain_differs(plain, traced, results, PlainDiffers(held[error.args[0]])) from None
    except Exception as error:
        if isinstance(error, (EqsatError, OutOfTime, MemoryError)) or not calls_of(traced.graph.outputs):
            raise
        log.info("the function was not held against its trace: a library refuses values near its own (%r)", error)


def plain_differs(plain: Plain, traced: Traced, results: Sequence[np.ndarray], error: PlainDiffers) -> Exception:
    """What to say where the user's function and its trace differ in an output's values."""
    return wrong_values(error.args[0], plain.differs_from_run_to_run(results, traced))


def _draw_all(judge: Judge, plain: Sequence[np.ndarray] | None) -> list[OutputError]:
    if judge.sampled and judge.seconds > SHARE_SECONDS / 16 and plain is None:
        seen = _valid(judge, draws.MIXED)  # large and element by element: one draw can hold all kinds
        if seen is not None and seen.tells(None):
            return seen.errors
    own = _own(judge, plain)
    if not judge.draws.free or (judge.seconds > DEAR_SECONDS and own.tells(None) and judge.draws.varied):
        return own.errors
    main, chosen = None, draws.OWN
    twice = (draws.NORMAL,) * (2 if judge.draws.positive else 1)
    for kind in (*twice, draws.POSITIVE, draws.LIKE):
        seen = _valid(judge, kind)
        if seen is not None and (main is None or seen.tells(own)):
            main, chosen = seen, kind
        if seen is not None and seen.tells(own):
            break
        judge.draws.careful = True
    _more(judge, own, chosen)
    return (main or own).errors


def _own(judge: Judge, plain: Sequence[np.ndarray] | None) -> Seen:
    """What the caller's own arguments show, whose errors are the caller's."""
    try:
        return judge.examine(draws.OWN, plain)
    except Invalid as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


def _valid(judge: Judge, kind: Kind) -> Seen | None:
    """What a draw shows, made valid by staying nearer to the caller's values; None where nothing helps, or rounding
    leaves no digit."""
    while True:
        try:
            return judge.examine(kind)
        except Undetermined:
            return None
        except Invalid:
            if not judge.draws.nearer():
                return None


def _more(judge: Judge, own: Seen, main: Kind) -> None:
    """Draws of other kinds, as many as take little time."""
    kinds: list[tuple[Kind, ...]] = [draws.WIDE_KINDS, (draws.TIES,)]
    if judge.numerics != "approximates":
        kinds += [(draws.NAN,), (draws.INF,)]
    kinds += [(k,) for k in (draws.POSITIVE, draws.LIKE) if k is not main]
    left, enough = SHARE_SECONDS, judge.noised + NOISE_SECONDS
    for ladder in kinds:
        for kind in ladder:
            left -= judge.seconds
            if left < 0 or judge.noised > enough:  # between draws: one that was begun is judged to its end
                return
            start = time.monotonic()
            try:
                seen = _valid(judge, kind)
            except OutOfTime:
                log.info("verified on fewer arguments than usual: the budget is spent")
                return
            if judge.deadline.left < 2 * (time.monotonic() - start) or (seen is not None and seen.tells(own)):
                break
