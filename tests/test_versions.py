"""Supported versions; what a public repository and a release need."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import release
import yaml
from documentation import PAGES, ROOT

from gpas_cli import __version__

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


def test_every_address_of_the_repository_is_that_of_pyproject() -> None:
    owner, name = release.source_of(ROOT).split("/")[-2:]
    address = re.compile(rf"https://(?:github\.com/([\w-]+)/{name}|([\w-]+)\.github\.io/{name}|github\.com/([\w-]+)>)")
    files = [*PAGES, *(ROOT / path for path in ("pyproject.toml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"))]
    found = {file.name: {"".join(parts) for parts in address.findall(file.read_text("utf-8"))} for file in files}
    assert {file for file, owners in found.items() if owners - {owner}} == set()
    assert sum(owners == {owner} for owners in found.values()) >= 6


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))["jobs"]
    assert all({"test", "build"} == {*jobs[name]["needs"]} for name in ("pypi", "image", "docs"))
    assert ({*jobs["release"]["needs"]}, jobs["test"]["uses"]) == (
        {"pypi", "image", "docs"},
        "./.github/workflows/ci.yml",
    )


def test_a_release_is_of_the_version_and_the_repository_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "gpas_cli").mkdir()
    for name in ("gpas_cli/__init__.py", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    changes, source = tmp_path / "CHANGELOG.md", release.source_of(ROOT)
    changes.write_text(f"# Changes\n\n## {__version__} - 2027-01-31\n\n- New.\n\n## 0.0.1 - 2026-12-01\n\n- Old.\n")
    assert release.problems(tmp_path, f"v{__version__}", source) == []
    assert release.notes(tmp_path) == "- New."
    changes.write_text(f"## {__version__} - unreleased\n")
    found = "\n".join(release.problems(tmp_path, "v0.0.2", f"{source}-fork"))
    assert re.search(rf"tag v{__version__}.*\n.*`## {__version__} - YYYY-MM-DD`\n.*replace the owner", found)
