"""What was chosen and why: the program before and after, step by step, and the rules that made it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eqsat.explain import render
from eqsat.explain.cuts import cut_off
from eqsat.explain.derived import Derivation
from eqsat.explain.nests import limits, listing, part_needed
from eqsat.explain.roofline import Roofs, draw
from eqsat.explain.work import Work, group_bytes, kernel_flops, reference_bytes, reference_flops
from eqsat.plan.plan import KernelStep, Plan, copies_of, trips_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass
class StepReport:
    """One step: what it computes, its loop nest, work, and times in seconds (measured: median, alone).

    ``kind``: ``kernel``; ``stages``, a group run as one kernel per stage because none could be generated for
    the whole; ``reference``, through NumPy for want of a kernel; ``opaque``, by the library whose function it is;
    ``numpy``, by that backend.
    ``nest``: its loops as text. ``moved``: bytes that the busiest thread is predicted to move from each memory space,
    and ``limit``, what takes most of the time: "compute", a memory space, or "overhead" (starting it, and barriers).
    ``tuned``: seconds that the nest took when tuning timed it, for which it was chosen; None where the model chose.
    ``trips``: how often it runs in a call, in a loop; work and times are of all, ``moved`` and ``tuned`` of one.
    ``copies``: trips of the user's loop that are one of these.
    ``reads``: arguments by name, ``#3`` for what step 3 makes, ``folded(w)`` for what was computed when the program was
    compiled; ``writes``: results and arguments that it makes, and ``asked 0``, what a guard asks for;
    ``source``: the user's lines that it computes.
    """

    label: str
    kind: str
    nest: str
    flops: float
    nbytes: float
    predicted: float
    measured: float | None = None
    moved: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    tuned: float | None = None
    trips: int = 1
    copies: int = 1
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    source: list[str] = field(default_factory=list)


def step_reports(plan: Plan, kinds: Sequence[str]) -> list[StepReport]:
    """One report per step of a plan, without measurements; ``kinds`` says how each is run."""
    out = []
    often = (of(len(plan.steps), plan.repeats) for of in (trips_of, copies_of))
    for step, kind, trips, copies in zip(plan.steps, kinds, *often, strict=True):
        if isinstance(step, KernelStep):
            flops = sum(kernel_flops(s.kernel) * part_needed(step.group, s) for s in step.group.stages)
            nbytes = trips * group_bytes(step.group)
            report = StepReport(
                step.label, kind, "", trips * flops, nbytes, trips * step.seconds, trips=trips, copies=copies
            )
            if step.chosen is not None and kind == "kernel":
                lines = [*listing(step.chosen.nest), *limits(step.group)]
                nest, moved = "\n".join(lines), dict(step.chosen.moved)
                report = replace(report, nest=nest, moved=moved, limit=step.chosen.limit, tuned=step.chosen.measured)
            out.append(report)
        else:
            flops, nbytes = trips * reference_flops(step), trips * reference_bytes(step)
            out.append(
                StepReport(step.label, kind, "", flops, nbytes, trips * step.seconds, trips=trips, copies=copies)
            )
    return out


@dataclass(frozen=True)
class Algorithms:
    """The convolutions of a part of the program, what computes them, and the seconds predicted for that part.

    ``others``: the seconds with other algorithms, least first; then of quicker ones of another class of numerics.
    """

    convolutions: list[str]
    chosen: str
    seconds: float
    others: Mapping[str, float]

    def __str__(self) -> str:
        others = [f"{name} {render.seconds(time)}" for name, time in self.others.items()]
        least = f"{self.chosen}, predicted {render.seconds(self.seconds)}"
        return f"{', '.join(self.convolutions)}: {least}; others: {', '.join(others) or 'none'}"


@dataclass(repr=False)
class Explanation:
    """How a function is run for one set of argument types. ``print`` it, ask ``why(rule)``, or take ``to_json()``.

    A notebook shows it with colours, as ``rich.print`` does.

    ``peak_bytes``: memory for intermediates, scratch and results; inputs and constants are not in it, nor in
    ``naive_peak_bytes``, which is what the program takes that stores every operator's result until its last use.
    ``operators``: work of each operator as written; ``roofs``: limits of the threads that run it (see :meth:`plot`).
    ``guards``: what holds in the calls that the program is for, besides their arguments' types.
    ``algorithms``: those of convolutions.
    ``lengths``: the bounds of a length that the kernels take as an argument; None where they are for one length.
    ``plain``: why NumPy runs the function, which then has no steps and no times; None where kernels do.
    ``numpy``: seconds that the function itself takes, run by NumPy on the same arguments as ``measured``. ``untimed``:
    why that, or anything, was not timed.
    """

    function: str
    signature: str
    naive: Work
    steps: list[StepReport]
    peak_bytes: int
    naive_peak_bytes: int
    search: Mapping[str, Any]
    errors: list[Mapping[str, float]]
    compile_seconds: float
    measured: float | None
    cached: bool
    threads: int
    plain: str | None = None
    numpy: float | None = None
    untimed: str = ""
    operators: Sequence[Work] = ()
    roofs: Roofs | None = None
    guards: Sequence[str] = ()
    lengths: tuple[int, int] | None = None
    algorithms: Sequence[Algorithms] = ()
    _why: Callable[[str], str] | None = field(default=None, repr=False)
    _derivation: Callable[[], Derivation] | None = field(default=None, repr=False)

    @property
    def optimized(self) -> Work:
        flops, nbytes = sum(s.flops for s in self.steps), sum(s.nbytes for s in self.steps)
        return Work(flops, nbytes, sum(s.trips for s in self.steps))

    @property
    def predicted(self) -> float:
        return sum(s.predicted for s in self.steps)

    @property
    def cut_off(self) -> list[str]:
        """What budgets cut off the search, a sentence for each limit; empty where it ran to its end."""
        return cut_off(self.search) if self.search else []

    def why(self, rule: str) -> str:
        """What became of a rule: how often it fired, which guard refused it, or by how much it lost on cost.

        Raises :class:`~eqsat.errors.OptionError` for an id that no rule has.
        """
        assert self._why is not None
        return self._why(rule)

    def derivation(self) -> Derivation:
        """The chain of rules from the program as written to the one that extraction chooses, each step checked.

        ``print`` it; its steps have both terms, also as code. The program is searched once more.
        """
        return self._derivation() if self._derivation is not None else Derivation(())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the program's roofline to a file, of the format that its ending names (``.png``, ``.svg``, ``.pdf``).

        Hollow points are the operators as written, each at the most that its operations per byte allow; filled ones the
        steps that are run, at what they reach (measured), with an area in proportion to their time. After Williams,
        Waterman & Patterson, "Roofline" (CACM 2009). Steps without operations (copies) have no place in it.

        Raises:
            ImportError: matplotlib is not installed (extra ``plot``).
            ValueError: NumPy runs the function: there are no kernels to draw.
        """
        if self.roofs is None:
            raise ValueError(f"no kernels to draw: {self.plain}")
        draw(path, f"{self.function}({self.signature})", self.operators, self.steps, self.roofs)

    def to_json(self) -> str:
        """Everything shown, as JSON; times in seconds, sizes in bytes."""
        data = asdict(replace(self, _why=None, _derivation=None))
        del data["_why"], data["_derivation"]
        data["optimized"] = asdict(self.optimized)
        data["predicted"] = self.predicted
        data["cut_off"] = self.cut_off
        return json.dumps(data, indent=1)

    def text(self, width: int | None = None) -> str:
        """As lines of ``width`` columns: those of the terminal, or 120 where there is none."""
        return render.text(self, width)

    def __str__(self) -> str:
        return render.text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render.html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        return render.renderables(self)
