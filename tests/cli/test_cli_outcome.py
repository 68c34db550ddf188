"""The end of a run: one JSON document, and word to a command of the user's."""

import json

import pytest
from face import Face

from gpas_cli.cli import running
from gpas_cli.cli.views.states import CellNameJson
from gpas_cli.errors import Exit

ONE = ("--where", "norm=pre", "--where", "gate=none", "--executor", "local")


def test_the_command_gets_a_line_and_json(face: Face) -> None:
    said = face(
        "run", "small", *ONE, "--notify", 'cat > document.json; echo "$GPAS_SUMMARY" > line.txt; echo noise', "--json"
    )
    document = json.loads((face.folder / "document.json").read_text())
    assert document == said.json
    assert document["counts"] == {"done": 2}
    assert [cell["name"] for cell in document["cells"]] == ["pre-s1", "pre-s2"]
    assert (face.folder / "line.txt").read_text() == "gpas: 2 done of small\n"


def test_the_environment_may_name_it(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPAS_NOTIFY", "touch document")
    face("train", "pre-s1")
    assert (face.folder / "document").exists()


@pytest.mark.parametrize(
    ("command", "warning"),
    [("echo no such host >&2; exit 7", "the command exited with code 7: no such host"), ("sleep 60", "timed out")],
)
def test_a_failing_command_only_warns(face: Face, monkeypatch: pytest.MonkeyPatch, command: str, warning: str) -> None:
    monkeypatch.setattr(running, "_NOTIFY_SECONDS", 0.2 if "sleep" in command else 30)
    said = face("run", "small", *ONE, "--notify", command)
    assert f"warning: --notify: {warning}" in said.out or warning in said.out
    assert "2 done" in said.out


def test_text_from_files_is_never_passed_to_a_shell(face: Face) -> None:
    hostile = "x$(touch broken)`touch broken`;touch broken"
    face.ended("pre-s1", "failed", cause=hostile)
    command = 'cat > document.json; echo "$GPAS_SUMMARY" > line.txt'
    face("run", "small", *ONE, "--notify", command, expect=Exit.FAILED)
    assert hostile in (face.folder / "document.json").read_text()
    name = CellNameJson(key="0" * 16, grid=hostile, name="x")
    cell = running._RunCellJson(
        cell=name, state="done", skipped=False, reason="", attempt=1, directory=None, metrics={}
    )  # fmt: skip
    document = running.RunJson(exit_code=0, counts={"done": 1}, cells=[cell], submitted=None)
    running.run_notify(command, document, running.one_line(document))
    assert (face.folder / "line.txt").read_text() == f"gpas: 1 done of {hostile}\n"
    assert not (face.folder / "broken").exists()


def test_a_failed_run_is_marked_in_its_document(face: Face) -> None:
    face.ended("pre-s1", "failed", cause="no luck")
    document = face("run", "small", *ONE, "--json", expect=Exit.FAILED).json
    assert document["exit_code"] == 4
    assert document["counts"] == {"failed": 1, "done": 1}
    (failed,) = [cell for cell in document["cells"] if cell["state"] == "failed"]
    assert "no luck" in failed["reason"]
