"""Layer importance: the rise of the loss when one layer is removed (GPAS, section 5.5; here in nats per token)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from gpas_cli.data.loader import validation_batches
from gpas_cli.data.prepare import Corpus
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.train import checkpoint
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.events import Emit, Outcome, Stop, silent
from gpas_cli.train.memory import micro_batch_rows
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision, choose_device
from gpas_cli.train.run import prepare_text, record_verified


@contextmanager
def without_layer(network: Llama, layer: int) -> Iterator[None]:
    """Remove layer `layer` = 0..layers-1 inside the context: the stream is unchanged there."""
    whole = network.model.layers
    network.model.layers = nn.ModuleList(block for i, block in enumerate(whole) if i != layer)
    try:
        yield
    finally:
        network.model.layers = whole


def measure(
    cell: Cell, trained: Path, cache: Path, root: Path, emit: Emit, stop: Stop, world: World = ALONE
) -> Outcome:
    """Measure the validation loss without each layer, minus the loss of the whole network. Collective.

    `trained` is a checkpoint of the cell's last training stage. Raises DamagedCheckpoint if it is damaged.
    """
    emit = emit if world.leads else silent
    corpus = prepare_text(cell, cache, root, notify=lambda _: None)
    precision = Precision(cell.precision, choose_device())
    network = build(cell.model, seed=cell.seed, dtype=precision.weights, device=precision.device)
    checkpoint.load(trained, cell.trained.key, network, None, world)
    began, layers = time.perf_counter(), cell.model.size.layers
    emit("phase", name="removing layers")
    whole = _loss(cell, network, corpus, precision, world)
    record_verified(corpus, emit)
    rises: list[float] = []
    for layer in range(layers):
        if leave := world.agree(stop()):
            return Outcome(leave, layer)
        with without_layer(network, layer):
            rises.append(_loss(cell, network, corpus, precision, world) - whole)
        emit("step", step=layer + 1, steps=layers, loss=whole + rises[-1])
    emit("layers", step=layers, values={"importance": rises})
    metrics = {"loss": whole, "mean_importance": sum(rises) / layers, "least_importance": min(rises)}
    return Outcome("done", layers, metrics={**metrics, "seconds": time.perf_counter() - began})


def _loss(cell: Cell, network: Llama, corpus: Corpus, precision: Precision, world: World) -> float:
    batches = validation_batches(corpus.validation, cell.optim.batch, cell.parameters("importance").eval_tokens)
    rows = micro_batch_rows(cell, precision, processes=world.size)
    per_token = corpus.validation_bytes_per_token
    return evaluate(network, batches, precision, per_token, micro_batch=rows, world=world)["loss"]
