"""The kinds of stage that a cell may have: pretraining, and what may follow it. Each stage has its own key.

To add a kind: an entry in STAGE_KINDS, with its parameters and cost, and a function in `gpas_cli.worker.stages`
that runs it; or both in an extension (`gpas_cli.extension`) or a plugin file (`gpas_cli.spec.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any

from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, CellParts, computed_flops
from gpas_cli.spec.downstream import Downstream, Texts, downstream_tokens, text_tokens
from gpas_cli.spec.finetune import Finetune, finetuning_tokens
from gpas_cli.spec.norm import PluginOrigin
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.translation import BLEU, Translation, translation_tokens
from gpas_cli.structure import HIDDEN, Frozen
from gpas_cli.words import fixed

PRETRAIN = "pretrain"
_PER_TARGET = "nats/target"  # the unit of losses that only some of the tokens have
# The fields of a cell that pretraining reads, apart from the network.
TRAINING_PARTS = ("data", "objective", "optim", "depth", "dropout", "precision", "seed")
NOT_FINITE = "not_finite_at"  # the update at which a training died in its first tenth, among its outcome's metrics
TOKENISE = "tokenise"  # a kind of job, but no stage of a cell: it prepares the text that cells read
# Of the outputs of sub-layers, in standard deviations: bins from -BINS_END to BINS_END, and one more on either side.
BINS, BINS_END = 80, 5.0
CORPUS_LOSS = "corpus_loss"  # the metric that a mixture has for each of its corpora
CONVERGENCE = ("updates_to", "tokens_to", "speedup")  # metrics that `report.convergence` derives from curves
EXTERNAL = "external"  # in place of the grid's name: `gpas evaluate` scored it. A kind of stage in older records


class Metric(Frozen):
    """A number that a stage reports."""

    name: str
    title: str
    better: Annotated[str, "lower, higher, or empty if neither is better"] = "lower"
    digits: int = 2
    """Shown after the point; numbers that agree in these digits tie."""
    unit: str = ""
    stage: str = field(default="", metadata=HIDDEN)
    """Set by the StageKind that has the metric."""
    kind: str = field(default="", metadata=HIDDEN)
    """The name of the metric in papers, where it differs."""
    by_task: bool = field(default=False, metadata=HIDDEN)
    """Whether it is reported as NAME/TASK for each task and for averages."""
    main: bool = field(default=False, metadata=HIDDEN)
    """Whether it stands for the result of its stage where the stage's first one is not reported."""
    parts: Callable[[str, Mapping[str, float]], Sequence[tuple[str, str]]] | None = field(default=None, metadata=HIDDEN)
    """For a metric that is a mean of scores: (label, metrics of the stage) -> the task and the metric of each score."""

    @property
    def words(self) -> str:
        """The name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """The title with the unit: "validation loss, nats/token"."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def shown(self, value: float) -> str:
        """Return a value with the metric's digits and unit: "51.20 %"."""
        return f"{fixed(value, self.digits)}{f' {self.unit}' if self.unit else ''}"

    @property
    def family(self) -> str:
        """The metric that published tables are compared by."""
        return self.kind or self.name

    def recorded_as(self, task: str) -> str:
        """Return the name under which an attempt reports the metric for `task`."""
        return f"{self.name}/{task}" if self.by_task else self.name


def _percent(name: str, title: str, **more: Any) -> Metric:
    """Return a metric in percent that is reported for each task."""
    return Metric(name, title, better="higher", unit="%", by_task=True, **more)


_Cost = Callable[[CellParts, Cadence, int], float]


class StageKind(Frozen, kw_only=True):
    """One kind of stage: what it is called, what it takes, what it costs and what it reports."""

    name: str
    parameters: type | None = None
    """The frozen dataclass of the cell's section `name`; None for pretraining, whose parameters are the cell. It is a
    `spec.section.Section`."""
    trains: bool = False
    """Whether it writes a checkpoint. Later stages build on the last training; stages that do not train run in one
    process."""
    causal: bool = False  # whether it needs a network that was trained to predict the next token
    encoder_decoder: bool = False
    """Whether it is for encoder-decoder networks, which have no other stages, and only for them."""
    of_networks: bool = False  # whether it also measures networks that were not trained here
    columns: str = ""
    """The name of the columns of a table that has one for each task, text or other thing that it measures."""
    before: str = ""
    """The kind before which it runs, for those of extensions; "" after the engine's."""
    cost: _Cost  # (cell, cadence, resumed step) -> equivalent tokens: those to train, plus a third of those to evaluate
    runner: str | Callable[..., Any]  # the function that runs it, or where a job finds it: "module:function"
    metrics: tuple[Metric, ...] = ()  # what it reports, as tables name it
    title: str = ""  # how messages name one of them, with "{cell}" for the cell; by default "its NAME of {cell}"
    titles: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What tables call the columns of its metrics, where that differs from the name."""
    origin: PluginOrigin | None = None  # set for kinds that come from a plugin

    def __post_init__(self) -> None:
        own = tuple(replace(metric, stage=self.name) for metric in self.metrics)
        object.__setattr__(self, "metrics", own)


def _pretraining_tokens(cell: CellParts, cadence: Cadence, resumed: int) -> float:
    """Return the tokens of the remaining updates, plus a third of the tokens of the evaluations between and after them.

    Tokens of updates that skip layers count as the tokens of all layers that cost the same.
    """
    steps = max(0, cell.optim.updates - resumed)
    evaluations = steps // cadence.eval_every + 1
    whole = steps * computed_flops(cell, resumed + 1, cell.optim.updates) if steps else 0.0
    return whole * cell.optim.batch * cell.data.length + evaluations * cell.data.eval_tokens / EVALUATED_PER_TRAINED


# In the order in which a cell's stages are run, trainings first.
STAGE_KINDS: dict[str, StageKind] = {
    kind.name: kind
    for kind in (
        StageKind(
            name=PRETRAIN,
            columns="corpus",
            title="its training {cell}",
            trains=True,
            cost=_pretraining_tokens,
            runner="gpas_cli.worker.stages.training:run_pretraining",
            metrics=(
                Metric("perplexity", "validation perplexity"),
                Metric("perplexity_reference", "reference perplexity", kind="perplexity"),
                Metric("loss", "validation loss", digits=3, unit="nats/token"),
                Metric("loss_reference", "reference loss", digits=3, unit="nats/token", kind="loss"),
                Metric(
                    "loss_batch_mean", "validation loss, mean of batch means", digits=3, unit="nats/token", kind="loss"
                ),
                Metric("bits_per_byte", "validation bits per byte", digits=3),
                Metric(CORPUS_LOSS, "validation loss on a corpus", digits=3, unit="nats/token", by_task=True),
                Metric("masked_loss", "validation loss at masked tokens", digits=3, unit=_PER_TARGET, kind="loss"),
                Metric("masked_perplexity", "validation perplexity at masked tokens", main=True),
                Metric("denoising_loss", "validation loss at corrupted spans", digits=3, unit=_PER_TARGET, kind="loss"),
                Metric("denoising_perplexity", "validation perplexity at corrupted spans", main=True),
                Metric("translation_loss", "validation loss of translations", digits=3, unit=_PER_TARGET, kind="loss"),
                Metric("translation_perplexity", "validation perplexity of translations", main=True),
                # Counted by report/query.py: each is an event of the training, by the rule of train/observe.py.
                Metric("loss_spikes", "spikes of the loss", digits=1),
                Metric("gradient_spikes", "spikes of the gradient norm", digits=1),
                Metric("skipped_updates", "updates skipped in float16", digits=1),
                Metric("updates_to", "updates to the base's final training loss", digits=0),
                Metric("tokens_to", "tokens, without padding, to the base's final training loss", digits=0),
                Metric("speedup", "updates of the base to its final training loss, over ours", better="higher"),
                Metric("train_tokens", "trained tokens, without padding", better="", digits=0),
                Metric("train_seconds", "training time", digits=0, unit="s"),
                Metric("relative_flops", "layers in an update over all layers", digits=3),
                Metric("computed_flops", "FLOPs of an update over those with all layers", digits=3),
                Metric("equivalent_updates", "updates of the whole network with the same work", digits=0),
                Metric("train_flops", "training FLOPs", digits=0),
                Metric("tokens_per_second", "training throughput", better="higher", digits=0, unit="tokens/s"),
            ),
        ),
        StageKind(
            name="finetune",
            title="its finetuning {cell}",
            parameters=Finetune,
            trains=True,
            causal=True,
            cost=finetuning_tokens,
            runner="gpas_cli.worker.stages.training:run_finetuning",
            metrics=(
                Metric("finetuned_perplexity", "validation perplexity after finetuning"),
                Metric("answer_loss", "loss on held-out answers", digits=3, unit="nats/token"),
                Metric("finetune_seconds", "finetuning time", digits=0, unit="s"),
            ),
        ),
        StageKind(
            name="downstream",
            columns="task",
            parameters=Downstream,
            of_networks=True,
            cost=lambda cell, *_: (
                downstream_tokens(cell.parameters("downstream"), cached=not cell.is_external) / EVALUATED_PER_TRAINED
            ),
            runner="gpas_cli.worker.stages.scoring:run_downstream",
            metrics=(
                _percent("accuracy", "accuracy"),
                _percent("accuracy_norm", "accuracy, with log p divided by the length of the choice"),
                Metric("task_perplexity", "perplexity", by_task=True, kind="perplexity"),
                _percent("f1", "F1"),
                _percent("exact_match", "exact match", main=True),
                _percent("score", "score: accuracy, exact match or F1"),
            ),
        ),
        StageKind(
            name="texts",
            columns="text",
            parameters=Texts,
            causal=True,
            of_networks=True,
            cost=lambda cell, *_: text_tokens(cell.parameters("texts")) / EVALUATED_PER_TRAINED,
            runner="gpas_cli.worker.stages.scoring:run_texts",
            metrics=(
                Metric("text_perplexity", "perplexity by word", by_task=True, kind="perplexity"),
                Metric("text_loss", "loss on texts", digits=3, unit="nats/token", by_task=True),
                Metric("text_bits_per_byte", "bits per byte of texts", digits=3, by_task=True),
            ),
        ),
        StageKind(
            name="translation",
            columns="task",
            title="its translations by {cell}",
            parameters=Translation,
            encoder_decoder=True,
            cost=lambda cell, *_: translation_tokens(cell.parameters("translation"), cell) / EVALUATED_PER_TRAINED,
            runner="gpas_cli.worker.stages.scoring:run_translation",
            metrics=(Metric(BLEU, "BLEU", better="higher", by_task=True),),
        ),
    )
}


def called(outcome: str, metrics: Mapping[str, Any]) -> str:
    """Return how an outcome is called: "not finite" for a training that died so early that it is no result."""
    return "not finite" if outcome == "diverged" and NOT_FINITE in metrics else outcome
