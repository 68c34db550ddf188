"""What `gpas table` prints: published tables without a result, and the suggestions of other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from face import EXPERIMENTS, Face
from jsonschema import Draft202012Validator
from recorded import gpas

from gpas_cli.cli.schemas.jsonschema import json_schema
from gpas_cli.cli.schemas.tables import PrintedTablesJson
from gpas_cli.report.papers.layouts import numbers

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


def test_published_tables_need_no_project(tmp_path: Path) -> None:
    said = gpas(tmp_path, "table", "gpas:2", "curse:1", "--published-only", "--format", "markdown")
    assert said.returncode == 0, said.stderr
    assert "| Mix-LN | 34.00 | 26.36 | 21.90 | 21.41 | 16.73 |" in said.stdout
    assert "| Pre-LN + LayerNorm Scaling | 25.76 | 20.35 | 18.20 | 15.71 |" in said.stdout
    assert list(tmp_path.iterdir()) == []


def test_published_tables_of_a_source_and_of_a_grid(face: Face) -> None:
    everything = face("table", "--published-only", "--json").json
    Draft202012Validator(json_schema(PrintedTablesJson, closed=True)).validate(everything)
    assert [table["name"] for table in everything["published"]] == [f"gpas:{number}" for number in numbers("gpas")]
    face.declare(EXPERIMENTS.replace(AGAINST, AGAINST + ", published: {poster: pretrain_perplexity@71m}"))
    of_grid = face("table", "small", "--published-only", "--json").json
    assert [table["name"] for table in of_grid["published"]] == ["poster:1"]
    said = face("table", "shares", "--published-only", expect=2)
    assert "grid 'shares' has no published table beside it; name one: gpas:2" in said.err
    assert "did you mean 'small'" in face("table", "smal", "--published-only", expect=2).err
