"""Statistics of a trained network by layer, from two forward passes over its validation text.

Of the residual stream entering each layer, and of the one leaving the last:

    activation_variance, kurtosis, max_to_rms, max_to_median   means over tokens (`gpas_cli.model.stream`)
    effective_rank   of the matrix (tokens, hidden) of the stream at all tokens (`gpas_cli.model.stream`). Its singular
                     values are the roots of the eigenvalues of its Gram matrix, which is summed in float64.

Of each layer:

    block_cosine, block_update   means over tokens (`gpas_cli.model.stream`)
    first_token_share            the share of attention on the first token of the row, mean over heads and over all
                                 other tokens (Xiao et al., 2024: StreamingLLM; Gu et al., 2025: When Attention Sink
                                 Emerges). Uniform causal attention has 1/t at token t = 2, 3, ...

Of each sub-layer, the distribution of its outputs before any norm, gate or factor of its branch (Spike No More, D), of
the trained network and of the one that the training began with. Of all features x of all tokens, for each layer and
sub-layer, with z = (x - m) / s for their mean m and deviation s:

    excess_kurtosis   mean of z^4 - 3: 0 for a normal distribution
    ks                max |F(z) - Phi(z)| over the edges of the bins: the Kolmogorov-Smirnov distance to the normal
                      distribution of the same mean and variance
    output/LAYER      the shares of z in the BINS bins between -BINS_END and BINS_END, below them and above them

The text is read twice: for m and s, then for z. Values that are not finite are left out. Outputs that are all alike
have no z, and NaN.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.events import Emit, Layers, Outcome, Phase, Step, Stop, Warned
from gpas_cli.extensions.layers.blocks import Blocks
from gpas_cli.extensions.layers.removal import Subject, both, joined, read_streams
from gpas_cli.extensions.layers.stage import SUBLAYERS
from gpas_cli.model.llama import Llama
from gpas_cli.model.stream import RANK, effective_rank, hooked, max_to_median, of_block, of_stream
from gpas_cli.spec.stage import BINS, BINS_END
from gpas_cli.train.evaluate import Watch
from gpas_cli.train.loss import DeviceRows

_SHARE = "first_token_share"


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


class LayerStatistics:
    """The statistics of a network's layers, summed over the forward passes within `watch`.

    observed: `Blocks.observed` of the network.

    Between passes only sums are kept: of the stream at each place a matrix (hidden, hidden) in float64.
    """

    def __init__(self, observed: Callable[[Callable[[int, Tensor], None]], AbstractContextManager[None]]) -> None:
        self._observed = observed
        self._sums: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)  # of finite values, and their number
        self._grams: dict[int, Tensor] = {}

    @contextmanager
    def watch(
        self, chosen: Callable[[Tensor], Tensor], shares: AbstractContextManager[Sequence[Tensor]] | None = None
    ) -> Iterator[None]:
        """Add the statistics of one forward pass, which the block does.

        chosen: returns the tokens of a stream that count, (tokens, hidden). shares: a context of the pass, after which
        its list has for each block the shares of attention on the first token of the row, of the tokens that count, in
        any shape; None where the network does not give them.
        """
        before: list[Tensor] = []

        def observe(place: int, x: Tensor) -> None:
            tokens = chosen(x).double()
            self._add(place, of_stream(tokens) | {"max_to_median": max_to_median(tokens)})
            self._grams[place] = self._grams.get(place, 0) + tokens.T @ tokens
            if place:
                self._add(place - 1, of_block(before.pop(), tokens))
            before.append(tokens)

        with shares or nullcontext(()) as found, self._observed(observe):
            yield
        for place, share in enumerate(found):
            self._add(place, {_SHARE: share})

    def _add(self, place: int, statistics: Mapping[str, Tensor]) -> None:
        for name, values in statistics.items():
            finite = values.isfinite()
            found = torch.stack([torch.where(finite, values.double(), 0.0).sum(), finite.sum()])
            self._sums[name][place] = self._sums[name].get(place, 0) + found

    def series(self) -> dict[str, list[float]]:
        """Return the series by layer: of the streams blocks + 1 numbers each, of the blocks one number for each."""
        means = {
            name: [float(total / number) for _, (total, number) in sorted(at.items())]
            for name, at in self._sums.items()
        }
        return {**means, RANK: [effective_rank(gram) for _, gram in sorted(self._grams.items())]}


@contextmanager
def first_token_shares(network: Llama) -> Iterator[list[Tensor]]:
    """Collect `Attention.first_token_share` of each layer in a forward pass, (batch, time) each."""
    found: list[Tensor] = []
    attentions = [block.self_attn for block in network.model.blocks()]
    with hooked(attentions, lambda attention, given: found.append(attention.first_token_share(*given))):
        yield found


def measure(subject: Subject, emit: Emit, stop: Stop) -> Outcome:
    """Measure the layers of a network on its text, and report them.

    Of a network that was trained here, the outputs of the sub-layers are measured again with the weights that the
    training began with, which it has afterwards, and reported at update 0.
    """
    began = time.perf_counter()
    emit(Phase("measuring layers"))
    network = subject.network
    found = LayerStatistics(subject.blocks.observed)
    trained, begun = SublayerOutputs(subject.blocks), SublayerOutputs(subject.blocks)

    def initialise() -> None:
        assert isinstance(network, Llama)
        assert subject.begun is not None
        network.load_state_dict(subject.begun().state_dict())

    # Rows have no padding, or are packed without it.
    passes: list[tuple[Watch, Callable[[], None] | None]] = [  # each with what precedes it
        (both(lambda rows: found.watch(partial(joined, rows), _shares(subject)), trained.sums), None),
        (trained.shares, None),
    ]
    if subject.blocks.fault:
        emit(Warned(f"the outputs of sub-layers are not measured: {subject.blocks.fault}"))
        passes = passes[:1]
    elif subject.begun:
        passes += [(begun.sums, initialise), (begun.shares, None)]
    done = 0
    for watch, prepare in passes:
        if prepare:
            prepare()
        for batch in subject.batches:
            if leave := stop():
                return Outcome(leave)
            read_streams(subject, batch, watch)
            done += 1
            emit(Step(done, steps=len(passes) * len(subject.batches)))
    subject.record_verified(emit)
    series = {**found.series(), **trained.series()}
    if first := begun.series():
        emit(Layers(0, first))
    emit(Layers(subject.step, series))
    metrics = {**_metrics(series), "seconds": time.perf_counter() - began}
    return Outcome("done", done, metrics=metrics)


def _shares(subject: Subject) -> AbstractContextManager[Sequence[Tensor]]:
    """Return the context of a pass that collects the shares of attention on the first token."""
    if isinstance(subject.network, Llama):
        return first_token_shares(subject.network)
    assert isinstance(subject.network, ForeignNetwork)
    return subject.network.attention_to_first(subject.blocks.attentions)


def _metrics(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    largest = {f"largest_{name}": max(series[name]) for name in ("activation_variance", "kurtosis", "max_to_median")}
    distances = [value for part in SUBLAYERS for value in series.get(f"{part}_ks", ())]
    if distances:
        largest["largest_ks"] = max(distances)
    means = [name for name in (RANK, _SHARE, "block_cosine", "block_update") if name in series]
    return largest | {f"mean_{name}": sum(series[name]) / len(series[name]) for name in means}
