"""The parts of a chaos run, and its judge: each invariant reports a violation forged here, and nothing else."""

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from chaos_kit import judge
from chaos_kit.faults import Field
from chaos_kit.judge import Ended, Poll, Shown, Violation
from chaos_kit.plan import append as write_step
from chaos_kit.plan import is_fault, make_plan, weights
from chaos_kit.plan import read as read_steps
from chaos_kit.processes import Census, Life, Process, jobs_of, of_folder
from chaos_kit.project import KIT, Project
from chaos_kit.records import Attempt, values
from chaos_kit.witness import Witness

from gpas_cli.events import Outcome, Step
from gpas_cli.store.journal import Journal

pytestmark = pytest.mark.long


KEY, OTHER = "a" * 16, "b" * 16


NAMES = {KEY: "chaos/pre-s1", OTHER: "chaos/pre-s2"}


def event(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "t": t, **fields}


def outcome(t: float, word: str = "done", **metrics: float) -> dict[str, Any]:
    return event("outcome", t, outcome=word, step=3, cause="", metrics=metrics)


def attempt(number: int, *events: dict[str, Any], key: str = KEY, **facts: Any) -> Attempt:
    return Attempt(key, number, f"/runs/{key}/{number:03d}", {"stage": "pretrain", **facts}, events)


def life(number: int, first: float, last: float, key: str = KEY) -> Life:
    return Life(Process(100 + number, 1, 1, ("python",)), key, number, first, last)


def poll(state: str, began: float = 10, ended: float = 11, **more: Any) -> Poll:
    return Poll(began, ended, [Shown(NAMES[KEY], KEY, state, "evidence", more.pop("cause", ""))], **more)


INTERRUPTED = attempt(1, event("start", 1), event("step", 2, step=1, loss=4.5), outcome(3, "interrupted"))


DONE = attempt(2, event("start", 4), event("step", 5, step=2, loss=4.25), outcome(9, loss=1.5))


ENOUGH = [9.0, 9.5, 10.0, 10.5, 11.0, 11.5]


def only(found: Any) -> Violation:
    (violation,) = found
    return violation


FAILED = outcome(3, "failed")


TWICE = attempt(1, event("start", 1, pid=5), event("start", 2, pid=6))


SEEN = {"journal": "10 bytes, 1", "attempt": "5 bytes, 2"}


TABLE = {"rows": [{"cells": [1.5, 2.5]}]}


TRACEBACK = "Traceback (most recent call last):\n  File x, in main\nValueError: x"


CTRL_C = "Traceback (most recent call last):\n  File x, in <module>\nKeyboardInterrupt\n"


FORGED = [
    (judge.each_cell_once(NAMES, [INTERRUPTED, DONE]), "LOST chaos/pre-s2: no attempt has a result"),
    (judge.each_cell_once({KEY: "a"}, [INTERRUPTED]), "interrupted"),
    (judge.each_cell_once({KEY: "a"}, [DONE, attempt(3, outcome(12))]), "DOUBLED a: several attempts have a result"),
    (judge.same_weights(NAMES, {KEY: "y"}, {KEY: "x"}), "WRONG chaos/pre-s1: the final weights differ"),
    (judge.same_weights(NAMES, {}, {KEY: "x"}), "no checkpoint"),
    (judge.one_at_a_time(NAMES, [], [life(1, 1.0, 3.6), life(2, 3.5, 9.0)]), "DOUBLED chaos/pre-s1"),
    (judge.one_at_a_time(NAMES, [], [life(1, 1.0, 3.6), life(2, 3.5, 9.0)]), "process 101"),
    (judge.one_at_a_time(NAMES, [INTERRUPTED, attempt(2, event("start", 2.5), outcome(9))], []), "two journals"),
    (judge.one_at_a_time(NAMES, [attempt(1, event("start", 1, pid=5), event("start", 2, pid=6))], []),
     "processes 5, 6"),
    (judge.locked_once(NAMES, [(7.0, KEY, [1, 2])]), "attempts 1, 2 at 7.00"),
    (judge.failures_excused(NAMES, [attempt(1, {**FAILED, "cause": "ValueError: x"})]), "ValueError"),
    (judge.nothing_erased(SEEN, {"journal": SEEN["journal"]}), "LOST attempt: a file of an attempt was removed"),
    (judge.nothing_erased(SEEN, {**SEEN, "journal": "10 bytes, 3"}), "a file of an attempt was rewritten"),
    (judge.numbered_without_gaps(NAMES, [attempt(1), attempt(3)]), "LOST chaos/pre-s1: an attempt is missing"),
    (judge.commands_behaved([Ended("gpas sync", 1, TRACEBACK, killed=True)]), "traceback"),
    (judge.commands_behaved([Ended("gpas table", 0, "ok"), Ended("gpas sync", None, "")]), "never ended"),
    (judge.commands_behaved([Ended("gpas sync", 1, "")]), "exit code 1"),
    (judge.commands_behaved([Ended("gpas sync", -11, "")]), "exit code -11"),
    (judge.commands_behaved([Ended("gpas sync", 1, CTRL_C)]), "traceback"),
    (judge.commands_behaved([Ended("gpas a", 1, CTRL_C.replace("<module>", "main"), killed=True)]), "traceback"),
    (judge.database_agrees(TABLE, {"rows": [{"cells": [1.5, 2.25]}]}, "the table"), "2.25"),
]  # fmt: skip


SOUND = [
    judge.each_cell_once({KEY: "a"}, [INTERRUPTED, DONE]),
    judge.same_weights(NAMES, {KEY: "x"}, {KEY: "x"}),
    judge.one_at_a_time(
        NAMES, [INTERRUPTED, DONE],
        [life(1, 1.0, 3.0), life(2, 3.5, 9.0), life(1, 3.2, 5.0, OTHER), life(2, 1.0, 9.0, "c" * 16)],
    ),
    judge.locked_once(NAMES, []),
    judge.shown_truly([poll("queued")], [], [], [(4.0, 10.5)], ENOUGH),  # a live command explains it
    judge.shown_truly([poll("queued")], [], [], None),
    judge.failures_excused(NAMES, [attempt(1, {**FAILED, "cause": "OSError: No space left"}), DONE]),
    judge.nothing_erased(SEEN, SEEN),
    judge.numbered_without_gaps(NAMES, [attempt(2), attempt(1), attempt(1, key=OTHER)]),
    judge.commands_behaved([Ended("gpas run", code, "", killed=True) for code in (-9, 1, 130)]),
    judge.commands_behaved([Ended("gpas sync", 2, "gpas: the disk is full")]),
    judge.commands_behaved([Ended("gpas run", 130, CTRL_C, killed=True)]),
    judge.database_agrees(TABLE, {"rows": [{"cells": [1.5, 2.5]}]}, "the table"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "words"), FORGED, ids=[words for _, words in FORGED])
def test_a_violation_is_found(found: Iterable[Violation], words: str) -> None:
    assert words in str(only(found))


@pytest.mark.parametrize("found", SOUND, ids=range(len(SOUND)))
def test_nothing_is_found_where_nothing_is_wrong(found: Iterable[Violation]) -> None:
    assert not list(found)


@pytest.mark.parametrize(
    "forged",
    [
        attempt(1, event("step", 2, step=1, loss=4.500000000000001)),
        attempt(1, event("step", 2, step=7, loss=4.5)),
        attempt(1, outcome(9, loss=1.5000000000000002)),
        attempt(1, event("layers", 2, step=1, values={"grad_norm": [0.1, 0.3]})),
        attempt(1, event("data", 2, fingerprint="other")),
    ],
)
def test_a_value_that_differs_in_its_last_bit_is_found(forged: Attempt) -> None:
    straight = [
        attempt(1, event("data", 1, fingerprint="this"), event("step", 2, step=1, loss=4.5), outcome(9, loss=1.5)),
        attempt(1, event("layers", 2, step=1, values={"grad_norm": [0.1, 0.2]})),
    ]
    reference = {place: value for place, value, _ in values(straight)}
    assert not list(judge.same_bits(NAMES, values(straight), reference))
    assert only(judge.same_bits(NAMES, values([forged]), reference)).verdict == "wrong"


def test_times_and_statistics_after_a_resumption_are_not_compared() -> None:
    reference = {place: value for place, value, _ in values([attempt(1, outcome(9, train_seconds=1.0))])}
    later = attempt(2, event("layers", 2, step=51, values={"grad_norm": [0.1]}), outcome(9, train_seconds=2.0))
    assert not list(judge.same_bits(NAMES, values([later]), reference))


@pytest.mark.parametrize(
    ("shown", "attempts", "lives", "why"),
    [
        (poll("done", 7, 8), [DONE], [], "before that outcome"),
        (poll("running"), [DONE], [life(2, 4, 12)], "after its outcome"),
        (poll("missing", 7, 8), [], [life(1, 6, 9)], "while its process 101 lived"),
        (poll("interrupted", 7, 8), [INTERRUPTED, DONE], [life(2, 4, 9)], "while its process 102 lived"),
        (poll("cancelled", 2, 2.5), [INTERRUPTED], [life(1, 1, 3)], "while its process"),
        (poll("missing", waiting={KEY: "PENDING"}), [], [], "while SLURM had its job as PENDING"),
        (poll("failed", cause="ValueError: x"), [], [], "no fault explains"),
        (poll("running", shift=90.0), [], [life(1, 4, 8.9)], "neither a process of it nor a command"),
    ],
)
def test_a_false_status_is_found(shown: Poll, attempts: list[Attempt], lives: list[Life], why: str) -> None:
    commands = [(0.0, 2.0), (20.0, 21.0)]
    found = only(judge.shown_truly([shown, shown], attempts, lives, commands, ENOUGH))
    assert (found.verdict, found.where) == ("wrong", "chaos/pre-s1")
    assert why in found.invariant
    assert ("+90 s wrong" in found.evidence) == bool(shown.shift)


@pytest.mark.parametrize(
    ("shown", "attempts", "lives"),
    [
        (poll("done", 8, 9.5), [INTERRUPTED, DONE], [life(2, 4, 9)]),
        (poll("running", 8, 9.5), [DONE], [life(2, 4, 9)]),
        (poll("unknown"), [], [life(1, 6, 12)]),
        (poll("missing", 7, 8), [], [life(1, 7.5, 9)]),
        (poll("interrupted", 7, 8), [INTERRUPTED], [life(1, 4, 9)]),
        (poll("interrupted", 7, 8), [INTERRUPTED], [life(1, 4, 9, OTHER)]),
        (poll("cancelled", waiting={KEY: "PENDING"}), [], []),
        (poll("failed", cause="3 attempts in a row made no progress"), [], []),
        (poll("failed", cause="OSError: [Errno 28] No space left on device"), [], []),
        (poll("queued"), [], [life(1, 4, 9.5)]),
        (poll("running", 10, 30), [], []),  # processes were not sampled for that long
    ],
)
def test_a_true_status_is_accepted(shown: Poll, attempts: list[Attempt], lives: list[Life]) -> None:
    assert not list(judge.shown_truly([shown], attempts, lives, [], ENOUGH))


def test_attempts_are_read_from_their_directories(tmp_path: Path) -> None:
    from chaos_kit.records import read_attempts

    directory = make_attempt(tmp_path, KEY, {"stage": "pretrain"})
    journal = Journal(directory.journal_path)
    journal.append(Step(step=1, loss=4.5))
    journal.append(Outcome(outcome="done", step=1, cause="", metrics={"loss": 1.5, "train_seconds": 3.0}))
    journal.close()
    (found,) = read_attempts(tmp_path)
    assert found.decided() == "done"
    assert [(place[1:], value) for place, value, _ in values([found])] == [
        (("step", 1, "loss"), 4.5),
        (("outcome", 1, "loss"), 1.5),
    ]


def test_the_plan_depends_on_the_seed_alone(tmp_path: Path) -> None:
    first, again = (make_plan("7-local-1", 120, "local") for _ in range(2))
    assert first == again
    assert first != make_plan("8-local-1", 120, "local")
    assert [step.at for step in first] == sorted(step.at for step in first)
    assert first[0].kind == "run"
    path = tmp_path / "faults.jsonl"
    for step in first:
        write_step(path, step, step.at, "chaos/pre-s1")
    assert read_steps(path) == [dataclasses.replace(step, target="chaos/pre-s1") for step in first]


def test_every_planned_fault_exists() -> None:
    from chaos_kit import faults, slurm_faults

    planned = {kind for kind in weights("slurm") if is_fault(kind)}
    assert planned == faults.FAULTS.keys() | slurm_faults.FAULTS.keys()
    assert "preempt" not in weights("local")
    assert "disk-full" not in weights("local", ["disk-full"])


JOB_KEY = "a" * 16


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "text").mkdir()
    return Project(tmp_path / "project", tmp_path / "text", tmp_path / "logs", steps=20)


@pytest.fixture
def job(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that looks like the job of an attempt in the project."""
    words = ["gpas_cli.worker.job", str(project.runs / JOB_KEY[:2] / JOB_KEY / "002")]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
    yield process
    process.kill()
    process.wait()


def wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_job_is_seen_for_as_long_as_it_lives(project: Project, job: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: jobs_of(project.folder))
    census = Census(project.folder)
    census.sample()
    (life,) = census.lives.values()
    assert (life.process.pid, life.key, life.attempt) == (job.pid, JOB_KEY, 2)
    assert [process.pid for process in of_folder(project.folder)] == [job.pid]
    census.sample()
    assert life.last > life.first
    assert life.process.kill()
    wait_for(lambda: not life.process.lives())  # even before its parent has waited for it
    last = life.last
    census.sample()
    assert (life.last, len(census.times)) == (last, 3)
    assert not life.process.kill()
    assert not jobs_of(project.folder)


def test_jobs_of_another_folder_are_left_alone(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert not jobs_of(tmp_path / "proj")
    assert not of_folder(tmp_path / "proj")


def test_the_clock_of_one_process_is_wrong(project: Project) -> None:
    read = "import time, os; print(time.time(), time.time_ns(), os.environ.get('CHAOS_SHIFT'))"
    environment = {**project.environment(), "CHAOS_SHIFT": "3600"}
    assert str(KIT / "shifted") in environment["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", read], env=environment, capture_output=True, text=True, check=True)
    seconds, nanoseconds, inherited = done.stdout.split()
    assert float(seconds) - time.time() == pytest.approx(3600, abs=60)
    assert int(nanoseconds) / 1e9 - time.time() == pytest.approx(3600, abs=60)
    assert inherited == "None"


def test_a_grown_journal_is_accepted_and_a_rewritten_one_is_not(project: Project) -> None:
    witness = Witness(project, "seed")
    folder = project.runs / JOB_KEY[:2] / JOB_KEY / "001"
    folder.mkdir(parents=True)
    journal, attempt = folder / "journal.jsonl", folder / "attempt.json"
    journal.write_text("one\n")
    attempt.write_text("{}")
    witness._look()
    journal.write_text("one\ntwo\n")
    assert witness.now() == witness.seen()
    witness._look()
    journal.write_text("One\ntwo\nthree\n")
    assert {path for path, seen in witness.seen().items() if witness.now()[path] != seen} == {str(journal)}
    attempt.unlink()
    assert str(attempt) not in witness.now()


def test_lasting_faults_are_undone_in_time_and_before_the_calm(project: Project) -> None:
    field = Field(project, {})
    undone = list[str]()
    field.lasting(0.0, "short").callback(undone.append, "short")
    field.lasting(60.0, "long").callback(undone.append, "long")
    field.tick()
    assert undone == ["short"]
    assert (field.lasts("short"), field.lasts("long")) == (False, True)
    field.calm()
    assert undone == ["short", "long"]
