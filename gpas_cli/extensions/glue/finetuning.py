"""Finetune a trained network on tasks of GLUE, each at several learning rates from the same weights, and score it.

A task is a training like any other (`train.training`): the network's head is replaced by one with a row for each label,
and the label is the target of the first token. Its checkpoints lie in a folder of its own and are deleted once its
scores are recorded; a later attempt trains what has no score yet, from the newest checkpoint on. The updates are
counted through all trainings.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gpas_cli import __version__
from gpas_cli.checkpoints import short_name
from gpas_cli.data.loader import MadeBatches, RowOrder
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.downstream import standard_error
from gpas_cli.events import Checkpoint, Emit, Event, Outcome, Phase, Score, Spike, Step, Warned
from gpas_cli.extensions.glue.examples import LabelledRows, TaskRows, prepare_task
from gpas_cli.extensions.glue.stage import Glue
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.state.outputs import recorded_events
from gpas_cli.structure import Frozen
from gpas_cli.train.finetune import start_from, with_recipe
from gpas_cli.train.loop import Loop, micro_batches
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.parallel import ALONE
from gpas_cli.train.training import Evaluator, Execution, RunPaths, TrainingInputs, run_training
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.training import all_recipients, execution, run_paths

_KIND = "glue"
_HARNESS = f"gpas_cli {__version__}, finetuned"
_HEAD_STD = 0.02  # of the new head, as in BERT's own code
_DIGITS = 12  # of a fingerprint
_NEVER = 100_000_000


class _Training(Frozen):
    """One task at one learning rate. first: the updates of the trainings before it, of `total` in all."""

    rows: TaskRows
    rate: float
    first: int
    total: int

    @property
    def name(self) -> str:
        return f"{self.rows.task.name}-{self.rate:g}"

    def scores(self) -> dict[str, tuple[str, str, str]]:
        """Return the task, the metric and the version of the examples under which each score is recorded, by name."""
        train = self.rows.identity[:_DIGITS]
        return {
            name: (name, f"acc@{self.rate:g}", f"{train} {rows.fingerprint[:_DIGITS]}")
            for name, rows in self.rows.held_out.items()
        }

    def shown(self, event: Event) -> Event | None:
        """Return an event of this training as one of the stage, None for what the stage does not record."""
        if isinstance(event, Step):
            return replace(event, step=self.first + event.step, steps=self.total)
        if isinstance(event, Checkpoint | Spike):
            return replace(event, step=self.first + event.step)
        if isinstance(event, Phase):
            resumed = self.first + event.resumed_from if event.resumed_from else None
            return replace(event, detail=event.detail or self.name, resumed_from=resumed)
        return event if isinstance(event, Warned) else None


def run(stage: StageContext) -> Outcome:
    """Finetune the network on each task at each rate that no earlier attempt has scored."""
    pretrained = stage.trained_checkpoint()
    with all_recipients(stage) as emit:
        return finetune_on_tasks(
            stage.cell,
            pretrained,
            short_name(pretrained),
            stage.tokenizer(),
            run_paths(stage),
            emit,
            execution(stage),
            recorded_events(stage.runs, stage.attempt.key, Score),
        )


def finetune_on_tasks(
    cell: Cell,
    pretrained: Path,
    checkpoint: str,
    tokenizer: Tokenizer,
    paths: RunPaths,
    emit: Emit,
    how: Execution,
    earlier: Iterable[Score] = (),
) -> Outcome:
    """Finetune the network of `pretrained`, called `checkpoint` in scores, on each task at each rate, and score it.

    earlier: scores that earlier attempts recorded; what has them with the same data is not trained again. A rate at
    which the training diverges has no score. Raises DataError if the data of a
    task are unavailable or invalid, before anything is trained, and GpasError as `run_training` does.
    """
    began = time.perf_counter()
    spec: Glue = cell.parameters(_KIND)
    known = {(one.task, one.metric, one.task_version): one for one in earlier if one.checkpoint == checkpoint}
    trainings = list(_trainings(spec, tokenizer, paths.root, emit))
    scores: dict[tuple[str, float], float] = {}
    for training in trainings:
        wanted = training.scores()
        if not known.keys() >= set(wanted.values()):
            outcome, found = _run(cell, training, pretrained, checkpoint, paths, emit, how)
            if outcome.outcome == "diverged":
                emit(Warned(f"{training.name} diverged and has no score: {outcome.cause}"))
                continue
            if outcome.outcome != "done":
                return replace(outcome, step=training.first + outcome.step, metrics={})
            known |= {(one.task, one.metric, one.task_version): one for one in found}
        scores |= {(name, training.rate): float(known[place].value) for name, place in wanted.items()}
    total = trainings[-1].total
    if untrained := [task for task in spec.tasks if not any((task, rate) in scores for rate in spec.lr)]:
        return Outcome("diverged", total, f"{', '.join(untrained)}: the training diverged at every learning rate")
    return Outcome("done", total, metrics={**spec.metrics(scores), "glue_seconds": time.perf_counter() - began})


def _trainings(spec: Glue, tokenizer: Tokenizer, root: Path, emit: Emit) -> Iterator[_Training]:
    rows = [
        prepare_task(name, spec, tokenizer, root, lambda what: emit(Phase("tokenising", what))) for name in spec.tasks
    ]
    for own in rows:
        if own.train.cut:
            emit(
                Warned(f"{own.task.name}: {own.train.cut:,} examples are longer than length: {spec.length} and are cut")
            )
    updates = [(own, rate, spec.optim(rate, len(own.train)).steps) for own in rows for rate in spec.lr]
    total = sum(steps for _, _, steps in updates)
    first = 0
    for own, rate, steps in updates:
        yield _Training(own, rate, first, total)
        first += steps


def _run(
    cell: Cell, training: _Training, pretrained: Path, checkpoint: str, paths: RunPaths, emit: Emit, how: Execution
) -> tuple[Outcome, list[Score]]:
    """Run one training, or the rest of it; return its outcome, and its scores if it is done, after recording them."""
    spec: Glue = cell.parameters(_KIND)
    rows = training.rows.train
    recipe = with_recipe(cell, spec, spec.optim(training.rate, len(rows)), "pad")
    own = next(stage.key for stage in cell.stages if stage.kind == _KIND)
    scorer = _Scorer(training, spec.batch, checkpoint)
    inputs = TrainingInputs(
        recipe, f"{own} {training.name}", training.rows.identity,
        MadeBatches(RowOrder(len(rows), spec.batch, recipe.seed), rows.batch), scorer,
        start=lambda network: _start(cell, pretrained, network, len(training.rows.task.labels), recipe.seed),
    )  # fmt: skip
    own_paths = replace(
        paths, checkpoints=paths.checkpoints / training.name, earlier=[path / training.name for path in paths.earlier]
    )

    def emit_shown(event: Event) -> None:
        if shown := training.shown(event):
            emit(shown)

    seldom = replace(how, cadence=replace(how.cadence, eval_every=_NEVER))
    outcome = run_training(inputs, own_paths, emit_shown, seldom)
    if outcome.outcome == "done":
        for score in scorer.scores:
            emit(score)
        for folder in (own_paths.checkpoints, *own_paths.earlier):
            shutil.rmtree(folder, ignore_errors=True)
    return outcome, scorer.scores


def _start(cell: Cell, pretrained: Path, network: Llama, labels: int, seed: int) -> None:
    """Load the pretrained weights and put a head with a row for each label in place of the one for tokens."""
    start_from(cell.before(_KIND), pretrained, network, ALONE)
    like = network.model.embed_tokens.weight
    weight = torch.randn(labels, like.shape[1], generator=torch.Generator().manual_seed(seed)) * _HEAD_STD
    network.lm_head = nn.Linear(like.shape[1], labels, bias=False)
    network.lm_head.weight = nn.Parameter(weight.to(like))
    network.head_transform = nn.Identity()


@dataclass
class _Scorer(Evaluator):
    """Scores a training after its last update. `scores` has the result."""

    training: _Training
    batch: int
    checkpoint: str
    scores: list[Score] = field(default_factory=list)

    def measure(self, loop: Loop) -> dict[str, float]:
        """Return the accuracy on each held-out split."""
        self.scores = []
        for name, (task, metric, version) in self.training.scores().items():
            hits = _hits(loop, self.training.rows.held_out[name], self.batch)
            share = sum(hits) / len(hits)
            error = standard_error(hits)
            self.scores.append(
                Score(task, metric, share, len(hits), error, version, _HARNESS, checkpoint=self.checkpoint)
            )
        return {score.task: float(score.value) for score in self.scores}

    def metrics(self, scores: dict[str, float]) -> dict[str, float]:
        """Return nothing: the stage reports what all trainings have scored."""
        return {}


@torch.no_grad()
def _hits(loop: Loop, rows: LabelledRows, batch: int) -> list[bool]:
    """Return whether the label with the largest logit is the right one, of each row."""
    network, device = loop.network, loop.precision.device
    network.eval()
    hits: list[bool] = []
    for start in range(0, len(rows), batch):
        examples = rows.batch(np.arange(start, min(start + batch, len(rows))))
        for part, _ in micro_batches(examples.targets, loop.micro_batch):
            own = DeviceRows.of_batch(examples, part, device)
            assert own.targeted is not None
            with loop.precision.compute():
                states, head = network(own.inputs, own.packing, lambda *both: both, own.visible)
            chosen = F.linear(own.targeted.join(states)[0].float(), head.float()).argmax(-1)
            hits += (chosen.cpu().numpy() == examples.targets[part, 0]).tolist()
    network.train()
    return hits
