"""What does not need torch runs with each supported Python, and with the lowest versions of the dependencies."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROMISED = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
TOOLS = ["pytest", "hypothesis", "jsonschema", "scipy", "matplotlib"]
ROOMS = ["tests/grid", "tests/report/tables", "tests/statistics", "tests/store", "tests/results"]


def interpreter(version: str) -> str:
    """Return the path of a Python of this version, or skip the test."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    path = shutil.which(f"python{version}")
    if path is None or subprocess.run([path, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no python{version} here")
    return path


@pytest.mark.release
@pytest.mark.parametrize(
    ("version", "lowest"), [(PROMISED[0], True), *((version, False) for version in PROMISED[1:])], ids=str
)
def test_tests_pass(version: str, lowest: bool, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
    needed = [line.replace(">=", "==") if lowest else line for line in PROJECT["dependencies"] if "torch" not in line]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed, *TOOLS], check=True)
    words = [python, "-m", "pytest", "-p", "no:cacheprovider", *ROOMS]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert " passed" in done.stdout
