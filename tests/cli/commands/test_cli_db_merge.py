"""`gpas db merge`: results travel between projects, with where they come from."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_steps import other_project
from face import TRAINED, Face, end

from gpas_cli.store.rundir import all_stages, attempts, stage_dir

IN_JOURNAL = ("outcome", end("done", metrics={"perplexity": 8.0, "train_seconds": 2.0}))


def test_results_come_with_all_attempts_and_their_origin(face: Face) -> None:
    face.attempt("pre-s1")
    done = face.attempt("pre-s1", *TRAINED, IN_JOURNAL)
    (done.path / "checkpoints").mkdir()
    (done.path / "checkpoints/weights").write_bytes(b"1234")
    (done.path / "link.txt").symlink_to("/etc/hostname")
    face.ended("pre-s2", "failed", cause="no luck")
    face("db", "sync")
    there = other_project(face)
    face.ended("pre-s1", "failed", cause="no luck")
    said = face("db", "merge", str(there))
    assert said.out.startswith("Copied 1 stage with 2 attempts: small/pre-s1\n")
    assert said.err == "1 stage compared, the last small/pre-s1\n"  # in a log, the next line follows after seconds
    copied = attempts(face.runs, done.key)
    assert [attempt.read_attempt().number for attempt in copied] == [1, 2, 3]
    assert sorted(path.name for path in copied[2].path.iterdir()) == [
        "attempt.json", "imported.json", "journal.jsonl", "log.txt",
    ]  # fmt: skip
    origin = json.loads((copied[2].path / "imported.json").read_text())
    assert origin["project"] == json.loads((there / "runs/.project.json").read_text())["id"]
    assert (origin["runs"], origin["number"]) == (str(there / "runs"), 2)
    assert "8.00" in face("table").out
    assert f"copied from  {there}/runs, attempt 2, project {origin['project']}" in face("why", "small/pre-s1").out
    assert face("db", "check").code == 0
    assert face("db", "merge", str(there / "runs")).out == "Copied before: 1 stage\n"


def test_values_that_an_earlier_version_recorded_are_not_copied(face: Face) -> None:
    done = face.attempt("pre-s1", *TRAINED, IN_JOURNAL)
    record = json.loads(done.attempt_path.read_text())
    record["resources"] |= {"environment": ["HF_TOKEN=S3CRETTOK"], "setup": ["export A=S3CRETTOK"]}
    done.attempt_path.write_text(json.dumps(record))
    face("db", "merge", str(other_project(face)))
    text = attempts(face.runs, done.key)[0].attempt_path.read_text()
    assert "HF_TOKEN=***" in text
    assert "S3CRETTOK" not in text


def test_a_tree_without_an_end_is_copied_to_a_depth(face: Face) -> None:
    done = face.attempt("pre-s1", *TRAINED, IN_JOURNAL)
    bottom = done.path.joinpath(*["d"] * 40)
    bottom.mkdir(parents=True)
    for folder in (bottom, done.path / "d/d"):
        (folder / "file").write_text("1")
    there = other_project(face)
    face("db", "merge", str(there))
    (copied,) = attempts(face.runs, done.key)
    assert [path.relative_to(copied.path).as_posix() for path in copied.path.rglob("file")] == ["d/d/file"]


def test_a_file_without_blocks_that_is_larger_than_the_disk_is_not_copied(face: Face) -> None:
    done = face.attempt("pre-s1", *TRAINED, IN_JOURNAL)
    (done.path / "huge").touch()
    os.truncate(done.path / "huge", 2**42)
    there = other_project(face)
    assert "has 4.4 TB, and " in face("db", "merge", str(there), expect=4).out
    assert attempts(face.runs, done.key) == []


def test_what_cannot_be_merged_is_said(face: Face) -> None:
    done = face.ended("pre-s1", "done", 8.0)
    assert "this project's own run directories" in face("db", "merge", ".", expect=2).err
    there = other_project(face)
    record = (there / "runs" / done.relative / "attempt.json").read_text()
    (there / "runs" / done.relative / "attempt.json").write_text("{")
    said = face("db", "merge", str(there), expect=4)
    assert f"Cannot be read: {done.key}" in said.out
    (there / "runs" / done.relative / "attempt.json").write_text(record.replace(done.key, "0123456789abcdef"))
    said = face("db", "merge", str(there), expect=4)
    assert f"Cannot be read: {done.key}: an attempt.json there is of another stage, '0123456789abcdef'" in said.out
    assert list(all_stages(face.runs)) == []
    assert "no run directories here" in face("db", "merge", str(face.folder / "text"), expect=2).err


@pytest.mark.parametrize("number", ["001", "002"])
@pytest.mark.parametrize("instead", [os.mkfifo, os.mkdir])
def test_a_journal_that_is_no_file_is_named(face: Face, number: str, instead: Callable[[Path], None]) -> None:
    face.attempt("pre-s1")
    done = face.attempt("pre-s1", *TRAINED, IN_JOURNAL)
    there = other_project(face)
    journal = stage_dir(there / "runs", done.key) / number / "journal.jsonl"
    journal.unlink(missing_ok=True)
    instead(journal)
    said = face("db", "merge", str(there), expect=None)
    assert said.code
    assert f"{number}/journal.jsonl" in said.out + said.err
    assert not stage_dir(face.runs, done.key).exists()
