"""What ``explain`` shows of a compiled program: its steps with this function's names and lines, timed now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.explain.provenance import Provenance, lines, names
from eqsat.explain.report import Algorithms, Explanation, StepReport
from eqsat.explain.roofline import roofs
from eqsat.explain.work import naive_peak, naive_work, operator_work
from eqsat.frontends.pytree import leaf_names
from eqsat.frontends.trace import Traced
from eqsat.verify.check import ENDLESS_SECONDS
from eqsat.verify.estimate import reference_seconds
from eqsat.verify.plain import Plain

if TYPE_CHECKING:
    from eqsat.compiled import Compiled

__all__ = ["explanation", "steps_of"]

LONG = 10.0
"""Seconds that NumPy is not waited for."""
REPEAT = 5
_GONE = "Nothing was timed: the arrays of that call are gone. explain(…) with arguments measures."


def steps_of(traced: Traced, report: Mapping[str, Any]) -> list[StepReport]:
    """The steps of a report, which may be remembered for another function that traces alike, as those of ``traced``."""
    found = [StepReport(**s) for s in report["steps"]]
    of_nodes = lines(traced.graph, traced.lines)
    results = [*leaf_names(traced.output, "result")]
    results += [""] * (len(traced.graph.outputs) - len(traced.guards) - len(results))
    results += [f"asked {n}" for n in range(len(traced.guards))]
    for written in traced.written:
        results[written.output] = written.name
    for step, given in zip(found, report["provenance"], strict=True):
        made = Provenance(**given)
        step.reads = names(made.reads, traced.graph.names)
        step.writes = [results[number] for number in made.writes]
        places = {line for number in made.nodes if (line := of_nodes[number]) is not None}
        step.source = [str(line) for line in sorted(places, key=lambda line: (line.file, line.line))]
    return found


def explanation(
    program: Compiled, name: str, call: Plain | None, why: Callable[[str], str], algorithms: Sequence[Algorithms]
) -> Explanation:
    """Measured now, on the arguments of ``call``, beside its function run by NumPy if that is known to do nothing but
    compute. Without a call nothing is measured."""
    steps = steps_of(program.traced, program.report)
    measured, numpy, untimed = None, None, _GONE
    if call is not None:
        arrays = [np.asarray(a, order="C") for a in program.arrays(call.leaves())]
        for step, seconds in zip(steps, program.executable.profile(arrays, REPEAT), strict=True):
            step.measured = seconds
        times = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            program.executable(arrays)
            times.append(time.perf_counter() - start)
        measured = sorted(times)[REPEAT // 2]
        numpy, untimed = _by_numpy(program, call)
    graph = program.traced.graph
    signature = program.signature()
    return Explanation(
        function=name,
        signature=signature if len(signature) < 300 else f"{len(graph.inputs)} arrays",
        naive=naive_work(graph),
        steps=steps,
        peak_bytes=program.executable.peak_bytes,
        naive_peak_bytes=naive_peak(graph),
        search=program.report["search"],
        errors=[asdict(e) for e in program.errors[: len(graph.outputs) - len(program.traced.guards)]],
        compile_seconds=program.seconds,
        measured=measured,
        numpy=numpy,
        untimed=untimed,
        cached=program.cached,
        threads=program.team,
        operators=operator_work(graph),
        roofs=roofs(program.machine, program.team),
        lengths=program.lengths,
        guards=[str(guard) for guard in program.traced.guards],
        algorithms=algorithms,
        _why=why,
    )


def _by_numpy(program: Compiled, call: Plain) -> tuple[float | None, str]:
    """Seconds that a call takes NumPy, or why that was not timed."""
    about = reference_seconds(program.traced.graph)
    if ENDLESS_SECONDS > about > LONG:
        return None, f"NumPy was not timed: it would take about {about:.0f} s"
    effect = call.effect()
    if effect:
        return None, f"NumPy was not timed, for the function may do more than compute: {effect}"
    try:
        return call.seconds(program.traced, REPEAT), ""
    except Exception as error:  # what is compiled need not run by NumPy
        return None, f"NumPy was not timed: the function raises {error!r}"
