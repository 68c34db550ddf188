"""The process of an attempt: its environment, its end, the files it exchanges with schedulers, and what follows it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events
from cases import cases, tables
from launching import Background, Lab, entry, job_pid, states, through, until
from programs import program

from gpas_cli.errors import GpasError
from gpas_cli.events import Phase
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.project import Project
from gpas_cli.schedule.batch import submission
from gpas_cli.schedule.local import LocalScheduler
from gpas_cli.schedule.local import run as local
from gpas_cli.schedule.process import job_environment, record_exit, token
from gpas_cli.schedule.retry import End, Step, end_of, halved_micro_batch, is_memory, next_step
from gpas_cli.schedule.scheduler import choose
from gpas_cli.schedule.slurm import client
from gpas_cli.schedule.slurm.scheduler import SlurmScheduler
from gpas_cli.schedule.slurm.supervisor import SlurmStart
from gpas_cli.state import cancellation, rerun
from gpas_cli.state.attempt import process_path
from gpas_cli.state.claims import Submitter, claim_path, write_claim
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import StageStatus
from gpas_cli.store.records import SubmissionRecord
from gpas_cli.store.rundir import AttemptDir, attempts, read_json, read_record, stage_dir, write_json
from gpas_cli.store.snapshot import Snapshot


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPAS_DB", "postgresql://me:secret@host/name")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HOME_SWEET_HOME", "kept")


def test_jobs_do_not_get_the_database_password() -> None:
    for environment in (job_environment(Path("/code"), {}), client._environment()):
        assert "GPAS_DB" not in environment
        assert environment["HOME_SWEET_HOME"] == "kept"


def test_a_job_imports_the_package_of_its_snapshot_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/elsewhere::mine:")
    environment = job_environment(Path("/code"), {"OMP_NUM_THREADS": "2"})
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/code", "/elsewhere", str(Path.cwd() / "mine")]
    assert (environment["PYTHONSAFEPATH"], environment["OMP_NUM_THREADS"]) == ("1", "2")


def test_a_running_cell_stops_as_cancelled_and_a_queued_one_never_starts(lab: Lab) -> None:
    cells = [entry("wait", 1), entry("wait", 2), entry("wait", 3)]
    first = lab.scheduler(*cells, at_once=1)
    summaries = []
    thread = threading.Thread(target=lambda: summaries.append(through(first)))
    thread.start()
    until(lab.working(cells[0]))
    until(lab.seen(cells[1], "queued"))
    answers = lab.cancel(*cells[:2])
    assert [answer.asked for answer in answers] == [True, True]
    assert "was asked to stop" in answers[0].what
    until(lab.seen(cells[0], "cancelled"))
    lab.go()
    thread.join(10)
    assert states(summaries[0]) == {"cancelled": ["wait-1", "wait-2"], "done": ["wait-3"]}
    assert summaries[0].cancelled[1].reason == "cancelled before it started"
    assert sorted(lab.ran()) == ["wait-1 1", "wait-3 1"]
    # Only a retry runs them again, even those that had not started.
    assert states(lab.run(*cells)) == {"cancelled": ["wait-1", "wait-2"], "done": ["wait-3"]}
    assert [state.state for state in cell_statuses(lab.runs, cells)] == ["cancelled", "cancelled", "done"]
    assert states(lab.run(*cells, retry=["cancelled"])) == {"done": ["wait-1", "wait-2", "wait-3"]}
    assert sorted(lab.ran()) == ["wait-1 1", "wait-1 2", "wait-2 1", "wait-3 1"]


def test_cancelling_does_not_depend_on_clocks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    first = Background(lab.scheduler(*cells, at_once=1))
    until(lab.working(cells[0]))
    until(lab.seen(cells[1], "queued"))
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 1000.0)
        assert lab.cancel(cells[1])[0].asked
    lab.go()
    assert states(first.result()) == {"done": ["wait-1"], "cancelled": ["wait-2"]}


def test_a_cell_that_is_cancelled_and_retried_at_once_runs_once(lab: Lab) -> None:
    """The first run has it in its queue and has not yet noticed the cancellation; the retry takes it over."""
    cells = [entry("wait", 1), entry("done", 2)]
    first = lab.scheduler(*cells, at_once=1)
    assert first.submit() == {"waiting": 2}
    assert lab.cancel(cells[1])[0].asked
    second = lab.scheduler(cells[1], retry=["cancelled"])
    assert second.submit() == {"waiting": 1}
    lab.go()
    assert states(second.follow()) == {"done": ["done-2"]}
    assert states(first.follow()) == {"done": ["wait-1", "done-2"]}
    assert sorted(lab.ran()) == ["done-2 1", "wait-1 1"]


def test_a_follower_does_not_run_cells_cancelled_in_another_queue(lab: Lab) -> None:
    words = [f"wait:{seed}" for seed in range(1, 6)]
    cells = [entry("wait", seed) for seed in range(1, 6)]
    with lab.other_run(*words):
        until(lambda: sum(lab.observe(cell).state == "running" for cell in cells) == 4)
        second = lab.scheduler(*cells)
        assert second.submit() == {"followed": 5}
        assert all(answer.asked for answer in lab.cancel(cells[4]))
        until(lab.seen(cells[4], "cancelled"))
        lab.go()
        summary = second.follow()
    assert states(summary) == {"done": [cell.name for cell in cells[:4]], "cancelled": ["wait-5"]}
    assert len(lab.ran()) == 4


def test_a_job_without_its_scheduler_can_be_cancelled(lab: Lab) -> None:
    cell = entry("wait", 1)
    lab.orphaned(cell)
    assert lab.cancel(cell)[0].asked
    assert until(lab.seen(cell, "cancelled")).outcome == "cancelled"


def test_one_request_for_a_shared_stage(lab: Lab) -> None:
    cell = entry("wait", 1)
    with lab.other_run("wait:1"):
        until(lab.working(cell))
        answers = lab.cancel(cell, replace(cell, name="twin"))
        assert [answer.what for answer in answers] == [answers[0].what] * 2
        assert answers[1].state.entry.name == "twin"
        until(lab.seen(cell, "cancelled"))


def test_a_process_that_merely_has_the_recorded_id_is_not_signalled(lab: Lab) -> None:
    """The id in process.json belongs to an unrelated process, so the scheduler, which knows its child, must act."""
    cell = entry("wait", 1)
    stranger = subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE)
    with lab.other_run("wait:1"):
        status = until(lab.working(cell))
        path = process_path(AttemptDir(status.directory))
        write_json(path, {**read_json(path), "pid": stranger.pid})
        (answer,) = lab.cancel(cell)
        assert answer.asked
        assert "will stop it" in answer.what
        until(lab.seen(cell, "cancelled"))
    assert stranger.poll() is None
    stranger.communicate(b"\n")


def test_an_unreachable_process_is_reported(lab: Lab) -> None:
    cell = entry("wait", 1)
    lab.orphaned(cell)
    pid = job_pid(lab.observe(cell))
    (attempt,) = lab.attempts(cell)
    write_json(process_path(attempt), {"host": "elsewhere", "pid": pid, "token": token(pid)})
    (answer,) = lab.cancel(cell)
    os.kill(pid, signal.SIGKILL)
    assert not answer.asked
    assert "cannot be reached from here" in answer.what


def test_only_queued_and_running_cells_are_cancelled(lab: Lab) -> None:
    lab.run(entry("done", 1))
    answers = lab.cancel(entry("done", 1), entry("done", 2))
    assert [answer.what for answer in answers] == [
        "is done: there is nothing to cancel",
        "is missing: there is nothing to cancel",
    ]
    assert not any(answer.asked for answer in answers)
    assert not list(lab.runs.rglob("cancel.json"))


def test_a_token_names_one_process() -> None:
    assert token(os.getpid()) == token(os.getpid()) != ""
    child = subprocess.Popen([sys.executable, "-Sc", ""])
    time.sleep(0.02)
    assert token(child.pid) not in ("", token(os.getpid()))
    child.wait()
    assert token(child.pid) == ""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def test_auto_chooses_slurm_if_a_controller_answers(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = programs / "runs"

    def chosen(word: str) -> tuple[type, str]:
        scheduler, note = choose(word, runs)
        return type(scheduler), note

    assert chosen("auto") == (LocalScheduler, "")
    program(programs / "sbatch")
    assert chosen("local") == (LocalScheduler, "")
    here, note = chosen("auto")
    assert (here, "no SLURM controller answers" in note) == (LocalScheduler, True)
    runs.mkdir()
    assert chosen("auto") == (LocalScheduler, "")  # jobs have run here before, and nowhere else
    (runs / ".slurm").mkdir()
    assert chosen("auto") == (LocalScheduler, note)
    program(programs / "scontrol", "echo 'Slurmctld(primary) at here is UP'")
    assert chosen("auto") == (SlurmScheduler, "")
    assert chosen("local") == (LocalScheduler, "")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert chosen("auto") == (LocalScheduler, "")


@pytest.mark.parametrize(("word", "message"), [("slurm", "--executor local"), ("slrum", "did you mean 'slurm'")])
def test_an_unavailable_executor_is_refused(word: str, message: str, programs: Path) -> None:
    with pytest.raises(GpasError, match=message):
        choose(word, programs)


OLD = Path(__file__).parents[1] / "store/data/version_1/runs"
LOCAL, KILLED = "f9c77c5bd118ffff", "ce77848a75c2b536"
CELL = entry()
(JOB,) = stage_jobs([CELL]).values()


def keys(value: Any) -> Any:
    """Return an object's field names, including nested ones. The settings of a cell are a separate format."""
    if isinstance(value, list):
        return [keys(item) for item in value[:1]]
    if not isinstance(value, dict):
        return None
    return {name: keys(item) for name, item in value.items() if name not in ("axes", "cell")}


def same_fields(new: Path, old: Path) -> bool:
    return bool(keys(json.loads(new.read_text())) == keys(json.loads(old.read_text())))


def test_an_attempt_on_this_machine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a checkout: an installed package has no commit to record.
    copied, git = local.snapshot, {"commit": "a" * 40, "dirty": False}
    monkeypatch.setattr(local, "snapshot", lambda *given, **named: replace(copied(*given, **named), git=git))
    lab.run(CELL)
    (made,) = attempts(lab.runs, JOB.key)
    old = attempts(OLD, LOCAL)[0]
    assert same_fields(made.attempt_path, old.attempt_path)
    assert same_fields(made.path / "process.json", old.path / "process.json")
    assert same_fields(made.exit_path, old.exit_path)


def test_an_attempt_of_an_array_element(project: Project) -> None:
    code = Snapshot("c0de", project.runs / ".code/c0de", {"commit": "a" * 40, "dirty": False})
    submitter = Submitter(project.runs)
    old = OLD / ".slurm/gpas-toy-0123456789ab"
    made = submission.record(project.runs / ".slurm/gpas-g-0", project, [[JOB]], code, submitter, {JOB.key})
    made.submitted("7")
    for name in ("submission.json", "job.json", "elements.jsonl"):
        assert same_fields(made.folder / name, old / name)
    write_claim(project.runs, JOB.key, submitter, "slurm", submission=made.name, index=0, after=[])
    claim = read_json(claim_path(project.runs, JOB.key))
    assert claim.pop("scheduler") == "slurm"  # version 1 did not write it
    assert list(claim) == list(read_json(claim_path(OLD, KILLED)))
    start = SlurmStart(made.folder, {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7"})
    (job,) = start.jobs
    first = start.create_attempt(job)
    record_exit(first, None, 9)
    old_first, _ = attempts(OLD, KILLED)
    assert same_fields(first.attempt_path, old_first.attempt_path)
    assert same_fields(first.exit_path, old_first.exit_path)
    submitter.close()


@pytest.mark.parametrize("damage", [b"{", b"[" * 200_000, b"\xff\xfe[", b"5", b"[5]"])
def test_a_damaged_array_element_is_one_message(tmp_path: Path, damage: bytes) -> None:
    recorded = read_record(SubmissionRecord, OLD / ".slurm/gpas-toy-0123456789ab/submission.json")
    made = submission.Submission(tmp_path, recorded)
    (tmp_path / "elements.jsonl").write_bytes(damage + b"\n")
    with pytest.raises(GpasError, match=r"elements\.jsonl, line 1"):
        made.element(0)
    with pytest.raises(GpasError, match="has no element 1"):
        made.element(1)


def test_requests(project: Project) -> None:
    old = attempts(OLD, "8cadd676e2b2ad58")[1]
    stage_dir(project.runs, JOB.key).mkdir(parents=True)
    rerun.request(project.runs, JOB.key)
    assert same_fields(stage_dir(project.runs, JOB.key) / "rerun.json", old.path.parent / "rerun.json")
    cancellation.request(project.runs, signalled=True)
    assert same_fields(cancellation.request_path(project.runs), cancellation.request_path(old.path))


KEY = "0123456789abcdef"


def test_out_of_memory_is_distinguished_from_other_failures() -> None:
    for cause in ("OutOfMemoryError: CUDA out of memory", "slurmstepd: error: Detected 1 oom_kill event",
                  "Exceeded job memory limit", "[enforce fail] DefaultCPUAllocator: not enough memory"):  # fmt: skip
        assert is_memory(cause)
    assert not is_memory("DataError: no such file: memory.txt")


@pytest.mark.parametrize(
    ("asked", "took", "wanted"), [(0, 6, 3), (8, 8, 4), (0, 1, 0), (1, None, 0), (4, None, 2), (0, None, 0)]
)
def test_the_micro_batch_of_an_attempt_is_halved(tmp_path: Path, asked: int, took: int | None, wanted: int) -> None:
    made = make_attempt(tmp_path, KEY, {"resources": {"micro_batch": asked}})
    training = [] if took is None else [Phase(name="training", micro_batch=took)]
    write_events(made, [Phase(name="tokenising"), *training])
    assert halved_micro_batch(made) == wanted


@cases("schedule/cases.yaml")
def test_the_policy(how: str, in_vain: int, rows: int, larger: list[str], packed: bool, wanted: str) -> None:
    assert next_step(End[how], in_vain, 3, rows=rows, larger=larger, packed=packed) is Step[wanted]


def test_every_end_and_every_step_are_in_the_table() -> None:
    ends, *_, steps = zip(*tables("schedule/cases.yaml")["the_policy"], strict=True)
    assert (set(ends), set(steps)) == (set(End.__members__), set(Step.__members__))


@cases("schedule/cases.yaml")
def test_a_status_shows_how_an_attempt_ended(seen: dict[str, Any], wanted: str) -> None:
    assert end_of(StageStatus(**{"evidence": "", **seen})) is End[wanted]
