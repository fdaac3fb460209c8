"""One draw of arguments: the compiled program, or the user's function, held against the reference, block by block.

The allowed error is what float32 itself costs: the reference is computed in the program's own types and in float64,
and the compiled program may be up to ``FACTOR`` times as far from float64 as NumPy is, plus ``ULPS`` units in the last
place of the largest value of the tensor (:mod:`eqsat.verify.bounds`).

Where a result is outside its bound, the reference is run again with noise of a few units in the last place on every
value (:mod:`eqsat.verify.noise`): elements that noise moves as far are no error.

Large values of an output would hide small ones that are wrong. So an element that is off by ``GROSS`` of its
own value is held against NumPy's error at elements no larger, then against what noise does to it.

The user's function may be further off than that, of sums that NumPy adds term by term: where it is run on float64 and
its error shrinks as the unit in the last place does, the reference in the program's own types stands in for it.

Elements that hang on values which the order of evaluation is free to choose are excused
(:mod:`eqsat.verify.escapes`), but not where the user's function was run and gave a finite one. A program of class
``approximates`` may lose a NaN or an infinity: where the reference has one, or hangs on one met on the way, nothing is
held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.deadline import Deadline
from eqsat.errors import ResultChangedError, VerificationError
from eqsat.explain.listing import program
from eqsat.ir.composite import without_composites
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import of_loop
from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.opaque import Raised, noting
from eqsat.ir.table import OPS
from eqsat.ir.types import is_floating
from eqsat.options import Numerics
from eqsat.verify import draws, samples
from eqsat.verify.blocks import AsRun, Evaluation, Rounded, Storage, blocks, demanded, first_and_some, storage
from eqsat.verify.bounds import ErrorsBySize, OutputError, Scale, scale_of
from eqsat.verify.boxes import Box, part, whole
from eqsat.verify.calls import Calls
from eqsat.verify.complex_parts import beside_infinity, both_nan, quotients, replaced
from eqsat.verify.draws import Draws, Kind
from eqsat.verify.escapes import Escapes, moves
from eqsat.verify.estimate import reference_seconds
from eqsat.verify.noise import ORDERED, SAMPLE, Noise, Undetermined
from eqsat.verify.shrinking import of_sums, shrinks
from eqsat.verify.suspects import Seen, Survey, Suspect

LONG_SECONDS = 0.3
"""Estimated time of a draw from which fewer runs with noise have to do."""
ESCAPES = 4
"""How many evaluations show what escapes."""
DEAR_SECONDS = 1.5
"""Estimated time of a draw after which no second one follows, if the caller's own arguments tell enough, and the
reference is evaluated in float64 only."""
SAMPLED_SECONDS = 0.25
"""Estimated time of a draw from which only some blocks are compared, where these are computed alike."""
DRAW_SECONDS = 0.1
"""Estimated time up to which more blocks than the fewest are."""
BATCH = 8
"""Blocks with errors, perhaps, that are looked at together."""

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class Invalid(Exception):
    """The reference refuses these arguments: the cause says why."""


class PlainDiffers(Exception):
    """The user's function and its trace differ in the values of an output, whose number is the argument."""


@dataclass
class _Look:
    """One set of arguments by node, and the references on them."""

    bound: dict[Node, np.ndarray]
    exact: Evaluation
    own: Evaluation
    plain: Sequence[np.ndarray | None] | None = None
    """What the user's function returned: held against the trace, it takes the place of ``own``. None for an output that
    NumPy's rounding leaves too few digits of."""
    judges_plain: bool = False
    """Whether what is judged is what the user's function returned."""


OVERFLOWS = (
    ". Values overflow on the way to this result, and in another order of evaluation others do: "
    "eqsat.optimize(…, numerics='exact') keeps NumPy's"
)


@dataclass
class Judge:
    """Compares a program of a graph with the reference, within ``limit`` bytes.

    ``constants`` are values of inputs known at compile time, ``run`` is the program on the others. ``options`` are
    those it was compiled with, as text for the program that a ``VerificationError`` prints. ``complex`` are the outputs
    that are complex numbers, by number: their parts lie on a last axis of 2, which other outputs may have as well.
    """

    graph: Graph
    constants: dict[Node, np.ndarray]
    run: Run
    draws: Draws
    numerics: Numerics
    options: str
    limit: int
    deadline: Deadline
    seed: int = 0
    calls: Calls | None = None
    """Where the graph is the part of a program around its calls of library functions."""
    ends: Sequence[Sequence[int]] | None = None
    """For each output, positions where kernels' stores begin and end; None: all of it is compared, however dear."""
    complex: frozenset[int] = frozenset()
    in_double: Callable[[], Sequence[np.ndarray] | None] | None = None
    """What the user's function returns on the caller's arguments in float64; None where that says nothing."""
    simple: Graph = field(init=False)
    everything: Storage = field(init=False)
    """How all of the outputs is evaluated."""
    plan: Storage = field(init=False)
    """How those parts of them are that are compared."""
    seconds: float = field(init=False)
    """Estimated time of one draw."""
    sampled: bool = field(init=False)
    """Whether the program works element by element, and is large: one draw holds values of all kinds."""
    drawn: Sequence[Sequence[Box]] | None = field(init=False, default=None)
    """For each output the blocks that are compared, where a dear program is computed alike everywhere."""

    noised: float = field(init=False, default=0.0)
    """Estimated time of the evaluations with changed values so far, which suspects ask for."""

    def __post_init__(self) -> None:
        # Inside a composite there is rounding, too.
        self.simple = Graph(self.graph.inputs, tuple(without_composites(self.graph.outputs)))
        given = sum(n.type.nbytes for n in (*self.draws.free, *self.graph.outputs))
        limit = max(self.limit // 4, self.limit - given) // 2
        self.plan = self.everything = storage(self.simple.outputs, self.graph.inputs, limit)
        self.sampled = self._sampled()
        # Once in each precision; where blocks are enough, what is left is to draw, to run and to look.
        self.seconds = given / 1e9 if self.sampled else 3 * reference_seconds(self.graph)
        if self.ends is None or self.sampled or self.seconds <= SAMPLED_SECONDS:
            return
        if not any(node.op in ORDERED for node in self.plan.order):
            found = samples.choose(self.simple.outputs, self.ends, DRAW_SECONDS / 3, self.seed)
            if found is not None:
                self.drawn, self.seconds = found.boxes, 3 * found.seconds
                self.plan = storage(self.simple.outputs, self.graph.inputs, limit, found.parts)

    def _alike(self, output: Node) -> bool:
        """Whether an output is streamed, and computed by the same operators everywhere."""
        seen: set[Node] = set()
        stack = [output]
        while stack:
            node = stack.pop()
            if node in seen or node in self.plan.stored:
                continue
            seen.add(node)
            if node.op in ORDERED:
                return False
            stack.extend(node.inputs)
        return output not in self.plan.stored

    def _sampled(self) -> bool:
        """Whether all large work is that of outputs of which some blocks are enough."""
        large = [n for n in self.plan.order if n in self.plan.stored and n.type.size > SAMPLE]
        dear = any(OPS[n.op].kind in ("contract", "reduce", "opaque") for n in self.plan.order)
        return not large and not dear and all(self._alike(o) for o in self.simple.outputs if o.type.size > SAMPLE)

    @property
    def noise(self) -> Noise:
        """What rounding explains, on its draws."""
        long = self.seconds >= LONG_SECONDS
        return Noise(self.simple.outputs, self.plan, self.seed, long, self._once, self._spend, self.deadline)

    @cached_property
    def _once(self) -> float:
        return reference_seconds(self.simple)

    def _spend(self, seconds: float) -> None:
        self.noised += seconds

    def boxes(self, number: int, kind: Kind) -> Sequence[Box]:
        output = self.simple.outputs[number]
        if self.drawn is not None:
            return self.drawn[number]
        found = blocks(output, self.plan)
        if output.type.size > SAMPLE and self._alike(output):
            rng = np.random.default_rng((self.seed, number, *kind.fill.encode()))
            found = first_and_some(found, SAMPLE, rng)
        return found if output.type.size else [whole(output.shape)]

    # One draw

    def examine(self, kind: Kind, plain: Sequence[np.ndarray] | None = None) -> Seen:
        """Compare on one draw. Raises ``VerificationError``, or :class:`Invalid` where the reference refuses it.

        Of arguments that are not the caller's, :class:`~eqsat.verify.noise.Undetermined` where rounding leaves no
        digit of an output; the others are compared first.

        ``plain``: what the user's function returned on these arguments; :class:`PlainDiffers` where that is not what
        the reference computes.
        """
        arrays = self._arrays(kind)
        look = self._look(arrays) if self.calls is None else None
        if look is None:
            ours, bound = self._with_calls(arrays, kind)
            look = self._look(arrays, bound)
        try:
            for number, output in enumerate(self.simple.outputs):
                look.exact.part(output, self.boxes(number, kind)[0])
        except (IndexError, ValueError) as error:
            raise Invalid from error
        if self.calls is None:
            ours = self._ours(arrays, look.exact, kind)
        seen = Seen([], [])
        if plain is not None:
            told = [self._plain_output(number, array, look, kind) for number, array in enumerate(plain)]
            look = replace(look, plain=[array if tells else None for array, tells in zip(plain, told, strict=True)])
        lost: Undetermined | None = None
        for number in range(len(self.simple.outputs)):
            try:
                self._output(number, ours[number], look, kind, seen)
            except Undetermined as error:
                lost = error
        if lost is not None:
            raise lost
        return seen

    def _arrays(self, kind: Kind) -> list[np.ndarray]:
        if kind is not draws.MIXED:
            return self.draws.draw(kind)
        outputs = enumerate(self.simple.outputs)
        return self.draws.draw(kind, demanded((o, box) for n, o in outputs for box in self.boxes(n, kind)))

    def examine_plain(self, arrays: Sequence[np.ndarray], plain: Sequence[np.ndarray]) -> None:
        """Hold results of the user's function on these arguments against the reference; as :meth:`examine` raises."""
        look = self._look(arrays)
        for number in range(len(self.simple.outputs)):
            self._plain_output(number, plain[number], look, draws.OWN)

    def _look(self, arrays: Sequence[np.ndarray], more: Mapping[Node, np.ndarray] | None = None) -> _Look:
        bound = {**dict(zip(self.draws.free, arrays, strict=True)), **self.constants, **(more or {})}
        exact = Evaluation(self.plan, bound, double=True, deadline=self.deadline)
        if self.seconds > DEAR_SECONDS:
            return _Look(bound, exact, Rounded(exact))
        return _Look(bound, exact, Evaluation(self.plan, bound, deadline=self.deadline))

    def _with_calls(
        self, arrays: list[np.ndarray], kind: Kind
    ) -> tuple[Sequence[np.ndarray], Mapping[Node, np.ndarray]]:
        """Results of the compiled program and operands of the calls in it, and the results of these."""
        assert self.calls is not None
        try:
            with noting() as noted:
                ours = self.run(arrays)
                bound, operands = self.calls.bind(arrays, noted)
        except Raised as error:  # the library refuses these arguments
            raise Invalid from (error.__cause__ or error)
        except ResultChangedError as error:
            raise Invalid from error
        except (IndexError, ValueError) as error:
            try:
                evaluate(self.calls.original, self._given(arrays))
            except Exception as same:
                raise Invalid from same
            raise self._raises(error, kind) from None
        return [*ours, *operands], bound

    def _given(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The values of all inputs of the program."""
        given = {**dict(zip(self.draws.free, arrays, strict=True)), **self.constants}
        return [np.asarray(given[node]) for node in self._program().inputs]

    def _program(self) -> Graph:
        return self.graph if self.calls is None else self.calls.original

    def _ours(self, arrays: list[np.ndarray], exact: Evaluation, kind: Kind) -> Sequence[np.ndarray]:
        try:
            return self.run(arrays)
        except (IndexError, ValueError) as error:
            full = Evaluation(self.everything, exact.bound, double=True, deadline=self.deadline)
            try:
                for output in self.simple.outputs:
                    for box in blocks(output, self.everything):
                        full.part(output, box)
            except (IndexError, ValueError) as same:
                raise Invalid from same
            raise self._raises(error, kind) from None
        except MemoryError:
            needs = sum(n.type.nbytes for n in self.graph.outputs)
            raise MemoryError(f"the program itself needs {mib(needs)} for its results, which there are not") from None

    def _output(self, number: int, ours: np.ndarray, look: _Look, kind: Kind, seen: Seen) -> None:
        """Compare one output, and note its error and which part of its elements is evidence."""
        output = self.simple.outputs[number]
        if ours.shape != output.shape:
            raise self._error(f"output {number} of the optimized program has shape {ours.shape}", kind)
        lossy = self.numerics == "approximates"
        survey = self._survey(number, ours, look, kind, lossy)
        if survey.boxes and isinstance(look.own, Rounded):
            # What NumPy is off by says more than what rounding may do, and takes one evaluation to know, not dozens.
            look = replace(look, own=Evaluation(self.plan, look.bound, deadline=self.deadline))
            survey = self._survey(number, ours, look, kind, lossy)
        error, excused = survey.error, 0
        for batch in self._batches(survey, ours, look, lossy):
            excused += self._excuse(batch, look, kind)
            errors = self.noise.errors(batch, survey.scale, look.bound, ours, drawn=kind is not draws.OWN)
            for suspect, one in zip(batch, errors, strict=True):
                self._judge(suspect, one, kind)
                error = OutputError(max(error.ours, one.ours), error.reference, max(error.allowed, one.allowed))
        seen.errors.append(error)
        seen.telling.append((survey.finite - excused) / max(1, survey.total) if survey.total else 1.0)

    def _suspect(self, number: int, box: Box, ours: np.ndarray, look: _Look, lossy: bool, **whole: Any) -> Suspect:
        """A block of an output, to be looked at. ``lossy``: only where the reference is finite something can be wrong.

        ``whole``: what is known of the whole output.
        """
        output = self.simple.outputs[number]
        try:
            e, u = look.exact.part(output, box), part(ours, box)
            plain = None if look.plain is None else look.plain[number]
            r = look.own.part(output, box) if plain is None else part(plain, box)
        except (IndexError, ValueError) as error:
            raise Invalid from error
        if number in self.complex:
            if number in self._quotients and plain is not None:
                r = replaced(r, beside_infinity(r, e), e)
            elif number in self._quotients and look.judges_plain:
                u = replaced(u, beside_infinity(u, r), r)
            u = replaced(u, both_nan(u, r), r)
        if lossy and is_floating(r):
            u = np.where(np.isfinite(r) & np.isfinite(e), u, r).astype(u.dtype, copy=False)
        return Suspect(number, box, u, e, r, self._signs_matter(output), **whole)

    @cached_property
    def _quotients(self) -> frozenset[int]:
        return quotients(self.graph)

    def _survey(self, number: int, ours: np.ndarray, look: _Look, kind: Kind, lossy: bool = False) -> Survey:
        output = self.simple.outputs[number]
        scale, finite, total, largest = Scale(), 0, 0, 0.0
        found: list[tuple[float, Box]] = []
        boxes = self.boxes(number, kind)
        sizes = ErrorsBySize() if len(boxes) > 1 and output.dtype.is_float else None
        for box in boxes:
            one = self._suspect(number, box, ours, look, lossy)
            scale = scale.over(scale_of(one.exact, one.reference))
            if sizes is not None:
                sizes.add(one.exact, one.reference)
            if one.plain():
                largest = max(largest, one.error.ours)
            else:
                found.append((one.error.ours, box))  # and not its values, which all together may be too large
            finite += int(np.count_nonzero(np.isfinite(one.reference)))
            total += one.reference.size
        found.sort(key=lambda pair: -pair[0])
        allowed = scale.allowed(output.dtype.numpy) if output.dtype.is_float else 0.0
        error = OutputError(largest, scale.theirs, allowed)
        return Survey(number, [box for _, box in found], scale, sizes, error, finite, total)

    def _batches(self, survey: Survey, ours: np.ndarray, look: _Look, lossy: bool = False) -> Iterator[list[Suspect]]:
        """The suspicious blocks, a few at a time, seen as parts of the whole output."""
        known = {"scale": survey.scale, "errors": survey.errors}
        for at in range(0, len(survey.boxes), BATCH):
            yield [
                self._suspect(survey.number, box, ours, look, lossy, **known) for box in survey.boxes[at : at + BATCH]
            ]

    def _judge(self, suspect: Suspect, error: OutputError, kind: Kind) -> None:
        """Raise ``VerificationError`` for a suspect whose error, given what noise allows, is too large."""
        if not error.ok:
            raise self._error(
                f"output {suspect.output} is off by {error.ours:.3g}, allowed {error.allowed:.3g} "
                f"(NumPy's own error is {error.reference:.3g})",
                kind,
                OVERFLOWS if suspect.held else "",
            )
        if suspect.wrong_signs().any():
            raise self._error(f"output {suspect.output} has zeros of the wrong sign", kind)

    @cached_property
    def _finite_constants(self) -> bool:
        """Whether normal draws meet no infinity or NaN: captured arrays hold what the user put there."""
        held = [node.attrs.array for node in self.simple.nodes() if isinstance(node.attrs, ConstArray)]
        return all(not is_floating(a) or bool(np.isfinite(a).all()) for a in (*held, *self.constants.values()))

    def _signs_matter(self, output: Node) -> bool:
        """Whether zeros must have NumPy's sign: it is part of an ``exact`` result that no combination makes."""
        if self.numerics != "exact" or not output.dtype.is_float:
            return False
        free = ("contract", "reduce", "opaque", "composite")
        return not any(
            OPS[n.op].kind in free or n.op in ("maximum", "minimum", "relu", "round", "remainder", "floor_divide")
            for n in self.simple.nodes()
        )

    def _excuse(self, batch: Sequence[Suspect], look: _Look, kind: Kind) -> int:
        """Excuse elements that hang on values which the order of evaluation is free to choose, or which the program may
        lose; on the caller's own arguments only where what the function returned is not finite, and on normal ones,
        where only captured infinities are met, only where one of both results is not. How many there are."""
        lossy = self.numerics == "approximates"
        suspects = [s for s in batch if not s.plain()]
        bounded = kind is draws.NORMAL and not any(of_loop(n) for n in self.simple.nodes())  # trips may grow anything
        tame = bounded and self._finite_constants
        if not suspects or (tame and not lossy):
            return 0
        ordered = self.numerics == "exact" and not any(
            OPS[n.op].kind in ("contract", "reduce", "opaque") for n in self.simple.nodes()
        )
        known = Escapes(undefined=not tame, special=lossy)
        free = replace(known, range=not tame and not ordered)
        places = self.noise.places(suspects, 2 * ESCAPES)
        compared = free.range and (look.plain is not None or bounded)

        def excused(moved: list[np.ndarray]) -> bool:
            return not compared and all(s.is_excused(m) for s, m in zip(suspects, moved, strict=True))

        moved = moves(places, self.plan, look.bound, free, self.deadline, excused)
        if compared:
            held = moves(places, self.plan, look.bound, known, self.deadline)
            for n, suspect in enumerate(suspects):
                if look.plain is not None:
                    finite = np.isfinite(suspect.reference)
                    suspect.held = bool((finite & (moved[n] > held[n])).any())
                else:
                    finite = np.isfinite(suspect.ours) & np.isfinite(suspect.reference)
                moved[n] = np.where(finite, held[n], moved[n])
        return sum(s.excuse(m) for s, m in zip(suspects, moved, strict=True))

    # The plain function

    def _plain_output(self, number: int, plain: np.ndarray, look: _Look, kind: Kind) -> bool:
        """Hold what the user's function returned against the trace. Whether it tells how far from float64 to be."""
        look = replace(look, judges_plain=True)
        survey = self._survey(number, plain, look, kind)
        if all(s.plain() for batch in self._batches(survey, plain, look) for s in batch):
            return True
        # By blocks, sums round less than NumPy's over a whole first axis; the function was run, so all of it fits.
        everything = storage(self.simple.outputs, self.graph.inputs, None)
        look = replace(look, own=AsRun(everything, look.bound, deadline=self.deadline))
        survey = self._survey(number, plain, look, kind)
        for batch in self._batches(survey, plain, look):
            if all(e.ok for e in self.noise.errors(batch, survey.scale, look.bound, plain)):
                continue
            # Where infinities meet, NumPy's libraries have an order of their own: of complex numbers too, part by part.
            places = self.noise.places(batch, 2 * ESCAPES)
            moved = moves(places, self.plan, look.bound, Escapes(range=True), self.deadline)
            for suspect, move in zip(batch, moved, strict=True):
                tame = is_floating(suspect.ours) and np.isfinite(suspect.ours) & np.isfinite(suspect.exact)
                suspect.excuse(np.where(tame, 0.0, move))
            if not all(e.ok for e in self.noise.errors(batch, survey.scale, look.bound, plain)):
                if self._shrinks(number, plain, look, kind):
                    return False
                raise PlainDiffers(number)
        return True

    @cached_property
    def _plain_double(self) -> Sequence[np.ndarray] | None:
        return None if self.in_double is None else self.in_double()

    def _shrinks(self, number: int, plain: np.ndarray, look: _Look, kind: Kind) -> bool:
        """See :mod:`eqsat.verify.shrinking`."""
        output = self.simple.outputs[number]
        if not of_sums(output):
            return False
        self.deadline.check("verifying")
        if (double := self._plain_double) is None:
            return False
        boxes = self.boxes(number, kind)
        parts = ((look.exact.part(output, box), part(plain, box), part(double[number], box)) for box in boxes)
        return shrinks(parts, output.dtype.numpy)

    # Errors

    def _raises(self, error: Exception, kind: Kind) -> VerificationError:
        what = f"the optimized program raises {type(error).__name__}: {error}, where the reference does not"
        return self._error(what, kind)

    def _error(self, what: str, kind: Kind, advice: str = "") -> VerificationError:
        arrays: list[np.ndarray] | None = None
        if kind is not draws.NORMAL:
            arrays = self._given(self._arrays(kind))
        return VerificationError(
            f"the optimized program differs from the reference on {kind.text}: {what}; it is not used{advice}",
            program(self._program(), seed=self.seed, options=self.options, arguments=arrays),
        )


def mib(nbytes: float) -> str:
    """A size in words."""
    return f"{nbytes / 2**20:,.0f} MiB"
