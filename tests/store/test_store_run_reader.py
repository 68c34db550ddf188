"""docs/reference/run-directory.md is enough: a reader written from it finds what the commands show."""

import json
import re
import shutil
from pathlib import Path

import run_reader
from documentation import DOCS
from end_to_end import Toy, jobs_run_here
from face import HOST


def read_as_shown(toy: Toy) -> dict[str, dict]:
    """Read all trainings, compare them with `gpas status`, `table` and `figure`, and return them by name."""
    stages = map(run_reader.read_stage, toy.runs.glob("[0-9a-f][0-9a-f]/*"))
    read = {stage["name"]: stage for stage in stages if stage["kind"] == "pretrain"}
    shown = toy.status()
    assert len(read) == 2
    for name, stage in read.items():
        assert (stage["state"], stage["attempt"]) == (shown[name]["state"], shown[name]["attempt"]), name
        assert shown[name]["step"] in (max(stage["curve"]), None)  # None: resumed after the last update
    rows = toy("table", "--json", expect=None).json["rows"]
    values = {run["name"]: run["value"] for row in rows for cell in row["cells"] for run in cell["runs"]}
    results = {f"small/{name}": stage["end"].get("metrics", {}).get("perplexity") for name, stage in read.items()}
    assert results == {name: values.get(name) for name in results}
    return read


def test_a_stranger_reads_what_the_commands_show(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    whole = read_as_shown(toy)
    assert {stage["state"] for stage in whole.values()} == {"done"}
    for journal in toy.runs.glob("*/*/001/journal.jsonl"):
        journal.write_bytes(journal.read_bytes()[:-9])  # its outcome is torn
    torn = read_as_shown(toy)
    assert {stage["state"] for stage in torn.values()} == {"interrupted"}
    with jobs_run_here():
        toy("run", "grid", "--where", "gate=gpas")
    resumed = read_as_shown(toy)
    assert {name: (stage["state"], stage["attempt"]) for name, stage in resumed.items()} == {
        "pre-s1": ("interrupted", 1), "pre-gpas-s1": ("done", 2)
    }  # fmt: skip
    assert resumed["pre-gpas-s1"]["end"]["metrics"]["perplexity"] == whole["pre-gpas-s1"]["end"]["metrics"]["perplexity"]
    assert {name: stage["curve"] for name, stage in resumed.items()} == {n: stage["curve"] for n, stage in whole.items()}


def test_the_line_on_the_page_is_one() -> None:
    text = (DOCS / "reference/run-directory.md").read_text("utf-8")
    (line,) = re.findall(r"^[0-9a-f]{8} \{.*\}$", text, re.MULTILINE)
    (event,) = run_reader.events(b"not a line\n\n" + line.encode())
    assert event["loss"] == 4.5
    assert run_reader.events(line.replace("4.5", "4.6").encode()) == []
