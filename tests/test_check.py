"""The rule checker: what it refuses, what it takes, and how ``rules.add`` uses it."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from unsound import WRONG

import eqsat
from eqsat import rules
from eqsat.egraph.check import check_rule
from eqsat.egraph.evaluate import disagreements
from eqsat.egraph.saturate import saturate
from eqsat.egraph.watchdog import Overlong, Watchdog
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.rules import Match, Rule, RuleError, gather, op, rewrite, tensors
from eqsat.rules.examples import Maker

a, b, c, x = tensors("a b c x")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    before = {rule.id for rule in rules.list()}
    yield
    for rule in rules.list():
        if rule.id not in before:
            rules.remove(rule.id)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_caught(name: str) -> None:
    try:
        result = check_rule(WRONG[name], enough=60, trials=1000)
    except RuleError as error:  # some make tensors that do not fit, which is refused as well
        assert re.match(
            r"rule 'w' \(.*unsound\.py:\d+\): its right side failed: (matmul: shapes|zip|concat: shapes|add_n: shapes)",
            str(error),
        )
        return
    assert result.counterexample is not None, f"{name} passed ({result.fired} of {result.trials})"


def test_an_axis_that_is_not_there_is_not_found() -> None:
    rules.add(rewrite((-x).sum(axis=-3), -(x.sum(axis=-3)), id="third from the end"))
    for shape, axis in (((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), 2), ((5, 2, 3, 4), -3)):
        given = np.random.default_rng(0).normal(size=shape)
        found = eqsat.optimize(lambda x: (-x).sum(axis=axis), strict=True)(given)  # noqa: B023
        np.testing.assert_allclose(found, (-given).sum(axis=axis), rtol=1e-12)


SOUND = [
    rewrite(a + b - b, a * 1, id="cancels", numerics="approximates"),
    rewrite((a * b) * c, a * (b * c), id="products"),
    rewrite(np.log(np.exp(x)), x, id="overflows on the way"),
    rewrite(np.sin(a) * np.cos(a), 0.5 * np.sin(2 * a), id="double angle"),
    rewrite(np.exp(x) - 1, np.expm1(x), id="cancels near 0"),
    rewrite(np.square(a) - np.square(b), (a - b) * (a + b), id="difference of squares"),
    rewrite(a > b, b < a, id="comparison", numerics="exact"),
    rewrite(x - x, 0, id="zero", numerics="approximates"),
    rewrite(op("sigmoid", x), 0.5 + 0.5 * np.tanh(0.5 * x), id="sigmoid"),
    rewrite(x.mean(axis=-1), x.sum(axis=-1) * 1, id="mean", where=lambda m: m.x.shape[-1:] == (1,)),
    rewrite(np.sqrt(a) * np.sqrt(b), np.sqrt(a * b), id="roots", numerics="approximates"),
    rewrite(np.maximum(a, b) + np.minimum(a, b), a + b, id="both", where=lambda m: m.a.dtype.is_float),
]


@pytest.mark.parametrize("rule", SOUND, ids=lambda rule: rule.id)
def test_a_right_rule_is_taken(rule: Rule) -> None:
    for seed in range(3):
        result = check_rule(rule, enough=20, seed=seed)
        assert result.counterexample is None, str(result.counterexample)
        assert result.fired


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_library_is_taken_whatever_the_dice(seed: int) -> None:
    for rule in rules.list():
        result = check_rule(rule, enough=40, seed=seed)
        assert result.counterexample is None, f"seed {seed}: {result.counterexample}"


# rules.add


@pytest.mark.parametrize(
    "name", ["log is sqrt", "negative only", "NaN lost", "exact: factor of nothing", "long sums only"]
)
def test_add_refuses_a_wrong_rule_with_its_counterexample(name: str) -> None:
    with pytest.raises(RuleError, match=r"rule 'w: .*unsound\.py:\d+\) does not hold for\n.*\n") as raised:
        rules.add(WRONG[name])
    assert "one side is" in str(raised.value) and "check=False" in str(raised.value)
    assert len(str(raised.value).splitlines()) < 40
    assert "w" not in {rule.id for rule in rules.list()}


def test_add_says_which_class_fits() -> None:
    with pytest.raises(RuleError, match="numerics='reassociates' if that is meant"):
        rules.add(WRONG["exact: functions"])
    with pytest.raises(RuleError, match="numerics='approximates' if that is meant"):
        rules.add(WRONG["NaN lost"])


def test_add_takes_a_wrong_rule_unchecked() -> None:
    rules.add(WRONG["log is sqrt"], check=False)
    assert rules.get("w") is WRONG["log is sqrt"]


def test_one_wrong_rule_keeps_the_others_out() -> None:
    fine = rewrite(np.exp(a) * np.exp(b), np.exp(b + a), id="fine")
    with pytest.raises(RuleError, match="'w: "):
        rules.add(fine, WRONG["log is sqrt"])
    assert not {"fine", "w"} & {rule.id for rule in rules.list()}


def test_a_rule_added_again_replaces_the_first() -> None:
    first = rewrite(np.exp(a) * np.exp(b), np.exp(b + a), id="cell")
    second = rewrite(np.exp(a) / np.exp(b), np.exp(a - b), id="cell")
    rules.add(first)
    rules.add(first)
    rules.add(second)
    assert rules.get("cell") is second and [r.id for r in rules.list()].count("cell") == 1
    with pytest.raises(RuleError, match="'cell' is used at"):
        rules.add(first, second)


def test_an_id_of_the_library_stays_the_librarys() -> None:
    with pytest.raises(RuleError, match="'exp_mul' is used at"):
        rules.add(rewrite(np.exp(a) * np.exp(b), np.exp(a + b), id="exp_mul"))


def _no(m: Match) -> bool:
    """the moon is full"""
    return False


NEVER = {
    "guard": (rewrite(np.exp(a), a, id="n", where=_no), r"'the moon is full' was said of \d+"),
    "same": (rewrite(a * b, b * a, id="n"), "are its sides the same"),
    "pattern": (rewrite(op("argsort", a, attrs=99), a, id="n"), "no program could be made from its left side: "),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_rule_that_never_fires_is_taken_with_advice(name: str) -> None:
    rule, said = NEVER[name]
    with pytest.warns(UserWarning, match=rf"'n' \(.*test_check\.py:\d+\) is not checked: .*{said}.*example="):
        rules.add(rule)
    assert rules.get("n") is rule


def test_numbers_in_patterns_are_tried_as_tensors_too() -> None:
    """NumPy takes the root of an array for a number as exponent, and computes powers for an array of them."""
    exact = rewrite(np.power(a, 0.5), np.sqrt(a), numerics="exact", id="n")
    assert eqsat.check(exact, seconds=2).word == "wrong"


def test_numbers_in_patterns_widen_nothing() -> None:
    """A right side has no number of that shape: it made tensors of another type of a program's wide constants."""
    twice = rewrite(a * 2, lambda m: call("add", m.a, m.a), id="n")
    assert eqsat.check(twice, seconds=2).word == "proved"
    axes = rules.attributes("axes")
    reduced = rewrite((a * 2).max(axes), a.max(axes) * 2, id="n", where=lambda m: m.a.dtype.is_float)
    assert eqsat.check(reduced, seconds=2).word != "wrong"
    rules.add(twice)
    for wide in (np.full((4, 3), 2.0), np.full(3, 2.0), 2.0):
        found = eqsat.optimize(lambda x, wide=wide: np.tanh(x) * wide, strict=True, check_speed=False)(np.ones(3))
        np.testing.assert_allclose(found, np.tanh(np.ones(3)) * wide)


def test_with_an_example_it_is_checked() -> None:
    def example(mk: Maker) -> Node:
        return call("exp", build.pad(mk.tensor(3), [(1, 2)], 0.25))

    def padded(m: Match) -> bool:
        return any(attrs.value == 0.25 for attrs, _ in m.forms(m.a, "pad"))

    with pytest.raises(RuleError, match="does not hold"):
        rules.add(rewrite(np.exp(a), a, id="padded", where=padded, example=example))


# Functions that raise or do not return


def _forever(m: Any) -> Any:
    for _ in count():
        pass


def _stubborn(m: Any) -> Any:
    while True:
        try:
            _forever(m)
        except Exception:
            continue


def _raises(m: Any) -> Any:
    return {}["key"]


def _together(pattern: Any, function: Any, id: str) -> Rule:
    return gather(pattern, ("a",), function, id=id)


BROKEN = {
    "guard raises": (rewrite(np.exp(a), a, id="x", where=_raises), r"its guard '_raises' failed: KeyError\('key'\)"),
    "right side raises": (rewrite(np.exp(a), _raises, id="x"), r"its right side failed: KeyError\('key'\)"),
    "group raises": (_together(a * b, _raises, "x"), r"its right side failed: KeyError\('key'\)"),
    "guard loops": (rewrite(np.exp(a), a, id="x", where=_forever), "its guard '_forever' does not return"),
    "guard loops through errors": (rewrite(np.exp(a), a, id="x", where=_stubborn), "'_stubborn' does not return"),
    "right side loops": (rewrite(np.exp(a), _forever, id="x"), "its right side does not return"),
    "group loops": (_together(a * b, _forever, "x"), "its right side does not return"),
    "no node": (rewrite(np.exp(a), lambda m: [5], id="x"), "it is no node but"),
    "no nodes": (_together(a * b, lambda ms: 5, "x"), "it is no node but 5"),
    "no truth": (
        rewrite(np.exp(a), a, id="x", where=lambda m: np.ones(3)),
        r"its guard 'lambda' failed: .*returns True or False",
    ),
    "a function": (
        rewrite(np.exp(a), a, id="x", where=lambda m: lambda n: False),
        r"its guard 'lambda' failed: .*returns True or",
    ),
    "too few": (_together(a * b, lambda ms: [ms[0].root], "x"), r"builds 1 of \d right sides"),
    "foreign input": (rewrite(np.exp(a), lambda m: build.input_node(99, m.root.type), id="x"), "none of its match"),
    "recursion": (rewrite(np.exp(a), a, id="x", where=lambda m: _deep(m)), "RecursionError"),
}


def _by_example(example: Any) -> Rule:
    return rewrite(np.exp(a) + a, a + np.exp(a) * 1, id="x", example=example)


BROKEN |= {
    "example loops": (_by_example(_forever), "its example does not return"),
    "example raises": (_by_example(_raises), r"its example failed: KeyError\('key'\)"),
    "example never fits": (_by_example(lambda mk: 1 / 0), r"made no program in \d+ tries: ZeroDivisionError"),
    **{
        f"example makes {made!r}": (_by_example(lambda mk, made=made: made), rf"its example makes a {said}")
        for made, said in ((None, "NoneType"), (5, "int"), ("abc", "str"), ([], "list"), ([3], "list"))
    },
}


def _deep(m: Any) -> Any:
    return _deep(m)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_function_is_named(name: str) -> None:
    rule, said = BROKEN[name]
    with pytest.raises(RuleError, match=rf"(?s)rule 'x' \(.*test_check\.py:\d+\).*{said}"):
        rules.add(rule)
    assert "x" not in {r.id for r in rules.list()}


def test_a_loop_ends_in_any_thread_and_leaves_nothing_behind() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            rules.add(BROKEN["guard loops"][0])
        except BaseException as error:
            errors.append(error)
        for _ in range(10_000):  # an exception that came late would come here
            time.perf_counter()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and [type(error) for error in errors] == [RuleError]
    assert not any(t.name == "eqsat-watchdog" for t in threading.enumerate())


def test_a_loop_ends_in_a_search() -> None:
    mk = Maker(0)
    with pytest.raises(RuleError, match="does not return"):
        saturate([call("exp", mk.tensor(3))], rules=[BROKEN["right side loops"][0]], seconds=1.0)


def test_what_returns_is_not_ended() -> None:
    dog = Watchdog(time.perf_counter())  # its time is over from the start
    try:
        for n in range(20_000):
            assert dog.call(lambda k: k + 1, n) == n + 1
        with pytest.raises(ZeroDivisionError):
            dog.call(lambda k: 1 // k, 0)
        with pytest.raises(Overlong):
            dog.call(_forever, 0)
        assert dog.call(lambda k: k, 5) == 5
    finally:
        dog.close()


# What a class promises


def test_rounding_is_told_from_another_value() -> None:
    mk = Maker(0)
    y, z = mk.tensor(4), mk.tensor(4)
    total = call("sub", call("add", y, z), z)
    right, wrong = rewrite((a + b) * 1 - b, a, id="r"), rewrite(a - b, a * (1 + 1e-9) - b, id="wrong")
    values = {y: np.array([1.0, 1e-9, 1e9, -3.0]), z: np.array([1e9, 1.0, 1e-9, 3.0])}
    assert not [*disagreements(saturate([total], rules=[right]), values)]
    assert [*disagreements(saturate([total], rules=[wrong]), values)]


def test_exact_means_the_programs_own_types() -> None:
    mk = Maker(0)
    from eqsat.ir.types import float32

    y = mk.tensor(64, dtype=float32)
    third = rewrite(x / 3, x * (1 / 3), id="third")
    graph = saturate([call("div", y, build.scalar(3, y))], rules=[third])
    values = {y: np.linspace(1, 2, 64, dtype=np.float32)}
    assert [*disagreements(graph, values, rule="third", numerics="exact")]
    assert not [*disagreements(graph, values, rule="third", numerics="reassociates")]


def test_the_check_keeps_its_time() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = check_rule(SOUND[0], enough=10**6, trials=10**6, seconds=0.2)
    assert result.counterexample is None and result.trials < 10**5
