"""The published numbers of a table are suggested only where a grid declares some."""

from __future__ import annotations

import pytest
from face import EXPERIMENTS, Face

AGAINST = "against: {gate: none}"


@pytest.mark.parametrize(
    ("published", "command"),
    [("", "gpas table small"), (", published: {gpas: table2_perplexity@71m}", "gpas table small --paper")],
)
def test_paper_is_suggested_where_there_are_published_numbers(face: Face, published: str, command: str) -> None:
    face.declare(EXPERIMENTS.replace(AGAINST, AGAINST + published))
    for entry in face.entries():
        face.ended(entry.name, "done", 4.5)
    said = face("run", "grid", "small", "--executor", "local", "--yes")
    assert f"Table: {command}\n" in said.out
