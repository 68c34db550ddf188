"""The process that measures one cell: `python -m gpas_cli.worker.bench`, asked on standard input.

Each line that it prints is JSON: {"doing": ...} while it works, and the result last.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpas_cli.spec.run import Resources
from gpas_cli.worker.job import recorded_cell


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """`train.bench.Speed` of {cell, resources, threads, seconds, rows, cache} and the device it is of."""
    from gpas_cli.train.bench import measure
    from gpas_cli.train.precision import choose_device, make_deterministic

    make_deterministic(asked["threads"])
    resources, cache = Resources(**asked["resources"]), Path(asked["cache"])
    speed = measure(
        recorded_cell(asked), resources, seconds=asked["seconds"], rows=asked["rows"], cache=cache, tell=_tell
    )
    return {**asdict(speed), "device": choose_device().type}


def _tell(doing: str) -> None:
    print(json.dumps({"doing": doing}), flush=True)


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
