"""What a job prints must not end it: where its log cannot be written any more, the words are lost."""

from __future__ import annotations

import io
import sys
from contextlib import suppress


class _Log(io.TextIOWrapper):
    """A text stream of which no call raises OSError."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def outlive_log() -> None:
    """From now on a full or read-only disk costs this process only what it prints."""
    streams = (io.FileIO(number, "wb", closefd=False) for number in (1, 2))
    sys.stdout, sys.stderr = (_Log(raw, "utf-8", errors="replace", write_through=True) for raw in streams)
