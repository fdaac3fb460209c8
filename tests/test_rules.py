"""Rules: defining, choosing and checking them; each rule of the library on random typed programs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

import eqsat
import eqsat.rules as rules
from eqsat.egraph.check import check_rule
from eqsat.egraph.evaluate import disagreements
from eqsat.egraph.saturate import saturate
from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.composite import composite
from eqsat.ir.node import Node
from eqsat.ir.spec import make_spec
from eqsat.ir.types import DType, TensorType, float32, float64
from eqsat.rules import Match, Parts, RuleError, Terms, numbers, op, rewrite, signed, tensors, whole
from eqsat.rules.examples import Maker
from eqsat.rules.rule import mistakes
from eqsat_rules import RULES, arithmetic

a, b, c, x = tensors("a b c x")
p = numbers("p")

CHECKED = [rule for rule in RULES if rule.ways]


@pytest.mark.parametrize("rule", CHECKED, ids=lambda rule: rule.id)
def test_rule_holds_wherever_it_fires(rule: rules.Rule) -> None:
    # A negation inside a sum is opened when the sum is made: only another rule can bring one in.
    beside = [arithmetic.mul_minus_one] if rule.id == "add_negated" else []
    examples = [_sum_with_a_negative] if rule.id == "add_negated" else []
    result = check_rule(rule, beside=beside, examples=examples, enough=10)
    assert result.counterexample is None, str(result.counterexample)
    assert result.fired >= 3, f"{rule.id} fired {result.fired} times in {result.trials} programs"


def _sum_with_a_negative(mk: Maker) -> Node:
    x = mk.tensor(3, 4)
    return call("add", mk.tensor(4), call("mul", x, build.scalar(-1, x)))


def test_library_ids_are_unique_and_documented_by_their_sides() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.doc or rule.ways for rule in RULES)
    assert all(rule.file.endswith(".py") and rule.line > 0 for rule in RULES)


# Negative controls: the checker must catch these.

WRONG = [
    rewrite(a - b, b - a, id="wrong.sub_commutes"),
    rewrite(a * b + c, a * (b + c), id="wrong.distributes"),
    rewrite((a @ b), (a * 1) @ (b * 2), id="wrong.scaled_matmul"),
    rewrite(np.maximum(a, b), a, id="wrong.maximum"),
    rewrite(np.sqrt(np.square(x)), x, id="wrong.sqrt_square"),
    rewrite(np.exp(a) + np.exp(b), np.exp(a * b), id="wrong.exp"),
    rewrite(x.sum(axis=rules.attributes("ax")), x.max(axis=rules.attributes("ax")), id="wrong.sum_is_max"),
    rewrite(x.mean(axis=-1), x.sum(axis=-1), id="wrong.mean_is_sum"),
    rewrite(x * 0, 0, id="loses_nan.mul_zero"),
    rewrite(x - x, 0, id="loses_nan.sub"),
    rewrite(x / x, 1, id="loses_nan.div"),
    rewrite(np.exp(np.log(x)), x, id="loses_nan.exp_log"),
    rewrite(x + 0, x, id="not_exact.add_zero", numerics="exact"),
    rewrite((a + b) + c, a + (b + c) * 1, id="not_exact.sum", numerics="exact"),
    rewrite(np.exp(a) * np.exp(b), np.exp(a + b), id="not_exact.exp", numerics="exact"),
    rewrite(
        -x.sum(axis=rules.attributes("ax")), (-x).sum(axis=rules.attributes("ax")), id="not_exact", numerics="exact"
    ),
    rewrite(abs(a) * abs(b), abs(a * b), id="wraps.abs_mul"),
    rewrite(op("relu", x) + op("relu", -x), abs(x), id="wraps.relu_sum"),
    rewrite((2 * x).max(axis=rules.attributes("ax")), 2 * x.max(axis=rules.attributes("ax")), id="wraps.max_of_scaled"),
]


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.id)
def test_checker_catches_wrong_rules(rule: rules.Rule) -> None:
    result = check_rule(rule, enough=30)
    assert result.counterexample is not None, f"{rule.id} passed ({result.fired} of {result.trials})"
    assert rule.id in str(result.counterexample)


NEEDED = [
    ("abs_mul", 0),
    ("relu_sum", 0),
    ("relu_scaled", 0),
    ("relu_scaled", 1),
    ("relu_definition", 0),
    ("cast_cast", 0),
    ("max_of_scaled", 0),
    ("max_of_scaled", 2),
    ("max_of_shifted", 0),
    ("argmax_of_scaled", 1),
    ("pow_minus_one", 0),
    ("softmax_written", 0),
    ("softmax_of_shifted", 0),
    ("layer_norm_scaled", 0),
    ("rms_norm_scaled_before", 1),
    ("pad_pad", 0),
    ("sum_of_pad", 0),
    ("cast_of_small_sum", 0),
    ("contract_zero_points", 0),
    ("view_of_zero_point", 0),
]


ILL_TYPED = {"relu_definition", "pow_minus_one", "layer_norm_scaled", "rms_norm_scaled_before"}
"""Those whose guard keeps out types that the right side has no meaning for."""


@pytest.mark.parametrize(("id", "number"), NEEDED)
def test_rules_are_wrong_without_the_guards_that_keep_them_right(id: str, number: int) -> None:
    rule = rules.get(id)
    bare = replace(rule, where=tuple(g for n, g in enumerate(rule.where) if n != number))
    try:
        result = check_rule(bare, enough=60)
    except RuleError as error:  # without its guard, it makes something that has no type
        assert str(error).startswith(f"rule {id!r} ") and re.search("its right side failed|turns a tensor", str(error))
    else:
        assert result.counterexample is not None


def test_counterexample_is_a_program_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = rewrite(a - b, b - a, id="test.wrong")
    result = check_rule(wrong)
    assert result.counterexample is not None
    rules.add(wrong, check=False)
    try:
        exec(result.counterexample.program, {})
    finally:
        rules.remove("test.wrong")
    assert "test.wrong" in capsys.readouterr().out


def test_tensors_without_elements_are_left_alone() -> None:
    # A sum over nothing is 0 also times NaN: moving a factor into it would lose that NaN.
    mk = Maker(0)
    chain = build.matmul(build.matmul(mk.tensor(3, 0), mk.tensor(0, 4)), mk.tensor(4, 2))
    graph = saturate([chain], rules=[rules.get("contract_associates")])
    stats = graph.report.rules["contract_associates"]
    assert not stats.fired and set(stats.refused) == {"a tensor without elements"}


@pytest.mark.parametrize("number", [1e300, 1e-300])
def test_numbers_whose_product_leaves_the_range_do_not_meet(number: float) -> None:
    mk = Maker(0)
    x = mk.tensor(3)
    twice = call("mul", call("mul", x, build.scalar(number, x)), build.scalar(number, x))
    graph = saturate([twice], rules=rules.select())
    values = {x: np.array([1 / number, -1 / number, 0.0])}
    assert not list(disagreements(graph, values))


# Defining rules


def test_id_is_the_name_assigned_to() -> None:
    doubled_is_sum = rewrite(
        a + a,
        2 * a,
    )
    assert doubled_is_sum.id == "doubled_is_sum"
    assert doubled_is_sum.file == __file__


def test_rule_without_a_name_is_refused() -> None:
    with pytest.raises(RuleError, match=r"test_rules\.py:\d+: a rule needs an id"):
        print(rewrite(a + a, 2 * a))


def test_unbound_variable_is_refused_by_name_and_place() -> None:
    with pytest.raises(RuleError, match=r"rule 'bad' \(.*test_rules\.py:\d+\).*'c'.*unbound.*bound: a, b"):
        rewrite(a + b, a + c, id="bad")


def test_variable_of_another_kind_is_refused() -> None:
    with pytest.raises(RuleError, match=r"'p' is a tensor on the left and a number on the right"):
        rewrite(np.exp(tensors("p")), p, id="bad")
    with pytest.raises(RuleError, match=r"'p' is both a number and a tensor|'p' is both a tensor and a number"):
        rewrite(np.exp(tensors("p")) * p, 1, id="bad")


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown operator 'convolve'.*softmax"):
        op("convolve", a)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"numerics": "fast"}, "numerics is one of exact, reassociates, approximates"),
        ({"where": 3}, "a guard is a function"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        rewrite(a + b, b + a, id="bad", **arguments)  # type: ignore[arg-type]


def test_an_unknown_class_of_numerics_is_refused() -> None:
    with pytest.raises(ValueError, match="numerics is one of exact, reassociates, approximates, not 'fast'"):
        rules.list("fast")  # type: ignore[arg-type]


def test_left_side_must_be_a_pattern() -> None:
    with pytest.raises(RuleError, match="left side is a pattern, not float"):
        rewrite(3.0, a, id="bad")


def test_duplicate_ids_are_refused_with_both_places() -> None:
    one, other = rewrite(a * 1, a, id="same"), rewrite(1 * a, a, id="same")
    with pytest.raises(RuleError, match=r"'same' is used at .*test_rules\.py:\d+ and .*test_rules\.py:\d+"):
        rules.registry.unique([one, other])


def test_rule_prints_as_its_sides() -> None:
    rule = rewrite((a @ b) @ c, a @ (b @ c), id="assoc", both_ways=True)
    assert str(rule) == "assoc: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))"


def _square(m: Match) -> bool:
    """the matrix is square"""
    return bool(
        m.a.shape == m.matrix.shape  # a variable that no left side has
    )


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "unbound on the right": (lambda: rewrite(a + b, a + c, id="bad"), "'c', unbound on the left"),
    "any sum on the right": (lambda: rewrite(-Terms("ts"), 0 - Terms("ts"), id="bad"), "m.ts are pairs of a sign and"),
    "any parts on the right": (
        lambda: rewrite(op("exp", Parts("ps")), op("exp", Parts("ps")) * 1, id="bad"),
        "'ps' stands for any number",
    ),
    "an operator there is not": (lambda: op("tahn", a), r"unknown operator 'tahn' in a pattern; did you mean tanh"),
    "too many tensors": (lambda: op("exp", a, b), "exp takes 1 tensor in a pattern, not 2"),
    "too few tensors": (lambda: op("where", a, b), "where takes 3 tensors in a pattern, not 2"),
    "too many to add": (lambda: op("add", a, b, c), "add takes 2 tensors in a pattern, not 3"),
    "of a view": (lambda: op("view", a, b), "view takes 1 tensor in a pattern, not 2"),
    "an axis for axes": (lambda: op("argmax", a, attrs=0), r"argmax in .* axes, which are a tuple of ints, not 0"),
    "axes for an axis": (lambda: op("softmax", a, attrs=(0,)), r"softmax in .* an int from the left, not \(0,\)"),
    "an axis from the right": (lambda: op("softmax", a, attrs=-1), "an int from the left, not -1"),
    "a cast to nothing": (lambda: op("cast", a), "cast in a pattern needs an attribute variable .* not None"),
    "a text for a spec": (lambda: rules.contract(a, b, "ij,jk->ik"), "or a Spec, not 'ij,jk->ik'"),
    "joined along none": (lambda: np.concatenate([a, b], axis=None), "concat in .* not None"),
    "a text for axes": (lambda: a.sum(axis="x"), "reduce_sum in .* not 'x'"),
    "a number for axes": (lambda: a.mean(axis=1.5), r"reduce_sum in .* not 1\.5"),
    "a comparison of three": (lambda: 0 < a < 1, "has no truth value in a pattern"),
    "equal to a number": (lambda: a == np.float32(1), "== in a pattern is identity"),
    "no part of a pattern": (lambda: a + "text", "a pattern is made of pattern variables and numbers, not str"),
    "a function for patterns": (lambda: np.sort(a), r"np\.sort cannot stand in a pattern"),
    "no both ways": (lambda: rewrite(a + b, lambda m: m.a, id="bad", both_ways=True), "both_ways needs a pattern"),
    "a guard's variable": (
        lambda: rewrite(np.exp(a), a, id="bad", where=lambda m: m.z.shape == ()),
        r"its guard 'lambda' reads 'z' at .*test_rules\.py:\d+: the left side has no such variable \(bound: a\)",
    ),
    "a guard's variable further down": (
        lambda: rewrite(a @ b, a, id="bad", where=[lambda m: m.known(m.b), _square]),
        r"its guard 'the matrix is square' reads 'matrix' at .*test_rules\.py:\d+",
    ),
    "a variable in a comprehension": (
        lambda: rewrite(a @ b, a, id="bad", where=lambda m: all(m.c.shape == t.shape for t in (m.a, m.b))),
        "reads 'c'",
    ),
    "a right side's variable": (lambda: rewrite(np.exp(a), lambda m: m.b, id="bad"), "its right side reads 'b'"),
    "a guard of two arguments": (
        lambda: rewrite(np.exp(a), a, id="bad", where=lambda m, n: True),
        "its guard 'lambda' takes one argument, the match: missing a required argument: 'n'",
    ),
    "a right side of none": (lambda: rewrite(np.exp(a), lambda: a, id="bad"), "its right side takes one argument"),
    "another type": (
        lambda: rewrite(np.exp(a), np.isnan(a), id="bad"),
        "left side is of type float.*, where the right side is of type bool.*differ in all programs",
    ),
    "another shape": (lambda: rewrite(np.exp(a).sum(axis=0), np.exp(a), id="bad"), "the types differ in all programs"),
    "no type": (lambda: rewrite(np.exp(a), op("logical_not", a), id="bad"), "right side fails: logical_not is not"),
    "a sum of another type": (lambda: np.sum(a, dtype=float), r"np\.sum in a pattern .* not dtype; .* x\.astype"),
    "a type by place": (lambda: np.sum(a, 0, np.float64), r"np\.sum in a pattern takes axis and keepdims, not dtype"),
    "a masked sum": (lambda: np.prod(a, where=b), r"np\.prod in .* not where"),
    "a mean elsewhere": (lambda: np.mean(a, out=b), r"np\.mean in .* not out"),
    "joined as another type": (lambda: np.concatenate([a, b], dtype=float), r"np\.concatenate in .* axis, not dtype"),
    "one pattern joined": (lambda: rules.concat(a), "is of a sequence of patterns, not a"),
    "nothing joined": (lambda: rules.concat([]), r"is of a sequence of patterns, not \[\]"),
    "a truth value for axes": (lambda: a.sum(axis=True), r"reduce_sum in .* not \(True,\)"),
    "a variable that keeps": (lambda: a.max(axis=0, keepdims=b), "keepdims is True or False in a pattern, not b"),
    "axes that are sorted": (lambda: op("sort", a, attrs="x"), "sort in a pattern .* an int from the left, not 'x'"),
    "axes added up along": (lambda: op("cumsum", a, attrs=(0, 1)), r"cumsum in .* an int from the left, not \(0, 1\)"),
    "an exponential of an axis": (lambda: op("exp", a, attrs=0), "exp in a pattern .* or none, not 0"),
    "a variance and a text": (lambda: op("rms_norm", a, b, attrs="e"), "rms_norm in .* a number, not 'e'"),
    "a sign of two": (lambda: rules.signed((2, a), (0, b)), r"a sign \(1, -1, or 0 for any\) and .* not \(2, a\)"),
    "a sign that is a text": (lambda: rules.signed(("-", a), (0, b)), r"and a pattern, not \('-', a\)"),  # type: ignore[arg-type]
    "a sign of text": (lambda: rules.signed((1, "a"), (0, b)), "made of pattern variables and numbers, not str"),  # type: ignore[arg-type]
    "a sum of many": (
        lambda: op("add_n", a, b, attrs=(1, 1)),
        "written with . and -, or eqsat.rules.signed, not add_n",
    ),
    "no reduction": (lambda: rules.reduction("exp", a), "unknown reduction 'exp' in a pattern; there are reduce_sum"),
    "a sum doubled": (lambda: reduce(lambda t, _: t + t, range(40), a), "at most 256 operators and variables"),
    "a product doubled": (lambda: reduce(lambda t, _: t * t, range(31), a), "at most 256 operators and variables"),
    "many levels": (lambda: reduce(lambda t, _: np.exp(t), range(70), a), "written out, in at most 64 levels"),
    "cast to no type": (lambda: a.astype("flat32"), r"astype\('flat32'\) in a pattern"),
    "a number too large": (lambda: a * 10**400, "no element type holds a number of 1329 bits"),
    "an input": (lambda: op("input"), "unknown operator 'input' in a pattern"),
    "no operator's name": (lambda: op(["exp"], a), r"unknown operator \['exp'\] in a pattern"),  # type: ignore[arg-type]
    "variables without names": (lambda: tensors(""), "variables are named in a text of different names"),
    "variables of one name": (lambda: numbers("p p"), "different names, such as 'a b', not 'p p'"),
    "no name of a variable": (lambda: rules.attributes("1x"), "different names, such as 'a b', not '1x'"),
    "a number of variables": (lambda: tensors(3), "different names, such as 'a b', not 3"),  # type: ignore[arg-type]
    "whole of no sum": (lambda: rules.whole(a), r"only a sum can match among more terms, so that whole\(a\)"),
    "an id that is a number": (lambda: rewrite(np.exp(a), a, id=3), "rule 3 .* an id is a text of one line"),  # type: ignore[arg-type]
    "an id of two lines": (lambda: rewrite(np.exp(a), a, id="one\ntwo"), "an id is a text of one line"),
    "a doc that is none": (lambda: rewrite(np.exp(a), a, id="bad", doc=3), "doc is a text, not 3"),  # type: ignore[arg-type]
    "an algorithm that is none": (
        lambda: rewrite(np.exp(a), a, id="bad", algorithm=3),  # type: ignore[arg-type]
        "algorithm is a text, not 3",
    ),
    "an example that is none": (
        lambda: rewrite(np.exp(a), a, id="bad", example=3),  # type: ignore[arg-type]
        "example is a function, not 3",
    ),
    "an example of nothing": (
        lambda: rewrite(np.exp(a), a, id="bad", example=lambda: None),  # type: ignore[arg-type, misc]
        "its example takes one argument, a Maker",
    ),
    "a family of none": (lambda: rules.family([], id="bad"), "a family has at least one left side"),
    "a family of left sides": (
        lambda: rules.family([np.exp(a), a], id="bad"),  # type: ignore[list-item]
        r"a family is a sequence of \(left side, right side\) pairs, not \[exp\(a\), a\]",
    ),
    "one left side together": (lambda: rules.rewrite_together(a, b, id="bad"), "found together is a sequence"),
    "none together": (lambda: rules.rewrite_together([], [], id="bad"), "found together is a sequence"),
    "a key of letters": (lambda: rules.gather(a * b, "a", lambda ms: None, id="bad"), "the key is a sequence of"),
    "a key there is not": (
        lambda: rules.gather(a * b, ["c"], lambda ms: None, id="bad"),
        "key 'c' is no variable of the left side, which has a, b",
    ),
    "gathered by none": (
        lambda: rules.gather(a * b, ["a"], 3, id="bad"),  # type: ignore[arg-type]
        "together is a function, not 3",
    ),
    "gathered by a function of two": (
        lambda: rules.gather(a * b, ["a"], lambda ms, n: None, id="bad"),  # type: ignore[arg-type, misc]
        "its right side takes one argument, the matches",
    ),
    "sides that are no function": (
        lambda: rules.for_each("odd", [], id="bad"),  # type: ignore[arg-type]
        "the sides are a function of an operator's name",
    ),
    "sides that are no pairs": (
        lambda: rules.for_each("odd", lambda name: [op(name, a)], id="bad"),  # type: ignore[list-item]
        r"what is given for 'sin' is a sequence of \(left side, right side\) pairs",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_where_they_are_made(name: str) -> None:
    """At the definition, with the file and line of the user's code."""
    make, said = MISTAKES[name]
    line = make.__code__.co_firstlineno
    with pytest.raises(RuleError, match=rf"(?s){said}") as raised:
        make()
    at = re.search(r"test_rules\.py:(\d+)", str(raised.value))
    assert at and line <= int(at[1]) <= line + 2, raised.value


def test_rules_of_the_library_have_no_such_mistakes() -> None:
    """What is told at definition is told of users' rules alone: eqsat's are looked at here, not at each start."""
    for rule in RULES:
        assert not list(mistakes(rule.ways, rule.where, rule.together, rule.example)), rule


def test_what_a_guard_raises_names_rule_and_line() -> None:
    rule = rewrite(np.exp(a), a, id="bad", where=lambda m: {}["key"])
    with pytest.raises(RuleError, match=r"'bad' \(.*test_rules\.py:\d+\).*KeyError\('key'\) \(.*test_rules\.py:\d+\)"):
        saturate([call("exp", Maker(0).tensor(2))], rules=[rule])


# Choosing rules


def test_list_get_and_select() -> None:
    assert {r.id for r in RULES} <= {r.id for r in rules.list()}
    assert rules.get("mul_one").numerics == "exact"
    assert all(r.numerics == "exact" for r in rules.list("exact"))
    default = {r.id for r in rules.select()}
    assert "mul_zero" not in default and "mul_zero" in {r.id for r in rules.select("approximates")}
    assert "mul_one" not in {r.id for r in rules.select(disable=("mul_one",))}


def test_unknown_ids_list_the_valid_ones() -> None:
    with pytest.raises(
        ValueError, match=r"disable: no rule 'mul_on'; did you mean mul_one.*the ids are .*fold\.constants"
    ):
        rules.select(disable=["mul_on"])
    with pytest.raises(KeyError, match="did you mean"):
        rules.get("mul_on")
    with pytest.raises(ValueError, match="numerics is one of"):
        rules.select("fast")  # type: ignore[arg-type]


def test_fusion_and_folding_are_listed_rules() -> None:
    assert {"fuse.read_store", "fold.constants", "sum.flatten"} <= {r.id for r in rules.list("reassociates")}


# What user-level patterns match


def _finds(rule: rules.Rule, *outputs: Node, known: tuple[Node, ...] = ()) -> int:
    graph = saturate(list(outputs), rules=[rule], const=frozenset(known))
    return graph.report.rules[rule.id].fired


def test_matmul_pattern_matches_matmuls_only() -> None:
    mk = Maker(0)
    rule = rewrite((a @ b) * 2, (2 * a) @ b, id="scale")
    x, y = mk.tensor(3, 4), mk.tensor(4, 5)
    assert _finds(rule, call("mul", build.matmul(x, y), build.scalar(2.0, x)))
    batched = build.matmul(mk.tensor(2, 3, 4), mk.tensor(2, 4, 5))
    assert _finds(rule, call("mul", batched, build.scalar(2.0, x)))
    other = build.contract(make_spec("ik", "jk", "ij"), x, mk.tensor(5, 4))
    assert not _finds(rule, call("mul", other, build.scalar(2.0, x)))


def test_sum_pattern_matches_among_the_terms_of_a_longer_sum() -> None:
    mk = Maker(0)
    x, y, z, w = (mk.tensor(3) for _ in range(4))
    total = call("add", call("add", call("mul", x, y), w), call("mul", x, z))
    among = rewrite(a * b + a * c, a * (b + c), id="factor")
    flatten = rules.get("sum.flatten")
    assert saturate([total], rules=[among, flatten]).report.rules["factor"].fired
    only = rewrite(whole(a * b + a * c), a * (b + c), id="factor")
    assert not saturate([total], rules=[only, flatten]).report.rules["factor"].fired


def test_sum_pattern_matches_up_to_a_common_sign() -> None:
    mk = Maker(0)
    x, y, z = (mk.tensor(3) for _ in range(3))
    rule = rewrite(a * b + a * c, a * (b + c), id="factor")
    negative = call("sub", call("neg", call("mul", x, y)), call("mul", x, z))
    graph = saturate([negative], rules=[rule])
    assert graph.report.rules["factor"].fired
    assert not list(disagreements(graph, mk.values()))
    mixed = call("sub", call("mul", x, y), call("mul", x, z))
    assert not _finds(rule, mixed)
    any_sign = rewrite(signed((0, a * b), (0, a * c)), lambda m: None, id="any")
    assert saturate([mixed], rules=[any_sign]).report.rules["any"].matches


def test_number_literals_match_in_their_own_type_and_through_broadcasts() -> None:
    mk = Maker(0)
    rule = rewrite(x * 0.1, x / 10, id="tenth")
    for dtype in (float32, float64):
        t = mk.tensor(3, 4, dtype=dtype)
        assert _finds(rule, call("mul", t, build.scalar(0.1, t)))
        assert _finds(rule, call("mul", t, build.broadcast_to(build.scalar(0.1, t), (4,))))
        assert not _finds(rule, call("mul", t, build.scalar(0.1001, t)))


def test_guard_names_are_counted() -> None:
    def square_matrix(m: Match) -> bool:
        """the factor is square"""
        return bool(m.a.shape == (3, 3))

    mk = Maker(0)
    rule = rewrite(a @ b, (a * 1) @ b, id="guarded", where=square_matrix)
    stats = saturate([build.matmul(mk.tensor(3, 4), mk.tensor(4, 5))], rules=[rule]).report.rules["guarded"]
    assert stats.refused == {"the factor is square": 1} and not stats.fired


def test_result_of_another_type_is_an_error_naming_the_rule() -> None:
    mk = Maker(0)
    for wrong in (
        rewrite(np.exp(a), lambda m: build.reduce("reduce_sum", m.a, (0,)), id="wrong_shape"),
        rewrite(np.exp(a), lambda m: call("isnan", m.a), id="wrong_dtype"),
        rewrite(np.exp(a), lambda m: call("add", m.a, build.const(np.zeros(7))), id="wrong_operand"),
    ):
        with pytest.raises(RuleError, match=rf"rule '{wrong.id}' \(.*test_rules\.py:\d+\)"):
            saturate([call("exp", mk.tensor(3, 4))], rules=[wrong])


def test_rewrite_together_shares_variables() -> None:
    mk = Maker(0)
    rule = rules.rewrite_together(
        (np.sin(a), np.cos(a)), (np.sin(a) * 1, np.cos(a) * 1), id="together", numerics="exact"
    )
    x, y = mk.tensor(3), mk.tensor(3)
    assert _finds(rule, call("sin", x), call("cos", x))
    assert not _finds(rule, call("sin", x), call("cos", y))


# Written-out forms


def _mean(t: Node) -> Node:
    total = build.reduce("reduce_sum", t, (t.type.ndim - 1,), keepdims=True)
    return call("div", total, build.scalar(t.shape[-1], t))


def _num(value: float, t: Node) -> Node:
    return build.scalar(value, t)


def _mul(*factors: Node) -> Node:
    product = factors[0]
    for factor in factors[1:]:
        product = call("mul", product, factor)
    return product


def _written(t: Node) -> dict[str, tuple[str, Node]]:
    half, one, root2 = _num(0.5, t), _num(1, t), _num(math.sqrt(2), t)
    erf = call("erf", call("div", t, root2))
    scale, cube = _num(math.sqrt(2 / math.pi), t), call("pow", t, _num(3, t))
    inner = call("add", t, call("mul", _num(0.044715, t), cube))
    factored = _mul(t, call("add", one, _mul(_num(0.044715, t), t, t)))
    e, minus = call("exp", t), call("exp", call("neg", t))
    centered = call("sub", t, _mean(t))
    variance, eps = _mean(call("square", centered)), _num(1e-5, t)
    two_moments = call("sub", _mean(_mul(t, t)), _mul(_mean(t), _mean(t)))
    safe = call("sub", t, build.reduce("reduce_max", t, (1,), keepdims=True))
    safe_e = call("exp", safe)
    total = build.reduce("reduce_sum", safe_e, (1,), keepdims=True)
    return {
        "gelu, halves first": ("gelu", _mul(half, t, call("add", one, erf))),
        "gelu, halves last": ("gelu", _mul(t, call("div", call("add", erf, one), _num(2, t)))),
        "gelu tanh, pow": ("gelu_tanh", _mul(half, t, call("add", one, call("tanh", _mul(scale, inner))))),
        "gelu tanh, factored": ("gelu_tanh", _mul(half, t, call("add", one, call("tanh", _mul(scale, factored))))),
        "silu, quotient": ("silu", call("div", t, call("add", one, minus))),
        "silu, product": ("silu", _mul(t, call("div", one, call("add", one, minus)))),
        "sigmoid": ("sigmoid", call("div", one, call("add", one, minus))),
        "tanh": ("tanh", call("div", call("sub", e, minus), call("add", e, minus))),
        "softmax": ("softmax", call("div", safe_e, total)),
        "softmax, unsafe": ("softmax", call("div", e, build.reduce("reduce_sum", e, (1,), keepdims=True))),
        "log softmax": ("log_softmax", call("sub", safe, call("log", total))),
        "log of softmax": ("log_softmax", call("log", composite("softmax", [t], 1))),
        "layer norm, sqrt": ("layer_norm", call("div", centered, call("sqrt", call("add", variance, eps)))),
        "layer norm, rsqrt": ("layer_norm", _mul(centered, call("rsqrt", call("add", variance, eps)))),
        "layer norm, pow": ("layer_norm", call("div", centered, call("pow", call("add", variance, eps), half))),
        "layer norm, moments": ("layer_norm", call("div", centered, call("sqrt", call("add", two_moments, eps)))),
        "rms norm": ("rms_norm", call("div", t, call("sqrt", call("add", _mean(call("square", t)), eps)))),
    }


@pytest.mark.parametrize("name", list(_written(Maker(0).tensor(4, 8))))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_written_out_forms_are_recognised(name: str, dtype: DType) -> None:
    mk = Maker(0)
    wanted, node = _written(mk.tensor(4, 8, dtype=dtype))[name]
    graph = saturate([node], rules=rules.select(), seconds=20)
    assert wanted in {enode.op for enode in graph.classes[graph.outputs[0]]}


def test_scaled_and_shifted_norms_are_recognised() -> None:
    mk = Maker(0)
    t, g, shift = mk.tensor(4, 8), mk.tensor(8), mk.tensor(8)
    normed = _written(t)["layer norm, rsqrt"][1]
    graph = saturate([call("add", _mul(g, normed), shift)], rules=rules.select(), seconds=20)
    found = [e for e in graph.classes[graph.outputs[0]] if e.op == "layer_norm"]
    inputs = {enode.attrs.index: h for h, nodes in graph.classes.items() for enode in nodes if enode.op == "input"}  # type: ignore[attr-defined]
    assert (inputs[0], inputs[1], inputs[2]) in {e.children for e in found}


# Identities that pay


def _enodes(*outputs: Node, known: tuple[Node, ...] = ()) -> list[tuple[str, object]]:
    graph = saturate(list(outputs), rules=rules.select(), const=frozenset(known), seconds=20)
    assert graph.report.stop == "saturated"
    return [(e.op, str(e.attrs)) for e in graph.classes[graph.outputs[0]]]


def test_sum_of_a_product_goes_onto_the_factors() -> None:
    mk = Maker(0)
    product = build.matmul(mk.tensor(5, 6), mk.tensor(6, 7))
    assert ("contract", "a,a->") in _enodes(build.reduce("reduce_sum", product, (0, 1)))


def test_trace_of_a_product_is_a_dot() -> None:
    mk = Maker(0)
    product = build.matmul(mk.tensor(5, 6), mk.tensor(6, 5))
    diagonal = build.view(product, views.strided((5,), (6,)))
    found = _enodes(build.reduce("reduce_sum", diagonal, (0,)))
    assert ("contract", "ab,ba->") in found or ("contract", "ba,ab->") in found


def test_matrix_chain_reaches_the_vector_first() -> None:
    mk = Maker(0)
    m, n, k, v = mk.tensor(9, 8), mk.tensor(8, 7), mk.tensor(7, 6), mk.tensor(6)
    graph = saturate([build.matmul(build.matmul(build.matmul(m, n), k), v)], rules=rules.select(), seconds=20)
    vectors = [h for h, t in graph.types.items() if t.ndim == 1]
    assert sorted(graph.types[h].shape for h in vectors) == [(6,), (7,), (8,), (9,)]


def test_transposes_vanish_into_specs() -> None:
    mk = Maker(0)
    left, right = build.transpose(mk.tensor(4, 3), (1, 0)), build.transpose(mk.tensor(5, 4), (1, 0))
    graph = saturate([build.transpose(build.matmul(left, right), (1, 0))], rules=rules.select(), seconds=20)
    leaves = {h for h, nodes in graph.classes.items() if any(e.op == "input" for e in nodes)}
    assert any(e.op == "contract" and set(e.children) <= leaves for e in graph.classes[graph.outputs[0]])


def test_scales_and_biases_fold_into_known_weights() -> None:
    mk = Maker(0)
    x, w, g, shift = mk.tensor(5, 4), mk.known(4, 3), mk.known(4), mk.known(4)
    y = build.matmul(call("add", call("mul", x, g), shift), w)
    graph = saturate([y], rules=rules.select(), const=frozenset(mk.known_inputs), seconds=20)
    leaf = next(h for h, nodes in graph.classes.items() if any(e.op == "input" and e.attrs.index == 0 for e in nodes))  # type: ignore[attr-defined]
    folded = [
        e
        for e in graph.classes[graph.outputs[0]]
        if e.op == "add_n"
        and all(
            c in graph.const
            or any(leaf in f.children and set(f.children) - {leaf} <= graph.const for f in graph.classes[c])
            for c in e.children
        )
    ]
    assert folded


def test_siblings_merge_all_at_once_and_only_with_known_weights() -> None:
    mk = Maker(0)
    x = mk.tensor(5, 4)
    outputs = [build.matmul(x, mk.known(4, n)) for n in (3, 2, 6)]
    graph = saturate(outputs, rules=rules.select(), const=frozenset(mk.known_inputs), seconds=20)
    assert (5, 11) in {t.shape for t in graph.types.values()}
    unknown = saturate(outputs, rules=rules.select(), seconds=20)
    assert (5, 11) not in {t.shape for t in unknown.types.values()}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_products_of_slices_with_one_weight_merge(known: bool, apart: bool) -> None:
    mk = Maker(0)
    x, w = mk.tensor(9, 4), mk.tensor(4, 5, known=known)
    places = ((0, 2), (5, 6), (7, 9)) if apart else ((3, 6), (0, 2), (2, 3), (6, 9))
    outputs = [build.matmul(build.take_range(x, 0, start, stop), w) for start, stop in places]
    graph = saturate(outputs, rules=rules.select(), const=frozenset(mk.known_inputs), seconds=20)
    rows = sum(stop - start for start, stop in places)
    whole = {t.shape for h, t in graph.types.items() if any(e.op == "contract" for e in graph.classes[h])}
    # Slices that have to be copied together first cost what a merged product saves, unless the weight is packed.
    assert ((rows, 5) in whole) == (known or not apart)


def test_products_of_repeated_rows_are_not_merged_for_ever() -> None:
    """The rows of two such products are repeated rows as well, whose product is another one to merge."""
    row, w = Maker(0).tensor(4), build.const(np.arange(12.0).reshape(4, 3))
    outputs = [build.matmul(build.broadcast_to(row, (n, 4)), w) for n in (2, 3)]
    graph = saturate(outputs, rules=rules.select(), seconds=20)
    assert graph.report.stop == "saturated"
    assert max(t.shape[0] for t in graph.types.values() if t.shape) <= 5


def test_a_scale_along_an_axis_that_the_other_factor_repeats_stays() -> None:
    mk = Maker(0)
    x, g, w = mk.tensor(2, 1), mk.known(1, 9), mk.known(9, 1)
    for y in (build.matmul(call("mul", x, g), w), build.matmul(build.matmul(x, g), w)):
        graph = saturate([y], rules=rules.select(), const=frozenset(mk.known_inputs), seconds=20)
        assert graph.types[graph.outputs[0]].shape == (2, 1)


def test_elements_taken_of_a_known_table_meet_numbers_and_vectors() -> None:
    mk = Maker(0)
    table, number, vector = mk.known(5), mk.known(), mk.known(2)
    one = build.gather(table, build.const(np.asarray(1)), 0)
    two = build.gather(table, build.const(np.array([1, 3])), 0)
    products = [
        build.contract(make_spec("", "", ""), one, number),
        build.contract(make_spec("", "i", "i"), one, vector),
        build.contract(make_spec("i", "", "i"), two, number),
        build.contract(make_spec("i", "i", ""), two, vector),
    ]
    for product in products:
        graph = saturate([product], rules=rules.select(), const=frozenset(mk.known_inputs), seconds=20)
        assert graph.types[graph.outputs[0]] == product.type


def test_equality_of_a_pattern_with_a_number_is_refused() -> None:
    x, y = tensors("x y")
    for compare, name in ((lambda: x == 0, "equal"), (lambda: x != 1.5, "not_equal"), (lambda: 0 == x, "equal")):  # noqa: SIM300
        with pytest.raises(RuleError, match=rf"test_rules\.py:\d+: .*write np\.{name}\("):
            compare()
    assert x == x and x != y and len({x, y, x}) == 2


@pytest.mark.parametrize("axis, ranks", [(1, (2, 3)), (-1, (1, 2, 3)), (-2, (2, 3)), (0, (1, 2, 3))])
def test_an_axis_of_a_pattern_is_none_of_fewer_axes(axis: int, ranks: tuple[int, ...]) -> None:
    rule = rewrite(np.concatenate([-a, -b], axis=axis), -np.concatenate([a, b], axis=axis), id="joined")
    for rank in (1, 2, 3):
        x, y = (build.input_node(n, TensorType((2,) * rank, float64)) for n in range(2))
        for along in range(rank):
            joined = build.concat([build.call("neg", x), build.call("neg", y)], along)
            report = saturate([joined], rules=[rule]).report
            assert bool(report.rules["joined"].fired) == (rank in ranks and along == axis % rank)


@pytest.mark.parametrize("numerics", ["exact", "reassociates"])
def test_casts_between_kinds_of_halves_round(numerics: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1.2345, 70.123, 60000.0, 1e-7], np.float16)
    for given, between in ((x, ml_dtypes.bfloat16), (x.astype(ml_dtypes.bfloat16), np.float16)):
        fn = lambda x: x.astype(between).astype(np.float32)  # noqa: B023, E731
        found = eqsat.optimize(fn, strict=True, check_speed=False, numerics=numerics)(given)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, fn(given))


def test_casts_in_a_row_hold_for_what_does_not_fit() -> None:
    """An infinity as an integer is anything, by the float's type: the check found it once it drew all types."""
    result = check_rule(rules.get("cast_cast"), enough=200, trials=2000)
    assert result.counterexample is None, str(result.counterexample)
    assert result.fired >= 60


@pytest.mark.parametrize("f", [np.add, np.multiply])
def test_beside_an_empty_part_one_of_extent_one_is_not_repeated(f: Callable[..., np.ndarray]) -> None:
    """The sum had two columns, which random programs met."""
    x, y = (np.random.default_rng(seed).standard_normal((33, 1)) for seed in (0, 1))

    def turned(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        joined = (np.concatenate([part[:, 1:], part[:, :1]], 1) for part in (x, y))
        first, second = (np.exp(part) for part in joined)
        return f(first, second) + f(first, y) + first[:, ::-1]

    optimized = eqsat.optimize(turned, strict=True, check_speed=False)
    np.testing.assert_allclose(optimized(x, y), turned(x, y), rtol=1e-12)
