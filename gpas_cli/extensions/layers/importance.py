"""Layer importance: what a network loses without one of its layers, in nats per token and in accuracy on downstream
tasks (GPAS, section 5.5, which uses the accuracy), and how far each layer turns the stream (`AngularDistance`).

Measure the accuracy on downstream tasks of a network without each of its layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate.downstream import task_scorer, unscored
from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.evaluate.likelihood import Scorer, ScoringStopped, never
from gpas_cli.evaluate.tasks import NothingFits, TaskScorer, TaskUnavailable
from gpas_cli.events import Emit, Layers, Outcome, Phase, Removal, RemovalScore, Step, Stop, Warned, silent
from gpas_cli.extensions.layers.blocks import WHOLE, Removed
from gpas_cli.extensions.layers.removal import ANGULAR, RemovalLosses, Subject, by_layer, key_of
from gpas_cli.extensions.layers.stage import Importance
from gpas_cli.spec.downstream import SKIPPED, Downstream, measure_of, skipped_note
from gpas_cli.train.parallel import ALONE, World

_SCORES = "importance_score"
_SAFE_POINTS = 1.0  # of accuracy: a layer whose removal costs less is safe to remove


class _RemovalScores:
    """The scores without each layer at the tasks of a cell's importance, by layer and task.

    unavailable: the tasks that could not be scored, and why. skipped: the tasks with questions left out, and how many.
    """

    def __init__(
        self,
        subject: Subject,
        section: Importance,
        root: Path,
        wanted: Callable[[], list[Removed]],
        earlier: Iterable[Removal | RemovalScore],
        stop: Callable[[], bool],
    ):
        """Take over the scores of `earlier` of the same checkpoint. `wanted` returns what is left out; `stop` is the
        scorer's."""
        self.blocks = subject.blocks
        self.section: Downstream = section.downstream()
        if isinstance(subject.network, ForeignNetwork):
            subject.network.require_head(self.section.tasks)
        longest = min(section.max_length, subject.positions or section.max_length)
        self.scorer = Scorer(subject.network, subject.precision, max_length=longest, stop=stop)
        self.tokenizer = subject.tokenizer
        self.root = root
        self.checkpoint = subject.name
        self.wanted = wanted
        self._read: dict[str, TaskScorer] = {}  # by the task that is being scored
        self.scores: dict[tuple[int, str, str], RemovalScore] = {}
        self.unavailable: dict[str, GpasError] = {}
        self.skipped: dict[str, str] = {}
        for score in earlier:
            if isinstance(score, RemovalScore) and score.checkpoint == self.checkpoint:
                self._add(score)

    def _add(self, score: RemovalScore) -> None:
        key = (*key_of(score.layer, score.removed), score.task)
        self.scores.pop(key, None)  # the newest score is the last one
        self.scores[key] = score

    @property
    def total(self) -> int:
        """The number of scores that the section asks for."""
        return len(self.section.tasks) * len(self.wanted())

    def missing(self) -> list[tuple[Removed, str]]:
        """Return what is left out and the task of each missing score whose task is available: task by task, because
        the evaluation without a layer starts from what that without the layer before has kept."""
        newest = {task: score for (_, _, task), score in self.scores.items()}
        return [
            (removed, task)
            for task in self.section.tasks
            for removed in self.wanted()
            if task not in self.unavailable and not self._known(removed, newest.get(task), task)
        ]

    def _known(self, removed: Removed, newest: RemovalScore | None, task: str) -> bool:
        """Return whether there is a score without `removed`, of the version of the task that was scored last."""
        mine = self.scores.get((*key_of(removed.first, removed.label), task))
        return mine is not None and newest is not None and _version(mine) == _version(newest)

    def score(self, removed: Removed, task: str) -> RemovalScore | None:
        """Score the network without `removed` at `task`; None if the task is unavailable. Raises ScoringStopped."""
        try:
            if task not in self._read:
                self._read = {task: task_scorer(task, self.section, self.scorer, self.tokenizer, self.root)}
            with self.blocks.without(removed, task):
                found = self._read[task]()
        except (TaskUnavailable, DataError) as error:
            self.unavailable[task] = error
            return None
        (mine,) = (score for score in found if score.metric == measure_of(task))
        score = RemovalScore(
            removed.first, task, mine.value, mine.examples, mine.task_version, mine.harness, self.checkpoint,
            mine.stderr, removed.label or None,
        )  # fmt: skip
        self._add(score)
        for one in found:
            if one.metric == SKIPPED:
                self.skipped[task] = skipped_note(task, one.value, one.examples)
        return score

    def series(self) -> dict[str, list[float | None]]:
        """Return the drop of the accuracy without each layer, in percentage points: the mean over tasks, and each task.

        Tasks that are unavailable are left out; without one of them there is no mean.
        """
        tasks = [task for task in self.section.tasks if task not in self.unavailable]
        drops = {task: self._drops(task) for task in tasks}
        by_task = {f"{_SCORES}/{task}": by_layer(drop, len(self.blocks))[""] for task, drop in drops.items()}
        if self.unavailable or not tasks:
            return by_task
        means = {one: sum(drop[one] for drop in drops.values()) / len(drops) for one in self.wanted() if one != WHOLE}
        series = by_layer(means, len(self.blocks))
        return {"_".join(filter(None, (_SCORES, name))): values for name, values in series.items()} | by_task

    def _drops(self, task: str) -> dict[Removed, float]:
        values = {
            removed: 100 * self.scores[*key_of(removed.first, removed.label), task].value for removed in self.wanted()
        }
        return {removed: values[WHOLE] - value for removed, value in values.items() if removed != WHOLE}

    def accuracy(self) -> float:
        """Return the mean accuracy of the whole network in percent."""
        values = [100 * self.scores[*key_of(0, ""), task].value for task in self.section.tasks]
        return sum(values) / len(values)


def _version(score: RemovalScore) -> tuple[str, str, int]:
    return score.task_version, score.harness, score.examples


def measure(
    subject: Subject,
    section: Importance,
    root: Path,
    emit: Emit,
    stop: Stop,
    world: World = ALONE,
    earlier: Iterable[Removal | RemovalScore] = (),
) -> Outcome:
    """Measure a network whole and without each layer, as the section `importance` asks, and report the differences by
    layer. Collective.

    earlier: the measurements of earlier attempts; those of this checkpoint and text are not repeated.
    """
    emit = emit if world.leads else silent
    began = time.perf_counter()
    if section.parts and subject.blocks.fault:
        raise GpasError(f"importance.parts: {subject.blocks.fault}")
    if too_many := [n for n in section.groups if n >= len(subject.blocks)]:
        raise GpasError(f"importance.groups: {too_many[0]} of {len(subject.blocks)} layers cannot be left out")
    known = world.broadcast(list(earlier))
    losses = RemovalLosses(subject, section, world, known)
    # Several processes score the same tasks, and can stop only together.
    inside = (lambda: stop() is not None) if world.alone else never
    scores = _RemovalScores(subject, section, root, losses.wanted, known, inside)
    attempt = _Attempt(losses, scores, emit, stop, world)
    emit(Phase("removing layers"))
    leave = attempt.measure_losses()
    subject.record_verified(emit)
    leave = leave or attempt.measure_scores()
    if leave:
        return Outcome(leave, attempt.done)
    series = {**losses.series(), **scores.series()}
    emit(Layers(subject.step, series))
    metrics = {**_metrics(series), "seconds": time.perf_counter() - began}
    if losses.whole.loss is not None:
        metrics[subject.loss] = losses.whole.loss
    if _SCORES in series:
        metrics["mean_accuracy"] = scores.accuracy()
    # Another attempt may find the documents of a task, but not choices that fit.
    later = any(not isinstance(error, NothingFits) for error in scores.unavailable.values())
    cause = unscored(scores.unavailable, len(section.tasks))
    return Outcome("interrupted" if later else "done", attempt.done, cause, metrics)


def _metrics(series: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    angles = [value for value in series[ANGULAR] if value is not None]
    found = {"mean_angular_distance": sum(angles) / len(angles)}
    if "importance" in series:
        found |= _mean_and_least("importance", series["importance"])
    if _SCORES in series:
        drops = series[_SCORES]
        found |= _mean_and_least("score_drop", drops)
        found["safe_layers"] = 100 * sum(drop is not None and drop < _SAFE_POINTS for drop in drops) / len(drops)
    return found


def _mean_and_least(name: str, values: Sequence[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {f"mean_{name}": sum(known) / len(known), f"least_{name}": min(known)}


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
        return sum(bool(layer) for layer, _ in self.losses.removals) + len(self.scores.scores)

    def measure_losses(self) -> str | None:
        """Measure the missing losses. Return the outcome to stop with, None at the end."""
        while missing := self.losses.missing():
            if leave := self.world.agree(self.stop()):
                return leave
            removal = self.losses.measure(missing[0])
            self.emit(removal)
            self._report(removal.loss)
        return None

    def measure_scores(self) -> str | None:
        """Measure the missing scores. Return the outcome to stop with, None at the end."""
        while missing := self.scores.missing():
            if leave := self.world.agree(self.stop()):
                return leave
            removed, task = missing[0]
            try:
                score = self.scores.score(removed, task)
            except ScoringStopped:
                return self.stop() or "interrupted"
            if score is None:
                self.emit(Warned(f"{task} is not scored: {self.scores.unavailable[task]}"))
            else:
                self.emit(score)
                if removed == WHOLE and task in self.scores.skipped:
                    self.emit(Warned(self.scores.skipped[task]))
                self._report(None)
        return None

    def _report(self, loss: float | None) -> None:
        if self.done:
            self.emit(Step(self.done, loss=loss, steps=len(self.losses.wanted()) - 1 + self.scores.total))
