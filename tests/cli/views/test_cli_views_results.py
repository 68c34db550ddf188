"""The table of the results so far of a run. No state of the database may end the run."""

import io
from dataclasses import replace

import pytest
from face import Face
from rich.console import Console
from sqlalchemy.exc import OperationalError

from gpas_cli.cli import selection
from gpas_cli.cli.views.progress import MOST_CELLS, results_so_far
from gpas_cli.errors import StoreError
from gpas_cli.project import Project
from gpas_cli.report import recorded


def shown(face: Face) -> str:
    """Return the table as it is printed, "" if there is none."""
    selection.experiments.cache_clear()
    table = results_so_far(Project.find(None), face.entries())
    printed = io.StringIO()
    if table is not None:
        Console(file=printed, width=100).print(table)
    return printed.getvalue()


def test_it_has_the_numbers_of_the_cells_that_have_ended(face: Face) -> None:
    first, *_ = face.entries()
    assert "100.50" not in shown(face)
    face.ended(first.name, "done", 100.5)
    assert "100.50" in shown(face)


@pytest.mark.parametrize(
    "error", [StoreError("locked"), OperationalError("SELECT 1", {}, Exception("locked")), OSError(28, "disk full")]
)
def test_there_is_none_without_readable_results(face: Face, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    face.ended(face.entries()[0].name, "done", 100.5)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(recorded, "read_results", fail)
    assert shown(face) == ""


def test_there_is_none_for_several_grids_for_many_cells_and_for_a_removed_grid(face: Face) -> None:
    selection.experiments.cache_clear()
    where = Project.find(None)
    assert results_so_far(where, [replace(entry, grid="removed") for entry in face.entries()]) is None
    assert results_so_far(where, [*face.entries(), *face.entries("shares")]) is None
    assert results_so_far(where, face.entries() * MOST_CELLS) is None
