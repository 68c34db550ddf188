"""A project of which nothing is there yet."""

from pathlib import Path

import pytest

from gpas_cli.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project without files; nothing of the hub is in the cache of this machine."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
