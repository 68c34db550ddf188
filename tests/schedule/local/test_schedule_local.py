"""The local scheduler with real processes: outcomes, order, slots, failures, and the measurements of gpas bench."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from attempts import make_attempt, write_events
from cases import file_text
from descriptors import descriptors
from launching import COMMAND, FOUR_CORES, Background, Lab, Notices, entry, job_pid, key, kill, states, until

from gpas_cli.cli.commands.bench import render
from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.plan.estimate import _measured
from gpas_cli.plan.machine import ThisMachine, machine
from gpas_cli.plan.plan import plan
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.local import benchmark as room
from gpas_cli.schedule.local.benchmark import bench
from gpas_cli.schedule.local.process import Process, Slots
from gpas_cli.schedule.scheduler import RunSnapshot, exit_code
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.status import StageStatus
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir, read_json


def test_one_failure_does_not_affect_other_outcomes(lab: Lab) -> None:
    cells = [entry("done", 1), entry("fail", 2), entry("crash", 3), entry("diverged", 4), entry("exit", 5)]
    summary = lab.run(*cells)
    assert states(summary) == {
        "done": ["done-1"], "failed": ["fail-2", "crash-3"], "diverged": ["diverged-4"], "interrupted": ["exit-5"],
    }  # fmt: skip
    assert [item.reason for item in summary.failed] == ["no luck", "RuntimeError: the fake job fell over"]
    assert exit_code(summary) == 4


def test_the_first_failure_stops_what_waits_and_a_second_run_does_the_rest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a slot is free before it is known how its job has ended."""
    ended, asked = Process.ended, Counter[int]()

    def late(process: Process) -> bool:
        asked[id(process)] += process.child.poll() is not None
        return asked[id(process)] > 5 and ended(process)

    monkeypatch.setattr(Process, "ended", late)
    cells = [entry("fail", 1), *(entry("done", seed) for seed in range(2, 5))]
    one = replace(FOUR_CORES, cores=(0,))
    summary = lab.run(*cells, machine=one, stop_at_failure=True)
    assert states(summary) == {"failed": ["fail-1"], "skipped": ["done-2", "done-3", "done-4"]}
    assert summary.skipped[0].reason == "not started, because g/fail-1 failed"
    again = lab.run(*cells, machine=one, stop_at_failure=True)
    assert states(again) == {"failed": ["fail-1"], "done": ["done-2", "done-3", "done-4"]}


class Descriptors(Notices):
    """A reporter that counts the descriptors which the command has open at the end of each job."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def finished(self, job: StageJob, status: StageStatus) -> None:
        self.counts.append(len(descriptors()))


def test_descriptors_do_not_grow_with_the_cells(lab: Lab) -> None:
    seen = Descriptors()
    lab.run(*(entry("done", seed) for seed in range(1, 5)), reporter=seen, machine=replace(FOUR_CORES, cores=(0,)))
    assert len(seen.counts) == 4
    assert max(seen.counts[2:]) <= max(seen.counts[:2])


def test_a_second_run_starts_nothing(lab: Lab) -> None:
    cells = [entry("done", 1), entry("diverged", 2)]
    assert exit_code(lab.run(*cells)) == 0
    summary = lab.run(*cells)
    assert states(summary) == {"done": ["done-1"], "diverged": ["diverged-2"]}
    assert summary.done[0].reason == "already done in attempt 1"
    assert len(lab.ran()) == 2


def test_failed_cells_run_again_only_on_request(lab: Lab) -> None:
    cell = entry("fail", 1)
    lab.run(cell)
    assert lab.run(cell).failed[0].reason == "already failed in attempt 1: no luck"
    lab.run(cell, retry=["failed"])
    assert lab.ran() == ["fail-1 1", "fail-1 2"]
    with pytest.raises(GpasError, match="cannot retry 'done'"):
        lab.run(cell, retry=["done"])


def test_a_shared_stage_runs_once(lab: Lab) -> None:
    cell = entry("done", 1)
    twin = replace(cell, grid="h", name="twin")
    assert states(lab.run(cell, twin)) == {"done": ["done-1", "twin"]}
    assert lab.ran() == ["done-1 1"]


def test_the_record_of_an_attempt(lab: Lab) -> None:
    cell = entry("done", 1)
    lab.run(cell)
    (attempt,) = lab.attempts(cell)
    facts = read_json(attempt.attempt_path)
    assert facts["cell"] == cell.cell.to_mapping()
    assert (facts["stage"], facts["number"], facts["grid"], facts["name"]) == ("pretrain", 1, "g", "done-1")
    assert (facts["threads"], facts["executor"], facts["parents"]) == (1, "local", [])
    assert (lab.runs / ".code" / facts["code"] / "gpas_cli" / "spec" / "cell.py").is_file()
    assert read_json(attempt.exit_path)["code"] == 0
    assert not list(lab.runs.rglob("claim.json"))
    assert not list((lab.runs / ".submitters").iterdir())


def test_the_job_gets_the_snapshot_its_slot_and_the_project(lab: Lab) -> None:
    script = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], sys.argv[-1], os.environ['GPAS_RUNS_DIR']);"
    script += "print({n: os.environ[n] for n in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'CUDA_VISIBLE_DEVICES')})"
    command = (COMMAND[0], "-c", script)
    cell = replace(entry("done", 1), resources=Resources(gpus=2, cpus=3))
    machine = ThisMachine(gpus=("4", "GPU-5a"), cores=(0, 1, 2))
    lab.run(cell, command=command, machine=machine)
    (attempt,) = lab.attempts(cell)
    log = attempt.log_path.read_text()
    assert f"{lab.folder} {lab.runs / '.code'}" in log
    assert str(attempt.path) in log
    assert "{'OMP_NUM_THREADS': '3', 'MKL_NUM_THREADS': '3', 'CUDA_VISIBLE_DEVICES': '4,GPU-5a'}" in log


def test_a_command_that_cannot_be_started_fails_its_cell(lab: Lab) -> None:
    cell = entry("done", 1)
    summary = lab.run(cell, command=["/nowhere/python"])
    assert "could not be started" in summary.failed[0].reason
    found = lab.observe(cell)
    assert (found.state, "/nowhere/python" in found.cause) == ("failed", True)


def test_jobs_never_outnumber_slots(lab: Lab) -> None:
    most: list[int] = []
    waited: list[int] = []

    class Count(Notices):
        def tick(self, board: RunSnapshot) -> None:
            most.append(len(board.running))
            if board.starved and len(board.running) == 2:
                waited.append(len(board.waiting))
                lab.go()

    cells = [entry("wait", seed) for seed in (1, 2, 3)]
    summary = lab.run(*cells, machine=ThisMachine(gpus=(), cores=(0, 1)), reporter=Count())
    assert len(summary.done) == 3
    assert max(most) == 2
    assert waited[0] == 1


def test_a_job_this_machine_can_never_run_is_refused_before_any_starts(lab: Lab) -> None:
    big = replace(entry("done", 2), resources=Resources(gpus=8))
    with pytest.raises(GpasError, match=r"g/done-2 asks for 8 GPUs, but none can be seen"):
        lab.run(entry("done", 1), big)
    assert not lab.ran()
    assert states(lab.run(entry("done", 1))) == {"done": ["done-1"]}


def test_stages_wait_for_their_parents(lab: Lab) -> None:
    cell = entry("done", 1, importance={"eval_tokens": 10})
    pupil = entry("done", 1, gate={"learnable": False, "from_trained": True})
    assert states(lab.run(cell, replace(pupil, name="pupil"))) == {"done": ["done-1", "pupil"]}
    text = (lab.folder / "ran.txt").read_text()
    order = [tuple(line.split()[:3:2]) for line in text.splitlines()]
    assert order.index(("done-1", "pretrain")) < order.index(("done-1", "importance"))
    assert order.index(("pupil.teacher", "pretrain")) < order.index(("pupil", "pretrain"))


def test_a_failed_parent_cancels_its_child(lab: Lab) -> None:
    pupil = entry("fail", 1, gate={"learnable": False, "from_trained": True})
    teacher = replace(entry("fail", 1, gate="gpas"), name="teacher")
    summary = lab.run(teacher, replace(pupil, name="pupil"))
    assert states(summary) == {"failed": ["teacher"], "cancelled": ["pupil"]}
    assert summary.cancelled[0].reason == "needs pretrain of g/teacher, which is failed"


def test_an_unreadable_attempt_is_not_run_again(lab: Lab) -> None:
    cell = replace(entry("wait", 1), resources=Resources(retries=1))
    first = Background(lab.scheduler(cell))
    kill(job_pid(until(lab.working(cell))))
    first.result()
    (attempt,) = lab.attempts(cell)
    attempt.exit_path.unlink()
    attempt.attempt_path.write_text("{")
    lab.go()
    summary = lab.run(cell, entry("done", 2))
    assert states(summary) == {"skipped": ["wait-1"], "done": ["done-2"]}
    assert "attempt.json" in summary.skipped[0].reason
    assert states(lab.run(cell, retry=["unknown"])) == {"done": ["wait-1"]}


@pytest.mark.parametrize("answer", ["", "the database is locked"])
def test_an_ingest_error_is_only_a_notice(lab: Lab, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Project] = []
    notices = Notices()

    def ingest(of: Project) -> str:
        asked.append(of)
        return answer

    monkeypatch.setattr("gpas_cli.store.refresh.ingest", ingest)
    assert exit_code(lab.run(entry("done", 1), reporter=notices)) == 0
    assert set(map(id, asked)) == {id(lab.project)}
    assert set(notices.heard) == ({answer} if answer else set())


def test_a_full_disk_interrupts_the_cell_that_it_keeps_from_starting(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpas_cli.schedule.local import process

    create: Callable[..., AttemptDir] = process.create_attempt

    def full(runs: Path, asked: AttemptRecord) -> AttemptDir:
        if asked.name == "done-1":
            raise OSError(28, "No space left on device")
        return create(runs, asked)

    monkeypatch.setattr(process, "create_attempt", full)
    summary = lab.run(entry("done", 1), entry("done", 2))
    assert states(summary) == {"interrupted": ["done-1"], "done": ["done-2"]}
    assert "No space left" in summary.interrupted[0].reason


def test_an_attempt_waits_for_the_process_of_the_previous_one(lab: Lab) -> None:
    cell = entry("done", 1)
    before = make_attempt(lab.runs, key(cell), {"stage": "pretrain"})
    write_events(before, [Outcome("interrupted", step=1)])
    ending = locks.hold(alive_path(before))
    other = lab.scheduler(cell)
    assert other.submit() == {"followed": 1}
    notices = Notices()
    background = Background(lab.scheduler(cell, reporter=notices))
    assert lab.cancel(cell)[0].asked
    notices.round()
    assert len(lab.attempts(cell)) == 1
    os.close(ending)
    assert states(background.result()) == {"cancelled": ["done-1"]}
    assert states(other.follow()) == {"cancelled": ["done-1"]}
    assert states(lab.run(cell, retry=["cancelled"])) == {"done": ["done-1"]}


def test_a_killed_job_starts_again_only_after_its_children_have_ended(lab: Lab) -> None:
    cell = entry("done", 1)
    notices = Notices()
    again = lab.scheduler(cell, reporter=notices)
    assert again.submit() == {"waiting": 1}
    before = make_attempt(lab.runs, key(cell), {"stage": "pretrain"})
    orphan = locks.hold(alive_path(before))
    background = threading.Thread(target=again.follow)
    background.start()
    notices.round()
    assert len(lab.attempts(cell)) == 1
    os.close(orphan)
    background.join(10)
    assert lab.observe(cell).attempt == 2


CORES = ThisMachine(gpus=(), cores=(0, 1, 2))
GPUS = ThisMachine(gpus=("0", "1", "2"), cores=(0, 1, 2, 3))


def test_cores_are_taken_once(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    one, two = pool.take(Resources()), pool.take(Resources(cpus=2))
    assert set(one.devices).isdisjoint(two.devices)
    assert (one.threads, two.threads) == (1, 2)
    assert (two.variables["OMP_NUM_THREADS"], two.variables["CUDA_VISIBLE_DEVICES"]) == ("2", "")
    assert Slots(tmp_path, CORES).take(Resources()) is None
    two.close()
    pool.take(Resources(cpus=2)).close()
    one.close()


def test_too_few_free_slots_are_left_untouched(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    held = pool.take(Resources())
    assert pool.take(Resources(cpus=3)) is None
    pool.take(Resources(cpus=2)).close()
    held.close()
    pool.take(Resources(cpus=99)).close()


def test_gpus_are_taken_by_name_under_any_mask(tmp_path: Path) -> None:
    narrow, wide = Slots(tmp_path, ThisMachine(("1",), (0,))), Slots(tmp_path, GPUS)
    first = narrow.take(Resources())
    second = wide.take(Resources(gpus=2, cpus=2))
    assert first.variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert (second.variables["CUDA_VISIBLE_DEVICES"], second.threads) == ("0,2", 2)
    assert wide.take(Resources()) is None
    first.close()
    second.close()


GRID = file_text("schedule/local/tiny.yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("GPAS_CONFIG", "GPAS_RUNS_DIR", "GPAS_CACHE", "GPAS_DB"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "experiments.yaml").write_text(GRID)
    return Project.find(tmp_path / "experiments.yaml")


def chosen(here: Project) -> list[Entry]:
    return expand(load(here.config), ["tiny"])


@pytest.mark.long
def test_every_shape_is_measured_once_and_used_by_the_plan(here: Project) -> None:
    (found,) = bench(here, chosen(here), 0.1)
    facts = found.facts
    assert (found.cells, found.job.id, facts["device"]) == (4, "tiny/s1", "cpu")
    assert facts["steps"] >= 3
    # Padding counts as part of a position but not as a token.
    assert 0 < facts["tokens_per_second"] < facts["positions_per_second"]
    assert list(_measured(here.runs).values()) == [facts["positions_per_second"]]
    estimate = plan(here.runs, chosen(here)).estimate
    assert estimate.basis == ("4 of 4 jobs: the measured speed of that shape",)
    assert estimate.core_hours == pytest.approx(estimate.tokens / facts["positions_per_second"] / 3600)


def test_no_measurement_beside_a_running_job(here: Project) -> None:
    cores = machine()
    lease = Slots(here.runs, cores).take(Resources(cpus=len(cores.cores)))
    with pytest.raises(GpasError, match="every slot of this machine is busy"):
        list(bench(here, chosen(here), 0.1))
    lease.close()
    assert not _measured(here.runs)


@pytest.mark.long
@pytest.mark.skipif(len(machine().cores) < 2, reason="two processes need two cores")
def test_of_several_processes_one_is_measured(here: Project) -> None:
    here.config.write_text(GRID.replace("axes:", "resources: {ranks: 2}\n    axes:"))
    (found,) = bench(here, chosen(here), 0.1)
    facts = found.facts
    assert (facts["processes"], facts["micro_batch"]) == (2, 4)
    # Both processes compute 4 rows of 64 in that time.
    assert _measured(here.runs) == {
        tuple(facts["shape"]): 8 * 64 / facts["seconds_per_step"]
    }  # fmt: skip
    assert facts["tokens_per_second"] < 4 * 64 / facts["seconds_per_step"]
    estimate = plan(here.runs, chosen(here)).estimate
    assert estimate.basis == ("4 of 4 jobs: the measured speed of that shape",)
    assert estimate.core_hours == pytest.approx(2 * estimate.tokens / facts["positions_per_second"] / 3600)
    assert "tiny/s1" in str(render([found]).rows)


def test_an_error_in_the_measuring_process_is_reported(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_COMMAND", (sys.executable, "-c", "raise SystemExit('no memory left')"))
    with pytest.raises(GpasError, match=r"tiny/s1 could not be measured: no memory left"):
        list(bench(here, chosen(here), 0.1))
