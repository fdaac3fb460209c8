"""Rules' functions are ended, and nothing of that is left in the thread that called them."""

from __future__ import annotations

import subprocess
import sys

TRACED = """
import sys, time
import numpy as np
import eqsat
from eqsat.egraph.watchdog import Overlong, Watchdog

def once():
    return 1

def traced():
    sys.settrace(lambda *event: None)
    try:
        assert once() == 1
    finally:
        sys.settrace(None)

eqsat.optimize(lambda x: np.tanh(x) * 2 + x / 3, cache=False)(np.ones(3))
traced()
watchdog = Watchdog(time.perf_counter())
def endless(argument):
    while True:
        pass
try:
    watchdog.call(endless, 0)
except Overlong:
    traced()
assert watchdog.call(lambda a: a + 1, 1) == 2
watchdog.close()
traced()
print("done")
"""


def test_functions_can_be_traced_after_a_search_and_after_one_was_ended() -> None:
    """An exception taken back from a thread makes CPython look for it for ever while a trace function is set."""
    run = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip().endswith("done"), run.stderr
