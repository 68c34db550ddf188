"""The stage `glue`: finetuning on tasks of GLUE with a new head (RaPTr, appendix B.1), their columns and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, MOST_DROPPED, MOST_SEED, PRECISIONS, CellParts
from gpas_cli.spec.objective import Masked
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import setting
from gpas_cli.spec.section import Input, Section, Tiny
from gpas_cli.spec.stage import Metric, StageKind
from gpas_cli.structure import Frozen

HUB = "nyu-mll/glue"
REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
_AVERAGE = "average"
_ACCURACY, _RATE = "glue_accuracy", "glue_lr"  # the metrics that are reported for each task
TRAIN = "train"
_PAPER = ("mnli", "qnli", "sst2")


class Task(Frozen):
    """A task of classification."""

    name: str
    texts: tuple[str, ...]  # the columns of one or two texts
    labels: tuple[str, ...]  # the names of the labels 0, 1, ...
    examples: int  # those to train on, to estimate the cost
    evaluated: int  # those to evaluate on, to estimate the cost
    tokens: int  # of one example, to estimate the cost
    titles: Mapping[str, str] = field(default_factory=dict)  # of the scores, in tables
    embedded: bool = False  # made from the standard library, rather than read from the data
    splits: Mapping[str, str] = field(default_factory=dict)  # see `held_out`

    @property
    def held_out(self) -> Mapping[str, str]:
        """The splits that it is scored on, by the name of the score; the first decides between learning rates."""
        return self.splits or {self.name: "validation"}


# Columns, labels and splits as in nyu-mll/glue.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "mnli",
            texts=("premise", "hypothesis"),
            labels=("entailment", "neutral", "contradiction"),
            examples=392_702,
            evaluated=19_647,
            tokens=40,
            titles={"mnli": "MNLI", "mnli_mm": "MNLI, mismatched"},
            splits={"mnli": "validation_matched", "mnli_mm": "validation_mismatched"},
        ),
        Task("qnli", ("question", "sentence"), ("entailment", "not_entailment"), 104_743, 5_463, 50, {"qnli": "QNLI"}),
        Task("sst2", ("sentence",), ("negative", "positive"), 67_349, 872, 14, {"sst2": "SST-2"}),
        Task("ordered", ("line",), ("ordered", "shuffled"), 1_000, 1_200, 30, embedded=True),
        Task("halves", ("left", "right"), ("ordered", "shuffled"), 1_000, 1_200, 30, embedded=True),
    )
}


def _task_problem(name: str) -> str:
    return "" if name in TASKS else f"unknown task '{name}'; {nearest(name, TASKS)}"


class Glue(Frozen, Section, kw_only=True):
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

    data: str = setting(HUB)
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
        places: dict[str, Callable[[Any], float]] = {"tasks": list(TASKS).index, "lr": float}
        for name, place in places.items():
            with suppress(KeyError, TypeError, ValueError):  # what has no place is reported later
                found[name] = sorted(found[name], key=place)
        return found

    def in_cell(self, cell: CellParts) -> Glue:
        """Return the canonical spelling: defaults that depend on the cell filled in, fields without effect unset."""
        read = any(not TASKS[task].embedded for task in self.tasks)
        return replace(
            self,
            data=self.data if read else Glue().data,
            precision=self.precision or cell.precision,
            seed=cell.seed if self.seed is None else self.seed,
        )

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.data:
            yield Problem(("data",), f"is empty; name {HUB} or a folder")
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
        yield Input(Glue(data=self.data, tasks=self.tasks), "gpas_cli.extensions.glue.examples:unreadable_reason")

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the names of the scores, the last of which is the average if there are several tasks, or of the tasks
        whose best rate is reported."""
        scores = tuple(score for task in self.tasks for score in TASKS[task].held_out)
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
            first = next(iter(TASKS[task].held_out))
            rates[task] = max(
                (rate for rate in self.lr if (first, rate) in scores), key=lambda rate: scores[first, rate]
            )
            found |= {f"{_ACCURACY}/{name}": 100 * scores[name, rates[task]] for name in TASKS[task].held_out}
        if len(self.tasks) > 1:
            means = [found[f"{_ACCURACY}/{task}"] for task in self.tasks]
            found[f"{_ACCURACY}/{_AVERAGE}"] = sum(means) / len(means)
        return found | {f"{_RATE}/{task}": rate for task, rate in rates.items()}


def best_scores(label: str, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the task and the metric of each score that the accuracy `label` is the mean of: the scores at the best
    rates, which `metrics` has; for the average over tasks, those of their first splits."""
    rates = {task: rate for name, rate in metrics.items() if (task := name.removeprefix(f"{_RATE}/")) != name}
    names = {name: rate for task, rate in rates.items() for name in TASKS[task].held_out}
    first = [next(iter(TASKS[task].held_out)) for task in rates]
    return [(name, f"acc@{names[name]:g}") for name in (first if label == _AVERAGE else (label,)) if name in names]


def _tokens(cell: CellParts, cadence: object, resumed: int) -> float:
    """Return the cost of all tasks at all rates in tokens: those to train, and a third of those to evaluate."""
    spec: Glue = cell.parameters("glue")
    total = 0.0
    for task in map(TASKS.__getitem__, spec.tasks):
        trained, evaluated = (min(n, spec.limit or n) for n in (task.examples, task.evaluated))
        once = spec.epochs * trained + evaluated / EVALUATED_PER_TRAINED
        total += len(spec.lr) * once * min(task.tokens, spec.length)
    return total


GLUE = StageKind(
    name="glue",
    parameters=Glue,
    columns="task",
    before="downstream",
    title="its finetuning of {cell} on tasks",
    titles={name: title for task in TASKS.values() for name, title in task.titles.items()},
    cost=_tokens,
    runner="gpas_cli.extensions.glue.finetuning:run",
    metrics=(
        Metric(
            _ACCURACY,
            "accuracy after finetuning on each task",
            better="higher",
            unit="%",
            by_task=True,
            kind="accuracy",
            parts=best_scores,
        ),
        Metric(_RATE, "learning rate with the best accuracy", better="", digits=6, by_task=True),
        Metric("glue_seconds", "finetuning time on all tasks", digits=0, unit="s"),
    ),
)
