from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpas_cli.store.files import open_regular


def test_a_file_is_read_and_anything_else_of_that_name_refused(tmp_path: Path) -> None:
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
