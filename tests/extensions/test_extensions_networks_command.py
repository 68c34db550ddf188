"""Networks that were not trained here, as the commands show them: planned, explained, listed, scored and refused."""

import json
from pathlib import Path

import pytest
from cases import cases, file_text
from exporting import Room, needs_transformers
from face import Face
from test_cli_schema import check

from gpas_cli.errors import Exit
from gpas_cli.events import Scoring
from gpas_cli.extensions.networks.network import digests, pin_of
from gpas_cli.store.journal import read

GRIDS = file_text("experiments/networks.yaml")


@pytest.fixture
def nets(face: Face) -> Face:
    folder = face.folder / "net"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text('{"num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 99}')
    (face.folder / "notes.txt").write_text("some text")
    declare(face)
    return face


def pin(face: Face) -> str:
    return pin_of(*digests(face.folder / "net"))


def declare(face: Face, more: str = "", pinned: bool = True) -> None:
    pinned_path = f"path: net, sha256: {pin(face)}" if pinned else "path: net"
    face.declare(GRIDS.replace("path: net", pinned_path).replace("text: notes.txt}", f"text: notes.txt}}{more}"))


def test_a_folder_without_a_pin_gets_the_digest_to_write(nets: Face) -> None:
    declare(nets, pinned=False)
    said = nets("plan", "nets", expect=Exit.USAGE).err.replace("\n", " ")
    assert f"networks.theirs.sha256: is required: the digest of the folder's files, now {pin(nets)}" in said
    assert "size" not in said  # what follows from the faulty declaration is not reported


@pytest.mark.parametrize("pinned", [True, False])
@cases("extensions/cases.yaml")
def test_a_folder_without_a_network_is_refused_when_planned(
    nets: Face, pinned: bool, removed: list[str], message: str
) -> None:
    """No digest of it is offered to pin."""
    declare(nets, pinned=pinned)
    for name in removed:
        (nets.folder / "net" / name).unlink()
    (nets.folder / "net" / "smol.gguf").touch()
    command = ("run", "grid") if pinned else ("plan",)
    said = nets(*command, "nets", "--where", "network=theirs", expect=Exit.USAGE).err.replace("\n", " ")
    assert message in said
    assert "GGUF is not read" in said
    assert "now " not in said


def test_a_plan_has_the_networks_with_their_names_and_no_updates(nets: Face) -> None:
    document = nets("plan", "nets", "--json", expect=None).json
    sizes = {one["size"]: one for one in document["sizes"]}
    assert set(sizes) == {"theirs", "hub"}
    assert 6e9 < sizes["hub"]["parameters"] < 7e9
    assert {one["updates"] for one in sizes.values()} == {0}


def test_a_plan_says_that_a_shape_is_unknown(nets: Face) -> None:
    nets.edit(", layers: 32, hidden: 4096", "")
    warnings = " ".join(nets("plan", "nets", "--json", expect=None).json["warnings"])
    assert "org/name: its shape is unknown until it is on this machine" in warnings
    assert "net: its shape" not in warnings


def test_a_missing_folder_is_named_before_anything_starts(nets: Face) -> None:
    (nets.folder / "net").rename(nets.folder / "elsewhere")
    said = nets("run", "grid", "nets", "--where", "network=theirs", expect=Exit.USAGE).err.replace("\n", " ")
    assert f"there is no folder {nets.folder / 'net'}" in said
    assert not list(nets.runs.glob("??/*/001"))


@pytest.mark.parametrize("setting", ["size: toy", "norm: pre", "optim: {lr: 1}", "seed: 3", "start: theirs"])
def test_a_setting_of_a_training_has_no_effect(nets: Face, setting: str) -> None:
    declare(nets, f", {setting}")
    said = nets("plan", "nets", expect=Exit.USAGE).err.replace("\n", " ")
    assert f"{setting.partition(':')[0]}: has no effect on a network that was not trained here" in said


def test_explain_says_what_it_is_and_what_measures_it(nets: Face) -> None:
    said = nets("explain", "nets/theirs").out
    assert "net, not trained here" in said
    assert "stage importance" in said
    assert "x <- " not in said
    document = nets("explain", "nets/theirs", "--json").json
    assert document["cells"][0]["layers"] == []
    assert set(document["cells"][0]["cell"]) == {"network", "texts", "importance"}


def test_what_needs_a_checkpoint_says_that_there_is_none(nets: Face, tmp_path: Path) -> None:
    said = nets("export", "nets/theirs", str(tmp_path / "out"), expect=Exit.USAGE).err
    assert "net was not trained here, so it has no checkpoint" in said.replace("\n", " ")


def test_a_table_and_the_status_list_them(nets: Face) -> None:
    assert "theirs" in nets("status", "nets").out
    document = nets("table", "nets", "--json", expect=None).json
    assert [row["title"] for row in document["rows"]] == ["theirs", "hub"]
    assert "one seed per cell" not in nets("table", "nets", expect=None).out  # which no network of others has


TASKS = ("--limit", "3", "--max-length", "128", "--tasks")


@pytest.fixture(scope="module")
def exported(room: Room) -> Path:
    """Return an exported network."""
    room.export(room.cell(norm="pre", gate="gpas"), "pre")
    return room.folder / "out/pre"


@needs_transformers
def test_scores_are_recorded_once(face: Face, exported: Path) -> None:
    first = face("evaluate", str(exported), *TASKS, "indent", "--json").json
    check("evaluate", first)
    assert [(score["task"], score["examples"]) for score in first["scores"]] == [("indent", 3)] * 2
    assert first["new"]
    again = face("evaluate", str(exported), *TASKS, "indent,bracket", "--json").json
    assert {score["task"] for score in again["scores"]} == {"indent", "bracket"}
    assert again["metrics"]["accuracy/indent"] == first["metrics"]["accuracy/indent"]
    assert "accuracy/average" in again["metrics"]
    said = face("evaluate", str(exported), *TASKS, "bracket")
    assert "all were recorded earlier" in said.out
    assert len(list(face.runs.glob("??/*/001"))) == 2
    events = [line.event for line in read(Path(again["directory"]) / "journal.jsonl")[0]]
    assert {event.task for event in events if isinstance(event, Scoring)} == {"bracket"}
    record = json.loads((Path(first["directory"]) / "attempt.json").read_text())
    assert record["stage"] == "downstream"
    assert record["cell"]["network"]["path"] == str(exported)
    assert first["origin"]["source"] == str(exported)


@needs_transformers
def test_generated_answers_have_an_exact_match_and_an_f1(face: Face, exported: Path) -> None:
    done = face("evaluate", str(exported), *TASKS, "recall", "--json").json
    check("evaluate", done)
    assert {score["metric"]: score["examples"] for score in done["scores"]} == {"exact_match": 3, "f1": 3}
    assert done["metrics"].keys() == {"exact_match/recall", "f1/recall"}
    assert not face("evaluate", str(exported), *TASKS, "recall", "--json").json["new"]
    words = ("evaluate", str(exported), "--tasks", "recall,tydiqa", "--max-length", "64")
    said = face(*words, expect=Exit.USAGE).err
    assert "--max-length: leaves no room for a question of tydiqa, whose answers may have 64 tokens" in said


@needs_transformers
def test_a_rebuilt_database_has_the_scores(face: Face, exported: Path) -> None:
    words = ("evaluate", str(exported), *TASKS, "indent,bracket", "--name", "theirs", "--json")
    done = face(*words).json
    face("db", "rebuild", "--yes")
    face("db", "check")
    again = face(*words).json
    assert (again["metrics"], again["new"]) == (done["metrics"], False)
    face("status")  # which shows cells only
    assert "no cell" in face("why", "theirs", expect=Exit.USAGE).err


@needs_transformers
def test_a_task_without_data_is_named_and_the_others_are_scored(
    face: Face, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpas_cli.extensions.harness.scoring.find_spec", lambda _: None)
    said = face("evaluate", str(exported), *TASKS, "indent,piqa", "--json", expect=Exit.INCOMPLETE)
    check("evaluate", said.json)
    assert "1 of 2 tasks not scored (piqa)" in said.json["missing"]
    assert "gpas-cli[downstream]" in said.json["missing"]
    assert {score["task"] for score in said.json["scores"]} == {"indent"}


@cases("extensions/cases.yaml")
def test_settings_are_checked_before_anything_is_loaded(face: Face, words: tuple[str, ...], message: str) -> None:
    assert message in face("evaluate", "nowhere", *words, expect=Exit.USAGE).err
    assert not face.runs.exists()
