"""`gpas why`: how each attempt ended and why it was made."""

from __future__ import annotations

from face import TRAINED, Face, end
from scored import finish_cells
from test_cli_schema import check

from gpas_cli.schedule.process import record_exit
from gpas_cli.store.rundir import read_json, write_json


def test_the_signal_and_the_reason_of_the_retry_are_shown(face: Face) -> None:
    first = face.attempt("pre-s1", *TRAINED[:4])
    record_exit(first, None, 9)
    second = face.attempt("pre-s1", *TRAINED, ("outcome", end("done", metrics={"perplexity": 4.5})))
    reason = {"of": 1, "why": "killed by SIGKILL, and nothing shows that memory ran out", "reduced": False}
    write_json(second.attempt_path, {**read_json(second.attempt_path), "retry": reason})
    said = face("why", "pre-s1").out
    assert "attempt 1: interrupted, killed by SIGKILL" in said
    assert "after attempt 1: killed by SIGKILL, and nothing shows that memory ran out" in said
    tries = face("why", "pre-s1", "--json").json["stages"][0]["attempts"]
    assert [(each["signal"], each["retry"]) for each in tries] == [(9, None), (None, reason)]


def test_the_scores_of_a_downstream_stage_are_listed(face: Face) -> None:
    finish_cells(face)
    said = face("why", "scored/pre-gpas", "--json").json
    check("why", said)
    pretrain, downstream = said["stages"]
    assert pretrain["scores"] == []
    assert [(one["task"], one["metric"]) for one in downstream["scores"]] == [
        ("indent", "acc"),
        ("indent", "acc_norm"),
        ("bracket", "acc"),
        ("bracket", "acc_norm"),
    ]
    assert downstream["scores"][0] == {
        "task": "indent",
        "metric": "acc",
        "value": 0.41,
        "stderr": 0.0125,
        "examples": 1200,
        "shots": 0,
        "task_version": "1",
        "harness": "gpas_cli 0.1.0",
    }
    (line,) = (line for line in face("why", "scored/pre-gpas").out.splitlines() if line.startswith("  indent   acc  "))
    assert line.split() == ["indent", "acc", "41.00", "%", "1.25", "%", "1,200", "0", "1", "gpas_cli", "0.1.0"]
