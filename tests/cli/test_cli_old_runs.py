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
