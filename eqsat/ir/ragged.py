"""Loops, and loops in loops, of steps whose lengths change; the steps were traced one by one, each by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.ir import build
from eqsat.ir.identity import identity
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, loop
from eqsat.ir.node import ConstArray, Graph, Node, substitute, topological
from eqsat.ir.padded import Body, Unfit, Value
from eqsat.ir.sources import IotaAttrs
from eqsat.ir.stretches import LEAST_TRIPS
from eqsat.ir.types import TensorType
from eqsat.ir.views import ViewMap

__all__ = ["Segment", "Unfit", "ragged", "stepped"]

MOST_SINGLE = 12
"""Steps that are in no loop, such as the first and last ones, whose lengths are 0 or 1."""


@dataclass(frozen=True)
class Segment:
    """What is computed between two points of the code: ``outputs``, of the ``inputs`` that stand for values there."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    def key(self) -> tuple[object, ...]:
        """What segments that may be trips of one loop have in common: all but lengths, offsets and constants."""
        numbers: dict[Node, int] = {}
        found: list[object] = []
        for node in topological(self.outputs):
            numbers[node] = len(numbers)
            about: object = identity(node.attrs)
            if isinstance(node.attrs, (ViewMap, ConstArray)):
                about = None
            elif isinstance(node.attrs, IotaAttrs):
                about = node.dtype
            elif isinstance(node.attrs, PadAttrs):
                about = identity(node.attrs.value)
            shape = node.shape
            found.append((node.op, tuple(numbers[i] for i in node.inputs), node.dtype, len(shape), 0 in shape, about))
        return (self.inputs, *found, *(numbers[node] for node in self.outputs))


@dataclass(frozen=True)
class _Step:
    """The segments of one step, those that follow each other and are alike together."""

    outline: tuple[object, ...]
    runs: tuple[tuple[Segment, ...], ...]


def _step(segments: Sequence[Segment]) -> _Step:
    runs = [(key, tuple(run)) for key, run in itertools.groupby(segments, Segment.key)]
    return _Step(tuple(key for key, _ in runs), tuple(run for _, run in runs))


def ragged(steps: Sequence[Sequence[Segment]]) -> bool:
    """Whether some step is like the one before it, and differs from it in lengths."""
    found = list(map(_step, steps))
    return any(
        one.outline == other.outline and _types(one) != _types(other) for one, other in itertools.pairwise(found)
    )


def _types(step: _Step) -> list[list[TensorType]]:
    """Of what is computed and of what, without the parts around a write, which any write of a row has."""
    return [
        [value.type for node in topological(segment.outputs) if node.op not in ("view", "concat")
         for value in (node, *node.inputs)]
        for run in step.runs for segment in run
    ]  # fmt: skip


def stepped(before: Sequence[Node], steps: Sequence[Sequence[Segment]]) -> list[Node]:
    """The values after all steps, which the first one finds as ``before``.

    Raises ``Unfit`` where too few of them are alike.
    """
    now, single = list(before), 0
    for _, group in itertools.groupby(map(_step, steps), lambda step: step.outline):
        found = list(group)
        if len(found) >= LEAST_TRIPS:
            now = _loop(now, found)
            continue
        single += len(found)
        if single > MOST_SINGLE:
            raise Unfit
        for run in itertools.chain.from_iterable(step.runs for step in found):
            if len(run) >= LEAST_TRIPS:
                now = _loop(now, [_step([segment]) for segment in run])
                continue
            for segment in run:
                now = substitute(segment.outputs, dict(zip(segment.inputs, now, strict=True)))
    return now


def _kept(step: _Step) -> list[int | None]:
    """Which of the values that a step begins with each one that it ends with is; None for others."""
    origin: list[int | None] = list(range(len(step.runs[0][0].inputs)))
    for segment in itertools.chain.from_iterable(step.runs):
        found = dict(zip(segment.inputs, origin, strict=True))
        origin = [found.get(node) for node in segment.outputs]
    return origin


def _loop(before: Sequence[Node], steps: Sequence[_Step]) -> list[Node]:
    """The values after steps that are trips of one loop."""
    kept = list(map(_kept, steps))
    changed = [n for n in range(len(before)) if any(origin[n] != n for origin in kept)]
    body = Body(len(steps))
    now = [
        body.carried(node.type) if n in changed else body.whole(None, node.type, node) for n, node in enumerate(before)
    ]
    for number in range(len(steps[0].runs)):
        runs = [step.runs[number] for step in steps]
        if all(len(run) == 1 for run in runs):
            given = dict(zip(runs[0][0].inputs, now, strict=True))
            now = body.run([run[0].outputs for run in runs], given)
        else:
            now = _inside(body, runs, now)
    outputs = [body.node(now[n]) for n in changed]
    made = Loop(body.trips, Graph(tuple(body.inputs), tuple(outputs)), len(changed), tuple(body.moved))
    results = loop(made, [*(before[n] for n in changed), *body.others])
    return [results[changed.index(n)] if n in changed else node for n, node in enumerate(before)]


def _inside(outer: Body, runs: Sequence[Sequence[Segment]], now: Sequence[Value]) -> list[Value]:
    """The values after a loop in each trip of another, as often as the longest of them: other trips change nothing."""
    most = max(map(len, runs))
    trips = [run[min(j, len(run) - 1)] for run in runs for j in range(most)]
    active = np.array([[j < len(run)] for run in runs for j in range(most)])
    inputs = trips[0].inputs
    if len(inputs) != len(trips[0].outputs):
        raise Unfit
    changed = [n for n, node in enumerate(inputs) if any(trip.outputs[n] is not node for trip in trips)]
    body = Body(len(trips), windows=False)
    given = {
        node: body.carried(node.type) if n in changed else body.whole(None, node.type, outer.node(now[n]))
        for n, node in enumerate(inputs)
    }
    values = body.run([trip.outputs for trip in trips], given)
    outputs = [body.node(values[n]) for n in changed]
    if not active.all():
        runs_on = build.reshape(body.row(active), ())
        outputs = [
            build.call("where", runs_on, o, given[inputs[n]].node or o) for o, n in zip(outputs, changed, strict=True)
        ]
    operands = [outer.node(now[n]) for n in changed]
    for node, step in zip(body.others, body.moved, strict=True):
        operands.append(outer.operand(node, step * most) if isinstance(node.attrs, ConstArray) else node)
    made = Loop(most, Graph(tuple(body.inputs), tuple(outputs)), len(changed), tuple(body.moved))
    results = loop(made, operands)
    after = list(now)
    for result, n in zip(results, changed, strict=True):
        after[n] = outer.whole(result, result.type)
    return after
