"""Optimized functions as Python objects: pickling and copying, options that are checked where they are given."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import OptionError


@eqsat.optimize(threads=1)
def decorated(x: Any) -> Any:
    return x + 1


def plain(x: Any) -> Any:
    return x * 2


wrapped = eqsat.optimize(plain, numerics="exact")


@dataclasses.dataclass
class Model:
    w: Any

    @eqsat.optimize
    def apply(self, x: Any) -> Any:
        return x * self.w


def test_a_decorated_function_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    assert pickle.loads(pickle.dumps(Model.apply)) is Model.apply


def test_another_is_pickled_as_its_function_and_options() -> None:
    again = pickle.loads(pickle.dumps(wrapped))
    assert again is not wrapped
    assert (again.fn, again.options) == (plain, wrapped.options)
    x = np.arange(3.0)
    assert np.array_equal(again(x), 2 * x)
    local = eqsat.optimize(functools.partial(plain))
    assert np.array_equal(pickle.loads(pickle.dumps(local))(x), 2 * x)
    assert np.array_equal(copy.deepcopy(local)(x), 2 * x)


def test_bound_methods_are_pickled_with_their_object() -> None:
    x = np.arange(3.0)
    assert np.array_equal(pickle.loads(pickle.dumps(Model(x).apply))(x), x * x)


def test_what_no_module_holds_is_pickled_no_more_than_its_function() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(eqsat.optimize(lambda x: x))


@pytest.mark.parametrize("options", [{"verify": "no"}, {"cache": None}, {"budget": True}, {"verify": 1}])
def test_values_of_another_type_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"^{name} must be"):
        eqsat.optimize(plain, **options)


def test_rules_over_loops_are_listed_disabled_and_explained_alike() -> None:
    x = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    every, fewer = (eqsat.optimize(lambda x: x @ x, threads=1, disable=d) for d in ((), "loop.hoist"))
    np.testing.assert_allclose(fewer(x), every(x), rtol=1e-4, atol=1e-4)
    assert "switched off" in fewer.explain(x).why("loop.hoist")
    assert "over the loop nests of the program's kernels" in every.explain(x).why("loop.hoist")
    assert "later stage" in every.explain(x).why("fuse.read_store")
    with pytest.raises(OptionError, match=r"without the disabled rules loop\.tensorize"):
        eqsat.optimize(lambda x: x @ x, disable="loop.tensorize")(x)
    with pytest.raises(OptionError, match=r"did you mean.*loop\.tile"):
        eqsat.optimize(lambda x: x @ x, disable="loop.tiles")
