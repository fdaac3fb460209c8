"""Variables that hold for the length of a call."""

from __future__ import annotations

import contextvars
import os
import threading

import numpy as np
import pytest

from eqsat.aside import aside
from eqsat.deadline import NEVER
from eqsat.scoped import Scoped, carried

VARIABLE: Scoped[object] = Scoped("default")
CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("CONTEXT", default="default")


def test_a_value_holds_until_it_is_reset() -> None:
    first = VARIABLE.set("first")
    second = VARIABLE.set("second")
    assert (first, second, VARIABLE.get()) == ("default", "first", "second")
    VARIABLE.reset(second)
    assert VARIABLE.get() == "first"
    VARIABLE.reset(first)
    assert VARIABLE.get() == "default" and not VARIABLE.values


def test_other_threads_see_the_default() -> None:
    seen: list[object] = []
    before = VARIABLE.set("mine")
    try:
        thread = threading.Thread(target=lambda: seen.append(VARIABLE.get()))
        thread.start()
        thread.join()
    finally:
        VARIABLE.reset(before)
    assert seen == ["default"]


def test_a_carried_call_sees_what_its_maker_saw() -> None:
    def look() -> tuple[object, str, str]:
        found = VARIABLE.get(), CONTEXT.get(), np.geterr()["over"]
        VARIABLE.set("changed")
        CONTEXT.set("changed")
        return found

    before, token = VARIABLE.set("mine"), CONTEXT.set("mine")
    try:
        with np.errstate(over="raise"):
            call = carried(look)
            assert aside("looking", NEVER, look) == ("mine", "mine", "raise")
        assert (VARIABLE.get(), CONTEXT.get()) == ("mine", "mine")
    finally:
        VARIABLE.reset(before)
        CONTEXT.reset(token)
    assert call() == ("mine", "mine", "raise")
    assert (VARIABLE.get(), CONTEXT.get()) == ("default", "default")
    assert not VARIABLE.values


def test_a_carried_call_that_raises_leaves_no_values() -> None:
    before = VARIABLE.set("mine")
    call = carried(lambda: 1 // 0)
    VARIABLE.reset(before)
    with pytest.raises(ZeroDivisionError):
        call()
    assert VARIABLE.get() == "default" and not VARIABLE.values


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_its_own_threads_values_only() -> None:
    ready, go = threading.Event(), threading.Event()

    def hold() -> None:
        before = VARIABLE.set("other")
        ready.set()
        go.wait(60)
        VARIABLE.reset(before)

    thread = threading.Thread(target=hold)
    thread.start()
    before = VARIABLE.set("mine")
    try:
        assert ready.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(0 if list(VARIABLE.values.values()) == ["mine"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        VARIABLE.reset(before)
        go.set()
        thread.join()
