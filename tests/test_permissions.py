"""Messages about files that belong to another user."""

import errno
import os
from pathlib import Path

import pytest
from users import ordinary

from gpas_cli.permissions import _SHARING, advise, explain
from gpas_cli.state import locks
from gpas_cli.state.observe import observe

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
