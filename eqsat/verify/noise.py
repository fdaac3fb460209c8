"""What rounding explains: suspects of one output held against references in which every value carries noise.

Functions that jump turn the last bit of a float into another answer. So a suspect outside its bound is compared with
references that are run again with noise of a few units in the last place on every value, and a single element that is
wrong by itself with what that noise does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqsat.deadline import Deadline
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import finfo, is_floating
from eqsat.verify.blocks import Storage
from eqsat.verify.bounds import GROSS, GROSS_FACTOR, ULPS, OutputError, Scale, among, compare, least_move
from eqsat.verify.boxes import Box, part, volume
from eqsat.verify.rounding import RUNS, Jittered, changes, element_noise, largest_noise
from eqsat.verify.suspects import Suspect
from eqsat.verify.ties import jumps_before, nearly_right

NOISE = 16.0
"""Units in the last place of the noise on every value."""
FINE = 1.0
SAMPLES = 18
MORE_SAMPLES = 144
"""Where positions among near ties decide, which few samples show too little of."""
NOISE_FACTOR = 16.0
GROSS_RUNS = 8
LOST = 0.1
"""Part of its value by which noise moves an element of which it leaves no digit."""
NOISY = 3.0
"""Times as long as the reference alone that an evaluation with changed values takes."""
TAME = 16.0
"""Times as far as all others together that one of so many evaluations with noise moves one of a million elements at
most, where the noise has no heavy tail (7 normal numbers are all below 1/r of another with probability of ~r^-7)."""
SAMPLE = 1 << 19
"""Elements of an output that are compared in one draw, where the others are computed alike."""
ORDERED = frozenset({"argmax", "argmin", "concat", "pad", "iota", *(name for name, op in OPS.items() if op.sorts)})
"""Operators whose results hang on the order or the places of elements."""


class Undetermined(Exception):
    """Rounding leaves no digit of a result that is outside its bound: it says nothing of the program."""


@dataclass
class Noise:
    """Runs references of ``outputs`` with noise, by a plan of their evaluation."""

    outputs: Sequence[Node]
    plan: Storage
    seed: int
    long: bool
    """Whether a draw takes so long that fewer runs have to do."""
    once: float
    """Estimated seconds of an evaluation of the whole reference."""
    spend: Callable[[float], None]
    """Told the estimated seconds of evaluations with changed values."""
    deadline: Deadline

    def places(self, suspects: Sequence[Suspect], evaluations: int) -> list[tuple[Node, Box]]:
        """Outputs and blocks of suspects, which are about to be evaluated so often with changed values."""
        places = [(self.outputs[s.output], s.box) for s in suspects]
        parts = [1.0 if node in self.plan.stored else volume(box) / node.type.size for node, box in places]
        stored = any(node in self.plan.stored for node, _ in places)
        self.spend(NOISY * evaluations * self.once * (1.0 if stored else min(1.0, sum(parts))))
        return places

    def errors(
        self,
        suspects: Sequence[Suspect],
        scale: Scale,
        bound: dict[Node, np.ndarray],
        ours: np.ndarray,
        *,
        drawn: bool = False,
    ) -> list[OutputError]:
        """The errors of suspects of one output, and of their single elements, after what rounding noise explains.

        ``drawn``: the arguments are not the caller's: raises :class:`Undetermined` where noise leaves no digit of one
        that is wrong.
        """
        errors = [s.error for s in suspects]
        pending = [n for n, e in enumerate(errors) if not e.ok]
        for n, error in zip(
            pending, self._under_noise([suspects[n] for n in pending], scale, bound, ours, drawn), strict=True
        ):
            errors[n] = error
        gross = [n for n, e in enumerate(errors) if e.ok and suspects[n].gross().any()]
        for n, single in zip(gross, self._each_element([suspects[n] for n in gross], bound), strict=True):
            errors[n] = single or errors[n]
        if drawn and is_floating(ours):
            self._determined((s for s, e in zip(suspects, errors, strict=True) if not e.ok), bound, GROSS_RUNS)
        return errors

    def _determined(self, suspects: Iterable[Suspect], bound: dict[Node, np.ndarray], runs: int) -> None:
        """Raise :class:`Undetermined` where noise moves half of the finite elements by ``LOST`` of their own value."""
        for suspect in suspects:
            size = np.abs(np.asarray(suspect.exact, np.float64))
            worst = np.zeros(size.shape)
            for (change,) in changes(self.places([suspect], 2 * runs), self.plan, bound, runs, self.deadline):
                worst = np.maximum(worst, np.where(np.isfinite(change), change, np.inf))
                told = np.isfinite(size) & ((size > 0) | (worst > 0))
                lost = np.isfinite(worst) & (worst >= LOST * size)  # what noise makes infinite may do so through a mask
                if told.any() and np.mean(lost[told]) >= 0.5:
                    raise Undetermined

    def _under_noise(
        self,
        suspects: Sequence[Suspect],
        scale: Scale,
        bound: dict[Node, np.ndarray],
        ours: np.ndarray,
        drawn: bool,
    ) -> list[OutputError]:
        if not suspects:
            return []
        runs = 1 if self.long else RUNS
        rounds = is_floating(suspects[0].ours)
        places = self.places(suspects, 2 * runs * rounds)
        noise = [0.0] * len(places)
        if rounds:
            noise = largest_noise(places, self.plan, bound, runs=runs, deadline=self.deadline)
        errors = [
            replace(s.error, allowed=s.error.allowed + NOISE_FACTOR * n) for s, n in zip(suspects, noise, strict=True)
        ]
        if all(e.ok for e in errors):
            return errors
        if drawn and rounds:  # before more is asked of what has no digits
            self._determined((s for s, e in zip(suspects, errors, strict=True) if not e.ok), bound, runs)
        output = places[0][0]
        tied = nearly_right(output, ours, bound, NOISE_FACTOR, ULPS) if ours.size <= SAMPLE else None
        settled = tied is not None and not jumps_before(output)
        samples: list[list[np.ndarray]] = []
        ordered = any(n.op in ORDERED for n in self.plan.order)
        for count in (SAMPLES, MORE_SAMPLES):
            if not settled:
                self.places(suspects, count - len(samples))
                samples += self._samples(places, bound, count, len(samples))
            for n, s in enumerate(suspects):
                if not errors[n].ok:
                    among_ties = None if tied is None else part(tied, s.box)
                    seen = [one[n] for one in samples]
                    again = compare(s.ours, s.exact, s.reference, seen, among_ties, scale, ordered=ordered)
                    errors[n] = replace(again, allowed=again.allowed + NOISE_FACTOR * noise[n])
            if all(e.ok for e in errors) or not ordered:
                break
        return errors

    def _samples(
        self, places: Sequence[tuple[Node, Box]], bound: dict[Node, np.ndarray], count: int, first: int = 0
    ) -> list[list[np.ndarray]]:
        """The reference of these places, with every value moved by up to ``NOISE`` units, a few times.

        Every third time only what was computed, by up to ``FINE``: what jumps there lands close to the jump's edges.
        """
        found = []
        for run in range(first, count):
            fine = run % 3 == 2
            reach = FINE if fine else NOISE
            moved = Jittered(self.plan, bound, self.seed + run, reach, self.deadline, inputs=not fine)
            found.append([moved.part(*place) for place in places])
        return found

    def _each_element(self, suspects: Sequence[Suspect], bound: dict[Node, np.ndarray]) -> list[OutputError | None]:
        """The error of the worst element of each that is wrong by itself, whatever rounding does to it."""
        if not suspects:
            return []
        runs = RUNS if self.long else GROSS_RUNS
        places = self.places(suspects, 2 * runs)
        reach = self._reach(suspects, places, bound, runs)
        wrong = [s.gross() for s in suspects]
        with np.errstate(all="ignore"):
            off = [np.abs(s.ours - s.exact.astype(np.float64)) for s in suspects]
            if runs < GROSS_RUNS and any((w & (o > r)).any() for w, o, r in zip(wrong, off, reach, strict=True)):
                reach = self._reach(suspects, places, bound, GROSS_RUNS)
            for mask, error, moves in zip(wrong, off, reach, strict=True):
                mask &= error > moves
            if any(mask.any() for mask in wrong):
                self.places(suspects, SAMPLES)
                samples = self._samples(places, bound, SAMPLES)
                for n, s in enumerate(suspects):
                    seen = [s.reference, s.exact, *(one[n] for one in samples)]
                    least = least_move(s.exact, seen[2:])
                    wrong[n] &= ~among(s.ours, seen, np.fmax(reach[n], least))
        found: list[OutputError | None] = []
        for s, mask, error, moves in zip(suspects, wrong, off, reach, strict=True):
            if not mask.any():
                found.append(None)
                continue
            worst = np.where(mask, error, 0)
            at = np.unravel_index(int(worst.argmax()), worst.shape)
            allowed = max(float(moves[at]), GROSS * abs(float(s.exact[at])))
            found.append(OutputError(float(worst[at]), abs(float(s.reference[at]) - float(s.exact[at])), allowed))
        return found

    def _reach(
        self, suspects: Sequence[Suspect], places: Sequence[tuple[Node, Box]], bound: dict[Node, np.ndarray], runs: int
    ) -> list[np.ndarray]:
        """How far rounding may move every element of suspects, as ``runs`` evaluations with noise show."""
        found = []
        for s, moves in zip(
            suspects, element_noise(places, self.plan, bound, runs=runs, deadline=self.deadline), strict=True
        ):
            tail: float | np.ndarray = 1.0
            if runs >= GROSS_RUNS and is_floating(s.ours):
                unit = float(finfo(s.ours.dtype).eps)
                tail = np.maximum(1.0, moves.outgrown(s.exact, unit) / TAME)
            found.append(GROSS_FACTOR * tail * moves.worst)
        return found
