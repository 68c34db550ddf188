"""The last lines of logs, which show why a process ended without an outcome."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpas_cli.files import open_regular

END_BYTES = 4096


def end_of(log: Path, size: int = END_BYTES) -> str:
    """Return the last `size` bytes of a log, "" if it cannot be read."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(log: Path, ignored: re.Pattern[str] | None = None) -> str:
    """Return the last line of a log that is neither blank nor matches `ignored`. In a traceback that is the error."""
    lines = (line.strip() for line in reversed(end_of(log).splitlines()))
    return next((line for line in lines if line and not (ignored and ignored.match(line))), "")
