"""What a rule's check says beyond random trials: proofs over a field, guards, rounding; and the command for it."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsat
from eqsat import cli
from eqsat.egraph.field import PRIME, Arithmetic, Element, Undefined, element, elements, identity
from eqsat.egraph.verdict import fired
from eqsat.errors import OptionError, RuleError
from eqsat.ir import build
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.types import TensorType, float64
from eqsat.rules import Parts, Terms, family, numbers, op, rewrite, signed_sum, tensors

a, b, c, x, y = tensors("a b c x y")
p = numbers("p")
rationals = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@given(rationals, rationals)
def test_the_field_computes_as_fractions_do(one: Fraction, two: Fraction) -> None:
    e, f = element(one), element(two)
    assert (e + f, e - f, e * f, -e) == tuple(map(element, (one + two, one - two, one * two, -one)))
    assert one - f == e - two == element(one - two)
    assert str(e) == str(one)
    if two:
        assert e / f == element(one / two) and one / f == element(one / two)
        assert f**-3 == element(two**-3)
    else:
        with pytest.raises(Undefined):
            e / f


def test_numbers_are_taken_without_rounding() -> None:
    assert element(0.1) != element(Fraction(1, 10)) and element(0.1) == element(Fraction(0.1))
    assert elements(np.array([[0.5, -2.0]])).tolist() == [[element(Fraction(1, 2)), element(-2)]]
    for bad in (np.nan, -np.inf):
        with pytest.raises(Undefined):
            element(bad)


def wrong_and_right() -> dict[str, tuple[Any, bool]]:
    """Laws as pairs of sides, each with a wrong one like it."""
    square = lambda v: op("square", v)  # noqa: E731
    return {
        "distributes": ((a * (b + c), a * b + a * c), True),
        "cube": ((square(a + b), square(a) + square(b)), False),
        "binomial": ((square(a + b), square(a) + square(b) + 2 * (a * b)), True),
        "quotients": ((a / b + c / b, (a + c) / b), True),
        "denominators": ((a / b + a / c, a / (b + c)), False),
        "any function": ((op("tanh", a * (b + c)), op("tanh", a * b + a * c)), True),
        "reciprocals": ((op("reciprocal", a) * op("reciprocal", b), op("reciprocal", a * b)), True),
        "signs": ((-(a - b), a - b), False),
    }


@pytest.mark.parametrize("name", [*wrong_and_right()])
def test_laws_of_sums_and_products_are_proved_or_refuted(name: str) -> None:
    """Without random trials in floats: those would not tell the two apart by themselves here."""
    (left, right), holds = wrong_and_right()[name]
    found = identity(islice(fired(rewrite(left, right, id=name, numerics="approximates"), float64, 60.0, 0), 20))
    assert found.proved == holds and (found.refuted is None) == holds
    assert len(found.shapes) > 5 or not holds


def test_a_difference_below_every_tolerance_leaves_a_law_open() -> None:
    """It may be the rounding of a number; random trials in floats cannot see it."""
    off = rewrite(x * (y * y), x * (y * y) * (1.0 + 2.0**-52), id="off")
    found = eqsat.check(off, seconds=4.0)
    assert found.trials.counterexample is None and found.trials.fired
    assert found.identity.beyond["numbers that were rounded"] and not found.identity.proved


def test_functions_that_are_no_rational_ones_leave_a_law_open() -> None:
    law = rewrite(op("exp", a) * op("exp", b), op("exp", a + b), id="law", numerics="approximates")
    found = eqsat.check(law, seconds=4.0)
    assert found.word == "tested" and found.identity.beyond["exp"] and found.identity.refuted is None
    assert "left open by exp" in str(found)


def test_guards_are_told_apart() -> None:
    """One that keeps a wrong instance out is needed; one that asks for what does not matter is not."""

    def positive(m: Any) -> bool:
        """the factor is positive"""
        return m.root.dtype.is_float and m.value(m.p) > 0  # type: ignore[no-any-return]

    def known(m: Any) -> bool:
        """the tensor is known when compiled"""
        return bool(m.known(m.x))

    law = rewrite(p * abs(x), abs(p * x), id="guarded", where=(positive, known), numerics="approximates")
    found = eqsat.check(law, seconds=30.0)
    needed, loose = found.guards
    assert (needed.guard, loose.guard) == ("the factor is positive", "the tensor is known when compiled")
    assert "differ" in needed.needed and not loose.needed and loose.fired
    assert not found.wrong


def test_rounding_is_measured() -> None:
    found = eqsat.check(rewrite(a / b, a * op("reciprocal", b), id="twice"), seconds=4.0)
    assert found.rounding is not None
    assert found.rounding.found <= 0.51 < found.rounding.made < 2


def test_rules_are_tried_on_more_terms_and_parts_than_an_author_thinks_of() -> None:
    def most_turned(m: Any) -> Any:
        return build.concat([*m.ps][::-1], m.ps_axis) if len(m.ps) > 5 else None

    def most_doubled(m: Any) -> Any:
        return build.call("exp", signed_sum([*m.ts, m.ts[0]])) if len(m.ts) > 7 else None

    for rule in (rewrite(Parts("ps"), most_turned, id="parts"), rewrite(np.exp(Terms("ts")), most_doubled, id="terms")):
        assert eqsat.check(rule).trials.counterexample is not None


def test_sums_and_concatenations_are_factors_of_products() -> None:
    def spread(m: Any) -> Any:
        shape = np.broadcast_shapes(*(t.shape for _, t in m.ts))
        return signed_sum([(sign, build.matmul(build.broadcast_to(t, shape), m.b)) for sign, t in m.ts])

    def turned(m: Any) -> Any:
        if m.a.type.ndim != 2 or m.ps[0].type.ndim != 2 or m.ps_axis != 1:
            return None
        return build.concat([build.matmul(m.a, part) for part in m.ps][::-1], 1)

    found = eqsat.check(rewrite(Terms("ts") @ b, spread, id="terms"))
    assert found.word == "proved" and found.trials.fired > 9
    assert eqsat.check(rewrite(a @ Parts("ps"), turned, id="parts")).trials.counterexample is not None


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), True, "4", None, 10**400, [1]])
def test_a_check_takes_some_time(seconds: Any) -> None:
    with pytest.raises(OptionError, match="a check takes a number of seconds above 0, not "):
        eqsat.check(rewrite(a + b, b + a, id="turned"), seconds=seconds)


@pytest.mark.parametrize("seed", ["a", 1.5, None, True])
def test_a_check_takes_an_integer_as_its_seed(seed: Any) -> None:
    with pytest.raises(OptionError, match="a check takes an integer as its seed, not "):
        eqsat.check(rewrite(a + b, b + a, id="turned"), seed=seed)


def test_rules_that_are_no_rewrites_are_refused() -> None:
    (builtin,) = (rule for rule in eqsat.rules.list() if rule.id == "fold.constants")
    with pytest.raises(RuleError, match="no rewrite"):
        eqsat.check(builtin)


def test_e_nodes_over_the_field_are_what_numpy_computes() -> None:
    """On whole numbers, where floats are exact: products, sums, quotients by powers of two, windows, paddings."""
    rng = np.random.default_rng(1)
    t, u = (build.input_node(n, TensorType(shape, float64)) for n, shape in enumerate([(3, 4), (4, 2)]))
    values = {t: rng.integers(-9, 9, (3, 4)).astype(float), u: rng.integers(-9, 9, (4, 2)).astype(float)}
    half = build.scalar(2.0, t)
    product = build.matmul(t, u)
    outputs = [product, build.call("div", t, half), build.reduce("reduce_prod", t, (1,)), build.call("square", u)]
    expected = evaluate_nodes(outputs, values)
    from eqsat.egraph.evaluate import class_values
    from eqsat.egraph.saturate import saturate

    graph = saturate(outputs, rules=[], iterations=1)
    found = class_values(graph, {n: elements(v) for n, v in values.items()}, Arithmetic())
    for handle, value in zip(graph.outputs, expected, strict=True):
        assert (found[handle] == elements(value)).all()
    assert isinstance(found[graph.outputs[0]][0, 0], Element) and random.Random(0).randrange(PRIME) < PRIME


PROVED = (
    "neg_mul", "div_div", "factor", "layer_norm_written", "winograd_small", "pow_whole", "square_scaled",
)  # fmt: skip


@pytest.mark.parametrize("rule", [r for r in eqsat.rules.list() if r.id in PROVED], ids=lambda r: r.id)
def test_laws_of_the_library_are_proved(rule: Any) -> None:
    found = identity(islice(fired(rule, float64, 60.0, 0), 2 if rule.id == "winograd_small" else 10))
    assert found.proved, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [r for r in eqsat.rules.list() if r.ways], ids=lambda r: r.id)
def test_no_law_of_the_library_is_refuted(rule: Any) -> None:
    found = eqsat.check(rule, seconds=10.0)
    assert not found.wrong, str(found)


def test_a_way_that_never_fired_is_told() -> None:
    a, b = tensors("a b")
    rule = family([(a * 1, a), (np.concatenate([a, b], 4), np.concatenate([b, a], 4))], id="two ways")
    found = eqsat.check(rule, seconds=3.0)
    assert found.word == "tested" and "of its 2 left sides these fired on no program: concat" in str(found)
    assert eqsat.check(family([(a * 1, a), (a / 1, a)], id="both"), seconds=3.0).word == "proved"


def test_the_command_checks_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "check", "mul_one", "square_neg", "--seconds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 rules: 2 proved" in shown
    file = tmp_path / "mine.py"
    file.write_text(
        "from eqsat.rules import rewrite, tensors\na, b = tensors('a b')\n"
        "good = rewrite(a * (a - b), a * a - a * b)\nbad = rewrite(a * (a - b), a * a + a * b)\n"
    )
    assert cli.main(["rules", "check", str(file), "--seconds", "2"]) == 1
    shown = capsys.readouterr().out
    assert "1 proved, 1 wrong" in shown and "mine.py:4) is wrong" in shown
    assert cli.main(["rules", "check", str(file), "--seconds", "2", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [(entry["id"], entry["verdict"]) for entry in shown] == [("good", "proved"), ("bad", "wrong")]
    (tmp_path / "twice.py").write_text(f"{file.read_text().replace('bad', 'other')}RULES = (good, good)\n")
    assert cli.main(["rules", "check", str(tmp_path / "twice.py"), "--seconds", "1", "--json"]) == 1
    assert [entry["id"] for entry in json.loads(capsys.readouterr().out)] == ["good", "other"]
    (tmp_path / "none.py").write_text("RULES = 3\n")
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "raises.py").write_text("x = 1\nraise KeyError('boom')\n")
    (tmp_path / "misses.py").write_text("import no_such_module_there_is\n")
    for name, said in (
        (str(tmp_path / "none.py"), "is to be rules, not 3"),
        (str(tmp_path / "ends.py"), "cannot be imported: SystemExit: 0"),
        (str(tmp_path / "raises.py"), "raises.py:2"),
        (str(tmp_path / "misses.py"), "cannot be imported: No module named 'no_such_module_there_is'"),
        ("mul_onee", "there is no rule and no module 'mul_onee'"), ("fold.constants", "is no rewrite"),
        ("numpy", "holds no rules"),
    ):  # fmt: skip
        assert cli.main(["rules", "check", name]) == 1
        assert said in capsys.readouterr().err
    assert cli.main(["rules", "check", "mul_one", "--seconds", "-1"]) == 1


def test_a_number_repeated_along_axes_is_an_exponent() -> None:
    """What the check of the library found: the power by squares had the base's shape, not the result's."""
    x = np.array([1.5, -2.0, 0.5])
    for power in (7.0, -3.0):
        exponents = np.full((4, 1, 3), power)
        found = eqsat.optimize(lambda x: x**exponents, strict=True)(x)  # noqa: B023
        np.testing.assert_allclose(found, x**exponents, rtol=1e-14)
