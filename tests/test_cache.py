"""The cache under every kind of trouble: results never depend on it, and it complains once at most."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eqsat import cache, cli

json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
keeps_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warned", threading.Event())
    monkeypatch.setattr(cache, "BUSY_TIMEOUT_S", 0.2)
    cache._usable.cache_clear()
    yield tmp_path / "cache" / cache.FORMAT
    cache._usable.cache_clear()


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", cache.CacheWarning)
        yield


@keeps_fixtures
@given(st.binary(max_size=2000))
def test_code_comes_back_as_it_was(no_warning: None, data: bytes) -> None:
    store = cache.kernel_store()
    assert store.put("ab12", data)
    assert store.get("ab12") == data
    assert store.get("ab13") is None


@keeps_fixtures
@given(st.binary(min_size=1, max_size=200), st.data())
def test_damaged_code_is_never_returned(root: Path, no_warning: None, data: bytes, how: st.DataObject) -> None:
    store = cache.kernel_store()
    store.put("key1", data)
    path = root / "kernels" / "ke" / "key1.o"
    kept = bytearray(path.read_bytes())
    if how.draw(st.booleans()):
        kept[how.draw(st.integers(0, len(kept) - 1))] ^= 1 << how.draw(st.integers(0, 7))
    else:
        del kept[how.draw(st.integers(0, len(kept) - 1)) :]
    path.write_bytes(bytes(kept))
    assert store.get("key1") is None
    assert store.put("key1", data)
    assert store.get("key1") == data


def test_keys_cannot_leave_the_directory() -> None:
    for key in ("../x", "", "a/b", "a.b"):
        with pytest.raises(ValueError, match="letters and digits"):
            cache.kernel_store().get(key)


def test_printed_modules_are_kept_as_text(root: Path, no_warning: None) -> None:
    store = cache.kernel_store()
    path = store.put_source("k1", "x = 1\n")
    assert path == store.source_path("k1") == root / "kernels" / "k1" / "k1.py"
    assert path is not None
    path.write_text("damaged")
    store.put_source("k1", "x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert store.source_path("k2") is None


@keeps_fixtures
@given(st.text(), st.text(), json_values)
def test_payloads_come_back_equal(no_warning: None, kind: str, key: str, payload: Any) -> None:
    store = cache.plan_store()
    # SQLite text cannot hold lone surrogates; st.text() has none
    assert store.put(kind, key, payload)
    assert store.get(kind, key) == payload
    assert store.get(kind, key + "x") is None
    store.delete(kind, key)
    assert store.get(kind, key) is None


def test_reading_an_absent_database_makes_no_file(root: Path, no_warning: None) -> None:
    assert cache.plan_store().get("plan", "key") is None
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 500])
def test_a_file_that_is_no_database_is_replaced(root: Path, no_warning: None, content: bytes) -> None:
    store = cache.plan_store()
    (root / "plans.sqlite").write_bytes(content)
    assert store.get("plan", "key") is None
    assert store.put("plan", "key", [1])
    assert store.get("plan", "key") == [1]


def test_a_truncated_database_never_gives_a_wrong_payload(root: Path) -> None:
    store = cache.plan_store()
    payloads = {str(i): {"steps": list(range(i, i + 300))} for i in range(20)}
    for key, payload in payloads.items():
        store.put("plan", key, payload)
    whole = (root / "plans.sqlite").read_bytes()
    for size in range(0, len(whole), 3001):
        (root / "plans.sqlite").write_bytes(whole[:size])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cache.CacheWarning)
            for key, payload in payloads.items():
                assert store.get("plan", key) in (None, payload)
            store.put("plan", "new", 1)


def test_a_changed_payload_is_noticed(root: Path) -> None:
    store = cache.plan_store()
    store.put("plan", "key", {"a": 1})
    for statement in ("UPDATE entries SET payload = '{\"a\": 2}'", "UPDATE entries SET payload = 3, digest = NULL"):
        with sqlite3.connect(root / "plans.sqlite") as connection:
            connection.execute(statement)
        connection.close()
        assert store.get("plan", "key") is None


def test_another_programs_database_is_left_alone(root: Path) -> None:
    store = cache.plan_store()
    with sqlite3.connect(root / "plans.sqlite") as connection:
        connection.execute("CREATE TABLE entries (something)")
    connection.close()
    with pytest.warns(cache.CacheWarning):
        assert store.get("plan", "key") is None
        assert not store.put("plan", "key", 1)


def test_a_locked_database_delays_and_warns_once(root: Path) -> None:
    store = cache.plan_store()
    store.put("plan", "key", 1)
    holder = sqlite3.connect(root / "plans.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.warns(cache.CacheWarning) as warned:
        assert store.get("plan", "key") is None
        assert not store.put("plan", "other", 2)
    assert len(warned) == 1
    holder.execute("ROLLBACK")
    holder.close()
    assert store.get("plan", "key") == 1


def test_a_full_disk_warns_once_and_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cache.kernel_store()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(cache.CacheWarning, match="No space left") as warned:
        assert not store.put("key1", b"data")
        assert not store.put("key2", b"data")
        assert store.put_source("key2", "x") is None
    assert len(warned) == 1
    assert store.get("key1") is None
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_full_database_warns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cache.plan_store()
    store.put("plan", "small", 1)
    connect = sqlite3.connect

    def limited(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    with pytest.warns(cache.CacheWarning, match="full"):
        assert not store.put("plan", "big", "x" * 100_000)
    assert store.get("plan", "small") == 1


def use_everything() -> None:
    assert not cache.kernel_store().put("key1", b"data")
    assert cache.kernel_store().get("key1") is None
    assert cache.kernel_store().put_source("key1", "x") is None
    assert not cache.plan_store().put("plan", "key", 1)
    assert cache.plan_store().get("plan", "key") is None
    assert cache.plan_store().rows() == []
    assert cache.document_path("machine.json") is None


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_an_impossible_directory_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / place))
    with pytest.warns(cache.CacheWarning) as warned:
        use_everything()
    assert len(warned) == 1


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_directory_that_others_can_write_to_is_not_trusted(root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(0o777)
    with pytest.warns(cache.CacheWarning, match="another user"):
        use_everything()


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_what_is_made_is_private(root: Path, no_warning: None) -> None:
    cache.kernel_store().put("key1", b"data")
    cache.kernel_store().put_source("key1", "x")
    cache.plan_store().put("plan", "key", 1)
    for path in (root, *root.rglob("*")):
        if path.is_dir() or path.suffix == ".o":
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and POSIX permissions")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_read_only_directory_still_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, place)
        root = cache.cache_root()
        cache.kernel_store().put("key1", b"data")
        cache.plan_store().put("plan", "key", 1)
        everything = [Path(place), root, *root.rglob("*")]
        cache._usable.cache_clear()
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
                fine = cache.kernel_store().get("key1") == b"data"
                fine = fine and cache.plan_store().get("plan", "key") == 1 and not caught
                fine = fine and not cache.kernel_store().put("key1", b"other")
                fine = fine and not cache.plan_store().put("plan", "key", 2)
                fine = fine and cache.plan_store().get("plan", "key") == 1 and len(caught) == 1
            for path in everything:
                path.chmod(0o700)
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_processes_and_threads_write_at_once(root: Path, no_warning: None) -> None:
    script = (
        "import sys, threading, warnings\n"
        "warnings.simplefilter('error')\n"
        "from eqsat import cache\n"
        "def work(who):\n"
        "    for i in range(15):\n"
        "        assert cache.plan_store().put('plan', f'{who}-{i}', [who, i])\n"
        "        assert cache.plan_store().put('plan', 'shared', 'x' * 1000)\n"
        "        assert cache.kernel_store().put('shared', b'y' * 10000)\n"
        "        assert cache.kernel_store().get('shared') == b'y' * 10000\n"
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
        assert [store.get("plan", f"{who}-{i}") for i in range(15)] == [[who, i] for i in range(15)]
    assert store.get("plan", "shared") == "x" * 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_stores_work_across_a_fork() -> None:
    store = cache.plan_store()
    store.put("plan", "before", 1)
    child = os.fork()
    if child == 0:
        fine = store.get("plan", "before") == 1 and store.put("plan", "child", 2)
        os._exit(0 if fine else 1)
    assert store.put("plan", "parent", 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [store.get("plan", key) for key in ("before", "child", "parent")] == [1, 2, 3]


def test_entries_size_and_clear_account_for_everything(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, 0)
    cache.kernel_store().put("k1", b"12345")
    cache.kernel_store().put_source("k1", "x = 1\n")
    cache.plan_store().put("plan", "p1", [1, 2])
    assert [(entry.kind, entry.key) for entry in cache.entries()] == [("code", "k1"), ("plan", "p1"), ("source", "k1")]
    total = cache.size()
    assert total == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    assert cli.main(["cache", "ls", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert cli.main(["cache", "ls"]) == 0
    assert "3 entries" in capsys.readouterr().out
    assert cli.main(["cache", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(root)
    assert cli.main(["cache", "clear"]) == 0
    assert (cache.entries(), cache.size()) == ([], 0)
    cache.kernel_store().put("k1", b"again")
    assert cache.kernel_store().get("k1") == b"again"


def test_the_default_directory_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.ENVIRONMENT_VARIABLE)
    import platformdirs

    assert cache.cache_root().parent == Path(platformdirs.user_cache_dir("eqsat", appauthor=False))
