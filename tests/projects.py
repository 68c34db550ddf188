"""Fixtures for tests that start jobs: import them in a room's conftest.py."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from face import poll_often
from launching import Lab

from gpas_cli.project import Project
from gpas_cli.schedule.batch import scheduler
from gpas_cli.schedule.local import run
from gpas_cli.store.snapshot import Snapshot, snapshot, snapshot_path


@cache
def _copied(folder: Path, uses: Collection[str]) -> Snapshot:
    return snapshot(folder / "package", uses=uses)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Poll often, because the fake jobs take no time, and link to one copy of the code: each has hundreds of files."""

    def linked(runs: Path, project: Path | None = None, uses: Collection[str] = ()) -> Snapshot:
        made = _copied(tmp_path_factory.getbasetemp(), tuple(uses))
        if (runs if runs.exists() else runs.parent).stat().st_dev != made.path.stat().st_dev:
            return snapshot(runs, project, uses=uses)
        target = snapshot_path(runs, made.code)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            target.symlink_to(made.path)
        return replace(made, path=target)

    for module in (run, scheduler):
        monkeypatch.setattr(module, "snapshot", linked)
    poll_often(monkeypatch)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Yield an empty project in a folder with an awkward name. Afterwards no fake job is left waiting."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "experiments.yaml").write_text("grids: {}\n")
    yield Project.find(folder / "experiments.yaml", environ={})
    (folder / "go").touch()


@pytest.fixture
def lab(project: Project) -> Lab:
    return Lab(project)
