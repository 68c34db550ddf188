"""What `gpas table` prints: published tables without a result, and the suggestions of other commands."""

import csv
from collections import Counter
from pathlib import Path

import pytest
from cases import file_text
from face import EXPERIMENTS, START, Face, end, gpas
from jsonschema import Draft202012Validator
from named_papers import numbers
from schemas import json_schema
from test_cli_schema import check

from gpas_cli.report.tables.render import PaperTablesJson

AGAINST = "against: {gate: none}"


def test_published_tables_need_no_project(tmp_path: Path) -> None:
    said = gpas(tmp_path, "table", "gpas:2", "curse:1", "--published-only", "--format", "markdown")
    assert "| Mix-LN | 34.00 | 26.36 | 21.90 | 21.41 | 16.73 |" in said.out
    assert "| Pre-LN + LayerNorm Scaling | 25.76 | 20.35 | 18.20 | 15.71 |" in said.out
    assert "\n\n**Curse of Depth, Table 1" in said.out  # without an empty line, a title is a row of the table above
    assert list(tmp_path.iterdir()) == []


def test_published_tables_are_one_csv_file(tmp_path: Path) -> None:
    said = gpas(tmp_path, "table", "gpas:4", "gpas:5", "--published-only", "--format", "csv")
    rows = list(csv.DictReader(said.out.splitlines()))
    assert Counter(row["table"] for row in rows) == {"gpas:4": 12, "gpas:5": 6}
    assert all(float(row["value"]) for row in rows)


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
    for options in ((), ("--published-only",)):
        assert "did you mean 'small'" in face("table", "smal", *options, expect=2).err


TABLE_2 = file_text("experiments/table_2.yaml")


def test_a_papers_table_with_our_numbers(face: Face) -> None:
    face.declare(TABLE_2)
    for value, entry in enumerate(face.entries("two")):
        if value < 7:
            metrics = {"perplexity": 31.0 + value, "perplexity_reference": 30.0 + value}
            face.recorded(entry, ("start", START), ("outcome", end("done", metrics=metrics)))
    document = face("table", "--source", "gpas", "--json").json
    Draft202012Validator(json_schema(PaperTablesJson, closed=True)).validate(document)
    assert [table["name"] for table in document["tables"]] == ["gpas:2"]
    assert document["published"][0]["name"] == "gpas:1"
    text = face("table", "gpas:2", "--format", "markdown").out
    assert (
        "| Method | 71M ours, their average | GPAS paper | 71M ours, validation perplexity | 130M ours | GPAS paper |"
        in text
    )
    assert "| Pre-LN | 34.50 ± 0.71 | 34.23 | 35.50 ± 0.71 |  | 26.75 |" in text
    assert "| Pre + GPAS | 36.00 (+2.00) \\[1/2 seeds] | 33.49 (-0.74) | 37.00 (+2.00) \\[1/2 seeds] |" in text
    assert "validation perplexity &" not in face("table", "gpas:2", "--format", "latex").out
    assert "| LNS + GPAS | " in text.splitlines()[14]
    one = face("table", "--source", "poster", "two", "--format", "markdown").out
    assert one.startswith("**GPAS poster, Pretrain perplexity")
    narrow = face("table", "gpas:2", "--where", "norm=lns", "--format", "csv").out
    assert "LNS + GPAS,71m,71M,perplexity" in narrow
    assert "Pre + GPAS,71m" not in narrow
    assert "--value and --best are for the tables of grids" in face("table", "gpas:2", "--value", "loss", expect=2).err


def test_a_number_of_a_papers_table_is_traced_to_its_runs(face: Face) -> None:
    face.declare(TABLE_2)
    for value, entry in zip((34.0, 34.4, 33.0, 33.8), face.entries("two")[4:], strict=True):
        metrics = {"perplexity": value + 1, "perplexity_reference": value}
        face.recorded(entry, ("start", START), ("outcome", end("done", metrics=metrics)))
    document = face("why", "gpas:2[pre+gpas,71m]", "gpas:2[Pre + GPAS,71M]", "--json").json
    check("why", document)
    number, by_title = document["numbers"]
    assert number == by_title
    assert (number["grid"], number["cell"], number["metric"]) == ("gpas:2", "Pre + GPAS,71m", "perplexity_reference")
    assert number["mean"] == pytest.approx(33.4)
    assert [seed["base"] for seed in number["seeds"]] == [34.0, 34.4]
    assert number["published"][0]["value"] == 33.49
    assert number["command"][3:] == ["two", "--where", "norm=pre", "--where", "gate=gpas"]
    assert "'none' matches 2 rows; name one of Pre-LN, LNS" in face("why", "gpas:2[none,71m]", expect=2).err
    assert "the grid has no such cell\n" in face("why", "gpas:2[Post-LN,71m]", expect=2).err
    assert "no grid has cells of gpas:A" in face("why", "gpas:A[pre]", expect=2).err


def test_several_grids_are_one_csv_file(face: Face) -> None:
    face.ended("pre-s1", "done", 4.5)
    two = TABLE_2.partition("grids:\n")[2]
    face.declare(EXPERIMENTS.replace("claims:", f"{two}claims:"))
    header, *lines = csv.reader(face("table", "small", "two", "small", "--paper", "--format", "csv").out.splitlines())
    assert header[:6] == ["grid", "norm", "gate", "size", "metric", "mean"]
    assert header[-2:] == ["published_gpas", "published_delta_gpas"]  # of `two` alone
    assert {len(line) for line in lines} == {len(header)}
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert Counter(row["grid"] for row in rows) == {"small": 4, "two": 4 + 4}  # by two metrics
    assert [row["mean"] for row in rows if row["mean"]] == ["4.5"]
    assert {row["published_gpas"] for row in rows if row["grid"] == "small"} == {""}
    alone = face("table", "small", "--format", "csv").out
    assert alone.startswith("norm,gate,size,metric,")


def test_several_tables_of_papers_are_one_csv_file(face: Face) -> None:
    face.declare(TABLE_2)
    header, *lines = csv.reader(face("table", "gpas:2", "gpas:4", "--format", "csv").out.splitlines())
    assert header[:7] == ["table", "row", "size", "column", "part", "band", "metric"]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    ours = [row for row in rows if row["table"] == "gpas:2" and row["column"] == "71M"]
    assert {row["row"]: row["published_gpas"] for row in ours}["LNS + GPAS"] == "32.93"
    assert {row["text"] for row in ours} == {""}
    theirs = [row for row in rows if row["table"] == "gpas:4"]
    assert len(theirs) == 12
    assert all(float(row["value"]) and row["text"] and not row["metric"] for row in theirs)
