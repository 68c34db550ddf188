"""Speeds measured by `gpas bench`, by shape of the training, in `runs/.bench/<host>-<shape>.json`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.store.rundir import read_json

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class MeasuredSpeed:
    """The tokens per second of a job, including padding.

    `processes`: 1 if the whole job was measured. Otherwise one of this many processes was measured; the others are
    assumed to be as fast, and their communication to be free.
    """

    tokens_per_second: float
    processes: int = 1


def shape(cell: Mapping[str, Any], device: str, slots: int) -> Shape:
    """Return the settings that determine the speed: size, length and layout of rows, batch, precision, devices."""
    size = tuple(cell["size"][name] for name in ("hidden", "ffn", "heads", "layers", "vocab"))
    data = (cell["data"]["length"], cell["data"]["layout"])
    return (*size, *data, cell["optim"]["batch"], cell["precision"], device, slots)


def measured(runs: Path) -> dict[Shape, MeasuredSpeed]:
    """Return shape -> its speed, measured on this machine. Damaged files are skipped."""
    found = {}
    for path in (runs / ".bench").glob(f"{socket.gethostname()}-*.json"):
        facts = read_json(path) or {}
        try:
            speed = MeasuredSpeed(float(facts["positions_per_second"]), int(facts.get("processes", 1)))
            found[tuple(facts["shape"])] = speed
        except (KeyError, TypeError, ValueError):
            continue
    return found
