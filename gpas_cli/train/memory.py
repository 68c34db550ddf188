"""Choose how many rows a device computes at once. The batch of an update, and so the result, does not depend on it."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import USABLE_FRACTION, fitting_rows, most_rows
from gpas_cli.train.loss import logits_at_once
from gpas_cli.train.precision import Precision

# Logits of one micro-batch on the CPU: 256 MB of float32. More rows at once are no faster there.
CPU_LOGITS = 2**26
CGROUP = Path("/sys/fs/cgroup")


def micro_batch_rows(
    cell: Cell,
    precision: Precision,
    asked: int = 0,
    *,
    processes: int = 1,
    strategy: str = "none",
    recompute: bool = False,
    reserved: int = 0,
) -> int:
    """Return the rows per micro-batch in each of `processes`: `asked` if set, else as many as are expected to fit.

    `reserved`: bytes that gradients and optimizer state will take on the device. `strategy`, `recompute`: those of the
    layout.
    """
    most = most_rows(cell, processes, asked)
    if asked:
        return most
    usable = int(USABLE_FRACTION * free_bytes(precision.device)) - reserved
    if precision.device.type == "cpu":
        usable //= processes
        most = min(most, max(1, CPU_LOGITS // (cell.data.length * cell.model.size.vocab)))
    logits = logits_at_once(precision.device)
    return fitting_rows(cell, most, usable, strategy=strategy, recompute=recompute, logits=logits)


def free_bytes(device: torch.device) -> int:
    """Return the bytes of memory that this process can still allocate."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _left_in_container(CGROUP))


def _left_in_container(folder: Path) -> int:
    """Return the bytes left under a container's limit, or a very large number without one."""
    try:
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
