"""The package without the folder of its extensions: the quickstart runs, and its table is printed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpas_cli

ROOT = Path(gpas_cli.__file__).parents[1]


@pytest.mark.long
def test_the_quickstart_runs_without_the_folder(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "gpas_cli", tmp_path / "gpas_cli", ignore=shutil.ignore_patterns("extensions", "__pycache__")
    )
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    shutil.copy(ROOT / "experiments.yaml", tmp_path)
    (tmp_path / "project").mkdir()

    def gpas(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "gpas_cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    gpas("init", "--papers")
    assert "2 done" in gpas("run", "grid", "quickstart", "--shrink", "--where", "norm=pre", "--executor", "local")
    assert "22 cells: 22 missing" in gpas("status")
    assert "Pre-LN" in gpas("table", "quickstart", "--paper")
