"""One compiled program: searched or remembered, loaded, verified, and called."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eqsat import cache as store
from eqsat.cost.machine import Machine
from eqsat.errors import VerificationError
from eqsat.explain.report import Explanation, Work, naive_work, step_reports
from eqsat.frontends.trace import Traced
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import ConstArray, Node, topological
from eqsat.ir.serialize import nodes_from_json, nodes_to_json
from eqsat.options import Options
from eqsat.plan.backend import Executable, backend
from eqsat.plan.plan import Plan
from eqsat.progress import Progress
from eqsat.rules.fingerprint import rules_fingerprint
from eqsat.verify.check import OutputError, verify

log = logging.getLogger("eqsat")
PLAN = "plan"


@cache
def code_fingerprint() -> str:
    """Changes whenever a file of the engine does: plans of another version are not used."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()


@dataclass
class Record:
    """What is remembered of a compilation, as JSON data."""

    emitted: dict[str, Any]
    constants: dict[str, Any]
    numbers: list[int]
    report: dict[str, Any]


class Compiled:
    """A program for one set of argument types, ready to be called with the free (not constant) leaves."""

    def __init__(self, traced: Traced, leaves: Sequence[np.ndarray], options: Options, machine: Machine) -> None:
        self.traced = traced
        self.options = options
        self.machine = machine
        self.threads = options.threads or machine.cores
        self.const = traced.const
        self.held = {i: leaves[i] for i in traced.const}
        free = [i for i in range(len(leaves)) if i not in self.held]
        self.free = None if len(free) == len(leaves) else tuple(free)
        self.cached = False
        self.errors: list[OutputError] = []
        self.constant_nodes = {traced.graph.inputs[i]: _native(leaves[i]) for i in traced.const}
        start = time.perf_counter()
        with Progress() as progress:
            self._compile([_native(leaves[i]) for i in free], progress)
        self.seconds = time.perf_counter() - start
        log.info("compiled %s in %.2f s", traced.graph.names, self.seconds)

    def _key(self) -> str:
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

    def _compile(self, examples: list[np.ndarray], progress: Callable[[str], None]) -> None:
        key = self._key()
        plans = store.plan_store() if self.options.cache else None
        found = plans.get(PLAN, key) if plans is not None else None
        if isinstance(found, dict) and self._restore(found):
            return
        record = self._search(progress)
        progress("compile: kernels")
        self._load(record)
        if self.options.verify:
            progress("verify")
            self.errors = verify(self.traced.graph, self.constant_nodes, self.executable, examples)
            record.report["errors"] = [asdict(e) for e in self.errors]
        if plans is not None and not record.emitted.get("volatile"):
            plans.put(PLAN, key, {**asdict(record), "verified": self.options.verify})

    def _restore(self, data: Mapping[str, Any]) -> bool:
        """Load a remembered plan; False where it does not fit this program or was not verified."""
        if self.options.verify and not data.get("verified"):
            return False
        try:
            record = Record(data["emitted"], data["constants"], data["numbers"], data["report"])
            self._load(record)
            self.errors = [OutputError(**e) for e in record.report.get("errors", [])]
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            log.warning("a remembered plan could not be loaded (%r); compiling again", error)
            return False
        self.cached = True
        return True

    def _search(self, progress: Callable[[str], None]) -> Record:
        plan = self.search(progress)
        made = backend(self.options.backend)
        progress("compile: kernels")
        emitted = made.emit(plan)
        numbers = sorted(plan.constants)
        constants = nodes_to_json([plan.constants[n] for n in numbers])
        return Record(emitted, constants, numbers, self._report(plan))

    def search(self, progress: Callable[[str], None] = lambda text: None) -> Plan:
        """Search anew, for the plan itself."""
        from eqsat.rules import select
        from eqsat.search import SearchOptions, search

        rules = select(self.options.numerics, self.options.disable)
        fuse = any(rule.id == "fuse.read_store" for rule in rules)
        options = SearchOptions(rules, self.options.budget, fuse=fuse, threads=self.threads)
        const = frozenset(self.constant_nodes)
        plan = search(self.traced.graph, const, self.machine, options, progress)
        if self.options.tune:
            from eqsat.tune import tune

            plan = tune(plan, self.options, self.machine, self.constant_nodes, self.threads, progress)
        return plan

    def _report(self, plan: Plan) -> dict[str, Any]:
        r = plan.report
        return {
            "steps": [asdict(s) for s in step_reports(plan)],
            "search": {
                "operators": r.operators,
                "regions": r.regions,
                "distinct_regions": r.distinct_regions,
                "enodes": sum(s.enodes for s in r.saturations),
                "stops": list(dict.fromkeys(s.stop for s in r.saturations)),
                "saturation_seconds": r.saturation_seconds,
                "extraction_seconds": r.extraction_seconds,
                "schedule_seconds": r.schedule_seconds,
                "extraction_gap": r.extraction_gap,
                "loop_terms": r.loop_terms,
                "predicted": r.predicted,
                "rules": r.rules,
                "matches": _matches(r.saturations),
            },
        }

    def _load(self, record: Record) -> None:
        leaves = {
            n.attrs.digest: n.attrs for n in topological(self.traced.graph.outputs) if isinstance(n.attrs, ConstArray)
        }
        nodes = nodes_from_json(record.constants, leaves.__getitem__)
        values = evaluate_nodes(nodes, _bind(nodes, self.constant_nodes))
        constants = dict(zip(record.numbers, values, strict=True))
        made = backend(self.options.backend)
        self.executable: Executable = made.load(record.emitted, constants, self.threads)
        self.report = record.report

    def __call__(self, leaves: Sequence[np.ndarray]) -> Any:
        arrays = leaves if self.free is None else [leaves[i] for i in self.free]
        return self.traced.rebuild(self.executable(arrays))

    def holds(self, leaves: Sequence[np.ndarray]) -> bool:
        """Whether the constant arguments are the arrays this was compiled with, or equal ones."""
        for i, array in self.held.items():
            if leaves[i] is not array and not _equal(leaves[i], array):
                return False
        return True

    def explain(self, name: str, leaves: Sequence[np.ndarray], why: Callable[[str], str]) -> Explanation:
        """Measured now, on these arguments."""
        from eqsat.explain.report import StepReport

        arrays = [np.asarray(_native(leaves[i]), order="C") for i in range(len(leaves)) if i not in self.held]
        steps = [StepReport(**s) for s in self.report["steps"]]
        for step, measured in zip(steps, self.executable.profile(arrays, 5), strict=True):
            step.measured = measured
        times = []
        for _ in range(5):
            start = time.perf_counter()
            self.executable(arrays)
            times.append(time.perf_counter() - start)
        graph = self.traced.graph
        signature = ", ".join(f"{n}: {node.type}" for n, node in zip(graph.names, graph.inputs, strict=True))
        return Explanation(
            function=name,
            signature=signature if len(signature) < 300 else f"{len(graph.inputs)} arrays",
            naive=naive_work(graph),
            steps=steps,
            arena_bytes=self.executable.arena_bytes,
            naive_arena_bytes=_naive_arena(self.traced),
            search=self.report["search"],
            errors=[asdict(e) for e in self.errors],
            compile_seconds=self.seconds,
            measured=sorted(times)[2],
            cached=self.cached,
            threads=self.threads,
            _why=why,
        )


def _matches(saturations: Sequence[Any]) -> dict[str, dict[str, Any]]:
    total: dict[str, dict[str, Any]] = {}
    for report in saturations:
        for rule, stats in report.rules.items():
            row = total.setdefault(rule, {"matches": 0, "fired": 0, "pending": 0, "refused": {}})
            row["matches"] += stats.matches
            row["fired"] += stats.fired
            row["pending"] += stats.pending
            for reason, count in stats.refused.items():
                row["refused"][reason] = row["refused"].get(reason, 0) + count
    return total


def _naive_arena(traced: Traced) -> int:
    """Most bytes of intermediates alive at once when every operator stores its result and frees dead ones."""
    from eqsat.ir.table import OPS

    order = [n for n in traced.graph.nodes() if OPS[n.op].kind not in ("source", "view")]
    last: dict[Node, int] = {}

    def bases(node: Node) -> list[Node]:
        return [b for i in node.inputs for b in (bases(i) if OPS[i.op].kind == "view" else [i])]

    for position, node in enumerate(order):
        for base in bases(node):
            last[base] = position
    alive, peak = 0, 0
    outputs = set(traced.graph.outputs)
    dying: dict[int, list[Node]] = {}
    for node, position in last.items():
        dying.setdefault(position, []).append(node)
    made: set[Node] = set()
    for position, node in enumerate(order):
        if node not in outputs:
            alive += node.type.nbytes
            made.add(node)
        peak = max(peak, alive)
        alive -= sum(n.type.nbytes for n in dying.get(position, ()) if n in made)
    return peak


def _native(array: np.ndarray) -> np.ndarray:
    """The array in native byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _bind(nodes: Sequence[Node], values: Mapping[Node, np.ndarray]) -> dict[Node, np.ndarray]:
    """Values of the constant inputs below ``nodes``."""
    return {n: values[n] for n in topological(nodes) if n.op == "input"}


__all__ = ["Compiled", "VerificationError", "Work"]
