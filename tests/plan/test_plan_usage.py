"""What attempts took, and when what runs and waits will be over."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from attempts import make_attempt
from launching import entry, key

from gpas_cli.grid import Entry
from gpas_cli.plan.usage import UsageMeter
from gpas_cli.schedule.slurm.job import Job
from gpas_cli.state.status import CellStatus, Progress
from gpas_cli.store.journal import encode
from gpas_cli.store.rundir import AttemptDir, write_json

HOUR = 3600.0


def attempt(runs: Path, cell: Entry, hours: float, *devices: str, ago: float = 10.0, seen: bool = True) -> AttemptDir:
    """Create an attempt of `hours` that began `ago` hours ago; without an exit `seen`, its last event ends it."""
    began = time.time() - ago * HOUR
    facts = {"created": began, "devices": list(devices), "submitter": {"host": "here"}}
    made = make_attempt(runs, key(cell), facts)
    if seen:
        write_json(made.exit_path, {"code": 0, "signal": None, "t": began + hours * HOUR})
    made.journal_path.write_bytes(encode({"n": 0, "t": began + hours * HOUR, "kind": "step", "step": 1}))
    return made


def state(cell: Entry, word: str, made: AttemptDir | None = None, eta: float | None = None, job: Job | None = None):
    progress = Progress(step=1, steps=2, eta=eta) if eta is not None else None
    return CellStatus(
        entry=cell, stage="pretrain", key=key(cell), state=word, evidence="", reached=progress, job=job,
        directory=made.path if made else None,
    )  # fmt: skip


@pytest.fixture
def cells() -> list[Entry]:
    return [replace(entry(seed=seed), axes={"size": "toy"}) for seed in range(1, 5)]


def test_hours_count_every_attempt_and_device(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 1.5, "gpu-0", "gpu-1")
    attempt(tmp_path, cells[0], 0.5, "gpu-0", "gpu-1", seen=False)
    attempt(tmp_path, cells[1], 3.0, "cpu-0", "cpu-1")
    activity = UsageMeter(tmp_path).activity([state(cells[0], "done"), state(cells[1], "failed")])
    assert activity.total.spent.gpu_hours == pytest.approx(4.0)
    assert activity.total.spent.core_hours == pytest.approx(6.0)
    assert activity.total.left == 1
    assert (activity.total.to_go, activity.total.ends) == (None, None)  # nothing runs


def test_a_running_attempt_keeps_accumulating_cost(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[0], 0.1, "gpu-0", ago=2.0, seen=False)
    meter = UsageMeter(tmp_path)
    (run,) = meter.activity([state(cells[0], "running", made)]).running
    assert run.spent.gpu_hours == pytest.approx(2.0, abs=0.01)
    assert (run.node, run.devices) == ("here", ("gpu-0",))
    assert meter.activity([state(cells[0], "interrupted", made)]).total.spent.gpu_hours == pytest.approx(0.1)


def test_the_end_is_estimated_from_running_and_similar_cells(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 2.0, "gpu-0")
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    states = [state(cells[0], "done"), state(cells[1], "running", made, eta=HOUR), state(cells[2], "queued")]
    activity = UsageMeter(tmp_path).activity([*states, state(cells[3], "queued")])
    assert activity.total.ends == pytest.approx(5 * HOUR, rel=0.01)  # one hour, and two cells of two hours after it
    assert activity.total.to_go is not None
    assert activity.total.to_go.gpu_hours == pytest.approx(5.0, rel=0.01)


def test_there_is_no_end_while_nobody_has_queued_the_rest(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    running = state(cells[1], "running", made, eta=HOUR)
    ends = {
        word: UsageMeter(tmp_path).activity([running, state(cells[2], word)]).total.ends
        for word in ("done", "failed", "cancelled", "missing", "interrupted")
    }
    assert [word for word, end in ends.items() if end is not None] == ["done", "failed", "cancelled"]


def test_a_job_for_another_grid_is_the_end_of_a_cell_only_if_no_later_stage_is_left(
    tmp_path: Path, cells: list[Entry]
) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    running = replace(state(cells[1], "running", made, eta=HOUR), claimed_for="other")
    assert UsageMeter(tmp_path).activity([running]).total.ends == pytest.approx(HOUR, rel=0.01)
    scored = entry(seed=2, downstream={"tasks": ["indent"]})
    assert UsageMeter(tmp_path).activity([replace(running, entry=scored)]).total.ends is None


def test_a_run_of_several_grids_is_listed_once(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    first = replace(state(cells[1], "running", made, eta=HOUR), claimed_for="other")
    second = replace(first, entry=replace(cells[1], grid="other"))
    activity = UsageMeter(tmp_path).activity([first, second])
    assert [run.state.entry.grid for run in activity.running] == ["other"]


def test_shared_cells_are_counted_once_in_the_total(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 2.0, "gpu-0")
    activity = UsageMeter(tmp_path).activity([state(cells[0], "done"), state(replace(cells[0], grid="other"), "done")])
    assert [use.spent.gpu_hours for use in activity.grids] == pytest.approx([2.0, 2.0])
    assert activity.total.spent.gpu_hours == pytest.approx(2.0)


def test_the_queue_is_in_the_order_of_its_line(tmp_path: Path, cells: list[Entry]) -> None:
    places = {0: 7, 1: 0, 2: 3}
    queued = [state(cells[i], "queued", job=Job(f"1_{i}", "PENDING", place=n)) for i, n in places.items()]
    assert [s.job.place for s in UsageMeter(tmp_path).activity(queued).queued if s.job] == [3, 7, 0]
