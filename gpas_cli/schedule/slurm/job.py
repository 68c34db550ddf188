"""One array element as SLURM reports it, and the consequences of SLURM's job states."""

import time
from collections.abc import Iterator

from gpas_cli.schedule.batch.view import VANISHED, BatchJob

_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
# Yet to run, whatever happened before: SLURM starts these by itself, or once they are released.
_WAITING = _HELD | {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"}
_SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
NEVER = "DependencyNeverSatisfied"  # a pending reason
# Has processes, or may have some. COMPLETING may become PENDING again.
_AT_WORK = _SUSPENDED | {"RUNNING", "COMPLETING", "SIGNALING", "RESIZING", "STAGE_OUT"}
# Caused by the machine, not by the job, which is run again.
INTERRUPTED = frozenset({"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
MEMORY = "OUT_OF_MEMORY"
CANCELLED = "CANCELLED"
ENDED = INTERRUPTED | {"COMPLETED", "FAILED", CANCELLED, VANISHED, "DEADLINE", MEMORY}


def plain(state: str) -> str:
    """Return a state without additions: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    return state.split(" ")[0].rstrip("+").upper()


def exit_words(code: str) -> tuple[int, int]:
    """Return sacct's `code:signal` as numbers, 0 for a part that is not a number. A shell's 128 + n is signal n."""
    head, _, tail = code.partition(":")
    status, signal = (int(part) if part.isdigit() else 0 for part in (head, tail))
    return (0, status - 128) if status > 128 and not signal else (status, signal)


def is_held(state: str, reason: str) -> bool:
    """Return whether a job waits until a person releases it."""
    # JobHeldUser, "job requeued in held state", launch_failed_requeued_held
    lowered = reason.lower()
    held = lowered.startswith("jobheld") or ("requeued" in lowered and "held" in lowered)
    return state in _HELD or (state in _WAITING and held)


class Job(BatchJob):
    """One array element. Times are unix times, 0 if SLURM reports none.

    `place` is its position among the jobs that this user may see, by the scheduler's priority; 0 if it is not in line
    or positions were not queried.
    """

    end: float = 0.0
    exit: str = ""
    restarts: int = 0

    @property
    def array(self) -> str:
        return self.id.partition("_")[0]

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def pending(self) -> bool:
        return self.state in _WAITING

    @property
    def suspended(self) -> bool:
        return self.state in _SUSPENDED

    @property
    def held(self) -> str:
        """Who or which command releases a held job, as text; "" if the job is not held."""
        if not is_held(self.state, self.reason):
            return ""
        if self.reason == "JobHeldAdmin":
            return "held until an administrator releases it"
        # JobHeldUser says no more than that it is held.
        why = "" if self.reason.startswith("JobHeld") or self.reason in ("", "None") else f": {self.reason}"
        return f"held{why}; `scontrol release {self.id}` releases it"

    def __str__(self) -> str:
        reason = self.reason if self.reason not in ("None", "", "NonZeroExitCode") else ""
        detail = self.held or ", ".join(filter(None, (reason, self.in_line)))
        where = f" on {self.nodes}" if self.nodes and self.state in _AT_WORK else ""
        return f"SLURM {self.id} {self.state}{where}{f' ({detail})' if detail else ''}"


Jobs = dict[str, dict[int, Job]]  # array's name -> index -> job


def indices(job_id: str) -> Iterator[int]:
    """Yield the array indices of `12_3` or `12_[3,5-7%4]`; none for a job that is not an array."""
    _, _, tail = job_id.partition("_")
    for part in tail.strip("[]").split("%")[0].rstrip("]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)


def moment(text: str) -> float:
    if text.isdigit():
        return float(text)
    if "T" not in text:  # N/A or Unknown, as for every pending job
        return 0.0
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
