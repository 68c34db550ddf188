"""Standard streams that survive a full disk: output that cannot be written to the log is dropped."""

from __future__ import annotations

import io
import sys
from contextlib import suppress


class _Log(io.TextIOWrapper):
    """A text stream whose `write` and `flush` never raise OSError."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def outlive_log() -> None:
    """Replace stdout and stderr with streams that drop output instead of raising OSError."""
    streams = (io.FileIO(number, "wb", closefd=False) for number in (1, 2))
    sys.stdout, sys.stderr = (_Log(raw, "utf-8", errors="replace", write_through=True) for raw in streams)
