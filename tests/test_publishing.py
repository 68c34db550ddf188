"""What a public repository and a release need: one address everywhere, issue forms, workflows, the check of a tag."""

import re
import tomllib
from pathlib import Path

import pytest
import release
import yaml
from documentation import FORMS, PAGES, ROOT

from gpas_cli import __version__

SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_every_address_of_the_repository_is_that_of_pyproject() -> None:
    owner, name = SOURCE.removeprefix("https://github.com/").split("/")
    address = re.compile(rf"https://(?:github\.com/([\w-]+)/{name}|([\w-]+)\.github\.io/{name}|github\.com/([\w-]+)>)")
    files = [*PAGES, *FORMS[0].parent.glob("*.yml"), *ROOT.glob("*.toml"), *ROOT.glob("*.cff"), *ROOT.glob("*.yml")]
    found = {file.name: {"".join(parts) for parts in address.findall(file.read_text("utf-8"))} for file in files}
    assert {file for file, owners in found.items() if owners - {owner}} == set()
    assert {file for file, owners in found.items() if owners} >= {
        "pyproject.toml", "CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "config.yml", "contracts.md"
    }  # fmt: skip


def test_issue_forms_ask_for_what_shows_the_cause() -> None:
    fields = {form.stem: yaml.safe_load(form.read_text("utf-8"))["body"] for form in FORMS}
    asked = {form: {one["id"]: "validations" in one for one in body} for form, body in fields.items()}
    assert asked["bug"] == {"what": True, "expected": True, "doctor": True, "why": False, "experiments": False}
    assert asked["number"] == {"number": True, "right": True, "why": True, "doctor": False}
    assert asked["request"]["want"]


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    needs = {name: {*([wanted] if isinstance(wanted := job.get("needs", []), str) else wanted)} for name, job in jobs.items()}
    publishing = {name for name, job in jobs.items() if "environment" in job or "write" in job.get("permissions", {}).values()}
    assert publishing == {"build", "pypi", "image", "docs", "release"}  # build writes no more than attestations
    assert all(needs[name] == {"test", "build"} for name in ("pypi", "image", "docs"))
    assert needs["release"] == {"pypi", "image", "docs"}
    assert needs["build"] == needs["test"] == {"check"}
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert True in WORKFLOWS["ci"]  # YAML 1.1 reads the key `on` so
    assert "workflow_call" in WORKFLOWS["ci"][True]


def test_actions_are_pinned_by_major_version() -> None:
    steps = [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job.get("steps", [])]
    used = [step["uses"] for step in steps if "uses" in step]
    assert len(used) > 20
    pinned = re.compile(r"(?:actions|docker|pypa|astral-sh)/[\w-]+@(?:release/)?v\d+")
    assert [one for one in used if not pinned.fullmatch(one)] == []


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a checkout that can be released as v0.2.0 from https://github.com/someone/gpas_cli."""
    (tmp_path / "gpas_cli").mkdir()
    (tmp_path / "gpas_cli/__init__.py").write_text('"""Text."""\n\n__version__ = "0.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "https://github.com/someone/gpas_cli"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.2.0 - 2027-01-31\n\n- Newer.\n\n## 0.1.0 - 2026-12-01\n\n- Old.\n")
    return tmp_path


def test_a_release_has_the_notes_of_its_version_alone(ready: Path) -> None:
    assert release.problems(ready, "v0.2.0", "https://github.com/someone/gpas_cli") == []
    assert release.notes(ready, "0.2.0") == "- Newer."
    assert release.notes(ready, "0.1.0") == "- Old."
    assert release.version_of(ROOT) == __version__


def test_a_release_that_does_not_agree_is_refused(ready: Path) -> None:
    (ready / "CHANGELOG.md").write_text("## 0.2.0 - unreleased\n")
    tag, heading, source = release.problems(ready, "v0.3.0", "https://github.com/another/gpas_cli")
    assert "the tag is v0.3.0, but" in tag
    assert "tag v0.2.0" in tag
    assert "`## 0.2.0 - YYYY-MM-DD`" in heading
    assert "replace the owner" in source
