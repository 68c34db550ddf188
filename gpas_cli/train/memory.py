"""How many rows fit a device at once. Nothing here changes a result beyond rounding: the batch of an update stays."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.memory import activation_bytes
from gpas_cli.spec.size import Size
from gpas_cli.train.loss import logits_at_once
from gpas_cli.train.precision import Precision

# Logits of one micro-batch on the CPU, in elements: 256 MB of float32. More rows at once are not faster there.
LOGITS = 2**26
USED = 0.8  # of what is free; the rest is for temporary tensors and fragments
CGROUP = Path("/sys/fs/cgroup")


def micro_batch_rows(
    cell: Cell, precision: Precision, asked: int = 0, *, processes: int = 1, recompute: bool = False, reserved: int = 0
) -> int:
    """Rows per micro-batch in each of `processes`: as asked, else as many as are expected to fit.

    `reserved`: bytes on the device that are still to be taken by gradients and Adam. `recompute`: activations within
    a layer are not kept.
    """
    share = max(1, cell.optim.rows_per_mean // processes)
    if asked:
        return min(share, asked)
    size, length = cell.model.size, cell.data.length
    free = max(0, free_bytes(precision.device) - reserved - head_bytes(size, precision.device))
    fitting = int(USED * free) // (length * bytes_per_token(size, precision, recompute=recompute))
    if precision.device.type == "cpu":
        fitting = min(fitting // processes, LOGITS // (length * size.vocab))
    return max(1, min(share, fitting))


def bytes_per_token(size: Size, precision: Precision, *, recompute: bool = False) -> int:
    """`spec.memory.activation_bytes`; what the head takes beside them is `head_bytes`."""
    return activation_bytes(size, precision.name, recompute=recompute)


def head_bytes(size: Size, device: torch.device) -> int:
    """What the head takes however many rows there are: the logits of a chunk and the head's gradient, in float32."""
    return 4 * (3 * logits_at_once(device) + 2 * size.vocab * size.hidden)


def free_bytes(device: torch.device) -> int:
    """Bytes of memory that this process can still take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _left_in_container(CGROUP))


def _left_in_container(folder: Path) -> int:
    """What a container's limit leaves; a huge number where there is none."""
    try:
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
