"""A process that would choose other kernels than the first: `python rounding_ranks.py RANK SIZE MEETING CASES`.

It builds a training with the others, and writes RANK.json beside CASES: what decides how the training rounds, and which
kernels this process then uses.
"""

import json
import sys
from pathlib import Path

import torch

from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train import assemble, loss
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.parallel import World, joined

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 32000}


def main(rank: int, size: int, meeting: str, cases: Path) -> None:
    leads = rank == 0
    torch.__version__ = "2.10.0" if leads else "2.11.0"
    works = {"triton": leads, "ragged": leads, "wider": not leads}
    loss.KERNELS = assemble.KERNELS = {name: lambda device, one=one: one for name, one in works.items()}
    assemble.worth_compiling = lambda *_: not leads
    cell = cell_from({"size": SIZE, "gate": "gpas", "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 4}})
    with joined(World(rank, size, rank), meeting) as world:
        loop = assemble.assemble(cell, SyntheticBatches(cell, padded=True), world=world)
    used = {name: loss._uses(name, loop.precision.device) for name in works}
    cases.with_name(f"{rank}.json").write_text(json.dumps({"rounding": loop.position.rounding, "used": used}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
