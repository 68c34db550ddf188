"""Fixtures for tests that start jobs: import them in a room's conftest.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpas_cli.project import Project
from gpas_cli.schedule.local import run


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often: the fake jobs take no time."""
    monkeypatch.setattr(run, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(run, "_TICK_SECONDS", 0.05)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Yield an empty project in a folder with an awkward name. Afterwards no fake job is left waiting."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "experiments.yaml").write_text("grids: {}\n")
    yield Project.find(folder / "experiments.yaml", environ={})
    (folder / "go").touch()
