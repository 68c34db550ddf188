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

Of each sub-layer, the distribution of its outputs (`evaluate.sublayer_outputs`), of the trained network and of the one
that the training began with.

`measure` reads the network of a cell, `measure_subject` any other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

from gpas_cli.data.prepare import Corpus
from gpas_cli.evaluate.removal import Subject, both, joined, own_subject, read_streams
from gpas_cli.evaluate.sublayer_outputs import SublayerOutputs
from gpas_cli.events import Emit, Layers, Outcome, Phase, Step, Stop, Warned
from gpas_cli.model.llama import Llama, build, hooked
from gpas_cli.model.stream import RANK, effective_rank, max_to_median, of_block, of_stream
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.stage import SUBLAYERS
from gpas_cli.train.evaluate import Watch
from gpas_cli.train.run import record_verified
from gpas_cli.train.trained import TrainedNetwork

_SHARE = "first_token_share"


class LayerStatistics:
    """The statistics of a network's layers, summed over the forward passes within `watch`.

    observed: `Blocks.observed` of the network.

    Between passes only sums are kept: of the stream at each place a matrix (hidden, hidden) in float64.
    """

    def __init__(self, observed: Callable[[Callable[[int, Tensor], None]], AbstractContextManager[None]]) -> None:
        self._observed = observed
        self._means: defaultdict[str, defaultdict[int, _Mean]] = defaultdict(lambda: defaultdict(_Mean))
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
            self._means[name][place].add(values)

    def series(self) -> dict[str, list[float]]:
        """Return the series by layer: of the streams blocks + 1 numbers each, of the blocks one number for each."""
        means = {name: [mean.value() for _, mean in sorted(at.items())] for name, at in self._means.items()}
        return {**means, RANK: [effective_rank(gram) for _, gram in sorted(self._grams.items())]}


class _Mean:
    """A mean over all finite values that were added, kept on their device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def add(self, values: Tensor) -> None:
        finite = values.isfinite()
        sums = torch.stack([torch.where(finite, values.double(), 0.0).sum(), finite.sum()])
        self._sums = sums if self._sums is None else self._sums + sums

    def value(self) -> float:
        """Return the mean, NaN of no values."""
        assert self._sums is not None
        total, count = self._sums
        return float(total / count)


@contextmanager
def first_token_shares(network: Llama) -> Iterator[list[Tensor]]:
    """Collect `Attention.first_token_share` of each layer in a forward pass, (batch, time) each."""
    found: list[Tensor] = []
    attentions = [block.self_attn for block in network.model.blocks()]
    with hooked(attentions, lambda attention, given: found.append(attention.first_token_share(*given))):
        yield found


def measure(cell: Cell, opened: TrainedNetwork, corpus: Corpus, emit: Emit, stop: Stop) -> Outcome:
    """Measure the layers of the trained network of a cell on the validation text of `corpus`, and report them.

    Afterwards `opened` has the weights that the training began with.
    """

    def initialise() -> None:
        begun = build(cell.model, seed=cell.seed, dtype=opened.precision.weights)
        opened.network.load_state_dict(begun.state_dict())

    subject = own_subject(cell, opened, corpus, "", cell.parameters("layers").eval_tokens)
    return measure_subject(
        subject,
        emit,
        stop,
        lambda: first_token_shares(opened.network),
        lambda: record_verified(corpus, emit),
        initialise,
    )


def measure_subject(
    subject: Subject,
    emit: Emit,
    stop: Stop,
    shares: Callable[[], AbstractContextManager[Sequence[Tensor]] | None] = lambda: None,
    verify: Callable[[], None] = lambda: None,
    initialise: Callable[[], None] | None = None,
) -> Outcome:
    """Measure the layers of a network, and report them. shares: returns those of `LayerStatistics.watch`. verify: is
    called once the text has been read. initialise: gives the network the weights that its training began with; the
    outputs of its sub-layers are then measured again, and reported at update 0."""
    began = time.perf_counter()
    emit(Phase("measuring layers"))
    found = LayerStatistics(subject.blocks.observed)
    trained, begun = SublayerOutputs(subject.blocks), SublayerOutputs(subject.blocks)
    # Rows have no padding, or are packed without it.
    passes: list[tuple[Watch, Callable[[], None] | None]] = [  # each with what precedes it
        (both(lambda rows: found.watch(partial(joined, rows), shares()), trained.sums), None),
        (trained.shares, None),
    ]
    if subject.blocks.fault:
        emit(Warned(f"the outputs of sub-layers are not measured: {subject.blocks.fault}"))
        passes = passes[:1]
    elif initialise:
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
    verify()
    series = {**found.series(), **trained.series()}
    if first := begun.series():
        emit(Layers(0, first))
    emit(Layers(subject.step, series))
    metrics = {**_metrics(series), "seconds": time.perf_counter() - began}
    return Outcome("done", done, metrics=metrics)


def _metrics(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    largest = {f"largest_{name}": max(series[name]) for name in ("activation_variance", "kurtosis", "max_to_median")}
    distances = [value for part in SUBLAYERS for value in series.get(f"{part}_ks", ())]
    if distances:
        largest["largest_ks"] = max(distances)
    means = [name for name in (RANK, _SHARE, "block_cosine", "block_update") if name in series]
    return largest | {f"mean_{name}": sum(series[name]) / len(series[name]) for name in means}
