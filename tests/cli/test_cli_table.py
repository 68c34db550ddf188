"""What `gpas table` prints: published tables without a result, and the suggestions of other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from face import EXPERIMENTS, START, Face, end
from jsonschema import Draft202012Validator
from recorded import gpas

from gpas_cli.cli.schemas.jsonschema import json_schema
from gpas_cli.cli.schemas.tables import PaperTablesJson
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
    Draft202012Validator(json_schema(PaperTablesJson, closed=True)).validate(everything)
    names = list(dict.fromkeys(table["name"] for table in everything["published"]))
    assert names == [f"gpas:{number}" for number in numbers("gpas")]
    face.declare(EXPERIMENTS.replace(AGAINST, AGAINST + ", published: {poster: pretrain_perplexity@71m}"))
    of_grid = face("table", "small", "--published-only", "--json").json
    assert [table["name"] for table in of_grid["published"]] == ["poster:1"]
    said = face("table", "shares", "--published-only", expect=2)
    assert "grid 'shares' has no published table beside it; name one: gpas:2" in said.err
    assert "did you mean 'small'" in face("table", "smal", "--published-only", expect=2).err


TABLE_2 = """\
version: 1
default: two
corpora: {short: {source: c4, tokenizer: t5, layout: pad, eval_tokens: 256}}
recipes: {71m: {lr: 1e-3, warmup: 1000, steps: 10000, batch: 512}}
grids:
  two:
    base: {size: 71m, data: c4}
    axes: {norm: [lns, pre], gate: [none, gpas], seed: [1, 2]}
    table: {rows: [norm, gate], against: {gate: none}, published: {gpas: table2_perplexity}}
"""


def test_a_papers_table_with_our_numbers(face: Face) -> None:
    face.declare(TABLE_2)
    for value, entry in enumerate(face.entries("two")):
        if value < 7:
            metrics = {"perplexity": 30.0 + value, "perplexity_reference": 30.0 + value}
            face.recorded(entry, ("start", START), ("outcome", end("done", metrics=metrics)))
    document = face("table", "--paper", "--json").json
    Draft202012Validator(json_schema(PaperTablesJson, closed=True)).validate(document)
    assert [table["name"] for table in document["tables"]] == ["gpas:2"]
    assert document["published"][0]["name"] == "gpas:1"
    text = face("table", "gpas:2", "--format", "markdown").out
    assert "| Pre-LN | 34.50 ± 0.71 | 34.23 |" in text
    assert "| Pre + GPAS | 36.00 (+2.00) \\[1/2 seeds] | 33.49 (-0.74) |" in text
    assert "| LNS + GPAS | " in text.splitlines()[14]
    one = face("table", "--source", "poster", "two", "--format", "markdown").out
    assert one.startswith("**GPAS poster, Pretrain perplexity")
    narrow = face("table", "gpas:2", "--where", "norm=lns", "--format", "csv").out
    assert "LNS + GPAS,71m,perplexity" in narrow
    assert "Pre + GPAS,71m" not in narrow
    assert (
        "--value and --external are for the tables of grids" in face("table", "gpas:2", "--value", "loss", expect=2).err
    )
