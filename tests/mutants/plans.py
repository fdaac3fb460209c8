"""Faults in index maps, folded constants, plans, tracing and references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat.compiled
import eqsat.plan.lower
import eqsat.plan.masks
from eqsat.frontends import reductions
from eqsat.ir import views
from eqsat.ir.table import OPS
from eqsat.plan import tabulate
from eqsat.plan.memory import Lifetime
from eqsat.plan.plan import KernelStep, Plan
from eqsat_backends.numba_cpu import backend
from tests.mutants.fault import IDS, LONG, RNG, UNFUSED, UNSEEN, Apply, D, Fault, P, Q, S, T, X

# index maps


def _in_search(apply: Apply) -> Apply:
    """The fault is there while the program is searched for, and not while it is traced."""

    def around(patch: pytest.MonkeyPatch) -> None:
        sound = eqsat.compiled.Compiled.search

        def search(self: Any, *args: Any) -> Any:
            with pytest.MonkeyPatch.context() as inner:
                apply(inner)
                return sound(self, *args)

        patch.setattr(eqsat.compiled.Compiled, "search", search)

    return around


def _composes_early(patch: pytest.MonkeyPatch) -> None:
    sound = views.compose

    def compose(inner: views.ViewMap, outer: views.ViewMap) -> views.ViewMap | None:
        both = sound(inner, outer)
        return replace(both, offset=both.offset - 1) if both is not None and both.offset > 0 else both

    patch.setattr(views, "compose", compose)


def _slices_forwards(patch: pytest.MonkeyPatch) -> None:
    sound = views.strided

    def strided(shape: Any, strides: Any, offset: int = 0) -> views.ViewMap:
        offset += sum((n - 1) * t for t, n in zip(strides, shape, strict=True) if t < 0)
        return sound(shape, [abs(t) for t in strides], offset)

    patch.setattr(views, "strided", strided)


def _transposes_back(patch: pytest.MonkeyPatch) -> None:
    sound = views.transpose
    patch.setattr(
        views,
        "transpose",
        lambda shape, order: sound(shape, np.argsort(order).tolist()) if _cube(shape) else sound(shape, order),
    )


def _cube(shape: Sequence[int]) -> bool:
    return len(set(shape)) == 1


def _broadcasts_left(patch: pytest.MonkeyPatch) -> None:
    sound = views.broadcast

    def broadcast(shape: Any, target: Any) -> views.ViewMap:
        if len(shape) == 1 and len(target) == 2 and shape[0] == target[0] == target[1]:
            return views.strided(target, (1, 0))
        return sound(shape, target)

    patch.setattr(views, "broadcast", broadcast)


def _parts_reversed(patch: pytest.MonkeyPatch) -> None:
    sound = eqsat.plan.lower.part_offsets
    patch.setattr(eqsat.plan.lower, "part_offsets", lambda types, axis: sound(types, axis)[::-1])


def _pad_early(patch: pytest.MonkeyPatch) -> None:
    sound = eqsat.plan.lower.pad_offset
    patch.setattr(eqsat.plan.lower, "pad_offset", lambda shape, attrs: sound(shape, attrs) - 1)


def _part_late(patch: pytest.MonkeyPatch) -> None:
    sound = eqsat.plan.lower._Lowering._guarded

    def late(self: Any, node: Any, axis: int, bounds: tuple[int, int], *rest: Any) -> Any:
        return sound(self, node, axis, (bounds[0], bounds[1] + 1), *rest)

    patch.setattr(eqsat.plan.lower._Lowering, "_guarded", late)


def _table_untransposed(patch: pytest.MonkeyPatch) -> None:
    sound = eqsat.plan.lower.strides_around
    patch.setattr(
        eqsat.plan.lower,
        "strides_around",
        lambda steps, axis, width: tuple(0 if s == 1 else s for s in sound(steps, axis, width)),
    )


# constants


def _constants(change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Apply:
    """The values of folded constants are changed."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = eqsat.compiled.Compiled._load

        def load(self: Any, *args: Any) -> None:
            with pytest.MonkeyPatch.context() as inner:
                evaluate = eqsat.compiled.evaluate_nodes
                inner.setattr(eqsat.compiled, "evaluate_nodes", lambda *a, **k: change(evaluate(*a, **k)))
                sound(self, *args)

        patch.setattr(eqsat.compiled.Compiled, "_load", load)

    return apply


def _in_single(values: list[np.ndarray]) -> list[np.ndarray]:
    return [v.astype(np.float32).astype(v.dtype) if v.dtype == np.float64 else v for v in values]


def _of_each_other(values: list[np.ndarray]) -> list[np.ndarray]:
    places: dict[Any, list[int]] = {}
    for n, v in enumerate(values):
        places.setdefault((v.shape, v.dtype), []).append(n)
    other = list(values)
    for group in places.values():
        for at, to in zip(group, group[1:] + group[:1], strict=True):
            other[to] = values[at]
    return other


# plans


def _plans(change: Callable[[Plan], Plan]) -> Apply:
    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = backend.NumbaCpuBackend.emit
        patch.setattr(backend.NumbaCpuBackend, "emit", lambda self, plan, *args: sound(self, change(plan), *args))

    return apply


def _steps(change: Callable[[list[Any]], list[Any]]) -> Apply:
    """The compiled steps of every program are changed."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = backend.NumbaCpuBackend.emit

        def emit(self: Any, *args: Any) -> dict[str, Any]:
            made = sound(self, *args)
            return {**made, "steps": change(made["steps"])}

        patch.setattr(backend.NumbaCpuBackend, "emit", emit)

    return apply


def _operands_swapped(plan: Plan) -> Plan:
    """The first two inputs of one type that a step reads change places."""
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            given = [n for n, t in enumerate(step.tensors) if n not in step.group.outputs]
            pairs = [
                (m, n)
                for m in given
                for n in given
                if m < n and plan.types[step.tensors[m]] == plan.types[step.tensors[n]]
            ]
            if pairs:
                m, n = pairs[0]
                tensors = list(step.tensors)
                tensors[m], tensors[n] = tensors[n], tensors[m]
                step = replace(step, tensors=tuple(tensors))
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def _one_place(patch: pytest.MonkeyPatch) -> None:
    """All intermediates lie at the start of the arena."""
    sound = tabulate.assign
    patch.setattr(tabulate, "assign", lambda lives: (dict.fromkeys(lives, 0), sound(lives)[1]))


def _die_early(patch: pytest.MonkeyPatch) -> None:
    sound = tabulate.lifetimes

    def lifetimes(steps: Any, nbytes: Mapping[int, int]) -> dict[int, Lifetime]:
        return {n: replace(life, last=max(life.first, life.last - 1)) for n, life in sound(steps, nbytes).items()}

    patch.setattr(tabulate, "lifetimes", lifetimes)


def _mask_narrow(patch: pytest.MonkeyPatch) -> None:
    """The columns that a block of masked rows sees end too early."""
    sound = eqsat.plan.masks.limits_of

    def limits(keep: np.ndarray) -> Any:
        found, exact = sound(keep)
        return [replace(limit, offset=limit.offset - 32 * limit.upper) for limit in found], exact

    patch.setattr(eqsat.plan.masks, "limits_of", limits)


def _scores_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Scores that a mask is added to are not looked at before what it hides is left out."""
    patch.setattr(eqsat.plan.masks, "maxima", lambda *given: ())


# tracing and references


def _mean_of_one_less(patch: pytest.MonkeyPatch) -> None:
    sound = reductions.scalar
    patch.setattr(
        reductions,
        "scalar",
        lambda value, like: sound(value - 1 if isinstance(value, int) and value > 2 else value, like),
    )


def _reference(op: str, change: Callable[[np.ndarray], np.ndarray]) -> Apply:
    def apply(patch: pytest.MonkeyPatch) -> None:
        sound = OPS[op]
        patch.setitem(OPS, op, replace(sound, reference=lambda arrays, attrs: change(sound.reference(arrays, attrs))))

    return apply


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = np.where(np.tril(np.ones((300, 300), bool)), q @ k.swapaxes(-1, -2) / 4, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def _mask_added(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / 4 + np.where(np.tril(np.ones((300, 300), bool)), 0, -np.inf).astype(np.float32)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def _products(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = np.tanh(w @ x)  # a block of rows of the result reads all of x
    return x


PLAN_FAULTS = (
    Fault("views compose one element early", _in_search(_composes_early), lambda x: x.T[1:, 1:].sum(axis=0), (X,)),
    Fault(
        "parts are put in reverse order", _parts_reversed, lambda x, y: np.concatenate([np.exp(x), np.sin(y)]), (S, T)
    ),
    Fault("a padded interior lies early", _pad_early, lambda x: np.pad(x @ x.T, 1), (X,)),
    Fault("a part begins late", _part_late, lambda x: np.roll(x, 1, 1) * x, (X,)),
    Fault("a gathered table stands still along its rows", _table_untransposed, lambda x, i: x[i] + 1, (X, IDS)),
    Fault(
        "constants are folded in float32",
        _constants(_in_single),
        lambda x, w: x * (w * 3 + 1),
        (D, D[::-1].copy()),
        (("const", ("w",)),),
    ),
    Fault(
        "constants are folded transposed",
        _constants(lambda vs: [v.T.copy() if v.ndim == 2 and v.shape[0] == v.shape[1] else v for v in vs]),
        lambda x, w: x @ (w * 3),
        (S, T),
        (("const", ("w",)),),
    ),
    Fault(
        "a constant has the value of another",
        _constants(_of_each_other),
        lambda x, w, v: (x @ w, x @ v),
        (S, T, T[::-1].copy()),
        (("const", ("w", "v")),),
    ),
    Fault("the first step is skipped", _steps(lambda steps: steps[1:]), _products, (P, Q), UNFUSED),
    Fault("the second step is skipped", _steps(lambda steps: steps[:1] + steps[2:]), _products, (P, Q), UNFUSED),
    Fault("steps run in reverse order", _plans(lambda p: replace(p, steps=p.steps[::-1])), _products, (P, Q), UNFUSED),
    Fault("inputs change places", _plans(lambda p: replace(p, inputs=p.inputs[::-1])), lambda x, y: x - 2 * y, (S, T)),
    Fault(
        "outputs change places",
        _plans(lambda p: replace(p, outputs=p.outputs[::-1])),
        lambda x, y: (x - 2 * y, x + y),
        (S, T),
    ),
    Fault("a step reads its operands in another order", _plans(_operands_swapped), lambda x, y: x @ np.exp(y), (S, T)),
    Fault("intermediates lie in one place", _one_place, _products, (P, Q), UNFUSED),
    Fault("intermediates die a step early", _die_early, _products, (P, Q), UNFUSED),
    Fault("a mask leaves out too much", _mask_narrow, _attention, LONG),
    Fault("a mask hides scores of NaN", _scores_unbounded, _mask_added, UNSEEN),
    Fault("views compose early, traced", _composes_early, lambda x: x.T[1:, 1:].sum(axis=0), (X,), traced=True),
    Fault("a reversal goes forwards", _slices_forwards, lambda x: np.exp(x[::-1]), (X,), traced=True),
    Fault(
        "a transposition goes back",
        _transposes_back,
        lambda x: np.exp(x.transpose(1, 2, 0)),
        (RNG.random((4, 4, 4)),),
        traced=True,
    ),
    Fault(
        "a row is broadcast as a column",
        _broadcasts_left,
        lambda x, y: np.broadcast_to(y, (12, 12)) * x,
        (S, T[0].copy()),
        traced=True,
    ),
    Fault("a mean divides by n - 1", _mean_of_one_less, lambda x: x.mean(axis=1), (X,), traced=True),
    Fault("the reference of tanh is off", _reference("tanh", lambda y: y * y.dtype.type(1.0001)), np.tanh, (X,)),
    Fault(
        "the reference backend's sum is off",
        _reference("reduce_sum", lambda y: y + 1),
        lambda x: x.sum(axis=0),
        (X,),
        (("backend", "numpy"),),
        traced=True,
    ),
    Fault(
        "the reference backend's sort is reversed",
        _reference("sort", lambda y: y[..., ::-1]),
        lambda x: np.sort(x),
        (X,),
        traced=True,
    ),
)
