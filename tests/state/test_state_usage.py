"""The hours of a stage: trained, lost after a checkpoint that was resumed from, failed; their unit and their text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt

from gpas_cli.state.usage import _CORE_HOURS, _GPU_HOURS, NOTHING, Spent, Usage, spent_on, usage_of
from gpas_cli.store.journal import encode
from gpas_cli.store.rundir import AttemptDir, write_json
from gpas_cli.structure import plain

KEY = "0123456789abcdef"
START = 1.7e9
HOUR = 3600.0


def attempt(runs: Path, created: float, *events: tuple[float, str, Mapping[str, Any]], end: float = 0) -> AttemptDir:
    """Make an attempt on two GPUs: (hour, kind, fields) of each event; `end` is the hour of exit.json."""
    made = make_attempt(runs, KEY, {"created": START + created * HOUR, "devices": ["gpu-0", "gpu-1"]})
    lines = [{"n": n, "t": START + t * HOUR, "kind": kind, **more} for n, (t, kind, more) in enumerate(events)]
    made.journal_path.write_bytes(b"".join(map(encode, lines)))
    if end:
        write_json(made.exit_path, {"code": None, "signal": 9, "t": START + end * HOUR})
    return made


def trains(at: float, resumed_from: int = 0) -> list[tuple[float, str, dict[str, Any]]]:
    return [(at, "start", {"host": "elsewhere"}), (at, "phase", {"name": "training", "resumed_from": resumed_from})]


def saves(at: float, step: int) -> tuple[float, str, dict[str, Any]]:
    return at, "checkpoint", {"step": step}


def ends(at: float, outcome: str = "done") -> tuple[float, str, dict[str, Any]]:
    return at, "outcome", {"outcome": outcome, "step": 100}


def gpu_hours(spent: Spent) -> dict[str, float]:
    parts = {name: getattr(spent, name) for name in ("trained", "lost", "failed", "superseded")}
    assert all(part.seconds * 2 / HOUR == pytest.approx(part.gpu_hours) for part in parts.values())
    return {name: pytest.approx(part.gpu_hours) for name, part in parts.items() if part.seconds}


def test_an_interrupted_attempt_is_trained_up_to_the_checkpoint_and_lost_after_it(tmp_path: Path) -> None:
    attempt(tmp_path, 0, *trains(0.5), saves(2, 40), saves(3, 60), (3.5, "step", {"step": 70, "loss": 1.0}), end=4)
    attempt(tmp_path, 5, *trains(5), ends(6, "failed"))  # which could not even start
    attempt(tmp_path, 7, *trains(7.5, resumed_from=60), saves(8, 80), ends(9))
    spent = spent_on(tmp_path, [KEY, KEY])
    assert gpu_hours(spent) == {"trained": 2 * (3 + 2), "lost": 2 * 1, "failed": 2 * 1}
    assert spent.total.gpu_hours == pytest.approx(14)


def test_a_job_that_is_requeued_in_its_directory_is_two_processes(tmp_path: Path) -> None:
    before = [*trains(0), saves(1, 40), (2, "step", {"step": 50, "loss": 1.0})]
    attempt(tmp_path, 0, *before, *trains(6, resumed_from=40), ends(7))
    assert gpu_hours(spent_on(tmp_path, [KEY])) == {"trained": 2 * (1 + 1), "lost": 2 * 1}


def test_a_result_that_was_replaced_is_superseded(tmp_path: Path) -> None:
    attempt(tmp_path, 0, *trains(0), saves(1, 100), ends(1))
    attempt(tmp_path, 2, *trains(2), saves(4, 100), ends(4))
    attempt(tmp_path, 5, *trains(5), ends(8, "cancelled"))
    assert gpu_hours(spent_on(tmp_path, [KEY])) == {"trained": 4, "failed": 6, "superseded": 2}


def test_without_a_result_the_checkpoint_to_resume_from_counts(tmp_path: Path) -> None:
    attempt(tmp_path, 0, *trains(0), saves(1, 40), end=2)
    attempt(tmp_path, 3, *trains(3), end=4)
    assert gpu_hours(spent_on(tmp_path, [KEY])) == {"trained": 2, "lost": 2, "failed": 2}


def test_scores_of_an_attempt_that_did_not_finish_are_kept(tmp_path: Path) -> None:
    score = {"task": "indent", "metric": "acc", "value": 0.5, "examples": 10}
    attempt(tmp_path, 0, (0, "start", {}), (1, "score", score), end=2)
    attempt(tmp_path, 3, (3, "start", {}), ends(4))
    assert gpu_hours(spent_on(tmp_path, [KEY])) == {"trained": 6}


def test_an_attempt_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    damaged = attempt(tmp_path, 0, *trains(0), ends(1))
    damaged.attempt_path.write_text("{")
    assert spent_on(tmp_path, [KEY]) == Spent(trained=Usage())
    attempt(tmp_path, 2, *trains(2), ends(3))
    assert json.loads(damaged.path.with_name("002").joinpath("attempt.json").read_text())["number"] == 2
    assert gpu_hours(spent_on(tmp_path, [KEY])) == {"trained": 2}


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.0, "0.00"), (0.0123456, "0.0123"), (0.5, "0.50"), (9.87, "9.87"), (1204.54, "1,204.5")],
)
def test_hours_as_text(hours: float, text: str) -> None:
    assert Usage(gpu_hours=hours).hours(_GPU_HOURS) == Usage(core_hours=hours).hours(_CORE_HOURS) == text


def test_the_unit_is_that_of_the_devices() -> None:
    on_gpus = usage_of(1800, ["gpu-0", "gpu-1"])
    on_cores = usage_of(1800, ["cpu-0", "cpu-1", "cpu-2"])
    assert on_gpus.unit == (on_gpus + on_cores).unit == _GPU_HOURS
    assert on_cores.unit == NOTHING.unit == _CORE_HOURS
    assert plain(on_gpus + on_cores) == {"gpu_hours": 1.0, "core_hours": 1.5}
