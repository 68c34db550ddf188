"""Evidence -> state, on hand-made directories: each kind, which takes precedence, and the outputs of attempts."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events
from cases import cases
from launching import entry, key

from gpas_cli.checkpoints import path_of
from gpas_cli.cli.views.progress import result
from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome, event_of
from gpas_cli.state import cancellation, locks
from gpas_cli.state.attempt import alive_path, conclude, resumable
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.state.observe import cell_statuses, observe, observe_all
from gpas_cli.state.outputs import checkpoint_code, last_checkpoint, scoring_identity
from gpas_cli.state.status import _progress as read_progress
from gpas_cli.store.journal import Line, encode
from gpas_cli.store.rundir import AttemptDir, stage_dir, write_json
from gpas_cli.worker.stages.training import _discard_unfinished

CELL = entry()
KEY = key(CELL)
OTHER = "0" * 15 + "1"
USUAL = {
    "outcome": {"step": 3, "cause": "", "metrics": {}},
    "step": {"steps": 100, "loss": 5.0, "lr": 1e-3, "tokens_per_second": 1e3},
    "start": {"host": socket.gethostname()},
    "checkpoint": {"path": "x"},
}


def attempt(runs: Path, *events: dict[str, Any], host: str = "", created: float = 0.0) -> AttemptDir:
    """Make an attempt with these events; the kind of one that does not say it is the name of its first field."""
    facts = {"submitter": {"host": host or socket.gethostname(), "pid": 1}, "created": created or time.time()}
    made = make_attempt(runs, KEY, facts)
    kinds = [one.get("kind", next(iter(one))) for one in events]
    write_events(
        made, [event_of({"kind": kind, **USUAL.get(kind, {}), **one}) for kind, one in zip(kinds, events, strict=True)]
    )
    return made


def ended(outcome: str, **fields: Any) -> dict[str, Any]:
    return {"outcome": outcome, **fields}


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"step": number, **USUAL["step"], **fields}


def write_at(made: AttemptDir, seconds_ago: float, kind: str = "step", **fields: Any) -> None:
    event = {"n": 0, "t": time.time() - seconds_ago, "kind": kind, **fields}
    made.journal_path.write_bytes(encode(event))


@contextmanager
def held(made: AttemptDir) -> Iterator[None]:
    """Hold the attempt's alive.lock, as its process does."""
    fd = locks.hold(alive_path(made))
    try:
        yield
    finally:
        os.close(fd)


@pytest.mark.parametrize("outcome", ["done", "diverged", "failed", "cancelled", "interrupted"])
def test_an_outcome_in_the_journal_is_the_state(runs: Path, outcome: str) -> None:
    made = attempt(runs, step(3), ended(outcome, cause="because", metrics={"perplexity": 7.0}))
    seen = observe(runs, KEY)
    assert (seen.state, seen.outcome, seen.cause, seen.attempt) == (outcome, outcome, "because", 1)
    assert (seen.directory, seen.metrics) == (made.path, {"perplexity": 7.0})
    assert seen.age < 60


@cases("state/cases.yaml")
def test_attempts_decide_the_state(runs: Path, tries: list[list[Any]], state: str, number: int | None) -> None:
    for events in tries:
        attempt(runs, *events)
    seen = observe(runs, KEY)
    assert (seen.state, seen.attempt) == (state, number)


def test_a_long_cause_after_many_events_is_read(runs: Path) -> None:
    attempt(runs, *(step(i) for i in range(50)), ended("failed", cause="x" * 20_000))
    assert (observe(runs, KEY).state, observe(runs, KEY).cause) == ("failed", "x" * 20_000)


@cases("state/cases.yaml", seen=None, while_held="running")
def test_a_held_lock_is_running(
    runs: Path, events: list[Any], seen: dict[str, Any] | None, while_held: str, afterwards: str
) -> None:
    made = attempt(runs, *events)
    if seen:
        write_json(made.exit_path, seen)
    with held(made):
        found = observe(runs, KEY)
    assert found.state == while_held
    assert observe(runs, KEY).state == afterwards
    if found.source == "ending":
        assert found.evidence == f"{afterwards}, but a process of attempt 1 still holds alive.lock"


def test_a_torn_line_after_the_outcome_is_ignored(runs: Path) -> None:
    made = attempt(runs, ended("done"))
    with made.journal_path.open("ab") as file:
        file.write(b'deadbeef {"n":9')
    assert observe(runs, KEY).state == "done"


@cases("state/cases.yaml")
def test_an_outcome_that_cannot_be_understood_is_unknown(runs: Path, fields: dict[str, Any], reason: str) -> None:
    attempt(runs).journal_path.write_bytes(encode({"n": 0, "t": 1.0, "kind": "outcome", **fields}))
    seen = observe(runs, KEY)
    assert seen.state == "unknown"
    assert reason in seen.evidence


@cases("state/cases.yaml")
def test_attempt_json_is_read_once(runs: Path, monkeypatch: pytest.MonkeyPatch, events: list[Any], reads: int) -> None:
    made = attempt(runs, *events)
    asked: list[AttemptDir] = []
    read_attempt = AttemptDir.read_attempt
    monkeypatch.setattr(AttemptDir, "read_attempt", lambda self: asked.append(self) or read_attempt(self))
    conclude(made)
    assert len(asked) == reads


def test_an_outcome_written_between_two_reads_is_not_missed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends between the reads of its journal and its lock; calling it interrupted would run it twice."""
    made = attempt(runs, step(10))
    alive_path(made).touch()
    probe = locks.probe

    def late(path: Path) -> locks.Lock:
        write_events(made, [Outcome("done", step=10)])
        return probe(path)

    monkeypatch.setattr(locks, "probe", late)
    assert observe(runs, KEY).state == "done"


def test_a_held_lock_is_running_even_on_another_host_without_events(runs: Path) -> None:
    made = attempt(runs, host="elsewhere")
    write_at(made, 9999)
    with held(made):
        assert observe(runs, KEY).state == "running"


@cases("state/cases.yaml")
def test_exit_json_decides_without_an_outcome(runs: Path, seen: dict[str, Any], state: str, word: str) -> None:
    made = attempt(runs, step(10))
    write_json(made.exit_path, seen)
    made.log_path.write_text("Traceback\nValueError: no\n\n")
    found = observe(runs, KEY)
    assert (found.state, found.outcome) == (state, "")
    assert word in found.evidence
    assert found.cause == ("ValueError: no" if state == "failed" else "")


def test_killed_after_a_request_to_cancel_is_cancelled(runs: Path) -> None:
    made = attempt(runs, step(10))
    cancellation.request(made.path)
    write_json(made.exit_path, {"code": None, "signal": 9})
    assert observe(runs, KEY).state == "cancelled"


@pytest.mark.parametrize(("silence", "state"), [(10, "running"), (500, "unknown")])
def test_an_attempt_on_another_host_is_judged_by_its_last_event(runs: Path, silence: float, state: str) -> None:
    made = attempt(runs, host="elsewhere")
    alive_path(made).touch()  # unlocked as seen from this host, which proves nothing about the other
    write_at(made, silence)
    seen = observe(runs, KEY)
    assert (seen.state, seen.age) == (state, pytest.approx(silence, abs=5))
    assert "elsewhere" in seen.evidence


def test_an_attempt_on_another_host_without_events_is_judged_by_its_creation(runs: Path) -> None:
    attempt(runs, host="elsewhere", created=time.time() - 1000)
    assert observe(runs, KEY).state == "unknown"


@pytest.mark.parametrize("damage", ["attempt.json", "journal.jsonl", "exit.json"])
def test_an_unreadable_attempt_is_unknown(runs: Path, damage: str) -> None:
    made = attempt(runs, step(1))
    path = made.path / damage
    path.unlink(missing_ok=True)
    path.mkdir()
    seen = observe(runs, KEY)
    assert seen.state == "unknown"
    assert damage in seen.evidence
    assert seen.directory == made.path


def test_a_live_claim_is_queued_and_a_dead_one_is_ignored(runs: Path) -> None:
    submitter = Submitter(runs)
    write_claim(runs, KEY, submitter)
    write_claim(runs, OTHER, submitter)
    seen = observe(runs, KEY)
    assert seen.state == "queued"
    assert str(os.getpid()) in seen.evidence
    attempt(runs, ended("interrupted"))
    again = observe(runs, KEY)
    assert again.state == "queued"
    assert "attempt 1 (interrupted)" in again.evidence
    write_at(attempt(runs, host="elsewhere"), 500)
    assert observe(runs, KEY).state == "running"  # the claim vouches for a job that cannot be seen
    submitter.close()
    assert observe(runs, KEY).state == "unknown"
    assert observe(runs, OTHER).state == "missing"


def test_a_damaged_claim_is_ignored(runs: Path) -> None:
    stage_dir(runs, KEY).mkdir(parents=True)
    (stage_dir(runs, KEY) / "claim.json").write_text('{"submitter": 3}')
    assert observe(runs, KEY).state == "missing"


def test_progress_has_losses_and_time_left(runs: Path) -> None:
    made = attempt(runs)
    now = time.time()
    events = [{"n": i, "t": now - 100 + 10 * i, "kind": "step", **step(i, loss=5 - i)} for i in range(1, 4)]
    events.append({"n": 4, "t": now, "kind": "step", **step(5, loss="nan")})
    made.journal_path.write_bytes(b"".join(encode(event) for event in events))
    with held(made):
        progress = observe(runs, KEY).progress
    assert progress.losses[:3] == (4, 3, 2)
    assert str(progress.loss) == "nan"
    assert progress.eta == pytest.approx(95 * 90 / 4, rel=0.01)
    made.journal_path.write_bytes(
        b"".join(encode(event) for event in [*events, {"n": 5, "t": now, "kind": "phase", "name": "evaluating"}])
    )
    with held(made):
        progress = observe(runs, KEY).progress
    assert (progress.eta, progress.counted) == (None, f"5/{progress.steps}, evaluating")


@pytest.mark.parametrize("set_by", [-3 * 3600, 3 * 3600])
def test_a_clock_that_is_set_during_a_run_leaves_the_time_left(set_by: float) -> None:
    events = [Line({"t": 1e9 + 10 * i + (set_by if i > 6 else 0), "kind": "step", **step(i)}) for i in range(1, 11)]
    assert read_progress(events).eta == pytest.approx(90 * 10)


def test_progress_has_speed_and_recent_spikes(runs: Path) -> None:
    events = [
        ("step", {"step": 10, "steps": 99, "loss": 3.0, "grad_norm": 0.5, "mfu": 0.41}),
        ("spike", {"step": 14, "of": "loss", "value": 9.0, "usual": 3.0}),
        ("spike", {"step": 14, "of": "grad_norm", "value": 9.0, "usual": 1.0}),
        ("skipped", {"step": 15, "loss_scale": 512.0}),
    ]
    found = read_progress([Line({"t": float(i), "kind": kind, **fields}) for i, (kind, fields) in enumerate(events)])
    assert (found.grad_norm, found.mfu, found.spikes, found.skipped) == (0.5, 0.41, 2, 1)


def test_progress_counts_from_the_last_start(runs: Path) -> None:
    made = attempt(runs, step(50), {"kind": "start"}, {"kind": "phase", "name": "tokenising"})
    with held(made):
        progress = observe(runs, KEY).progress
    assert (progress.phase, progress.step) == ("tokenising", None)


def test_the_newest_checkpoint_of_any_attempt_can_be_resumed(runs: Path) -> None:
    assert resumable(runs, KEY) is None
    first = attempt(runs, {"kind": "checkpoint", "step": 20}, {"kind": "checkpoint", "step": 40})
    first.checkpoints.mkdir()
    attempt(runs, ended("interrupted"))
    assert resumable(runs, KEY) == 40


def test_later_stages_need_the_last_checkpoint_of_the_training(runs: Path) -> None:
    interrupted = attempt(runs, ended("interrupted", step=60))
    path_of(interrupted.checkpoints, 60).mkdir(parents=True)
    with pytest.raises(GpasError, match=rf"the training {KEY}, which this stage builds on, is not done; `gpas run`"):
        last_checkpoint(runs, KEY)
    made = attempt(runs, ended("done", step=40))
    with pytest.raises(GpasError, match=r"after update 40 .* is not there .found: .*step-00000060, and no later one"):
        last_checkpoint(runs, KEY)
    path_of(made.checkpoints, 20).mkdir(parents=True)
    path_of(interrupted.checkpoints, 40).mkdir()
    assert last_checkpoint(runs, KEY) == path_of(interrupted.checkpoints, 40)  # the second attempt only evaluated
    path_of(made.checkpoints, 40).mkdir()
    assert last_checkpoint(runs, KEY) == path_of(made.checkpoints, 40)


def test_progress_has_the_newest_checkpoint(runs: Path) -> None:
    attempt(runs, step(40), {"kind": "checkpoint", "step": 47}, ended("interrupted"))
    seen = observe(runs, KEY)
    assert (seen.progress.step, seen.progress.saved) == (40, 47)
    assert result(seen) == ": saved at update 47"
    attempt(runs, {"kind": "phase", "name": "training"}, ended("interrupted"))
    assert result(observe(runs, KEY)) == ": nothing to save yet"


def test_a_cell_is_in_the_state_of_its_first_stage_without_result(runs: Path) -> None:
    cell = entry(importance={"eval_tokens": 100})
    (state,) = cell_statuses(runs, [cell])
    assert (state.stage, state.state, state.entry) == ("pretrain", "missing", cell)
    attempt(runs, ended("done"))
    (state,) = cell_statuses(runs, [cell])
    assert (state.stage, state.state, state.key) == ("importance", "missing", cell.cell.key)
    assert cell_statuses(runs, [CELL])[0].state == "done"


def test_all_stages_are_seen_as_each_alone(runs: Path) -> None:
    """Those without a folder, with an attempt, with a claim only, and with a file where the folder should be."""
    attempt(runs, ended("done"))
    claimed, file, absent = ("0" * 15 + digit for digit in "123")
    submitter = Submitter(runs)
    write_claim(runs, claimed, submitter)
    stage_dir(runs, file).write_text("no folder")
    found = observe_all(runs, [KEY, claimed, file, absent])
    assert [(stage, status.state) for stage, status in found.items()] == [
        (KEY, "done"), (claimed, "queued"), (file, "missing"), (absent, "missing"),
    ]  # fmt: skip
    for stage, status in found.items():
        assert replace(status, age=None) == replace(observe(runs, stage), age=None)
    submitter.close()


ATTEMPT_KEY = "0123456789abcdef"


def interrupted(runs: Path, code: str = "c0de") -> AttemptDir:
    """Return an attempt that was killed while it wrote its second checkpoint."""
    attempt = make_attempt(runs, ATTEMPT_KEY, {"code": code})
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
    assert checkpoint_code(tmp_path, ATTEMPT_KEY) == ""
    interrupted(tmp_path, code="old")
    newer = interrupted(tmp_path, code="new")
    (newer.checkpoints / "step-00000008").mkdir()
    assert checkpoint_code(tmp_path, ATTEMPT_KEY) == "new"


@pytest.mark.whole
@cases("state/cases.yaml")
def test_stages_that_differ_in_their_tasks_alone_have_one_identity(change: dict[str, object], same: bool) -> None:
    cell = {"network": {"path": "net", "sha256": "a" * 64}, "downstream": {"tasks": ["piqa"], "limit": 5}}
    one, other = (scoring_identity("downstream", (), own) for own in (cell, {**cell, **change}))
    assert (one == other) is same
