"""docs/reference/run-directory.md is enough: a reader written from it finds what the commands show."""

import json
from pathlib import Path

import run_reader
from documentation import DOCS
from end_to_end import Toy, jobs_run_here
from face import Face, alive


def read_as_shown(project: Face) -> dict[str, dict]:
    """Read all trainings, compare them with `gpas status` and `gpas table`, and return them by name."""
    read = {stage["name"]: stage for stage in map(run_reader.read_stage, project.runs.glob("[0-9a-f][0-9a-f]/*"))}
    cells = {cell["name"]: cell for cell in project("status", "small", "--json").json["cells"]}
    rows = project("table", "small", "--json", expect=None).json["rows"]
    values = {run["name"]: run["value"] for row in rows for cell in row["cells"] for run in cell["runs"]}
    for name, stage in read.items():
        assert (stage["state"], stage["attempt"]) == (cells[name]["state"], cells[name]["attempt"])
        assert cells[name]["step"] in (max(stage["curve"], default=None), None)  # None: no update since the last start
        ends = [end["metrics"]["perplexity"] for _, _, end in stage["results"]]
        assert values[f"small/{name}"] == (ends[-1] if ends else None)
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
    assert [resumed[name]["curve"] for name in whole] == [one["curve"] for one in whole.values()]


def test_a_reader_finds_the_states(tmp_path: Path) -> None:
    face = Face(tmp_path / "project")
    names = [entry.name for entry in face.entries()]
    face.ended(names[0], "done", 9.0).path.with_name("rerun.json").write_text('{"t": 1.0, "after": 1}')
    for code, name in zip((1, 130, 0), names[1:], strict=False):
        attempt = face.attempt(name)
        (attempt.path / "exit.json").write_text(json.dumps({"code": code, "signal": None}))
    with alive(attempt):
        states = {one["state"] for one in read_as_shown(face).values()}
    assert states == {"cancelled", "failed", "missing", "running"}


def test_the_line_on_the_page_is_one() -> None:
    text = (DOCS / "reference/run-directory.md").read_bytes()
    assert [event["loss"] for event in run_reader.events(text)] == [4.5]
