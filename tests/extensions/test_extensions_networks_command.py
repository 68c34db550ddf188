"""`gpas evaluate`: a network from a folder is scored once, recorded, and restored by a rebuild."""

import json
from pathlib import Path

import pytest
from exporting import Room, needs_transformers
from face import Face
from test_cli_schema import check

from gpas_cli.errors import Exit
from gpas_cli.events import Scoring
from gpas_cli.store.journal import read

pytestmark = needs_transformers
TASKS = ("--limit", "3", "--max-length", "128", "--tasks")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported network."""
    room = Room(tmp_path_factory.mktemp("elsewhere"))
    room.export(room.cell(norm="pre", gate="gpas"), "pre")
    return room.folder / "out/pre"


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


def test_generated_answers_have_an_exact_match_and_an_f1(face: Face, exported: Path) -> None:
    done = face("evaluate", str(exported), *TASKS, "recall", "--json").json
    check("evaluate", done)
    assert {score["metric"]: score["examples"] for score in done["scores"]} == {"exact_match": 3, "f1": 3}
    assert done["metrics"].keys() == {"exact_match/recall", "f1/recall"}
    assert not face("evaluate", str(exported), *TASKS, "recall", "--json").json["new"]
    words = ("evaluate", str(exported), "--tasks", "recall,tydiqa", "--max-length", "64")
    said = face(*words, expect=Exit.USAGE).err
    assert "--max-length: leaves no room for a question of tydiqa, whose answers may have 64 tokens" in said


def test_a_rebuilt_database_has_the_scores(face: Face, exported: Path) -> None:
    words = ("evaluate", str(exported), *TASKS, "indent,bracket", "--name", "theirs", "--json")
    done = face(*words).json
    face("db", "rebuild", "--yes")
    face("db", "check")
    again = face(*words).json
    assert (again["metrics"], again["new"]) == (done["metrics"], False)
    face("status")  # which shows cells only
    assert "no cell" in face("why", "theirs", expect=Exit.USAGE).err


def test_a_task_without_data_is_named_and_the_others_are_scored(
    face: Face, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpas_cli.extensions.harness.scoring.find_spec", lambda _: None)
    said = face("evaluate", str(exported), *TASKS, "indent,piqa", "--json", expect=Exit.INCOMPLETE)
    check("evaluate", said.json)
    assert "1 of 2 tasks not scored (piqa)" in said.json["missing"]
    assert "gpas-cli[downstream]" in said.json["missing"]
    assert {score["task"] for score in said.json["scores"]} == {"indent"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "piqq"), "--tasks: unknown task 'piqq'; did you mean 'piqa'?"),
        (("--shots", "-1"), "--shots: -1 is too small"),
        (("--tasks", "indent", "--shots", "2"), "--shots: has no effect on indent"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(face: Face, words: tuple[str, ...], message: str) -> None:
    assert message in face("evaluate", "nowhere", *words, expect=Exit.USAGE).err
    assert not face.runs.exists()


def test_a_configuration_that_is_not_json_is_one_message(face: Face, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_bytes(b"[" * 200_000)
    said = face("evaluate", str(tmp_path), "--tasks", "indent", expect=Exit.USAGE)
    assert "config.json: not the configuration of a network: it is nested too deeply" in said.err.replace("\n", " ")
