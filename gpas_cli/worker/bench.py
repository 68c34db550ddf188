"""The process that measures one cell: `python -m gpas_cli.worker.bench`, with a `BenchRequest` on standard input.

It prints lines of JSON: {"doing": ...} for each phase of the measurement, then the result.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.extensions import part
from gpas_cli.store.records import BenchRequest
from gpas_cli.structure import from_mapping


def _run(asked: BenchRequest) -> dict[str, Any]:
    """Return the fields of `train.bench.Speed` for a cell, the type of the device that measured it, and if it was asked
    to profile updates, `roofline`."""
    from gpas_cli.train.bench import measure
    from gpas_cli.train.device import choose_device, make_deterministic, use_expandable_segments

    make_deterministic(asked.threads)
    use_expandable_segments()
    found: dict[str, Any] = {}

    def examine(cell: Cell, loop: Any) -> None:
        if asked.profile:
            found["roofline"] = asdict(part("roofline")(cell, loop))

    speed = measure(
        asked.resolve_cell(),
        asked.resources,
        seconds=asked.seconds,
        processes=asked.processes,
        notify=lambda doing: print(json.dumps({"doing": doing}), flush=True),
        then=examine,
    )
    return {**asdict(speed), "device": choose_device().type, **found}


if __name__ == "__main__":
    try:
        print(json.dumps(_run(from_mapping(BenchRequest, json.load(sys.stdin), "standard input"))))
    except GpasError as error:
        sys.exit(str(error))
