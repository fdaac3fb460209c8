"""What became of a rule in a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from eqsat import rules
from eqsat.compiled import Compiled
from eqsat.cost.roofline import Roofline
from eqsat.cost.target import Target
from eqsat.egraph.saturate import saturate
from eqsat.egraph.saturated import SaturatedEGraph
from eqsat.extract.select import ALTERNATIVES, extract
from eqsat.extract.terms import Selection, Term
from eqsat.ir.identity import identity
from eqsat.options import unknown
from eqsat.plan.assembly import searched
from eqsat.plan.backend import backend
from eqsat.plan.decide import decide
from eqsat.plan.lower import lower
from eqsat.plan.place import Found
from eqsat.plan.policy import ScheduledPrice
from eqsat.plan.regions import Region
from eqsat.schedule import installed_loop_rules
from eqsat.search import rates, saturation

TRIED = 8
"""E-classes of a region in which the rule's term is tried by force."""


def why(program: Compiled, rule: str) -> str:
    """Whether and where a rule fired, what refused it, or by how much its terms lost on cost.

    For the last, the region is searched once more with the rule's terms forced into the program.
    """
    docs = {r.id: r.doc for r in installed_loop_rules()}
    valid = [r.id for r in rules.list()]
    if rule not in valid and rule not in docs:
        raise unknown("rule", rule, [*valid, *docs])
    search = program.report["search"]
    if rule in program.options.disable:
        return f"{rule}: switched off by disable="
    if rule in docs:
        count = search["loop_matches"].get(rule, 0)
        return f"{rule}: matched {count} times over the loop nests of the program's kernels: {docs[rule]}"
    if rules.get(rule).builtin and not search["matches"].get(rule, {}).get("matches"):
        return f"{rule}: not a pattern but the work of a later stage, which is not counted: {rules.get(rule).doc}"
    stats = search["matches"].get(rule)
    if stats is None and not search["matches"]:
        return f"{rule}: there was nothing to search, the program computes nothing of its arguments"
    if stats is None:
        kind = next(r.numerics for r in rules.list() if r.id == rule)
        return f"{rule}: not used, it is of class {kind!r} and numerics={program.options.numerics!r}"
    found = f"{rule}: matched {stats['matches']} times, fired {stats['fired']} times"
    if stats["pending"]:
        found += f" ({stats['pending']} matches were left when the budget was spent)"
    if rule in search["rules"]:
        return f"{found}; it is in the program {search['rules'][rule]} times"
    if not stats["matches"]:
        return f"{rule}: matched nothing, its pattern does not occur"
    if not stats["fired"]:
        reasons = ", ".join(f"{reason} (×{count})" for reason, count in sorted(stats["refused"].items()))
        return f"{found}; guard failed: {reasons}" if reasons else f"{found}; every result was known already"
    lost = _lost(program, rule)
    if lost is None:
        return f"{found}; what it found equal was there already: no term of the e-graph is its own"
    best, forced = lost
    if forced is None:
        return f"{found}; no program that uses its terms is among the candidates"
    if forced <= best * 1.0001:
        return f"{found}; its terms cost the same ({forced * 1e6:.3g} µs) as those chosen"
    return (
        f"{found}; lost on cost: {forced * 1e6:.4g} µs against {best * 1e6:.4g} µs "
        f"(+{(forced / best - 1):.1%}) for its region"
    )


def _uses(term: Term, egraph: SaturatedEGraph, rule: str) -> bool:
    children = tuple(c.eclass for c in term.children)
    for enode in egraph.classes[term.eclass]:
        if enode.rule == rule and enode.key == (term.op, identity(term.attrs), children):
            return True
    return any(_uses(c, egraph, rule) for c in term.children if isinstance(c, Term))


def _lost(program: Compiled, rule: str) -> tuple[float, float | None] | None:
    """(seconds of the winner, seconds of the best program that uses the rule) of the region where it lost least.

    None if the rule made no term that is there still.
    """
    best: tuple[float, float | None] | None = None
    for _, egraph in searched_again(program):
        made = [e for e, nodes in egraph.classes.items() if any(n.rule == rule for n in nodes)]
        if not made:
            continue
        (winner, *_) = extracted(program, egraph)
        best = best or (winner.seconds, None)
        for eclass in made[:TRIED]:
            only = tuple(n for n in egraph.classes[eclass] if n.rule == rule)
            forced = replace(egraph, classes={**egraph.classes, eclass: only})
            try:
                (selection, *_) = extracted(program, forced)
            except ValueError:
                continue
            if not any(_uses(k, forced, rule) for k in selection.kernels):
                continue
            if best[1] is None or selection.seconds - winner.seconds < best[1] - best[0]:
                best = (winner.seconds, selection.seconds)
    return best


def searched_again(program: Compiled, *, proofs: bool = False) -> Iterator[tuple[Region, SaturatedEGraph]]:
    """The different regions of a program, each saturated once more, with the rules and the work of its options."""
    chosen = rules.select(program.options.numerics, program.options.disable)
    work = saturation(program.options.search_seconds)
    seen: set[str] = set()
    for region in searched(program.searched_form(), frozenset(program.constant_nodes)):
        if region.key() not in seen:
            seen.add(region.key())
            known = frozenset(n for n, c in zip(region.graph.inputs, region.const, strict=True) if c)
            yield region, saturate(region.graph.outputs, rules=chosen, const=known, work=work, proofs=proofs)


def _target(program: Compiled) -> Target:
    return backend(program.options.backend).target(program.machine, program.threads)


def rates_of(program: Compiled, *, lean: bool = False) -> Roofline:
    """What a program was selected by."""
    return rates(program.machine, _target(program), program.threads, lean=lean)


def extracted(
    program: Compiled, egraph: SaturatedEGraph, alternatives: int = 1, *, quick: bool = False, lean: bool = False
) -> list[Selection]:
    """What extraction chooses in an e-graph of a program's, by its model, the best first."""

    def lowers(term: Term) -> bool:
        return lower(term) is not None

    return extract(
        egraph,
        rates_of(program, lean=lean),
        seconds=1.0,
        alternatives=alternatives,
        lowers=lowers,
        quick=quick,
    )


def chosen(program: Compiled, region: Region, egraph: SaturatedEGraph) -> Found:
    """What runs of a region: what extraction chooses, or a program that takes less time once scheduled."""
    options = program.options
    selected = rules.select(options.numerics, options.disable)
    if not any(rule.id == "fuse.read_store" for rule in selected):
        return Found(egraph, extracted(program, egraph)[0])
    no_loops = tuple(sorted({rule.id for rule in installed_loop_rules()} & set(options.disable)))
    price = ScheduledPrice(_target(program), no_loops)
    return decide(region, egraph, selected, partial(extracted, program, alternatives=ALTERNATIVES), price, {})
