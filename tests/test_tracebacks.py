"""Tracebacks end at the user's line; all frames are there for who asks, and for faults of eqsat's own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import ConcretizationError, EqsatError, ShapeError
from eqsat.frontends import ufuncs
from eqsat.tracebacks import ENVIRONMENT_VARIABLE

OPTIONS: Any = {"strict": True, "cache": False, "backend": "numpy"}


def inner(x: Any) -> Any:
    return np.mean(x[:, :3] + x[:, :2])  # the line to blame


def outer(x: Any) -> Any:
    return inner(x) * 2


def frames(error: BaseException) -> list[tuple[str, str]]:
    return [(frame.filename, frame.line or "") for frame in traceback.extract_tb(error.__traceback__)]


def ours(found: list[tuple[str, str]]) -> list[str]:
    return [file for file, _ in found if "/eqsat/" in file or "/backends/" in file]


@pytest.mark.parametrize("way", ["__call__", "compile", "explain", "source"])
def test_the_last_frame_is_the_users_line(way: str) -> None:
    with pytest.raises(ShapeError) as caught:
        getattr(eqsat.optimize(outer, **OPTIONS), way)(np.ones((4, 4)))
    found = frames(caught.value)
    assert [line for file, line in found if file == __file__][-2:] == [
        "return inner(x) * 2",
        "return np.mean(x[:, :3] + x[:, :2])  # the line to blame",
    ]
    assert found[-1][0] == __file__ and len(ours(found)) == 1
    assert not any("/numpy/" in file for file, _ in found)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: np.linalg.norm(x.tolist()),
        lambda x: np.array([float(v) for v in x]),
        lambda x: x[9],
        lambda x: np.unique(x)[0],
        lambda x: np.broadcast_to(x, (2, 3)).fill(1),
    ],
)
def test_refusals_end_in_the_program(fn: Callable[..., Any]) -> None:
    with pytest.raises(EqsatError) as caught:
        eqsat.optimize(fn, **OPTIONS)(np.ones(3))
    assert frames(caught.value)[-1][0] == __file__


def test_all_frames_are_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "full")
    with pytest.raises(ShapeError) as caught:
        eqsat.optimize(outer, **OPTIONS)(np.ones((4, 4)))
    found = frames(caught.value)
    assert len(ours(found)) > 3 and "/eqsat/" in found[-1][0]


def test_an_error_of_a_library_keeps_the_librarys_frames() -> None:
    with pytest.raises(np.linalg.LinAlgError) as caught:
        eqsat.optimize(lambda x: np.linalg.inv(x) + 1, cache=False)(np.zeros((3, 3)))
    found = frames(caught.value)
    assert "/numpy/" in found[-1][0] and len(ours(found)) <= 1


def test_an_error_of_the_function_itself_is_as_it_was() -> None:
    def fn(x: Any) -> Any:
        raise KeyError("own")

    with pytest.raises(KeyError, match="own") as caught:
        eqsat.optimize(fn, cache=False)(np.ones(3))
    assert frames(caught.value)[-1] == (__file__, 'raise KeyError("own")')


def test_a_fault_of_ours_keeps_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {"__name__": "eqsat.frontends.broken"}
    exec("def broken(*args, **kwargs):\n    raise AssertionError('a fault')", scope)
    monkeypatch.setattr(ufuncs, "apply", scope["broken"])
    with pytest.raises(AssertionError, match="a fault") as caught:
        eqsat.optimize(lambda x: np.sqrt(x), **OPTIONS)(np.ones(3))
    assert len(ours(frames(caught.value))) > 2


def test_a_cause_is_shortened_too() -> None:
    with pytest.raises(ShapeError) as caught:
        eqsat.optimize(lambda x, y: x + y, cache=False)(np.ones(3), np.ones(4))
    assert isinstance(caught.value.__cause__, ValueError)
    assert frames(caught.value.__cause__)[-1][0] == __file__ and not ours(frames(caught.value.__cause__))


def test_the_line_of_an_error_is_told_all_the_same() -> None:
    with pytest.raises(ConcretizationError) as caught:
        eqsat.optimize(lambda x: x if x.sum() > 0 else -x, **OPTIONS)(np.ones(3))
    assert caught.value.where is not None and caught.value.where.file == __file__
