"""Layer importance: what a network loses without one of its layers, in nats per token and in accuracy on downstream
tasks (GPAS, section 5.5, which uses the accuracy), and how far each layer turns the stream (`AngularDistance`).

Measure the accuracy on downstream tasks of a network without each of its layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli import words
from gpas_cli.checkpoints import short_name
from gpas_cli.data.prepare import Corpus
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate.downstream import score_task
from gpas_cli.evaluate.harness import DownstreamMissing
from gpas_cli.evaluate.likelihood import Scorer, ScoringStopped, never
from gpas_cli.evaluate.removal import ANGULAR, WHOLE, RemovalLosses, without_layer
from gpas_cli.evaluate.task_score import NothingFits, TaskUnavailable
from gpas_cli.events import Emit, Layers, Outcome, Phase, Removal, RemovalScore, Step, Stop, Warned, silent
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.downstream import SKIPPED, Downstream, measure_of, skipped_note
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.run import record_verified
from gpas_cli.train.trained import TrainedNetwork, load_trained

_SCORES = "importance_score"


class _RemovalScores:
    """The scores without each layer at the tasks of a cell's importance, by layer and task.

    unavailable: the tasks that could not be scored, and why. skipped: the tasks with questions left out, and how many.
    """

    def __init__(
        self,
        cell: Cell,
        loaded: TrainedNetwork,
        tokenizer: Tokenizer,
        root: Path,
        checkpoint: str,
        earlier: Iterable[Removal | RemovalScore],
    ):
        """Take over the scores of `earlier` of the same checkpoint."""
        self.network = loaded.network
        self.section: Downstream = cell.parameters("importance").downstream()
        length = cell.model.family.row_length(self.section.max_length)
        self.scorer = Scorer(loaded.network, loaded.precision, max_length=length)
        self.tokenizer = tokenizer
        self.root = root
        self.checkpoint = checkpoint
        self.scores: dict[tuple[int, str], RemovalScore] = {}
        self.unavailable: dict[str, GpasError] = {}
        self.skipped: dict[str, str] = {}
        for score in earlier:
            if isinstance(score, RemovalScore) and score.checkpoint == checkpoint:
                self._add(score)

    def _add(self, score: RemovalScore) -> None:
        self.scores.pop((score.layer, score.task), None)  # the newest score is the last one
        self.scores[score.layer, score.task] = score

    @property
    def total(self) -> int:
        """The number of scores that the section asks for."""
        return len(self.section.tasks) * (len(self.network.model.layers) + 1)

    def missing(self) -> list[tuple[int, str]]:
        """Return layer and task of each missing score whose task is available, WHOLE first."""
        newest = {task: score for (_, task), score in self.scores.items()}
        return [
            (layer, task)
            for layer in range(len(self.network.model.layers) + 1)
            for task in self.section.tasks
            if task not in self.unavailable and not self._known(layer, newest.get(task), task)
        ]

    def _known(self, layer: int, newest: RemovalScore | None, task: str) -> bool:
        """Return whether there is a score without `layer`, of the version of the task that was scored last."""
        mine = self.scores.get((layer, task))
        return mine is not None and newest is not None and _version(mine) == _version(newest)

    def score(self, layer: int, task: str, stop: Callable[[], bool]) -> RemovalScore | None:
        """Score the network without `layer` at `task`; None if the task is unavailable. Raises ScoringStopped."""
        try:
            with without_layer(self.network, layer):
                found = score_task(task, self.section, self.scorer, self.tokenizer, self.root, stop=stop)
        except (TaskUnavailable, DownstreamMissing, DataError) as error:
            self.unavailable[task] = error
            return None
        (mine,) = (score for score in found if score.metric == measure_of(task))
        score = RemovalScore(
            layer, task, mine.value, mine.examples, mine.task_version, mine.harness, self.checkpoint, mine.stderr
        )
        self._add(score)
        for one in found:
            if one.metric == SKIPPED:
                self.skipped[task] = skipped_note(task, one.value, one.examples)
        return score

    def series(self) -> dict[str, list[float]]:
        """Return the drop of the accuracy without each layer, in percentage points: the mean over tasks, and each task.

        Tasks that are unavailable are left out; without one of them there is no mean.
        """
        tasks = [task for task in self.section.tasks if task not in self.unavailable]
        drops = {task: self._drops(task) for task in tasks}
        by_task = {f"{_SCORES}/{task}": drop for task, drop in drops.items()}
        if self.unavailable or not tasks:
            return by_task
        return {_SCORES: [sum(layer) / len(layer) for layer in zip(*drops.values(), strict=True)], **by_task}

    def _drops(self, task: str) -> list[float]:
        values = [100 * self.scores[layer, task].value for layer in range(len(self.network.model.layers) + 1)]
        return [values[WHOLE] - value for value in values[1:]]

    def accuracy(self) -> float:
        """Return the mean accuracy of the whole network in percent."""
        values = [100 * self.scores[WHOLE, task].value for task in self.section.tasks]
        return sum(values) / len(values)


def _version(score: RemovalScore) -> tuple[str, str, int]:
    return score.task_version, score.harness, score.examples


def measure(
    cell: Cell,
    trained: Path,
    corpus: Corpus,
    root: Path,
    emit: Emit,
    stop: Stop,
    world: World = ALONE,
    earlier: Iterable[Removal | RemovalScore] = (),
) -> Outcome:
    """Measure the trained network whole and without each layer, and report the differences by layer. Collective.

    `trained` is a checkpoint of the cell's last training stage, `corpus` the text that it was trained on, `earlier` the
    measurements of earlier attempts; those of this checkpoint and text are not repeated. Raises DamagedCheckpoint if
    the checkpoint is damaged.
    """
    emit = emit if world.leads else silent
    began = time.perf_counter()
    known = world.broadcast(list(earlier))
    loaded = load_trained(cell, trained, world)
    checkpoint = short_name(trained)
    losses = RemovalLosses(cell, loaded, corpus, world, checkpoint, known)
    scores = _RemovalScores(cell, loaded, corpus.tokenizer, root, checkpoint, known)
    attempt = _Attempt(losses, scores, emit, stop, world)
    emit(Phase("removing layers"))
    leave = attempt.measure_losses()
    record_verified(corpus, emit)
    leave = leave or attempt.measure_scores()
    if leave:
        return Outcome(leave, attempt.done)
    series = {**losses.series(), **scores.series()}
    emit(Layers(loaded.position.step, series))
    whole = f"{cell.objective.scored_as}_loss".removeprefix("_")
    metrics = {whole: losses.removals[WHOLE].loss, **_metrics(series), "seconds": time.perf_counter() - began}
    if _SCORES in series:
        metrics["mean_accuracy"] = scores.accuracy()
    # Another attempt may find the documents of a task, but not choices that fit.
    later = any(not isinstance(error, NothingFits) for error in scores.unavailable.values())
    return Outcome("interrupted" if later else "done", attempt.done, _cause(scores), metrics)


def _metrics(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found = {
        **_mean_and_least("importance", series["importance"]),
        "mean_angular_distance": sum(series[ANGULAR]) / len(series[ANGULAR]),
    }
    if _SCORES in series:
        found |= _mean_and_least("score_drop", series[_SCORES])
    return found


def _mean_and_least(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"mean_{name}": sum(values) / len(values), f"least_{name}": min(values)}


def _cause(scores: _RemovalScores) -> str:
    """Return which tasks could not be scored, and why; "" if all were."""
    tasks = scores.unavailable
    if not tasks:
        return ""
    reasons = "; ".join(dict.fromkeys(map(str, tasks.values())))
    asked = words.count(len(scores.section.tasks), "task")
    return f"{len(tasks)} of {asked} not scored ({words.listed(list(tasks), len(tasks))}): {reasons}"


@dataclass
class _Attempt:
    """The measurements that an attempt still has to do."""

    losses: RemovalLosses
    scores: _RemovalScores
    emit: Emit
    stop: Stop
    world: World

    @property
    def done(self) -> int:
        """The number of measurements with a removal or a task, by all attempts."""
        return sum(layer != WHOLE for layer in self.losses.removals) + len(self.scores.scores)

    def measure_losses(self) -> str | None:
        """Measure the missing losses. Return the outcome to stop with, None at the end."""
        for layer in self.losses.missing():
            if leave := self.world.agree(self.stop()):
                return leave
            removal = self.losses.measure(layer)
            self.emit(removal)
            self._report(removal.loss)
        return None

    def measure_scores(self) -> str | None:
        """Measure the missing scores. Return the outcome to stop with, None at the end."""
        # Several processes score the same tasks, and can stop only together.
        inside = (lambda: self.stop() is not None) if self.world.alone else never
        while missing := self.scores.missing():
            if leave := self.world.agree(self.stop()):
                return leave
            layer, task = missing[0]
            try:
                score = self.scores.score(layer, task, inside)
            except ScoringStopped:
                return self.stop() or "interrupted"
            if score is None:
                self.emit(Warned(f"{task} is not scored: {self.scores.unavailable[task]}"))
            else:
                self.emit(score)
                if layer == WHOLE and task in self.scores.skipped:
                    self.emit(Warned(self.scores.skipped[task]))
                self._report(None)
        return None

    def _report(self, loss: float | None) -> None:
        if self.done:
            layers = len(self.losses.network.model.layers)
            self.emit(Step(self.done, loss=loss, steps=layers + self.scores.total))
