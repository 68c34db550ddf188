"""Finetuning: on records (`Finetune`), how they become rows, which parameters train, and the recipe; and on tasks of
GLUE (`Glue`), with their columns and labels, and the recipe of RaPTr (appendix B.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, MOST_DROPPED, MOST_SEED, PRECISIONS, CellParts
from gpas_cli.spec.objective import Masked
from gpas_cli.spec.optim import ADAM, OPTIMIZERS, SCHEDULES, Optim, Schedule, optimizer_settings, unread_settings
from gpas_cli.spec.parse import setting, settings_of
from gpas_cli.spec.run import SHARDED, Cadence, Resources
from gpas_cli.spec.section import Input, Section, Tiny

COMMONSENSE = "commonsense170k"
EMBEDDED = "embedded"
# Commonsense170K: records, and tokens of T5's tokenizer with the template `alpaca` (four of its tasks measured: 84 to
# 100 a record).
_COMMONSENSE_EXAMPLES = 170_420
_COMMONSENSE_TOKENS = 16_000_000
EMBEDDED_EXAMPLES = 6_000
_EMBEDDED_TOKENS_PER_EXAMPLE = 110


@dataclass(frozen=True, kw_only=True)
class Finetune(Section):
    """Supervised finetuning of the pretrained network (GPAS, section 4.1). The gates never train.

    data: `commonsense170k`; `embedded`, questions about the training files of the embedded corpus; or a path, relative
    to the experiments file: records {instruction, input, output} in a .json or .jsonl file, or a folder of
    <task>/train.json. validation: the same, to evaluate on; by default <task>/test.json beside each train.json,
    questions about the held-out files of `embedded`, and nothing for other data.
    template: `alpaca`, the prompt of LLM-Adapters around each record, or `plain`, the instruction and then the output.
    The default is `plain` for `embedded`, else `alpaca`. loss_on: `output` ignores the tokens of prompts.
    layout: `pack` joins the examples, each with an end token, and cuts them into rows of `length` tokens; `pad` makes
    one row of each example, truncated or padded.

    method: `lisa` (Pan et al. 2024) trains the embedding, the final norm, the head and `lisa_layers` layers, drawn
    uniformly and again every `lisa_interval` updates; `full` trains all layers. lisa_state: the optimizer state of a
    layer that is no longer drawn is kept until it is drawn again (`keep`, as in the reference), or dropped (`reset`).

    The number of updates is epochs * rows / batch, rounded up. precision and seed: by default pretraining's; the
    seed decides the order of the rows, the layers that are drawn and the masks of dropout. dropout: its rate, whatever
    pretraining's was. The other fields are as in a recipe.
    """

    data: str = setting(COMMONSENSE)
    validation: str = setting("")
    template: str | None = setting(None, choices=("alpaca", "plain"))
    loss_on: str = setting("output", choices=("output", "all"))
    layout: str = setting("pack", choices=("pack", "pad"))
    length: int = setting(512, low=2, high=1_048_576)
    method: str = setting("lisa", choices=("lisa", "full"))
    lisa_layers: int = setting(4, low=1)
    lisa_interval: int = setting(3, low=1)
    lisa_state: str = setting("keep", choices=("keep", "reset"))
    epochs: int = setting(4, low=1, high=1000)
    batch: int = setting(16, low=1, high=1_000_000)
    lr: float = setting(3e-4, above=0, high=10)
    schedule: str = setting("linear", choices=SCHEDULES)
    min_ratio: float = setting(0.0, low=0, high=1)
    warmup: int = setting(0, low=0)
    clip: float = setting(1.0, low=0)
    optimizer: str = setting(ADAM.name, choices=OPTIMIZERS)
    beta1: float = setting(0.9, low=0, high=0.999999)
    beta2: float = setting(0.999, low=0, high=0.999999)
    eps: float = setting(1e-8, above=0, high=1)
    weight_decay: float = setting(0.0, low=0, high=10)
    dropout: float = setting(0.0, low=0, high=MOST_DROPPED, omit_default_from_key=True)
    precision: str | None = setting(None, choices=PRECISIONS)
    seed: int | None = setting(None, low=0, high=MOST_SEED)
    schedule_settings: Schedule | None = settings_of("schedule", lambda: SCHEDULES)
    optimizer_settings: object | None = settings_of("optimizer", optimizer_settings)

    def in_cell(self, cell: CellParts) -> Finetune:
        """Return the canonical spelling: defaults that depend on the cell filled in, fields without effect unset."""
        usual = Finetune()
        kind = OPTIMIZERS[self.optimizer]
        all_train = self.method == "full" or self.lisa_layers >= cell.model.size.layers
        unread = unread_settings(kind) | ({"lisa_layers", "lisa_interval", "lisa_state"} if all_train else set())
        unread |= set() if SCHEDULES[self.schedule].reads_min_ratio else {"min_ratio"}
        return replace(
            self,
            **{name: getattr(usual, name) for name in unread},
            optimizer=kind.name,
            method="full" if all_train else self.method,
            template=self.template or ("plain" if self.data == EMBEDDED else "alpaca"),
            precision=self.precision or cell.precision,
            seed=cell.seed if self.seed is None else self.seed,
        )

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.data:
            yield Problem(("data",), f"is empty; name {COMMONSENSE}, {EMBEDDED} or a path")
        if self.validation and self.validation == self.data:
            yield Problem(("validation",), "names the training data; name other records")
        # The number of updates is known once the data are read.
        yield from self.optim(1).decay_of_rate.problems(self.warmup, None, self.min_ratio)

    def problems_in(self, cell: CellParts) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        family = cell.model.family
        if family.positions == "learned" and family.context < self.length:
            yield Problem(("length",), f"{self.length} is longer than the {family.context} positions of the network")

    def inputs(self) -> Iterator[Input]:
        """Yield the records, without the settings that do not change which files are read."""
        yield Input(Finetune(data=self.data, validation=self.validation), "gpas_cli.data.records:unreadable_reason")

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of one epoch of the tiny records."""
        text = {"data": tiny.records, "validation": "", "length": 4 * tiny.row}
        return {**text, "epochs": 1, "batch": tiny.batch, "warmup": 0}

    def split_fault(self, processes: int) -> str:
        """Return why the rows of an update cannot be split evenly among the processes, or ""."""
        return self.optim(1).split_fault(processes)

    def strategy_fault(self, resources: Resources) -> str:
        """Return why a job with these resources cannot train the layers that are drawn, or ""."""
        if self.method == "lisa" and resources.strategy in SHARDED and resources.processes > 1:
            return (
                "finetune.method: lisa trains different layers every few updates, which sharded networks "
                f"(resources.strategy: {resources.strategy}) cannot do; set strategy: ddp, or method: full"
            )
        return ""

    def steps(self, rows: int) -> int:
        """Return the number of updates on data of `rows` rows."""
        return max(1, math.ceil(self.epochs * rows / self.batch))

    @property
    def amount(self) -> tuple[int, int]:
        """About how many tokens and updates there are; other data count as Commonsense170K (see `with_cost_of`)."""
        examples, tokens = _COMMONSENSE_EXAMPLES, _COMMONSENSE_TOKENS
        if self.data == EMBEDDED:
            examples, tokens = EMBEDDED_EXAMPLES, EMBEDDED_EXAMPLES * _EMBEDDED_TOKENS_PER_EXAMPLE
        return tokens, self.steps(examples if self.layout == "pad" else math.ceil(tokens / self.length))

    def with_cost_of(self, examples: int, tokens: int) -> Finetune:
        """Return settings that cost with Commonsense170K what these cost with data of this size."""
        share = examples / _COMMONSENSE_EXAMPLES if self.layout == "pad" else tokens / _COMMONSENSE_TOKENS
        return replace(self, epochs=self.epochs * share)  # type: ignore[arg-type]

    def optim(self, steps: int) -> Optim:
        """Return the recipe of `steps` updates: the settings that this section has, and defaults for the others."""
        shared = {own.name: getattr(self, own.name) for own in fields(Optim) if hasattr(self, own.name)}
        return Optim(**shared | {"steps": steps})


def finetuning_tokens(cell: CellParts, cadence: Cadence, resumed: int) -> float:
    """Return the cost in tokens: those to train, with less of a backward pass for layers that do not train, and a third
    of those to evaluate."""
    spec: Finetune = cell.parameters("finetune")
    per_epoch, steps = spec.amount
    left = max(0.0, 1 - resumed / steps)
    trained = 1.0 if spec.method == "full" else min(1.0, spec.lisa_layers / cell.model.size.layers)
    # Of an update's three products per matrix (forward, gradient of the input, of the weight) one is left out.
    share = (2 + trained) / 3
    evaluations = (steps - min(resumed, steps)) // cadence.eval_every + 1
    return left * spec.epochs * per_epoch * share + evaluations * cell.data.eval_tokens / EVALUATED_PER_TRAINED


GLUE_HUB = "nyu-mll/glue"
GLUE_REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
_AVERAGE = "average"
_ACCURACY, _RATE = BY_GLUE_TASK = ("glue_accuracy", "glue_lr")  # the metrics that are reported for each task
TRAIN = "train"


@dataclass(frozen=True)
class GlueTask:
    """A task of classification.

    texts: the columns of one or two texts. labels: the names of the labels 0, 1, ... examples, evaluated, tokens: those
    to train on, those to evaluate on, and tokens of one, to estimate the cost. titles: of the scores, in tables.
    embedded: made from the standard library, rather than read from the data. splits: see `held_out`.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    examples: int
    evaluated: int
    tokens: int
    titles: Mapping[str, str] = field(default_factory=dict)
    embedded: bool = False
    splits: Mapping[str, str] = field(default_factory=dict)

    @property
    def held_out(self) -> Mapping[str, str]:
        """The splits that it is scored on, by the name of the score; the first decides between learning rates."""
        return self.splits or {self.name: "validation"}


# Columns, labels and splits as in nyu-mll/glue.
GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            "mnli",
            texts=("premise", "hypothesis"),
            labels=("entailment", "neutral", "contradiction"),
            examples=392_702,
            evaluated=19_647,
            tokens=40,
            titles={"mnli": "MNLI", "mnli_mm": "MNLI, mismatched"},
            splits={"mnli": "validation_matched", "mnli_mm": "validation_mismatched"},
        ),
        GlueTask(
            "qnli", ("question", "sentence"), ("entailment", "not_entailment"), 104_743, 5_463, 50, {"qnli": "QNLI"}
        ),
        GlueTask("sst2", ("sentence",), ("negative", "positive"), 67_349, 872, 14, {"sst2": "SST-2"}),
        GlueTask("ordered", ("line",), ("ordered", "shuffled"), 1_000, 1_200, 30, embedded=True),
        GlueTask("halves", ("left", "right"), ("ordered", "shuffled"), 1_000, 1_200, 30, embedded=True),
    )
}
_PAPER = ("mnli", "qnli", "sst2")


def _task_problem(name: str) -> str:
    return "" if name in GLUE_TASKS else f"unknown task '{name}'; {nearest(name, GLUE_TASKS)}"


@dataclass(frozen=True, kw_only=True)
class Glue(Section):
    """Finetuning on each of `tasks` with a new linear head on the first token, at each of the learning rates `lr`; the
    rate with the best accuracy on the validation split counts (RaPTr, appendix B.1). All parameters but gates train.

    data: `nyu-mll/glue` at a fixed commit, or a folder, relative to the experiments file, with the same files:
    <task>/<split>.jsonl, or <task>/<split>*.parquet. The embedded tasks read no data: `ordered` is whether the
    words of a source line stand in their order or are shuffled, `halves` the same with the two halves of the line.
    warmup: the share of the updates in which the rate rises linearly, before it is constant. length: tokens of an
    example; of a longer pair, the longer text is cut. dropout: its rate, whatever pretraining's is. limit: read only
    the first examples of each split, for a quick check; 0 reads all. precision and seed: by default pretraining's; the
    seed decides the head's weights, the order and the masks of dropout.
    """

    data: str = setting(GLUE_HUB)
    tasks: tuple[str, ...] = setting(_PAPER, check=_task_problem)
    lr: tuple[float, ...] = setting((1e-5, 2e-5, 3e-5, 5e-5), above=0, high=10)
    epochs: int = setting(3, low=1, high=1000)
    batch: int = setting(32, low=1, high=1_000_000)
    warmup: float = setting(0.06, low=0, high=0.9)
    length: int = setting(128, low=8, high=1_048_576)
    weight_decay: float = setting(0.01, low=0, high=10)
    clip: float = setting(1.0, low=0)
    dropout: float = setting(0.0, low=0, high=MOST_DROPPED)
    limit: int = setting(0, low=0)
    precision: str | None = setting(None, choices=PRECISIONS)
    seed: int | None = setting(None, low=0, high=MOST_SEED)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with tasks and rates in ascending order: the order in which they are written does not
        count."""
        found = dict(values)
        places: dict[str, Callable[[Any], float]] = {"tasks": list(GLUE_TASKS).index, "lr": float}
        for name, place in places.items():
            with suppress(KeyError, TypeError, ValueError):  # what has no place is reported later
                found[name] = sorted(found[name], key=place)
        return found

    def in_cell(self, cell: CellParts) -> Glue:
        """Return the canonical spelling: defaults that depend on the cell filled in, fields without effect unset."""
        read = any(not GLUE_TASKS[task].embedded for task in self.tasks)
        return replace(
            self,
            data=self.data if read else Glue().data,
            precision=self.precision or cell.precision,
            seed=cell.seed if self.seed is None else self.seed,
        )

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.data:
            yield Problem(("data",), f"is empty; name {GLUE_HUB} or a folder")
        for name in ("tasks", "lr"):
            own: Sequence[Any] = getattr(self, name)
            if not own:
                yield Problem((name,), "is empty")
            for one in sorted({one for one in own if own.count(one) > 1}):
                yield Problem((name,), f"names {one} more than once")

    def problems_in(self, cell: CellParts) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        if not isinstance(cell.objective, Masked):
            kind = cell.objective.kind
            yield Problem((), f"needs a network whose tokens see the whole row (objective: mlm), not one of {kind}")
        family = cell.model.family
        if family.positions == "learned" and family.context < self.length:
            yield Problem(("length",), f"{self.length} is longer than the {family.context} positions of the network")

    def inputs(self) -> Iterator[Input]:
        """Yield the files of the tasks."""
        yield Input(Glue(data=self.data, tasks=self.tasks), "gpas_cli.data.glue:unreadable_reason")

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the names of the scores, the last of which is the average if there are several tasks, or of the tasks
        whose best rate is reported."""
        scores = tuple(score for task in self.tasks for score in GLUE_TASKS[task].held_out)
        average = (_AVERAGE,) if len(self.tasks) > 1 else ()
        return {_ACCURACY: (*scores, *average), _RATE: self.tasks}.get(metric, ())

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of one epoch of the embedded tasks, at two rates."""
        few = {"length": 4 * tiny.row, "epochs": 1, "batch": tiny.batch, "limit": 8}
        return {"tasks": ["ordered", "halves"], **few, "lr": list(self.lr[:2])}

    def optim(self, lr: float, rows: int) -> Optim:
        """Return the recipe at one learning rate on `rows` examples; a last update takes rows of a further epoch."""
        steps = -(-self.epochs * rows // self.batch)
        return Optim(
            lr=lr, warmup=int(self.warmup * steps), steps=steps, batch=self.batch, schedule="constant",
            weight_decay=self.weight_decay, clip=self.clip,
        )  # fmt: skip

    def metrics(self, scores: Mapping[tuple[str, float], float]) -> dict[str, float]:
        """Return the accuracies in percent, of each task at the rate whose accuracy on its first split is the best, and
        these rates.

        scores: (name of a score, learning rate) -> accuracy, a fraction. The average is that over tasks, with the first
        split of each. Of equal rates the smallest counts.
        """
        found: dict[str, float] = {}
        rates: dict[str, float] = {}
        for task in self.tasks:
            first = next(iter(GLUE_TASKS[task].held_out))
            rates[task] = max(
                (rate for rate in self.lr if (first, rate) in scores), key=lambda rate: scores[first, rate]
            )
            found |= {f"{_ACCURACY}/{name}": 100 * scores[name, rates[task]] for name in GLUE_TASKS[task].held_out}
        if len(self.tasks) > 1:
            means = [found[f"{_ACCURACY}/{task}"] for task in self.tasks]
            found[f"{_ACCURACY}/{_AVERAGE}"] = sum(means) / len(means)
        return found | {f"{_RATE}/{task}": rate for task, rate in rates.items()}


def best_scores(label: str, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the task and the metric of each score that the accuracy `label` is the mean of: the scores at the best
    rates, which `metrics` has; for the average over tasks, those of their first splits."""
    rates = {task: rate for name, rate in metrics.items() if (task := name.removeprefix(f"{_RATE}/")) != name}
    names = {name: rate for task, rate in rates.items() for name in GLUE_TASKS[task].held_out}
    first = [next(iter(GLUE_TASKS[task].held_out)) for task in rates]
    return [(name, f"acc@{names[name]:g}") for name in (first if label == _AVERAGE else (label,)) if name in names]


def glue_tokens(cell: CellParts, cadence: object, resumed: int) -> float:
    """Return the cost of all tasks at all rates in tokens: those to train, and a third of those to evaluate."""
    spec: Glue = cell.parameters("glue")
    total = 0.0
    for task in map(GLUE_TASKS.__getitem__, spec.tasks):
        trained, evaluated = (min(n, spec.limit or n) for n in (task.examples, task.evaluated))
        once = spec.epochs * trained + evaluated / EVALUATED_PER_TRAINED
        total += len(spec.lr) * once * min(task.tokens, spec.length)
    return total
