"""Results of stages, and scores of networks that were not trained here.

Without SQLAlchemy, so that tables can be built without a database.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpas_cli.documents import ScoreJson
from gpas_cli.events import Score
from gpas_cli.spec.downstream import BY_TASK, averages

PARTIAL = "partial"  # the outcome of a result with scores of some tasks, whose stage has not finished
SCORING = ("shots", "limit", "max_length")  # of the scoring; scores under others cannot be compared


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The score of a stage at a downstream task. Accuracies are fractions; `stderr` is None if unknown."""

    task: str
    metric: str
    value: float
    stderr: float | None
    examples: int
    shots: int
    task_version: str
    harness: str


def score_json(score: Score | TaskResult) -> ScoreJson:
    """Return a score for JSON."""
    return {
        "task": score.task, "metric": score.metric, "value": score.value, "stderr": score.stderr,
        "examples": score.examples, "shots": score.shots, "task_version": score.task_version, "harness": score.harness,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the latest done or diverged attempt of a stage reported.

    scores: those of all its attempts, the newest of each task. If the stage has not finished, the metrics are those of
    these tasks and the outcome is PARTIAL.

    gone: the run directories of this and every other such attempt are gone, so nothing confirms the numbers. device:
    e.g. "cpu" or "cuda". ended: unix time. fingerprint: that of the training text. None means not recorded.
    """

    key: str
    stage: str
    outcome: str
    number: int
    directory: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""
    host: str | None = None
    device: str | None = None
    gpu: str | None = None
    precision: str | None = None
    code: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    fingerprint: str | None = None
    validation_fingerprint: str | None = None
    parameters: int | None = None
    last_step: int | None = None
    ended: float | None = None
    gone: bool = False
    scores: tuple[TaskResult, ...] = ()

    def stderr(self, name: str) -> float | None:
        """Return the standard error of the metric `name`, METRIC/TASK, over the questions; None if it is unknown."""
        return standard_error(self.scores, name)


@dataclass(frozen=True, kw_only=True)
class ExternalNetwork:
    """A network that `gpas evaluate` scored with one choice of the settings SCORING.

    origin: source, revision, digests of the files and architecture. scores: the newest of each task and metric.
    """

    name: str
    key: str
    origin: Mapping[str, str]
    settings: Mapping[str, int]
    precision: str | None
    scores: tuple[TaskResult, ...]


def standard_error(scores: Sequence[TaskResult], name: str) -> float | None:
    """Return the standard error of METRIC/TASK over the questions, of an average over the tasks of `scores` too.

    None if it is unknown. Accuracies are in percent.
    """
    if not scores:
        return None
    metric, _, label = name.partition("/")
    tasks = averages(list(dict.fromkeys(score.task for score in scores))).get(label, (label,))
    known = {score.task: score.stderr for score in scores if score.metric in BY_TASK.get(metric, ())}
    errors = [known.get(task) for task in tasks]
    squares = [error**2 for error in errors if error is not None]
    if not squares or len(squares) < len(errors):
        return None
    return math.sqrt(sum(squares)) / len(errors) * (1 if metric == "task_perplexity" else 100)
