"""The distributions of the outputs of sub-layers, before any norm, gate or factor of their branch (Spike No More, D).

Of all features x of all tokens, for each layer and sub-layer, with z = (x - m) / s for their mean m and deviation s:

    excess_kurtosis   mean of z^4 - 3: 0 for a normal distribution
    ks                max |F(z) - Phi(z)| over the edges of the bins: the Kolmogorov-Smirnov distance to the normal
                      distribution of the same mean and variance
    output/LAYER      the shares of z in the BINS bins between -BINS_END and BINS_END, below them and above them

The text is read twice: for m and s, then for z. Values that are not finite are left out. Outputs that are all alike
have no z, and NaN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gpas_cli.evaluate.blocks import Blocks
from gpas_cli.evaluate.removal import joined
from gpas_cli.spec.stage import BINS, BINS_END
from gpas_cli.train.loss import DeviceRows


class SublayerOutputs:
    """The distributions of the outputs of a network's sub-layers, summed over forward passes: first those within
    `sums`, then those over the same text within `shares`. Empty where `blocks` has no sub-layers."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._sums: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)  # number, sum and sum of squares
        self._fourths: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self._counts: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)

    @contextmanager
    def sums(self, rows: DeviceRows) -> Iterator[None]:
        """Add mean and deviation of one forward pass over `rows`, which the block does."""

        def observe(part: str, place: int, output: Tensor) -> None:
            x = _finite(joined(rows, output))
            found = torch.stack([x.new_tensor(x.numel()), x.sum(), x.square().sum()])
            self._sums[part][place] = self._sums[part].get(place, 0) + found

        with self._blocks.outputs_observed(observe):
            yield

    @contextmanager
    def shares(self, rows: DeviceRows) -> Iterator[None]:
        """Add the standardised outputs of one forward pass over `rows`."""

        def observe(part: str, place: int, output: Tensor) -> None:
            number, total, squares = self._sums[part][place]
            mean = total / number
            z = (_finite(joined(rows, output)) - mean) / (squares / number - mean.square()).clamp(min=0).sqrt()
            self._fourths[part][place] = self._fourths[part].get(place, 0) + z.square().square().sum()
            bins = torch.bucketize(z[z.isfinite()], edges().to(z.device))
            # Without weights the counts are integers, and their order does not matter on any device.
            found = torch.bincount(bins, minlength=BINS + 2)
            self._counts[part][place] = self._counts[part].get(place, 0) + found

        with self._blocks.outputs_observed(observe):
            yield

    def series(self) -> dict[str, list[float]]:
        """Return the series by layer, and the shares of each layer under PART_output/LAYER."""
        found: dict[str, list[float]] = {}
        for part, counts in self._counts.items():
            shares = [own / own.sum().double() for _, own in sorted(counts.items())]
            numbers = [sums[0] for _, sums in sorted(self._sums[part].items())]
            fourths = [fourth for _, fourth in sorted(self._fourths[part].items())]
            found[f"{part}_ks"] = [_ks_distance(own) for own in shares]
            found[f"{part}_excess_kurtosis"] = [float(a / n) - 3 for a, n in zip(fourths, numbers, strict=True)]
            found |= {f"{part}_output/{layer}": own.tolist() for layer, own in enumerate(shares, 1)}
        return found


def _finite(x: Tensor) -> Tensor:
    """Return the finite values of a tensor in float64, (n,)."""
    return x[x.isfinite()].double()


def edges() -> Tensor:
    """Return the edges of the bins, (BINS + 1,), float64."""
    return torch.linspace(-BINS_END, BINS_END, BINS + 1, dtype=torch.float64)


def _ks_distance(shares: Tensor) -> float:
    """Return the largest distance of a cumulative distribution from the normal one at the edges of the bins.

    shares: (BINS + 2,), float64."""
    below = shares.cpu().cumsum(0)[:-1]
    return float((below - torch.special.ndtr(edges())).abs().max())
