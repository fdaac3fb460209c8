"""The second generator of programs: it writes what it should, sees what is wrong, and finds nothing wrong in eqsat."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.numpy_net.generate import generate
from tests.numpy_net.judge import Wrong, compare
from tests.numpy_net.minimise import minimise
from tests.numpy_net.noise import Wrapped, noisy_run
from tests.numpy_net.program import Program, bounded_memory, load
from tests.numpy_net.run import cut, examine
from tests.numpy_net.sweep import ROOT, Child, sweep
from tests.sweeps import a_part

ARRAY = "(rng.standard_normal((5, 7))).astype(np.float32)"
Optimizer = Callable[..., Callable[..., Any]]


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with bounded_memory():
        yield


def program(*body: str, result: str = "y", options: dict[str, Any] | None = None, **inputs: str) -> Program:
    given = tuple(inputs.items()) or (("x", ARRAY),)
    arguments = tuple((n, n) for n, _ in given)
    return Program("test", inputs=given, arguments=arguments, body=body, result=result, options=options or {})


def as_written(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """An optimizer that does nothing."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _detached(f(*args, **kwargs))

    return call


def _detached(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (tuple, list):
        return type(value)(_detached(v) for v in value)
    return {k: _detached(v) for k, v in value.items()} if isinstance(value, dict) else value


class Altered:
    """NumPy with some functions replaced."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions = functions

    def __getattr__(self, name: str) -> Any:
        return self.functions.get(name, getattr(np, name))


def altering(**functions: Callable[..., Any]) -> Optimizer:
    """An optimizer under which ``np.<name>`` means something else."""

    def optimize(f: types.FunctionType, **options: Any) -> Callable[..., Any]:
        return as_written(types.FunctionType(f.__code__, {**f.__globals__, "np": Altered(**functions)}))

    return optimize


def test_programs_run_and_cover_numpy() -> None:
    names: set[str] = set()
    for number in range(400):
        made = generate(1, number)
        make, f = load(made.source())
        args, kwargs = make()
        with np.errstate(all="ignore"):
            f(*args, **kwargs)
        names |= {word for block in made.body for word in block.replace("(", " ").replace(".", " ").split()}
    wanted = "einsum tensordot take_along_axis argsort cumsum where clip pad roll broadcast_to as_strided split"
    assert set(wanted.split()) - names <= {"as_strided"}


def test_programs_are_the_same_in_another_process() -> None:
    code = "from tests.numpy_net.generate import generate; print([generate(4, n).to_json() for n in range(30)])"
    seen = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
        seen.add(run.stdout)
    assert seen == {f"{[generate(4, n).to_json() for n in range(30)]}\n".encode()}


def test_a_program_survives_json() -> None:
    for number in range(40):
        made = generate(2, number)
        assert Program.from_json(made.to_json()).source() == made.source()


def test_numpy_itself_passes() -> None:
    for number in range(a_part(60)):
        outcome = examine(generate(3, number), as_written)
        assert outcome.kind in ("ok", "undefined", "raises"), (outcome.message, generate(3, number).script())


def test_another_rounding_passes() -> None:
    """Results with noise of half a unit on every step are right, in every class of numerics."""
    different = 0
    for number in range(150):
        made = generate(5, number)
        if "special" in made.tags:
            continue
        source = made.source()
        make, f = load(source)
        args, kwargs = make()
        with np.errstate(all="ignore"):
            plain = _detached(f(*args, **kwargs))
        noisy = noisy_run(source, 99, 0.5, Wrapped(), lambda inputs: inputs())
        different += repr(plain) != repr(noisy)
        compare(plain, noisy, made.options["numerics"], source, lambda inputs: inputs())
    assert different > 30


@pytest.mark.parametrize(
    ("written", "optimize"),
    [
        (program("y = np.tanh(x)"), altering(tanh=lambda x: np.tanh(x) * np.float32(1 + 1e-5))),
        (program("y = x @ x.T", "y = np.add(y, 0)"), altering(add=lambda x, y: x + np.float32(1e-4))),
        (program("y = np.sum(x, axis=0)"), altering(sum=lambda x, axis: np.sum(x, axis=axis, keepdims=True))),
        (program("y = np.exp(x)"), altering(exp=lambda x: np.exp(x).astype(np.float64))),
        (program("y = np.sort(x)"), altering(sort=lambda x: np.sort(x)[:, ::-1])),
        (program("y = x[::-1]", "y = np.negative(y)"), altering(negative=lambda x: -x[::-1])),
        (program("y = np.where(x > 0, x, 1)"), altering(where=lambda c, a, b: np.where(~c, a, b))),
        (program("y = np.max(x)"), altering(max=lambda x: np.asarray(np.max(x)) + 1)),
        (program("y = np.argmax(x)"), altering(argmax=lambda x: np.argmin(x))),
        (program("y = np.maximum(x, 0)", x="special((9,), np.float32)"), altering(maximum=np.fmax)),
        (
            program("y = np.abs(x)", x="special((40,), np.float32)", options={"numerics": "exact"}),
            altering(abs=lambda x: np.where(x > 0, x, -x)),
        ),
        (program("y = n + 1", n="edges((9,), np.int64)"), altering()),
    ],
    ids=[
        "error",
        "offset",
        "shape",
        "dtype",
        "order",
        "reversal",
        "branch",
        "maximum",
        "argmax",
        "nan",
        "sign",
        "sound",
    ],
)
def test_a_wrong_optimizer_is_caught(written: Program, optimize: Optimizer, request: pytest.FixtureRequest) -> None:
    assert examine(written, as_written).kind == "ok"
    sound = request.node.callspec.id == "sound"
    assert examine(written, optimize).kind == ("ok" if sound else "wrong")


def test_structure_and_kind_of_results_count() -> None:
    for ours in ([1.5], (np.float64(1.5),), {"a": 1.5}, 1.5, (1.5, 2), (2.5,), (np.float32(1.5),)):
        with pytest.raises(Wrong):
            compare((1.5,), ours, "exact", "", lambda inputs: inputs())


def test_shared_buffers_and_changed_arguments_are_caught() -> None:
    def sharing(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        kept = np.zeros((5, 7), np.float32)

        def call(x: np.ndarray) -> np.ndarray:
            kept[...] = f(x)
            return kept

        return call

    def changing(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(x: np.ndarray) -> Any:
            y = f(x).copy()
            x += 1
            return y

        return call

    assert examine(program("y = np.tanh(x)"), sharing).message == "a later call changed the result of the first"
    assert examine(program("y = np.tanh(x)"), changing).kind == "wrong"


def test_errors_are_told_apart() -> None:
    def raising(error: Exception) -> Optimizer:
        def optimize(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            def call(x: np.ndarray) -> Any:
                raise error

            return call

        return optimize

    fine, wrong = program("y = np.tanh(x)"), program("y = x[9]")
    assert examine(fine, raising(KeyError("inside"))).kind == "crashed"
    assert examine(wrong, raising(KeyError("inside"))).kind == "raises"  # as IndexError, it is a LookupError
    assert examine(wrong, raising(TypeError("inside"))).kind == "crashed"
    assert examine(wrong, lambda f, **options: lambda x: x).kind == "silent"
    unused = program("z = x[9]", "y = x + 1")
    assert examine(unused, lambda f, **options: lambda x: x + 1).kind == "ok"


def test_refused_statements_are_left_out() -> None:
    made = program("a = np.unique(x[:5, :5])", "b = a + 1", "v1 = np.tanh(x)", result="(b, v1)")
    outcome = examine(made)
    assert outcome.kind == "ok"
    assert outcome.program is not None and outcome.program.body == ("v1 = np.tanh(x)",)
    assert len(outcome.refused) == 1 and "unique" in outcome.refused[0]
    assert cut(made, {0, 2}) is None


def test_a_failing_program_shrinks() -> None:
    made = program(
        *("a = np.exp(x) * 2", "b = np.tanh(a + 1)", "c = b.sum(axis=0)", "d = x.T"),
        result="(c, d, a)",
        options={"threads": 2},
    )
    wrong = altering(tanh=lambda x: np.tanh(x) * np.float32(1.01))
    smaller = minimise(made, lambda p: examine(p, wrong).kind == "wrong")
    assert len(smaller.body) == 1 and "np.tanh" in smaller.body[0]
    assert smaller.options == {}


def test_hanging_and_dying_programs_are_found() -> None:
    child = Child([sys.executable, "-m", "tests.numpy_net.worker"])
    try:
        assert child.ask({"program": program("y = x + 1").to_json()}, 60)["kind"] == "ok"
        assert child.ask({"program": program("while True:\n    y = 1").to_json()}, 2)["kind"] == "slow"
        assert child.ask({"program": program("y = __import__('os').abort()").to_json()}, 60)["kind"] == "died"
        assert child.ask({"program": program("y = x + 1").to_json()}, 60)["kind"] == "ok"
    finally:
        child.close()


def test_eqsat_on_programs_from_numpys_documentation() -> None:
    report = sweep(SEED, range(20), shrink=False)
    assert not report.findings, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101, 102, 103])
def test_eqsat_on_many_programs(seed: int) -> None:
    report = sweep(seed, range(1250), jobs=2)
    assert not report.findings, str(report)


SEED = 12
