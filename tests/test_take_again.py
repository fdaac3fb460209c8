"""Arguments in containers that come again are told from others without keys."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.compiled import Compiled
from eqsat.frontends.again import take_again
from eqsat.frontends.pytree import Tree, is_tensor, tree_of
from eqsat.function import MOST_TAKES

A, B, C = (np.full(3, n, np.float32) for n in (1, 2, 3))


def _taken(args: tuple[Any, ...], fixed: set[int], other: tuple[Any, ...]) -> list[Any] | None:
    leaves: list[Any] = []
    trees: list[Tree] = [tree_of(value, leaves, is_tensor) for value in args]
    take = take_again(trees, leaves, fixed)
    assert take is not None
    return take(other)


def test_free_leaves_are_found_where_they_belong() -> None:
    given = ({"w": A, "layers": [{"b": B, "n": 3}, (C,)]}, C)
    other = ({"w": A, "layers": [{"b": C, "n": 3}, (B,)]}, A)
    found = _taken(given, {0}, other)
    assert found is not None
    assert [id(leaf) for leaf in found] == [id(leaf) for leaf in (A, C, B, A)]


@pytest.mark.parametrize(
    "other",
    [
        ({"w": A.copy(), "n": 3}, [C]),  # another constant
        ({"w": A, "n": 4}, [C]),
        ({"w": A, "n": 3.0}, [C]),
        ({"n": 3, "w": A}, [C]),  # another order, which is another key
        ({"w": A, "n": 3, "m": 3}, [C]),
        (OrderedDict(w=A, n=3), [C]),
        ({"w": A, "n": 3}, (C,)),
        ({"w": A, "n": 3}, [C, C]),
        ({"w": A, "n": 3},),
    ],
)
def test_others_are_refused(other: tuple[Any, ...]) -> None:
    given = ({"w": A, "n": 3}, [C])
    assert _taken(given, {0}, ({"w": A, "n": 3}, [B])) is not None
    assert _taken(given, {0}, other) is None


def test_containers_that_may_change_what_they_give_are_left_alone() -> None:
    for value in (OrderedDict(w=A), A):
        leaves: list[Any] = []
        assert take_again([tree_of(value, leaves, is_tensor)], leaves, {0}) is None


def test_calls_see_what_is_put_into_their_containers() -> None:
    f = eqsat.optimize(lambda p, x: p["w"] * x + p["n"], const=("p",), check_speed=False)
    params = {"w": A.copy(), "n": 1.0}
    for _ in range(4):
        assert f(params, B).tolist() == [3, 3, 3]
    hits = f.cache_info().hits
    assert f(params, C).tolist() == [4, 4, 4]
    assert f.cache_info().hits == hits + 1
    params["w"] = C
    assert f(params, C).tolist() == [10, 10, 10]
    params["n"] = 2.0
    assert f(params, C).tolist() == [11, 11, 11]
    assert f({"w": A, "n": 1.0}, B).tolist() == [3, 3, 3]


def test_a_scalar_in_a_container_is_no_array_without_axes() -> None:
    """A program for a NumPy scalar, which cannot be written to, is not taken for an array, which can."""

    def f(p: dict[str, Any], y: np.ndarray) -> Any:
        s = p["s"]
        s += 1
        return y * s

    optimized = eqsat.optimize(f)
    y = np.ones(5)
    for _ in range(4):
        assert optimized({"s": np.float64(2)}, y)[0] == 3
    z = np.array(2.0)
    assert optimized({"s": z}, y)[0] == 3 and z == 3


def test_what_never_comes_again_is_not_learned_for_ever() -> None:
    """Keys made anew for each call are other objects."""
    optimized = eqsat.optimize(lambda p: p["".join(["a", "b"])] * 2)
    x = np.ones(4)
    for _ in range(12):
        assert optimized({"".join(["a", "b"]): x})[0] == 2
    assert optimized._latest is not None
    program = optimized._latest[0]()
    assert isinstance(program, Compiled) and program.taking == MOST_TAKES
