"""Classes of failure, and the response to each.

out of memory   the next attempt has half the micro-batch (`schedule.out_of_memory`)
faulty node     GPUs that the job should have are missing: the job is run again on another node
killed          (SIGKILL, without evidence that memory ran out) the job is run again unchanged
interrupted     the job is run again, until `retries` attempts in a row have made no progress
failed          not run again automatically; after SAME_CAUSE_CELLS such failures the rest of the array is held back
diverged        a result
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.state.logs import last_line
from gpas_cli.store.records import BreakerRecord, ElementFailure
from gpas_cli.store.rundir import attempts, read_record, write_record
from gpas_cli.structure import Record

AVOID_NODE_SECONDS = 86400.0  # how long new submissions of a stage exclude a node that could not run it
SAME_CAUSE_CELLS = 3  # cells of one array that fail for the same reason before the rest is held back
# Lines that srun and slurmstepd print when a step ends, whatever the reason.
ENDING = re.compile(
    r"(srun|slurmstepd\S*): .*(_step_signal|Exited with exit code|Job step aborted|forcing job termination"
    r"|got SIGCONT|Terminating StepId|\*\*\* (STEP|JOB)|task \d+: (Killed|Terminated)|Waiting up to)"
)


@dataclass(frozen=True, kw_only=True)
class AvoidedNode(Record):
    """avoid-NODE.json: a node that cannot run the jobs of a submission."""

    node: str
    t: float


def last_log_line(log: Path) -> str:
    """Return the last line of a job's log, without the lines of srun and slurmstepd about the end of the step."""
    return last_line(log, ENDING)


def count_failure(submission: Path, index: int, cause: str) -> str:
    """Record that an element failed. Return the cause if too many elements share it: the rest is then held back."""
    with suppress(OSError):
        write_record(submission / f"failed-{index}.json", ElementFailure(cause=same(cause)))
        seen = Counter(_cause(path) for path in submission.glob("failed-*.json"))
        if cause and seen[same(cause)] >= SAME_CAUSE_CELLS and not breaker(submission):
            tripped = BreakerRecord(cause=cause, cells=SAME_CAUSE_CELLS, t=time.time())
            write_record(submission / "breaker.json", tripped)
            return cause
    return ""


def breaker(submission: Path) -> str:
    """Return why the rest of a submission is held back, "" if it is not."""
    try:
        record = read_record(BreakerRecord, submission / "breaker.json")
        return f"held back: {record.cells} cells of {submission.name} failed for the same reason: {record.cause}"
    except (OSError, GpasError):
        return ""


def faulty_nodes(runs: Path, key: str) -> set[str]:
    """Return the nodes that could not run recent attempts at a stage, according to exit.json."""
    found = set[str]()
    for attempt in attempts(runs, key):
        with suppress(OSError, GpasError):
            ended = attempt.read_exit()
            if ended.node and time.time() - (ended.t or 0.0) < AVOID_NODE_SECONDS:
                found.add(ended.node)
    return found


def avoided(submission: Path, node: str, others: Collection[str]) -> list[str]:
    """Record that a node cannot run the jobs of a submission. Return all such nodes and `others`, sorted by name."""
    with suppress(OSError):
        write_record(submission / f"avoid-{node}.json", AvoidedNode(node=node, t=time.time()))
    noted = {path.stem.removeprefix("avoid-") for path in submission.glob("avoid-*.json")}
    return sorted({node, *others, *noted})


def same(cause: str) -> str:
    """Return a cause without the parts that differ between cells: numbers, keys, paths."""
    return re.sub(r"[0-9a-f]{8,}|\d+|/\S+", "*", cause)


def _cause(path: Path) -> str:
    try:
        return read_record(ElementFailure, path).cause
    except (OSError, GpasError):
        return ""
