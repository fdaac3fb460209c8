"""The fuzzer: its programs are NumPy programs, its checker catches wrong optimizers, and eqsat passes it."""

from __future__ import annotations

import importlib
import logging
import os
import types
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.cost import machine
from eqsat.errors import EqsatError
from eqsat.ir.node import topological
from eqsat.ir.table import OPS
from eqsat.verify import fuzz, fuzz_command, operators
from eqsat.verify.drafts import DTYPES, Draft, Made, Value
from eqsat.verify.minimise import minimise
from eqsat.verify.operators import OPERATORS
from eqsat.verify.program_check import check
from eqsat.verify.program_noise import noise
from eqsat.verify.programs import REFERENCE, Input, Program, Step, evaluate
from eqsat.verify.rounding import rounding_noise
from eqsat.verify.stand_ins import WIDE
from eqsat.verify.strategies import build, coverage, programs
from eqsat.verify.user_operators import OWN
from tests.sweeps import a_part

Function = Callable[..., tuple[np.ndarray, ...]]


def as_written(function: Function) -> Function:
    """An optimizer that does nothing."""
    return lambda *arguments: tuple(np.array(y) for y in function(*arguments) or ())


class Altered:
    """NumPy with some functions replaced."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions = functions

    def __getattr__(self, name: str) -> Any:
        return self.functions.get(name, getattr(np, name))


def altering(**functions: Callable[..., Any]) -> Callable[[Function], Function]:
    """An optimizer under which ``np.<name>`` means something else."""

    def optimize(function: Function) -> Function:
        assert isinstance(function, types.FunctionType)
        scope = {**function.__globals__, "np": Altered(**functions)}
        return as_written(types.FunctionType(function.__code__, scope))

    return optimize


def aborting(function: Function) -> Function:
    """An optimizer that takes the interpreter down for programs that use ``expm1``."""
    if "expm1" in function.__code__.co_names:
        os.abort()
    return as_written(function)


def hoarding(function: Function) -> Function:
    """An optimizer that wants much memory for programs that use ``tanh``."""
    if "tanh" in function.__code__.co_names:
        np.ones((64, 1 << 27))
    return as_written(function)


def one_step(expression: str, *inputs: str, exact: bool = False) -> Program:
    made = tuple(Input(f"v{i}", text) for i, text in enumerate(inputs))
    name = f"v{len(inputs)}"
    return Program(made, (Step(name, "test", expression, exact=exact),), (name,))


UNIFORM = "np.asarray(np.random.default_rng(0).uniform(-2.0, 2.0, (5, 7)), np.float32)"


@pytest.mark.parametrize("infinite", [True, False])
def test_what_infinities_cancel_to_is_anybodys_beside_nan(infinite: bool) -> None:
    """∞·a + ∞·b is NaN where a and b differ in sign, and ∞·(a + b) is not; NaN that was given is NaN in any order."""
    worst = "np.inf" if infinite else "2.0"
    given = f"np.where(np.arange(35).reshape(5, 7) % 6 == 0, {worst}, np.where(np.eye(5, 7) > 0, np.nan, {UNIFORM}))"
    factors = [f"np.asarray(np.random.default_rng({n}).uniform(-2.0, 2.0, (7, 3)), np.float64)" for n in (1, 2)]
    program = one_step("np.sin(np.tanh(v0 @ v1 + v0 @ v2))", given, *factors)

    def factored(function: Function) -> Function:
        return lambda v0, v1, v2: (np.sin(np.tanh(np.nan_to_num(v0, nan=1.0, posinf=np.inf) @ (v1 + v2))),)

    found = check(program, factored, {})
    assert (found is None) == infinite
    assert infinite or (found is not None and "NaN or inf in another place" in found.message)


@given(program=programs())
@settings(max_examples=a_part(60), deadline=None)
def test_exact_values_are_those_of_wider_types(program: Program) -> None:
    exact = tuple(dict.fromkeys(s.name for s in program.steps if program.is_exact(s.name)))
    if not exact:
        return
    part = replace(program, outputs=exact).pruned()
    with np.errstate(all="ignore"):
        for name, narrow, wide in zip(exact, evaluate(part), evaluate(part, wide=True), strict=True):
            assert np.array_equal(narrow, wide.astype(narrow.dtype), equal_nan=narrow.dtype.kind in "fc"), name


@pytest.mark.parametrize(
    ("dtype", "top", "exact"), [("float16", 60, False), ("float16", 6, True), ("float32", 60, True)]
)
def test_sums_of_integers_are_exact_as_far_as_their_type_goes(dtype: str, top: int, exact: bool) -> None:
    x = Value("v0", np.full(40, top, dtype), exact=True, depends=True)
    assert operators._contraction("np.dot(v0, v0)", x, x, 40).exact == exact


@settings(max_examples=a_part(60), deadline=None)
@given(programs())
def test_a_program_is_well_formed_and_repeatable(program: Program) -> None:
    first, second = evaluate(program), evaluate(program)
    for a, b in zip(first, second, strict=True):
        assert a.dtype.name in DTYPES
        np.testing.assert_array_equal(a, b)
    assert 1 <= len(program.steps) <= 30
    defined = {i.name for i in program.inputs}
    for step in program.steps:
        assert set(step.arguments) <= defined
        defined.add(step.name)
    compile(program.source(), "<pasted>", "exec")


def test_what_is_printed_runs_where_it_is_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("eqsat"), "optimize", lambda function: function)
    with np.errstate(all="ignore"):
        for program in fuzz.different_programs(20, 3, 12):
            exec(compile(program.source(), "<pasted>", "exec"), {})
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == len(program.returned) + len(program.parameters)
            assert {line.split()[-1] for line in lines} <= {"0.0", "nan"}, lines


@settings(max_examples=a_part(60), deadline=None)
@given(programs())
def test_numpy_itself_passes_the_check(program: Program) -> None:
    assert check(program, as_written, REFERENCE) is None


@settings(max_examples=a_part(60), deadline=None)
@given(programs())
def test_another_precision_passes_the_check(program: Program) -> None:
    """Evaluating in a wider type and rounding once is a correct optimizer, though its bits differ."""

    def optimize(function: Function) -> Function:
        values = zip(program.outputs, evaluate(program, wide=True), evaluate(program), strict=True)
        exact = {name: y.astype(e.dtype) for name, y, e in values}

        def call(*arguments: np.ndarray) -> tuple[np.ndarray, ...]:
            given = dict(zip(program.parameters, arguments, strict=True))
            for name in given.keys() & exact.keys():
                given[name][...] = exact[name]
            return tuple(exact[name].copy() for name in program.returned)

        return call

    failure = check(program, optimize, REFERENCE)
    if failure is not None:  # that holds what float32 overflows or underflows: only there may places differ
        assert "NaN or inf in another place" in failure.message


def test_every_operator_is_drawn() -> None:
    """Each builder makes a step of its own from plain inputs."""
    inputs = [
        ("float32", (1, 1), 0, False),
        ("float32", (1, 1), 1, False),
        ("float32", (2, 1), 0, False),
        ("float32", (0, 1), 0, False),
        ("bool", (1, 1), 0, False),
        ("bool", (2, 1), 0, False),
        ("int32", (1, 1), 0, False),
        ("uint8", (1, 1), 1, False),
    ]
    tapes = [[seed * 7 % 256, seed, seed // 3, *([seed] * 8)] for seed in range(40)]
    silent = []
    for name in OPERATORS:
        made = (build([4, 6], inputs, [(name, tape)]) for tape in tapes)
        if not any(s.op == name for program in made for s in program.steps):
            silent.append(name)
    assert silent == []


def test_a_step_that_no_memory_holds_is_not_drawn() -> None:
    draft = Draft()
    draft.add_input(Input("v0", "np.ones(4)"))
    assert not draft.add("ones", lambda draft: Made("np.ones((2**20, 2**20, 2**10))"))
    assert draft.add("negative", lambda draft: Made("-v0"))
    assert [step.op for step in draft.steps] == ["negative"]


def test_shrinking_reaches_a_small_program() -> None:
    def fails(program: Program) -> bool:
        reduced = any(s.op in ("sum", "mean", "max", "var") for s in program.steps)
        return reduced and any(s.op.startswith("matmul") for s in program.steps)

    operators = ["sum", "max", "matmul", "matmul_transposed", "tanh", "transpose", "add", "copy", "assign", "fori_loop"]
    found = find(
        programs(min_ops=1, max_ops=12, operators=operators),
        fails,
        settings=settings(max_examples=a_part(200), database=None, derandomize=True),
    )
    assert len(found.steps) == 2


@pytest.mark.parametrize(
    ("program", "optimize"),
    [
        (one_step("np.tanh(v0)", UNIFORM), altering(tanh=lambda x: np.tanh(x) * np.float32(1 + 1e-5))),
        (one_step("np.matmul(v0, v0.T)", UNIFORM), altering(matmul=lambda a, b: np.matmul(a, b) + np.float32(1e-4))),
        (one_step("np.tril(v0, 1)", UNIFORM, exact=True), altering(tril=lambda x, k: np.tril(x, 0))),
        (one_step("np.sum(v0, axis=0)", UNIFORM), altering(sum=lambda x, axis: np.sum(x, axis=axis, keepdims=True))),
        (one_step("np.exp(v0)", UNIFORM), altering(exp=lambda x: np.exp(x).astype(np.float64))),
        (
            one_step(
                "np.maximum(v0, v1)", "np.array([np.nan, 1.0], np.float32)", "np.array([1.0, np.nan], np.float32)"
            ),
            altering(maximum=np.fmax),
        ),
        (
            one_step("v0 * np.zeros(2, np.float32)", "np.array([np.inf, 1.0], np.float32)"),
            lambda function: as_written(lambda x: (np.zeros(2, np.float32),)),
        ),
    ],
    ids=["error", "offset", "diagonal", "shape", "dtype", "nan", "inf"],
)
def test_a_wrong_optimizer_is_caught(program: Program, optimize: Callable[[Function], Function]) -> None:
    assert check(program, as_written, REFERENCE) is None
    failure = check(program, optimize, REFERENCE)
    assert failure is not None
    assert failure.kind == "wrong"


def test_arguments_must_become_what_numpy_makes_of_them() -> None:
    write = Step("v0", "test", "v0[1:] += v0[:-1]", changes=("v0",))
    program = Program((Input("v0", UNIFORM),), (write,), ("v0",))
    assert check(program, as_written, REFERENCE) is None
    kept = check(program, lambda f: lambda x: as_written(f)(x.copy()), REFERENCE)
    assert kept is not None and kept.kind == "wrong"
    plain = one_step("np.tanh(v0)", UNIFORM)

    def spoils(function: Function) -> Function:
        def call(x: np.ndarray) -> tuple[np.ndarray, ...]:
            found = function(x)
            x[0] = 0
            return found

        return call

    spoiled = check(plain, spoils, REFERENCE)
    assert spoiled is not None and spoiled.message == "the call changed its argument v0"


def test_writes_through_a_view_are_kept_with_what_needs_them() -> None:
    view = Step("v1", "test", "v0[1:]", exact=True)
    writes = [Step("v1", "test", text, changes=("v1", "v0")) for text in ("v1 *= 0.3", "v1[0] = 0")]
    program = Program((Input("v0", UNIFORM),), (view, *writes), ("v0",))
    assert program.pruned() == program
    moved = noise(program)[0]
    assert (moved[2:] > 0).all() and moved[0].max() < 1e-6
    assert check(program, as_written, REFERENCE) is None
    assert not program.is_exact("v0") and not program.is_exact("v1")


def test_rounding_inside_of_a_step_is_seen() -> None:
    """The mean of equal integers need not be exact, so their variance is not 0 in every order of evaluation."""
    program = one_step("v0.var(axis=0)", "np.full((49, 2), 7)")
    assert evaluate(program)[0].max() == 0 < noise(program)[0].max()
    assert check(program, lambda f: as_written(lambda x: (f(x)[0] + 1e-32,)), REFERENCE) is None
    assert check(program, lambda f: as_written(lambda x: (f(x)[0] + 1e-20,)), REFERENCE) is not None
    long = one_step("np.sum(v0)", "np.full(5000, 1.3)")
    assert noise(long)[0] > np.finfo(float).eps * 650


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("eqsat.scan(b, v0[0], v0)[0]", {"scan": lambda f, c, xs: (f(c, xs[0])[0], None)}),
        ("eqsat.fori_loop(0, 3, lambda i, c: b(c, c)[0], v0)", {"fori_loop": lambda n, m, f, c: f(0, c)}),
        ("eqsat.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, b(c[1], c[1])[0]), (np.int64(0), v0))[1]", {}),
        ("eqsat.cond(v0[0, 0] > 9, lambda c: b(c, 1)[0], lambda c: c + 1, v0)", {"cond": lambda p, f, g, x: f(x)}),
        ("eqsat.opaque(lambda x: np.tanh(x))(v0)", {"opaque": lambda f: np.sinh}),
    ],
)
def test_loops_of_the_reference(call: str, wrong: dict[str, Any]) -> None:
    """They mean what eqsat's mean outside of optimized functions, and one that means something else is caught."""
    before = "def b(c, x):\n    return 0.5 * c + np.tanh(x), c"
    program = Program((Input("v0", UNIFORM),), (Step("v1", "test", call, before=before),), ("v1",))
    assert check(program, as_written, {"eqsat": importlib.import_module("eqsat")}) is None
    if wrong:
        other = types.SimpleNamespace(**wrong)
        failure = check(program, as_written, {"eqsat": other})
        assert failure is not None and failure.kind == "wrong"


def test_what_does_not_end_is_a_finding_and_other_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    job = fuzz._Job(process=None, pipe=None, seed=0, left=1, rest=0)  # type: ignore[arg-type]
    job.note("start", "the program", 5.0)
    job.note("alive", None, 30.0)
    assert not job.late(timeout=60.0)
    job.since -= 500.0  # the clock went on, and this process had little of it
    assert not job.late(timeout=60.0)
    job.note("alive", None, 70.0)
    assert "processor time" in job.late(timeout=60.0)
    job.note("done", None, 70.0)
    assert not job.late(timeout=60.0)
    job.since -= 700.0
    assert job.late(timeout=60.0) == "no result within 600 s"
    job.note("start", "another", 71.0)
    job.heard -= 61.0
    assert "not heard" in job.late(timeout=60.0)


def test_a_program_that_takes_all_memory_is_a_finding() -> None:
    report = fuzz.run_jobs(f"{__name__}:hoarding", examples=12, seed=0, max_ops=6, jobs=1, timeout=60.0, memory=6.0)
    assert report.programs == 12
    assert {"MemoryError" in f.failure.message for f in report.findings} == {True}


def test_results_that_share_a_buffer_are_caught() -> None:
    def optimize(function: Function) -> Function:
        buffer = np.zeros((5, 7), np.float32)

        def call(*arguments: np.ndarray) -> tuple[np.ndarray, ...]:
            buffer[...] = buffer + 1 if buffer.any() else function(*arguments)[0]
            return (buffer,)

        return call

    failure = check(one_step("np.tanh(v0)", UNIFORM), optimize, REFERENCE)
    assert failure is not None
    assert "the second call changed the result of the first" in failure.message


def test_rounding_to_a_type_that_a_step_has_only_inside_is_seen() -> None:
    """Bytes have sines of float16: what float64 is made of them is no better."""
    program = one_step("np.tanh(np.sin(v0)).astype(np.float64) * np.float64(0.3)", "np.arange(40, dtype=np.uint8)")
    assert noise(program)[0].max() > 1e-4
    assert noise(one_step("np.tanh(v0) * 0.3", "np.arange(40.0)"))[0].max() < 1e-14


def test_what_a_loop_makes_of_the_number_of_its_trip_is_seen_to_round() -> None:
    """Of bytes, sines of float16, which no array that the loop is given shows."""
    body = "lambda trip, x: 0.5 * x + 0.5 * {}(np.sin(trip.astype({})))"
    coarse, fine = (
        one_step(f"eqsat.fori_loop(0, 7, {body.format('np.tanh', of)}, v0)", "np.array(0.3)")
        for of in ("np.uint8", "np.float64")
    )
    assert noise(coarse)[0] > 1e-5
    assert noise(fine)[0] < 1e-14


def test_products_in_bfloat16_are_drawn_where_none_rounds() -> None:
    """Also where the reference has wider numbers; what multiplies other ones is caught."""
    inputs = [("float32", (1, 2), 1, False), ("int8", (1, 2), 0, False), ("float32", (1, 2), 0, False)]
    for tape in ([0, 1, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]):
        program = build([4, 6], inputs, [("matmul_bfloat16", tape)])
        assert "ml_dtypes.bfloat16" in program.source()
        assert check(program, as_written, REFERENCE) is None
        failure = check(program, altering(dot=lambda a, b: a @ b + 1), REFERENCE)
        assert (failure is None) == ("np.dot" not in program.body())


def test_cancellation_is_allowed_for_and_a_lost_term_is_not() -> None:
    big, small = "np.array([1e4, 2e4], np.float32)", "np.array([0.1, 0.3], np.float32)"
    program = Program(
        (Input("v0", big), Input("v1", small)),
        (Step("v2", "add", "v0 + v1"), Step("v3", "sub", "v2 - v0")),
        ("v3",),
    )
    assert (noise(program)[0] > 1e-5).all()
    assert check(program, lambda f: as_written(lambda a, b: (b,)), REFERENCE) is None
    assert check(program, lambda f: as_written(lambda a, b: (b * np.float32(1.5),)), REFERENCE) is not None


def test_noise_is_seen_beside_infinities() -> None:
    """Weights of float32, some of them of minus infinity, that float64 multiplies: infinities do not move."""
    drawn = "np.where(np.arange(49.0).reshape(7, 7) % 5 > 0, np.linspace(-2, 2, 49).reshape(7, 7), -np.inf)"
    weights = Step("v2", "softmax", "np.exp(v0) / np.exp(v0).sum(-1, keepdims=True)")
    inputs = Input("v0", f"np.asarray({drawn}, np.float32)"), Input("v1", "np.linspace(-1, 1, 49).reshape(7, 7)")
    program = Program(inputs, (weights, Step("v3", "vdot", "np.vdot(v1, v2)")), ("v3",))
    assert 1e-8 < noise(program)[0] < 1e-5
    assert check(program, as_written, REFERENCE) is None
    assert check(program, lambda f: as_written(lambda *a: (f(*a)[0] + 1e-5,)), REFERENCE) is not None


@pytest.mark.skipif(WIDE.itemsize == 8, reason="long double is no wider than float64 here")
def test_float64_programs_have_a_wider_reference() -> None:
    """Equal terms round alike, one after the other: the exactly rounded sum is far from NumPy's, and right."""
    sums = "np.einsum('ij,jk,k->', v0, v1, v2)"
    uniform = "np.random.default_rng({}).uniform(-2.0, 2.0, {})"
    program = one_step(sums, "np.full((147, 1), -0.8427007929497148)", uniform.format(2, (1, 6)), uniform.format(3, 6))
    v0, v1, v2 = program.arrays().values()
    dot = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(v1[0], v2, strict=True))
    exact = float(dot * Fraction(float(v0[0, 0])) * len(v0))
    assert abs(evaluate(program)[0] - exact) > 16 * np.finfo(np.float64).eps * abs(exact)
    assert check(program, lambda f: as_written(lambda *_: (np.array(exact),)), REFERENCE) is None
    off = exact * (1 + 1e-12)
    assert check(program, lambda f: as_written(lambda *_: (np.array(off),)), REFERENCE) is not None


@pytest.mark.parametrize(
    "function", ["special.erf(v0)", "nn.gelu(v0)", "np.linalg.inv(v0)", "np.interp(v0, v0[0], v0[1])"]
)
def test_what_has_no_wider_form_has_a_reference(function: str) -> None:
    program = one_step(function, "np.random.default_rng(0).uniform(-2.0, 2.0, (5, 5))")
    assert check(program, as_written, REFERENCE) is None
    wrong = check(program, lambda f: as_written(lambda x: (f(x)[0] * (1 + 1e-11),)), REFERENCE)
    assert wrong is not None and wrong.kind == "wrong"


@pytest.mark.parametrize("form", ["nn.gelu(v0)", "nn.gelu(v0, approximate=True)"])
def test_what_cancels_inside_a_gelu_is_allowed_for(form: str) -> None:
    """Far below 0 NumPy's ``1 + tanh`` is 0, where a sigmoid gives a tiny number: neither is wrong."""
    program = one_step(form, "np.array([-12.287103943172994, -15.0])")
    assert check(program, lambda f: as_written(lambda x: (x * 1e-60,)), REFERENCE) is None
    assert check(program, lambda f: as_written(lambda x: (x * 1e-12,)), REFERENCE) is not None


def test_minimise_leaves_the_step_at_fault() -> None:
    inputs = [("float32", (1, 2), 0, False), ("float32", (1, 2), 0, False)]
    tape = [0] * 10
    names = ["add", "matmul_transposed", "softmax", "sum", "tanh", "transpose", "exp"]
    program = build([5, 7], inputs, [(name, tape) for name in names])
    wrong = altering(tanh=lambda x: np.tanh(x) * np.float32(1.01))
    smaller = minimise(program, lambda candidate: check(candidate, wrong, REFERENCE) is not None)
    assert coverage(smaller) == ["tanh"]
    assert check(smaller, wrong, REFERENCE) is not None


def test_a_run_counts_and_finds() -> None:
    wrong = altering(
        tanh=lambda x, **options: np.tanh(x, **options) * 1.5, mean=lambda x, **options: np.mean(x, **options) + 1
    )
    report = fuzz.run(wrong, REFERENCE, examples=60, seed=5)
    assert report.programs == 60
    assert report.count("wrong") == len(report.findings) > 0
    for finding in report.findings:
        assert "np.tanh" in finding.script or "np.mean" in finding.script
        assert finding.failure.message in fuzz_command.summary(report, 1.0)


def test_runs_repeat() -> None:
    first = [p.source() for p in fuzz.different_programs(20, 3, 30)]
    assert first == [p.source() for p in fuzz.different_programs(20, 3, 30)]
    assert len(set(first)) == 20


def test_the_command_survives_a_crash_of_the_interpreter(capfd: pytest.CaptureFixture[str]) -> None:
    report = fuzz.run_jobs(f"{__name__}:aborting", examples=25, seed=7, max_ops=30, jobs=2, timeout=60.0)
    assert report.programs == 25
    assert report.count("crashed") == len(report.findings) > 0
    assert all("expm1" in f.script for f in report.findings)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_command.main(["--examples", "8", "--optimizer", f"{__name__}:as_written"]) == 0
    assert "8 programs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        fuzz_command.main(["--examples", "0"])


def run_eqsat(examples: int, seed: int, max_ops: int = 30) -> None:
    eqsat = importlib.import_module("eqsat")
    nn = importlib.import_module("eqsat.nn")
    optimizer = partial(fuzz.compiled, eqsat.optimize)
    report = fuzz.run(optimizer, {"nn": nn, "eqsat": eqsat}, examples=examples, seed=seed, max_ops=max_ops)
    assert not report.findings, fuzz_command.summary(report, 0.0)


def test_eqsat_on_random_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_MACHINE", machine_file(tmp_path))
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    run_eqsat(12, seed=1, max_ops=10)


def machine_file(folder: Path) -> str:
    """The machine model in force, as a file: it stays valid when the cache moves."""
    path = folder / "machine.json"
    path.write_text(importlib.import_module("eqsat.cost.machine").load().to_json())
    return str(path)


def of_doubtful_memory(x: np.ndarray) -> tuple[np.ndarray, ...]:
    turned = x.T + 1.0
    rows = turned.reshape(-1)
    turned[0] = 1.0
    return (rows,)


def of_unknown_length(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return (x[x > 0],)


def test_numpy_runs_only_what_may_share_memory(caplog: pytest.LogCaptureFixture) -> None:
    optimize = importlib.import_module("eqsat").optimize
    x = np.arange(-2.0, 4.0, dtype=np.float32).reshape(2, 3)
    with pytest.warns(UserWarning), caplog.at_level(logging.WARNING, "eqsat"):
        (actual,) = fuzz.compiled(optimize, of_doubtful_memory)(x.copy())
    np.testing.assert_array_equal(actual, of_doubtful_memory(x.copy())[0])
    assert "left to NumPy" in caplog.text
    with pytest.raises(EqsatError):
        fuzz.compiled(optimize, of_unknown_length)(x)


def test_warnings_are_counted() -> None:
    def optimize(function: Function) -> Function:
        logging.getLogger("eqsat.backends").warning("no kernel could be generated for tanh")
        return as_written(function)

    report = fuzz.examine(one_step("np.tanh(v0)", UNIFORM), optimize, REFERENCE)
    assert report.warnings == {"no kernel could be generated for tanh": 1}
    assert "warning, 1 times: no kernel" in fuzz_command.summary(report, 1.0)


def test_rounding_noise_of_a_graph() -> None:
    """Cancellation is amplified, a product is not, and comparisons do not flip."""
    from eqsat.ir import build

    x = build.const(np.array([1e4, 2e4], np.float32))
    y = build.const(np.array([0.1, 0.3], np.float32))
    cancelled = build.call("sub", build.call("add", x, y), x)
    product = build.call("mul", x, y)
    jumped = build.call("floor", build.call("div", x, x))
    noise = rounding_noise([cancelled, product, jumped, build.call("lt", x, x)], {})
    assert 1e-4 < noise[0] < 1e-2
    assert 0 < noise[1] < 6e3 * 1e-6
    assert noise[2] < 1e-6
    assert noise[3] == 0.0


def test_what_is_left_of_inf_minus_inf_is_open() -> None:
    infinite = Input("v0", "np.array([np.inf, 1.0], np.float32)", False)
    cancels = Program((infinite,), (Step("v1", "mul", "np.tanh(v0 * 2 - v0)", False, False),), ("v1",))
    plain = Program((infinite,), (Step("v1", "mul", "np.tanh(v0 * 2)", False, False),), ("v1",))

    def optimizer(last: float) -> Callable[[Function], Function]:
        return lambda function: lambda v0: (np.array([last, np.tanh(v0[1] * 2 - v0[1])], np.float32),)

    assert check(cancels, optimizer(1.0), REFERENCE) is None
    assert check(cancels, as_written, REFERENCE) is None
    wrong = check(plain, optimizer(np.nan), REFERENCE)
    assert wrong is not None and "NaN or inf in another place" in wrong.message


def test_rounding_inside_a_composite_is_seen() -> None:
    """Far left, gelu cancels: one unit of its tanh is many of its result."""
    from eqsat.ir import build
    from eqsat.ir.composite import composite, without_composites

    x = build.const(np.linspace(-4.0, -3.0, 50))
    outputs = [build.reduce("reduce_sum", composite("gelu_tanh", [x]), (0,)), composite("silu", [x])]
    simple = without_composites(outputs)
    assert [n.type for n in simple] == [n.type for n in outputs]
    assert not any(OPS[n.op].kind == "composite" for n in topological(simple))
    assert rounding_noise(simple, {})[0] > 10 * rounding_noise(outputs, {})[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_eqsat_on_many_random_programs(seed: int) -> None:
    run_eqsat(250, seed)


@settings(max_examples=a_part(30), deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=5), st.integers(0, 255))
def test_any_records_make_a_program(names: list[str], seed: int) -> None:
    program = build([3, 5], [("float32", (1, 2), 0, False)], [(n, [seed] * 12) for n in names])
    assert len(program.steps) >= 1


def test_interpolation_keeps_a_nan_on_its_row_where_rows_stay() -> None:
    """As PyTorch's does: a row that stays where it is has no part of the next one, not even zero times it."""
    image = "np.array([[[[1, 2, 3], [np.nan, 4, 5]]]], np.float32)"
    step = Step("v1", "interpolate", "nn.interpolate(v0, (2, 6), mode='bilinear')")
    stand_in = Program((Input("v0", image),), (step,), ("v1",))
    (found,) = evaluate(stand_in)
    assert np.isnan(found[0, 0]).sum(axis=1).tolist() == [0, 3]
    assert check(stand_in, as_written, {"nn": importlib.import_module("eqsat.nn")}) is None


def test_failures_are_written_as_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file fails while the failure stands, and passes afterwards."""
    folder = tmp_path / "found"
    arguments = ["--examples", "25", "--seed", "7", "--jobs", "1", "--optimizer", f"{__name__}:aborting"]
    assert fuzz_command.main([*arguments, "--out", str(folder)]) == 1
    found = sorted(folder.iterdir())
    assert found and "crashed" in capsys.readouterr().out
    text = found[0].read_text()
    scope: dict[str, Any] = {}
    exec(compile(text, str(found[0]), "exec"), scope)
    assert "expm1" in scope["__doc__"] and check(scope["PROGRAM"], as_written, REFERENCE) is None
    failure = check(scope["PROGRAM"], altering(expm1=lambda x, **options: 1 / 0), REFERENCE)
    assert failure is not None and failure.kind == "crashed"


def test_options_vary() -> None:
    seen: list[dict[str, object]] = []

    def optimizer(function: Function, **options: object) -> Function:
        seen.append(options)
        return as_written(function)

    report = fuzz.run(optimizer, REFERENCE, examples=8, seed=1, variants=fuzz.VARIANTS)
    assert not report.findings and seen == [*map(dict, fuzz.VARIANTS), {}]
    wrong = fuzz.run(lambda f, **options: lambda *a: 0, REFERENCE, examples=2, seed=1, variants=({"threads": 2},))
    assert all("eqsat.optimize(program, threads=2)" in finding.script for finding in wrong.findings)
    assert all(", threads=2)" in fuzz_command.as_test(finding) for finding in wrong.findings)


@pytest.mark.parametrize("dtype", ["np.float32", "np.int32", "bool"])
def test_what_rounding_does_to_operators_of_users_is_known(dtype: str) -> None:
    importlib.import_module(OWN)
    program = one_step("own_loss(v0)", f"np.arange(-3, 4).astype({dtype})")
    (moved,) = noise(program)
    expected = evaluate(program)[0]
    assert moved.shape == (7,) and (moved <= 1e-5 * expected).all() and moved.any()
    assert check(program, as_written, REFERENCE) is None
    off = check(program, lambda f: as_written(lambda x: (f(x)[0] * (1 + 1e-4),)), REFERENCE)
    assert off is not None and off.kind == "wrong"


def test_programs_are_compiled_for_a_machine_with_small_caches_too() -> None:
    """While they are compiled, the model in force is another; what fails is written with that."""
    before = machine.load()
    seen: list[int] = []

    def optimize(function: Function, **options: object) -> Function:
        def call(*arguments: np.ndarray) -> tuple[np.ndarray, ...]:
            seen.append(machine.load().levels[0].nbytes)
            return as_written(function)(*arguments)

        return call

    wrong = partial(fuzz.compiled, lambda f, **options: lambda *a: 0)
    assert (
        check(next(fuzz.different_programs(1, 0, 4)), partial(fuzz.compiled, optimize, caches=256), REFERENCE) is None
    )
    assert {*seen} == {before.levels[0].nbytes // 256} and machine.load() == before
    (finding,) = fuzz.run(wrong, REFERENCE, examples=1, seed=1, variants=({"caches": 256},)).findings
    assert finding.script.startswith("# EQSAT_MACHINE") and "caches" not in finding.script.split("\n", 1)[1]
    assert ", caches=256)" in fuzz_command.as_test(finding)


def test_a_run_ends_by_the_clock(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_command.main(["--minutes", "0.02", "--optimizer", f"{__name__}:as_written"]) == 0
    assert " programs, " in capsys.readouterr().out
    for wrong in (["--minutes", "-1"], ["--minutes", "nan"], ["--timeout", "-1"]):
        with pytest.raises(SystemExit):
            fuzz_command.main(wrong)


def test_results_of_the_oracle_have_memory_of_their_own() -> None:
    """An image of the same size by linear interpolation was the argument itself, so that writes to that showed."""
    from eqsat.verify.image_stand_ins import IMAGES

    x = np.arange(5.0).reshape(1, 1, 5)
    for mode in ("nearest", "linear"):
        assert not np.shares_memory(IMAGES["interpolate"](x, (5,), mode), x)


def test_loops_of_the_oracle_have_the_order_of_elements() -> None:
    """Whether a reshape of a result is a view of it depends on that, and so what a write to the reshape changes."""
    from eqsat.verify.stand_ins import LOOPS

    x = np.moveaxis(np.arange(12.0).reshape(2, 3, 2), 0, 2)
    found = []
    for loops in (eqsat, LOOPS):
        carry, rows = loops.scan(lambda c, r: (c * 2, c), x, x)
        twice = loops.fori_loop(0, 2, lambda i, c: c * 2, x)
        grown = loops.while_loop(lambda c: c.max() < 40, lambda c: c * 2, x)
        found.append([array.strides for array in (carry, rows, twice, grown)])
    assert found[0] == found[1] and found[0][0] == np.zeros(x.shape).strides
