"""A site's profile: resources of all projects on a cluster, in a file outside the projects."""

from pathlib import Path

import pytest
from cases import file_text
from face import Face

SITE = file_text("experiments/site.yaml")


@pytest.fixture
def site(face: Face) -> Path:
    path = face.folder.parent / "config/gpas/site.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SITE)
    return path


def explained(face: Face) -> dict[str, object]:
    stage: dict[str, object] = face("explain", "small/pre-s1", "--json").json["cells"][0]["stages"][0]
    return stage


def test_a_project_overrides_the_site_setting_by_setting_and_keys_stay(face: Face, site: Path) -> None:
    stage = explained(face)
    asked = stage["resources"]
    assert isinstance(asked, dict)
    assert (asked["partition"], asked["mem"], asked["cpus"], asked["setup"]) == ("gpu", "16G", 2, ["***"])
    assert stage["site"] == {
        "partition": f"{site}:2:20", "account": f"{site}:2:34", "setup": f"{site}:2:47", "mem": f"{site}:3:14",
        "cpus": f"{site}:3:25",
    }  # fmt: skip
    assert f"partition ({site}:2:20), account" in face("explain", "small/pre-s1").out
    text = (face.folder / "experiments.yaml").read_text()
    face.declare(f"{text}resources: {{all: {{partition: short, mem: 4G}}}}\n")
    again = explained(face)
    assert isinstance(again["resources"], dict)
    assert {name: again["resources"][name] for name in ("partition", "account", "mem", "cpus")} == {
        "partition": "short", "account": "proj", "mem": "4G", "cpus": 2
    }  # fmt: skip
    assert again["key"] == stage["key"]


def test_mistakes_in_the_profile_have_their_place(face: Face, site: Path) -> None:
    site.write_text("resources:\n  all: {partiton: gpu}\n  gpt-350m: {mem: 9G}\n  1bb: {mem: 9X}\ngrids: {}\n")
    said = face("plan", expect=2).err
    assert f"{site}:2:9: resources.all.partiton: unknown key 'partiton'; did you mean 'partition'?" in said
    assert f"{site}:4:3: resources.1bb: no size or stage '1bb'" in said
    assert "gpt-350m'" not in said.replace("did you mean 'gpt-350m'", "")  # of a paper that is not included
    assert f"{site}:5:1: grids: unknown key 'grids'" in said


def test_the_profile_may_be_named_and_must_not_be_writable_by_others(
    face: Face, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPAS_SITE", "")
    assert explained(face)["site"] == {}
    monkeypatch.setenv("GPAS_SITE", str(tmp_path / "none.yaml"))
    assert "none.yaml: No such file" in face("plan", expect=2).err
    monkeypatch.delenv("GPAS_SITE")
    site.chmod(0o666)
    assert "is writable by every user" in face("plan", expect=2).err
