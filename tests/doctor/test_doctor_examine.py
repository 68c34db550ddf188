"""What the doctor sees of this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpas_cli.doctor import examine
from gpas_cli.project import Project


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = examine._compiler()
    assert found.status == "note"
    assert found.detail.startswith("no-such-compiler")
    assert "python3-dev" in found.remedy


def test_a_sbatch_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(words: tuple[str, ...], **_options: object) -> None:
        raise subprocess.TimeoutExpired(words, 30)

    monkeypatch.setattr(examine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", hang)
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite://")
    (finding,) = examine._slurm(project, nodes=False)
    assert finding.status == "note"
    assert finding.detail == "sbatch did not answer within 30 s; jobs run on this machine"


def test_a_password_that_an_earlier_version_left_in_submissions_is_found(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite://")
    urls = {
        "old": "postgresql+psycopg://gpas:hunter2@db:5432/results",
        "local": f"sqlite:///{tmp_path}/gpas.db",
        "without": "postgresql://gpas@db/results",
    }
    for name, url in urls.items():
        folder = project.runs / ".slurm" / name
        folder.mkdir(parents=True)
        (folder / "submission.json").write_text(json.dumps({"project": {"cache": "/c", "database": url}}, indent=1))
    (finding,) = examine._secrets(project)
    assert finding.status == "problem"
    assert f"{project.runs}/.slurm/old, written by an earlier version" in finding.detail
    assert "hunter2" not in finding.detail
    assert "change the password" in finding.remedy
    (project.runs / ".slurm/old/submission.json").unlink()
    assert list(examine._secrets(project)) == []
