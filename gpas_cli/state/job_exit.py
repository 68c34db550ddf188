"""The exit codes of a job, which its scheduler reads."""

from __future__ import annotations

from enum import IntEnum


class JobExit(IntEnum):
    """Exit codes of the process of an attempt. Any other code means failure."""

    RESULT = 0  # done or diverged
    FAILED = 1
    INTERRUPTED = 75  # to be resumed from its checkpoint
    FAULTY_NODE = 76  # to be resumed on another node: this one does not have the GPUs that the job asked for
    CANCELLED = 130

    @classmethod
    def of(cls, outcome: str) -> JobExit:
        """Return the exit code for an outcome of the journal."""
        return cls.RESULT if outcome in ("done", "diverged") else cls[outcome.upper()]
