"""The file system of a path, from the mounts listed by psutil."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpas_cli import file_systems


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two mounts, of which the last is NFS, below a local root."""
    mounts = [("/", "ext4"), (str(tmp_path), "xfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/scratch", "tmpfs")]
    listed = [SimpleNamespace(mountpoint=mountpoint, fstype=kind) for mountpoint, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: listed)
    return tmp_path


def test_the_longest_and_the_last_mount_counts(home: Path) -> None:
    assert file_systems.type_of(Path("/gpas.db")) == "ext4"
    assert file_systems.type_of(home / "gpas.db") == "nfs4"
    assert file_systems.type_of(home / "scratch" / "absent" / "gpas.db") == "tmpfs"


def test_a_link_is_followed(home: Path) -> None:
    (home / "link").symlink_to("/")
    assert file_systems.type_of(home / "link" / "gpas.db") == "ext4"


def test_only_types_that_hosts_share_are_network_types(home: Path) -> None:
    assert file_systems.network_type(home / "gpas.db") == "nfs4"
    assert file_systems.network_type(Path("/gpas.db")) == ""


def test_mounts_that_cannot_be_listed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(all: bool) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "disk_partitions", denied)
    assert file_systems.type_of(Path("/")) == ""
