"""The stage `quantised`: what a trained network loses if its weights are rounded to integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.extensions.layers.stage import LayerStatistics
from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, CellParts
from gpas_cli.spec.parse import setting
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.stage import Metric, StageKind

PERPLEXITY, RISE = "quantised_perplexity", "quantised_rise"
UNQUANTISED = "unquantised"  # the measurement with the weights as they are


class Quantised(LayerStatistics, kw_only=True):
    """The validation perplexity over `eval_tokens` tokens with the matrices of attention and feed-forward networks
    rounded to integers of `bits` bits each, symmetric, with one scale for each output channel. Embeddings, head, norms,
    biases and gates are not rounded.

    text, max_length: of a network that was not trained here, as for `layers`.
    """

    bits: tuple[int, ...] = setting((8, 4), low=2, high=8)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with the most bits first: the order in which they are written does not count."""
        bits = values.get("bits")
        ordered = isinstance(bits, list) and all(isinstance(one, int | float) for one in bits)
        return {**values, "bits": sorted(bits, reverse=True)} if ordered and bits else values

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.bits:
            yield Problem(("bits",), "is empty; give at least one number of bits, such as [8, 4]")
        for one in sorted({one for one in self.bits if self.bits.count(one) > 1}):
            yield Problem(("bits",), f"names {one} more than once")

    @property
    def widths(self) -> dict[str, int]:
        """The measurements by name, as scores and columns have it, with their number of bits: 0 without rounding."""
        return {UNQUANTISED: 0, **{f"int{bits}": bits for bits in self.bits}}

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the measurements; the rise is from the weights as they are, which have none."""
        own = {PERPLEXITY: tuple(self.widths), RISE: tuple(self.widths)[1:]}
        return own.get(metric, ())


def _tokens(cell: CellParts, cadence: Cadence, resumed: int) -> float:
    """Return a third of the tokens of one evaluation for each number of bits, and one without rounding."""
    section: Quantised = cell.parameters("quantised")
    return section.eval_tokens * len(section.widths) / EVALUATED_PER_TRAINED


QUANTISED = StageKind(
    name="quantised",
    parameters=Quantised,
    columns="bits",
    of_networks=True,
    before="translation",
    cost=_tokens,
    runner="gpas_cli.extensions.quantised.rounding:run",
    metrics=(
        Metric(PERPLEXITY, "validation perplexity with rounded weights", by_task=True),
        Metric(RISE, "rise by rounding the weights", digits=4, unit="nats/token", by_task=True),
    ),
)
