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


def test_a_command_that_takes_too_long_only_warns(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_NOTIFY_SECONDS", 0.2)
    said = face("run", "small", *ONE, "--notify", "sleep 60").out
    assert "warning: --notify: " in said
    assert "timed out" in said
    assert "2 done" in said


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
