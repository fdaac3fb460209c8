"""Laws as rules: which side is looked for, how general the rule is, and the text that defines it."""

from __future__ import annotations

import itertools
import keyword
import linecache
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.discovery.terms import INFIX, JOIN, PRODUCT, SWAP, Shapes, Term
from eqsat.egraph.check import check_rule
from eqsat.egraph.verdict import Verdict, check
from eqsat.errors import RuleError
from eqsat.explain.work import node_flops
from eqsat.ir.node import topological
from eqsat.ir.types import DType, bool_, float64
from eqsat.rules.examples import DTYPES
from eqsat.rules.rule import NUMERICS, Numerics, Rule

TRIALS, ENOUGH = 400, 16
"""Random programs, and of these on how many a law fires, to find how general it is; its evidence comes of the check."""
SECONDS = 20.0
"""Most time of one check: counts end it before."""
SURE = 8
"""A law that fires on fewer random programs made from its pattern gets an example of its own."""
HEADER = '''"""Laws that eqsat discovered, with the evidence for each: {what}.

Each is a proposal: read it, name it, and move it to a library of rules, or give it to ``eqsat.rules.add``.
"""

'''
IMPORTS = {
    "eqsat.ir": ("build",),
    "eqsat.ir.build": ("call",),
    "eqsat.ir.types": (*(str(dtype) for dtype in DTYPES if dtype != bool_), "bool_"),
    "eqsat.rules": ("attributes", "concat", "op", "reduction", "rewrite", "tensors"),
    "eqsat.rules.guards": ("alike", "floats", "matrices", "small"),
    "eqsat.rules.instantiate": ("swapped",),
}
"""What the text of rules may use, by module."""
RESERVED = frozenset(("k", "mk", *(name for names in IMPORTS.values() for name in names)))
"""Names that no variable has."""


@dataclass(frozen=True)
class Form:
    """One way to write a law as a rule. ``anywhere``: along any axis, in place of the one that was tried."""

    name: str
    left: Term
    right: Term
    guards: tuple[str, ...] = ()
    numerics: Numerics = "exact"
    anywhere: bool = False
    example: bool = False

    def follows(self, other: Form) -> bool:
        """Whether it is less general: of more guards, or of one axis."""
        same = other.anywhere == self.anywhere
        return {*other.guards} < {*self.guards} if same else other.anywhere

    def text(self) -> str:
        """Python that defines the rule."""
        arguments = [self._side(self.left), self._side(self.right)]
        if self.guards:
            guards = ", ".join(self.guards)
            arguments.append(f"where={guards}" if len(self.guards) == 1 else f"where=[{guards}]")
        if self.numerics != "reassociates":
            arguments.append(f'numerics="{self.numerics}"')
        text = self._example() if self.example else ""
        if self.example:
            arguments.append(f"example=_{self.name}")
        line = f"{self.name} = rewrite({', '.join(arguments)})"
        if len(line) > 120:
            line = f"{self.name} = rewrite(\n" + "".join(f"    {each},\n" for each in arguments) + ")"
        return text + line

    def rule(self) -> Rule:
        """The rule that the text defines."""
        file = f"<discovered {self.name}>"
        source = module([self], [])
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        scope: dict[str, object] = {"__name__": file}
        exec(compile(source, file, "exec"), scope)
        rule = scope[self.name]
        assert isinstance(rule, Rule)
        return rule

    def _side(self, term: Term) -> str:
        text = spelled(term, PATTERNS, self._axis)
        return text[1:-1] if term.op in (*INFIX, "neg") else text

    def _axis(self, term: Term) -> str:
        return "k" if self.anywhere else str(term.axis)

    def _example(self) -> str:
        """A function of a Maker: the left side over tensors of random shapes that fit."""
        shapes = Shapes([self.left, self.right])
        names = self.left.variables
        unknowns = dict.fromkeys(each for name in names for extent in shapes.of(name) for each in extent)
        lines = [f"def _{self.name}(mk):"]
        if unknowns:
            lines.append(f"    {', '.join(unknowns)}, = (mk.random.randint(1, 4) for _ in range({len(unknowns)}))")
        by_name = {part.name: part.node for part in self.left.walk() if part.name}
        for name in names:
            shape = "".join(f"{' + '.join(extent)}, " for extent in shapes.of(name))
            dtype = by_name[name].dtype
            kind = "" if dtype == float64 else f"dtype={_dtype(dtype)}"
            lines.append(f"    {name} = mk.tensor({shape}{kind})".replace(", )", ")"))
        return "\n".join([*lines, f"    return {spelled(self.left, CALLS, _from_start)}", "", "", ""])


def _dtype(dtype: DType) -> str:
    return "bool_" if dtype == bool_ else str(dtype)


def spelled(term: Term, forms: Mapping[str, str], axis: Callable[[Term], str]) -> str:
    """A term as Python: ``forms`` of operators, of reductions (``reduce``), of others (``call``) and numbers."""
    if term.name:
        return term.name
    if term.number is not None:
        return forms["number"].format(repr(term.number), _dtype(term.node.dtype))
    args = [spelled(arg, forms, axis) for arg in term.args]
    kind = term.op if term.op in forms else "call" if term.axis is None else "reduce"
    return forms[kind].format(*args, args=", ".join(args), op=term.op, axis=axis(term))


PATTERNS = {
    **{op: f"({{0}} {sign} {{1}})" for op, sign in INFIX.items()},
    "neg": "(-{0})",
    SWAP: "{0}.mT",
    JOIN: "concat([{args}], {axis})",
    "reduce": 'reduction("{op}", {0}, {axis})',
    "call": 'op("{op}", {args})',
    "number": "{0}",
}
CALLS = {
    PRODUCT: "build.matmul({args})",
    SWAP: "swapped({0})",
    JOIN: "build.concat([{args}], {axis})",
    "reduce": 'build.reduce("{op}", {0}, ({axis},))',
    "call": 'call("{op}", {args})',
    "number": "build.scalar({0}, {1})",
}


def _from_start(term: Term) -> str:
    return "" if term.axis is None else str(term.args[0].node.type.ndim + term.axis)


def module(forms: Sequence[Form], evidence: Sequence[Sequence[str]], what: str = "") -> str:
    """The text of a module that defines rules, each after its evidence."""
    comments = [[f"# {line}".rstrip() for line in lines] for lines in evidence]
    rules = [form.text() for form in forms]
    words = set(re.findall(r"\w+", "\n".join(rules)))
    variables = sorted({name for form in forms for name in form.left.variables})
    made = [f'{", ".join(variables)} = tensors("{" ".join(variables)}")'] if variables else []
    if any(form.anywhere for form in forms):
        made.append('k = attributes("k")')
    words.update(re.findall(r"\w+", "\n".join(made)))
    used = {name: [each for each in names if each in words] for name, names in IMPORTS.items()}
    imports = [f"from {name} import {', '.join(names)}" for name, names in used.items() if names]
    blocks = ["\n".join([*lines, text]) for lines, text in zip(comments or [[] for _ in rules], rules, strict=True)]
    return HEADER.format(what=what) + "\n".join([*imports, "", *made, ""]) + "\n" + "\n\n".join(blocks) + "\n"


@dataclass(frozen=True)
class Law:
    """A law that was found: its ``rule``, the text that defines it, and what the check says."""

    form: Form
    rule: Rule
    verdict: Verdict

    @property
    def id(self) -> str:
        return self.rule.id

    @property
    def text(self) -> str:
        return self.form.text()

    def __str__(self) -> str:
        return f"{self.rule} ({self.rule.numerics}, {self.verdict.word})"

    def evidence(self) -> list[str]:
        """The verdict, without the rule's place."""
        _, *lines = str(self.verdict).splitlines()
        return [f"{self.rule.numerics}, {self.verdict.word}", *lines]


class Refused(Exception):
    """Why an equation becomes no rule."""


def general(one: Term, other: Term, name: str, numerics: Numerics) -> Form:
    """The most general form of an equation that random programs do not refute, at most as loose as ``numerics``.

    Raises ``Refused``, with the reason.
    """
    left, right = directed(one, other)
    forms = [*_forms(left, right, name)]
    # What does not hold where all guards do holds nowhere.
    why = _refuted(replace(forms[-1], numerics=numerics, example=True))
    if why:
        raise Refused(why)
    return next(_holding(forms, numerics))


def _holding(forms: Sequence[Form], numerics: Numerics) -> Iterator[Form]:
    """The forms that random programs do not refute; then ``Refused``."""
    why = "no form of it fires"
    for form in forms:
        found = _loosened(form, numerics)
        if isinstance(found, Form):
            yield found
            why = "its check refutes each form"
        else:
            why = found
    raise Refused(why)


def checked(form: Form, numerics: Numerics) -> Law:
    """The law, as general as its form or less, and in the strictest class up to ``numerics``, in which it passes its
    check, which tries more than was tried before.

    Raises ``Refused``, with the reason.
    """
    stricter = [each for each in _forms(form.left, form.right, form.name) if each.follows(form)]
    for found in itertools.chain([form], _holding(stricter, numerics)):
        for each in NUMERICS[NUMERICS.index(found.numerics) : NUMERICS.index(numerics) + 1]:
            tried = replace(found, numerics=each)
            try:
                verdict = check(tried.rule(), seconds=SECONDS)
            except RuleError:
                break
            if verdict.word in ("proved", "tested"):
                return Law(tried, verdict.rule, verdict)
    raise AssertionError("unreachable")


def _refuted(form: Form) -> str:
    """A counterexample, or what it raises, if there is one."""
    try:
        return str(check_rule(form.rule(), trials=TRIALS, enough=ENOUGH, seconds=SECONDS).counterexample or "")
    except RuleError as error:
        return str(error)


def _forms(left: Term, right: Term, name: str) -> Iterator[Form]:
    """Ways to write a law, the most general first."""
    plain = Form(name, left, right)
    always = ("small",) if cost(right) >= cost(left) else ()
    try:
        shapes = Shapes([left, right])
    except ValueError as error:
        raise Refused(str(error)) from error
    ranked = any(part.op in (PRODUCT, SWAP) or part.axis is not None for side in (left, right) for part in side.walk())
    alike = [f'alike("{" ".join(names)}")' for names in shapes.alike()]
    flat = [f'matrices("{" ".join(sorted(left.variables))}")'] if ranked else []
    bounds = list(dict.fromkeys([(), tuple(alike), tuple(flat), (*alike, *flat)]))
    for anywhere in (True, False) if _one_axis(left, right) else (False,):
        for guards, dtype in itertools.product(bounds, ((), ("floats",))):
            yield replace(plain, guards=(*guards, *dtype, *always), anywhere=anywhere)


def _one_axis(left: Term, right: Term) -> bool:
    """Whether a law is about one axis, of operators of one kind and tensors of one rank: then it may be any."""
    along = {
        (part.axis, part.op == JOIN, part.args[0].node.type.ndim)
        for side in (left, right)
        for part in side.walk()
        if part.axis is not None
    }
    swaps = any(part.op in (SWAP, PRODUCT) for side in (left, right) for part in side.walk())
    return len(along) == 1 and not swaps and any(part.axis is not None for part in left.walk())


def _loosened(form: Form, most: Numerics) -> Form | str:
    """The form in the strictest class of numerics in which nothing refutes it, or why there is none."""
    why = ""
    for numerics in NUMERICS[: NUMERICS.index(most) + 1]:
        for example in (False, True):
            tried = replace(form, numerics=numerics, example=example)
            try:
                found = check_rule(tried.rule(), trials=TRIALS, enough=ENOUGH, seconds=SECONDS)
            except RuleError as error:
                return str(error)
            if found.counterexample is not None:
                why = str(found.counterexample)
                break
            if found.fired >= SURE:
                return tried
            why = f"it fired on {found.fired} of {found.trials} random programs"
        else:
            return why
    return why


def cost(term: Term) -> tuple[int, float]:
    """By what a side is the cheaper one: its operators, then operations and elements."""
    nodes = topological([term.node])
    return term.size, sum(node_flops(node) + node.type.size for node in nodes)


def directed(one: Term, other: Term) -> tuple[Term, Term]:
    """The side to look for, the dearer one if there is a choice, and the other. ``Refused`` where there is none."""
    for left, right in ((one, other), (other, one)) if cost(one) >= cost(other) else ((other, one), (one, other)):
        if left.op and set(right.variables) <= set(left.variables):
            return left, right
    raise Refused("each side has a variable that the other one lacks, or is one")


def named(one: Term, other: Term, taken: Collection[str]) -> str:
    """A name by the operators of both sides."""
    try:
        left, right = directed(one, other)
    except Refused:
        left, right = one, other
    words = [_words(left), _words(right)]
    base = "_is_".join(word for word in words if word) or "law"
    base = f"{base}_" if keyword.iskeyword(base) else base
    names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _words(term: Term) -> str:
    short = {SWAP: "transpose", JOIN: "concat"}
    return "_".join(short.get(part.op, part.op.removeprefix("reduce_")) for part in term.walk() if part.op)
