"""The outputs of earlier attempts."""

import os
import time
from pathlib import Path

import pytest
from attempts import make_attempt

from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.outputs import checkpoint_code, scoring_identity
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.worker.stages.training import _discard_unfinished

KEY = "0123456789abcdef"


def interrupted(runs: Path, code: str = "c0de") -> AttemptDir:
    """Return an attempt that was killed while it wrote its second checkpoint."""
    attempt = make_attempt(runs, KEY, {"code": code})
    (attempt.checkpoints / "step-00000005").mkdir(parents=True)
    (attempt.checkpoints / ".writing-step-00000010").mkdir()
    (attempt.checkpoints / ".writing-step-00000010/00000.safetensors").write_bytes(b"half")
    return attempt


def left(attempt: AttemptDir) -> list[str]:
    return sorted(path.name for path in attempt.checkpoints.iterdir())


def test_only_unfinished_checkpoints_of_dead_attempts_are_deleted(tmp_path: Path) -> None:
    killed, living, elsewhere, old = (interrupted(tmp_path) for _ in range(4))
    os.close(locks.hold(alive_path(killed)))
    held = locks.hold(alive_path(living))
    os.utime(old.checkpoints, (time.time() - 10_000,) * 2)
    _discard_unfinished([killed, living, elsewhere, old])
    os.close(held)
    assert left(killed) == left(old) == ["step-00000005"]
    assert left(living) == left(elsewhere) == [".writing-step-00000010", "step-00000005"]


def test_the_code_of_the_newest_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_code(tmp_path, KEY) == ""
    interrupted(tmp_path, code="old")
    newer = interrupted(tmp_path, code="new")
    (newer.checkpoints / "step-00000008").mkdir()
    assert checkpoint_code(tmp_path, KEY) == "new"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"downstream": {"tasks": ["arc_easy"], "limit": 5}}, True),
        ({"downstream": {"tasks": ["piqa"], "limit": 6}}, False),
        ({"network": {"path": "net", "sha256": "b" * 64}}, False),
        ({"network": {"path": "moved", "sha256": "a" * 64, "later": "a setting of a newer version"}}, True),
        ({"network": {"hf": "someone/network", "revision": "a" * 40}}, False),
    ],
)
def test_stages_that_differ_in_their_tasks_alone_have_one_identity(change: dict[str, object], same: bool) -> None:
    cell = {"network": {"path": "net", "sha256": "a" * 64}, "downstream": {"tasks": ["piqa"], "limit": 5}}
    one, other = (scoring_identity("downstream", (), own) for own in (cell, {**cell, **change}))
    assert (one == other) is same
