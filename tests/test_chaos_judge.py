"""The judge of a chaos run: each invariant reports a violation forged here, and nothing else; its plan of faults."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from chaos_kit import judge
from chaos_kit.judge import Ended, Poll, Shown, Violation
from chaos_kit.plan import append as write_step
from chaos_kit.plan import is_fault, make_plan, weights
from chaos_kit.plan import read as read_steps
from chaos_kit.processes import Life, Process
from chaos_kit.records import Attempt, values

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
SEEN = {"journal": "10 bytes, 1", "attempt": "5 bytes, 2"}
TABLE = {"rows": [{"cells": [1.5, 2.5]}]}
TRACEBACK = "Traceback (most recent call last):\n  File x, in main\nValueError: x"
# One violation for each thing that the judge looks at.
FORGED = [
    (judge.each_cell_once(NAMES, [INTERRUPTED, DONE]), "LOST chaos/pre-s2: no attempt has a result"),
    (judge.each_cell_once({KEY: "a"}, [DONE, attempt(3, outcome(12))]), "DOUBLED a: several attempts have a result"),
    (judge.same_weights(NAMES, {KEY: "y"}, {KEY: "x"}), "WRONG chaos/pre-s1: the final weights differ"),
    (judge.one_at_a_time(NAMES, [], [life(1, 1.0, 3.6), life(2, 3.5, 9.0)]), "DOUBLED chaos/pre-s1"),
    (judge.one_at_a_time(NAMES, [INTERRUPTED, attempt(2, event("start", 2.5), outcome(9))], []), "two journals"),
    (judge.locked_once(NAMES, [(7.0, KEY, [1, 2])]), "attempts 1, 2 at 7.00"),
    (judge.failures_excused(NAMES, [attempt(1, {**FAILED, "cause": "ValueError: x"})]), "ValueError"),
    (judge.nothing_erased(SEEN, {"journal": SEEN["journal"]}), "LOST attempt: a file of an attempt was removed"),
    (judge.nothing_erased(SEEN, {**SEEN, "journal": "10 bytes, 3"}), "a file of an attempt was rewritten"),
    (judge.numbered_without_gaps(NAMES, [attempt(1), attempt(3)]), "LOST chaos/pre-s1: an attempt is missing"),
    (judge.commands_behaved([Ended("gpas db sync", 1, TRACEBACK, killed=True)]), "traceback"),
    (judge.commands_behaved([Ended("gpas table", 0, "ok"), Ended("gpas db sync", None, "")]), "never ended"),
    (judge.commands_behaved([Ended("gpas db sync", -11, "")]), "exit code -11"),
    (judge.database_agrees(TABLE, {"rows": [{"cells": [1.5, 2.25]}]}, "the table"), "2.25"),
]


@pytest.mark.parametrize(("found", "words"), FORGED, ids=[words for _, words in FORGED])
def test_a_violation_is_found(found: Iterable[Violation], words: str) -> None:
    assert words in str(only(found))


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
