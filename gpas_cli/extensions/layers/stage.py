"""The stages `importance` and `layers`: what a trained network loses without a layer, and statistics of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, CellParts
from gpas_cli.spec.downstream import (
    TINY_TASKS,
    Downstream,
    LocalAmounts,
    downstream_tokens,
    measure_of,
    task_problem,
    text_problem,
)
from gpas_cli.spec.parse import setting
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.section import Section, Tiny
from gpas_cli.spec.stage import Metric, StageKind
from gpas_cli.structure import Frozen

SUBLAYERS = ("attention", "feed_forward")  # of a layer, in order


def _optional_text(name: str) -> str:
    return text_problem(name) if name else ""


class Importance(Frozen, LocalAmounts, kw_only=True):
    """What the network loses without each of its layers: the rise of the validation loss over `eval_tokens` tokens, and
    the drop of the accuracy on `tasks`.

    tasks, max_length, limit: as in `downstream`; tasks must have an accuracy or an F1.
    parts: also without the `attention` and the `feed_forward` network of each layer alone. groups: also without the
    last n layers, and without those n in a row that turn the stream least, for each n.
    text: of a network that was not trained here, the text of the loss, as `texts` names it.
    """

    eval_tokens: int = setting(20_000, low=1)
    tasks: tuple[str, ...] = setting((), check=task_problem, omit_default_from_key=True)
    max_length: int = setting(1024, low=2, high=1_048_576, omit_default_from_key=True)
    limit: int = setting(0, low=0, omit_default_from_key=True)
    parts: tuple[str, ...] = setting((), choices=SUBLAYERS, omit_default_from_key=True)
    groups: tuple[int, ...] = setting((), low=1, high=1024, omit_default_from_key=True)
    text: str = setting("", check=_optional_text, omit_default_from_key=True)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with groups replaced by their tasks, in the order of `downstream`."""
        return Downstream.completed(values)

    def downstream(self) -> Downstream:
        """Return the section by which the tasks are scored."""
        return Downstream(tasks=self.tasks, max_length=self.max_length, limit=self.limit).with_amounts(self.amount_of)

    def problems_in(self, cell: CellParts) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        yield from _text_problems(self.text, cell)
        if not cell.is_external and cell.model.joined_layers:
            yield Problem((), f"{cell.model.joined_layers}; remove the section")
        if self.tasks and not cell.objective.causal:
            yield Problem(("tasks",), f"{cell.objective.needs_next_token('scoring tasks')}; remove the setting")
        if self.tasks:
            yield from self.downstream().problems_in(cell)

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if self.tasks:
            yield from self.downstream().problems()
        else:
            usual = Importance()
            for name in ("limit",) if self.text else ("max_length", "limit"):
                if getattr(self, name) != getattr(usual, name):
                    yield Problem((name,), "has no effect without tasks")
        for task in self.tasks:
            if measure_of(task) not in ("acc", "f1"):
                yield Problem(("tasks",), f"{task} has no accuracy; choose tasks of multiple-choice questions")

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of less text, and of embedded tasks."""
        return {**_less_text(cell, tiny), **(TINY_TASKS if self.tasks else {})}


def _less_text(cell: CellParts, tiny: Tiny) -> dict[str, Any]:
    of_network = {"text": tiny.validation, "max_length": 4 * tiny.row} if cell.is_external else {}
    return {"eval_tokens": tiny.eval_tokens, **of_network}


def _text_problems(text: str, cell: CellParts) -> Iterator[Problem]:
    """Yield a problem if a network that was not trained here has no text, or another one has one."""
    if cell.is_external and not text:
        yield Problem(("text",), "is required: the text on which the network is measured, as `texts` names it")
    elif text and not cell.is_external:
        yield Problem(("text",), "is for networks that were not trained here; cells have their own validation text")


class LayerStatistics(Frozen, Section, kw_only=True):
    """Statistics of the layers of the trained network, and of the outputs of sub-layers also at the beginning of the
    training, over `eval_tokens` tokens of validation text.

    text, max_length: of a network that was not trained here, the text, as `texts` names it, and the tokens of a row.
    """

    eval_tokens: int = setting(20_000, low=1)
    text: str = setting("", check=_optional_text, omit_default_from_key=True)
    max_length: int = setting(1024, low=2, high=1_048_576, omit_default_from_key=True)

    def problems_in(self, cell: CellParts) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        yield from _text_problems(self.text, cell)
        if not cell.is_external and self.max_length != LayerStatistics().max_length:
            yield Problem(("max_length",), "has no effect: the rows are those of the cell's text")

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of less text."""
        return _less_text(cell, tiny)


def _importance_tokens(cell: CellParts, cadence: Cadence, resumed: int) -> float:
    """Return a third of the tokens of one evaluation of the whole network, and of those without layers.

    An evaluation is of the validation text and of the questions of all tasks.
    """
    section: Importance = cell.parameters("importance")
    layers = cell.model.size.layers
    each = 0.5 * layers * (1 + len(section.parts)) + 2 * len(section.groups)  # a removal skips the layers before it
    tokens = section.eval_tokens + downstream_tokens(section.downstream())
    return tokens * (1 + each) / EVALUATED_PER_TRAINED


IMPORTANCE = StageKind(
    name="importance",
    parameters=Importance,
    of_networks=True,
    before="translation",
    cost=_importance_tokens,
    runner="gpas_cli.extensions.layers.run:run_importance",
    metrics=(
        Metric("mean_importance", "mean rise without a layer", better="higher", digits=4, unit="nats/token"),
        Metric("least_importance", "least rise without a layer", better="higher", digits=4, unit="nats/token"),
        Metric("mean_score_drop", "mean drop of the accuracy without a layer", better="higher", unit="points"),
        Metric("least_score_drop", "least drop of the accuracy without a layer", better="higher", unit="points"),
        Metric(
            "safe_layers", "layers whose removal costs less than a point of accuracy", better="", digits=1, unit="%"
        ),
        Metric(
            "mean_angular_distance",
            "mean angular distance of a layer",
            better="higher",
            digits=4,
            unit="\N{GREEK SMALL LETTER PI}",
        ),
    ),
)
LAYERS = StageKind(
    name="layers",
    parameters=LayerStatistics,
    of_networks=True,
    # Two passes, and two more at the beginning of a training.
    cost=lambda cell, *_: (
        cell.parameters("layers").eval_tokens * (2 if cell.is_external else 4) / EVALUATED_PER_TRAINED
    ),
    runner="gpas_cli.extensions.layers.run:run_layers",
    metrics=(
        Metric("largest_kurtosis", "largest kurtosis of the stream"),
        Metric("largest_max_to_median", "largest max-to-median of the stream"),
        Metric("largest_activation_variance", "largest variance of the stream", better=""),
        Metric("mean_effective_rank", "mean effective rank of the stream", better="", digits=1),
        Metric("mean_first_token_share", "mean attention on the first token", better="", digits=3),
        Metric("mean_block_cosine", "mean cosine of a layer's input and output", better="", digits=3),
        Metric("largest_ks", "largest distance of sub-layer outputs from a normal distribution", digits=3),
        Metric("mean_block_update", "mean norm of a layer's update over the stream's", better="", digits=3),
    ),
)
