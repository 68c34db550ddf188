"""Remove layers of a network, and measure the validation loss without each.

Removing layer l means that the residual stream passes it unchanged: x_{l+1} = x_l. Everything that belongs to the layer
goes with it (attention, feed-forward network, norms, gates, skip factor), and every other layer keeps its own norms,
gate and factors, those that depend on its number included (the 1/sqrt(l) of LNS, the alpha of DeepNorm, the part of
Mix-LN). Nothing is retrained.

    Pre-LN, LNS, Sandwich, Peri   y = x + ...: the branch is left out, and the skip path remains.
    Post-LN, DeepNorm, B2T        y = N(x + ...): the norm is left out too. The next layer reads the normalised output
                                  of layer l - 1; without layer 1, it reads the embedding, which no norm has seen.
    Mix-LN                        a layer of the first kind or of the second, depending on its number.
    with a gate                   the stream is not scaled by 1 - act(alpha) of this layer.

The parameters stay where they are: a list of layers without one of them takes the place of the network's, so that
nothing is copied or loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from gpas_cli.data.loader import Batch, validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.data.prepare import Corpus
from gpas_cli.evaluate.angular import AngularDistance
from gpas_cli.evaluate.layer_stability import NORMS, STABILITY, LayerStability
from gpas_cli.events import Removal
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.train.evaluate import Watch, evaluate, unwatched
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.memory import micro_batch_rows
from gpas_cli.train.parallel import World
from gpas_cli.train.precision import Precision
from gpas_cli.train.trained import TrainedNetwork

WHOLE = 0  # the `layer` of a measurement without a removal


@contextmanager
def without_layer(network: Llama, layer: int) -> Iterator[None]:
    """Remove layer `layer` = 1, 2, ... inside the context, or none if it is WHOLE."""
    whole = network.model.layers
    network.model.layers = nn.ModuleList(block for i, block in enumerate(whole, start=1) if i != layer)
    try:
        yield
    finally:
        network.model.layers = whole


@dataclass
class RemovalLosses:
    """A network, the batches that it is measured on, and the measurements so far, by layer."""

    network: Llama
    batches: Sequence[Batch]
    precision: Precision
    bytes_per_token: float
    checkpoint: str
    text: str
    rows: int
    world: World
    removals: dict[int, Removal]
    stability: LayerStability = field(init=False)

    def __post_init__(self) -> None:
        self.stability = LayerStability(self.network)

    @classmethod
    def prepare(
        cls,
        cell: Cell,
        loaded: TrainedNetwork,
        corpus: Corpus,
        world: World,
        checkpoint: str,
        earlier: Iterable[Removal],
    ) -> RemovalLosses:
        """Read the batches, and take over the measurements of `earlier` on the same checkpoint and text. Collective."""
        facts = corpus.facts()
        text = f"{facts.validation_fingerprint} {facts.tokenizer}"
        found = world.broadcast([one for one in earlier if (one.checkpoint, one.text) == (checkpoint, text)])
        # The sums of fewer rows are rounded differently: all measurements compute as many rows at once as the first.
        fitting = micro_batch_rows(cell, loaded.precision, processes=world.size)
        rows = min([world.min(fitting), *(one.rows for one in found)])
        tokens = cell.parameters("importance").eval_tokens
        batches = validation_batches(corpus.validation, cell.optim.batch, tokens, reader_of(cell, corpus.tokenizer))
        return cls(
            loaded.network, list(batches), loaded.precision, corpus.validation_bytes_per_token, checkpoint, text, rows,
            world, {one.layer: one for one in found},
        )  # fmt: skip

    def missing(self) -> list[int]:
        """Return the layers that have not been removed yet, after WHOLE if the whole network was not measured."""
        return [layer for layer in range(len(self.network.model.layers) + 1) if layer not in self.removals]

    def measure(self, layer: int) -> Removal:
        """Measure the network without `layer`. Collective."""
        if layer == WHOLE:
            angles = AngularDistance(self.network)
            loss = self._loss(_both(angles.watch, self.stability.whole))
            distances = {**angles.series(self.world), NORMS: self.stability.norms(self.world)}
        else:
            if not self.stability.ready:  # an earlier attempt measured the whole network
                self._loss(self.stability.whole)
            self.stability.start()
            with without_layer(self.network, layer):
                loss = self._loss(self.stability.dropped)
            distances = {STABILITY: [self.stability.psi(self.world)]}
        removal = Removal(layer, loss, self.checkpoint, self.text, self.rows, distances)
        self.removals[layer] = removal
        return removal

    def _loss(self, watch: Watch = unwatched) -> float:
        found = evaluate(
            self.network, self.batches, self.precision, self.bytes_per_token,
            micro_batch=self.rows, world=self.world, watch=watch,
        )  # fmt: skip
        return found["loss"]

    def series(self) -> dict[str, list[float]]:
        """Return the series by layer: `importance`, the rise of the loss, angular distances, norms and stability."""
        whole = self.removals[WHOLE]
        removed = [self.removals[layer] for layer in sorted(self.removals) if layer != WHOLE]
        distances = {name: list(values) for name, values in whole.distances.items()}
        if all(STABILITY in one.distances for one in removed):  # attempts of older versions have not measured it
            distances[STABILITY] = [one.distances[STABILITY][0] for one in removed]
        return {"importance": [one.loss - whole.loss for one in removed], **distances}


def _both(first: Watch, second: Watch) -> Watch:
    """Return a watch that calls both watches in each forward pass."""

    @contextmanager
    def watch(rows: DeviceRows) -> Iterator[None]:
        with first(rows), second(rows):
            yield

    return watch
