"""Layer importance: what a network loses without one of its layers, in nats per token and in accuracy on downstream
tasks (GPAS, section 5.5, which uses the accuracy), and how far each layer turns the stream (`evaluate.angular`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli import words
from gpas_cli.checkpoints import short_name
from gpas_cli.data.prepare import Corpus
from gpas_cli.evaluate import angular, removal_scores
from gpas_cli.evaluate.likelihood import ScoringStopped, never
from gpas_cli.evaluate.removal import WHOLE, RemovalLosses
from gpas_cli.evaluate.removal_scores import RemovalScores
from gpas_cli.evaluate.task_score import NothingFits
from gpas_cli.events import Emit, Layers, Outcome, Phase, Removal, RemovalScore, Step, Stop, Warned, silent
from gpas_cli.spec.cell import Cell
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.run import record_verified
from gpas_cli.train.trained import load_trained


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
    losses = RemovalLosses.prepare(
        cell, loaded, corpus, world, checkpoint, (one for one in known if isinstance(one, Removal))
    )
    scores = RemovalScores.prepare(
        cell, loaded, corpus.tokenizer, root, checkpoint, (one for one in known if isinstance(one, RemovalScore))
    )
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
    if removal_scores.SERIES in series:
        metrics["mean_accuracy"] = scores.accuracy()
    # Another attempt may find the documents of a task, but not choices that fit.
    later = any(not isinstance(error, NothingFits) for error in scores.unavailable.values())
    return Outcome("interrupted" if later else "done", attempt.done, _cause(scores), metrics)


def _metrics(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found = {
        **_mean_and_least("importance", series["importance"]),
        "mean_angular_distance": sum(series[angular.SERIES]) / len(series[angular.SERIES]),
    }
    if removal_scores.SERIES in series:
        found |= _mean_and_least("score_drop", series[removal_scores.SERIES])
    return found


def _mean_and_least(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"mean_{name}": sum(values) / len(values), f"least_{name}": min(values)}


def _cause(scores: RemovalScores) -> str:
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
    scores: RemovalScores
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
