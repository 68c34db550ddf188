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

Angular distances between the inputs of layers (Gromov et al., 2024: The Unreasonable Ineffectiveness of the Deeper
Layers).

    d(l, l + n) = arccos( x_l . x_{l+n} / (|x_l| |x_{l+n}|) ) / pi

x_l is the residual stream entering layer l at the last token of a row of text, and d is averaged over rows. It is 0 for
parallel vectors, 1/2 for orthogonal ones and 1 for opposite ones. The stream that leaves the last layer, the input of
the final norm, counts as the input of layer L + 1. So d(l, l + n) is how far layers l to l + n - 1 turn the stream.

How stable a trained network's output is when a layer is dropped (RaPTr, definition 4.1 and Figure 2).

    stream_norm   |y^(l)|, the length of the residual stream entering layer l, and that leaving the last layer
    stability     Psi_l = |F_-l(x) - F(x)|, with F(x) the stream that leaves the last layer, F_-l without layer l

Both are means over the first tokens that are evaluated. Theorem 4.2 bounds the rise of the loss between two stages of
random paths by a multiple of (1/L) sum_l Psi_l / |F|.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gpas_cli.data.loader import IGNORED, validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.data.prepare import Corpus
from gpas_cli.events import Removal
from gpas_cli.model.llama import Llama, observed_inputs
from gpas_cli.spec.cell import Cell
from gpas_cli.train.assemble import micro_batch_rows
from gpas_cli.train.evaluate import Watch, evaluate, unwatched
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.trained import TrainedNetwork

_STABILITY = "stability"
_NORMS = "stream_norm"
_TOKENS = 4096  # the most tokens of each process whose outputs are compared


class _LayerStability:
    """The outputs of a whole network, kept to be compared with those without a layer.

    `whole` watches an evaluation of the whole network, `dropped` one without a layer, over the same rows.
    """

    def __init__(self, network: Llama) -> None:
        self.network = network
        self.ready = False  # whether outputs of the whole network are kept
        self._outputs: list[Tensor] = []
        layers = len(network.model.layers)
        self._device = next(network.parameters()).device
        # Each a sum over tokens and their number.
        self._norms = torch.zeros(layers + 1, 2, dtype=torch.float64, device=self._device)
        self._psi = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._passes = 0

    def start(self) -> None:
        """Begin a measurement without a layer."""
        self._psi = torch.zeros_like(self._psi)
        self._passes = 0

    @contextmanager
    def whole(self, rows: DeviceRows) -> Iterator[None]:
        """Keep the outputs of one forward pass over `rows`, which the block does, unless enough are kept."""
        self.ready = True
        if sum(map(len, self._outputs)) >= _TOKENS:
            yield
            return
        lengths: list[Tensor] = []

        def observe(module: nn.Module, x: Tensor) -> None:
            chosen = _evaluated(rows, x)
            lengths.append(_sum_and_count(chosen.norm(dim=-1)))
            if module is self.network.model.norm:
                self._outputs.append(chosen)

        with observed_inputs([*self.network.model.layers, self.network.model.norm], observe):
            yield
        self._norms += torch.stack(lengths)

    @contextmanager
    def dropped(self, rows: DeviceRows) -> Iterator[None]:
        """Compare one forward pass over `rows`, which the block does, with the whole network's."""
        place = self._passes
        self._passes += 1
        if place >= len(self._outputs):
            yield
            return

        def observe(_module: nn.Module, x: Tensor) -> None:
            self._psi += _sum_and_count((_evaluated(rows, x) - self._outputs[place]).norm(dim=-1))

        with observed_inputs([self.network.model.norm], observe):
            yield

    def norms(self, world: World = ALONE) -> list[float]:
        """Return the mean length of the stream entering each layer and leaving the last. Collective."""
        return [float(total / count) for total, count in world.sum(self._norms)]

    def psi(self, world: World = ALONE) -> float:
        """Return Psi of the layer that was left out since `start`. Collective."""
        total, count = world.sum(self._psi)
        return float(total / count)


def _evaluated(rows: DeviceRows, x: Tensor) -> Tensor:
    """Return the stream at tokens with a target, float64. x: (rows, time, hidden) -> (tokens, hidden)."""
    return x.flatten(0, 1)[rows.targets.flatten() != IGNORED].double()


def _sum_and_count(values: Tensor) -> Tensor:
    return torch.stack([values.sum(), values.new_tensor(len(values))])


ANGULAR = "angular_distance"


class AngularDistance:
    """The angular distances inside a network, summed over the rows of the forward passes within `watch`.

    Only the streams at last tokens are kept, and only until the end of a pass: (rows, layers + 1, hidden).
    """

    def __init__(self, network: Llama) -> None:
        self.network = network
        layers = len(network.model.layers)
        device = next(network.parameters()).device
        self._sums = [torch.zeros(layers + 1 - n, dtype=torch.float64, device=device) for n in range(1, layers + 1)]
        self._rows = 0

    @contextmanager
    def watch(self, rows: DeviceRows) -> Iterator[None]:
        """Add the distances of one forward pass over `rows`, which the block does."""
        last = _last_tokens(rows)
        states: list[Tensor] = []
        modules = [*self.network.model.layers, self.network.model.norm]
        with observed_inputs(modules, lambda _, x: states.append(x.flatten(0, 1)[last].double())):
            yield
        stream = torch.stack(states, 1)
        for n, total in enumerate(self._sums, start=1):
            total += angular_distance(stream[:, :-n], stream[:, n:]).sum(0)
        self._rows += len(last)

    def series(self, world: World = ALONE) -> dict[str, list[float]]:
        """Return the mean distances by name of series: for n layers, layers + 1 - n numbers, of l = 1, 2, ...
        Collective."""
        rows = world.sum(torch.tensor(self._rows, dtype=torch.float64, device=self._sums[0].device))
        means = iter((world.sum(torch.cat(self._sums)) / rows).tolist())
        return {_series_name(n): [next(means) for _ in total] for n, total in enumerate(self._sums, start=1)}


def _series_name(n: int) -> str:
    """Return the name of the series of the distances over `n` layers: "angular_distance", "angular_distance/2", ..."""
    return ANGULAR if n == 1 else f"{ANGULAR}/{n}"


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the angle between vectors in units of pi. a, b: (..., hidden), float64 -> (...).

    For unit vectors the angle is 2 atan2(|a - b|, |a + b|), which is accurate also for almost parallel ones, where
    arccos is not. A zero vector is orthogonal to every other, and parallel to itself.
    """
    a = normalize(a, dim=-1)
    b = normalize(b, dim=-1)
    return 2 / math.pi * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def _last_tokens(rows: DeviceRows) -> Tensor:
    """Return the positions of each row's last token, in the stream of all rows' tokens: int64, (rows,).

    It is the last one that predicts, where attention is causal; there rows without a target have none.
    """
    if rows.packing is None:
        count, time = rows.targets.shape
        return torch.arange(1, count + 1, device=rows.targets.device) * time - 1
    row = rows.packing.index // rows.packing.time
    ends = torch.ones_like(row, dtype=torch.bool)
    ends[:-1] = row[1:] != row[:-1]
    counted = ends if rows.visible else ends & (rows.targets[0] != IGNORED)
    return counted.nonzero().flatten()


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


class RemovalLosses:
    """The losses of a network on its validation text without each layer, by layer."""

    def __init__(
        self,
        cell: Cell,
        loaded: TrainedNetwork,
        corpus: Corpus,
        world: World,
        checkpoint: str,
        earlier: Iterable[object],
    ):
        """Read the batches, and take over the removals of `earlier` on the same checkpoint and text. Collective."""
        self.network = loaded.network
        self.precision = loaded.precision
        self.bytes_per_token = corpus.validation_bytes_per_token
        self.checkpoint = checkpoint
        self.world = world
        facts = corpus.facts()
        self.text = f"{facts.validation_fingerprint} {facts.tokenizer}"
        mine = [one for one in earlier if isinstance(one, Removal)]
        found = world.broadcast([one for one in mine if (one.checkpoint, one.text) == (checkpoint, self.text)])
        self.removals = {one.layer: one for one in found}
        # The sums of fewer rows are rounded differently: all measurements compute as many rows at once as the first.
        fitting = micro_batch_rows(cell, loaded.precision, processes=world.size)
        self.rows = min([world.min(fitting), *(one.rows for one in found)])
        tokens = cell.parameters("importance").eval_tokens
        reader = reader_of(cell, corpus.tokenizer)
        self.batches = list(validation_batches(corpus.validation, cell.optim.batch, tokens, reader))
        self.stability = _LayerStability(self.network)

    def missing(self) -> list[int]:
        """Return the layers that have not been removed yet, after WHOLE if the whole network was not measured."""
        return [layer for layer in range(len(self.network.model.layers) + 1) if layer not in self.removals]

    def measure(self, layer: int) -> Removal:
        """Measure the network without `layer`. Collective."""
        if layer == WHOLE:
            angles = AngularDistance(self.network)
            loss = self._loss(_both(angles.watch, self.stability.whole))
            distances = {**angles.series(self.world), _NORMS: self.stability.norms(self.world)}
        else:
            if not self.stability.ready:  # an earlier attempt measured the whole network
                self._loss(self.stability.whole)
            self.stability.start()
            with without_layer(self.network, layer):
                loss = self._loss(self.stability.dropped)
            distances = {_STABILITY: [self.stability.psi(self.world)]}
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
        if all(_STABILITY in one.distances for one in removed):  # attempts of older versions have not measured it
            distances[_STABILITY] = [one.distances[_STABILITY][0] for one in removed]
        return {"importance": [one.loss - whole.loss for one in removed], **distances}


def _both(first: Watch, second: Watch) -> Watch:
    """Return a watch that calls both watches in each forward pass."""

    @contextmanager
    def watch(rows: DeviceRows) -> Iterator[None]:
        with first(rows), second(rows):
            yield

    return watch
