"""Measure the accuracy on downstream tasks of a network without each of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate.downstream import score_task
from gpas_cli.evaluate.harness import DownstreamMissing
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.removal import WHOLE, without_layer
from gpas_cli.evaluate.task_score import TaskUnavailable
from gpas_cli.events import RemovalScore
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.downstream import SKIPPED, Downstream, measure_of, skipped_note
from gpas_cli.train.trained import TrainedNetwork

SERIES = "importance_score"


@dataclass
class RemovalScores:
    """A network, the tasks that it is scored at, and the scores so far, by layer and task.

    unavailable: the tasks that could not be scored, and why. skipped: the tasks with questions left out, and how many.
    """

    network: Llama
    section: Downstream
    scorer: Scorer
    tokenizer: Tokenizer
    root: Path
    checkpoint: str
    scores: dict[tuple[int, str], RemovalScore]
    unavailable: dict[str, GpasError] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        cell: Cell,
        loaded: TrainedNetwork,
        tokenizer: Tokenizer,
        root: Path,
        checkpoint: str,
        earlier: Iterable[RemovalScore],
    ) -> RemovalScores:
        """Take over the scores of `earlier` of the same checkpoint."""
        section = cell.parameters("importance").downstream()
        scorer = Scorer(loaded.network, loaded.precision, max_length=cell.model.family.row_length(section.max_length))
        made = cls(loaded.network, section, scorer, tokenizer, root, checkpoint, {})
        for score in earlier:
            if score.checkpoint == checkpoint:
                made._add(score)
        return made

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
        by_task = {f"{SERIES}/{task}": drop for task, drop in drops.items()}
        if self.unavailable or not tasks:
            return by_task
        return {SERIES: [sum(layer) / len(layer) for layer in zip(*drops.values(), strict=True)], **by_task}

    def _drops(self, task: str) -> list[float]:
        values = [100 * self.scores[layer, task].value for layer in range(len(self.network.model.layers) + 1)]
        return [values[WHOLE] - value for value in values[1:]]

    def accuracy(self) -> float:
        """Return the mean accuracy of the whole network in percent."""
        values = [100 * self.scores[WHOLE, task].value for task in self.section.tasks]
        return sum(values) / len(values)


def _version(score: RemovalScore) -> tuple[str, str, int]:
    return score.task_version, score.harness, score.examples
