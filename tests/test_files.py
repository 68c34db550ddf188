"""Files: replaced, opened, whose they are, on what file system; a link or FIFO in the place of a file is refused."""

import errno
import math
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from end_to_end import Toy
from face import Face, face
from users import ordinary

from gpas_cli import file_systems, files
from gpas_cli.errors import _SHARING, Exit, advise, explain
from gpas_cli.files import append_regular, fsync, open_regular, overlapped, parse_json, read_regular, replace_file
from gpas_cli.state import locks
from gpas_cli.state.observe import observe
from gpas_cli.store.rundir import AttemptDir


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_bytes_and_text_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"\x00old")
    assert path.read_bytes() == b"\x00old"
    replace_file(path, "né\n")
    assert path.read_bytes() == b"n\xc3\xa9\n"
    assert names(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_content_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, "new")
    assert caught.value.filename == str(path)  # not that of the temporary file
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.json"]


def test_an_error_names_the_file_where_nothing_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), f"{tmp_path}/a")
    monkeypatch.setattr(os, "open", Mock(side_effect=read_only))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=read_only))
    with pytest.raises(OSError, match=f"Read-only file system: '{tmp_path}/a'"):
        replace_file(tmp_path / "a", "text")


def test_only_a_durable_file_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    replace_file(tmp_path / "a", "x", durable=False)
    assert synced == []
    replace_file(tmp_path / "a", "x")
    fsync(tmp_path)
    assert len(synced) == 2


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_permissions_do_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "usual", "x")
        replace_file(tmp_path / "asked", "x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "usual").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "asked").stat().st_mode) == mode


def test_nobody_else_can_open_a_private_file_in_the_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created = list[int]()
    monkeypatch.setattr(os, "fchmod", lambda file, mode: created.append(os.fstat(file).st_mode & 0o777))
    before = os.umask(0)
    try:
        replace_file(tmp_path / "a", "x", mode=0o600)
    finally:
        os.umask(before)
    assert created == [0o600]


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "absent" / "a", "x")


def test_a_prefix_names_the_file_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: seen.extend(names(tmp_path)))
    replace_file(tmp_path / "a", "x", prefix=".tmp-")
    assert len(seen) == 1
    assert seen[0].startswith(".tmp-")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"abc"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for opened in (open_regular, append_regular):  # which waits for no reader
        with pytest.raises(OSError, match="not a regular file"):
            opened(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


@pytest.mark.parametrize("opened", [open_regular, append_regular, read_regular])
@pytest.mark.parametrize("there", [b"theirs", None])
def test_no_link_to_a_file_is_followed(tmp_path: Path, opened: Callable[[Path], object], there: bytes | None) -> None:
    """Through a link, whoever can write to the folder could have this user append to a file, or create one."""
    target = tmp_path / "target"
    if there:
        target.write_bytes(there)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="a link, and gpas follows no link") as caught:
        opened(tmp_path / "link")
    assert caught.value.filename == str(tmp_path / "link")
    assert (target.read_bytes() if target.exists() else None) == there


def test_a_folder_on_the_way_to_a_file_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to("scratch")
    for _ in range(2):
        with append_regular(tmp_path / "runs/file") as file:
            file.write(b"ab")
    assert read_regular(tmp_path / "runs/file")[0] == b"abab"


@pytest.mark.parametrize("text", [b"[" * 200_000, '{"a":' * 50_000, b"\xff\xfe{", "", "9" * 5000])
def test_whatever_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


KEY = "0123456789abcdef"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("test_", "popen-", "pytest-")):  # pytest's own folders are private
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_file_of_another_user_is_named_with_its_owner_and_a_remedy(runs: Path) -> None:
    lock = runs / ".lock"
    lock.touch()
    lock.chmod(0o444)
    with ordinary(), pytest.raises(PermissionError) as caught:
        locks.hold(lock)
    with ordinary():
        said = advise(caught.value)
    owner = "root" if os.geteuid() == 0 else "belongs to"
    assert said.startswith(f"no permission for {lock} as ")
    assert owner in said
    assert "-r--r--r--" in said
    assert said.endswith(_SHARING)


def test_the_folder_in_the_way_is_named(runs: Path) -> None:
    runs.chmod(0o600)
    try:
        with ordinary():
            seen = observe(runs, KEY)
    finally:
        runs.chmod(0o755)
    assert seen.state == "unknown"
    assert f"{runs} belongs to" in seen.evidence
    assert "drw-------" in seen.evidence


def test_other_errors_are_unchanged() -> None:
    other = ValueError("[Errno 28] is no number")
    assert advise(other) == explain(other) == str(other)
    assert advise(PermissionError(1, "Operation not permitted")) == "Operation not permitted"
    assert "`ulimit -u`" in advise(RuntimeError("can't start new thread"))
    assert "`ulimit -u`" in advise(OSError(errno.EAGAIN, "Resource temporarily unavailable"))


def test_a_full_or_read_only_file_system_is_named_with_its_path_and_a_remedy(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "runs"))
    said = advise(full)
    assert said.startswith(f"{tmp_path}/runs: No space left on device; free space on that file system")
    assert explain(full) == f"{tmp_path}/runs: No space left on device"
    assert "GPAS_RUNS_DIR" in advise(OSError(errno.EROFS, os.strerror(errno.EROFS), "runs"))
    assert explain(OSError(None, "I/O error: No space left on device")) == "I/O error: No space left on device"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two mounts, of which the last is NFS, below a local root."""
    mounts = [("/", "ext4"), (str(tmp_path), "xfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/scratch", "tmpfs")]
    listed = [SimpleNamespace(mountpoint=mountpoint, fstype=kind) for mountpoint, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: listed)
    return tmp_path


def test_the_longest_and_the_last_mount_counts_links_followed(home: Path) -> None:
    assert file_systems.type_of(Path("/gpas.db")) == "ext4"
    assert file_systems.type_of(home / "gpas.db") == "nfs4"
    assert file_systems.type_of(home / "scratch" / "absent" / "gpas.db") == "tmpfs"
    (home / "link").symlink_to("/")
    assert file_systems.type_of(home / "link" / "gpas.db") == "ext4"
    assert file_systems.network_type(home / "gpas.db") == "nfs4"
    assert file_systems.network_type(Path("/gpas.db")) == ""


def test_mounts_that_cannot_be_listed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", Mock(side_effect=psutil.AccessDenied))
    assert file_systems.type_of(Path("/")) == ""


__all__ = ["face"]
CELL = ("small", "--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")
COMMANDS = (("retry", "--done", *CELL, "--yes"), ("db", "sync"), ("status", "small"), ("logs", "pre-s1"))
THEIRS = b"alias ll='ls -l'\n"


def link(path: Path, target: Path) -> None:
    target.write_bytes(THEIRS)
    path.symlink_to(target)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a link": link, "a dangling link": lambda path, target: path.symlink_to(target), "a FIFO": fifo,
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_whatever_a_run_writes_is_not_followed(face: Face, tmp_path: Path, what: str) -> None:
    face("run", *CELL, "--yes")
    face("db", "sync")
    written = [path for path in (*face.runs.rglob("*"), face.folder / "gpas.db") if path.is_file()]
    assert {".lock", "cpu-0.lock", ".project.json", "alive.lock", "log.txt", "journal.jsonl",
            "gpas.db"} <= {path.name for path in written}  # fmt: skip
    for path in written:
        target, kept = tmp_path / f"of-{path.name}", path.read_bytes()
        path.unlink()
        PLANTED[what](path, target)
        before = target.read_bytes() if target.exists() else None
        for words in COMMANDS:
            assert face(*words, expect=None).code in set(Exit), (path, words)
        assert (target.read_bytes() if target.exists() else None) == before, path
        path.unlink(missing_ok=True)
        path.write_bytes(kept)
        target.unlink(missing_ok=True)


def test_a_job_follows_no_link_in_the_place_of_what_it_writes(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    attempt = AttemptDir(toy.attempts()[0])
    written = [path for path in attempt.path.rglob("*") if path.is_file() and path != attempt.attempt_path]
    assert attempt.journal_path in written
    (tmp_path / "elsewhere").mkdir()
    for number, path in enumerate(written):
        path.unlink()
        path.symlink_to(tmp_path / f"elsewhere/{number}")
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(attempt.path)]
    codes = []
    for _ in range(2):  # at first there is no journal
        done = subprocess.run(command, cwd=toy.folder, env=toy.environment(), capture_output=True, text=True)
        codes.append(done.returncode)
        assert not list((tmp_path / "elsewhere").iterdir()), done.stderr
        attempt.journal_path.unlink(missing_ok=True)
    assert codes == [75, 0], done.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [(".lock", ("run", *CELL, "--yes")), ("slot", ("run", *CELL, "--yes")), ("../gpas.db", ("db", "sync"))],
)  # fmt: skip
def test_a_command_names_the_link_and_starts_nothing(face: Face, place: str, words: tuple[str, ...]) -> None:
    face("run", "small", "--where", "norm=post", "--where", "gate=none", "--where", "seed=1", "--yes")
    path = next(face.runs.glob(".slots/*/cpu-0.lock")) if place == "slot" else face.runs / place
    path.unlink(missing_ok=True)
    path.symlink_to(face.folder / "bashrc")
    before = (face.folder / "ran.txt").read_text()
    said = face(*words, expect=Exit.USAGE).err
    assert f"{path}: a link" in said.replace("runs/../", "") or f"{path.resolve()}" in said
    assert not (face.folder / "bashrc").exists()
    assert (face.folder / "ran.txt").read_text() == before


def test_a_database_may_be_a_link_to_a_database_of_gpas_alone(face: Face, tmp_path: Path) -> None:
    face("run", *CELL, "--yes")
    face("db", "sync")
    (face.folder / "gpas.db").rename(tmp_path / "fast.db")
    (face.folder / "gpas.db").symlink_to(tmp_path / "fast.db")
    assert "1 done" in face("status", "small").out
    face("retry", "--done", *CELL, "--yes")
    face("db", "sync")
    (face.folder / "gpas.db").unlink()
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    theirs = (tmp_path / "other.db").read_bytes()
    (face.folder / "gpas.db").symlink_to(tmp_path / "other.db")
    assert (
        "which is no database of gpas; gpas creates nothing through a link" in face("db", "sync", expect=Exit.USAGE).err
    )
    assert (tmp_path / "other.db").read_bytes() == theirs


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_sqlite_follows_no_link_beside_the_database(face: Face, tmp_path: Path, suffix: str) -> None:
    face("run", *CELL, "--yes")
    face("db", "sync")
    (face.folder / f"gpas.db{suffix}").unlink(missing_ok=True)
    (face.folder / f"gpas.db{suffix}").symlink_to(tmp_path / "target")
    face("retry", "--done", *CELL, "--yes", expect=None)
    face("db", "sync", expect=None)
    assert not (tmp_path / "target").exists()


def test_slow_items_are_taken_several_at_a_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SLOW_SECONDS", -1.0)
    together = threading.Barrier(2, timeout=60)

    def slow(item: int) -> int:
        if item >= 100:
            together.wait()  # until another one is there
        return -item

    assert list(overlapped(slow, range(104))) == [-item for item in range(104)]


@pytest.mark.parametrize(("slow", "threads"), [(math.inf, 1), (-1.0, 2)])
def test_fast_items_are_taken_by_this_thread(slow: float, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SLOW_SECONDS", slow)
    seen = {thread == threading.get_ident() for thread in overlapped(lambda _: threading.get_ident(), range(200))}
    assert len(seen) == threads
    assert list(overlapped(str, [])) == []


def test_an_error_of_an_item_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SLOW_SECONDS", -1.0)
    with pytest.raises(ZeroDivisionError):
        list(overlapped(lambda item: 1 // (90 - item), range(200)))
