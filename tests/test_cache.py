"""The cache under ordinary trouble: results never depend on it, and it complains once at most."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eqsat import cache
from eqsat.cache import limits
from eqsat.cache import store as stores

json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
keeps_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
KEY, OTHER = "0123456789abcdef", "f" * 40


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(stores, "_warned", threading.Event())
    monkeypatch.setattr(limits, "_written", {})
    return tmp_path / "cache" / cache.FORMAT


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", cache.CacheWarning)
        yield


@keeps_fixtures
@given(st.binary(max_size=2000))
def test_code_comes_back_as_it_was(no_warning: None, data: bytes) -> None:
    store = cache.kernel_store()
    assert store.put(KEY, data, "a product")
    assert store.get(KEY) == data
    assert store.get(OTHER) is None


@keeps_fixtures
@given(st.binary(min_size=1, max_size=200), st.data())
def test_damaged_code_is_never_returned(root: Path, data: bytes, how: st.DataObject) -> None:
    store = cache.kernel_store()
    store.put(KEY, data)
    path = root / f"{KEY}.o"
    kept = bytearray(path.read_bytes())
    if how.draw(st.booleans()):
        kept[how.draw(st.integers(0, len(kept) - 1))] ^= 1 << how.draw(st.integers(0, 7))
    else:
        del kept[how.draw(st.integers(0, len(kept) - 1)) :]
    path.write_bytes(bytes(kept))
    stores._warned.clear()
    with pytest.warns(cache.CacheWarning, match="damaged"):
        assert store.get(KEY) is None
    assert store.put(KEY, data)
    assert store.get(KEY) == data


@pytest.mark.parametrize("name", [f"{OTHER}.o", f"{KEY}.plan"])
def test_an_entry_under_another_name_is_not_that_entry(root: Path, name: str) -> None:
    cache.kernel_store().put(KEY, b"code")
    (root / f"{KEY}.o").rename(root / name)
    key, kind = name.split(".")
    with pytest.warns(cache.CacheWarning, match="damaged"):
        assert stores.Store(root).read(kind, key) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["../x", "", "a/b", "a.b", "key", KEY.upper(), KEY[:-1], KEY + "\n", "0" * 65])
def test_keys_cannot_leave_the_directory(key: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.kernel_store().get(key)
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.plan_store().put("plan", key, 1)


def test_printed_modules_are_kept_as_text(root: Path, no_warning: None) -> None:
    store = cache.kernel_store()
    path = store.put_source(KEY, "x = 1\n")
    assert path == root / f"{KEY}.py"
    path.write_text("damaged")
    store.put_source(KEY, "x = 1\n")
    assert path.read_text() == store.source(KEY) == "x = 1\n"
    assert store.source(OTHER) is None


@keeps_fixtures
@given(json_values, st.text())
def test_payloads_come_back_equal(no_warning: None, payload: Any, name: str) -> None:
    store = cache.plan_store()
    assert store.put("plan", KEY, payload, name=name)
    assert store.get("plan", KEY) == payload
    assert store.get("plan", OTHER) is None


def test_a_payload_takes_the_place_of_another_in_one_step(no_warning: None) -> None:
    """A reader beside a writer sees one of the two payloads, whole."""
    store = cache.plan_store()
    payloads: list[Any] = [["a"] * 20_000, ["b"] * 5]
    store.put("plan", KEY, payloads[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for payload in payloads:
                assert store.put("plan", KEY, payload)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [store.get("plan", KEY) for _ in range(200)]
    finally:
        stop.set()
        writer.join()
    assert all(payload in payloads for payload in seen)


def test_reading_makes_no_directory(root: Path, no_warning: None) -> None:
    assert cache.plan_store().get("plan", KEY) is None
    assert cache.kernel_store().get(KEY) is None
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, 0)
    assert not root.parent.exists()


def test_a_full_disk_warns_once_and_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cache.kernel_store()
    store.put(OTHER, b"makes the directory")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(cache.CacheWarning, match="No space left") as warned:
        assert not store.put(KEY, b"data")
        assert not cache.plan_store().put("plan", KEY, 1)
        assert store.put_source(KEY, "x") is None
    assert len(warned) == 1
    assert store.get(KEY) is None
    assert sorted(path.name for path in root.iterdir()) == ["CACHEDIR.TAG", f"{OTHER}.o"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere", "~nobody-of-this-name/cache", "\ufffd" * 300])
def test_an_impossible_directory_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~nobody-of-this-name").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, place if place[0] in "/~" else str(tmp_path / place))
    with pytest.warns(cache.CacheWarning) as warned:
        assert not cache.kernel_store().put(KEY, b"data")
        assert cache.kernel_store().get(KEY) is None
        assert not cache.plan_store().put("plan", KEY, 1)
    assert len(warned) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and POSIX permissions")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_read_only_directory_still_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, place)
        root = cache.cache_root()
        cache.kernel_store().put(KEY, b"data")
        cache.plan_store().put("plan", KEY, 1)
        everything = [Path(place), root, *root.rglob("*")]
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:  # the superuser may write anywhere: become somebody else
                for path in everything:
                    os.chown(path, 65534, 65534)
                os.setuid(65534)
            for path in everything:
                path.chmod(0o500 if path.is_dir() else 0o400)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fine = cache.kernel_store().get(KEY) == b"data"
                fine = fine and cache.plan_store().get("plan", KEY) == 1 and not caught
                fine = fine and not cache.kernel_store().put(KEY, b"other")
                fine = fine and not cache.plan_store().put("plan", KEY, 2)
                fine = fine and cache.plan_store().get("plan", KEY) == 1 and len(caught) == 1
            for path in everything:
                path.chmod(0o700)
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_processes_and_threads_write_at_once(root: Path, no_warning: None) -> None:
    """Into a directory that is not there, which all make, mark and trim."""
    script = (
        "import sys, threading, warnings\n"
        "warnings.simplefilter('error')\n"
        "from eqsat import cache\n"
        "def work(who):\n"
        "    for i in range(15):\n"
        "        assert cache.plan_store().put('plan', f'{who}{i:016}', [who, i])\n"
        "        assert cache.plan_store().put('plan', 'e' * 16, 'x' * 1000)\n"
        "        assert cache.kernel_store().put('e' * 16, b'y' * 10000)\n"
        "        assert cache.kernel_store().get('e' * 16) == b'y' * 10000\n"
        "threads = [threading.Thread(target=work, args=(sys.argv[1] + n,)) for n in 'ab']\n"
        "failures = []\n"
        "threading.excepthook = failures.append\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "sys.exit(len(failures))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(n)], stderr=subprocess.PIPE) for n in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    store = cache.plan_store()
    for who in ("0a", "0b", "1a", "1b", "2a", "2b"):
        assert [store.get("plan", f"{who}{i:016}") for i in range(15)] == [[who, i] for i in range(15)]
    assert store.get("plan", "e" * 16) == "x" * 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_stores_work_across_a_fork() -> None:
    store = cache.plan_store()
    keys = [digit * 16 for digit in "abc"]
    store.put("plan", keys[0], 1)
    child = os.fork()
    if child == 0:
        fine = store.get("plan", keys[0]) == 1 and store.put("plan", keys[1], 2)
        os._exit(0 if fine else 1)
    assert store.put("plan", keys[2], 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [store.get("plan", key) for key in keys] == [1, 2, 3]


def test_the_default_directory_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.ENVIRONMENT_VARIABLE)
    import platformdirs

    assert cache.cache_root().parent == Path(platformdirs.user_cache_dir("eqsat", appauthor=False))


# What is kept is bounded


def fill(root: Path, count: int, nbytes: int) -> list[str]:
    """Entries of ``nbytes`` each, the first one used longest ago; their keys."""
    keys = [f"{n:016x}" for n in range(count)]
    for n, key in enumerate(keys):
        assert cache.kernel_store().put(key, b"x" * nbytes)
        assert cache.kernel_store().put_source(key, "# source\n")
        for kind in ("o", "py"):
            os.utime(root / f"{key}.{kind}", (time.time() - 1000 * (count - n),) * 2)
    return keys


def test_what_was_used_longest_ago_goes_first(root: Path, no_warning: None) -> None:
    keys = fill(root, 20, 10_000)
    assert cache.kernel_store().get(keys[3])  # used now
    machine = "d" * 16
    cache.machine_store().write("machine", machine, b"{}")
    os.utime(root / f"{machine}.machine", (0, 0))
    cache.set_limit(100_000)
    assert 60_000 < cache.size() <= 100_000
    kept = [key for key in keys if cache.kernel_store().get(key)]
    assert kept == [keys[3], *keys[-len(kept) + 1 :]]
    assert {path.stem for path in root.glob("*.py")} == set(kept)  # a module goes with its code
    assert cache.machine_store().read("machine", machine) == b"{}"


def test_writing_keeps_within_the_limit(root: Path, no_warning: None) -> None:
    cache.set_limit(50_000)
    for n in range(40):
        assert cache.kernel_store().put(f"{n:016x}", b"x" * 5_000)
        assert cache.size() <= 50_000
    assert cache.kernel_store().get(f"{39:016x}")
    assert not cache.kernel_store().put(KEY, b"x" * 50_001)  # alone too large: nothing goes for it
    assert cache.size() > 30_000


def test_the_environment_limits_before_the_directory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.limit() == limits.DEFAULT
    cache.set_limit(3 << 20)
    assert cache.limit() == 3 << 20
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "1.5 KiB")
    assert cache.limit() == 1536
    assert not cache.kernel_store().put(KEY, b"x" * 2000)
    monkeypatch.setenv(cache.LIMIT_VARIABLE, "much")
    with pytest.warns(cache.CacheWarning, match="EQSAT_CACHE_LIMIT: 'much' is not a size"):
        assert not cache.kernel_store().put(KEY, b"x")


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", "5 parsecs", "1.2.3", "nan", "9" * 400])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        limits.parse(text)


def test_what_a_killed_process_had_begun_goes(root: Path) -> None:
    cache.kernel_store().put(KEY, b"x")
    old, new = root / f".{'a' * 16}.tmp", root / f".{'b' * 16}.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.clear()
    assert not old.exists() and new.exists()  # the other may be being written
