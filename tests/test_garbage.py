"""Collections of garbage while programs are compiled."""

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import eqsat
from eqsat.garbage import YOUNG, rarely_collected


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_are_the_users_again() -> None:
    gc.set_threshold(321, 7, 5)
    seen = []

    def f(x: np.ndarray) -> np.ndarray:
        seen.append(gc.get_threshold())
        return x + 1

    assert eqsat.optimize(f)(np.ones(3)).tolist() == [2, 2, 2]
    assert seen[0] == (YOUNG, 7, 5)
    assert gc.get_threshold() == (321, 7, 5)


def test_several_threads_share_it() -> None:
    gc.set_threshold(321, 7, 5)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with rarely_collected():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with rarely_collected():
        thread.start()
        assert entered.wait(60)
    assert gc.get_threshold()[0] == YOUNG  # the other one is still inside
    leave.set()
    thread.join()
    assert gc.get_threshold() == (321, 7, 5)


def test_an_error_restores_them() -> None:
    gc.set_threshold(321, 7, 5)
    with pytest.raises(KeyError), rarely_collected():
        raise KeyError
    assert gc.get_threshold() == (321, 7, 5)


@pytest.mark.parametrize("mine", [(0, 10, 10), (YOUNG + 1, 10, 10)])
def test_rarer_ones_and_none_are_left_alone(mine: tuple[int, int, int]) -> None:
    gc.set_threshold(*mine)
    with rarely_collected():
        assert gc.get_threshold() == mine
    assert gc.get_threshold() == mine


def test_what_is_set_meanwhile_stays() -> None:
    gc.set_threshold(321, 7, 5)
    with rarely_collected():
        gc.set_threshold(99)
    assert gc.get_threshold()[0] == 99
