"""Run directories, `gpas status` and `gpas table` say the same, whatever happens to a directory after it was read.

Without the folder of runs, as on a file system that is not mounted, commands say so, and nothing runs anew.
"""

import os
import shutil
from pathlib import Path

import pytest
from face import FOUR, Face, tiny


@pytest.fixture
def project(tmp_path: Path) -> Face:
    return Face(tmp_path / "project", tiny(FOUR))


def states(project: Face) -> dict[str, str]:
    return {cell["name"]: cell["state"] for cell in project("status", "--all", "--json").json["cells"]}


def test_a_removed_run_directory_counts_nowhere(project: Face) -> None:
    made = project.train_all()
    assert "103" in project("table", "--format", "markdown").out
    gone = made["gpas-s1"].path.parent
    shutil.move(gone, project.folder / "aside")
    assert states(project)["gpas-s1"] == "missing"
    said = project("table", "--format", "markdown").out
    assert "103" not in said
    assert "1/2 seeds" in said
    note = "not shown, because the run directories are gone: the numbers of gpas-s1; restore the directories, or run"
    assert note in said
    assert project("db", "sync", "--json").json["gone"] == 0  # `table` has noticed it
    assert note in project("table", "--format", "markdown").out
    why = project("why", "gpas-s1").out
    assert "its run directory is gone" in why
    assert "<- the number in tables" not in why
    shutil.move(project.folder / "aside", gone)
    assert states(project)["gpas-s1"] == "done"
    assert "not shown" not in project("table", "--format", "markdown").out
    assert "<- the number in tables" in project("why", "gpas-s1").out


def test_sync_reports_removed_run_directories(project: Face) -> None:
    made = project.train_all()
    project("db", "sync")
    shutil.rmtree(made["gpas-s1"].path.parent)
    assert "1 run directory is gone: their" in project("db", "sync").out
    project("db", "rebuild", "--yes")
    assert "not shown" not in project("table", "--format", "markdown").out


@pytest.mark.parametrize("writable", [True, False], ids=["a database that is up to date", "one that stays behind"])
def test_a_damaged_outcome_counts_nowhere(project: Face, writable: bool) -> None:
    made = project.train_all()
    assert "103" in project("table", "--format", "markdown").out
    if not writable:
        (project.folder / "old.db").write_bytes((project.folder / "gpas.db").read_bytes())
    journal = made["gpas-s1"].journal_path
    content = bytearray(journal.read_bytes())
    content[-20] ^= 1
    stat = journal.stat()
    journal.write_bytes(content)
    assert states(project)["gpas-s1"] == "interrupted"
    if not writable:  # as a failing disk leaves it: with its old time, so that ingestion has no reason to read it
        os.utime(journal, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    said = project("table", "--format", "markdown").out
    assert "103" not in said
    assert "1/2 seeds" in said
    assert ("not shown, because the run directories no longer contain them: the numbers of gpas-s1" in said) is (
        not writable
    )


def test_special_files_do_not_block_commands(project: Face) -> None:
    """Opening a FIFO without a writer would block forever."""
    cell = project.cells()[0]
    attempt = project.waiting(cell)
    (attempt.path / "exit.json").write_text('{"code": 1, "signal": null}')
    os.mkfifo(attempt.log_path)
    assert states(project)[cell.name] == "failed"
    assert "not a regular file" in project("logs", cell.name, expect=2).err
    os.mkfifo(attempt.journal_path)
    assert states(project)[cell.name] == "unknown"
    assert f"{attempt.journal_path}: not a regular file" in project("db", "sync").out
    assert "`gpas db sync` ingests it or prints why not" in project("db", "check", expect=4).out


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
