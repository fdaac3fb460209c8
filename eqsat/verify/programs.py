"""Random whole programs as data: printed, and run with NumPy.

A program is straight-line Python text over numbered values ``v0, v1, …``: what is printed for the user is
what was run. Nothing here imports Hypothesis; :mod:`eqsat.verify.strategies` draws programs.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqsat.ir.defined import defined
from eqsat.verify.stand_ins import LOOPS, NN, WIDE, WIDE_COMPLEX, Widened

Array = NDArray[Any]
Function = Callable[..., tuple[Array, ...]]
Optimizer = Callable[[Function], Function]

VALUE = re.compile(r"\bv\d+\b")


@dataclass(frozen=True)
class Input:
    """An input: its name, the Python expression that makes it, and whether the program captures it as a constant."""

    name: str
    expression: str
    captured: bool = False


@dataclass(frozen=True)
class Step:
    """``name = expression``, or a statement that writes to ``name``. ``op`` names the operator for coverage.

    ``discrete``: a jump of the function lies between nearby arguments, which therefore are exact here.
    ``exact``: the value is the same in every evaluation order and precision.
    ``changes``: of a statement, the values whose elements it may change, ``name`` among them; others see it through
    memory that they share. ``before``: definitions of functions that the expression uses.
    """

    name: str
    op: str
    expression: str
    discrete: bool = False
    exact: bool = False
    changes: tuple[str, ...] = ()
    before: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Values that the step reads, or writes to, in order of first use."""
        return tuple(dict.fromkeys(VALUE.findall(f"{self.before} {self.expression}")))

    @property
    def text(self) -> str:
        """The step as Python statements."""
        statement = self.expression if self.changes else f"{self.name} = {self.expression}"
        return f"{self.before}\n{statement}" if self.before else statement


@dataclass(frozen=True)
class Program:
    """A straight-line program over named values, with the data that it runs on.

    ``outputs``: what is returned, and parameters that are looked at after the call.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.inputs if not i.captured)

    @property
    def returned(self) -> tuple[str, ...]:
        return tuple(name for name in self.outputs if name not in self.parameters)

    @property
    def changed(self) -> frozenset[str]:
        """Values that are written to, or that share memory with one."""
        return frozenset(name for s in self.steps for name in s.changes)

    def is_exact(self, name: str) -> bool:
        """Whether a value is the same in every evaluation order, also after what is written to it."""
        return all(s.exact for s in self.steps if s.name == name or name in s.changes)

    def arrays(self) -> dict[str, Array]:
        """Fresh arrays for every input, the same each time."""
        return {i.name: np.asarray(eval(i.expression, {"np": np})) for i in self.inputs}

    def body(self) -> str:
        """Source text of the function ``program``."""
        lines = [line for s in self.steps for line in s.text.split("\n")]
        lines.append(f"return {', '.join(self.returned)}{',' if len(self.returned) == 1 else ''}".rstrip())
        return "\n    ".join([f"def program({', '.join(self.parameters)}):", *lines])

    def function(self, names: Mapping[str, object], captured: Mapping[str, Array], *, wide: bool = False) -> Function:
        """The program as a Python function of its parameters; ``names`` are what it calls besides NumPy."""
        text = self.body()
        scope: dict[str, Any] = {**modules(), **operators(), **names}
        if wide:
            text = with_numbers(text, WIDE, WIDE_COMPLEX)
            scope |= {name: Widened(module) for name, module in modules().items()}
            own = Widened(SimpleNamespace(**operators()))
            scope |= {name: getattr(own, name) for name in operators()}
        for i in self.inputs:
            if i.captured:
                scope[i.name] = captured[i.name]
        exec(compile(text, "<random program>", "exec"), scope)
        function: Function = scope["program"]
        return function

    def source(self, options: str = "") -> str:
        """A Python script to paste: data, program, and its comparison with NumPy; ``options`` as they are written in a
        call, of ``optimize``."""
        body = self.body()
        lines = ["import numpy as np"]
        if "special." in body:
            lines.append("from scipy import special")
        if "ml_dtypes." in body:
            lines.append("import ml_dtypes")
        lines += ["", "import eqsat"]
        if "nn." in body:
            lines.append("from eqsat import nn")
        lines += [f"from {d.module} import {d.attribute} as {d.name}" for _, d in defined() if f"{d.name}(" in body]
        lines += ["", *(f"{i.name} = {i.expression}" for i in self.inputs), "", "", body, "", ""]
        copies = ", ".join(f"{name}.copy()" for name in self.parameters)
        lines.append(f"one, two = [({copies}{',' if len(self.parameters) == 1 else ''}) for _ in range(2)]")
        optimized = f"eqsat.optimize(program{options and ', '}{options})"
        lines += [
            f"expected, actual = program(*one) or (), {optimized}(*two) or ()",
            "for e, a in zip((*expected, *one), (*actual, *two)):",
            "    print(np.shape(e), np.shape(a), np.abs(np.subtract(e, a, dtype=complex)).max(initial=0))",
        ]
        return "\n".join(lines) + "\n"

    def pruned(self) -> Program:
        """Without steps and inputs that no output needs."""
        needed = set(self.outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if needed.intersection(step.changes or (step.name,)):
                steps.append(step)
                needed.update(step.arguments)
        inputs = tuple(i for i in self.inputs if i.name in needed)
        return Program(inputs, tuple(reversed(steps)), self.outputs)


def modules() -> dict[str, Any]:
    """The libraries that programs call."""
    from scipy import special

    found: dict[str, Any] = {"np": np, "special": special}
    with contextlib.suppress(ImportError):
        import ml_dtypes

        found["ml_dtypes"] = ml_dtypes
    return found


def operators() -> dict[str, Any]:
    """The operators that users defined."""
    return {definition.name: definition.call for _, definition in defined()}


REFERENCE: dict[str, object] = {"nn": NN, "eqsat": LOOPS}
"""What else they call, in NumPy."""


def with_numbers(text: str, real: np.dtype[Any], compound: np.dtype[Any]) -> str:
    """The text of a program with these types for all floats and complex numbers."""
    text = re.sub(r"np\.float(16|32|64)\b", f"np.{real.type.__name__}", text)
    return re.sub(r"np\.complex(64|128)\b", f"np.{compound.type.__name__}", text)


def in_numbers(array: Array, real: np.dtype[Any], compound: np.dtype[Any]) -> Array:
    """An array of floats or complex numbers in these types; others as they are."""
    kinds = {"f": real, "c": compound}
    return array.astype(kinds[array.dtype.kind]) if array.dtype.kind in kinds else array


def evaluate(program: Program, *, wide: bool = False) -> tuple[Array, ...]:
    """The outputs by NumPy, in the program's types or in ``WIDE`` ones."""
    arrays = program.arrays()
    if wide:
        arrays = {name: in_numbers(array, WIDE, WIDE_COMPLEX) for name, array in arrays.items()}
    function = program.function(REFERENCE, arrays, wide=wide)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned = function(*(arrays[p] for p in program.parameters)) or ()
    found = arrays | dict(zip(program.returned, returned, strict=True))
    return tuple(np.asarray(found[name]) for name in program.outputs)


def random_expression(shape: tuple[int, ...], dtype: str, seed: int, low: float, high: float) -> str:
    """The Python expression of a random array between two bounds (included for integers)."""
    rng = f"np.random.default_rng({seed})"
    if dtype == "bool":
        return f"np.asarray({rng}.integers(0, 2, {shape}), bool)"
    if dtype.startswith("complex"):
        other = rng.replace(str(seed), str(seed + 1000))
        parts = [f"{r}.uniform({float(low)}, {float(high)}, {shape})" for r in (rng, other)]
        return f"np.asarray({parts[0]} + 1j * {parts[1]}, np.{dtype})"
    if not dtype.startswith("float"):
        low = max(low, np.iinfo(dtype).min)
        return f"np.asarray({rng}.integers({int(low)}, {int(high)}, {shape}, np.{dtype}, endpoint=True))"
    return f"np.asarray({rng}.uniform({float(low)}, {float(high)}, {shape}), np.{dtype})"
