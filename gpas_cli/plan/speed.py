"""Measured speeds, by the shape of a training: what `gpas bench` wrote to `runs/.bench/<host>-<shape>.json`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpas_cli.store.rundir import read_json

Shape = tuple[Any, ...]


def shape(cell: Mapping[str, Any], device: str, slots: int) -> Shape:
    """Return what the speed depends on: the network's size, the rows, the batch, the precision, the devices."""
    size = tuple(cell["size"][name] for name in ("hidden", "ffn", "heads", "layers", "vocab"))
    data = (cell["data"]["length"], cell["data"]["layout"])
    return (*size, *data, cell["optim"]["batch"], cell["precision"], device, slots)


def measured(runs: Path) -> dict[Shape, float]:
    """Return shape -> tokens per second, including padding, as measured on this machine. Damaged files are skipped."""
    found = {}
    for path in (runs / ".bench").glob(f"{socket.gethostname()}-*.json"):
        facts = read_json(path) or {}
        try:
            found[tuple(facts["shape"])] = float(facts["positions_per_second"])
        except (KeyError, TypeError, ValueError):
            continue
    return found
