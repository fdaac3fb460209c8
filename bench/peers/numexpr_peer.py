"""numexpr: elementwise expressions over blocks that stay in cache."""

from __future__ import annotations

from typing import Any

import numexpr
import numpy as np

from bench.peers import Run
from bench.workload import Inputs, Workload

EXPRESSIONS = {
    "gelu_tanh": "half * x * (one + tanh(c * (x + d * x * x * x)))",
    "multiply_add": "a * b + c",
    "power": "x ** y",
    "fixed_power": "x ** exponent",
    "relu_relu": "where(where(x > zero, x, zero) > zero, where(x > zero, x, zero), zero)",
}
# Constants as float32: Python floats would turn the whole expression into float64.
CONSTANTS = {
    "gelu_tanh": {"half": 0.5, "one": 1.0, "c": (2.0 / np.pi) ** 0.5, "d": 0.044715},
    "relu_relu": {"zero": 0.0},
}


class NumexprPeer:
    name = "numexpr"
    version = numexpr.__version__

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        expression = EXPRESSIONS.get(workload.kind)
        if expression is None:
            return None
        for name, value in workload.options.items():
            expression = expression.replace(name, repr(value))
        constants = CONSTANTS.get(workload.kind, {})
        names = {**inputs, **{name: np.float32(value) for name, value in constants.items()}}
        return lambda: numexpr.evaluate(expression, local_dict=names, global_dict={})

    def result(self, value: Any) -> Any:
        return value


def make(threads: int) -> NumexprPeer:
    numexpr.set_num_threads(threads)
    return NumexprPeer()
