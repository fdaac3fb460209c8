"""How a call of a program runs: compiled segments through the backend's driver, other steps and loops between them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from eqsat.buffers import Recycler, Shelf
from eqsat.deadline import NEVER, Deadline
from eqsat.ir.loop import window
from eqsat.ir.serialize import type_from_json
from eqsat.ir.types import TensorType
from eqsat.plan import fallback
from eqsat.plan.backend import Direct
from eqsat.plan.chain import Chain, ChainLoop, Chains, Program, Segment, nested
from eqsat.plan.laps import Stopwatch, in_laps, median_seconds
from eqsat.plan.tabulate import Packs, Table, Tabulator
from eqsat.plan.trips import copied


class SegmentedExecutable(ABC):
    """Segments of compiled steps with reference steps between them, from emitted data (see :mod:`eqsat.plan.chain`).

    A backend says how a step's code and a table are loaded, how a constant is packed, and what a status means.
    """

    def __init__(
        self,
        emitted: Mapping[str, Any],
        constants: Mapping[int, np.ndarray],
        threads: int,
        deadline: Deadline = NEVER,
    ) -> None:
        self._deadline = deadline
        self.types: dict[int, TensorType] = {int(n): type_from_json(t) for n, t in emitted["types"].items()}
        self.constants: dict[int, np.ndarray] = {}
        self._given = {n: np.asarray(a, order="C") for n, a in constants.items()}
        self._known = frozenset(constants)
        self.inputs: list[int] = list(emitted["inputs"])
        self.outputs: list[int] = list(emitted["outputs"])
        self.threads = threads
        self.emitted = emitted
        self._packed: dict[tuple[int, str], np.ndarray] = {}
        self._allocations: dict[int, tuple[Callable[..., np.ndarray], tuple[int, ...], np.dtype]] = {}
        self._shelf = Shelf()
        chains = self._chains()
        steps = nested(emitted["steps"], emitted.get("repeats", ()))
        self.chain = chains.chain(steps, self.outputs, self.inputs)
        self.peak_bytes = chains.peak_bytes
        self._own_constants()
        self.direct = self._direct_call()
        self._deadline = NEVER

    @abstractmethod
    def code(self, step: Mapping[str, Any], deadline: Deadline) -> Mapping[str, int]:
        """Addresses of a compiled step's phases, by name, for as long as the mapping lives."""

    @abstractmethod
    def program(self, table: Table) -> Program:
        """What runs a table."""

    @abstractmethod
    def packed(self, flat: np.ndarray, pack: Mapping[str, Any]) -> np.ndarray:
        """A flat constant in the layout that a kernel asked for."""

    @abstractmethod
    def stopwatch(self, steps: int) -> Stopwatch:
        """What takes the times of so many steps."""

    @staticmethod
    @abstractmethod
    def raise_for(status: int) -> None:
        """The exception NumPy has for what a kernel found in its inputs; none for arrays that did not fit."""

    @abstractmethod
    def sources(self) -> list[str]:
        """The distinct generated kernels, as source text."""

    def _chains(self) -> Chains:
        code = partial(self.code, deadline=self._deadline)
        tabulator = Tabulator(self.types, self.inputs, self._known, self.threads, code, self._constant)
        return Chains(self.types, tabulator, self.program)

    def _constant(self, tensor: int, position: int, packs: Packs) -> np.ndarray:
        """A constant as a kernel wants it: an aligned copy that nobody else can change, packed if asked for.

        One for all kernels that want the same layout, whichever operand it is to them: copies compete for the caches.
        """
        self._deadline.check("packing constants")
        pack = next((pack for pack in packs if pack["operand"] == position), None)
        layout = pack and {name: value for name, value in pack.items() if name != "operand"}
        key = (tensor, repr(layout))
        if key not in self._packed:
            flat = self._given[tensor].reshape(-1)
            value = self.packed(flat, pack) if pack else flat
            copy = self._shelf.empty(value.shape, value.dtype)
            copy[...] = value
            self._packed[key] = copy
        return self._packed[key]

    def _own_constants(self) -> None:
        """Copy what calls read without a kernel, and let go of all else: whoever gave the arrays may change them."""
        read = {t for segment in self.chain.every() if segment.program is None for t in segment.arguments}
        for tensor in sorted((read | set(self.outputs)) & self._known):
            plain = self._packed.get((tensor, repr(None)))
            value = self._given[tensor]
            self.constants[tensor] = value.copy() if plain is None else plain.reshape(value.shape)
        self._given.clear()
        self.nbytes = sum({id(a): a.nbytes for a in (*self._packed.values(), *self.constants.values())}.values())

    def _direct_call(self) -> Direct | None:
        """The only segment as a function, when arguments and outputs can be passed to it as they come."""
        if len(self.chain.segments) != 1:
            return None
        (segment,) = self.chain.segments
        if segment.program is None or segment.arguments != [*self.inputs, *self.outputs]:
            return None
        # Nothing below refers to this object: it is freed, with its code, as soon as nobody holds it.
        program, threads, raise_for = segment.program.__call__, self.threads, self.raise_for
        made = [_allocation(self.types[t]) for t in self.outputs]
        if len(made) == 1:
            ((empty, shape, dtype),) = made

            def run_one(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
                output = empty(shape, dtype)
                status = program((*arrays, output), threads)
                if status:
                    raise_for(status)
                    return None
                return (output,)

            return run_one

        def run(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
            outputs = tuple([empty(shape, dtype) for empty, shape, dtype in made])
            status = program((*arrays, *outputs), threads)
            if status:
                raise_for(status)
                return None
            return outputs

        return run

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        if self.direct is not None:
            found = self.direct(arrays)
            if found is None:
                found = self.direct([_plain(a) for a in arrays])
            if found is None:
                raise ValueError("arrays do not have the shapes and types the program was compiled for")
            return found
        values = dict(zip(self.inputs, map(_plain, arrays), strict=True))
        values.update(self.constants)
        self._run_chain(self.chain, values)
        seen: set[int] = set(self.inputs) | set(self.constants)
        results = []
        for tensor in self.outputs:
            value = values[tensor]
            results.append(value.copy() if tensor in seen else value)
            seen.add(tensor)
        return results

    def tried(self) -> Self:
        found = copy.copy(self)
        found.chain = self.chain.tried()
        found.direct = found._direct_call()
        return found

    def _run_chain(self, chain: Chain, values: dict[int, np.ndarray]) -> None:
        for segment, dead in zip(chain.segments, chain.dead, strict=True):
            self._run(segment, values)
            for tensor in dead:
                del values[tensor]

    def _run_loop(self, loop: ChainLoop, values: dict[int, np.ndarray]) -> None:
        """All trips. What is carried goes to and fro between two buffers."""
        repeat = loop.repeat
        free: dict[int, np.ndarray] = {}
        away = [tuple(pair) for pair in copied(repeat, self.types)]
        for _, whole in repeat["stacked"]:
            values[whole] = self._output(whole)
        for before, read, _ in repeat["carries"]:
            values[read] = values[before]
        for trip in range(loop.runs):
            if repeat["conditional"] and not values[repeat["carries"][0][1]]:
                break
            for tensor, read, step in repeat["windows"]:
                values[read] = window(values[tensor], step, repeat["trips"], trip)
            rows = {w: values[t][trip : trip + 1].reshape(self.types[w].shape) for w, t in repeat["stacked"]}
            values.update((w, rows[w]) for w, t in repeat["stacked"] if (w, t) not in away)
            values.update(free)
            self._run_chain(loop.body, values)
            for written, row in rows.items():
                made = values.pop(written)
                if made is not row:  # made elsewhere: by a copy's kernel, or by a library
                    row[...] = made
            for _, read, written in repeat["carries"]:
                if trip:
                    free[written] = values[read]
                values[read] = values.pop(written)
        for number, tensor in repeat["finals"]:
            before, read, _ = repeat["carries"][number]
            values[tensor] = values[read].copy() if values[read] is values[before] else values[read]
        for name in (
            *(read for _, read, _ in (*repeat["carries"], *repeat["windows"])),
            *(written for written, _ in repeat["stacked"]),
        ):
            values.pop(name, None)

    def _run(self, segment: Segment, values: dict[int, np.ndarray]) -> None:
        if segment.loop is not None:
            self._run_loop(segment.loop, values)
            return
        if segment.call is not None:
            found = segment.call.run([values[t] for t in segment.arguments])
            for tensor, value in zip(segment.writes, segment.values, strict=True):
                values[tensor] = found[value.attrs.number]  # type: ignore[attr-defined]
            return
        if segment.values:
            results = segment.evaluate([values[t] for t in segment.arguments])
            for tensor, result, node in zip(segment.writes, results, segment.values, strict=True):
                values[tensor] = np.ascontiguousarray(result).reshape(node.shape)
            return
        for tensor in segment.writes:
            if tensor not in values:  # several steps may write a part each
                values[tensor] = self._output(tensor)
        if segment.group is not None:
            fallback.interpret(segment.group, [values[t].reshape(-1) for t in segment.arguments])
            return
        assert segment.program is not None
        status = segment.program(tuple([values[t] for t in segment.arguments]), self.threads)
        if status:
            self.raise_for(status)
            raise ValueError("a step was given arrays of other shapes and types than it was compiled for")

    def _output(self, tensor: int) -> np.ndarray:
        """Memory for a tensor."""
        made = self._allocations.get(tensor)
        if made is None:
            made = self._allocations[tensor] = _allocation(self.types[tensor])
        empty, shape, dtype = made
        return empty(shape, dtype)

    def profile(self, arrays: Sequence[np.ndarray], repeat: int = 5) -> list[float]:
        """Median seconds of each step of the plan in a call, in all trips of its loops (see :mod:`eqsat.plan.laps`)."""
        count = len(self.emitted["kinds"])
        watch = self.stopwatch(count + 2)
        steps = nested(self.emitted["steps"], self.emitted.get("repeats", ()))
        chain = self._chains().chain(in_laps(steps, watch, count), self.outputs, self.inputs)
        given = dict(zip(self.inputs, map(_plain, arrays), strict=True))
        return median_seconds(lambda: self._run_chain(chain, {**given, **self.constants}), watch, count, repeat)


def _plain(array: np.ndarray) -> np.ndarray:
    """The array as kernels take it: C-contiguous, aligned, native byte order, of NumPy's own class."""
    flags = array.flags
    if type(array) is np.ndarray and array.size and flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    dtype = array.dtype.newbyteorder("=")
    if array.size == 0:  # NumPy calls it aligned wherever it lies
        return np.empty(array.shape, dtype)
    return np.require(array, dtype, ("C", "A", "E"))


recycler = Recycler()
"""Memory of results."""


def _allocation(type: TensorType) -> tuple[Callable[..., np.ndarray], tuple[int, ...], np.dtype]:
    """What makes an output, and its arguments: small arrays come from NumPy itself."""
    dtype = type.dtype.numpy
    return (np.empty if type.nbytes < recycler.least_bytes else recycler.empty), type.shape, dtype
