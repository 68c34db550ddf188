"""SLURM's job states, as far as they differ for us. https://slurm.schedmd.com/squeue.html#lang_codes"""

from __future__ import annotations

# Still to come, whatever happened before: SLURM starts these by itself, or when somebody releases them.
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
# Reasons of what could not start if it were first.
NEVER = "DependencyNeverSatisfied"
NOT_IN_LINE = frozenset({"Dependency", NEVER, "BeginTime"})
# Has processes or may have. COMPLETING may yet become PENDING again.
AT_WORK = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
# The machine's doing, not the job's: to be run again.
INTERRUPTED = frozenset({"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})
# The node's doing: to be run on another.
NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
MEMORY = "OUT_OF_MEMORY"
ENDED = INTERRUPTED | {"COMPLETED", "FAILED", "CANCELLED", "DEADLINE", MEMORY}

# Signals that end a job from outside: USR2 or TERM before its handlers stood, KILL after its time or by the kernel.
OUTSIDE_SIGNALS = frozenset({9, 12, 15})
NO_LOG = 53  # slurmstepd's exit signal where it could not open the job's output


def plain(state: str) -> str:
    """`CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    return state.split(" ")[0].rstrip("+").upper()


def exit_words(code: str) -> tuple[int, int]:
    """sacct's `code:signal` as numbers, (0, 0) for what is neither. A shell's 128 + n is signal n."""
    head, _, tail = code.partition(":")
    status, signal = (int(word) if word.isdigit() else 0 for word in (head, tail))
    return (0, status - 128) if status > 128 and not signal else (status, signal)


def is_held(state: str, reason: str) -> bool:
    """Whether a job waits until somebody releases it."""
    # JobHeldUser, "job requeued in held state", launch_failed_requeued_held
    word = reason.lower()
    held = word.startswith("jobheld") or ("requeued" in word and "held" in word)
    return state in HELD or (state in WAITING and held)


def in_line(state: str, reason: str) -> bool:
    """Whether a job waits for a machine."""
    return state == "PENDING" and reason not in NOT_IN_LINE and not is_held(state, reason)
