"""A plan: kernels in order over numbered tensors. What a backend compiles, and what is remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.egraph.saturated import SaturationReport
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.loop import window
from eqsat.ir.nest import Nest
from eqsat.ir.node import Node
from eqsat.ir.opaque import Call, call_alone
from eqsat.ir.types import TensorType
from eqsat.schedule import Candidate


@dataclass(frozen=True)
class KernelStep:
    """One kernel group; its operands are the tensors ``tensors``. ``chosen``: None where nothing could be searched."""

    group: KernelGroup
    tensors: tuple[int, ...]
    chosen: Candidate | None
    label: str

    @property
    def nest(self) -> Nest | None:
        return self.chosen.nest if self.chosen else None

    @property
    def seconds(self) -> float:
        """Predicted, with the threads that the nest was chosen for."""
        return self.chosen.seconds if self.chosen else 0.0


@dataclass(frozen=True)
class ReferenceStep:
    """Operators without a kernel: ``values`` over ``input`` nodes 0, 1, … (= ``reads``) go to ``tensors``.

    They are computed by the reference, or are the results of one call of a library function, made once (``call``).
    ``seconds`` is predicted, on one thread.
    """

    values: tuple[Node, ...]
    reads: tuple[int, ...]
    tensors: tuple[int, ...]
    label: str
    seconds: float = 0.0

    @property
    def call(self) -> Call | None:
        """The library function that is called, where the step is nothing else."""
        return call_alone(self.values)

    def joined(self, other: ReferenceStep) -> ReferenceStep | None:
        """One step for both, where they take results of one call."""
        calls = {call.key for call in (self.call, other.call) if call is not None}
        same = self.call is not None and other.call is not None and len(calls) == 1
        if not same or self.reads != other.reads or self.values[0].inputs != other.values[0].inputs:
            return None
        values, tensors = (*self.values, *other.values), (*self.tensors, *other.tensors)
        return replace(self, values=values, tensors=tensors, seconds=self.seconds + other.seconds)


Step = KernelStep | ReferenceStep


@dataclass(frozen=True)
class Repeat:
    """Steps ``begin`` to ``end`` (exclusive) of a plan that run ``trips`` times; tensors are named as those steps do.

    ``carries``: (before, read, written): what the first trip reads as ``read`` is ``before``, each other one what the
    trip before wrote as ``written``. ``finals``: (number among ``carries``, what it is called behind the loop).
    ``windows``: (tensor, read, step): a trip reads as ``read`` the part of a tensor that moves by ``step`` elements on
    each (see :class:`eqsat.ir.loop.Loop`). ``stacked``: (written, whole): what a trip writes is its row of ``whole``.
    ``conditional``: it ends before the first trip that reads False as its first carried value; ``trips`` are a guess.
    ``trial``: whether it is tried for fewer trips (:func:`eqsat.ir.loop.trial_trips`). ``copies``: as there.
    """

    begin: int
    end: int
    trips: int
    carries: tuple[tuple[int, int, int], ...]
    windows: tuple[tuple[int, int, int], ...]
    stacked: tuple[tuple[int, int], ...]
    finals: tuple[tuple[int, int], ...]
    trial: bool = False
    conditional: bool = False
    copies: int = 1

    @property
    def reads(self) -> list[int]:
        """Tensors from outside that are named otherwise inside."""
        return [before for before, _, _ in self.carries] + [tensor for tensor, _, _ in self.windows]

    @property
    def writes(self) -> list[int]:
        """Tensors that are there when the loop has ended."""
        return [tensor for _, tensor in self.finals] + [whole for _, whole in self.stacked]


@dataclass
class SearchReport:
    """How the program was found. Times are in seconds; ``rules``: how often each one is in the winner
    (see :mod:`eqsat.extract.provenance`).

    ``extractions_late``: regions whose selection the clock stopped, so that another run may select otherwise.
    ``extractions_cut``: those whose selection ended at a limit, of work or time, before it was known to be the best.
    ``loop_matches``: how often each loop rule matched, over the e-graphs that kernels' nests were searched in.
    ``untuned``: kernels whose schedules there was no time to measure, or no worker that could.
    ``predicted``: seconds of all kernels on the ``team`` of threads that a call is given.
    ``records``: keys of the tuning records that were looked for, and what was chosen (``eqsat.records.mark``).
    """

    operators: int = 0
    regions: int = 0
    distinct_regions: int = 0
    saturations: list[SaturationReport] = field(default_factory=list)
    extraction_gap: float = 0.0
    extractions_late: int = 0
    extractions_cut: int = 0
    predicted: float = 0.0
    team: int = 1
    saturation_seconds: float = 0.0
    extraction_seconds: float = 0.0
    schedule_seconds: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)
    loop_terms: int = 0
    loop_matches: dict[str, int] = field(default_factory=dict)
    untuned: int = 0
    records: dict[str, str] = field(default_factory=dict)

    @property
    def stops(self) -> list[str]:
        """Why saturations stopped, each reason once; ``untuned`` where the tuning of schedules was cut short."""
        return list(dict.fromkeys([*(s.stop for s in self.saturations), *(["untuned"] if self.untuned else [])]))

    @property
    def seconds(self) -> float:
        return self.saturation_seconds + self.extraction_seconds + self.schedule_seconds


@dataclass(frozen=True)
class Plan:
    """``inputs[i]``: tensor of the program's ``i``-th argument that is not constant.

    ``constants``: tensors computed when the program is compiled, as nodes over constants and constant inputs.
    ``repeats``: which steps are loops' bodies, outer loops before those inside of them. ``origins``: nodes of the
    program, or of its loops' bodies, that have the value of a tensor; of one that is in no line of the program, those
    that it is made for. ``fuses``: reductions may add products unrounded.
    """

    types: dict[int, TensorType]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: dict[int, Node]
    steps: tuple[Step, ...]
    report: SearchReport
    repeats: tuple[Repeat, ...] = ()
    origins: Mapping[int, tuple[Node, ...]] = field(default_factory=dict)
    fuses: bool = True

    def ends(self) -> list[list[int]]:
        """For each output, where the stores of its steps begin and end: positions in row-major order."""
        found: dict[int, set[int]] = {}
        for step in self.steps:
            if isinstance(step, ReferenceStep):
                continue
            for stage in step.group.stages:
                if stage.result is not None:
                    kernel = stage.kernel
                    walks = [(n - 1) * s for n, s in zip(kernel.extents, kernel.store_strides, strict=False)]
                    first = kernel.store_offset + sum(w for w in walks if w < 0)
                    last = kernel.store_offset + sum(w for w in walks if w > 0)
                    found.setdefault(step.tensors[stage.result], set()).update((first, last))
        return [sorted(found.get(number, ())) for number in self.outputs]


def trips_of(steps: int, repeats: Iterable[Repeat]) -> list[int]:
    """How often each of so many steps runs in a call."""
    return _multiplied(steps, [(repeat, repeat.trips) for repeat in repeats])


def copies_of(steps: int, repeats: Iterable[Repeat]) -> list[int]:
    """How many trips of the program's loops are one of the plan's, for each of so many steps."""
    return _multiplied(steps, [(repeat, repeat.copies) for repeat in repeats])


def _multiplied(steps: int, factors: Iterable[tuple[Repeat, int]]) -> list[int]:
    found = [1] * steps
    for repeat, factor in factors:
        for number in range(repeat.begin, repeat.end):
            found[number] *= factor
    return found


def first_trip(repeat: Repeat, values: dict[int, np.ndarray]) -> None:
    """Name what the first trip of a loop reads."""
    values.update((read, values[before]) for before, read, _ in repeat.carries)
    values.update((read, window(values[t], step, repeat.trips, 0)) for t, read, step in repeat.windows)


def as_after(repeat: Repeat, values: dict[int, np.ndarray]) -> None:
    """Name what a loop leaves, in arrays of the right types that hold what its first trip made."""
    values.update((tensor, values[repeat.carries[k][2]]) for k, tensor in repeat.finals)
    for written, whole in repeat.stacked:
        row = values[written]
        values[whole] = np.broadcast_to(row, (repeat.trips, *row.shape)).copy()
