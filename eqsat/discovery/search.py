"""The search for laws: terms that compute the same, and which of their equations follow from no other."""

from __future__ import annotations

import keyword
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eqsat.discovery.enumerate import Fingerprints, Groups, enumerated
from eqsat.discovery.laws import RESERVED, Form, Law, Refused, checked, cost, general, module, named
from eqsat.discovery.terms import Term, inputs_for, number, operators, variable
from eqsat.egraph.saturate import saturate
from eqsat.errors import RuleError
from eqsat.frontends.shapes_only import ArraySpec
from eqsat.ir.node import Node
from eqsat.ir.types import DType, TensorType, dtype_of
from eqsat.progress import Progress
from eqsat.rules import select
from eqsat.rules.examples import Maker
from eqsat.rules.rule import NUMERICS, Numerics, Rule
from eqsat.rules.values import Regime

MOST_SIZE = 6
NODES, ROOM, WORK = 3_000, 96, 6_000.0
"""Limits of the e-graph in which both sides of an equation may meet; the room is that for published laws."""
SAMPLES = 8
REGIMES: dict[Numerics, tuple[Regime, ...]] = {
    "exact": ("ordinary", "grid"),
    "reassociates": ("ordinary", "grid"),
    "approximates": ("positive",),
}
"""Values on which terms are compared, by the loosest class of laws: what may lose a NaN holds where there is none."""


ENUMERATING, PROPOSING, PRUNING = 0.25, 0.6, 0.75
"""Shares of the time by when these stages end; checks, half a second a law, take the rest."""


@dataclass
class Discovery:
    """What a search found. ``laws``: those that neither the rules given nor one another derive.

    ``terms``: how many there were; ``equations``: pairs of them that computed the same, up to the names of variables;
    ``derived``: how many the rules, or the laws, derive; ``dropped``: laws that others derive;
    ``refused``: equations that became no rule, with the reason; ``unchecked``: laws for whose check no time was left;
    ``stop``: ``done``, or ``seconds``.
    """

    laws: tuple[Law, ...] = ()
    terms: int = 0
    equations: int = 0
    derived: int = 0
    dropped: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    stop: str = "done"
    asked: str = ""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(law.rule for law in self.laws)

    @property
    def source(self) -> str:
        """A Python module that defines the rules, each with its evidence in a comment."""
        return module([law.form for law in self.laws], [law.evidence() for law in self.laws], self.asked)

    def write(self, path: str | Path) -> None:
        """Write :attr:`source` to a file."""
        Path(path).write_text(self.source, encoding="utf-8")

    def __str__(self) -> str:
        lines = [str(law) for law in self.laws]
        counts = (
            f"{self.terms} terms, {self.equations} equations: {self.derived} derivable, {len(self.refused)} no rules, "
            f"{len(self.laws)} laws, {len(self.dropped)} more that these derive"
        )
        return "\n".join([*lines, counts + " (time was up)" * (self.stop == "seconds")])


def discover(
    ops: Iterable[str],
    size: int = 3,
    *,
    variables: Mapping[str, ArraySpec] | None = None,
    numbers: Sequence[float] = (),
    rules: Sequence[Rule] | None = None,
    numerics: Numerics = "reassociates",
    seconds: float = 60.0,
    seed: int = 0,
) -> Discovery:
    """Laws over operators that the rules do not derive: proposals, each checked.

    ``ops``: names of the op table or NumPy's, with ``matmul``, ``matrix_transpose`` and ``concatenate``; ``size``: most
    operators of a term. ``variables``: the terms' inputs, by name (:func:`eqsat.spec`); by default some that fit the
    operators. ``numbers``: constants that terms may have. ``rules``: those that must not derive a law already (default:
    all that are installed, of class ``numerics``, which is the loosest class of laws that are looked for).
    ``seconds``: about how long the search may take; what was found by then is returned.

    Terms are enumerated from small to large and compared by what they compute on random inputs. Of two that agree, both
    sides go into one e-graph: where the rules do not make them meet, :func:`eqsat.check` decides over the most general
    rule that says so, over all shapes and element types if it holds for them. The result is the same for the same
    arguments, unless time was up.

    Raises ``ValueError`` for operators that there are not or that none of the variables fit, a size out of range, and
    one of which there are too many terms.

    >>> print(eqsat.discover(["maximum", "neg"], size=3))  # doctest: +SKIP
    """
    if isinstance(ops, str):
        raise ValueError(f"ops are several names, such as [{ops!r}]")
    return _Search(tuple(ops), size, variables, numbers, rules, numerics, seconds, seed).run()


class _Search:
    def __init__(
        self,
        ops: Sequence[str],
        size: int,
        variables: Mapping[str, ArraySpec] | None,
        numbers: Sequence[float],
        rules: Sequence[Rule] | None,
        numerics: Numerics,
        seconds: float,
        seed: int,
    ) -> None:
        if not ops:
            raise ValueError("discover needs operators to make terms of")
        if type(size) is not int or not 1 <= size <= MOST_SIZE:
            raise ValueError(f"terms have 1 to {MOST_SIZE} operators, not {size!r}")
        strange = [each for each in rules or () if not isinstance(each, Rule)]
        if strange:
            raise ValueError(f"rules are what eqsat.rules.rewrite returns, not {strange[0]!r}")
        if numerics not in NUMERICS:
            raise ValueError(f"numerics is one of {', '.join(NUMERICS)}, not {numerics!r}")
        if not seconds > 0:
            raise ValueError(f"a search takes more than 0 seconds, not {seconds:g}")
        self.size, self.numerics, self.seconds = size, numerics, seconds
        maker = Maker(seed)
        types = inputs_for(ops) if variables is None else {n: _type(n, spec) for n, spec in variables.items()}
        inputs = {name: maker.tensor(*type.shape, dtype=type.dtype) for name, type in types.items()}
        self.leaves = [variable(name, node) for name, node in inputs.items()]
        if numbers and self.leaves:
            like = next((leaf.node for leaf in self.leaves if leaf.node.dtype.is_float), self.leaves[0].node)
            self.leaves += [_number(value, like.dtype) for value in numbers]
        self.operators = operators(ops, self.leaves)
        samples = [maker.values(regime) for regime in REGIMES[numerics] for _ in range(SAMPLES)]
        self.fingerprint = Fingerprints(samples, seed)
        self.known = tuple(select(numerics) if rules is None else rules)
        self.taken = {rule.id for rule in self.known} | RESERVED | {*inputs}
        self.found = Discovery(asked=f"of up to {size} of {', '.join(ops)}, seed {seed}")
        self.start = time.monotonic()

    def run(self) -> Discovery:
        found = self.found
        with Progress() as progress:
            self.progress = progress
            groups = enumerated(self.leaves, self.operators, self.size, self.fingerprint, self.growing)
            equations = [*_different(groups)]
            found.terms, found.equations = groups.terms, len(equations)
            forms = [*self.least(self.proposed(equations))]
            found.laws = tuple(self.passed(forms))
        return found

    def in_time(self, share: float = 1.0) -> bool:
        """Whether less than a share of the time is gone. Small terms, and laws in need of no other, are worth more
        than more of both: so each stage leaves some to the next."""
        if time.monotonic() < self.start + share * self.seconds:
            return True
        self.found.stop = "seconds"
        return False

    def growing(self, size: int, terms: int) -> bool:
        self.progress(f"terms of {size} operators, {terms} so far")
        return self.in_time(ENUMERATING)

    def proposed(self, equations: Sequence[tuple[Term, Term]]) -> list[tuple[Form, Rule]]:
        """Laws for the equations that neither the rules nor the laws before derive, from simple ones on."""
        laws: list[tuple[Form, Rule]] = []
        for at, (one, other) in enumerate(equations):
            self.progress(f"equations ({len(laws)} laws)", at, len(equations))
            if not self.in_time(PROPOSING):
                break
            if meets(one.node, other.node, [*self.known, *(rule for _, rule in laws)]):
                self.found.derived += 1
                continue
            name = named(one, other, self.taken)
            try:
                form = general(one, other, name, self.numerics)
            except Refused as reason:
                self.found.refused[f"{one} = {other}"] = str(reason)
                continue
            self.taken.add(name)
            laws.append((form, form.rule()))
        return laws

    def least(self, laws: Sequence[tuple[Form, Rule]]) -> Iterator[Form]:
        """The laws without those that the others derive: the largest are tried first."""
        kept = [*laws]
        for at, each in enumerate(sorted(laws, key=lambda law: cost(law[0].left), reverse=True)):
            self.progress("laws that others derive", at, len(laws))
            if len(laws) > 1 and self.in_time(PRUNING):
                others = [rule for form, rule in kept if form is not each[0]]
                if meets(each[0].left.node, each[0].right.node, [*self.known, *others]):
                    kept.remove(each)
        self.found.dropped = tuple(str(rule) for law in laws if law not in kept for rule in law[1:])
        yield from (form for form, _ in kept)

    def passed(self, forms: Sequence[Form]) -> Iterator[Law]:
        for at, form in enumerate(forms):
            self.progress("checks", at, len(forms))
            if not self.in_time():
                self.found.unchecked = tuple(str(form.rule()) for form in forms[at:])
                break
            try:
                yield checked(form, self.numerics)
            except Refused as reason:
                self.found.refused[f"{form.left} = {form.right}"] = str(reason)


def meets(one: Node, other: Node, rules: Sequence[Rule]) -> bool:
    """Whether rules make two terms one, both in an e-graph of limited size. A rule that fails there makes none."""
    try:
        graph = saturate([one, other], rules=rules, nodes=NODES, room=ROOM, work=WORK)
    except RuleError:
        return False
    left, right = graph.outputs
    return left == right


def _type(name: str, spec: ArraySpec) -> TensorType:
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED or not isinstance(spec, ArraySpec):
        raise ValueError(f"a variable is a free name and eqsat.spec(shape, dtype), not {name!r}: {spec!r}")
    return TensorType(spec.shape, dtype_of(spec.dtype))


def _number(value: float, dtype: DType) -> Term:
    """A constant. ``ValueError`` for one that the type does not have, and for NaN and infinities."""
    try:
        found = np.array(float(value)).astype(dtype.numpy).item()
        fits = np.isfinite(found) and (dtype.is_float or found == value)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"a constant is a finite number of type {dtype}, not {value!r}")
    return number(value, dtype)


def _different(groups: Groups) -> Iterator[tuple[Term, Term]]:
    """The equations, each up to the names of its variables, from simple and general ones on."""
    found: dict[str, tuple[Term, Term]] = {}
    for one, other in groups.equal():
        found.setdefault(min(_renamed(one, other), _renamed(other, one)), (one, other))
    yield from sorted(
        found.values(), key=lambda pair: (pair[0].size + pair[1].size, -len(_variables(pair)), str(pair[1]))
    )


def _variables(pair: tuple[Term, Term]) -> dict[str, Term]:
    return {part.name: part for side in pair for part in side.walk() if part.name}


def _renamed(one: Term, other: Term) -> str:
    """An equation's text with its variables called by their types, in the order of their places."""
    names: dict[str, str] = {}
    for name, part in _variables((one, other)).items():
        names[name] = f"{part.node.type}:{len(names)}"
    return f"{one.key(names)} = {other.key(names)}"
