"""A third scheduler, installed as a separate package: every command works with it, and gpas_cli does not know it."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import line_scheduler
import pytest
from face import FAKE_JOB, Face
from launching import until

from gpas_cli.cli.commands import logs
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extension import installed
from gpas_cli.schedule.scheduler import choose
from gpas_cli.state.claims import claim_path
from gpas_cli.store.rundir import write_json

GRID = """\
version: 1
sizes: {toy: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}}
corpora:
  notes: {source: files, path: "text/*.txt", tokenizer: bpe, layout: pack, length: 12, eval_tokens: 20}
grids:
  toy:
    base: {size: toy, data: notes, optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}}
    axes: {seed: [1, 2, 3]}
"""

CLAIM = (
    GRID.replace("axes: {seed: [1, 2, 3]}", "axes: {gate: [none, gpas], seed: [1, 2]}")
    + """\
claims:
  helps: {statement: GPAS helps., grids: [toy], subject: {gate: gpas}, against: {gate: none}, expect: lower}
"""
)


@pytest.fixture
def face(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """Yield a project and an installed package whose entry point is the scheduler `line`."""
    about = tmp_path / "site/line-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gpas_cli.extensions]\nline = line_scheduler:EXTENSION\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(line_scheduler, "COMMAND", FAKE_JOB)
    face.declare(GRID)
    installed.cache_clear()
    yield face
    installed.cache_clear()
    (face.folder / "go").touch()


def states(face: Face) -> list[str]:
    return [cell["state"] for cell in face("status", "toy", "--json").json["cells"]]


def test_a_grid_runs_in_a_line(face: Face) -> None:
    (face.folder / "acts.json").write_text(json.dumps({"s1": "wait", "s2": "fail"}))
    assert "# a line of 3" in face("run", "grid", "toy", "--executor", "line", "--dry-run").out
    assert "a line of 3\n3 jobs submitted" in face("run", "grid", "toy", "--executor", "line").out
    until(lambda: states(face) == ["running", "queued", "queued"])
    assert "0 jobs submitted, 3 already queued or running" in face("run", "grid", "toy", "--executor", "line").out
    cells = face("status", "toy", "--json").json["cells"]
    assert [cell["position"] for cell in cells] == [None, 1, 2]
    assert cells[1]["evidence"].startswith("line line-")
    cells = until(lambda: (found := face("status", "toy", "--json").json["cells"])[0]["step"] and found)
    assert [cell["state"] for cell in cells] == ["running", "queued", "queued"]
    assert "2nd of 2 in line" in face("status", "toy", "--watch").out
    assert "will not start it" in face("cancel", "s3", "--yes").out
    assert "was asked to stop" in face("cancel", "s1", "--yes").out
    until(lambda: states(face) == ["cancelled", "failed", "cancelled"])
    (face.folder / "go").touch()
    (face.folder / "acts.json").unlink()
    assert "3 done" in face("retry", "--executor", "line", "--wait").out
    assert states(face) == ["done"] * 3
    assert "perplexity" in face("table", "toy").out


def test_the_doctor_asks_it_and_reports_one_that_cannot_be_loaded(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(
        line_scheduler.EXTENSION,
        schedulers={**line_scheduler.EXTENSION.schedulers, "broken": "no_such_module:Scheduler"},
    )
    monkeypatch.setattr(line_scheduler, "EXTENSION", broken)
    installed.cache_clear()
    found = {f["what"]: f for f in face("doctor", "--json", expect=Exit.FAILED).json["findings"]}
    assert found["line"]["detail"] == "3 cells may wait in runs/.line"
    assert "'broken' cannot be loaded: ModuleNotFoundError" in found["scheduler"]["detail"]
    assert found["scheduler"]["status"] == "problem"


def test_its_log_is_followed_to_the_end(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    (face.folder / "acts.json").write_text(json.dumps({"s1": "wait"}))
    face("run", "grid", "toy", "--executor", "line", "--where", "seed=1")
    until(lambda: states(face)[0] == "running")

    def poll(seconds: float) -> None:
        (face.folder / "go").touch()  # once it follows
        time.sleep(seconds / 50)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=poll))
    assert "done" in face("logs", "s1", "-f").out


def test_a_claim_of_a_scheduler_that_is_not_installed_is_unknown(face: Face) -> None:
    entry = face.entries("toy")[0]
    path = claim_path(face.runs, entry.key)
    path.parent.mkdir(parents=True)
    claim = {"submitter": "a-1-b", "host": "a", "pid": 1, "time": 1.0, "scheduler": "lnie", "submission": "x"}
    write_json(path, claim)
    (cell, *others) = face("status", "toy", "--json").json["cells"]
    assert (cell["state"], {other["state"] for other in others}) == ("unknown", {"missing"})
    assert "unknown scheduler 'lnie'; did you mean 'line'?" in cell["evidence"]


def test_schedulers_are_chosen_by_name(face: Face) -> None:
    scheduler, note = choose("line", face.runs)
    assert (type(scheduler).__name__, note) == ("LineScheduler", "")
    with pytest.raises(GpasError, match="unknown executor 'lime'; did you mean 'line'"):
        choose("lime", face.runs)


def test_claims_are_decided_by_runs_in_a_line(face: Face) -> None:
    """With a batch scheduler, `gpas run claims` waits for each round; jobs that are queued already are followed."""
    face.declare(CLAIM)
    effects = (-0.8, -1.0, -0.9, -1.1, -0.95, -1.05)
    numbers = {f"gpas-s{seed}": 9 + seed + effect for seed, effect in enumerate(effects, 1)}
    (face.folder / "numbers.json").write_text(json.dumps({f"s{seed}": 9.0 + seed for seed in range(1, 7)} | numbers))
    face("run", "grid", "toy", "--executor", "line", "--where", "seed=1")
    words = ("run", "claims", "helps", "--executor", "line", "--yes", "--json")
    found = face(*words).json
    assert found["claims"][0]["verdict"] == "supported"
    ran = [line.split()[0] for line in (face.folder / "ran.txt").read_text().splitlines()]
    assert len(ran) == len(set(ran)) == 2 * len(found["claims"][0]["parts"][0]["seeds"])
    assert face(*words).json["rounds"] == 0
