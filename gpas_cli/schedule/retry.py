"""Half the micro-batch for a stage that ran out of memory. The batch of an update and the result stay the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpas_cli.errors import GpasError
from gpas_cli.events import Phase
from gpas_cli.state.status import StageStatus
from gpas_cli.store.journal import read
from gpas_cli.store.records import AttemptRecord, Retry
from gpas_cli.store.rundir import AttemptDir

OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|exceeded (job )?memory limit|oom[-_ ]kill|cannot allocate memory|DefaultCPUAllocator", re.I
)
BEGINNING_BYTES = 4 << 20  # bytes of a journal within which training begins, however long tokenisation took


def is_memory(text: str) -> bool:
    """Return whether a cause, or the end of a log, says that memory ran out on the host or a GPU."""
    return OUT_OF_MEMORY.search(text) is not None


def ran_out_of_memory(status: StageStatus) -> bool:
    """Return whether a stage failed because memory ran out."""
    return status.state == "failed" and is_memory(status.cause)


def halved_micro_batch(attempt: AttemptDir) -> int:
    """Return half the micro-batch of an attempt, which its journal records, or else its resources.

    0 if it was a single row or is unknown: if memory ran out before training began, the rows did not use it.
    """
    lines, _, _ = read(attempt.journal_path, limit=BEGINNING_BYTES)
    events = (line.event for line in reversed(lines))
    began = next((event for event in events if isinstance(event, Phase) and event.name == "training"), None)
    used = began.micro_batch if began else None
    return (attempt.read_attempt().resources.micro_batch if used is None else used) // 2


def adjusted_to_last_attempt(
    first: AttemptRecord, tries: Sequence[AttemptDir], *, reduce: bool | str = False, again: str = ""
) -> AttemptRecord:
    """Return the record `first` of the next attempt at a stage, adjusted to how the last of its `tries` ended.

    The micro-batch stays reduced if it was, and is halved if memory ran out: `reduce`, which may be the evidence.
    `again`: why the stage is run again as it was. The record has the reason.
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
