"""The environment and settings of every process of a job, on this machine and on a cluster."""

import os
from pathlib import Path

import pytest

from gpas_cli.schedule.process import job_environment
from gpas_cli.schedule.slurm import client


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPAS_DB", "postgresql://me:secret@host/name")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HOME_SWEET_HOME", "kept")


def test_jobs_do_not_get_the_database_password() -> None:
    for environment in (job_environment(Path("/code"), {}), client._environment()):
        assert "GPAS_DB" not in environment
        assert environment["HOME_SWEET_HOME"] == "kept"


def test_a_job_imports_the_package_of_its_snapshot_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/elsewhere::mine:")
    environment = job_environment(Path("/code"), {"OMP_NUM_THREADS": "2"})
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/code", "/elsewhere", str(Path.cwd() / "mine")]
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["OMP_NUM_THREADS"] == "2"
