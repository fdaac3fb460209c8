"""The key of a remembered plan knows what rules do, by content: of their functions and all that these refer to."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import importlib
import json
import math
import operator
import os
import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eqsat import rules
from eqsat.contents import UnknownContent, content_digest, files_digest
from eqsat.rules.fingerprint import rule_digest, rules_fingerprint
from tests.sweeps import a_part


def defined(source: str, name: str = "made", **names: Any) -> Any:
    """What source that is in no file defines, as in an interactive session."""
    space: dict[str, Any] = {"rules": rules, "np": np, "math": math, "__name__": "session", **names}
    exec(source, space)
    return space[name]


def sourceless(right: str, **names: Any) -> rules.Rule:
    """A rule typed in; all have one id, file and line."""
    source = f"a = rules.tensors('a')\nmade = rules.rewrite(rules.op('exp', a), {right}, id='typed_in')"
    made = defined(source, **names)
    assert isinstance(made, rules.Rule)
    return made


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "session", types.ModuleType("session"))
    yield
    if any(rule.id == "typed_in" for rule in rules.list()):
        rules.remove("typed_in")


def with_rule(rule: rules.Rule) -> str:
    rules.add(rule, check=False)
    try:
        return rules_fingerprint()
    finally:
        rules.remove(rule.id)


def test_a_rule_that_takes_the_place_of_another_is_told_apart() -> None:
    seen = {rules_fingerprint()}
    for n in range(a_part(40)):
        right = f"lambda m: None if m.root is None else [{n}]"
        seen.add(with_rule(sourceless(right)))
        assert with_rule(sourceless(right)) in seen
        gc.collect()  # the next rule may get the memory of this one, and so its id()
        assert len(seen) == n + 2


def test_without_added_rules_it_is_as_before() -> None:
    before = rules_fingerprint()
    rules.add(sourceless("2 * a"), check=False)
    assert rules_fingerprint() != before
    rules.remove("typed_in")
    assert rules_fingerprint() == before


def test_names_of_patterns_that_are_made_up_do_not_count() -> None:
    """They depend on how many patterns were made before."""

    def made(keepdims: bool) -> rules.Rule:
        a = rules.tensors("a")
        left = rules.op("exp", a.sum(axis=None, keepdims=keepdims) * (a + 1) / a.mean(axis=-1))
        return rules.rewrite(left, lambda m: None, id="typed_in")

    first, again = made(True), made(True)
    assert repr(first.ways[0].left) != repr(again.ways[0].left)
    assert rule_digest(first) == rule_digest(again) != rule_digest(made(False))


def test_names_that_a_guard_may_use_count() -> None:
    def made(names: str) -> rules.Rule:
        one, two = rules.tensors(names)
        return rules.rewrite(rules.op("maximum", one, two), one, where=lambda m: m._1.type.ndim > 1, id="typed_in")

    assert rule_digest(made("_1 _2")) != rule_digest(made("_2 _1"))


STATEMENTS = [
    "a",
    "2 * a",
    "2.0 * a",
    "0.0 * a",
    "-0.0 * a",
    "a * 2",
    "a + a",
    "a.sum(axis=0)",
    "a.sum(axis=1)",
    "lambda m: m.a",
]


def test_statements_are_told_apart() -> None:
    digests = {text: rule_digest(sourceless(text)) for text in STATEMENTS}
    a = rules.tensors("a")
    kept = {"numerics": "exact", "where": lambda m: m.a.type.ndim > 1, "both_ways": True, "id": "other"}
    for name, value in kept.items():
        more: dict[str, Any] = {"id": "typed_in", name: value}
        digests[name] = rule_digest(rules.rewrite(rules.op("exp", a), rules.op("log", a), **more))
    assert len(set(digests.values())) == len(digests)
    assert rule_digest(rules.rewrite(rules.op("exp", a), 2 * a, id="typed_in", doc="words")) == digests["2 * a"]


# Functions, by all that they refer to. Each row: source with a hole, and what to put there, all different.

FACTORY = "def factory(value):\n    def made(m): return m if value else None\n    return made\nmade = factory({})"
SOURCES: dict[str, tuple[str, list[str]]] = {
    "constants": ("def made(m): return m.a + {}", ["1", "2", "1.0", "True", "'1'", "b'1'", "None", "1j", "(1,)"]),
    "names": ("def made(m): return m.{}", ["a", "b"]),
    "captured": (FACTORY, ["1", "2", "1.0", "0.0", "-0.0", "math.nan", "[1]", "(1,)", "{1}", "{1: 2}", "{2: 1}"]),
    "captured arrays": (
        FACTORY,
        ["np.array([1, 2])", "np.array([1, 3])", "np.array([1.0, 2.0])", "np.array([[1, 2]])"],
    ),
    "captured types": (
        FACTORY,
        ["int", "float", "np.float32", "np.dtype('f4')", "np.float32(1)", "np.sqrt", "math.sqrt"],
    ),
    "captured functions": (FACTORY, ["lambda m: m", "lambda m: m + 1", "lambda m, n=1: m", "lambda m, n=2: m"]),
    "partial": ("import functools\nmade = functools.partial(lambda m, n: n, n={})", ["1", "2"]),
    "cached": ("import functools\n@functools.lru_cache\ndef made(m): return {}", ["1", "2"]),
    "defaults": ("def made(m, n={}): return n", ["1", "2", "[]"]),
    "defaults by keyword": ("def made(m, *, n={}): return n", ["1", "2"]),
    "globals": ("LIMIT = {}\ndef made(m): return LIMIT", ["1", "2"]),
    "nested": ("LIMIT = {}\ndef made(m): return [lambda: LIMIT for _ in m]", ["1", "2"]),
    "helpers": ("def helper(m): return {}\ndef made(m): return helper(m)", ["1", "2"]),
    "helpers of helpers": (
        "LIMIT = {}\ndef one(m): return LIMIT\ndef two(m): return one(m)\ndef made(m): return two(m)",
        ["1", "2"],
    ),
    "recursion": ("def made(m): return made(m) if m else {}", ["1", "2"]),
    "methods": ("class C:\n    def f(self, m): return {}\nmade = C().f", ["1", "2"]),
    "state": (
        "class C:\n    def __init__(self): self.n = {}\n    def f(self, m): return self.n\nmade = C().f",
        ["1", "2"],
    ),
    "slots": (
        "class C:\n    __slots__ = ('n',)\n    def __call__(self, m): return self.n\nmade = C()\nmade.n = {}",
        ["1", "2"],
    ),
    "inherited": (
        "class B:\n    N = {}\nclass C(B):\n    def __call__(self, m): return self.N\nmade = C()",
        ["1", "2"],
    ),
    "properties": ("class C:\n    n = property(lambda self: {})\nmade = lambda m: C().n", ["1", "2"]),
    "data classes": (
        "import dataclasses as d\n@d.dataclass(frozen=True)\nclass C:\n    n: int\nc = C({})\nmade = lambda m: c.n",
        ["1", "2"],
    ),
    "attributes": ("def made(m): return made.limit\nmade.limit = {}", ["1", "2"]),
    "cycles": ("a = [{}]\na.append(a)\nmade = lambda m: a", ["1", "2"]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_functions_are_told_apart_by_what_they_refer_to(name: str) -> None:
    source, values = SOURCES[name]
    seen = {}
    for value in values:
        text = source.replace("{}", value)
        digest = content_digest(defined(text))
        assert digest == content_digest(defined("\n\n# elsewhere\n" + text)), value
        assert seen.setdefault(digest, value) == value


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    limit: int
    names: tuple[str, ...] = ()


OBJECTS: list[Callable[[], Any]] = [
    lambda: Colour.RED,
    lambda: Colour.BLUE,
    lambda: Settings(1),
    lambda: Settings(2),
    lambda: Settings(1, ("a",)),
    lambda: [Settings(1)],
    lambda: re.compile("a"),
    lambda: re.compile("a", re.IGNORECASE),
    lambda: operator.attrgetter("a"),
    lambda: operator.attrgetter("b"),
    lambda: range(3),
    lambda: slice(3),
    lambda: Path("a"),
    lambda: {"a", "b", "c", "d"},
    lambda: frozenset({"a", "b", "c", "d"}),
    lambda: {"a": 1, "b": 2},
    lambda: types.MappingProxyType({"a": 1}),
    lambda: np.array([1, None]),
    lambda: np.arange(6).reshape(2, 3).T,
    lambda: np.arange(6).reshape(3, 2),
    lambda: str.lower,
    lambda: 10**5000,
    lambda: "\ud800",
    lambda: rules.op("exp", rules.tensors("a")).op,
]


def test_objects_are_told_apart_by_content() -> None:
    digests = [content_digest(make()) for make in OBJECTS]
    assert [content_digest(make()) for make in OBJECTS] == digests
    assert len(set(digests)) == len(digests)


def all_digests() -> list[str]:
    sys.modules["session"] = types.ModuleType("session")
    made = [defined(source.replace("{}", value)) for source, values in SOURCES.values() for value in values]
    return [content_digest(value) for value in (*made, *(make() for make in OBJECTS))]


def test_every_process_finds_the_same() -> None:
    """Whatever the hash seed, and whether code was compiled now or read back."""
    script = "import json, test_fingerprint; print(json.dumps(test_fingerprint.all_digests()))"
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1] and len(set(found[0])) > 60


def test_a_module_counts_by_what_is_used_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = types.ModuleType("helpers")
    exec("LIMIT = 1\nOTHER = 1\ndef f(m): return LIMIT", helpers.__dict__)
    monkeypatch.setitem(sys.modules, "helpers", helpers)
    for source in (
        "import helpers\ndef made(m): return helpers.f(m)",
        "def made(m):\n    import helpers\n    return helpers.f",
    ):
        made = defined(source)
        helpers.__dict__.update(LIMIT=1, OTHER=1)
        before = content_digest(made)
        helpers.__dict__["OTHER"] = 2
        assert content_digest(made) == before
        helpers.__dict__["LIMIT"] = 2
        assert content_digest(made) != before


def test_a_module_counts_by_what_each_function_uses_of_it() -> None:
    outer, inner = types.ModuleType("outer"), types.ModuleType("inner")
    outer.__dict__.update(inner=inner)
    inner.__dict__.update(ONE=1, TWO=1, outer=outer)
    source = (
        "def one(m): return outer.inner.ONE\ndef two(m): return outer.inner.TWO\ndef made(m): return one(m), two(m)"
    )
    made = defined(source, outer=outer)
    digests = {content_digest(made)}
    for name in ("ONE", "TWO"):
        inner.__dict__[name] = 2
        digests.add(content_digest(made))
    assert len(digests) == 3


FROM_ELSEWHERE = {
    "of the package": "def made(m):\n    from . import colorsys\n    return colorsys.f(m)",
    "in the package": "def made(m):\n    from .colorsys import f\n    return f(m)",
    "by its whole name": "def made(m):\n    import parcel.colorsys\n    return parcel.colorsys.f(m)",
    "by another name": "def made(m):\n    import parcel.colorsys as c\n    return c.f(m)",
    "on the path": "def made(m):\n    import colorsys\n    return colorsys.f(m)",
    "as a global": "import colorsys\ndef made(m): return colorsys.f(m)",
    "its function": "from colorsys import f as made",
}


@pytest.mark.parametrize("how", FROM_ELSEWHERE)
def test_users_modules_count_by_content_though_the_standard_library_has_such_a_name(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "LIMIT = {}\ndef f(m): return LIMIT"
    digests = set()
    for number in range(2):
        place = tmp_path / str(number)
        (place / "parcel").mkdir(parents=True)
        for folder in (place, place / "parcel"):
            (folder / "colorsys.py").write_text(text.format(number))
        (place / "parcel" / "__init__.py").write_text("")
        (place / "parcel" / "rules.py").write_text(FROM_ELSEWHERE[how])
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(place))
            for name in ("colorsys", "parcel", "parcel.colorsys", "parcel.rules"):
                patch.delitem(sys.modules, name, raising=False)
            made = importlib.import_module("parcel.rules").made
            if how not in ("as a global", "its function"):
                with pytest.raises(UnknownContent):  # it is not imported yet
                    content_digest(made)
                made(None)
            digests.add(content_digest(made))
            for name in ("colorsys", "parcel", "parcel.colorsys", "parcel.rules"):
                sys.modules.pop(name, None)
    assert len(digests) == 2


def test_the_standard_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("colorsys", "math", "sys", "json.decoder", "_struct", "zipimport"):
        made = defined(f"def made(m):\n    import {name} as n\n    return n.f(m)")
        monkeypatch.delitem(sys.modules, "colorsys", raising=False)
        content_digest(made)


def test_how_tuples_are_shared_does_not_count() -> None:
    one = (1, [2], (3,))
    again = (1, one[1], (3,))
    assert again is not one
    assert content_digest([one, one, one]) == content_digest([one, again, one]) == content_digest([again, one, again])
    assert content_digest([one, one]) != content_digest([one, (1, [2], (3,))])  # another list


@pytest.mark.parametrize("join", [lambda t: (t, t), lambda t: frozenset({t, (t,)}), lambda t: (t, [t, t])])
def test_what_is_shared_is_looked_at_once(join: Callable[[Any], Any]) -> None:
    start = time.monotonic()
    found = [content_digest(functools.reduce(lambda t, _: join(t), range(60), end)) for end in ((0,), (0,), (1,))]
    assert found[0] == found[1] != found[2]
    assert time.monotonic() - start < 30


UNKNOWN: dict[str, Callable[[], Any]] = {
    "lock": lambda: defined(FACTORY.replace("{}", "lock"), lock=threading.Lock()),
    "generator": lambda: defined(FACTORY.replace("{}", "(i for i in 'ab')")),
    "eval": lambda: defined("def made(m): return eval('m')"),
    "file": lambda: defined("def made(m): return open('limits').read()"),
    "globals": lambda: defined("def made(m): return globals()['m']"),
    "module": lambda: defined(FACTORY.replace("{}", "[other]"), other=types.ModuleType("other")),
    "import": lambda: defined("def made(m):\n    import not_there_yet\n    return not_there_yet.f"),
    "size": lambda: defined(FACTORY.replace("{}", "[*range(2_000_000)]")),
    "depth": lambda: functools.reduce(lambda inner, _: [inner], range(100_000), []),
    "own words": lambda: defined("class C:\n    def __reduce__(self): raise OSError\nmade = lambda m: c\nc = C()"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_told_is_like_nothing_else(name: str) -> None:
    made = UNKNOWN[name]()
    with pytest.raises(UnknownContent):
        content_digest(made)
    if callable(made):
        rule = sourceless("made", made=made)
        assert len({with_rule(rule) for _ in range(3)}) == 3


def test_files_count_by_content_not_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"

    def digest(text: str) -> str:
        path.write_text(text)
        os.utime(path, (1, 1))
        return files_digest([("rules.py", str(path))])

    assert digest("a = 1") == digest("a = 1") != digest("a = 2")
    assert files_digest([("other.py", str(path))]) != files_digest([("rules.py", str(path))])
    assert files_digest([]) != files_digest([("rules.py", str(path))])


PROGRAM = """
import json, sys
import numpy as np
import eqsat
from eqsat import rules

value = json.loads(sys.argv[1])

def only_if(limit):
    def ranks(m):
        return m.root.type.ndim <= limit
    return ranks

for _ in range(len(sys.argv)):  # names of patterns are numbered by process
    rules.op("exp", rules.tensors("a"))
a = rules.tensors("a")
rules.add(rules.rewrite(rules.op("exp", a) * 1, rules.op("exp", a), id="added", where=only_if(value), numerics="exact"))
x = np.ones((5, 3), np.float32)
print(eqsat.optimize(lambda x: np.exp(x) + 1, threads=1).compile(x).cached)
"""


def test_other_processes_know_a_rule_again_by_content(tmp_path: Path) -> None:
    """A plan is found with the same rule, from whatever file, and not with one that captured another value."""

    def cached(directory: str, value: Any, *more: str) -> bool:
        (tmp_path / directory).mkdir(exist_ok=True)
        script = tmp_path / directory / "program.py"
        script.write_text(PROGRAM)
        env = {**os.environ, "EQSAT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONHASHSEED": str(len(more))}
        done = subprocess.run(
            [sys.executable, str(script), json.dumps(value), *more],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip() == "True"

    assert not cached("here", 2)
    assert cached("here", 2) and cached("there", 2, "more", "arguments")
    assert not cached("here", 3)
