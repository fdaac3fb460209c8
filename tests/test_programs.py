"""Whole programs in ordinary NumPy mean what they mean in NumPy: results, their types, and arguments they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.frontends.trace import run_by_reference
from tests.programs import PROGRAMS, Program

COMPILED = (
    "hydrostatic_pressure", "reachability", "scalar_kalman_channels", "mean_variance_weights", "integral_image_box",
    "rotary_positions",
    "cauchy_matrix", "triangle_areas_and_normals", "delta_encode_and_decode", "forward_substitution",
    "fill_missing", "jacobi_1d",
)  # fmt: skip
"""One program of every kind that is compiled even where time is short."""


def leaves(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def check(program: Program, size: tuple[int, ...], optimized: Callable[..., Any]) -> None:
    """``optimized`` returns what NumPy returns, and leaves its arguments as NumPy does."""
    arguments = program.arguments(size)
    cut = None if program.cut is None else program.cut(*arguments)
    with np.errstate(all="ignore"):
        want = program.run(program.function, arguments)
    got = program.run(optimized, arguments)
    for part, got_part, want_part in zip(("result", "arguments"), got, want, strict=True):
        found, expected = list(leaves(got_part, part)), list(leaves(want_part, part))
        assert [path for path, _ in found] == [path for path, _ in expected]
        for (path, mine), (_, theirs) in zip(found, expected, strict=True):
            assert type(mine) is type(theirs), path
            same(path, mine, theirs, program, cut)


def same(path: str, mine: Any, theirs: Any, program: Program, cut: tuple[np.ndarray, np.ndarray] | None = None) -> None:
    if theirs is None:
        return
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.dtype == theirs.dtype, path
    assert mine.shape == theirs.shape, path
    if cut is not None and theirs.dtype.kind in "iu" and (mine != theirs).any():
        exact, reach = cut
        for one in (mine, theirs):
            np.testing.assert_array_less(np.trunc(exact - reach) - 1, one, path)
            np.testing.assert_array_less(one, np.trunc(exact + reach) + 1, path)
        return
    if theirs.dtype.kind in "biu":
        np.testing.assert_array_equal(mine, theirs, path)
        return
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(mine[~finite], theirs[~finite], path)
    scale = np.abs(theirs[finite]).max(initial=0.0)
    np.testing.assert_allclose(mine[finite], theirs[finite], rtol=0, atol=program.tolerance * scale, err_msg=path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_traced_means_what_numpy_does(name: str) -> None:
    program = PROGRAMS[name]
    check(program, program.small, lambda *args: run_by_reference(program.function, args, {}))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_programs_are_right(name: str) -> None:
    compiled(name, "small")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_compiled_programs_are_right(name: str, size: str) -> None:
    compiled(name, size)


def compiled(name: str, size: str) -> None:
    program = PROGRAMS[name]
    optimized = eqsat.optimize(program.function, budget=600)
    check(program, getattr(program, size), optimized)


def test_there_are_programs_of_every_kind() -> None:
    kinds = [p.kind for p in PROGRAMS.values()]
    assert len(kinds) >= 120
    assert min(kinds.count(kind) for kind in set(kinds)) >= 10
    assert {PROGRAMS[name].kind for name in COMPILED} == set(kinds)


def test_the_check_sees_wrong_values_types_and_arguments() -> None:
    program = PROGRAMS["heat_in_place"]
    right = program.function

    def altered(change: Callable[[Any], Any], u: Any, *rest: Any) -> Any:
        return change(right(u, *rest))

    def bump(u: Any) -> Any:
        u[2, 2] *= 1.001
        return u

    check(program, program.small, right)
    wrong: list[Callable[..., Any]] = [
        partial(altered, bump),
        partial(altered, lambda u: u.astype(np.float64)),
        partial(altered, lambda u: u[:-1]),
        partial(altered, lambda u: (u, u)),
        lambda u, *rest: right(u.copy(), *rest),
    ]
    for function in wrong:
        with pytest.raises(AssertionError):
            check(program, program.small, function)


def test_a_fraction_is_cut_off_otherwise_only_where_rounding_may_reach_an_integer() -> None:
    program = PROGRAMS["alpha_composite"]

    def at(near: bool, up: int, background: Any, layer: Any) -> None:
        exact, reach = program.cut(background, layer)  # type: ignore[misc]
        program.function(background, layer)
        rounded = np.round(exact)
        touching = (np.abs(exact - rounded) <= reach) & (rounded > 0) & (rounded < 255)
        chosen = np.flatnonzero(touching if near else ~touching)[:3]
        assert chosen.size
        background.reshape(-1)[chosen] = (rounded.reshape(-1)[chosen] if near else exact.reshape(-1)[chosen]) + up

    for below in (0, -1):  # the nearest integer, and the one below it
        check(program, (60,), partial(at, True, below))
    for near, up in ((True, 1), (True, -2), (False, 1), (False, -1)):
        with pytest.raises(AssertionError):
            check(program, (60,), partial(at, near, up))
