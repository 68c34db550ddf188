"""Each invariant of a chaos run reports a violation forged here, and nothing else."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from chaos_kit import judge
from chaos_kit.judge import Ended, Poll, Shown, Violation
from chaos_kit.plan import append as write_step
from chaos_kit.plan import is_fault, make_plan, weights
from chaos_kit.plan import read as read_steps
from chaos_kit.processes import Life, Process
from chaos_kit.records import Attempt, values

from gpas_cli.events import Outcome, Step
from gpas_cli.store.journal import Journal

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


def test_a_cell_without_a_result_is_lost() -> None:
    assert not list(judge.each_cell_once({KEY: "a"}, [INTERRUPTED, DONE]))
    found = only(judge.each_cell_once(NAMES, [INTERRUPTED, DONE]))
    assert (found.verdict, found.where) == ("lost", "chaos/pre-s2")
    assert "interrupted" in only(judge.each_cell_once({KEY: "a"}, [INTERRUPTED])).evidence


def test_a_second_result_is_a_violation() -> None:
    again = attempt(3, outcome(12))
    assert only(judge.each_cell_once({KEY: "a"}, [DONE, again])).verdict == "doubled"


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


def test_other_weights_are_found() -> None:
    assert not list(judge.same_weights(NAMES, {KEY: "x"}, {KEY: "x"}))
    assert only(judge.same_weights(NAMES, {KEY: "y"}, {KEY: "x"})).verdict == "wrong"
    assert "no checkpoint" in only(judge.same_weights(NAMES, {}, {KEY: "x"})).evidence


def test_overlapping_lives_are_found() -> None:
    apart = [life(1, 1.0, 3.0), life(2, 3.5, 9.0), life(1, 3.2, 5.0, OTHER), life(2, 1.0, 9.0, "c" * 16)]
    assert not list(judge.one_at_a_time(NAMES, [INTERRUPTED, DONE], apart))
    found = only(judge.one_at_a_time(NAMES, [], [life(1, 1.0, 3.6), life(2, 3.5, 9.0)]))
    assert (found.verdict, found.where) == ("doubled", "chaos/pre-s1")
    assert "process 101" in found.evidence


def test_journals_that_overlap_are_found() -> None:
    early = attempt(2, event("start", 2.5), outcome(9))
    assert "journals" in only(judge.one_at_a_time(NAMES, [INTERRUPTED, early], [])).invariant


def test_overlapping_locks_are_found() -> None:
    assert not list(judge.locked_once(NAMES, []))
    found = only(judge.locked_once(NAMES, [(7.0, KEY, [1, 2])]))
    assert (found.verdict, found.evidence) == ("doubled", "attempts 1, 2 at 7.00")


def test_an_attempt_that_started_twice_is_found() -> None:
    twice = attempt(1, event("start", 1, pid=5), event("start", 2, pid=6))
    assert "processes 5, 6" in only(judge.one_at_a_time(NAMES, [twice], [])).evidence


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


def test_a_live_command_explains_a_queued_cell() -> None:
    assert not list(judge.shown_truly([poll("queued")], [], [], [(4.0, 10.5)], ENOUGH))
    assert not list(judge.shown_truly([poll("queued")], [], [], None))


def test_an_unexcused_failure_is_found() -> None:
    failed = outcome(3, "failed")
    forged = attempt(1, {**failed, "cause": "ValueError: x"})
    assert "ValueError" in only(judge.failures_excused(NAMES, [forged])).evidence
    assert not list(judge.failures_excused(NAMES, [attempt(1, {**failed, "cause": "OSError: No space left"}), DONE]))


def test_erased_and_rewritten_files_are_found() -> None:
    seen = {"journal": "10 bytes, 1", "attempt": "5 bytes, 2"}
    assert not list(judge.nothing_erased(seen, seen))
    assert "removed" in only(judge.nothing_erased(seen, {"journal": "10 bytes, 1"})).invariant
    assert "rewritten" in only(judge.nothing_erased(seen, {**seen, "journal": "10 bytes, 3"})).invariant
    assert only(judge.numbered_without_gaps(NAMES, [attempt(1), attempt(3)])).verdict == "lost"
    assert not list(judge.numbered_without_gaps(NAMES, [attempt(2), attempt(1), attempt(1, key=OTHER)]))


TRACEBACK = "Traceback (most recent call last):\n  File x, in main\nValueError: x"
CTRL_C = "Traceback (most recent call last):\n  File x, in <module>\nKeyboardInterrupt\n"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (Ended("gpas sync", 1, TRACEBACK, killed=True), "traceback"),
        (Ended("gpas sync", None, ""), "never ended"),
        (Ended("gpas sync", 1, ""), "exit code 1"),
        (Ended("gpas sync", -11, ""), "exit code -11"),
        (Ended("gpas sync", 1, CTRL_C), "traceback"),
        (Ended("gpas sync", 1, CTRL_C.replace("<module>", "main"), killed=True), "traceback"),
    ],
)
def test_a_command_that_misbehaves_is_found(command: Ended, what: str) -> None:
    assert what in only(judge.commands_behaved([Ended("gpas table", 0, "ok"), command])).invariant


def test_a_killed_or_cleanly_failing_command_is_accepted() -> None:
    killed = [Ended("gpas run", code, "", killed=True) for code in (-9, 1, 130)]
    assert not list(judge.commands_behaved([*killed, Ended("gpas sync", 2, "gpas: the disk is full")]))
    assert not list(judge.commands_behaved([Ended("gpas run", 130, CTRL_C, killed=True)]))


def test_a_table_changed_by_a_rebuild_is_found() -> None:
    table = {"rows": [{"cells": [1.5, 2.5]}]}
    assert not list(judge.database_agrees(table, {"rows": [{"cells": [1.5, 2.5]}]}, "the table"))
    found = only(judge.database_agrees(table, {"rows": [{"cells": [1.5, 2.25]}]}, "the table"))
    assert "2.5" in found.evidence
    assert "2.25" in found.evidence


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


def test_every_planned_fault_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "slurm")
    from chaos_kit import faults, slurm_faults

    planned = {kind for kind in weights("slurm") if is_fault(kind)}
    assert planned == faults.FAULTS.keys() | slurm_faults.FAULTS.keys()
    assert "preempt" not in weights("local")
    assert "disk-full" not in weights("local", ["disk-full"])
