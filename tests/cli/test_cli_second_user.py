"""A colleague looks at results that they may read and not write."""

import os
from pathlib import Path

import pytest
from face import FOUR, Face, tiny
from users import drop_privileges


def files(project: Face) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_uid, path.stat().st_mode) for path in project.folder.iterdir()}


def become_a_colleague(project: Face) -> None:
    for path in [*project.folder.rglob("*"), project.folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    drop_privileges()


@pytest.mark.parametrize("shared", [False, True], ids=["a folder of the owner's", "a folder of all"])
def test_table_status_and_why_work_for_a_second_user(unprivileged: Path, shared: bool) -> None:
    project = Face(unprivileged / "project", tiny(FOUR))
    project.train_all()
    words = (("table", "--format", "markdown"), ("why", "gpas-s1"))
    before = [project(*one).out.replace("\n", "") for one in words]
    assert "103" in before[0]
    become_a_colleague(project)
    if shared:
        os.seteuid(os.getuid())
        project.folder.chmod(0o777)
        drop_privileges()
    found = files(project)
    assert [project(*one).out.replace("\n", "") for one in words] == before
    assert "4 done" in project("status").out
    assert files(project) == found


def test_results_not_yet_ingested_are_reported_as_left_out(unprivileged: Path) -> None:
    project = Face(unprivileged / "project", tiny(FOUR))
    cells = project.cells()
    for i, cell in enumerate(cells[:3]):
        project.trained(cell, 101.0 + i)
    project("db", "sync")
    project.trained(cells[3], 104.0)
    become_a_colleague(project)
    done = project("table", "--format", "markdown")
    assert "you cannot write to it" in done.out + done.err
    assert "103" in done.out
    assert "1 unsynced" in done.out


def test_without_a_database_a_second_user_reads_the_run_directories(unprivileged: Path) -> None:
    project = Face(unprivileged / "project", tiny(FOUR))
    project.train_all()
    project("status")
    become_a_colleague(project)
    found = files(project)
    assert "103" in project("table", "--format", "markdown").out
    assert files(project) == found
