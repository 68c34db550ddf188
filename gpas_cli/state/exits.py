"""How a job ended: its exit code, which its scheduler reads, and the last lines of its log."""

from __future__ import annotations

import os
import re
from enum import IntEnum
from pathlib import Path

from gpas_cli.files import open_regular


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


_END_BYTES = 4096


def end_of(log: Path) -> str:
    """Return the last END_BYTES of a log, "" if it cannot be read."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(log: Path, ignored: re.Pattern[str] | None = None) -> str:
    """Return the last line of a log that is neither blank nor matches `ignored`. In a traceback that is the error."""
    lines = (line.strip() for line in reversed(end_of(log).splitlines()))
    return next((line for line in lines if line and not (ignored and ignored.match(line))), "")
