"""How stable a trained network's output is when a layer is dropped (RaPTr, definition 4.1 and Figure 2).

    stream_norm   |y^(l)|, the length of the residual stream entering layer l, and that leaving the last layer
    stability     Psi_l = |F_-l(x) - F(x)|, with F(x) the stream that leaves the last layer, F_-l without layer l

Both are means over the first tokens that are evaluated. Theorem 4.2 bounds the rise of the loss between two stages of
random paths by a multiple of (1/L) sum_l Psi_l / |F|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED
from gpas_cli.model.llama import Llama
from gpas_cli.model.probe import observed_inputs
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.parallel import ALONE, World

STABILITY = "stability"
NORMS = "stream_norm"
TOKENS = 4096  # the most tokens of each process whose outputs are compared


class LayerStability:
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
        if sum(map(len, self._outputs)) >= TOKENS:
            yield
            return
        lengths: list[Tensor] = []
        modules = [*self.network.model.layers, self.network.model.norm]
        with observed_inputs(modules, self._collect(rows, lengths)):
            yield
        self._norms += torch.stack([_sum_and_count(own) for own in lengths])

    def _collect(self, rows: DeviceRows, lengths: list[Tensor]) -> Callable[[nn.Module, Tensor], None]:
        def observe(module: nn.Module, x: Tensor) -> None:
            chosen = _evaluated(rows, x)
            lengths.append(chosen.norm(dim=-1))
            if module is self.network.model.norm:
                self._outputs.append(chosen)

        return observe

    @contextmanager
    def dropped(self, rows: DeviceRows) -> Iterator[None]:
        """Compare one forward pass over `rows`, which the block does, with that of the whole network."""
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
