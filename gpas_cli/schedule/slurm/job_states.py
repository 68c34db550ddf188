"""SLURM's job states, grouped by their consequences here. https://slurm.schedmd.com/squeue.html#lang_codes"""

from __future__ import annotations

# Yet to run, whatever happened before: SLURM starts these by itself, or once they are released.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
# Pending reasons unrelated to queue position.
NEVER = "DependencyNeverSatisfied"
NOT_IN_LINE = frozenset({"Dependency", NEVER, "BeginTime"})
# Has processes, or may have some. COMPLETING may become PENDING again.
AT_WORK = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
# Caused by the machine, not by the job, which is run again.
INTERRUPTED = frozenset({"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
# Caused by the node: the job is run again on another one.
NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
MEMORY = "OUT_OF_MEMORY"
CANCELLED = "CANCELLED"
VANISHED = "VANISHED"  # not SLURM's: it no longer reports the job, and why is not certain
REMOVED = "removed from the queue before it started"
ENDED = INTERRUPTED | {"COMPLETED", "FAILED", CANCELLED, VANISHED, "DEADLINE", MEMORY}

# Signals from outside that end a job: USR2 or TERM before it has handlers, KILL at its time limit or by the kernel.
OUTSIDE_SIGNALS = frozenset({9, 12, 15})
NO_LOG = 53  # slurmstepd's exit signal if it could not open the job's output


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
    return state in HELD or (state in WAITING and held)


def in_line(state: str, reason: str) -> bool:
    """Return whether a job waits for free nodes."""
    return state == "PENDING" and reason not in NOT_IN_LINE and not is_held(state, reason)
