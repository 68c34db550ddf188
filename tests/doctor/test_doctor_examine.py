"""What the doctor finds on this machine and in a project, and the remedy it names."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cases import cases, file_text
from programs import program

from gpas_cli import file_systems
from gpas_cli.doctor import examine
from gpas_cli.project import Project
from gpas_cli.store.session import connect

EXPERIMENTS = file_text("doctor/experiments.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose experiments file, run directories and database are not there yet."""
    database = f"sqlite:///{tmp_path / 'gpas.db'}"
    return Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", database)


def test_a_missing_compiler_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = examine._compiler()
    assert found.status == "note"
    assert found.detail.startswith("no-such-compiler")
    assert "python3-dev" in found.remedy


def test_a_sbatch_that_hangs_is_a_finding(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=subprocess.TimeoutExpired(("sbatch",), 30)))
    (finding,) = examine._schedulers(project, nodes=False)
    assert finding.status == "note"
    assert finding.detail == "jobs run on this machine: sbatch did not answer within 30 s"


@cases("doctor/cases.yaml")
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, status: str, detail: str) -> None:
    if script is not None:
        program(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = examine._gpus()
    assert found.status == status
    assert found.detail.startswith(detail)


def test_a_busy_machine_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "usable_cores", lambda: (0, 1))
    monkeypatch.setattr(examine.psutil, "virtual_memory", lambda: SimpleNamespace(available=5e9))
    for load, status in ((1.9, "ok"), (2.1, "note")):
        monkeypatch.setattr(examine.psutil, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        found = examine._cores()
        assert (found.status, found.detail) == (status, f"2 cores, load {load}, 5.0 GB of memory free")


@pytest.mark.parametrize(("free", "status"), [(1.9e9, "problem"), (2.1e9, "ok")])
def test_full_disk(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, status: str) -> None:
    monkeypatch.setattr(file_systems.shutil, "disk_usage", lambda folder: SimpleNamespace(free=int(free)))
    found = examine._disk(project)  # there is no runs/ yet
    assert (found.status, bool(found.remedy)) == (status, status == "problem")
    assert found.detail == f"{free / 1e9:.1f} GB free at {tmp_path}"


@pytest.mark.parametrize(("kind", "status", "shown"), [("nfs4", "note", "nfs4"), ("ext4", "ok", "local")])
def test_a_network_file_system_is_a_note(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str, shown: str
) -> None:
    monkeypatch.setattr(file_systems, "type_of", lambda _path: kind)
    system, locks = examine._files(project)
    assert (system.status, system.detail) == (status, f"{shown}: {tmp_path}")
    assert ("GPAS_DB" in system.remedy) == (status == "note")
    assert locks.status == "ok"


def test_a_file_system_without_locks_is_a_problem(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine.fcntl, "flock", Mock(side_effect=OSError(37, "No locks available")))
    _, locks = examine._files(project)
    assert locks.status == "problem"
    assert "No locks available" in locks.detail
    assert "GPAS_RUNS_DIR" in locks.remedy


def test_the_experiments_file_is_read(project: Project) -> None:
    def found() -> tuple[str, str]:
        (finding,) = examine._experiments(project, None)
        return finding.status, finding.detail

    assert found()[0] == "note"
    project.config.write_text(EXPERIMENTS)
    assert found() == ("ok", f"{project.config}: 1 grid, 2 cells")
    project.config.write_text(EXPERIMENTS.replace("size: quickstart", "size: quickstrat"))
    status, detail = found()
    assert status == "problem"
    assert "experiments.yaml:4:" in detail


def test_the_database_is_opened(project: Project, tmp_path: Path) -> None:
    assert examine._database(project).status == "ok"  # there is none yet
    connect(project.database).dispose()
    assert examine._database(project).status == "ok"
    (tmp_path / "gpas.db").write_text("no database, but long enough to have a header of its own\n" * 20)
    found = examine._database(project)
    assert found.status == "problem"
    assert "gpas.db" in found.detail
