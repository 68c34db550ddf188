"""Evaluate a network on validation text: token-weighted loss and perplexity, and two averages for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from gpas_cli.data.loader import Batch
from gpas_cli.data.prepare import ValidationText
from gpas_cli.errors import DataError
from gpas_cli.model.dtensors import reshard
from gpas_cli.model.llama import LanguageModel
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import usual_validation_rows
from gpas_cli.train.loop import Loop, micro_batches
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision

Watch = Callable[[DeviceRows], AbstractContextManager[object]]
"""Returns the context of one forward pass over the rows, to read activations in it."""


def unwatched(rows: DeviceRows) -> AbstractContextManager[object]:
    """The `Watch` that reads nothing."""
    return nullcontext()


def validation_rows(cell: Cell) -> int:
    """Return the rows of a validation batch: `optim.validation_rows` if set, else the usual ones."""
    return cell.optim.validation_rows or usual_validation_rows(cell.model.size, cell.optim.batch)


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if that overflows a float."""
    return math.exp(loss) if loss < 709 else math.inf


@torch.no_grad()
def evaluate(
    network: LanguageModel,
    batches: Iterable[Batch],
    precision: Precision,
    bytes_per_token: float,
    *,
    micro_batch: int = 0,
    world: World = ALONE,
    watch: Watch = unwatched,
    active: ActiveLayers | None = None,
) -> dict[str, float]:
    """Return losses in nats per token over `batches`, `micro_batch` rows at once (0: all) in each process. Collective.

    Every row is in one forward pass of one process inside a context of `watch`. active: the layers to apply, None for
    all.

    `loss` weighs every token equally. `loss_batch_mean` is the mean of the batches' means. `loss_reference` is their
    sum divided by their number plus one, as in the published code, whose counter starts at 1. `micro_batch` changes
    none of them.
    """
    network.eval()
    means: list[Tensor] = []
    counts: list[int] = []
    for batch in batches:
        mean = torch.zeros((), dtype=torch.float64, device=precision.device)  # this process's share of the batch's
        for part, weight in micro_batches(batch.targets, micro_batch or len(batch.targets), world=world):
            rows = DeviceRows.of_batch(batch, part, precision.device)
            # A row with an infinite divisor is another process's.
            with watch(rows) if math.isfinite(weight) else nullcontext():
                mean += summed_loss(network, rows, precision, weight, active=active)
        means.append(mean)
        counts.append(batch.predicted)
    reshard(network)
    network.train()
    # The only place where the host waits for the device.
    losses = world.sum(torch.stack(means)).tolist()
    tokens = sum(counts)
    if not tokens:
        raise DataError("no token of the validation text is a target; raise data.eval_tokens")
    loss = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / tokens
    return _scores(loss, sum(losses) / len(losses), sum(losses) / (len(losses) + 1), tokens, bytes_per_token)


def _scores(
    loss: float, batch_mean: float, reference: float, tokens: float, bytes_per_token: float
) -> dict[str, float]:
    return {
        "loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_byte": loss / math.log(2) / bytes_per_token,
        "tokens": tokens,
        "loss_batch_mean": batch_mean,
        "loss_reference": reference,
        "perplexity_reference": perplexity(reference),
    }


def mixed(scores: Sequence[Mapping[str, float]], text: ValidationText) -> dict[str, float]:
    """Return the scores on the mixture `text`, given those on each corpus: losses have the weights of the corpora."""
    loss, batch_mean, reference = (
        sum(corpus.weight * own[name] for own, corpus in zip(scores, text.held_out, strict=True))
        for name in ("loss", "loss_batch_mean", "loss_reference")
    )
    tokens = sum(own["tokens"] for own in scores)
    return _scores(loss, batch_mean, reference, tokens, text.validation_bytes_per_token)


def evaluate_now(loop: Loop, batches: Iterable[Batch], bytes_per_token: float) -> dict[str, float]:
    """Return `evaluate` of the network of a training, with the layers that an evaluation applies now. Collective."""
    return evaluate(
        loop.network, batches, loop.precision, bytes_per_token,
        micro_batch=loop.micro_batch, world=loop.layout.world, active=loop.evaluated_layers(),
    )  # fmt: skip
