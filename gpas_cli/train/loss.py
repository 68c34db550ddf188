"""The language-modelling loss as a sum over targets, so that any split of a batch adds up to the same number."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gpas_cli.model.llama import Llama
from gpas_cli.train.precision import Precision

IGNORED = -100


def summed_loss(network: Llama, inputs: Tensor, targets: Tensor, precision: Precision) -> Tensor:
    """Sum of -log p(target) in nats over targets that are not IGNORED; inputs and targets are (rows, time) int64."""
    with precision.compute():
        logits = network(inputs)
    return F.cross_entropy(
        precision.logits(logits).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
