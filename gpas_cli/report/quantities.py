"""The metrics of stages, and the quantities that runs record over updates or by layer: what tables and figures show and
claims compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.extensions import metrics
from gpas_cli.spec.stage import Metric, StageKind
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    from gpas_cli.report.recorded import Result


_SIGNIFICANT_DIGITS = 4  # of numbers that no kind of stage declares

_NATS = "nats per token"
_PER_TARGET = "nats per target"
_PI = "\N{GREEK SMALL LETTER PI}"
_MATRICES = {
    "q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "ffn_gate": "W_gate", "ffn_up": "W_up", "ffn_down": "W_down",
    "norms": "the norms",
}  # fmt: skip
# What the stage importance leaves out beside whole layers. Groups are drawn over the number of their layers.
_LEFT_OUT = {
    "attention": "attention",
    "feed_forward": "feed-forward",
    "last": "last layers",
    "closest": "similar layers",
}
_GROUPS = ("last", "closest")
_OUTPUTS = {"attention": "attention", "feed_forward": "feed-forward"}
_SCORE = "importance_score"
_ENDS = {"embedding": "the embedding", "final_norm": "the final norm", "head": "the head"}
DIVERGED = "diverged"  # the metric that is 1 for a run that diverged and 0 for one that did not
# The metric whose state says whether the stage that records a curve has ended, if that is not the training.
STATE_METRICS = {
    **dict.fromkeys(
        ("importance", _SCORE, "angular_distance", "angular_distances", "stream_norm", "stability"), "mean_importance"
    ),
    **dict.fromkeys([f"{name}_{what}" for name in ("importance", _SCORE) for what in _LEFT_OUT], "mean_importance"),
    **dict.fromkeys([f"{part}_{what}" for part in _OUTPUTS for what in ("ks", "excess_kurtosis")], "largest_ks"),
}
Points = tuple[tuple[float, float], ...]  # x and y, in order of x


def metric(name: str, kinds: Iterable[StageKind] = ()) -> Metric:
    """Return the metric called `name`, of a built-in stage or of `kinds`. Raises GpasError with the nearest name."""
    known = _declared(kinds)
    if name not in known:
        raise GpasError(f"unknown metric '{name}'; {nearest(name, known)}")
    return known[name]


def recorded_metric(name: str, kinds: Iterable[StageKind], results: Mapping[str, Result]) -> Metric:
    """Return the metric called `name`: one of `metric`, or any number that `results` have, without a better direction.

    Raises GpasError with the nearest name.
    """
    known = _declared(kinds)
    if name in known:
        return known[name]
    found = [result for result in results.values() if name in result.metrics]
    if not found:
        names = dict.fromkeys([*(n for result in results.values() for n in result.metrics), *known])
        raise GpasError(f"no metric '{name}' is recorded; {nearest(name, names)}")
    digits = _digits([result.metrics[name] for result in found])
    return Metric(name, name.replace("_", " "), better="", digits=digits, stage=found[0].stage)


def _declared(kinds: Iterable[StageKind]) -> dict[str, Metric]:
    return {**{own.name: own for kind in kinds for own in kind.metrics}, **metrics()}


def _digits(values: Iterable[float]) -> int:
    """Return the digits after the point that show SIGNIFICANT_DIGITS of the largest value; none for whole numbers."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if not largest or all(value == int(value) for value in finite):
        return 0
    return max(0, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(largest)))


class Quantity(Frozen):
    """A quantity that runs record, and how it is drawn."""

    name: str
    title: str
    unit: str = ""
    curve: str = ""
    """Its name in the database, by default its own."""
    by_layer: bool = False
    """Drawn over layers, at the last recorded update."""
    per_layer: bool = False
    """A curve over updates that is recorded among the series by layer, at index 0."""
    log: bool = False
    """y is logarithmic where all values are positive."""
    scale: float = 1.0
    """Recorded values times this are in `unit`."""
    spikes: str = ""
    """The curve of its spikes."""
    bars: bool = False
    """Drawn as bars for few series."""
    spans: bool = False
    """Drawn as heat maps of the values over n = 1, 2, ... layers, which are recorded as NAME, NAME/2, ..."""
    outputs: bool = False
    """Values recorded at the input of layers are drawn as those at the output of the layer before."""
    of_targets: bool = False
    """A loss, which compares only networks of the same objective."""
    of_gates: bool = False
    """Only networks with gates have it."""
    part: str = ""
    """The part of the network, which distinguishes the quantities of one plot."""
    groups: bool = False
    """Drawn over the number of layers."""
    bins: bool = False
    """A distribution for each layer, whose shares are recorded as NAME/LAYER, beside a curve by layer."""

    @property
    def recorded_as(self) -> str:
        return self.curve or self.name

    @property
    def axis(self) -> str:
        """The title of the y axis: "training loss (nats per token)"."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


OVER_UPDATES = (
    Quantity("loss", "training loss", _NATS, spikes="spike_loss", of_targets=True),
    Quantity("eval_loss", "validation loss", _NATS, of_targets=True),
    Quantity("eval_perplexity", "validation perplexity", of_targets=True),
    Quantity("eval_masked_loss", "validation loss at masked tokens", _PER_TARGET, of_targets=True),
    Quantity("eval_masked_perplexity", "validation perplexity at masked tokens", of_targets=True),
    Quantity("eval_denoising_loss", "validation loss at corrupted spans", _PER_TARGET, of_targets=True),
    Quantity("eval_denoising_perplexity", "validation perplexity at corrupted spans", of_targets=True),
    Quantity("eval_translation_loss", "validation loss of translations", _PER_TARGET, of_targets=True),
    Quantity("eval_translation_perplexity", "validation perplexity of translations", of_targets=True),
    Quantity("eval_bits_per_byte", "validation loss", "bits per byte", of_targets=True),
    Quantity("lr", "learning rate"),
    Quantity("tokens_per_second", "throughput", "tokens/s"),
    Quantity("seconds_per_step", "time per update", "s"),
    Quantity("flops_per_second", "computation", "TFLOP/s", scale=1e-12),
    Quantity("mfu", "model FLOPs utilisation", "%", scale=100),
    Quantity("memory", "memory", "GB", scale=1e-9),
    Quantity("loss_scale", "scale of the loss", spikes="skipped", log=True),
    Quantity("total_grad_norm", "gradient norm", curve="grad_norm", spikes="spike_grad_norm"),
    *(
        Quantity(f"{norm}_{part}", f"{title} of {words}", per_layer=True)
        for norm, title in (("weight_norm", "weight norm"), ("grad_norm", "gradient norm"))
        for part, words in _ENDS.items()
    ),
)
BY_LAYER = (
    Quantity("gate", "gate value act(\N{GREEK SMALL LETTER ALPHA})", by_layer=True, of_gates=True),
    Quantity("alpha", "gate parameter \N{GREEK SMALL LETTER ALPHA}", by_layer=True, of_gates=True),
    Quantity("activation_variance", "activation variance at the input", by_layer=True, log=True),
    Quantity(
        "output_variance", "variance of the output", curve="activation_variance", by_layer=True, log=True, outputs=True
    ),
    Quantity("kurtosis", "kurtosis at the input", by_layer=True, log=True),
    Quantity("max_to_rms", "max-to-rms of the input", by_layer=True, log=True),
    Quantity("max_to_median", "max-to-median of the input", by_layer=True, log=True),
    Quantity("effective_rank", "effective rank of the input", by_layer=True),
    Quantity("block_cosine", "cosine of input and output", by_layer=True),
    Quantity("block_update", "norm of the update over that of the input", by_layer=True),
    Quantity("first_token_share", "share of attention on the first token", by_layer=True),
    *(
        one
        for part, words in _OUTPUTS.items()
        for one in (
            Quantity(f"{part}_output", f"{words} outputs", curve=f"{part}_ks", by_layer=True, bins=True),
            Quantity(f"{part}_ks", f"{words} outputs, distance from normal", by_layer=True),
            Quantity(f"{part}_excess_kurtosis", f"{words} outputs, excess kurtosis", by_layer=True),
        )
    ),
    Quantity("grad_norm", "gradient norm", by_layer=True, log=True),
    Quantity("weight_norm", "weight norm", by_layer=True),
    *(
        Quantity(f"weight_norm_{part}", f"weight norm of {words}", by_layer=True, part=words)
        for part, words in _MATRICES.items()
    ),
    Quantity("importance", "rise of the loss without the layer", _NATS, by_layer=True, bars=True),
    Quantity("importance_score", "score lost without the layer", "points", by_layer=True, bars=True),
    *(
        Quantity(f"{name}_{what}", f"{lost} without {words}", unit, by_layer=True, bars=True, groups=what in _GROUPS)
        for name, lost, unit in (("importance", "rise of loss", _NATS), (_SCORE, "score lost", "points"))
        for what, words in _LEFT_OUT.items()
    ),
    Quantity("stream_norm", "norm of the layer's output", by_layer=True, outputs=True),
    Quantity("stability", "change of the output without the layer, \N{GREEK CAPITAL LETTER PSI}", by_layer=True),
    Quantity("angular_distance", "angular distance from input to output", _PI, by_layer=True),
    Quantity("angular_distances", "angular distance", _PI, curve="angular_distance", by_layer=True, spans=True),
)
QUANTITIES = {quantity.name: quantity for quantity in (*OVER_UPDATES, *BY_LAYER)}


def quantity(name: str) -> Quantity:
    """Return the quantity called `name`. Raises GpasError with the nearest name."""
    if name not in QUANTITIES:
        raise GpasError(f"unknown curve '{name}'; {nearest(name, QUANTITIES)}")
    return QUANTITIES[name]


# Spikes are recorded as curves; a claim counts them.
SPIKES = {f"spike_{of}": Quantity(f"spike_{of}", f"spikes of the {of}") for of in ("loss", "grad_norm")}
SPIKES["skipped"] = Quantity("skipped", "skipped updates")


def by_layer(entry: Entry, values: Mapping[int, float], *, outputs: bool = False) -> tuple[Points, float | None]:
    """Return points over layers, counted from 1, and the value of the final norm if there is one, from values by index.

    The value after the last layer's is the final norm's. If a layer has several values, such as the gates of its two
    sub-layers, the later ones are placed between it and the next layer. outputs: values at the input of a layer are
    drawn as values at the output of the layer before it.
    """
    count = max(values, default=-1) + 1
    network = entry.cell.network
    layers = count if network and not network.layers else entry.cell.model.size.layers
    if outputs:
        return tuple((n, value) for n, value in sorted(values.items()) if n > 0 and math.isfinite(value)), None
    each = max(1, count // layers)
    inside = {index: value for index, value in values.items() if index < each * layers and math.isfinite(value)}
    final = values.get(layers) if each == 1 else None
    points = tuple((1 + index / each, value) for index, value in sorted(inside.items()))
    return points, final if final is None or math.isfinite(final) else None
