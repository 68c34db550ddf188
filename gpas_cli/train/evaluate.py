"""Validation: the token-weighted loss and perplexity, and the two other averages people compare with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from gpas_cli.data.loader import Batch
from gpas_cli.model.llama import Llama
from gpas_cli.train.loss import IGNORED, summed_loss
from gpas_cli.train.precision import Precision


def perplexity(loss: float) -> float:
    """exp(loss), infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 709 else math.inf


@torch.no_grad()
def evaluate(
    network: Llama, batches: Iterable[Batch], precision: Precision, bytes_per_token: float
) -> dict[str, float]:
    """Losses in nats per token over `batches`.

    `loss` weighs every token equally. `loss_batch_mean` is the mean of the batches' means, and `loss_reference` their
    sum divided by their number plus one, which is what the published code reports (its counter starts at 1).
    """
    network.eval()
    total, tokens, means = 0.0, 0, []
    for batch in batches:
        inputs, targets = (torch.from_numpy(a).to(precision.device) for a in (batch.inputs, batch.targets))
        loss = summed_loss(network, inputs, targets, precision).double().item()
        count = int((targets != IGNORED).sum())
        total, tokens = total + loss, tokens + count
        if count:  # a rank without rows in the last batch has one that counts nothing
            means.append(loss / count)
    network.train()
    mean, reference = total / tokens, sum(means) / (len(means) + 1)
    return {
        "loss": mean,
        "perplexity": perplexity(mean),
        "bits_per_byte": mean / math.log(2) / bytes_per_token,
        "tokens": tokens,
        "loss_batch_mean": sum(means) / len(means),
        "loss_reference": reference,
        "perplexity_reference": perplexity(reference),
    }
