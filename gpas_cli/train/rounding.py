"""What decides the bits of a training, beside its micro-batch, its processes and its float32 product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WORDS = {
    "device": "the device",
    "threads": "threads",
    "torch": "torch",
    "compiled": "compiled layers",
    "triton": "Triton's kernel of the loss",
    "ragged": "attention to rows of different lengths in one stream",
    "wider": "float32 sums of the head's gradient",
}


@dataclass(frozen=True)
class Rounding:
    """What decides how a training rounds; all its processes have the same.

    `device`: the GPU's model, or the instructions of the processor that torch uses; `threads`: how many a CPU
    uses, 0 on a GPU, where they change nothing; `torch`: its version; `compiled`: whether layers are compiled. The
    others say which of `train.loss.KERNELS` are used: `triton` for the loss, `ragged` for attention to packed rows,
    `wider` to add up the gradient of the head.
    """

    device: str
    threads: int
    torch: str
    compiled: bool
    triton: bool
    ragged: bool
    wider: bool


def changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, str]:
    """Return, by field of `Rounding`, what differs between the updates up to `step` and those after it, in words.

    A field that one of them lacks, as in a checkpoint of an earlier version, counts as equal.
    """
    return {
        name: f"{words}: {_shown(before[name])} up to update {step}, {_shown(now[name])} after it"
        for name, words in _WORDS.items()
        if name in before and name in now and before[name] != now[name]
    }


def _shown(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"
