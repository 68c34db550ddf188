"""File replacement: atomic, optionally durable, with the requested permissions; and opening regular files only."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpas_cli.files import append_regular, fsync, open_regular, parse_json, read_regular, replace_file


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_bytes_and_text_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"\x00old")
    assert path.read_bytes() == b"\x00old"
    replace_file(path, "né\n")
    assert path.read_bytes() == b"n\xc3\xa9\n"
    assert names(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_content_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, "new")
    assert caught.value.filename == str(path)  # not that of the temporary file
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.json"]


def test_an_error_names_the_file_where_nothing_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
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


def test_nobody_else_can_open_a_private_file_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "fifo")
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


def test_nothing_waits_for_the_reader_of_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        append_regular(tmp_path / "fifo")


@pytest.mark.parametrize("text", [b"[" * 200_000, '{"a":' * 50_000, b"\xff\xfe{", "", "9" * 5000])
def test_whatever_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
