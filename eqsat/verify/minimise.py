"""Smaller programs that fail alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from eqsat.verify.programs import Input, Program, Step, evaluate, random_expression


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
    for step in reversed(program.steps):
        if left <= 0:
            break
        if step not in program.steps:
            continue
        if step.changes:
            steps = tuple(s for s in program.steps if s is not step)
            candidate = replace(program, steps=steps).pruned()
        elif step.name in program.outputs:
            continue
        else:
            made = _as_input(program, step)
            steps = tuple(s for s in program.steps if s is not step)
            candidate = replace(program, inputs=(*program.inputs, made), steps=steps).pruned()
        if ask(candidate):
            program = candidate
    return program


def _as_input(program: Program, step: Step) -> Input:
    """An input with the value of a step, or with random values of its type and range where it is large."""
    before = program.steps[: program.steps.index(step) + 1]
    value = evaluate(replace(program, steps=before, outputs=(step.name,)).pruned())[0]
    if value.size <= 24:
        literal = np.array2string(value, separator=", ", threshold=1 << 30, floatmode="unique", max_line_width=100)
        literal = re.sub(r"\bnan\b", "np.nan", re.sub(r"\binf\b", "np.inf", literal)).replace("\n", " ")
        literal = re.sub(r"np\.(nan|inf)j", r"np.\1*1j", literal)
        shape = f".reshape({value.shape})" if value.size == 0 else ""
        return Input(step.name, f"np.array({literal}, np.{value.dtype.name}){shape}")
    finite = np.abs(value[np.isfinite(value)]) if value.dtype.kind == "c" else value[np.isfinite(value)]
    low, high = (finite.min(), finite.max()) if finite.size else (-1, 1)
    expression = random_expression(value.shape, value.dtype.name, 1, low, high)
    if finite.size < value.size:
        chance = f"np.random.default_rng(2).random({value.shape}) < {1 - finite.size / value.size:.3f}"
        bad = "np.nan" if np.isnan(value).any() else "np.inf"
        expression = f"np.where({chance}, np.{value.dtype.name}({bad}), {expression})"
    return Input(step.name, expression)
