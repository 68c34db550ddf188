"""What follows an attempt that ended without a result."""

from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events

from gpas_cli.events import Phase
from gpas_cli.schedule.retry import End, Step, end_of, halved_micro_batch, is_memory, next_step
from gpas_cli.state.status import StageStatus

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


BOTH = ("mem", "time")
# how it ended, attempts without progress (of 3), half the micro-batch, resources with more, packed -> what follows
POLICY = [
    *((end, 3, 4, BOTH, True, Step.NOTHING) for end in (End.ENDED, End.SUPERSEDED)),
    (End.MEMORY, 1, 4, BOTH, True, Step.GROW),
    (End.MEMORY, 3, 4, BOTH, True, Step.GROW),
    (End.MEMORY, 1, 4, ("time",), True, Step.REDUCE),
    (End.MEMORY, 3, 4, (), False, Step.REDUCE),
    (End.MEMORY, 1, 0, (), True, Step.ALONE),
    (End.MEMORY, 1, 0, (), False, Step.LATER),
    (End.MEMORY, 3, 0, (), True, Step.GIVE_UP),
    (End.KILLED, 1, 4, BOTH, True, Step.AGAIN),
    (End.KILLED, 3, 4, BOTH, True, Step.GIVE_UP),
    (End.FAULTY_NODE, 2, 0, BOTH, False, Step.ELSEWHERE),
    (End.FAULTY_NODE, 3, 0, BOTH, False, Step.GIVE_UP),
    (End.TIME_LIMIT, 0, 4, BOTH, False, Step.GROW),
    (End.TIME_LIMIT, 0, 4, ("mem",), False, Step.AGAIN),
    (End.TIME_LIMIT, 3, 4, BOTH, False, Step.GIVE_UP),
    (End.PREEMPTED, 0, 4, BOTH, True, Step.AGAIN),
    (End.PREEMPTED, 3, 4, BOTH, True, Step.GIVE_UP),
    (End.INTERRUPTED, 0, 4, BOTH, True, Step.LATER),
    (End.INTERRUPTED, 4, 4, BOTH, True, Step.GIVE_UP),
]


@pytest.mark.parametrize(("how", "in_vain", "rows", "larger", "packed", "wanted"), POLICY)
def test_the_policy(how: End, in_vain: int, rows: int, larger: tuple[str, ...], packed: bool, wanted: Step) -> None:
    assert next_step(how, in_vain, 3, rows=rows, larger=larger, packed=packed) is wanted


def test_every_end_and_every_step_are_in_the_table() -> None:
    assert {how for how, *_ in POLICY} == set(End)
    assert {row[-1] for row in POLICY} == set(Step)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ({"state": "failed", "cause": "CUDA out of memory"}, End.MEMORY),
        ({"state": "failed", "cause": "ValueError: no"}, End.ENDED),
        ({"state": "done"}, End.ENDED),
        ({"state": "interrupted", "signal": 9}, End.KILLED),
        ({"state": "interrupted", "source": "lock"}, End.KILLED),
        ({"state": "interrupted", "cause": "another process of the job was killed"}, End.KILLED),
        ({"state": "interrupted", "source": "outcome"}, End.INTERRUPTED),
    ],
)
def test_a_status_shows_how_an_attempt_ended(seen: dict[str, Any], wanted: End) -> None:
    assert end_of(StageStatus(**{"evidence": "", **seen})) is wanted
