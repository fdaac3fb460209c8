"""Miscompilations: programs beside what a faulty optimizer makes of them, which verification must refuse to use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from eqsat.compiled import Compiled
from eqsat.frontends.pytree import ArgSpec
from eqsat.frontends.trace import trace

RNG = np.random.default_rng(12)
X = RNG.standard_normal((5, 7)).astype(np.float32)
Y = RNG.standard_normal((5, 7)).astype(np.float32)
S = RNG.standard_normal((6, 6)).astype(np.float32)
T = RNG.standard_normal((6, 6)).astype(np.float32)
D = RNG.standard_normal((5, 7))
POSITIVE = np.abs(X) + np.float32(0.5)
INTS = RNG.integers(-50, 50, (5, 7))
INT32 = RNG.integers(2**29, 2**31 - 1, (3, 40)).astype(np.int32)
LARGE = RNG.integers(2**61, 2**62, (5, 7))
IDS = np.array([3, 0, 4, 1])
NAN = np.array([1.0, np.nan, -2.0, 0.5], np.float32)
INF = np.array([1.0, np.inf, -np.inf, 0.5], np.float32)


@dataclass(frozen=True)
class Miscompiled:
    """``wrong`` is compiled where ``program`` was asked for, with these arguments and options."""

    name: str
    program: Callable[..., Any]
    wrong: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While this holds, whatever is searched for is the wrong program; verification knows the right one."""
        search = Compiled.search

        def of_another(compiled: Compiled, *args: Any) -> Any:
            right = compiled.traced
            const = dict(self.options).get("const", ())
            compiled.traced = trace(self.wrong, self.arguments, {}, const=const, spec=ArgSpec(self.wrong))
            try:
                return search(compiled, *args)
            finally:
                compiled.traced = right

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compiled, "search", of_another)
            yield


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _norm(x: Any, eps: float) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


MISCOMPILED = (
    Miscompiled("swapped operands", lambda x, y: x - y, lambda x, y: y - x, (X, Y)),
    Miscompiled("a constant off by 1e-4", lambda x: 2 * np.exp(x), lambda x: 2.0002 * np.exp(x), (X,)),
    Miscompiled("a constant off by 1e-4, double", lambda x: x * 3, lambda x: x * 3.0003, (D,)),
    Miscompiled("a constant of float32 in a double", lambda x: x * 0.1, lambda x: x * float(np.float32(0.1)), (D,)),
    Miscompiled("log as sqrt", lambda x: np.log(x).sum(), lambda x: np.sqrt(x).sum(), (POSITIVE,)),
    Miscompiled("log as sqrt, one by one", lambda x: np.log(x), lambda x: np.sqrt(x), (POSITIVE,)),
    Miscompiled("sqrt without its argument's sign", lambda x: np.sqrt(x), lambda x: np.sqrt(np.abs(x)), (X,)),
    Miscompiled("wrong below -10", lambda x: np.maximum(x, -10), lambda x: x + 0, (X * np.float32(20),)),
    Miscompiled("wrong above 1000", lambda x: np.minimum(x, 1000), lambda x: x + 0, (X * np.float32(5000),)),
    Miscompiled("wrong for negatives", lambda x: np.abs(x), lambda x: x + 0, (X,)),
    Miscompiled("wrong at zero", lambda x: x / x, lambda x: x * 0 + 1, (np.array([0.0, 1.0, 2.0], np.float32),)),
    Miscompiled("right near zero", lambda x: np.tanh(x), lambda x: x + 0, (X,)),
    Miscompiled("right near zero, to the third power", lambda x: np.sin(x), lambda x: x - x * x * x / 6, (X,)),
    Miscompiled(
        "right for large values", lambda x: np.log1p(np.exp(x)), lambda x: np.maximum(x, 0), (X * np.float32(9),)
    ),
    Miscompiled("loses a NaN", lambda x: x * 0 + 1, lambda x: np.ones_like(x), (NAN,)),
    Miscompiled("a NaN that is none", lambda x: np.isnan(x), lambda x: x < x, (NAN,)),
    Miscompiled("an infinity that is finite", lambda x: np.exp(x), lambda x: np.exp(np.minimum(x, 80)), (INF,)),
    Miscompiled(
        "wrong beside a NaN that may be lost",
        lambda x: x * 0 + 1,
        lambda x: x * 0 + 1.001,
        (NAN,),
        (("numerics", "approximates"),),
    ),
    Miscompiled(
        "wrong behind a NaN that may be lost",
        lambda x: np.where(np.isnan(x), 0, x * 2),
        lambda x: np.where(np.isnan(x), 0, x * 2.001),
        (NAN,),
        (("numerics", "approximates"),),
    ),
    Miscompiled("fmax for maximum", lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, x, 0), (NAN,)),
    Miscompiled("the wrong axis of a square", lambda x: x.sum(axis=1), lambda x: x.sum(axis=0), (S,)),
    Miscompiled("softmax of the wrong axis", lambda x: _softmax(x, 1), lambda x: _softmax(x, 0), (S,)),
    Miscompiled("n - 1 for n", lambda x: x.var(axis=1), lambda x: x.var(axis=1, ddof=1), (X,)),
    Miscompiled("an epsilon forgotten", lambda x: _norm(x, 1e-2), lambda x: _norm(x, 0.0), (X,)),
    Miscompiled("factors of squares swapped", lambda x, y: x @ y, lambda x, y: y @ x, (S, T)),
    Miscompiled("a factor transposed", lambda x, y: x @ y, lambda x, y: x.T @ y, (S, T)),
    Miscompiled("a product transposed", lambda x, y: x @ y, lambda x, y: (x @ y).T, (S, T)),
    Miscompiled("the last term of a sum lost", lambda x, y: x @ y, lambda x, y: x[:, :-1] @ y[:-1], (S, T)),
    Miscompiled("a slice off by one", lambda x: x[1:] * 2, lambda x: x[:-1] * 2, (X,)),
    Miscompiled("a reversal left out", lambda x: x[::-1] + 1, lambda x: x + 1, (X,)),
    Miscompiled("a square not transposed", lambda x: x.T * 2, lambda x: x * 2, (S,)),
    Miscompiled("columns for rows", lambda x, y: x + y, lambda x, y: x + y[:, None], (S, S[0])),
    Miscompiled("branches swapped", lambda x, y: np.where(x > 0, x, y), lambda x, y: np.where(x > 0, y, x), (X, Y)),
    Miscompiled("a cross term lost", lambda x, y: (x + y) ** 2, lambda x, y: x * x + y * y, (X, Y)),
    Miscompiled("equal is less", lambda n, k: n < k, lambda n, k: n <= k, (INTS, INTS.copy())),
    Miscompiled(
        "the last of equal ones", lambda n: np.argmax(n), lambda n: 3 - np.argmax(n[::-1]), (np.array([1, 5, 5, 2]),)
    ),
    Miscompiled("floors to the nearest", lambda x: np.floor(x), lambda x: np.rint(x), (X,)),
    Miscompiled("division towards zero", lambda n: n // 3, lambda n: np.trunc(n / 3).astype(np.int64), (INTS,)),
    Miscompiled(
        "integers through doubles", lambda n: n + 1, lambda n: (n.astype(np.float64) + 1).astype(np.int64), (LARGE,)
    ),
    Miscompiled(
        "a sum of int32 that wraps",
        lambda n: n.sum(axis=1, dtype=np.int64),
        lambda n: n.sum(axis=1, dtype=np.int32).astype(np.int64),
        (INT32,),
    ),
    Miscompiled(
        "a sum in float32 for a double",
        lambda x: x.sum(),
        lambda x: x.astype(np.float32).sum().astype(np.float64),
        (D,),
    ),
    Miscompiled(
        "a wrong rounding of doubles", lambda x: x * 1, lambda x: x.astype(np.float32).astype(np.float64), (D,)
    ),
    Miscompiled(
        "one element of many",
        lambda x: x * 2,
        lambda x: x * 2 + (np.arange(7) == 6) * (np.arange(5) == 4)[:, None],
        (X,),
    ),
    Miscompiled(
        "a small value beside large ones",
        lambda x, y: np.concatenate([x.ravel() * 1e6, y.ravel()]),
        lambda x, y: np.concatenate([x.ravel() * 1e6, y.ravel() * 1.05]),
        (X, Y),
    ),
    Miscompiled("a gather of neighbours", lambda x, i: x[i], lambda x, i: x[(i + 1) % 5], (X, IDS)),
    Miscompiled(
        "a negative index as none", lambda x, i: x[i], lambda x, i: x[np.maximum(i, 0)], (X, np.array([0, -1, -2]))
    ),
    Miscompiled("indices swapped", lambda x, i, j: x[i, j], lambda x, i, j: x[j, i], (S, IDS, IDS[::-1].copy())),
    Miscompiled("parts in another order", lambda x, y: np.stack([x, y]), lambda x, y: np.stack([y, x]), (X, Y)),
    Miscompiled("results in another order", lambda x, y: (x + 1, y + 1), lambda x, y: (y + 1, x + 1), (X, Y)),
    Miscompiled("a running sum that starts late", lambda x: np.cumsum(x), lambda x: np.cumsum(x) - x, (X[0],)),
    Miscompiled("sorted the other way", lambda x: np.sort(x), lambda x: np.sort(x)[:, ::-1], (X,)),
    Miscompiled(
        "equal keys in another order",
        lambda n: np.argsort(n, kind="stable"),
        lambda n: 3 - np.argsort(n[::-1], kind="stable"),
        (np.array([5, 1, 5, 1]),),
    ),
    Miscompiled(
        "a weight of another argument",
        lambda x, w, v: x @ w + v,
        lambda x, w, v: x @ v + w,
        (S, T, S[::-1].copy()),
        (("const", ("w", "v")),),
    ),
    Miscompiled(
        "a weight folded in the wrong order",
        lambda x, w, v: (x @ w) @ v,
        lambda x, w, v: x @ (v @ w),
        (S, T, S[::-1].copy()),
        (("const", ("w", "v")),),
    ),
    Miscompiled(
        "a mask of the wrong diagonal",
        lambda x: np.where(np.tril(np.ones((6, 6), bool)), x, 0),
        lambda x: np.where(np.tril(np.ones((6, 6), bool), -1), x, 0),
        (S,),
    ),
)
