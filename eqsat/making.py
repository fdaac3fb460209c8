"""One program made: traced, compiled and verified, or refused, and the user told why NumPy runs the function."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from eqsat import forks, rules
from eqsat.aside import load
from eqsat.compiled import Compiled
from eqsat.cost import machine as machine_model
from eqsat.cost.machine import Machine
from eqsat.deadline import Deadline, OutOfTime
from eqsat.errors import (
    BoundsError,
    BudgetWarning,
    ConcretizationError,
    EqsatWarning,
    OptionError,
    ResultChangedError,
    ShapeError,
    TraceDiffersError,
    UnsupportedDTypeError,
    UnsupportedOpError,
    VerificationError,
)
from eqsat.frontends.pytree import ArgSpec
from eqsat.frontends.trace import Traced, trace
from eqsat.growth import user_level
from eqsat.lengths import Changing, Lengths, served
from eqsat.locks import measuring
from eqsat.options import Options
from eqsat.paths import MOST_PATHS, fixes
from eqsat.plain import AS_ASKED, REFUSED, SLOW, SLOWER, WRONG, PlainProgram, out_of_budget, refusal, signature
from eqsat.plan.sized import Misfit
from eqsat.verify.plain import Plain

log = logging.getLogger("eqsat")

_REFUSALS = (
    BoundsError,
    ConcretizationError,
    ResultChangedError,
    ShapeError,
    TraceDiffersError,
    UnsupportedDTypeError,
    UnsupportedOpError,
)
"""What a compilation raises for a function that NumPy runs; all that is raised while it is traced counts, too."""


class Maker:
    """Makes the programs of one function, and says each thing about them once."""

    def __init__(self, fn: Callable[..., Any], spec: ArgSpec, options: Options) -> None:
        self.fn = fn
        self.spec = spec
        self.options = options
        self.lengths = Lengths([p.name for p in spec.parameters])
        self.ranges = 0
        self._told: set[str] = set()

    def make(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], changing: Changing | None = None
    ) -> Compiled | PlainProgram:
        """The program of a call; of kernels for other lengths, too, where there are such that fit."""
        if not self.options.budget:
            names = self.spec.leaf_names(self.spec.trees(args, kwargs)[0])
            return PlainProgram(
                self.fn, signature(self.spec.name, names, leaves), None, "the budget is 0", AS_ASKED, 0.0
            )
        with measuring():
            machine = machine_model.load()  # measured on first use ever, which the budget does not count
        start = time.monotonic()
        deadline = Deadline(self.options.budget)
        traced = None
        try:
            load("email.parser", "numpy.random", deadline=deadline)
            traced = trace(
                self.fn,
                args,
                kwargs,
                const=self.options.const,
                spec=self.spec,
                deadline=deadline,
                guarded=not self.options.strict,
            )
            plain = Plain(self.fn, args, kwargs, self.spec)
            served = None if changing is None else self._served(changing, traced, leaves, plain, machine, deadline)
            if served is not None:
                return served
            made = self._compiled(traced, leaves, plain, machine, deadline)
            if made.speed is not None and made.speed.loses:
                names = self.spec.leaf_names(self.spec.trees(args, kwargs)[0])
                told, seconds = signature(self.spec.name, names, leaves), time.monotonic() - start
                slower = PlainProgram(self.fn, told, traced, str(made.speed), SLOWER, seconds)
                log.info("%s", slower)
                return slower
            self._tell_of_guards(traced)
            return made
        except OutOfTime as out:
            names = self.spec.leaf_names(self.spec.trees(args, kwargs)[0])
            told, seconds = signature(self.spec.name, names, leaves), time.monotonic() - start
            why = out_of_budget(self.options.budget, out, seconds)
            program = PlainProgram(self.fn, told, traced, why, SLOW, seconds)
        except Exception as error:
            fits = isinstance(error, _REFUSALS) or (traced is None and not isinstance(error, OptionError))
            if self.options.strict or not (fits or (isinstance(error, VerificationError) and not self._strangers())):
                raise
            return self.refused(error, args, kwargs, leaves, traced, time.monotonic() - start)
        log.info("%s", program)
        warnings.warn(str(program), BudgetWarning, stacklevel=user_level())
        return program

    def _compiled(
        self, traced: Traced, leaves: Sequence[Any], plain: Plain, machine: Machine, deadline: Deadline
    ) -> Compiled:
        """The program; where verification refuses it, one without the rules in it that round otherwise than what is
        written, or do not overflow where that does."""
        options = self.options
        while True:
            try:
                return Compiled(traced, leaves, options, machine, deadline, plain)
            except VerificationError as error:
                others = self._inexact(error)
                if not others:
                    raise
                log.info("%s is compiled without %s: %s", self.spec.name, ", ".join(others), error)
            options = replace(options, disable=(*options.disable, *others))

    def _inexact(self, error: VerificationError) -> list[str]:
        """Rules without which a program may be right: algorithms, as zeros in filters make results exact that these
        only approach; without those other rules that are not exact, which ``strict`` leaves to the user.

        None of them where a stranger's rule may be wrong.
        """
        found = [rule for rule in rules.list() if rule.id in error.rules]
        algorithms = [rule.id for rule in found if rule.algorithm]
        if algorithms or self.options.strict or isinstance(error, _REFUSALS) or self._strangers():
            return algorithms
        return [rule.id for rule in found if rule.numerics != "exact"]

    def _served(
        self,
        changing: Changing,
        traced: Traced,
        leaves: Sequence[Any],
        plain: Plain,
        machine: Machine,
        deadline: Deadline,
    ) -> Compiled | None:
        """The program of kernels that take the length as an argument; None where the call needs one of its own."""
        new = not self.lengths.known(changing)
        found = served(self.lengths, changing, plain, self.options, machine, deadline)
        if found is None or traced.guards:
            return None
        try:
            given = found.given(traced, leaves, changing.length, deadline)
            made = Compiled(traced, leaves, self.options, machine, deadline, plain, given)
        except (Misfit, VerificationError, ValueError) as error:
            log.info("a program of its own for length %d: %r", changing.length, error)
            return None
        found.verified(given)
        self.ranges += new
        return made

    def refused(
        self,
        error: Exception,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        traced: Traced | None,
        seconds: float,
    ) -> PlainProgram:
        names = self.spec.leaf_names(self.spec.trees(args, kwargs)[0])
        told = signature(self.spec.name, names, leaves)
        found_wrong = isinstance(error, VerificationError) and not isinstance(error, _REFUSALS)
        fix = WRONG if found_wrong else REFUSED
        return PlainProgram(self.fn, told, traced, refusal(error), fix, seconds, error)

    def _strangers(self) -> bool:
        """Whether a wrong program may be the fault of a rule, or a backend, that did not come with eqsat."""
        with forks.IMPORTING:
            from eqsat.rules.registry import strangers

        return not set(strangers()) <= set(self.options.disable)

    def tell(self, program: PlainProgram) -> None:
        program.error = None
        if program.why not in self._told:  # each kind of arguments has a program, perhaps each call
            self._told.add(program.why)
            log.info("%s", program)
            warnings.warn(str(program), EqsatWarning, stacklevel=user_level())

    def _tell_of_guards(self, traced: Traced) -> None:
        new = [guard for guard in traced.guards if str(guard.where) not in self._told]
        if new:
            places = dict.fromkeys(str(guard.where) for guard in new)
            self._told.update(places)
            shapes = all(guard.what for guard in new)
            asked = "shapes depend on values of arrays" if shapes else "Python asks for values of arrays"
            ways = "shapes that calls have" if shapes else "branches that calls take"
            warnings.warn(
                f"{self.spec.name}: {asked}, so each of the {ways} is "
                f"compiled by itself, up to {MOST_PATHS}. Fix: {fixes(new)}; strict=True makes it an error."
                + "".join(f"\n  at {place}" for place in places),
                EqsatWarning,
                stacklevel=user_level(),
            )
