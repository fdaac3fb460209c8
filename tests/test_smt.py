"""Elementwise laws by z3: what holds for all numbers, what fails for a few that random trials may miss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.egraph import smt, verdict
from eqsat.egraph.check import check_rule
from eqsat.ir.table import OPS
from eqsat.rules import Rule, Terms, get, numbers, op, rewrite, signed_sum, tensors
from eqsat.rules.guards import floats

a, b, c, x = tensors("a b c x")
p = numbers("p")
BOTH = {"int32", "uint8"}
ALL = {"the reals", *BOTH}

needs_z3 = pytest.mark.skipif(not smt.available(), reason="z3 is not installed (pip install 'eqsat[smt]')")


def less_by_difference() -> Rule:
    """Right for reals, wrong for integers that wrap around."""
    return rewrite(a < b, op("lt", a - b, 0), id="difference", numerics="approximates")


HOLD = {
    "shifted maximum": (
        rewrite(a + np.maximum(b, c), np.maximum(a + b, a + c), id="r", where=floats),  # integers wrap around
        {"the reals"},
    ),
    "shift": (rewrite(op("floor_divide", op("bitwise_or", a, 0), 2), op("right_shift", a, 1), id="r"), BOTH),
    "mask": (rewrite(op("remainder", op("bitwise_or", a, 0), 8), op("bitwise_and", a, 7), id="r"), BOTH),
    "xor": (rewrite(op("bitwise_xor", op("bitwise_xor", a, b), b), a, id="r"), BOTH),
    "masks": (rewrite(np.where(a < b, c, np.where(b < a, c, x)), np.where(op("ne", a, b), c, x), id="r"), ALL),
    "signs": (rewrite(np.sign(x) * abs(x), x, id="r"), ALL),
    "roots": (rewrite(np.sqrt(x) * np.sqrt(x), x, id="r", numerics="approximates"), {"the reals"}),
    "powers": (rewrite(op("pow", x, -2) * op("square", x), 1, id="r", numerics="approximates"), {"the reals"}),
    "monotone": (rewrite(np.maximum(np.exp(a), np.exp(b)), np.exp(np.maximum(a, b)), id="r"), {"the reals"}),
    "ranges": (rewrite(abs(np.exp(x)), np.exp(x), id="r"), {"the reals"}),
    "odd": (rewrite(np.tanh(-x) * np.tanh(-x), np.tanh(x) * np.tanh(x), id="r"), {"the reals"}),
    "defined by others": (rewrite(1 / (1 + np.exp(-x)), op("sigmoid", x), id="r"), {"the reals"}),
    "halves to even": (rewrite(np.rint(np.rint(x) + 0.5 * 0), np.rint(x), id="r"), {"the reals"}),
}


@needs_z3
@pytest.mark.parametrize("name", [*HOLD])
def test_laws_are_proved_for_all_numbers(name: str) -> None:
    rule, over = HOLD[name]
    found = smt.solve(rule)
    assert found.refuted is None and over <= {*found.held} and found.proved == (not found.open)


WRONG = {
    "factor of either sign": rewrite(c * np.maximum(a, b), np.maximum(c * a, c * b), id="w"),
    "sign of a remainder": rewrite(op("remainder", a, b), op("remainder", a, -b), id="w"),
    "division up": rewrite(op("floor_divide", -a, b), -op("floor_divide", a, b), id="w"),
    "rare number": rewrite(op("eq", a - 1234000, 567), op("lt", a, a), id="w"),
    "rare fraction": rewrite(np.where(op("eq", a, 0.1015625), b, c), c, id="w", numerics="approximates"),
    "negative": rewrite(np.sqrt(np.square(x)), x, id="w"),
    "bounds crossed": rewrite(np.minimum(np.maximum(x, a), b), np.maximum(np.minimum(x, b), a), id="w"),
    "wraps around": less_by_difference(),
}


@needs_z3
@pytest.mark.parametrize("name", [*WRONG])
def test_wrong_laws_are_refuted_by_numbers_that_numpy_confirms(name: str) -> None:
    """Negative controls: of some of these random trials hardly ever find the number."""
    found = smt.solve(WRONG[name])
    assert found.refuted is not None and not found.proved
    refuted = found.refuted
    assert (np.asarray(refuted.expected) != np.asarray(refuted.found)).any()
    assert "saturate" in refuted.program and "does not hold for" in str(found)


@needs_z3
@pytest.mark.parametrize("id", ["bits_absorb", "bits_of_both", "maximum_exp", "compare_both", "sqrt_square"])
def test_laws_of_the_library_are_proved(id: str) -> None:
    assert smt.solve(get(id)).proved


@needs_z3
def test_a_wrong_law_that_random_trials_miss_is_wrong() -> None:
    rule = WRONG["rare number"]
    assert check_rule(rule, trials=200, enough=20).counterexample is None
    found = eqsat.check(rule, seconds=1.0)
    assert found.word == "wrong" and found.trials.counterexample is None
    assert "element by element, by z3: refuted" in str(found) and "1234567" in str(found)


@needs_z3
def test_verdicts_name_what_is_proved() -> None:
    found = eqsat.check(
        rewrite(np.maximum(a, b) + np.minimum(a, b), a + b, id="pair", numerics="approximates"), seconds=1
    )
    assert found.word == "proved" and not found.identity.proved
    assert "by z3: proved over the reals, int32, uint8" in str(found)


@needs_z3
def test_what_z3_cannot_tell_is_left_open() -> None:
    """Unknown functions, time, numbers that are no reals, and laws that are about known numbers."""
    law = rewrite(np.exp(a) * np.exp(b), np.exp(a + b), id="law", numerics="approximates")
    assert "NumPy does not confirm" in smt.solve(law).open["the reals"]
    hard = rewrite((op("floor_divide", a * b, c) * c + op("remainder", a * b, c)) * a, a * a * b, id="hard")
    assert "no answer in 0.05 s" in smt.solve(hard, timeout=0.05).open["int32"]
    infinite = smt.solve(rewrite(np.maximum(x, -np.inf), x, id="infinite", where=lambda m: m.root.dtype.is_float))
    assert "the number -inf" in infinite.open["the reals"]
    scaled = smt.solve(rewrite(p * a + p * b, p * (a + b), id="scaled"))
    assert not scaled.proved and "for the programs tried" in str(scaled)
    summed = rewrite(Terms("ts"), lambda m: signed_sum(m.ts[::-1]), id="sum")
    assert not smt.solve(summed).proved
    assert str(smt.solve(rewrite((a @ b) @ c, a @ (b @ c), id="product"))) == "it fires on no elementwise program"


@needs_z3
def test_a_law_that_is_defined_nowhere_is_not_proved() -> None:
    rule = rewrite(np.sqrt(-1 - np.square(x)), x, id="nowhere", numerics="approximates")
    assert "defined nowhere" in smt.solve(rule).open["the reals"]


@needs_z3
def test_formulas_mean_what_numpy_computes() -> None:
    """Every operator on hard numbers: division downwards and by 0, shifts beyond the bits, halves."""
    import z3

    from eqsat.egraph.saturated import ENode
    from eqsat.ir.types import DType, TensorType, float64, int32, uint8

    def formula(name: str, dtype: DType, values: list[np.ndarray]) -> Any:
        graph: Any = type("Graph", (), {"types": {n: TensorType((), dtype) for n in range(len(values))}})
        made = smt._Formulas(z3, graph, 1.0)
        args = [made._number(value.item(), dtype) for value in values]
        truth = name in smt.COMPARED
        kind = TensorType((), OPS["lt"].type_rule([TensorType((), dtype)] * 2, None).dtype if truth else dtype)
        found = made._node(ENode(name, None, tuple(range(len(values)))), kind, args)
        solver = z3.Solver()
        result = z3.FreshConst(found.sort())
        solver.add(result == found, *made.facts)
        return solver.model()[result] if solver.check() == z3.sat else None

    common = [*smt.COMMON, *smt.COMPARED, "floor_divide", "remainder"]
    whole = [*smt.BITS, "right_shift"]
    hard = {
        float64: [-2.5, 0.0, 0.5, 1.5],
        int32: [-(2**31), -7, 0, 2, 33],
        uint8: [0, 9, 255],
    }
    for dtype, some in hard.items():
        names = common + (["floor", "ceil", "round", "sqrt", "reciprocal", "div"] if dtype.is_float else whole)
        for name in names:
            arity = (
                1
                if name
                in ("neg", "square", "abs", "sign", "relu", "invert", "floor", "ceil", "round", "sqrt", "reciprocal")
                else 2
            )
            for one in some:
                for two in some if arity == 2 else [one]:
                    values = [np.asarray(v, dtype.numpy) for v in (one, two)[:arity]]
                    with np.errstate(all="ignore"):
                        expected = np.asarray(OPS[name].reference(values, None))
                    found = formula(name, dtype, values)
                    if found is None or not np.isfinite(expected):
                        assert dtype.is_float and not np.isfinite(expected)
                        continue
                    node: Any = type("N", (), {"dtype": dtype})
                    got = str(found) == "True" if expected.dtype == bool else smt._numpy(found, node)
                    assert got == pytest.approx(expected.item(), rel=1e-12), (name, dtype, values)


def test_without_z3_checks_say_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict.smt, "available", lambda: False)
    found = eqsat.check(rewrite(np.maximum(a, a), a, id="same"), seconds=0.5)
    assert found.solved is None and found.word == "tested" and "z3" not in str(found)


def test_ctrl_c_is_not_taken_for_an_answer() -> None:
    """While z3 searches, it takes the signal for itself."""

    class Interrupted:
        def set(self, *options: object) -> None: ...
        def add(self, *facts: object) -> None: ...

        def check(self) -> str:
            return "unknown"

        def reason_unknown(self) -> str:
            return "interrupted from keyboard"

    stand_in = SimpleNamespace(Solver=Interrupted, unknown="unknown")
    with pytest.raises(KeyboardInterrupt):
        smt._Formulas(stand_in, SimpleNamespace(), 1.0)._ask(None)  # type: ignore[arg-type]
