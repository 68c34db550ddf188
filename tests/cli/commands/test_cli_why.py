"""`gpas why`: how each attempt ended and why it was made, and what a number of a table was computed from."""

from functools import partial
from itertools import chain, product, repeat
from pathlib import Path

import pytest
import torch
from attempts import attempt_at
from face import START, TRAINED, Face, end
from scored import finish_cells, finish_external, score
from test_cli_schema import check

from gpas_cli.events import Outcome, event_of
from gpas_cli.schedule.process import record_exit
from gpas_cli.spec.run import Cadence
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import read_json, write_json
from gpas_cli.train.training import Execution, RunPaths, train


def test_the_reason_of_the_retry_is_shown(face: Face) -> None:
    first = face.attempt("pre-s1", *TRAINED[:4])
    record_exit(first, None, 9)
    second = face.attempt("pre-s1", *TRAINED, ("outcome", end("done", metrics={"perplexity": 4.5})))
    reason = {"of": 1, "why": "killed by SIGKILL without a sign that memory ran out", "reduced": False}
    write_json(second.attempt_path, {**read_json(second.attempt_path), "retry": reason})
    said = face("why", "pre-s1").out
    assert "after attempt 1: killed by SIGKILL without a sign that memory ran out" in said
    tries = face("why", "pre-s1", "--json").json["stages"][0]["attempts"]
    assert [each["retry"] for each in tries] == [None, reason]


def test_an_attempt_that_resumed_with_another_torch_warns(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = face.entry("pre-s1")
    earlier: list[Path] = []
    for version, most in (("2.10.0", 2), (str(torch.__version__), 99)):
        monkeypatch.setattr(torch, "__version__", version)
        attempt = face.waiting(entry)
        paths = RunPaths(attempt.checkpoints, list(earlier), face.folder / "cache", face.folder)
        asks = chain(repeat(None, most), repeat("interrupted"))
        journal = Journal(attempt.journal_path)
        journal.append(event_of({"kind": "start", **START}))
        journal.append(train(entry.cell, paths, journal.append, Execution(Cadence(), partial(next, asks))))
        journal.close()
        earlier.append(attempt.checkpoints)
    message = f"torch: 2.10.0 up to update 2, {torch.__version__} after it, so the result is not bit for bit"
    before, _, after = face("logs", "pre-s1").out.partition("attempt 2")
    assert message not in before
    assert message in after


def test_warnings_of_long_runs_are_logged_and_counted_by_status(face: Face) -> None:
    steps = [("step", {"step": n, "steps": 9000, "loss": 3.0}) for n in range(9000)]
    late = ("warning", {"message": "the disk is slow"})
    face.attempt("pre-s1", ("start", START), *steps, late, ("outcome", {"outcome": "done", "step": 9000}))
    assert "the disk is slow" in face("logs", "pre-s1").out
    face.attempt("pre-gpas-s1", ("start", START), late, late, ("outcome", {"outcome": "diverged", "step": 3}))
    said = face("status", "small").out
    warned = [line.split(", ")[-1].strip() for line in said.splitlines() if "warning" in line]
    assert warned == ["1 warning", "2 warnings"]
    counted = {cell["name"]: cell["warnings"] for cell in face("status", "small", "--json").json["cells"]}
    assert (counted["pre-s1"], counted["pre-gpas-s1"], sum(counted.values())) == (1, 2, 3)


def test_the_key_of_a_network_from_elsewhere_is_no_cell(face: Face) -> None:
    finish_external(face, "zeta", "ab" * 8, score("indent", 0.5))
    face("db", "sync")
    said = face("why", "abab", expect=2)
    assert "no cell 'abab'" in said.err


def test_the_scores_of_a_downstream_stage_are_listed(face: Face) -> None:
    finish_cells(face)
    said = face("why", "scored/pre-gpas", "--json").json
    check("why", said)
    pretrain, downstream = said["stages"]
    assert pretrain["scores"] == []
    found = [(one["task"], one["metric"]) for one in downstream["scores"]]
    assert found == [*product(("indent", "bracket"), ("acc", "acc_norm"))]
    assert downstream["scores"][0].items() <= vars(score("indent", 0.41)).items()
    (line,) = (line for line in face("why", "scored/pre-gpas").out.splitlines() if line.startswith("  indent   acc  "))
    assert line.split() == ["indent", "acc", "41.00", "%", "1.25", "%", "1,200", "0", "1", "gpas_cli", "0.1.0"]


def test_questions_that_were_skipped_are_named_below_the_scores(face: Face) -> None:
    finish_cells(face)
    entry = face.entries("scored")[0]
    skipped = score("indent", 100, metric="skipped", stderr=None, examples=1100)
    attempt_at(
        face.runs,
        entry,
        [event_of({"kind": "start", **START}), skipped, score("indent", 0.4), Outcome("done", 2)],
        place=1,
    )
    said = " ".join(face("why", "scored/pre").out.split())
    assert "indent skipped 100 1,100" in said
    skipped = "indent: 100 of 1,200 questions are not scored, because a choice is longer than max_length; more than 5%"
    assert skipped in said


def test_the_attempt_that_measured_scores_which_were_taken_over_is_named(face: Face) -> None:
    finish_cells(face)
    _, gated = face.entries("scored")
    other, gone = face.entries("scored")[0].cell.stages[1].key, "f" * 16
    scores = [score("indent", 0.5, taken_from=f"{other}/001"), score("bracket", 0.5, taken_from=f"{gone}/012")]
    attempt_at(face.runs, gated, [event_of({"kind": "start", **START}), *scores, Outcome("done", 2)], place=1)
    lines = face("logs", gated.id).out.splitlines()
    taken = [line.partition(", ")[2] for line in lines if "taken over" in line]
    assert taken == [f"taken over from {other}/001", f"taken over from {gone}/012"]
