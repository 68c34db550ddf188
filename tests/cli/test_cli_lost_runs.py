"""Run directories that are gone, as on a file system that is not mounted: commands say so, nothing runs anew."""

import shutil

import pytest
from face import Face

REMARK = "the database knows 1 stage whose run directories are not in"


@pytest.fixture
def done(face: Face) -> Face:
    face.ended("pre-s1", "done", 12.0)
    face("db", "sync")
    return face


@pytest.mark.parametrize("command", ["table", "status", "status small", "plan", "run grid --dry-run"])
def test_a_missing_folder_of_runs_is_remarked(done: Face, command: str) -> None:
    assert REMARK not in done(*command.split()).err
    shutil.move(done.runs, done.folder / "unmounted")
    assert REMARK in done(*command.split()).err


def test_nothing_is_trained_again_without_the_folder(done: Face) -> None:
    shutil.move(done.runs, done.folder / "unmounted")
    said = done("run", "grid", "--yes", expect=2)
    assert "to train these cells again anyway, move the database away" in said.err
    assert not done.runs.exists()


def test_a_table_remarks_one_folder_that_is_gone(done: Face) -> None:
    gone = done.ended("pre-s2", "done", 13.0)
    done("db", "sync")
    shutil.rmtree(gone.path.parent)
    assert REMARK in done("table").err


def test_a_forgotten_result_is_not_remarked(done: Face) -> None:
    done("forget", "pre-s1", "--why", "a trial", "--yes")
    assert REMARK not in done("table").err
