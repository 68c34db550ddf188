"""What an attempt has used: wall-clock seconds, and hours of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import AttemptDir

LAST_EVENT_BYTES = 2048  # at the end of a journal, enough to contain its last event


@dataclass(frozen=True)
class Usage:
    """The usage of attempts: wall-clock seconds, and GPU-hours, or core-hours of attempts without a GPU."""

    seconds: float = 0.0
    gpu_hours: float = 0.0
    core_hours: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.seconds + other.seconds, self.gpu_hours + other.gpu_hours, self.core_hours + other.core_hours)

    def times(self, factor: float) -> Usage:
        """Return the usage multiplied by `factor`."""
        return Usage(self.seconds * factor, self.gpu_hours * factor, self.core_hours * factor)


NOTHING = Usage()


def usage_of(seconds: float, devices: Sequence[str]) -> Usage:
    """Return the usage of `devices` ("gpu-0", "cpu-1") for a time."""
    hours = seconds * len(devices) / 3600
    on_gpus = any(device.startswith("gpu") for device in devices)
    return Usage(seconds, hours if on_gpus else 0.0, 0.0 if on_gpus else hours)


def end_of(attempt: AttemptDir) -> float:
    """Return the unix time at which an attempt ended: that of exit.json, or else of its last event.

    Raises OSError or StoreError if its files cannot be read.
    """
    if attempt.exit_path.exists():
        ended = attempt.read_exit().t
        if ended is not None:
            return ended
    lines = tail(attempt.journal_path, LAST_EVENT_BYTES)
    return lines[-1].t if lines else attempt.attempt_path.stat().st_mtime
