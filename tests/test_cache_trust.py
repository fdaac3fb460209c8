"""Whose files the cache reads, writes and removes: those that only this user can have written, and no others."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eqsat import cache
from eqsat.cache import folders
from eqsat.cache import store as stores

KEY, OTHER = "0123456789abcdef", "f" * 40
SOMEBODY = 65534
as_superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "above" / "cache"))
    monkeypatch.delenv(cache.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(stores, "_warned", threading.Event())
    return tmp_path / "above" / "cache" / cache.FORMAT


@pytest.fixture
def used(root: Path) -> Path:
    """The directory, with one entry of every kind."""
    assert cache.kernel_store().put(KEY, b"data", "a kernel")
    assert cache.kernel_store().put_source(KEY, "x")
    assert cache.plan_store().put("plan", OTHER, 1)
    assert cache.machine_store().write("machine", KEY, b"{}")
    assert cache.plan_store().put("record", KEY, {})
    return root


def listing(place: Path) -> dict[str, Any]:
    """Everything below a directory, with what links point to and files contain."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        content = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else path.lstat().st_mode
        )
        found[str(path.relative_to(place))] = content
    return found


def nothing_is_used(match: str) -> None:
    """No operation finds, keeps or removes anything; stores warn once in all, actions of the user say why."""
    with pytest.warns(cache.CacheWarning, match=match) as warned:
        assert not cache.kernel_store().put(KEY, b"data")
        assert cache.kernel_store().get(KEY) is None
        assert cache.kernel_store().put_source(KEY, "x") is None
        assert cache.kernel_store().source(KEY) is None
        assert not cache.plan_store().put("plan", OTHER, 1)
        assert cache.plan_store().get("plan", OTHER) is None
        assert not cache.machine_store().write("machine", KEY, b"1")
        assert cache.machine_store().read("machine", KEY) is None
    assert len(warned) == 1
    actions: list[Callable[[], object]] = [cache.entries, cache.size, cache.clear, cache.limit]
    for action in (*actions, lambda: cache.set_limit(1)):
        with pytest.raises(cache.CacheError, match=match):
            action()


def test_what_is_made_is_private(used: Path) -> None:
    for path in (used.parent.parent, used.parent, used, *used.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o722])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_directories_that_others_can_write_to_are_not_trusted(used: Path, level: int, mode: int) -> None:
    """Neither the cache directory nor any above it: who can write there can swap what lies below. Also when it was
    found trustworthy a moment ago."""
    assert cache.kernel_store().get(KEY) == b"data"
    before = listing(used)
    (used, *used.parents)[level].chmod(mode)
    nothing_is_used("writable by")
    assert listing(used) == before
    (used, *used.parents)[level].chmod(0o700)
    assert cache.kernel_store().get(KEY) == b"data"


def test_a_sticky_directory_may_lie_above(used: Path) -> None:
    used.parent.parent.chmod(0o1777)
    assert cache.kernel_store().get(KEY) == b"data"
    used.chmod(0o1777)
    nothing_is_used("writable by, another")


def test_parents_that_cannot_be_listed_are_fine(used: Path) -> None:
    used.parent.chmod(0o100)
    assert cache.kernel_store().get(KEY) == b"data"
    used.parent.chmod(0o700)


@pytest.mark.parametrize(
    ("group", "members", "fine"),
    [
        ("me", [], True),
        ("me", ["me"], True),
        ("root", [], False),
        ("users", [], False),
        ("me", ["me", "other"], False),
        (None, [], False),
    ],
)
def test_a_group_of_the_users_own_may_write_above(
    used: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, members: list[str], fine: bool
) -> None:
    """Where new directories are writable by the user's private group, as on some distributions."""

    def found(gid: int) -> Any:
        if group is None:
            raise KeyError(gid)
        return SimpleNamespace(gr_name=group, gr_mem=members)

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", found)
    fd = os.open(used.parent, os.O_RDONLY)
    assert folders._own_group(fd, 1234) == fine
    os.close(fd)
    if group != "root":
        monkeypatch.setattr(stores, "_warned", threading.Event())
        stores._warned.set()
        used.parent.chmod(0o770)
        gid = used.parent.stat().st_gid
        assert (cache.kernel_store().get(KEY) == b"data") == (
            fine or (gid == 0 and members == [] and group is not None)
        )


def test_links_of_ones_own_above_the_cache_are_followed(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absolute").symlink_to(used.parent.parent)
    (tmp_path / "relative").symlink_to("above/../above/cache")
    for place in ("absolute/cache", "relative", "above/./cache/../cache"):
        monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / place))
        assert cache.kernel_store().get(KEY) == b"data", place
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "loop"))
    with pytest.warns(cache.CacheWarning, match="symbolic links"):
        assert cache.kernel_store().get(KEY) is None


def test_what_a_link_leads_through_must_be_trusted_too(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").symlink_to(used.parent)
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "elsewhere"))
    used.parent.parent.chmod(0o777)
    nothing_is_used("writable by other users")


def test_the_directory_itself_is_no_link(used: Path, tmp_path: Path) -> None:
    shutil.move(used, tmp_path / "theirs")
    before = listing(tmp_path / "theirs")
    used.symlink_to(tmp_path / "theirs")
    nothing_is_used("symbolic link")
    assert listing(tmp_path / "theirs") == before


@as_superuser
@pytest.mark.parametrize("level", [0, 1, 2])
def test_directories_of_another_user_are_not_trusted(used: Path, level: int) -> None:
    before = listing(used)
    os.chown((used, *used.parents)[level], SOMEBODY, SOMEBODY)
    nothing_is_used("another user")
    assert listing(used) == before


@as_superuser
def test_links_and_files_of_another_user_are_not_trusted(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (used / f"{KEY}.o", used / f"{KEY}.machine"):
        os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.warns(cache.CacheWarning, match="only this user") as warned:
        assert cache.kernel_store().get(KEY) is None
        assert not cache.kernel_store().put(KEY, b"mine")
        assert cache.machine_store().read("machine", KEY) is None
    assert len(warned) == 1
    cache.clear()
    assert (used / f"{KEY}.o").exists() and (used / f"{KEY}.machine").exists()
    (tmp_path / "link").symlink_to(used.parent)
    os.lchown(tmp_path / "link", SOMEBODY, SOMEBODY)
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "link"))
    monkeypatch.setattr(stores, "_warned", threading.Event())
    nothing_is_used("link of another user")


def _socket(path: Path, kept: bytes) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _link(path: Path, kept: bytes) -> None:
    (path.parent.parent / "target").write_bytes(kept)
    path.symlink_to("../target")


def _sparse(path: Path, kept: bytes) -> None:
    path.write_bytes(kept)
    os.truncate(path, 1 << 40)


def _writable(path: Path, kept: bytes) -> None:
    path.write_bytes(kept)
    path.chmod(0o666)


HOSTILE: dict[str, Callable[[Path, bytes], object]] = {
    "FIFO": lambda path, kept: os.mkfifo(path),
    "directory": lambda path, kept: path.mkdir(),
    "link": _link,
    "dangling link": lambda path, kept: path.symlink_to("nowhere"),
    "link to a device": lambda path, kept: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "sparse": _sparse,
    "writable by others": _writable,
    "empty": lambda path, kept: path.write_bytes(b""),
    "random": lambda path, kept: path.write_bytes(bytes(range(256)) * 40),
}
REPLACED = ("sparse", "writable by others", "empty", "random")  # they are files of this user, of that name


@pytest.mark.parametrize("kind", ["o", "plan", "machine", "record"])
@pytest.mark.parametrize("what", HOSTILE)
def test_what_eqsat_did_not_write_is_not_read(used: Path, what: str, kind: stores.Kind) -> None:
    key = OTHER if kind == "plan" else KEY
    path = used / f"{key}.{kind}"
    kept = path.read_bytes()
    path.unlink()
    HOSTILE[what](path, kept)
    before = {**listing(used.parent), f"v2/{path.name}": path.lstat().st_mode} if what != "sparse" else {}
    store = stores.Store(used)
    with pytest.warns(cache.CacheWarning) as warned:
        assert store.read(kind, key) is None
        assert len(cache.entries()) in (3, 4)
        assert store.write(kind, key, b"1") == (what in REPLACED)
    assert len(warned) == 1
    if what in REPLACED:
        assert store.read(kind, key) == b"1"
    else:
        assert before == {**listing(used.parent), f"v2/{path.name}": path.lstat().st_mode}
        cache.clear()
        assert os.path.lexists(path) and not (used / f"{KEY}.py").exists()
    target = used.parent / "target"
    assert not target.exists() or target.read_bytes() == kept


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "", "\xff", "NaN" * 3, "9" * 5000])
def test_json_that_cannot_be_read_is_not_found(used: Path, text: str) -> None:
    cache.plan_store().write("plan", OTHER, text.encode("latin-1"))
    with pytest.warns(cache.CacheWarning, match="damaged"):
        assert cache.plan_store().get("plan", OTHER) is None
    cache.plan_store().put("plan", OTHER, {"a": 1})
    assert cache.plan_store().get("plan", OTHER) == {"a": 1}


def test_a_swap_while_it_is_open_changes_nothing(used: Path, tmp_path: Path) -> None:
    """The directory that was looked at is the one that is used, whatever goes by its name by then."""
    with stores.folder_of(used) as folder:
        used.rename(tmp_path / "moved")
        used.mkdir(mode=0o777)
        (used / f"{KEY}.o").write_bytes(b"theirs")
        assert folder.read(f"{KEY}.o") == (tmp_path / "moved" / f"{KEY}.o").read_bytes()
        folder.write("limit", b"1\n")
        folder.remove(f"{KEY}.o")
    assert not (tmp_path / "moved" / f"{KEY}.o").exists() and (tmp_path / "moved" / "limit").exists()
    assert listing(used) == {f"{KEY}.o": b"theirs"}


# Nothing is removed but what eqsat wrote


@pytest.mark.parametrize("marker", [None, b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n"])
@pytest.mark.parametrize("format", ["v1", cache.FORMAT])
def test_a_users_own_files_are_left_alone(root: Path, format: str, marker: bytes | None) -> None:
    """The cache directory may be set to a folder of a project, whatever its subfolders are called."""
    own = root.parent / format
    (own / "kernels" / "ab").mkdir(parents=True)
    for name in ("notes.txt", "plans.sqlite", f"{KEY}.o", f"{KEY}.py", f".{KEY}.tmp", "limit", "kernels/ab/abcd.o"):
        (own / name).write_text("mine")
        os.utime(own / name, (0, 0))
    if marker:
        (own / "CACHEDIR.TAG").write_bytes(marker)
    before = listing(own)
    if format == cache.FORMAT:
        nothing_is_used("another program" if marker else "did not make")
    else:
        assert cache.kernel_store().put(KEY, b"data")
        assert cache.clear() > 0
    assert listing(own) == before


def test_clear_removes_its_own_files_only(used: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (used / f"{OTHER}.o").symlink_to(tmp_path / "precious")
    (used / "notes.txt").write_text("mine")
    (used / f"{KEY}.txt").write_text("mine")
    (used / "kernels").mkdir()
    (used / "kernels" / f"{KEY}.o").write_text("mine")
    (used / f"{'e' * 40}.o").mkdir()
    cache.set_limit(1 << 20)
    own = {f"{KEY}.o", f"{KEY}.py", f"{KEY}.machine", f"{KEY}.record", f"{OTHER}.plan"}
    assert own < set(listing(used))
    nbytes = sum((used / name).stat().st_size for name in own)
    before = listing(tmp_path)
    assert cache.clear() == nbytes
    names = {f"above/cache/v2/{name}" for name in own}
    assert listing(tmp_path) == {name: content for name, content in before.items() if name not in names}
    assert cache.entries() == [] and cache.limit() == 1 << 20
    assert cache.kernel_store().put(KEY, b"again") and cache.kernel_store().get(KEY) == b"again"


def test_room_is_made_among_its_own_files_only(used: Path) -> None:
    (used / "notes.txt").write_text("x" * 10_000)
    (used / f"{'e' * 40}.o").symlink_to("notes.txt")
    for path in used.iterdir():
        os.utime(path, (0, 0))
    cache.set_limit(1)
    assert (used / "notes.txt").exists() and (used / f"{'e' * 40}.o").is_symlink()
    assert not (used / f"{KEY}.o").exists()


# The command line


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eqsat.cli", *arguments], capture_output=True, text=True, timeout=60)


def test_the_command_line_refuses_what_is_not_to_be_trusted(used: Path) -> None:
    used.parent.chmod(0o777)
    for action in (["ls"], ["ls", "--json"], ["clear"], ["limit"], ["limit", "1G"]):
        done = command("cache", *action)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert done.stderr.startswith("eqsat: ") and "writable by other users" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert len(listing(used)) == 6
    assert command("cache", "path").stdout.strip() == str(used)


def test_the_listing_says_what_is_kept(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import cli

    cache.plan_store().put("plan", OTHER, 1, name="[red]layer[/]", arguments="x: float32[2,3]")
    os.utime(used / f"{OTHER}.plan", (0, 0))
    assert cli.main(["cache", "ls", "--json"]) == 0
    rows = {row["kind"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"plan", "kernel", "machine model", "tuning record"}
    assert (rows["plan"]["name"], rows["plan"]["arguments"], rows["plan"]["key"]) == (
        "[red]layer[/]",
        "x: float32[2,3]",
        OTHER,
    )
    assert rows["kernel"]["name"] == "a kernel"
    assert rows["kernel"]["nbytes"] == sum((used / f"{KEY}.{k}").stat().st_size for k in ("o", "py"))
    assert rows["plan"]["used"] == 0 < rows["plan"]["made"]
    assert cli.main(["cache", "ls"]) == 0
    shown = capsys.readouterr().out
    assert "4 entries" in shown and "of at most 2.0 GB" in shown and "[red]layer[/]" in shown and "d ago" in shown


def test_the_listing_of_damaged_entries_says_less(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import cli

    for damage in (
        b"",
        stores.MAGIC,
        stores.MAGIC + b"0" * 64 + b"\n[1]\n",
        stores.MAGIC + b"0" * 64 + b'\n{"made": []}\n',
    ):
        (used / f"{OTHER}.plan").write_bytes(damage)
        assert cli.main(["cache", "ls", "--json"]) == 0
        (row,) = (row for row in json.loads(capsys.readouterr().out) if row["kind"] == "plan")
        assert (row["name"], row["made"], row["nbytes"]) == ("", 0.0, len(damage))
        assert cli.main(["cache", "ls"]) == 0
        capsys.readouterr()


def test_the_limit_is_shown_set_and_obeyed(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import cli

    assert cli.main(["cache", "limit"]) == 0
    assert "of at most 2.0 GB" in capsys.readouterr().out
    assert cli.main(["cache", "limit", "1K"]) == 0
    assert "of at most 1.0 KB" in capsys.readouterr().out
    assert cache.limit() == 1024 and len(cache.entries()) == 4
    assert cli.main(["cache", "limit", "0"]) == 0
    assert [entry.kind for entry in cache.entries()] == ["machine model"]
    assert not cache.kernel_store().put(KEY, b"data")
    with pytest.raises(SystemExit) as error:
        cli.main(["cache", "limit", "much"])
    assert error.value.code == 2 and "'much' is not a size" in capsys.readouterr().err


def test_an_unreadable_limit_is_reported_and_can_be_set_again(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import cli

    (used / "limit").write_text("plenty\n")
    assert cli.main(["cache", "limit"]) == 1
    assert "'plenty' is not a size" in capsys.readouterr().err
    with pytest.warns(cache.CacheWarning, match="plenty"):
        assert not cache.kernel_store().put(KEY, b"data")
    assert cli.main(["cache", "limit", "1M"]) == 0
    assert cache.kernel_store().put(KEY, b"data")


def test_clear_says_what_it_removed(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eqsat import cli

    nbytes = cache.size()
    for freed in (f"removed {nbytes} B", "removed 0 B"):
        assert cli.main(["cache", "clear"]) == 0
        assert capsys.readouterr().out.strip() == f"{freed} from {used}"
