"""Laws that are found: those taken out of the library again, none that are wrong, none that others derive."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import cli
from eqsat.discovery import enumerate as terms_of
from eqsat.discovery.enumerate import Fingerprints, enumerated
from eqsat.discovery.search import Discovery, meets
from eqsat.discovery.terms import Shapes, Term, inputs_for, operators, variable
from eqsat.egraph.check import check_rule
from eqsat.egraph.saturate import saturate
from eqsat.ir import build
from eqsat.ir.node import Node
from eqsat.ir.types import TensorType, float64
from eqsat.rules import attributes, collect, concat, op, rewrite, select, tensors
from eqsat.rules.examples import Maker

a, b, c = tensors("a b c")
k = attributes("k")
PAIR = {name: eqsat.spec((2, 3)) for name in "ab"}
FACTORS = {"a": eqsat.spec((2, 3)), "b": eqsat.spec((3, 4)), "c": eqsat.spec((3, 4))}
PARTS = {name: eqsat.spec(2) for name in "ab"}


def tensor(name: str, *shape: int) -> Node:
    return build.input_node("abc".index(name), TensorType(shape, float64))


def exp_of_sum() -> tuple[Node, Node]:
    x, y = (build.call("exp", tensor(name, 4, 5)) for name in "ab")
    return build.call("mul", x, y), build.call("exp", build.call("add", tensor("a", 4, 5), tensor("b", 4, 5)))


def sum_of_negative() -> tuple[Node, Node]:
    x = tensor("a", 4, 5, 2)
    return build.reduce("reduce_sum", build.call("neg", x), (1,)), build.call(
        "neg", build.reduce("reduce_sum", x, (1,))
    )


def product_of_sum() -> tuple[Node, Node]:
    x, u, v = tensor("a", 4, 5), tensor("b", 5, 2), tensor("c", 5, 2)
    both = build.call("add", build.matmul(x, u), build.matmul(x, v))
    return both, build.matmul(x, build.call("add", u, v))


def relu_of_parts() -> tuple[Node, Node]:
    x, y = tensor("a", 4, 5), tensor("b", 4, 2)
    outside = build.call("relu", build.concat([x, y], 1))
    return outside, build.concat([build.call("relu", x), build.call("relu", y)], 1)


TAKEN: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any], Any]] = {
    "exp": (("exp", "mul", "add"), ("exp_mul",), PAIR, exp_of_sum),
    "sum": (("sum", "neg"), ("sum_of_neg",), PAIR, sum_of_negative),
    "product": (("matmul", "add"), ("contract_linear", "contract_factor"), FACTORS, product_of_sum),
    "parts": (("relu", "concatenate"), ("map_of_concat", "concat_of_maps"), PARTS, relu_of_parts),
}
"""Operators, the rules that are taken out, inputs, and both sides of the law that these said, for other shapes."""


@cache
def search(name: str) -> Discovery:
    ops, removed, variables, _ = TAKEN[name]
    return eqsat.discover(ops, 3, variables=variables, rules=select(disable=removed), seconds=120)


@pytest.fixture
def found() -> Discovery:
    return search("exp")


@pytest.mark.parametrize("name", ["exp", "sum", "product", pytest.param("parts", marks=pytest.mark.slow)])
def test_rules_taken_out_are_found_again(name: str) -> None:
    """The law follows from what was found, and from nothing without it: also for other shapes and axes."""
    _, removed, _, law = TAKEN[name]
    rest, laws = select(disable=removed), search(name)
    assert not meets(*law(), rest)
    assert meets(*law(), [*rest, *laws.rules])
    assert laws.stop == "done" and not laws.refused and len(laws.laws) <= 3


@pytest.mark.slow
def test_found_laws_need_one_another() -> None:
    """None is derived by the others."""
    found = search("parts")
    rest = select(disable=TAKEN["parts"][1])
    for law in found.laws:
        others = [rule for rule in found.rules if rule is not law.rule]
        assert not meets(law.form.left.node, law.form.right.node, [*rest, *others])


def test_negated_and_transposed_matrices_are_told_apart() -> None:
    """``-a.mT`` is the negation of the transposed matrix."""
    found = eqsat.discover(["neg", "matrix_transpose"], 2, variables=PAIR, rules=())
    assert not found.refused and "rewrite(-a.mT, (-a).mT" in found.source
    one, other = (build.call("neg", x := tensor("a", 2, 3)), x)
    assert meets(build.transpose(one, (1, 0)), build.call("neg", build.transpose(other, (1, 0))), found.rules)


def test_few_digits_of_small_floats_are_compared() -> None:
    x = np.array([1.0, 3e-4, np.nan], np.float32)
    near, other = x * np.float32(1 + 2e-7), x * np.float32(1 + 1e-4)
    assert terms_of._rounded(x) == terms_of._rounded(near) != terms_of._rounded(other)
    wide = x.astype(np.float64)
    assert terms_of._rounded(wide) != terms_of._rounded(wide * (1 + 2e-7))


def test_found_laws_are_written_as_rules(found: Discovery, tmp_path: Path) -> None:
    path = tmp_path / "laws.py"
    found.write(path)
    module = cli._imported(str(path))
    assert list(map(str, collect(module))) == list(map(str, found.rules))
    assert all(rule.file == str(path) for rule in collect(module))
    text = path.read_text()
    assert all(f"{law.rule.numerics}, {law.verdict.word}" in text for law in found.laws)
    assert all(check_rule(rule, trials=100, enough=8).counterexample is None for rule in collect(module))


def test_the_same_search_finds_the_same() -> None:
    one, other = (eqsat.discover(["neg"], 2, variables=PAIR, rules=(), seed=3) for _ in range(2))
    assert one.source == other.source and one.laws


def test_what_agrees_by_chance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: were all terms of a type taken for equal, the check would let none pass that is wrong."""
    monkeypatch.setattr(terms_of, "_rounded", lambda value: b"")
    monkeypatch.setattr(Fingerprints, "constant", lambda self, node: None)
    found = eqsat.discover(["exp", "neg"], 1, variables={"a": eqsat.spec((2, 3))}, rules=())
    assert not found.laws and [*found.refused] == ["a = exp(a)"]  # neg(a) is told apart over the field


def test_rational_terms_are_told_apart_without_rounding() -> None:
    """A difference that no float64 shows."""
    leaves = [variable("a", tensor("a", 2))]
    a_node = leaves[0].node
    near = build.call("mul", a_node, build.scalar(1 + 2.0**-52, a_node))
    values = Fingerprints([{a_node: np.array([1.5, 2.5])}], 0)
    one, other = values(a_node), values(near)
    assert one is not None and other is not None
    assert one[0] == other[0] and one[1] != other[1]


def test_terms_of_one_fingerprint_are_made_of_one() -> None:
    """Each term is its operator applied to the smallest terms that compute what its operands do."""
    maker = Maker(0)
    leaves = [variable(name, maker.tensor(2, 3)) for name in "ab"]
    values = Fingerprints([maker.values()], 0)
    groups = enumerated(leaves, operators(["add", "neg", "mul"], leaves), 2, values, lambda size, terms: True)
    first = {id(terms[0]) for terms in groups.found.values()}
    every = [term for terms in groups.found.values() for term in terms]
    assert all(id(arg) in first for term in every for arg in term.args)
    assert len({term.node for term in every}) == len(every)
    assert {"add(a, b)", "mul(a, b)", "neg(a)"} <= {str(term) for term in every}
    assert "add(b, a)" not in {str(term) for term in every}


def term(text: str, shapes: dict[str, tuple[int, ...]]) -> Term:
    """A term as Python: operators by the names that discovery knows."""
    leaves = {name: variable(name, tensor(name, *shape)) for name, shape in shapes.items()}

    def apply(name: str) -> Any:
        def made(*args: Any) -> Term:
            axis = args[-1] if isinstance(args[-1], int) else 0
            given = [arg for arg in args if isinstance(arg, Term)]
            (operator,) = operators([name], list(leaves.values()))
            return next(t for t in operator.terms(given) if t.axis in (None, axis))

        return made

    names = ("matmul", "transpose", "concat", "add", "sum")
    return eval(text, {**leaves, **{name: apply(name) for name in names}})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("sides", "shapes", "alike"),
    [
        (("add(concat(a, b, -1), concat(b, a, -1))",), {"a": (2, 3), "b": (2, 3)}, []),
        (("concat(add(a, b), a, -1)",), {"a": (2, 3), "b": (2, 3)}, [["a", "b"]]),
        (("matmul(a, b)", "transpose(matmul(transpose(b), transpose(a)))"), {"a": (2, 3), "b": (3, 4)}, []),
        (("concat(a, b, -2)", "concat(a, b, -2)"), {"a": (2, 3), "b": (2, 3)}, []),
        (("matmul(a, b)",), {"a": (3,), "b": (3,)}, [["a", "b"]]),
        (("add(matmul(a, b), c)",), {"a": (2, 4, 3), "b": (3, 3), "c": (2, 4, 3)}, []),
        (("sum(add(a, b), -1)", "add(sum(a, -1), sum(b, -1))"), {"a": (2, 3), "b": (2, 3)}, [["a", "b"]]),
    ],
)
def test_shapes_are_as_general_as_types_allow(
    sides: tuple[str, ...], shapes: dict[str, tuple[int, ...]], alike: list[list[str]]
) -> None:
    found = Shapes([term(side, shapes) for side in sides])
    assert found.alike() == alike
    if len(sides) == 2 and "matmul" in sides[0]:
        (n, inner), (same, m) = found.of("a"), found.of("b")
        assert inner == same and len({n, inner, m}) == 3


def test_patterns_of_given_parts_and_transposed_matrices() -> None:
    """What discovery writes: concatenations of so many parts, with a common axis, and transposed matrices."""
    right = [
        rewrite((a @ b).mT, b.mT @ a.mT, id="t", where=lambda m: m.a.type.ndim == m.b.type.ndim == 2),
        rewrite(op("relu", concat([a, b], k)), np.concatenate([op("relu", a), op("relu", b)], k), id="j"),
        rewrite(np.matrix_transpose(np.matrix_transpose(a) * 2), 2 * a, id="tt"),
    ]
    wrong = [
        rewrite(concat([a, b], k), concat([b, a], k), id="w"),
        rewrite(concat([a, op("relu", b)], -1), concat([a, b], -1), id="w"),
        rewrite((a @ b).mT, a.mT @ b.mT, id="w", where=lambda m: len({*m.a.shape, *m.b.shape}) == 1 < m.b.type.ndim),
    ]
    assert [check_rule(rule, trials=150, enough=6).counterexample for rule in right] == [None] * 3
    assert all(check_rule(rule, trials=60, enough=6).fired for rule in right)
    assert all(check_rule(rule).counterexample is not None for rule in wrong)


def test_a_pattern_of_parts_matches_only_as_many() -> None:
    three = build.concat([tensor(name, 2) for name in "abc"], 0)
    two = build.concat([tensor(name, 2) for name in "ab"], 0)
    rule = rewrite(concat([a, b], -1), concat([-a, b], -1), id="two")  # wrong, so that it shows
    fired = [saturate([node], rules=[rule], iterations=1).report.rules["two"].fired for node in (three, two)]
    assert fired == [0, 1]


@pytest.mark.parametrize(
    ("ops", "options", "said"),
    [
        (["maxmum"], {}, "did you mean maximum"),
        (["cast"], {}, "unknown operator 'cast'"),
        ([], {}, "needs operators"),
        (["add"], {"size": 9}, "1 to 6 operators, not 9"),
        (["add"], {"size": 0}, "1 to 6 operators, not 0"),
        (["add"], {"numerics": "loose"}, "numerics is one of"),
        (["add"], {"seconds": 0}, "more than 0 seconds"),
        (["logical_and"], {"variables": PAIR}, "none of the variables"),
        (["add"], {"variables": {"op": eqsat.spec(3)}}, "a free name"),
        (["add"], {"size": 2.0}, "1 to 6 operators, not 2.0"),
        ("neg", {}, r"several names, such as \['neg'\]"),
        ([1], {}, "by its name, not 1"),
        (["neg"], {"rules": ["neg_neg"]}, "what eqsat.rules.rewrite returns"),
        (["add"], {"variables": {"a": eqsat.spec((0, 3))}}, "1 to 256 elements"),
        (["add"], {"numbers": [float("nan")]}, "a finite number of type float64, not nan"),
        (["add"], {"numbers": [1j]}, "a finite number"),
        (["add"], {"numbers": [10**400]}, "a finite number"),
        (["maximum"], {"numbers": [-1], "variables": {"a": eqsat.spec(2, "uint8")}}, "type uint8, not -1"),
        (["bitwise_and"], {"numbers": [1.5]}, "type int64, not 1.5"),
    ],
)
def test_bad_questions(ops: list[str], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        eqsat.discover(ops, **options)


def test_too_many_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms_of, "MOST_TERMS", 100)
    with pytest.raises(ValueError, match=r"more than 100 terms of up to 4 operators, at \d already"):
        eqsat.discover(["add", "mul", "exp"], 4)


def test_time_is_kept() -> None:
    found = eqsat.discover(["add", "mul", "maximum", "exp"], 4, seconds=0.3)
    assert found.stop == "seconds" and found.terms and "time was up" in str(found)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "laws.py"
    assert cli.main(["rules", "discover", "--ops", "maximum", "--size", "1", "--out", str(out)]) == 0
    assert "0 laws" in capsys.readouterr().out and "of up to 1 of maximum" in out.read_text()
    assert cli.main(["rules", "discover"]) == 1
    assert "needs --ops" in capsys.readouterr().err
    assert cli.main(["rules", "discover", "--ops", "add", "--out", str(tmp_path / "no" / "laws.py")]) == 1
    assert "no folder" in capsys.readouterr().err


def test_inputs_fit_their_operators() -> None:
    assert {*inputs_for(["where"])} == {*"abcpq"} and {*inputs_for(["logical_or"])} == {*"pq"}
    assert all(type.dtype.name == "int64" for type in inputs_for(["bitwise_and"]).values())
    shapes = [type.shape for type in inputs_for(["matmul", "transpose"]).values()]
    assert len({*shapes}) == 3
