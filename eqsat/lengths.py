"""Functions that are called with arrays of lengths that change: kernels of some plan take the length as an argument.

A length is how long one or several axes of the arguments are, all alike: the positions of a cache, the rows of a batch.
After some programs that differ in it alone, a plan is made for all lengths of a range (:mod:`eqsat.plan.sized`). Each
further length is traced, so that what the function does with it counts, and that trace must be what those for other
lengths say; then its kernels are those that are there, and the length is one of their arguments.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.compiled import Compiled
from eqsat.cost.machine import Machine
from eqsat.deadline import Deadline
from eqsat.frontends.pytree import Key
from eqsat.frontends.trace import Traced, trace
from eqsat.growth import VALUES, ends_of_key, is_array
from eqsat.held import Held, all_held
from eqsat.ir.node import ConstArray
from eqsat.ir.opaque import calls_of
from eqsat.ir.serialize import nodes_to_json, type_to_json
from eqsat.options import Options
from eqsat.plan.backend import backend
from eqsat.plan.plan import Plan
from eqsat.plan.sized import Alike, At, Misfit, SizedPlan, fitted
from eqsat.planned import planned
from eqsat.remembered import Given, Record, report_of
from eqsat.verify.plain import Plain

log = logging.getLogger("eqsat")

LEAST = 16
"""The least length that a plan is shared with others for: shorter axes have plans of their own."""

RATIO = 4
"""The longest length of a range to the shortest, nearly: what is a good plan depends on it."""

SEARCHED = 8
"""Lengths at most for which a plan is searched, until there are three plans that differ in numbers alone."""

BYTES = 256 << 20
"""Arguments of the longest length at most: a plan is verified for it, too."""

GRAIN = 64
"""Elements that loops mostly take at once: what a kernel looks like depends on what is left over."""

MOST = 256
"""Lengths that are remembered to change, or not."""


@dataclass(frozen=True)
class Changing:
    """Axes (argument, axis) that are ``length`` long in a call; ``rest``: all else that tells such calls apart."""

    length: int
    axes: tuple[tuple[int, int], ...]
    rest: Hashable

    @property
    def range(self) -> tuple[int, int]:
        """The shortest and the longest length of the plan that this one is for."""
        low = LEAST
        while low * RATIO <= self.length:
            low *= RATIO
        return low, low * RATIO - 1

    def nbytes(self, leaves: Sequence[np.ndarray], length: int) -> Iterator[int]:
        """Of the arrays that ``resized`` makes."""
        changed = collections.Counter(number for number, _ in self.axes)
        return (leaf.nbytes * length ** changed[i] // self.length ** changed[i] for i, leaf in enumerate(leaves))

    def resized(self, leaves: Sequence[Any], length: int) -> list[np.ndarray]:
        """Arrays of another length, of the elements of these."""
        found = [np.asarray(leaf) for leaf in leaves]
        shapes = [list(leaf.shape) for leaf in found]
        for number, axis in self.axes:
            shapes[number][axis] = length
        return [np.resize(leaf, shape) for leaf, shape in zip(found, shapes, strict=True)]


class Lengths:
    """Which lengths change between the calls of one function, and what there is for them.

    ``names``: the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._seen: dict[tuple[Hashable, Hashable], set[int]] = {}
        self._ranges: dict[tuple[Hashable, Hashable, int], Range | None] = {}

    def compiled(self, key: Key) -> None:
        """There is a program for calls with this key alone."""
        ends = ends_of_key(self.names, key)
        for length in {n for _, part in ends if is_array(part) for n in part[0]}:
            arrays = [part[0] for _, part in ends if is_array(part)]
            axes = tuple((i, a) for i, shape in enumerate(arrays) for a, n in enumerate(shape) if n == length)
            if len(self._seen) >= MOST:
                del self._seen[next(iter(self._seen))]
            self._seen.setdefault((axes, _rest(ends, axes)), set()).add(length)

    def changing(self, key: Key) -> Changing | None:
        """What has changed between enough programs that are like what this call needs."""
        ends = ends_of_key(self.names, key)
        arrays = [part[0] for _, part in ends if is_array(part)]
        for (axes, rest), lengths in list(self._seen.items()):
            assert isinstance(axes, tuple)
            if len(lengths) < VALUES or any(i >= len(arrays) or a >= len(arrays[i]) for i, a in axes):
                continue
            here = {arrays[i][a] for i, a in axes}
            if len(here) == 1 and min(here) >= LEAST and rest == _rest(ends, axes):
                return Changing(here.pop(), axes, rest)
        return None

    def known(self, of: Changing) -> bool:
        """Whether it is known what becomes of such lengths."""
        return (of.axes, of.rest, of.range[0]) in self._ranges

    def find(self, of: Changing) -> Range | None:
        return self._ranges.get((of.axes, of.rest, of.range[0]))

    def keep(self, of: Changing, made: Range | None) -> None:
        while len(self._ranges) >= MOST:
            del self._ranges[next(iter(self._ranges))]
        self._ranges[of.axes, of.rest, of.range[0]] = made


def _rest(ends: Sequence[tuple[str, Any]], axes: Sequence[tuple[int, int]]) -> Hashable:
    """A key without the lengths of some axes."""
    masked, found, number = set(axes), [], 0
    for path, part in ends:
        if is_array(part):
            shape = tuple(None if (number, a) in masked else n for a, n in enumerate(part[0]))
            part, number = (shape, *part[1:]), number + 1
        found.append((path, part))
    return tuple(found)


class Range:
    """One plan of a function for all lengths of a range.

    Raises ``Misfit`` where there is none.
    """

    def __init__(
        self,
        of: Changing,
        plain: Plain,
        options: Options,
        machine: Machine,
        deadline: Deadline,
    ) -> None:
        self.options, self.machine = options, machine
        self.low, self.high = of.range
        trees, leaves = plain.spec.trees(plain.args, plain.kwargs)
        if any(leaves[number].ndim <= axis for number, axis in of.axes):
            raise Misfit("arguments that are not the arrays of a key")

        if sum(of.nbytes(leaves, self.high)) > BYTES:
            raise Misfit("large arrays, which take longer than compiling")

        def of_length(length: int) -> tuple[Traced, Plain]:
            args, kwargs = plain.spec.call_with(trees, of.resized(leaves, length))
            made = Plain(plain.fn, args, kwargs, plain.spec)
            return trace(plain.fn, args, kwargs, const=options.const, spec=plain.spec, deadline=deadline), made

        taken = {n for leaf in leaves for n in leaf.shape}
        lengths = (n for n in _primes(self.low * 2) if n not in taken)
        graphs: dict[int, Traced] = {}
        plans: dict[int, Plan] = {}
        found: SizedPlan | None = None
        named: set[str] = set()
        while found is None and len(plans) < SEARCHED:
            length = next(lengths)
            traced, _ = of_length(length)
            if traced.guards or calls_of(traced.graph.outputs):
                raise Misfit("a function whose values decide, or that calls libraries")
            if {number for number, _ in of.axes} & set(traced.const):
                raise Misfit("constants of a length that changes")
            const = frozenset(traced.graph.inputs[i] for i in traced.const)
            graphs[length] = traced
            plans[length] = planned(traced.graph, const, options, machine, deadline=deadline)
            named |= {n.attrs.digest for n in traced.graph.nodes() if isinstance(n.attrs, ConstArray)}
            found = _alike(plans, named)
        if found is None:
            raise Misfit("plans that differ from length to length")
        self.plan = found
        self.facts: At = fitted({length: _facts(traced) for length, traced in graphs.items()})
        self.held = {i: Held(leaves[i]) for i in next(iter(graphs.values())).const}
        self._known: dict[Any, Any] = {}
        self._verified: set[str] = set()
        for length in (self.low, self.high):
            traced, its = of_length(length)
            given = self.given(traced, of.resized(leaves, length), length, deadline)
            Compiled(traced, its.arrays(), options, machine, deadline, its, given)
            self.verified(given)

    def given(self, traced: Traced, leaves: Sequence[np.ndarray], length: int, deadline: Deadline) -> Given:
        """The program for a call of some length, as traced.

        Raises ``Misfit`` where it is another one.
        """
        if _facts(traced) != self.facts(length) or not all_held(self.held, leaves, {}):
            raise Misfit("the function does something else at this length")
        made = backend(self.options.backend)
        plan = self.plan.at(length)

        def others() -> list[Plan]:
            near = (length - 1, length + 1, length - GRAIN, length + GRAIN)
            return [self.plan.at(other) for other in near if self.low <= other <= self.high]

        alike = Alike(others, self.plan.varying(plan), self._known)
        emitted = made.emit(plan, self.machine, deadline, None, alike)
        numbers = sorted(plan.constants)
        record = Record(emitted, self.plan.constants(length), numbers, report_of(plan, traced, emitted["kinds"]))
        given = Given(record, (self.low, self.high), False)
        return replace(given, verified=bool(_kernels(given)) and _kernels(given) <= self._verified)

    def verified(self, given: Given) -> None:
        """The program has been verified, and with it its kernels."""
        self._verified |= _kernels(given)


def _kernels(given: Given) -> set[str]:
    return {step["kernel"] for step in given.record.emitted.get("steps", ())}


def _facts(traced: Traced) -> Any:
    """All that a plan is made from."""
    graph = traced.graph
    return [nodes_to_json(graph.outputs, ()), [type_to_json(node.type) for node in graph.inputs]]


def _alike(plans: Mapping[int, Plan], named: set[str]) -> SizedPlan | None:
    """The latest plan and two others, if they are one."""
    *before, latest = plans
    for some in itertools.combinations(before, 2):
        try:
            return SizedPlan({length: plans[length] for length in (*some, latest)}, named)
        except Misfit as error:
            log.debug("plans for lengths %s, %s and %s differ: %s", *some, latest, error)
    return None


def _primes(least: int) -> Iterator[int]:
    """Lengths that no other number of a program is likely to be a multiple of."""
    return (n for n in itertools.count(least + 1) if all(n % d for d in range(2, math.isqrt(n) + 1)))


def served(
    lengths: Lengths, of: Changing, plain: Plain, options: Options, machine: Machine, deadline: Deadline
) -> Range | None:
    """The range of a length, made if it is not known yet what becomes of it."""
    if lengths.known(of):
        return lengths.find(of)
    made = None
    try:
        made = Range(of, plain, options, machine, Deadline(deadline.left / 2, deadline))
    except Exception as error:  # the function's own, of other lengths; or the budget's
        log.info("lengths of %d to %d stay part of their programs: %r", *of.range, error)
    lengths.keep(of, made)
    return made
