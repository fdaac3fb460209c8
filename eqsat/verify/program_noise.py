"""What rounding may do to the outputs of a random program, whatever the order of evaluation.

Monte Carlo arithmetic (Parker, 1997): evaluations in float64 in which the operands of each step, and what every ufunc
inside of it computes, are changed by up to one unit of the step's own type. It shows what any order may lose, where
NumPy's own error can be zero by luck. Steps that jump, or are exact, are evaluated without.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from eqsat.verify.programs import REFERENCE, Array, Program, Step, in_numbers, modules, operators, with_numbers
from eqsat.verify.rounding import sum_reach
from eqsat.verify.stand_ins import LOOPS

NOISE_RUNS = 3
_SUMS = frozenset({np.matmul, np.einsum, np.dot, np.inner, np.vdot, np.tensordot, np.convolve})
_STEADY = frozenset({np.floor, np.ceil, np.rint, np.trunc, np.sign, np.floor_divide, np.remainder, np.positive})
DOUBLE, COMPLEX = np.dtype(np.float64), np.dtype(np.complex128)


class _Moves:
    """How far values move: ``unit`` of the step at hand, relative; 0 where they do not.

    ``coarsest``: the largest unit of the types of what was computed since it was set.
    """

    def __init__(self, run: int) -> None:
        self.rng = np.random.default_rng(run)
        self.unit = 0.0
        self.coarsest = 0.0

    def see(self, value: Any) -> None:
        """Note the type of what a function computed."""
        for one in value if isinstance(value, tuple) else (value,):
            self.coarsest = max(self.coarsest, _unit_of(one))

    def moved(self, value: Any, reach: Any = None) -> Array:
        """A value changed by up to ``reach``, absolute; by default by up to one unit of its own. Infinities stay."""
        at = np.asarray(value)
        if not self.unit or at.dtype.kind not in "fc":
            return at
        noise = self.rng.uniform(-1.0, 1.0, (2, *at.shape))
        part = noise[0] if at.dtype.kind == "f" else noise[0] + 1j * noise[1]
        moved = at + (self.unit * np.abs(at) if reach is None else reach) * part
        return np.asarray(np.where(np.isfinite(at), moved, at))

    def summed(self, value: Any, function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Array:
        """The value of a function that adds up products of its operands, or these."""
        at = np.asarray(value)
        if not self.unit or at.dtype.kind not in "fc":
            return at
        arrays = [isinstance(x, np.ndarray) and x.dtype.kind in "fciub" for x in operands]
        pairs = list(zip(operands, arrays, strict=True))
        magnitudes = function(*(np.abs(np.asarray(x, COMPLEX)) if is_array else x for x, is_array in pairs), **options)
        terms = function(*(np.ones(x.shape) if is_array else x for x, is_array in pairs), **options)
        return self.moved(at, sum_reach(np.abs(at), magnitudes, terms, self.unit))


class _Moving(np.ndarray):
    """An array whose ufuncs, and sums of products, round at random."""

    moves: _Moves

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and hasattr(other, "moves"):
            self.moves = other.moves

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        plain = tuple(map(_plain, inputs))
        if out:
            options["out"] = tuple(map(_plain, out))
        if "where" in options:
            options["where"] = _plain(options["where"])
        found = getattr(ufunc, method)(*plain, **options)
        self.moves.see(found)
        if found is None or ufunc in _STEADY:  # ``at`` writes to its first operand
            return self._wrapped(found, out)
        kept = {name: value for name, value in options.items() if name not in ("out", "initial", "dtype")}
        if method == "__call__" and ufunc not in _SUMS:
            results = found if isinstance(found, tuple) else (found,)
            moved: Any = tuple(self.moves.moved(value) for value in results)
            found = moved if isinstance(found, tuple) else moved[0]
        elif ufunc in _SUMS or ufunc is np.add:
            found = self.moves.summed(found, getattr(ufunc, method), plain, kept)
        else:
            found = self.moves.moved(found)
        if "where" in options and method == "__call__" and out:
            np.copyto(_plain(out[0]), found, where=options["where"], casting="unsafe")
            return out[0]
        return self._wrapped(found, out)

    def _wrapped(self, found: Any, out: tuple[Any, ...]) -> Any:
        if out and out[0] is not None:
            _plain(out[0])[...] = found
            return out[0]
        if isinstance(found, tuple):
            return tuple(self._wrapped(value, ()) for value in found)
        return found if found is None else moving(found, self.moves)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in _SUMS:
            return super().__array_function__(function, types, arguments, options)
        plain = tuple(map(_plain, arguments))
        self.moves.see(function(*plain, **options))
        return moving(self.moves.summed(function(*plain, **options), function, plain, options), self.moves)


def moving(value: Any, moves: _Moves) -> _Moving:
    found = np.asarray(value).view(_Moving)
    found.moves = moves
    return found


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Moving) else value


def noise(program: Program, runs: int = NOISE_RUNS) -> tuple[Array, ...]:
    """Largest change of each output over several noisy evaluations; 0 of integers and bools."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        units, inside, views = _types(program)
        codes = [compile(with_numbers(s.text, DOUBLE, COMPLEX), "<step>", "exec") for s in program.steps]
        clean = _evaluated(program, codes, [0.0] * len(codes), {}, views, _Moves(0))
        worst = [np.zeros(np.shape(value)) for value in clean]
        for run in range(runs):
            for i, value in enumerate(_evaluated(program, codes, inside, units, views, _Moves(run))):
                if value.dtype.kind in "fc":
                    worst[i] = np.fmax(worst[i], np.abs(value - clean[i]))
    return tuple(worst)


def _unit_of(value: Any) -> float:
    """One unit in the last place of a type, relative; 0 of integers and of what is no array."""
    dtype = getattr(value, "dtype", None)
    return float(np.finfo(dtype).eps) if dtype is not None and dtype.kind in "fc" else 0.0


def _operators() -> dict[str, Any]:
    """Operators of users': of elementwise ones their functions, each of whose steps rounds at random."""

    def in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            dtype = np.result_type(*args)
            return function(*(np.asanyarray(a, dtype if dtype.kind == "f" else DOUBLE) for a in args))

        return call

    found = operators().items()
    return {name: in_floats(o.__wrapped__) if o.definition.elementwise else o for name, o in found}


def _names(moves: _Moves) -> dict[str, Any]:
    """What steps call. The number of a loop's trip moves as arrays do: what functions make of it is rounded, too."""

    def fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], init: Any) -> Any:
        return LOOPS.fori_loop(lower, upper, lambda trip, value: body(moving(trip, moves), value), init)

    loops = SimpleNamespace(**{**vars(LOOPS), "fori_loop": fori_loop})
    return {**modules(), **_operators(), **REFERENCE, "eqsat": loops}


def _types(program: Program) -> tuple[dict[str, float], list[float], frozenset[str]]:
    """Units of each value and of the coarsest type that each step computes with, and the values that are views."""
    moves = _Moves(0)
    values: dict[str, Any] = {name: moving(array, moves) for name, array in program.arrays().items()}
    views, inside = set(), []
    scope = {**_names(moves), **values}
    for step in program.steps:
        moves.coarsest = 0.0
        exec(step.text, scope)
        inside.append(moves.coarsest)
        if not step.changes:
            scope[step.name] = values[step.name] = moving(scope[step.name], moves)
            if any(np.may_share_memory(values[step.name], values[name]) for name in step.arguments):
                views.add(step.name)
    return {name: _unit_of(value) for name, value in values.items()}, inside, frozenset(views)


def _evaluated(
    program: Program,
    codes: list[CodeType],
    inside: list[float],
    units: dict[str, float],
    views: frozenset[str],
    moves: _Moves,
) -> list[Array]:
    """The outputs in float64; without noise where no value has a unit, and no step computes with one."""
    values: dict[str, Any] = {
        name: moving(in_numbers(array, DOUBLE, COMPLEX), moves) for name, array in program.arrays().items()
    }
    names = _names(moves)
    for step, code, least in zip(program.steps, codes, inside, strict=True):
        moves.unit = _unit(step, units, least)
        shared = step.arguments if step.name in views else step.changes
        read = {n: values[n] if n in shared else moving(moves.moved(values[n]), moves) for n in step.arguments}
        scope = {**names, **read}
        exec(code, scope)
        if not step.changes:
            values[step.name] = moving(scope[step.name], moves)
    outputs = []
    for name in program.outputs:
        moves.unit = 0.0 if program.is_exact(name) else units.get(name, 0.0)
        outputs.append(np.asarray(moves.moved(values[name])))
    return outputs


def _unit(step: Step, units: dict[str, float], inside: float) -> float:
    if step.exact or step.discrete:
        return 0.0
    return max(inside, *(units.get(name, 0.0) for name in (step.name, *step.arguments)))
