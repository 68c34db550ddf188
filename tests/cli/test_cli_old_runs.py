"""Run directories that version 1 of the records wrote (`tests/store/data/version_1`) are read by every command.

Four cells: `s1` and `gpas-s1` are done; `s2` was killed twice in a SLURM job that still claims it; `gpas-s2` has a
result, was asked for again, and the second attempt was cancelled.
"""

import shutil
from pathlib import Path

import pytest
from face import Face

from gpas_cli.state.claims import read_claim
from gpas_cli.state.outputs import text_of
from gpas_cli.state.view import SchedulerView, facts_of, stage_title
from gpas_cli.store.rundir import attempts, read_json, stage_dir

OLD = Path(__file__).parents[1] / "store/data/version_1"
KILLED, CANCELLED = "ce77848a75c2b536", "8cadd676e2b2ad58"
DONE = "f9c77c5bd118ffff"


@pytest.fixture
def old(face: Face, monkeypatch: pytest.MonkeyPatch) -> Face:
    shutil.copytree(OLD, face.folder, dirs_exist_ok=True)
    monkeypatch.setenv("PATH", str(face.folder))  # no SLURM commands
    return face


def test_status_plan_and_table(old: Face) -> None:
    cells = {cell["name"]: cell for cell in old("status", "--json").json["cells"]}
    found = {name: cell["state"] for name, cell in cells.items()}
    assert found == {"s1": "done", "gpas-s1": "done", "s2": "queued", "gpas-s2": "cancelled"}
    assert "2 done" in old("plan", "toy").out
    assert cells["s2"]["evidence"].startswith("submitted as gpas-toy-0123456789ab")
    assert "263.27" in old("table", "toy").out


def test_sync_reads_every_event_and_the_doctor_finds_no_damage(old: Face) -> None:
    assert old("db", "sync", "--json").json["events"] == 27 + 22 + 23 + 21 + 22 + 9
    assert "damaged" not in old("db", "check", expect=None).out


def test_why(old: Face) -> None:
    out = old("why", "toy/gpas-s2").out
    assert "attempt 1: done  <- the number in tables" in out
    assert "attempt 2: cancelled" in out
    assert "code         493e9fe53c14b51b, commit 189dc5c4de9f" in out


def test_why_shows_the_reason_of_a_retry(old: Face) -> None:
    out = old("why", "toy/s2").out
    assert "after attempt 1: out of memory; now 2 rows at a time" in " ".join(out.split())


def test_logs(old: Face) -> None:
    out = old("logs", "toy/s2").out
    assert "tokenising files train: 95 documents, 54202 tokens" in out
    assert "12/12  loss 5.596  lr 0.0001182  gradient 0.5291  6,299 tokens/s" in out
    assert "update 6: validation loss 5.591, perplexity 268.1" in out
    assert "spike: loss 9.5 at update 10, usually 5.5" in out
    assert "warning: a shard is passed over" in out


def test_the_facts_that_an_export_needs(old: Face) -> None:
    checkpoint = attempts(old.runs, DONE)[0].checkpoints / "step-00000012"
    checkpoint.mkdir(parents=True)
    assert text_of(checkpoint).fingerprint == "458be91e1aad49f1"
    assert read_json(attempts(old.runs, DONE)[0].attempt_path)["code"] == "493e9fe53c14b51b"


def test_an_old_claim_is_read(old: Face) -> None:
    claim = read_claim(old.runs, KILLED)
    assert claim.scheduler == "slurm"
    assert (claim.submission, claim.index, str(claim)) == ("gpas-toy-0123456789ab", 0, "gpas-toy-0123456789ab [0]")
    shutil.rmtree(stage_dir(old.runs, KILLED) / "001")
    shutil.rmtree(stage_dir(old.runs, KILLED) / "002")
    assert stage_title(facts_of(SchedulerView(old.runs), KILLED), KILLED) == "its training toy/s2"
