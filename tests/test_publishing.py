"""What a public repository and a release need: one address everywhere, tests before publishing, the check of a tag."""

import re
from pathlib import Path

import release
import yaml
from documentation import PAGES, ROOT

from gpas_cli import __version__

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_every_address_of_the_repository_is_that_of_pyproject() -> None:
    owner, name = release.source_of(ROOT).removeprefix("https://github.com/").split("/")
    address = re.compile(rf"https://(?:github\.com/([\w-]+)/{name}|([\w-]+)\.github\.io/{name}|github\.com/([\w-]+)>)")
    files = [*PAGES, *(ROOT / path for path in ("pyproject.toml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"))]
    found = {file.name: {"".join(parts) for parts in address.findall(file.read_text("utf-8"))} for file in files}
    assert {file for file, owners in found.items() if owners - {owner}} == set()
    assert sum(owners == {owner} for owners in found.values()) >= 6


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert all({"test", "build"} == {*jobs[name]["needs"]} for name in ("pypi", "image", "docs"))
    assert {*jobs["release"]["needs"]} == {"pypi", "image", "docs"}
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"


def test_actions_are_pinned_by_major_version() -> None:
    steps = [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job.get("steps", [])]
    pinned = re.compile(r"(?:actions|docker|pypa|astral-sh)/[\w-]+@(?:release/)?v\d+")
    assert [step["uses"] for step in steps if "uses" in step and not pinned.fullmatch(step["uses"])] == []


def test_a_release_is_of_the_version_and_the_repository_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "gpas_cli").mkdir()
    for name in ("gpas_cli/__init__.py", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    changes, source = tmp_path / "CHANGELOG.md", release.source_of(ROOT)
    changes.write_text(f"# Changes\n\n## {__version__} - 2027-01-31\n\n- New.\n\n## 0.0.1 - 2026-12-01\n\n- Old.\n")
    assert release.problems(tmp_path, f"v{__version__}", source) == []
    assert release.notes(tmp_path) == "- New."
    changes.write_text(f"## {__version__} - unreleased\n")
    tag, heading, address = release.problems(tmp_path, "v0.0.2", f"{source}-fork")
    assert f"tag v{__version__}" in tag
    assert f"`## {__version__} - YYYY-MM-DD`" in heading
    assert "replace the owner" in address
