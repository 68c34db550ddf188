"""docs/reference/run-directory.md is enough: a reader written from it finds what the commands show."""

import json
from pathlib import Path

import run_reader
from documentation import DOCS
from end_to_end import Toy, jobs_run_here
from face import Face, alive


def read_as_shown(toy: Toy) -> dict[str, dict]:
    """Read all trainings, compare them with `gpas status` and `gpas table`, and return them by name."""
    stages = map(run_reader.read_stage, toy.runs.glob("[0-9a-f][0-9a-f]/*"))
    read = {stage["name"]: stage for stage in stages if stage["kind"] == "pretrain"}
    for name, cell in toy.status().items():
        assert (read[name]["state"], read[name]["attempt"]) == (cell["state"], cell["attempt"])
        assert cell["step"] in (max(read[name]["curve"]), None)  # None: there is no update after the last start
    rows = toy("table", "--json", expect=None).json["rows"]
    values = {run["name"]: run["value"] for row in rows for cell in row["cells"] for run in cell["runs"]}
    assert values == {f"small/{name}": one["end"].get("metrics", {}).get("perplexity") for name, one in read.items()}
    return read


def test_a_reader_finds_the_results_of_whole_torn_and_resumed_trainings(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    whole = read_as_shown(toy)
    for journal in toy.runs.glob("*/*/001/journal.jsonl"):
        journal.write_bytes(journal.read_bytes()[:-9])  # in the middle of its outcome
    assert {stage["state"] for stage in read_as_shown(toy).values()} == {"interrupted"}
    with jobs_run_here():
        toy("run", "grid", "--where", "gate=gpas")
    resumed = read_as_shown(toy)
    assert {name: one["attempt"] for name, one in resumed.items() if one["state"] == "done"} == {"pre-gpas-s1": 2}
    assert all(resumed[name]["curve"] == whole[name]["curve"] for name in whole)


STATES = {
    "failed": {"exit.json": {"code": 1, "signal": None}},
    "interrupted": {"exit.json": {"code": 75, "signal": None}},
    "cancelled": {"exit.json": {"code": None, "signal": 9}, "cancel.json": {"t": 1.0}},
    "done": {"../rerun.json": {"t": 1.0, "after": 0}},
    "missing": {"../rerun.json": {"t": 1.0, "after": 1}},
    "running": {},
}


def test_a_reader_finds_the_states(tmp_path: Path) -> None:
    face = Face(tmp_path / "project")
    for files, entry in zip(STATES.values(), face.entries(), strict=False):
        attempt = face.ended(entry.name, "done", 9.0) if "../rerun.json" in files else face.attempt(entry.name)
        for name, content in files.items():
            (attempt.path / name).write_text(json.dumps(content))
    with alive(attempt):
        read = [run_reader.read_stage(stage) for stage in face.runs.glob("[0-9a-f][0-9a-f]/*")]
        shown = {cell["name"]: cell["state"] for cell in face("status", "--json").json["cells"]}
    assert {stage["name"]: stage["state"] for stage in read}.items() <= shown.items()
    assert sorted(stage["state"] for stage in read) == sorted(STATES)


def test_the_line_on_the_page_is_one() -> None:
    text = (DOCS / "reference/run-directory.md").read_bytes()
    assert [event["loss"] for event in run_reader.events(text)] == [4.5]
    assert run_reader.events(text.replace(b"4.5", b"4.6")) == []
