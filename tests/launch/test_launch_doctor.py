"""What the doctor sees of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpas_cli.launch import doctor
from gpas_cli.project import Project


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = doctor._compiler()
    assert found.status == "note"
    assert found.detail.startswith("no-such-compiler")
    assert "python3-dev" in found.remedy


def test_a_sbatch_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(words: tuple[str, ...], **_options: object) -> None:
        raise subprocess.TimeoutExpired(words, 30)

    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", hang)
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite://")
    (finding,) = doctor._slurm(project, nodes=False)
    assert finding.status == "note"
    assert finding.detail == "sbatch did not answer within 30 s; jobs run on this machine"
