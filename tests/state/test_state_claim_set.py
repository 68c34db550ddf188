"""ClaimSet, submitters and their locks, with rivals in other processes; hours of devices."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from attempts import make_attempt, write_events
from launching import entry, key, kill, until

from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome
from gpas_cli.state import cancellation, locks
from gpas_cli.state import claims as claims_module
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.claim_set import ClaimSet
from gpas_cli.state.claims import SILENCE_SECONDS, Claim, Submitter, claim_path, read_claim, release_claim, write_claim
from gpas_cli.state.locks import Lock
from gpas_cli.state.observe import observe
from gpas_cli.state.usage import _CORE_HOURS, _GPU_HOURS, NOTHING, Usage, usage_of
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import stage_dir
from gpas_cli.structure import plain

ROOT = Path(__file__).parents[2]
KEYS = [key(entry(seed=seed)) for seed in range(40)]
TAKER = """
import sys, time
from pathlib import Path
from gpas_cli.state.claim_set import ClaimSet
claims = ClaimSet(Path(sys.argv[1]))
claims.take(sys.argv[2:])
print(*sorted(claims.held), flush=True)
sys.stdin.read()
"""


def taker(runs: Path, *keys: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TAKER, str(runs), *keys]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_concurrent_processes_claim_disjoint_keys(runs: Path) -> None:
    rivals = [taker(runs, *KEYS) for _ in range(3)]
    held = [rival.stdout.readline().split() for rival in rivals]
    for rival in rivals:
        end(rival)
    assert sorted(one for many in held for one in many) == sorted(KEYS)


def test_live_claims_are_kept_and_dead_ones_are_taken_over(runs: Path) -> None:
    rival = taker(runs, *KEYS[:2])
    assert len(rival.stdout.readline().split()) == 2
    with ClaimSet(runs) as claims:
        seen = claims.take(KEYS[:3])
        assert claims.held == {KEYS[2]}
        assert [seen[one].state for one in KEYS[:3]] == ["queued", "queued", "missing"]
        assert f"gpas run {rival.pid}" in seen[KEYS[0]].evidence
        kill(rival.pid)
        end(rival)
        claims.take(KEYS[:3])
        assert claims.held == set(KEYS[:3])
        assert len(list(claims_module.folder(runs).glob("*.lock"))) == 1  # the file of the dead submitter is gone


def test_closing_releases_every_claim(runs: Path) -> None:
    with ClaimSet(runs) as claims:
        claims.take(KEYS[:3])
        claims.release(KEYS[0])
        assert not claim_path(runs, KEYS[0]).exists()
        assert claims.held == set(KEYS[1:3])
    assert not list(runs.rglob("claim.json"))
    assert not list(claims_module.folder(runs).iterdir())


@pytest.mark.parametrize("submission", ["", "gpas-x-1"])
@pytest.mark.parametrize("outcome", ["done", "failed", ""])
def test_a_stale_claim_of_a_stage_that_has_ended_is_removed(runs: Path, outcome: str, submission: str) -> None:
    with ClaimSet(runs) as dead:
        write_claim(runs, KEYS[0], dead.submitter, *(["slurm"] if submission else []), submission=submission)
        made = make_attempt(runs, KEYS[0], {"submitter": {"host": socket.gethostname()}})
        alive = locks.hold(alive_path(made))
        if outcome:
            write_events(made, [Outcome(outcome, step=1)])
            os.close(alive)
        with ClaimSet(runs) as living:
            living.take(KEYS[:1])
            assert claim_path(runs, KEYS[0]).exists() == (not submission or outcome != "done")
    with ClaimSet(runs) as later:
        later.take(KEYS[:1])
        # A SLURM claim lasts until there is a result; a running stage keeps its claim.
        assert claim_path(runs, KEYS[0]).exists() == (not outcome or (submission != "" and outcome == "failed"))
    if not outcome:
        os.close(alive)


def test_the_first_owner_does_not_release_a_claim_taken_over(runs: Path) -> None:
    with ClaimSet(runs) as first, ClaimSet(runs) as second:
        first.take(KEYS[:1])
        write_claim(runs, KEYS[0], second.submitter)
        first.release(KEYS[0])
        assert read_claim(runs, KEYS[0]).submitter == second.submitter.id


def test_a_stage_that_cannot_be_claimed_does_not_affect_others(runs: Path) -> None:
    stage_dir(runs, KEYS[0]).parent.mkdir(parents=True)
    stage_dir(runs, KEYS[0]).write_text("a file where a folder should be")
    with ClaimSet(runs) as claims:
        seen = claims.take(KEYS[:2])
        assert claims.held == {KEYS[1]}
    assert seen[KEYS[0]].state == "unknown"
    assert "cannot be claimed" in seen[KEYS[0]].evidence


def test_a_request_to_cancel_is_valid_until_a_retry(runs: Path) -> None:
    stage_dir(runs, KEYS[0]).mkdir(parents=True)
    cancellation.request(stage_dir(runs, KEYS[0]))
    with ClaimSet(runs) as claims:
        assert claims.take(KEYS[:1])[KEYS[0]].state == "cancelled"
        assert not claims.held
    with ClaimSet(runs, retry=["cancelled"]) as claims:
        claims.take(KEYS[:1])
        assert claims.held == {KEYS[0]}
        assert not cancellation.requested(runs, KEYS[0])


def test_a_stage_starts_only_while_its_claim_is_held(runs: Path) -> None:
    with ClaimSet(runs) as claims, ClaimSet(runs, retry=["cancelled"]) as other:
        claims.take(KEYS[:2])
        with claims.confirmed(KEYS[0]) as mine:
            assert mine
        for key in KEYS[:2]:
            cancellation.request(stage_dir(runs, key))
        with claims.confirmed(KEYS[0]) as mine:
            assert not mine
        other.take(KEYS[1:2])  # cancelled, and claimed again before its first owner looked
        with claims.confirmed(KEYS[1]) as mine:
            assert not mine
        assert not claims.held
        assert read_claim(runs, KEYS[1]).submitter == other.submitter.id


def test_a_submitter_of_another_host_lives_by_its_heartbeat(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = claims_module.folder(runs) / "far-1-ab.lock"
    path.parent.mkdir(parents=True)
    path.touch()
    claim = Claim(submitter="far-1-ab", host="far", pid=1, time=time.time())
    assert SchedulerView(runs).lives(claim)
    os.utime(path, (time.time(), time.time() - SILENCE_SECONDS - 1))
    assert not SchedulerView(runs).lives(claim)
    claims_module.sweep(runs)
    assert path.exists()  # another host's file is not swept
    other = Claim(submitter="far-2-cd", host="far", pid=2, time=time.time())
    assert not SchedulerView(runs).lives(other)


def test_a_submitter_beats(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_HEARTBEAT_SECONDS", 0.0)
    submitter = Submitter(runs)
    path = claims_module.folder(runs) / f"{submitter.id}.lock"
    os.utime(path, (0, 0))
    submitter.beat()
    assert time.time() - path.stat().st_mtime < 10
    path.unlink()
    with pytest.raises(GpasError, match="was removed"):
        submitter.beat()
    submitter.close()
    submitter.close()


def test_a_lock_is_released_with_the_last_copy_of_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert locks.probe(path) is Lock.ABSENT
    fd = locks.hold(path)
    child = subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE, pass_fds=[fd])
    os.close(fd)
    assert locks.probe(path) is Lock.HELD
    assert locks.try_hold(path) is None
    child.communicate(b"\n")
    until(lambda: locks.probe(path) is Lock.FREE)


def test_a_lock_held_for_too_long_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with locks.locked(path), pytest.raises(GpasError, match="locked by another process"):
        locks.hold(path, patience=0.05)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EINVAL, errno.EIO])
def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    told = "runs/.lock" if number == errno.EIO else "runs/.lock: this file system has no file locks.*GPAS_RUNS_DIR"
    with pytest.raises(OSError if number == errno.EIO else GpasError, match=told):
        ClaimSet(tmp_path / "runs")
    (tmp_path / "x.lock").touch()
    assert locks.probe(tmp_path / "x.lock") is Lock.UNKNOWABLE


def test_constant_probing_does_not_block_claims(runs: Path) -> None:
    with ClaimSet(runs) as claims:
        claims.take(KEYS[:1])
        with ClaimSet(runs) as other:
            other.take(KEYS[:2])
            assert other.held == {KEYS[1]}
            assert observe(runs, KEYS[0]).state == "queued"


def test_a_job_that_has_ended_leaves_the_claim_of_its_retry(runs: Path) -> None:
    with ClaimSet(runs) as claims:
        claims.take(KEYS[:1])
        for submission in ("first", "retried"):
            write_claim(runs, KEYS[0], claims.submitter, "line", submission=submission, index=1)
        claims.held.clear()
    release_claim(runs, KEYS[0], "first", 1)
    release_claim(runs, KEYS[0], "retried", 0)
    assert read_claim(runs, KEYS[0]).submission == "retried"
    release_claim(runs, KEYS[0], "retried", 1)
    assert read_claim(runs, KEYS[0]) is None


def test_a_submitter_that_a_full_disk_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("gpas_cli.state.claims.write_record", full)
    with pytest.raises(OSError, match="No space left"):  # and the test's own check finds no open descriptor
        ClaimSet(tmp_path)
    assert list((tmp_path / ".submitters").iterdir()) == []


@pytest.mark.parametrize(
    ("hours", "text"), [(0.0, "0.00"), (0.0123456, "0.0123"), (0.5, "0.50"), (9.87, "9.87"), (1204.54, "1,204.5")]
)
def test_hours_as_text(hours: float, text: str) -> None:
    assert Usage(gpu_hours=hours).hours(_GPU_HOURS) == Usage(core_hours=hours).hours(_CORE_HOURS) == text


def test_the_unit_is_that_of_the_devices() -> None:
    on_gpus = usage_of(1800, ["gpu-0", "gpu-1"])
    on_cores = usage_of(1800, ["cpu-0", "cpu-1", "cpu-2"])
    assert on_gpus.unit == (on_gpus + on_cores).unit == _GPU_HOURS
    assert on_cores.unit == NOTHING.unit == _CORE_HOURS
    assert plain(on_gpus + on_cores) == {"gpu_hours": 1.0, "core_hours": 1.5}
