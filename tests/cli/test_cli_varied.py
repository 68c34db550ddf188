"""Cells with settings of the command line: what a run of them prints at its end, and how they are found."""

from __future__ import annotations

from face import Face


def test_no_table_is_offered_for_cells_that_no_table_shows(face: Face) -> None:
    words = ("run", "grid", "small", "--where", "norm=pre", "--where", "seed=1", "--yes")
    varied = face(*words, "optim.lr=7e-3").out
    assert "2 done." in varied
    assert "gpas table" not in varied
    assert "`gpas status --undeclared` lists them" in varied
    assert "pre-s1+lr0.007" in face("status", "--undeclared").out
    assert "2 done. Table: gpas table small" in face(*words).out


def test_a_grid_named_as_a_cell_is_called_a_grid(face: Face) -> None:
    said = face("explain", "small", expect=2)
    assert "'small' is a grid; name one of its cells: pre-s1, pre-s2, pre-gpas-s1, pre-gpas-s2" in said.err
