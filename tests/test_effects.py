"""What a function's code shows of effects: only functions without any are run to be timed."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.verify.effects import effect

calls: list[int] = []
scale = 2.0


class Counter:
    count = 0


counter = Counter()


@dataclass
class Layer:
    w: Any

    def apply(self, x: Any) -> Any:
        return x @ self.w


@dataclass
class Loud:
    w: Any

    def apply(self, x: Any) -> Any:
        print("applied")
        return x @ self.w


def helper(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return np.tanh(y) * math.pi

    return sum(inner(x) for _ in range(3)) * scale


def prints(x: Any) -> Any:
    print(x)
    return x


def through_a_helper(x: Any) -> Any:
    return prints(x) + 1


def appends(x: Any) -> Any:
    calls.append(1)
    return x


def sets_a_global(x: Any) -> Any:
    global scale
    scale = 3.0
    return x


def sets_an_attribute(x: Any) -> Any:
    counter.count += 1
    return x


def counting() -> Callable[..., Any]:
    seen = 0

    def f(x: Any) -> Any:
        nonlocal seen
        seen += 1
        return x

    return f


def checked(x: Any) -> Any:
    if x.ndim != 2:
        raise ValueError("a matrix")
    return x.T


@pytest.mark.parametrize(
    "fn",
    [
        helper,
        checked,
        np.tanh,
        eqsat.optimize(helper),
        functools.partial(np.sum, axis=0),
        lambda x: np.linalg.svd(x)[1],
        lambda x: eqsat.nn.softmax(eqsat.opaque(np.sort)(x)),
        lambda x: eqsat.scan(lambda c, row: (c + row, None), x[0], x),
        lambda x: sorted(range(3), key=lambda i: -i)[0] * x,
    ],
)
def test_computing_is_no_effect(fn: Callable[..., Any]) -> None:
    assert effect(fn) == ""


@pytest.mark.parametrize(
    ("fn", "word"),
    [
        (prints, "print"),
        (through_a_helper, "print"),
        (eqsat.optimize(through_a_helper), "print"),
        (appends, "list"),
        (sets_a_global, "scale"),
        (sets_an_attribute, "Counter"),
        (counting(), "seen"),
        (functools.partial(lambda log, x: log(x), print), "print"),
        (lambda x: x + np.random.normal(size=3), "random"),
        (lambda x: np.save("x.npy", x), "save"),
        (lambda x: x.tofile("x"), "tofile"),
        (lambda x: os.remove("x"), "remove"),
        (lambda x: input(), "input"),
    ],
)
def test_effects_are_named(fn: Callable[..., Any], word: str) -> None:
    assert word in effect(fn)


def test_what_arguments_bring_along_counts() -> None:
    def f(layer: Any, x: Any) -> Any:
        return layer.apply(x)

    assert effect(f, [Layer]) == "" and "print" in effect(f, [Loud])
    assert effect(f, [np.tanh, 0.5, "relu", None]) == "" and "print" in effect(f, [prints])
