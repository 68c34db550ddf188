"""What follows an attempt that ended without a result: one policy, `next_step`, for every scheduler.

    out of memory   a job with more memory if the resources have a further entry, else half the micro-batch, else, for a
                    cell that shared its job with others, a separate job; that comes first if its job has ended
    killed          the same once more (SIGKILL without evidence that memory ran out, or an exit that nobody recorded)
    faulty node     another node, if the scheduler has several
    time limit      a job with a longer limit if the resources have a further entry, else the same job
    preempted       the same job, when the scheduler has room again
    interrupted     (for another reason) whatever the next `gpas run` does
    ended, cancelled, superseded by another job     nothing

After `retries` attempts in a row without progress a stage is given up. The batch of an update and the result stay the
same whatever the micro-batch.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum, auto

from gpas_cli.errors import GpasError
from gpas_cli.events import Phase
from gpas_cli.spec.run import Resources, time_seconds
from gpas_cli.state.status import StageStatus
from gpas_cli.store.journal import read
from gpas_cli.store.records import AttemptRecord, Retry
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.worker.ranks import LOST_PEER

_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|exceeded (job )?memory limit|oom[-_ ]kill|cannot allocate memory|DefaultCPUAllocator", re.I
)
_EARLY_SECONDS = 70.0  # by which SLURM may send the warning of a time limit too early
_BEGINNING_BYTES = 4 << 20  # bytes of a journal within which training begins, however long tokenisation took


class End(Enum):
    """How an attempt ended."""

    ENDED = auto()  # with an outcome, or with an error
    SUPERSEDED = auto()
    MEMORY = auto()
    KILLED = auto()
    FAULTY_NODE = auto()
    TIME_LIMIT = auto()
    PREEMPTED = auto()
    INTERRUPTED = auto()


class Step(Enum):
    """What a scheduler does next."""

    NOTHING = auto()
    AGAIN = auto()  # start it once more, unchanged
    REDUCE = auto()  # start it with half the micro-batch
    GROW = auto()  # submit it with more memory or time
    ALONE = auto()  # submit it in a separate job
    ELSEWHERE = auto()  # start it on another node
    LATER = auto()  # leave it to the next `gpas run`
    GIVE_UP = auto()


def next_step(
    end: End, in_vain: int, retries: int, *, rows: int = 0, larger: Collection[str] = (), packed: bool = False
) -> Step:
    """Return what follows an attempt that ended as `end` says.

    in_vain: attempts in a row without progress, this one included, at most `retries`. rows: half its
    micro-batch, 0 if that cannot be halved. larger: the resources with a further entry. packed: whether other cells
    shared its job.
    """
    if end in (End.ENDED, End.SUPERSEDED):
        return Step.NOTHING
    if end is End.MEMORY and ("mem" in larger or rows):
        return Step.GROW if "mem" in larger else Step.REDUCE
    if in_vain >= retries:
        return Step.GIVE_UP
    if end is End.TIME_LIMIT and "time" in larger:
        return Step.GROW
    usual = {
        End.MEMORY: Step.ALONE if packed else Step.LATER,
        End.FAULTY_NODE: Step.ELSEWHERE,
        End.INTERRUPTED: Step.LATER,
    }
    return usual.get(end, Step.AGAIN)


def end_of(status: StageStatus) -> End:
    """Return how an attempt ended, by its status.

    A job that ended without an outcome, after the process that would have recorded its exit, counts as killed.
    """
    if is_memory(status.cause):
        return End.MEMORY
    if status.state != "interrupted":
        return End.ENDED
    killed = status.source == "lock" or status.signal is not None or status.cause == LOST_PEER
    return End.KILLED if killed else End.INTERRUPTED


def given_up(status: StageStatus, in_vain: int) -> StageStatus:
    """Return the status of an interrupted stage that is given up, with the reason and a remedy as its cause."""
    why = f"{in_vain} attempts in a row made no progress; {status.cause or status.evidence}"
    more = "; `gpas retry CELL --set resources.mem=...` gives it more" if is_memory(status.cause) else ""
    return replace(status, cause=f"{why}{more}")


def reached_limit(asked: Resources, seconds: float) -> bool:
    """Return whether a job that ended after `seconds` was ended, or warned, because of its time limit."""
    limit = time_seconds(str(asked.first.time))
    return limit is not None and seconds >= max(limit - asked.notice - _EARLY_SECONDS, limit / 2)


def is_memory(text: str) -> bool:
    """Return whether a cause, or the end of a log, says that memory ran out on the host or a GPU."""
    return _OUT_OF_MEMORY.search(text) is not None


def ran_out_of_memory(status: StageStatus) -> bool:
    """Return whether a stage failed because memory ran out."""
    return status.state == "failed" and is_memory(status.cause)


def halved_micro_batch(attempt: AttemptDir) -> int:
    """Return half the micro-batch of an attempt, which its journal records, or else its resources.

    0 if it was a single row or is unknown: if memory ran out before training began, the rows did not use it.
    """
    lines, _, _ = read(attempt.journal_path, limit=_BEGINNING_BYTES)
    events = (line.event for line in reversed(lines))
    began = next((event for event in events if isinstance(event, Phase) and event.name == "training"), None)
    used = began.micro_batch if began else None
    return (attempt.read_attempt().resources.micro_batch if used is None else used) // 2


def adjusted_to_last_attempt(
    first: AttemptRecord, tries: Sequence[AttemptDir], *, reduce: bool | str = False, again: str = ""
) -> AttemptRecord:
    """Return the record `first` of the next attempt at a stage, adjusted to how the last of its `tries` ended.

    The micro-batch stays reduced if it was, and is halved if memory ran out: `reduce`, which may be the evidence.
    `again`: why the stage is run again with the same rows. The record has the reason.
    """
    try:
        last = tries[-1]
        before = last.read_attempt()
    except (IndexError, OSError, GpasError):  # the first attempt, or nothing is known about the last one
        return first
    reduced = before.retry is not None and before.retry.reduced
    record = replace(_with_rows(first, before.resources.micro_batch), retry=before.retry) if reduced else first
    if reduce and (rows := halved_micro_batch(last)):
        evidence = f" ({reduce})" if isinstance(reduce, str) else ""
        why = f"out of memory{evidence}; now {rows} rows at a time"
        return replace(_with_rows(record, rows), retry=Retry(of=last.number, why=why, reduced=True))
    if again:
        return replace(record, retry=Retry(of=last.number, why=again, reduced=reduced))
    return record


def _with_rows(asked: AttemptRecord, rows: int) -> AttemptRecord:
    return replace(asked, resources=replace(asked.resources, micro_batch=rows))
