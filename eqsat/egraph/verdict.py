"""All that is known of a rule: random trials, proofs over a field and by z3, what its guards keep out, its rounding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from eqsat.egraph import smt
from eqsat.egraph.check import CheckResult, applied, check_rule, of_patterns
from eqsat.egraph.evaluate import class_values, in_own_types, in_reals
from eqsat.egraph.field import Identity, identity
from eqsat.egraph.rule_calls import Unfit, program_of
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.egraph.smt import Solved
from eqsat.errors import OptionError, RuleError
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, float32, float64
from eqsat.options import as_seconds
from eqsat.rules.examples import SHAPES, Maker
from eqsat.rules.rule import Rule
from eqsat.tracebacks import at_users_line

SECONDS = 4.0
ENOUGH, GUARDED = 60, 20
"""Programs on which a rule fired, after which trials end: of all of its guards, and without one."""
SHOWN = 3
"""Left sides that a verdict names."""
EACH = 4
"""Programs of each shape and left side that are held over the field, and measured."""


@dataclass(frozen=True)
class Without:
    """A guard, and what became of the rule without it: programs on which it fired, and why it is needed, if it is."""

    guard: str
    fired: int
    needed: str = ""

    def __str__(self) -> str:
        if self.needed:
            return f"needed: {self.needed}"
        return f"the law held without it in {self.fired} programs" if self.fired else "nothing fired without it"


@dataclass(frozen=True)
class Rounding:
    """Worst errors in float32 of what a rule found and of what it made, in units in the last place of the largest
    element, over so many programs."""

    found: float
    made: float
    programs: int


@dataclass(frozen=True)
class Verdict:
    """What a rule's check found. As text: the verdict, and the evidence for it.

    ``trials.counterexample.program`` is a program that shows a counterexample again. ``solved``: what z3 says of an
    elementwise law, if it is installed.
    """

    rule: Rule
    trials: CheckResult
    identity: Identity
    guards: tuple[Without, ...]
    rounding: Rounding | None
    solved: Solved | None = None

    @property
    def wrong(self) -> bool:
        solved = self.solved is not None and self.solved.refuted is not None
        return solved or self.trials.counterexample is not None or self.identity.refuted is not None

    @property
    def word(self) -> str:
        """In a word: ``wrong``, ``proved`` (for the shapes tried, or all elements), ``tested``, also where some of its
        ways never fired, ``untested`` if none did."""
        if self.wrong:
            return "wrong"
        proved = self.identity.proved or (self.solved is not None and self.solved.proved)
        if proved and not self.trials.idle:
            return "proved"
        return "tested" if self.trials.fired else "untested"

    def __str__(self) -> str:
        rule, trials = self.rule, self.trials
        lines = [f"{rule} (class {rule.numerics!r}, {rule.file}:{rule.line}) is {self.word}"]
        if trials.counterexample is not None:
            lines.append(str(trials.counterexample))
        elif trials.trials:
            lines.append(f"random trials: it fired on {trials.fired} of {trials.trials} programs, and all terms agreed")
        else:
            lines.append(f"random trials: no program could be made to try it on{trials.unmade and ': '}{trials.unmade}")
        if trials.idle:
            lefts = ", ".join(" and ".join(map(str, way.left)) for way in trials.idle[:SHOWN])
            more = f" and {len(trials.idle) - SHOWN} more" if len(trials.idle) > SHOWN else ""
            lines.append(f"of its {len(rule.ways)} left sides these fired on no program: {lefts}{more}")
        lines.append(f"as rational functions: {self.identity}")
        if self.solved is not None:
            lines.append(f"element by element, by z3: {self.solved}")
        lines += [f"guard {without.guard!r}: {without}" for without in self.guards]
        if self.rounding is not None:
            found, made, programs = self.rounding.found, self.rounding.made, self.rounding.programs
            lines.append(f"rounding in float32: {found:.2g} ulp as found, {made:.2g} as made, {programs} programs")
        return "\n".join(lines)


@at_users_line
def check(rule: Rule, *, seconds: float = SECONDS, seed: int = 0) -> Verdict:
    """Try a rule on random programs, prove or refute it over a prime field, try it without each of its guards, and
    measure its rounding, in about ``seconds`` of wall time. With z3 installed (``pip install 'eqsat[smt]'``)
    elementwise laws are also held for all reals and integers of 32 and 8 bits (:func:`~eqsat.egraph.smt.solve`).

    >>> print(eqsat.check(eqsat.rewrite(a * (b + c), a * b + a * c)))  # doctest: +SKIP

    Random trials are those of :func:`~eqsat.egraph.check.check_rule`, which hold the sides to the rule's numerics class
    (rounding, NaN, infinities) in all element types; :func:`~eqsat.egraph.field.identity` forgets all of these, and
    says of sums, products and quotients whether they are the same function at all. A guard without which nothing was
    found wrong may be there for the search's sake.

    Raises ``RuleError`` where a function of the rule raises, does not return in time, or makes a tensor of another
    type; and for rules that are no rewrites. ``OptionError`` for ``seconds`` that are no number above 0, and for a
    ``seed`` that is no integer.
    """
    if not isinstance(rule, Rule):
        raise TypeError(f"eqsat.check takes a rule (eqsat.rewrite, or eqsat.rules.get of an id), not {rule!r}")
    limit = as_seconds(seconds)
    if not limit:
        raise OptionError(f"a check takes a number of seconds above 0, not {seconds!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"a check takes an integer as its seed, not {seed!r}")
    if not rule.ways:
        raise RuleError(f"rule {rule.id!r} is no rewrite: {rule.doc}")
    trials = check_rule(rule, seconds=0.4 * limit, trials=2000, enough=ENOUGH, seed=seed)
    proof = identity(fired(rule, float64, 0.25 * limit, seed), seed=seed)
    each = 0.25 * limit / max(1, len(rule.where))
    guards = tuple(_without(rule, number, each, seed) for number in range(len(rule.where)))
    rounding = None if trials.counterexample or proof.refuted else _rounding(rule, 0.1 * limit, seed)
    solved = smt.solve(rule, seed=seed) if smt.available() and trials.fired else None
    return Verdict(rule, trials, proof, guards, rounding, solved)


def _without(rule: Rule, number: int, seconds: float, seed: int) -> Without:
    guard = rule.where[number]
    others = tuple(g for n, g in enumerate(rule.where) if n != number)
    try:
        found = check_rule(replace(rule, where=others), seconds=seconds, trials=500, enough=GUARDED, seed=seed)
    except RuleError as error:
        return Without(guard.name, 0, str(error).splitlines()[0])
    if found.counterexample is None:
        return Without(guard.name, found.fired)
    given = ", ".join(f"{name} of shape {value.shape}" for name, value in found.counterexample.given)
    return Without(guard.name, found.fired, f"without it the sides differ, for {given}")


def _rounding(rule: Rule, seconds: float, seed: int) -> Rounding | None:
    found, made, programs = 0.0, 0.0, 0
    for graph, maker in fired(rule, float32, seconds, seed):
        values = maker.values()
        try:
            exact, own = class_values(graph, values, in_reals), class_values(graph, values, in_own_types)
        except (ValueError, IndexError):  # the program does not take these values
            continue
        programs += 1
        for handle, nodes in graph.classes.items():
            type = graph.types[handle]
            largest = np.abs(exact[handle]).max(initial=0.0) if type.dtype.is_float else 0.0
            if not 0 < largest < np.inf:
                continue
            for node in nodes:
                if OPS[node.op].kind in ("source", "composite"):
                    continue
                with np.errstate(all="ignore"):
                    value = in_own_types(node, type, [own[c] for c in node.children])
                    error = np.fmax.reduce(np.abs(value - exact[handle]), axis=None, initial=0.0)
                    error = error / largest / np.finfo(np.float32).eps
                if node.rule == rule.id:
                    made = max(made, float(error))
                elif node.rule is None:
                    found = max(found, float(error))
    return Rounding(found, made, programs) if programs else None


def fired(rule: Rule, dtype: DType, seconds: float, seed: int) -> Iterator[tuple[SaturatedEGraph, Maker]]:
    """Saturated programs on which the rule fired: of its left sides and its ``example``, in one element type and all
    shapes of examples."""
    end = time.monotonic() + seconds
    for number in range(EACH * len(SHAPES) * len(rule.ways)):
        if time.monotonic() >= end:
            return
        way, base = number % len(rule.ways), SHAPES[number // len(rule.ways) % len(SHAPES)]
        maker = Maker(seed * 100_003 + number, dtype=dtype, base=base)
        try:
            if rule.example is not None and number % 2:
                made = program_of(rule, rule.example, maker)
            else:
                made = of_patterns(rule, way, maker)
        except Unfit:
            continue
        graph = applied(rule, maker, made)
        if graph.report.rules[rule.id].fired:
            yield graph, maker
