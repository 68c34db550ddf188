"""`gpas retry --done`: a result is obtained again as a new attempt, and nothing is lost meanwhile."""

import pytest
from face import Face

from gpas_cli.errors import Exit
from gpas_cli.state.claim_set import run_again
from gpas_cli.state.rerun import FILE, deciding


def state(face: Face, name: str) -> tuple[str, object]:
    (cell,) = [cell for cell in face("status", "small", "--json").json["cells"] if cell["name"] == name]
    return cell["state"], cell["metrics"].get("perplexity")


def test_a_cell_runs_again_and_the_newest_result_counts_everywhere(face: Face) -> None:
    face.ended("pre-s1", "done", 4.0)
    said = face("retry", "--done", "pre-s1", "--yes", "--executor", "local").out
    assert "small/pre-s1: perplexity 4.00 in attempt 1, finished" in said
    assert state(face, "pre-s1") == ("done", 7.5)  # the result of the fake job
    key = face.entry("pre-s1").key
    assert [path.name for path in sorted((face.runs / key[:2] / key).glob("0*"))] == ["001", "002"]
    assert "7.5" in face("table", "small", "--format", "csv").out
    why = face("why", "pre-s1").out
    assert "attempt 1: done (superseded by attempt 2)" in why
    assert "attempt 2: done  <- the number in tables" in why
    again = face("run", "small", "--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")
    assert "no job to start" in again.out  # the request was answered


def test_a_request_outlives_the_command_that_made_it(face: Face) -> None:
    face.ended("pre-s1", "done", 4.0)
    key = face.entry("pre-s1").key
    assert run_again(face.runs, [key, face.entry("pre-s2").key]) == [key]  # and then the command is killed
    assert state(face, "pre-s1") == ("missing", 4.0)
    listed = face("status", "small").out
    assert "to be run again; the result of attempt 1 counts until then" in listed
    assert "4.0" in face("table", "small", "--format", "csv").out
    face("run", "small", "--where", "norm=pre", "--where", "gate=none", "--where", "seed=1", "--executor", "local")
    assert state(face, "pre-s1") == ("done", 7.5)


def test_an_attempt_that_fails_leaves_the_old_number_in_tables(face: Face) -> None:
    face.ended("pre-s1", "done", 4.0)
    run_again(face.runs, [face.entry("pre-s1").key])
    face.ended("pre-s1", "failed", cause="no luck")
    assert state(face, "pre-s1")[0] == "failed"
    assert "4.0" in face("table", "small", "--format", "csv").out


def test_rerun_needs_a_confirmation(face: Face) -> None:
    face.ended("pre-s1", "done", 4.0)
    assert "Run 1 cell again?" in " ".join(face("retry", "--done", "pre-s1", expect=Exit.USAGE).err.split())
    assert state(face, "pre-s1") == ("done", 4.0)
    assert not list(face.runs.glob(f"??/*/{FILE}"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name cells or a grid"),
        (("pre-s1",), "no result to replace: small/pre-s1 is missing; `gpas run grid` runs cells without one"),
    ],
)
def test_cells_without_a_result_cannot_be_rerun(face: Face, words: tuple[str, ...], message: str) -> None:
    assert message in face("retry", "--done", *words, expect=Exit.USAGE).err


def test_a_rerun_resumes_from_no_earlier_attempt(face: Face) -> None:
    first = face.ended("pre-s1", "done", 4.0)
    assert [attempt.number for attempt in deciding(face.runs, first.key)] == [1]
    run_again(face.runs, [first.key])
    assert deciding(face.runs, first.key) == []
    face.ended("pre-s1", "interrupted")
    assert [attempt.number for attempt in deciding(face.runs, first.key)] == [2]


def test_an_unreadable_rerun_request_changes_no_state(face: Face) -> None:
    made = face.ended("pre-s1", "done", 4.0)
    (made.path.parent / FILE).write_text('{"after": "x"}')
    assert state(face, "pre-s1")[0] == "unknown"
