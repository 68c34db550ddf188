"""Speeds measured by `gpas bench`, by shape of the training, in `runs/.bench/<host>-<shape>.json`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpas_cli.store.rundir import read_json

Shape = tuple[Any, ...]


def shape(cell: Mapping[str, Any], device: str, slots: int) -> Shape:
    """Return the settings that determine the speed: size, length and layout of rows, batch, precision, devices."""
    size = tuple(cell["size"][name] for name in ("hidden", "ffn", "heads", "layers", "vocab"))
    data = (cell["data"]["length"], cell["data"]["layout"])
    return (*size, *data, cell["optim"]["batch"], cell["precision"], device, slots)


def measured(runs: Path) -> dict[Shape, float]:
    """Return shape -> tokens per second, including padding, measured on this machine. Damaged files are skipped."""
    found = {}
    for path in (runs / ".bench").glob(f"{socket.gethostname()}-*.json"):
        facts = read_json(path) or {}
        try:
            found[tuple(facts["shape"])] = float(facts["positions_per_second"])
        except (KeyError, TypeError, ValueError):
            continue
    return found
