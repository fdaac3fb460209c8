"""Random whole programs as data: run with NumPy, compare another executor with them, print, minimise.

A program is straight-line Python text over numbered values ``v0, v1, …``: what is printed for the user is
what was run. Nothing here imports Hypothesis; :mod:`eqsat.verify.strategies` draws programs.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Function = Callable[..., tuple[Array, ...]]
Optimizer = Callable[[Function], Function]

VALUE = re.compile(r"\bv\d+\b")
ULPS = 8.0
"""Units in the last place, of the tensor's largest magnitude, that are always allowed."""
WIDE = np.dtype(np.longdouble)
"""Type of the reference evaluation: float64 needs one wider than itself, which shows NumPy's own error. 80 or 128 bits;
where the C compiler's ``long double`` is a float64, NumPy's error in float64 programs is not seen."""
NOISE_RUNS = 3
NOISE_FACTOR = 16.0


@dataclass(frozen=True)
class Input:
    """An input: its name, the Python expression that makes it, and whether the program captures it as a constant."""

    name: str
    expression: str
    captured: bool = False


@dataclass(frozen=True)
class Step:
    """``name = expression``. ``op`` names the operator for coverage.

    ``discrete``: a jump of the function lies between nearby arguments, which therefore are exact here.
    ``exact``: the value is the same in every evaluation order and precision.
    """

    name: str
    op: str
    expression: str
    discrete: bool = False
    exact: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """Values that the expression reads, in order of first use."""
        return tuple(dict.fromkeys(VALUE.findall(self.expression)))


@dataclass(frozen=True)
class Failure:
    """Why a program failed: ``wrong`` (numbers), ``refused`` (VerificationError) or ``crashed`` (other exceptions)."""

    kind: str
    message: str


@dataclass(frozen=True)
class Program:
    """A straight-line program over named values, with the data that it runs on."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.inputs if not i.captured)

    def arrays(self) -> dict[str, Array]:
        """Fresh arrays for every input, the same each time."""
        return {i.name: np.asarray(eval(i.expression, {"np": np})) for i in self.inputs}

    def body(self, *, wide: bool = False) -> str:
        """Source text of the function ``program``."""
        lines = [f"def program({', '.join(self.parameters)}):"]
        lines += [f"    {s.name} = {s.expression}" for s in self.steps]
        lines.append(f"    return {', '.join(self.outputs)}{',' if len(self.outputs) == 1 else ''}")
        text = "\n".join(lines)
        return _with_floats(text, WIDE) if wide else text

    def function(self, nn: object, captured: Mapping[str, Array], *, wide: bool = False) -> Function:
        """The program as a Python function of its parameters; ``nn`` is bound to the name ``nn`` in it."""
        from scipy import special

        text = self.body(wide=wide)
        scope: dict[str, Any] = {"np": np, "nn": nn, "special": special}
        if wide:
            scope |= {"np": _Widened(np), "special": _Widened(special)}
        for i in self.inputs:
            if i.captured:
                scope[i.name] = captured[i.name]
        exec(compile(text, "<random program>", "exec"), scope)
        function: Function = scope["program"]
        return function

    def source(self) -> str:
        """A Python script to paste: data, program, and its comparison with NumPy."""
        uses_nn = any("nn." in s.expression for s in self.steps)
        lines = ["import numpy as np"]
        if any("special." in s.expression for s in self.steps):
            lines.append("from scipy import special")
        lines += ["", "import eqsat"]
        if uses_nn:
            lines.append("from eqsat import nn")
        lines += ["", *(f"{i.name} = {i.expression}" for i in self.inputs), "", "", self.body(), "", ""]
        arguments = ", ".join(self.parameters)
        lines += [
            f"expected = program({arguments})",
            f"actual = eqsat.optimize(program)({arguments})",
            "for e, a in zip(expected, actual):",
            "    print(np.shape(e), np.shape(a), np.abs(np.subtract(e, a, dtype=np.float64)).max(initial=0))",
        ]
        return "\n".join(lines) + "\n"

    def pruned(self) -> Program:
        """Without steps and inputs that no output needs."""
        needed = set(self.outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if step.name in needed:
                steps.append(step)
                needed.update(step.arguments)
        inputs = tuple(i for i in self.inputs if i.name in needed)
        return Program(inputs, tuple(reversed(steps)), self.outputs)


def _softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Any, axis: int = -1) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _layer_norm(x: Any, scale: Any, shift: Any, eps: float = 1e-5) -> Any:
    centered = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    return centered / np.sqrt(variance + eps) * scale + shift


def _rms_norm(x: Any, scale: Any, eps: float = 1e-5) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def _gelu(x: Any, approximate: bool = False, rounded: Callable[[Any], Any] = lambda value: value) -> Any:
    """``rounded``: what happens to the value that 1 is added to, which cancels where ``x`` is well below 0."""
    from scipy import special

    if approximate:
        return 0.5 * x * (1.0 + rounded(np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))))
    return 0.5 * x * (1.0 + rounded(_Widened(special).erf(x * 0.7071067811865476).astype(x.dtype)))


def _sigmoid(x: Any) -> Any:
    from scipy.special import expit

    return expit(x).astype(x.dtype)  # SciPy's functions of float16 are float64


NN = SimpleNamespace(
    softmax=_softmax,
    log_softmax=_log_softmax,
    layer_norm=_layer_norm,
    rms_norm=_rms_norm,
    gelu=_gelu,
    silu=lambda x: x * _sigmoid(x),
    sigmoid=_sigmoid,
    relu=lambda x: np.maximum(x, 0),
)
"""``eqsat.nn`` written out in NumPy, as the reference; it also runs on traced arrays."""


class _Widened:
    """A module whose functions take ``WIDE`` floats: those that have no such loops compute in float64."""

    def __init__(self, module: object) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        if isinstance(found, ModuleType):
            return _Widened(found)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return found(*arguments, **options)
            except TypeError:
                if not any(isinstance(x, np.ndarray | np.generic) and x.dtype == WIDE for x in arguments):
                    raise
            narrow = (np.asarray(x, np.float64) if getattr(x, "dtype", None) == WIDE else x for x in arguments)
            return found(*narrow, **options)

        return call


def evaluate(program: Program, *, wide: bool = False) -> tuple[Array, ...]:
    """The outputs by NumPy, in the program's types or with ``WIDE`` for all floats."""
    arrays = program.arrays()
    if wide:
        arrays = {k: a.astype(WIDE) if a.dtype.kind == "f" else a for k, a in arrays.items()}
    function = program.function(NN, arrays, wide=wide)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(np.asarray(y) for y in function(*(arrays[p] for p in program.parameters)))


def _with_floats(text: str, dtype: np.dtype[Any]) -> str:
    return re.sub(r"np\.float(16|32|64)\b", f"np.{dtype.type.__name__}", text)


def _noisy(value: Array, eps: float, rng: np.random.Generator) -> Array:
    return np.asarray(value * (1.0 + eps * rng.uniform(-1.0, 1.0, np.shape(value))))


def noise(program: Program, runs: int = NOISE_RUNS) -> tuple[Array, ...]:
    """Largest change of each output when every intermediate is changed by up to one unit of rounding.

    Monte Carlo arithmetic (Parker, 1997): float64 evaluations in which each operand carries random relative
    errors of the size its own type has, and so does what cancels inside a gelu. It shows what any evaluation order
    may lose, where NumPy's own error can be zero by luck. Operands of discrete steps are exact and stay so.
    """
    from scipy import special

    arrays = program.arrays()
    wide: dict[str, Any] = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in arrays.items()}
    narrow: dict[str, Any] = dict(arrays)
    scope: dict[str, Any] = {"np": np, "nn": NN, "special": special}
    codes = [compile(s.expression, "<step>", "eval") for s in program.steps]
    doubles = [compile(_with_floats(s.expression, np.dtype(np.float64)), "<step>", "eval") for s in program.steps]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, code in zip(program.steps, codes, strict=True):
            narrow[step.name] = eval(code, scope, narrow)
        units = {k: np.finfo(v.dtype).eps for k, v in narrow.items() if np.asarray(v).dtype.kind == "f"}
        clean = dict(wide)
        for step, code in zip(program.steps, doubles, strict=True):
            clean[step.name] = eval(code, scope, clean)
        worst = [np.zeros(np.shape(clean[o])) for o in program.outputs]
        for run in range(runs):
            rng = np.random.default_rng(run)
            values = dict(wide)
            for step, code in zip(program.steps, doubles, strict=True):
                if step.exact:
                    values[step.name] = clean[step.name]
                    continue
                scoped: dict[str, Any] = {}
                unit = max((units[name] for name in step.arguments if name in units), default=0.0)
                inside = partial(_gelu, rounded=partial(_noisy, eps=unit, rng=rng))
                scope["nn"] = SimpleNamespace(**{**vars(NN), "gelu": inside})
                for name in step.arguments:
                    jitter = name in units and not step.discrete
                    scoped[name] = _noisy(values[name], units[name], rng) if jitter else values[name]
                values[step.name] = eval(code, scope, scoped)
            for i, name in enumerate(program.outputs):
                value = values[name]
                if name in units and not _is_exact(program, name):
                    value = _noisy(value, units[name], rng)
                if np.asarray(value).dtype.kind == "f":
                    worst[i] = np.fmax(worst[i], np.abs(value - clean[name]))
    return tuple(worst)


def _is_exact(program: Program, name: str) -> bool:
    return all(s.exact for s in program.steps if s.name == name)


def check(program: Program, optimizer: Optimizer, nn: object) -> Failure | None:
    """Run the program under an optimizer, twice, and compare it with NumPy. None when all is well.

    Shapes and element types must be NumPy's; integers, bools and exact floats equal; NaN and inf in NumPy's
    places (where an input holds inf, NaN and inf may stand for one another, and where inf − inf gave a NaN any
    value may, since that depends on the order of evaluation). Other floats may differ from the evaluation in ``WIDE``
    by 4 times NumPy's own error, or by what one unit of rounding noise in every step does, plus a few units in the
    last place. The second call must give the same bits and leave the first result alone.
    """
    expected = evaluate(program)
    arrays = program.arrays()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimized = optimizer(program.function(nn, arrays))
            arguments = [arrays[p] for p in program.parameters]
            actual = optimized(*arguments)
            first = tuple(np.array(y) for y in actual) if isinstance(actual, tuple) else actual
            second = optimized(*arguments)
    except Exception as error:
        refused = any(base.__name__ == "VerificationError" for base in type(error).__mro__)
        kind = "refused" if refused else "crashed"
        return Failure(kind, describe(error))
    with np.errstate(all="ignore"):
        message = _compare(program, expected, first)
    if message:
        return Failure("wrong", message)
    for name, a, b, c in zip(program.outputs, actual, first, second, strict=True):
        if not np.array_equal(a, b, equal_nan=b.dtype.kind == "f"):
            return Failure("wrong", f"{name}: the second call changed the result of the first")
        if not np.array_equal(b, c, equal_nan=b.dtype.kind == "f"):
            return Failure("wrong", f"{name}: two calls on the same arguments differ")
    for name, before in program.arrays().items():
        if not np.array_equal(before, arrays[name], equal_nan=before.dtype.kind == "f"):
            return Failure("wrong", f"the call changed its argument {name}")
    return None


def describe(error: Exception) -> str:
    """Type, first line and place of an exception, on one line."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}]" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def _compare(program: Program, expected: Sequence[Array], actual: object) -> str | None:
    if not isinstance(actual, tuple) or len(actual) != len(expected):
        return f"a tuple of {len(expected)} arrays was expected, not {type(actual).__name__}"
    has_inf = any(a.dtype.kind == "f" and bool(np.isinf(a).any()) for a in program.arrays().values())
    exact: tuple[Array, ...] | None = None
    allowed: tuple[Array, ...] | None = None
    for i, (name, e, got) in enumerate(zip(program.outputs, expected, actual, strict=True)):
        a = np.asarray(got)
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"{name}: {e.dtype}{list(e.shape)} was expected, not {a.dtype}{list(a.shape)}"
        if e.dtype.kind != "f" or _is_exact(program, name):
            if not np.array_equal(e, a, equal_nan=e.dtype.kind == "f"):
                return f"{name}: {_first_difference(e, a, e != a)}"
            continue
        if has_inf:
            misplaced = np.isfinite(e) != np.isfinite(a)
            if misplaced.any() and _cancels_infinities(program, name):
                misplaced &= ~np.isnan(e)
        else:
            misplaced = (np.isnan(e) != np.isnan(a)) | (np.isinf(e) | np.isinf(a)) & (e != a)
            misplaced &= ~(np.isnan(e) & np.isnan(a))
        if misplaced.any():
            return f"{name}: NaN or inf in another place: {_first_difference(e, a, misplaced)}"
        finite = np.isfinite(e)
        if not finite.any():
            continue
        if exact is None:
            exact = evaluate(program, wide=True)
        reference = exact[i]
        finite &= np.isfinite(reference)
        error = np.where(finite, np.abs(a - reference), 0.0)
        own = np.where(finite, np.abs(e - reference), 0.0)
        info = np.finfo(e.dtype)
        magnitude = np.abs(np.where(finite, reference, 0.0)).max(initial=0.0)
        bound = 4.0 * own.max(initial=0.0) + ULPS * float(info.eps) * magnitude + 8.0 * float(info.tiny)
        if error.max(initial=0.0) <= bound:
            continue
        if allowed is None:
            allowed = noise(program)
        bound += NOISE_FACTOR * np.where(finite & np.isfinite(allowed[i]), allowed[i], 0.0).max(initial=0.0)
        if error.max(initial=0.0) > bound:
            return (
                f"{name}: error {error.max():.2e} against {WIDE}, where {bound:.2e} is allowed and NumPy makes "
                f"{own.max():.2e}: {_first_difference(reference, a, error == error.max())}"
            )
    return None


_ADDS = re.compile(r"[-+@]|sum|add|subtract|mean|var|std|dot|inner|einsum|mul\(|norm|trace|softmax")
"""What adds: NaN from ∞·0 or 0/0 alone stays where it is."""


def _cancels_infinities(program: Program, output: str) -> bool:
    """Whether some step that an output needs makes NaN of operands without one, such as inf − inf.

    What is left of it depends on the order of evaluation: ∞·a + ∞·b is ∞·(a + b), and its tanh is finite.
    """
    part = replace(program, outputs=(output,)).pruned()
    names = [i.name for i in part.inputs] + [s.name for s in part.steps]
    values = dict(zip(names, evaluate(replace(part, outputs=tuple(names))), strict=True))

    def has_nan(name: str) -> bool:
        return values[name].dtype.kind == "f" and bool(np.isnan(values[name]).any())

    made = [s for s in part.steps if has_nan(s.name) and not any(has_nan(x) for x in s.arguments)]
    return any(_ADDS.search(s.expression) for s in made)


def _first_difference(expected: Array, actual: Array, where: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(where)[0]) if np.ndim(where) else ()
    return f"at {list(at)} {expected[at]!r} was expected, not {actual[at]!r} ({int(np.sum(where))} of {expected.size})"


def minimise(program: Program, fails: Callable[[Program], bool], *, attempts: int = 60) -> Program:
    """A smaller program that still fails: fewer outputs, and steps replaced by inputs of the same type.

    ``fails`` is asked at most ``attempts`` times. Deterministic.
    """
    left = attempts

    def ask(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        try:
            evaluate(candidate)
        except Exception:  # not a program any more (a data-dependent shape, a singular index): no candidate
            return False
        return fails(candidate)

    size = len(program.outputs) // 2
    while size >= 1:
        for start in range(0, len(program.outputs), size):
            kept = (*program.outputs[:start], *program.outputs[start + size :])
            if kept and left > 0 and ask(candidate := replace(program, outputs=kept).pruned()):
                program = candidate
                break
        else:
            size //= 2
            continue
        size = min(size, len(program.outputs) // 2)
    for step in reversed(program.steps):
        # The output may as well be an earlier value.
        if left > 0 and step.name not in program.outputs and len(program.outputs) == 1:
            candidate = replace(program, outputs=(step.name,)).pruned()
            if any(s.name == step.name for s in program.steps) and ask(candidate):
                program = candidate
    for step in tuple(program.steps):
        if left <= 0:
            break
        if step.name in program.outputs or all(s.name != step.name for s in program.steps):
            continue
        made = _as_input(program, step)
        candidate = replace(
            program, inputs=(*program.inputs, made), steps=tuple(s for s in program.steps if s.name != step.name)
        ).pruned()
        if ask(candidate):
            program = candidate
    return program


def _as_input(program: Program, step: Step) -> Input:
    """An input with the value of a step, or with random values of its type and range where it is large."""
    value = evaluate(replace(program, outputs=(step.name,)).pruned())[0]
    if value.size <= 24:
        literal = np.array2string(value, separator=", ", threshold=1 << 30, floatmode="unique", max_line_width=100)
        literal = re.sub(r"\bnan\b", "np.nan", re.sub(r"\binf\b", "np.inf", literal)).replace("\n", " ")
        shape = f".reshape({value.shape})" if value.size == 0 else ""
        return Input(step.name, f"np.array({literal}, np.{value.dtype.name}){shape}")
    finite = value[np.isfinite(value)]
    low, high = (finite.min(), finite.max()) if finite.size else (-1, 1)
    expression = random_expression(value.shape, value.dtype.name, 1, low, high)
    if finite.size < value.size:
        chance = f"np.random.default_rng(2).random({value.shape}) < {1 - finite.size / value.size:.3f}"
        bad = "np.nan" if np.isnan(value).any() else "np.inf"
        expression = f"np.where({chance}, np.{value.dtype.name}({bad}), {expression})"
    return Input(step.name, expression)


def random_expression(shape: tuple[int, ...], dtype: str, seed: int, low: float, high: float) -> str:
    """The Python expression of a random array between two bounds (included for integers)."""
    rng = f"np.random.default_rng({seed})"
    if dtype == "bool":
        return f"np.asarray({rng}.integers(0, 2, {shape}), bool)"
    if not dtype.startswith("float"):
        low = max(low, np.iinfo(dtype).min)
        return f"np.asarray({rng}.integers({int(low)}, {int(high)}, {shape}, np.{dtype}, endpoint=True))"
    return f"np.asarray({rng}.uniform({float(low)}, {float(high)}, {shape}), np.{dtype})"
