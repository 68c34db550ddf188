"""`gpas why`: how each attempt ended and why it was made."""

from __future__ import annotations

from face import TRAINED, Face, end

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
