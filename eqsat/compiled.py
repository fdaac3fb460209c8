"""One compiled program: searched or remembered, loaded, verified, and called."""

from __future__ import annotations

import hashlib
import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np

from eqsat import cache as store
from eqsat import records
from eqsat.contents import code_fingerprint
from eqsat.cost.machine import Machine
from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.direct import direct_call, naming_copies
from eqsat.errors import VerificationError
from eqsat.explained import steps_of
from eqsat.frontends.again import Take
from eqsat.frontends.pytree import Leaf
from eqsat.frontends.trace import Traced
from eqsat.held import Held, all_held, native
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.loop import with_bodies
from eqsat.ir.node import ConstArray, Graph, Node, topological
from eqsat.ir.opaque import calls_of
from eqsat.ir.repeats import base_of
from eqsat.ir.serialize import nodes_from_json, nodes_to_json
from eqsat.options import Options
from eqsat.plain import PlainProgram
from eqsat.plan.backend import Executable, backend
from eqsat.plan.plan import Plan
from eqsat.planned import form, planned
from eqsat.progress import Progress, Tell, tell
from eqsat.remembered import Given, Record, report_of
from eqsat.rules.fingerprint import rules_fingerprint
from eqsat.speed import Speed, compared, wanted
from eqsat.verify.bounds import OutputError
from eqsat.verify.check import SHARE, SHARE_SECONDS, hold_plain, plain_differs, run_plain, verify
from eqsat.verify.estimate import plain_seconds
from eqsat.verify.judge import PlainDiffers
from eqsat.verify.plain import Plain, function_digest

log = logging.getLogger("eqsat")
PLAN: Final = "plan"
MOST_MARKS = 256
"""How many values of constants, and functions, a plan is remembered to be verified for."""
LOOPS_WORTH = 0.9
"""Of the predicted time of a program as it is, what it may take at most with short repetitions as loops to be that."""


class Compiled:
    """A program for one set of argument types, called as the function is.

    ``direct``: the program as a function of all leaves at once, which refuses (None) what does not fit exactly;
    None where arguments are passed in another form. ``single``: its result is one array. ``plain`` is the function that
    was traced and its arguments, which verification runs once. ``paths``: programs for calls of these types where
    Python is told other values, this one among them, the latest first; ``refused``: what NumPy runs of them, by the
    first values that Python is told; both are those of the ``first`` one. ``speed``: beside the function itself, where
    that was timed. ``lengths``: the bounds of a length for which its kernels were made, where they take that as an
    argument: ``given`` is what it is made of in place of a search.
    Making one raises ``OutOfTime`` when ``deadline`` passes; what was compiled until then is in the cache.
    """

    def __init__(
        self,
        traced: Traced,
        leaves: Sequence[np.ndarray],
        options: Options,
        machine: Machine,
        deadline: Deadline,
        plain: Plain,
        given: Given | None = None,
    ) -> None:
        self.traced = traced
        self.fn = plain.fn
        self.spec = plain.spec
        self._called_with: list[Any] = []
        self.options = options
        self.machine = machine
        self.threads = options.threads or machine.cores
        self.const = traced.const
        self.held = {i: Held(leaves[i]) for i in traced.const}
        free = [i for i in range(len(leaves)) if i not in self.held]
        self.free = None if len(free) == len(leaves) else tuple(free)
        self.cached = False
        self.errors: list[OutputError] = []
        self.speed: Speed | None = None
        self.lengths: tuple[int, int] | None = None
        arrays = traced.given(leaves)
        self.constant_nodes = {traced.graph.inputs[i]: native(arrays[i]) for i in traced.const}
        start = time.perf_counter()
        cached = nullcontext() if options.cache else store.bypassed()
        with Progress() as progress, cached, naming_copies(self.traced, leaves):
            examples = [native(arrays[i]) for i in free]
            if given is None:
                self._compile(examples, plain, progress, deadline)
            else:
                self._take(given, examples, progress, deadline)
        whole = traced.pairs is not None  # no leaf is passed as the base of what it repeats
        self.direct = direct_call(traced, self.executable, self.held, len(leaves)) if whole else None
        self.take: Take | None = None  # of arguments in containers, once they came again
        self.taking = 0  # how often that was made
        self._first: weakref.ref[Compiled] | None = None
        self._paths: list[Compiled] = []  # empty while there is no other: nobody waits for the collector to free it
        self.refused: dict[tuple[int, ...], PlainProgram] = {}
        one_array = isinstance(traced.output, Leaf) and traced.graph.outputs[0].type.ndim > 0
        self.single = one_array and not (traced.written or traced.complex)
        self.seconds = time.perf_counter() - start
        log.info("compiled %s in %.2f s", traced.graph.names, self.seconds)

    def _key(self) -> str:
        """All that a plan depends on: program, options, machine, engine, rules and backend."""
        const = "".join("c" if i in self.held else "v" for i in range(len(self.traced.graph.inputs)))
        o = self.options
        parts = [
            self.traced.graph.key(),
            const,
            f"{o.numerics}|{o.budget}|{self.threads}|{sorted(o.disable)}|{o.backend}|{o.tune}",
            backend(o.backend).key(),
            code_fingerprint(),
            rules_fingerprint(),
            self.machine.to_json(),
        ]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def _compile(self, examples: list[np.ndarray], plain: Plain | None, progress: Tell, deadline: Deadline) -> None:
        start = time.perf_counter()
        plans = store.plan_store()
        key = self._key()
        found = plans.get(PLAN, key)
        record = self._restore(found, key, deadline)
        verified: list[str] = list(found["verified"]) if found and record is not None else []
        if record is None:
            record = self._search(progress, deadline)
            progress("compile: constants")
            self._load(record, deadline)
        marks, first = self._marks(plain), None
        missing = [mark for mark in marks if mark not in verified] if self.options.verify else []
        speeds = record.report.setdefault("speeds", {})
        timing = plain is not None and self._timed() and marks[-1] not in speeds
        if missing:
            progress("verify")
            deadline.check("verifying")
            intermediates = self.executable.peak_bytes
            results = None
            if plain is not None and missing[-1].startswith("function"):
                begin = time.perf_counter()
                spent = begin - start
                results = run_plain(
                    plain,
                    self.traced,
                    intermediates=intermediates,
                    spent=spent,
                    patience=self.traced.seconds,
                    deadline=deadline,
                )
                first = None if results is None else time.perf_counter() - begin
            # A library that the function calls on values of its own may give other results than the program has.
            apart = bool(calls_of(self.traced.graph.outputs))
            if missing[0].startswith("values"):
                self.errors = self._verify(examples, plain, None if apart else results, deadline)
                record.report["errors"] = [asdict(e) for e in self.errors]
            if plain is not None and results is not None and (apart or not missing[0].startswith("values")):
                hold_plain(plain, self.traced, results, intermediates=intermediates, deadline=deadline)
            verified = [*verified, *missing][-MOST_MARKS:]
        enough = max(SHARE_SECONDS, SHARE * (time.perf_counter() - start), self.traced.seconds)
        if timing and (first is not None or plain_seconds(self.traced.graph) < enough):
            assert plain is not None
            progress("time: beside NumPy")
            deadline.check("timing the function itself")
            with plain.runs(self.traced) as (function, given):
                speed = compared(partial(self._whole_call, examples, given), function, first, self.team)
            record.report["speeds"] = dict([*speeds.items(), (marks[-1], speed and astuple(speed))][-MOST_MARKS:])
        self.speed = self._speed(record, marks[-1])
        if self.cached and not missing and not timing:
            return
        cut_short = {"untuned", "fork"} & set(record.report["search"]["stops"])
        named = all(call.lasting for call in calls_of(self.traced.graph.outputs))
        lasting = named and not record.emitted["volatile"] and not cut_short
        if lasting:
            emitted = backend(self.options.backend).kept(record.emitted)
            kept = {**asdict(replace(record, emitted=dict(emitted))), "key": key, "verified": verified}
            plans.put(PLAN, key, kept, name=self.traced.name, arguments=self.signature())

    def _take(self, given: Given, examples: list[np.ndarray], progress: Tell, deadline: Deadline) -> None:
        self._load(given.record, deadline)
        self.lengths = given.lengths
        if self.options.verify and not given.verified:
            progress("verify")
            self.errors = self._verify(examples, None, None, deadline)

    def _whole_call(self, examples: list[np.ndarray], given: Sequence[Any]) -> object:
        """Kernels, and what a call does after them: arguments that change are written to."""
        results = self.executable(examples)
        return self.traced.rebuild(results, given) if self.traced.written else results

    def _timed(self) -> bool:
        """Whether NumPy is to run the function where that is faster."""
        o = self.options
        return o.check_speed and not o.strict and wanted() and not backend(o.backend).reference

    def _speed(self, record: Record, mark: str) -> Speed | None:
        found = record.report["speeds"].get(mark) if self._timed() else None
        return None if found is None else Speed(*found)

    def signature(self) -> str:
        """Names and types of the arguments, in a line."""
        graph = self.traced.graph
        return ", ".join(f"{n}: {node.type}" for n, node in zip(graph.names, graph.inputs, strict=True))

    def _verify(
        self,
        examples: list[np.ndarray],
        plain: Plain | None,
        results: list[np.ndarray] | None,
        deadline: Deadline,
    ) -> list[OutputError]:
        try:
            return verify(
                self.traced.graph,
                self.constant_nodes,
                self.executable,
                examples,
                numerics=self.options.numerics,
                options=self._options(),
                intermediates=self.executable.peak_bytes,
                plain=results,
                in_double=None if plain is None or results is None else partial(plain.in_double, self.traced, results),
                ends=self.report["ends"],
                tried=self.executable.tried(),
                patience=self.traced.seconds,
                complex=self.traced.complex,
                deadline=deadline,
            )
        except PlainDiffers as error:
            assert plain is not None and results is not None
            raise plain_differs(plain, self.traced, results, error) from None
        except VerificationError as error:
            error.rules = frozenset(self.report["search"].get("rules", ()))
            raise

    def _marks(self, plain: Plain | None) -> list[str]:
        """What verification of this program is about: the values of its constants, and the function it was traced from.

        A plan stands for all values of its constants, and for all functions that trace alike.
        """
        digest = hashlib.blake2b(digest_size=12)
        for number, held in self.held.items():
            digest.update(f"{number}:".encode() + held.digest)
        marks = [f"values {digest.hexdigest()}"]
        return marks if plain is None else [*marks, f"function {function_digest(plain.fn)}"]

    def _options(self) -> str:
        """The options as written in a program whose parameters are called x0, x1, …"""
        given = {f.name: getattr(self.options, f.name) for f in fields(Options) if f.name != "cache"}
        given["const"] = tuple(f"x{i}" for i in self.const)
        changed = {name: value for name, value in given.items() if value != getattr(Options, name)}
        return ", ".join(f"{name}={value!r}" for name, value in changed.items())

    def _restore(self, data: Any, key: str, deadline: Deadline) -> Record | None:
        """Load a remembered plan; None where there is none or it does not fit this program."""
        if data is None:
            return None
        traced = self.traced
        try:
            if data["key"] != key:
                raise ValueError("it is of another program")
            if not records.unchanged(data["report"]["records"]):
                log.info("measurements of the loop nests of %s have come or gone; searching again", self.traced.name)
                return None
            # only what would be kept is looked at: source that a plan holds is not this process's own
            emitted = backend(self.options.backend).kept(data["emitted"])
            self.traced = traced.in_loops() if data["report"]["rolled"] else traced
            record = Record(dict(emitted), data["constants"], data["numbers"], data["report"])
            self._load(record, deadline)
            self.errors = [OutputError(**e) for e in record.report.get("errors", [])]
            steps_of(self.traced, record.report)
            [Speed(*map(float, pair)) for pair in record.report.get("speeds", {}).values() if pair is not None]
            if len(record.report["ends"]) != len(self.traced.graph.outputs):
                raise ValueError("it does not say where its stores begin and end")
            if not all(isinstance(mark, str) for mark in data["verified"]):
                raise ValueError("it does not say what it was verified for")
        except OutOfTime:
            raise
        except Exception as error:  # whatever is wrong with it, the program can be compiled again
            self.traced = traced
            log.warning("a remembered plan could not be loaded (%r); compiling again", error)
            return None
        self.cached = True
        return record

    def _search(self, progress: Tell, deadline: Deadline) -> Record:
        made = backend(self.options.backend)
        results = [n.type for n in self.traced.graph.outputs] if self.options.verify else []
        with made.helpers(len(with_bodies(self.traced.graph)), results) as helpers:
            plan = self._best(progress, deadline)
            progress("compile: kernels")
            emitted = made.emit(plan, self.machine, deadline, helpers)
        numbers = sorted(plan.constants)
        constants = nodes_to_json([plan.constants[n] for n in numbers], self._leaves())
        return Record(emitted, constants, numbers, report_of(plan, self.traced, emitted["kinds"]))

    def search(self, progress: Tell = tell, deadline: Deadline = NEVER) -> Plan:
        """Search anew, for the plan itself."""
        const = frozenset(self.constant_nodes)
        return planned(self.traced.graph, const, self.options, self.machine, progress, deadline)

    def searched_form(self) -> Graph:
        """The form of the program's graph that is searched."""
        return form(self.traced.graph, frozenset(self.constant_nodes), self.options, self.machine)

    def _best(self, progress: Tell, deadline: Deadline) -> Plan:
        """The plan; ``traced`` is then the form of the program that it is of.

        A short repetition is searched across its iterations, and as a loop: fewer bytes may move in either.
        """
        plan, whole = self.search(progress, deadline), self.traced
        if whole.rolled is None:
            return plan
        self.traced = whole.in_loops()
        looped: Plan | None = None
        try:
            looped = self.search(progress, deadline)
        finally:
            if looped is None or looped.report.predicted >= LOOPS_WORTH * plan.report.predicted:
                self.traced, looped = whole, None
        return looped or plan

    def _leaves(self) -> dict[str, ConstArray]:
        """The program's own constants, by digest."""
        nodes = topological(self.traced.graph.outputs)
        return {n.attrs.digest: n.attrs for n in nodes if isinstance(n.attrs, ConstArray)}

    def _load(self, record: Record, deadline: Deadline) -> None:
        nodes = nodes_from_json(record.constants, self._leaves().__getitem__)
        values = evaluate_nodes(nodes, _bind(nodes, self.constant_nodes), deadline=deadline)
        constants = dict(zip(record.numbers, values, strict=True))
        made = backend(self.options.backend)
        self.team = int(record.report["search"]["team"])
        self.executable: Executable = made.load(record.emitted, constants, self.team, deadline)
        self.report = record.report

    def remember(self, leaves: Sequence[Any]) -> None:
        """The arguments of the last call that took its time, as long as others keep them."""
        self._called_with = [weakref.ref(x) if type(x) is np.ndarray else x for x in leaves]

    def last_call(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of such a call; None where an array of it is gone."""
        found = [x() if isinstance(x, weakref.ref) else x for x in self._called_with]
        if any(x is None for x in found) or len(found) != len(self.traced.graph.inputs):
            return None
        return self.spec.call_with(self.traced.arguments, found)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as the function itself gives it, for arguments of the types it was compiled for.

        Raises:
            TypeError: arguments of other types, or other values of constants.
        """
        if self.direct is not None and not kwargs:
            given = args if self.take is None else self.take(args)
            results = None if given is None else self.direct(given)
            if given is not None and results is not None:
                return results[0] if self.single else self.traced.rebuild(results, given)
        leaves, key = self.spec.flatten(args, kwargs)
        if key != self.traced.key or not self.holds(leaves, {}):
            what = "other values of constants" if key == self.traced.key else "arguments of other types"
            raise TypeError(
                f"{self.traced.name} was compiled for ({self.signature()}), and is called with {what}. "
                "Fix: call the optimized function itself, which compiles for each"
            )
        for path in self.paths if self.traced.takes(leaves) else ():
            try:
                results = path.results(leaves)
            except Exception:  # perhaps a library's, on a way that this call does not take
                if not path.traced.guards:
                    raise
                continue
            if path.traced.agrees(path.traced.seen(results)):
                return path.traced.rebuild(results, leaves)
        return self.fn(*args, **kwargs)

    def run(self, leaves: Sequence[np.ndarray]) -> Any:
        """The function's result for the leaves of arguments that fit, where Python is told no values."""
        return self.traced.rebuild(self.results(leaves), leaves)

    def results(self, leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The program's outputs; arguments that it changes are not changed yet."""
        given = self.traced.given(leaves)
        with naming_copies(self.traced, leaves):
            return self.executable(given if self.free is None else [given[i] for i in self.free])

    def arrays(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the executable takes, of the leaves of arguments, in native byte order."""
        given = self.traced.given(leaves)
        return [native(given[i]) for i in range(len(given)) if i not in self.held]

    def holds(self, leaves: Sequence[np.ndarray], digests: dict[int, bytes] | None) -> bool:
        """Whether the constant arguments are those of this program (see ``all_held``)."""
        return all_held(self.held, leaves, digests)

    @property
    def first(self) -> Compiled:
        """The program that the others were made beside."""
        return self if self._first is None else self._first() or self

    @property
    def paths(self) -> Sequence[Compiled]:
        return self._paths or (self,)

    def prefer(self, path: Compiled) -> None:
        """Try one of ``paths``, or one that is new, first."""
        if path is not self:
            path._first = weakref.ref(self)
        self._paths = [path, *(p for p in self.paths if p is not path)]

    @property
    def nbytes(self) -> int:
        """Bytes of constants: the executable's own, and the arrays that they were made from."""
        own = sum(path.executable.nbytes for path in self.paths)
        return own + sum(base_of(h.array).nbytes for h in self.held.values())


def _bind(nodes: Sequence[Node], values: Mapping[Node, np.ndarray]) -> dict[Node, np.ndarray]:
    """Values of the constant inputs below ``nodes``."""
    return {n: values[n] for n in topological(nodes) if n.op == "input"}
