"""What attempts have used: wall-clock seconds, and hours of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import AttemptDir, read_json
from gpas_cli.structure import HIDDEN, Frozen

_GPU_HOURS = "GPU-hours"
_CORE_HOURS = "core-hours"
_LAST_EVENT_BYTES = 2048  # at the end of a journal, enough to contain its last event


class Usage(Frozen):
    """The usage of attempts: hours of GPUs, or of cores where no GPU was used."""

    seconds: float = field(default=0.0, metadata=HIDDEN)  # on the clock
    gpu_hours: float = 0.0
    core_hours: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.seconds + other.seconds, self.gpu_hours + other.gpu_hours, self.core_hours + other.core_hours)

    def times(self, factor: float) -> Usage:
        """Return the usage multiplied by `factor`."""
        return Usage(self.seconds * factor, self.gpu_hours * factor, self.core_hours * factor)

    @property
    def unit(self) -> str:
        """The unit of the hours: GPU-hours, or core-hours if no GPU was used."""
        return _GPU_HOURS if self.gpu_hours else _CORE_HOURS

    def hours(self, unit: str) -> str:
        """Return the hours in this unit as text: "1,204.5", "0.61", "0.0123"."""
        hours = self.gpu_hours if unit == _GPU_HOURS else self.core_hours
        return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}" if 0 < hours < 0.1 else f"{hours:.2f}"


NOTHING = Usage()  # also the start of a sum


def usage_of(seconds: float, devices: Sequence[str]) -> Usage:
    """Return the usage of `devices` ("gpu-0", "cpu-1") for a time."""
    hours = seconds * len(devices) / 3600
    on_gpus = any(device.startswith("gpu") for device in devices)
    return Usage(seconds, hours if on_gpus else 0.0, 0.0 if on_gpus else hours)


def exit_time(attempt: AttemptDir) -> float | None:
    """Return the time in exit.json, None if it has none or does not exist. Raises the same errors as `end_of`."""
    try:
        recorded = read_json(attempt.exit_path).get("t")  # the whole record would take several times as long
    except FileNotFoundError:
        return None
    return recorded if isinstance(recorded, float) else None


def end_of(attempt: AttemptDir) -> float:
    """Return the unix time at which an attempt ended: the time of exit.json, or else of its last event.

    Raises OSError or StoreError if its files cannot be read.
    """
    recorded = exit_time(attempt)
    if recorded is not None:
        return recorded
    lines = tail(attempt.journal_path, _LAST_EVENT_BYTES)
    return lines[-1].t if lines else attempt.attempt_path.stat().st_mtime
