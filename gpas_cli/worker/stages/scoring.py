"""What the stages that score a network have in common: the earlier scores, the recording of new ones, the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpas_cli import words
from gpas_cli.data.prepare import token_cache
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.likelihood import Scorer, ScoringStopped
from gpas_cli.evaluate.task_score import MissingTask, TaskScore
from gpas_cli.events import Emit, Outcome, Phase, Score, Scoring, Stop, Warned
from gpas_cli.period import Period
from gpas_cli.spec.downstream import SKIPPED, skipped_note
from gpas_cli.state.outputs import recorded_events
from gpas_cli.worker.stages.context import StageContext

REPORT_SECONDS = 2.0  # between two events about the progress of a task
Scores = dict[tuple[str, str], float]  # (task, metric) -> value


def checked_tokenizer(stage: StageContext) -> Tokenizer:
    """Return the tokenizer of the cell's text. Raises GpasError if the network was trained with another one."""
    cell = stage.cell
    tokens = token_cache(
        cell.data,
        cell.text_vocab,
        stage.cache,
        root=stage.root,
        notify=lambda name: stage.emit(Phase(name)),
    )
    stage.require_tokenizer(tokens.tokenizer)
    return tokens.tokenizer


def earlier_scores(stage: StageContext, checkpoint: str) -> Scores:
    """Return the scores of this network that earlier attempts recorded."""
    known = recorded_events(stage.runs, stage.attempt.key, Score)
    return {(score.task, score.metric): score.value for score in known if score.checkpoint == checkpoint}


@dataclass(frozen=True, kw_only=True)
class ScoreSheet:
    """The tasks that a stage scores, their scores so far, and where new ones are recorded.

    noun: the word for a task in messages. last_metric: returns the metric of a task that is recorded last; a task with
    it counts as scored. checkpoint: the name of the network in the events.
    """

    noun: str
    tasks: Sequence[str]
    last_metric: Callable[[str], str]
    scores: Scores
    checkpoint: str
    emit: Emit
    stop: Stop

    def scored(self) -> list[str]:
        """Return the tasks that have a score."""
        return [task for task in self.tasks if (task, self.last_metric(task)) in self.scores]

    def stopped(self) -> bool:
        """Return whether the stage was asked to stop."""
        return self.stop() is not None

    def take_over(self, found: Sequence[Score]) -> list[str]:
        """Record scores that another stage measured of this network, and return the tasks: those without one yet."""
        complete = {score.task for score in found if score.metric == self.last_metric(score.task)}
        wanted = complete.intersection(self.tasks).difference(self.scored())
        self._add([score for score in found if score.task in wanted])
        return [task for task in self.tasks if task in wanted]

    def record(
        self,
        found: Iterable[Sequence[TaskScore] | MissingTask],
        scorer: Scorer,
        metrics: Callable[[Scores], Mapping[str, float]],
    ) -> Outcome:
        """Record scores as `found` yields them, and return the outcome, with the metrics of all scores.

        If a task is missing, the outcome is `interrupted`, with the reason.
        """
        began = time.perf_counter()
        missing: list[MissingTask] = []
        try:
            for one in found:
                if isinstance(one, MissingTask):
                    self.emit(Warned(f"{one.task} is not scored: {one.reason}"))
                    missing.append(one)
                else:
                    self._add(one)
                    for score in one:
                        if score.metric == SKIPPED:
                            self.emit(Warned(skipped_note(score.task, score.value, score.examples)))
        except ScoringStopped:
            return Outcome(self.stop() or "interrupted", len(self.scored()))
        state = "interrupted" if missing else "done"
        cost = {"truncated": float(scorer.truncated), "seconds": time.perf_counter() - began}
        return Outcome(state, len(self.scored()), self._cause(missing), metrics={**metrics(self.scores), **cost})

    def _add(self, found: Sequence[TaskScore | Score]) -> None:
        for score in sorted(found, key=lambda score: score.metric == self.last_metric(score.task)):
            self.emit(Score(**{**vars(score), "checkpoint": self.checkpoint}))
            self.scores[score.task, score.metric] = score.value

    def _cause(self, missing: Sequence[MissingTask]) -> str:
        if not missing:
            return ""
        reasons = list(dict.fromkeys(one.reason for one in missing))
        names = ", ".join(one.task for one in missing)
        others = "; `gpas logs` has the other reasons" if len(reasons) > 1 else ""
        return f"{len(missing)} of {words.count(len(self.tasks), self.noun)} not scored ({names}): {reasons[0]}{others}"


class ScoringProgress:
    """Emits how much of one of `tasks` tasks has been scored: at its start and end, and every REPORT_SECONDS."""

    def __init__(self, tasks: int, emit: Emit):
        self.tasks = tasks
        self.emit = emit
        self.task = ""
        self._reports = Period(REPORT_SECONDS, at_once=True)

    def report(self, task: str, place: int, done: int, total: int) -> None:
        """Emit the progress of a task if it is due."""
        if task != self.task or done == total or self._reports.is_over():
            self.task = task
            self._reports.restart()
            self.emit(Scoring(task, place + 1, self.tasks, done, total))
