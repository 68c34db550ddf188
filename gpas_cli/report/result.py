"""Results of stages, the metrics that they can contain, and scores of networks that were not trained here.

Without SQLAlchemy, so that tables can be built without a database.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpas_cli.errors import GpasError, nearest
from gpas_cli.events import Score
from gpas_cli.spec.downstream import BY_TASK, averages, counted_of, score_shares
from gpas_cli.spec.glue import BY_GLUE_TASK, best_scores
from gpas_cli.spec.stage import STAGE_KINDS, Metric, StageKind

PARTIAL = "partial"  # the outcome of a result with scores of some tasks, whose stage has not finished
SCORING = ("shots", "limit", "max_length")  # of the scoring; scores under others cannot be compared


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
    scores: tuple[Score, ...] = ()

    @property
    def hardware(self) -> str | None:
        """The GPU, else the kind of device."""
        return self.gpu or self.device

    def stderr(self, name: str) -> float | None:
        """Return the standard error of the metric `name`, METRIC/TASK, over the questions; None if it is unknown."""
        metric, _, label = name.partition("/")
        if metric != BY_GLUE_TASK[0]:
            return standard_error(self.scores, name)
        rates = {task: rate for one, rate in self.metrics.items() if (task := one.removeprefix("glue_lr/")) != one}
        known = {(score.task, score.metric): score.stderr for score in self.scores}
        return _of_mean([(1.0, known.get(one)) for one in best_scores(label, rates)])


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
    scores: tuple[Score, ...]


def standard_error(scores: Sequence[Score], name: str) -> float | None:
    """Return the standard error of METRIC/TASK over the questions, of an average over the tasks of `scores` too.

    None if it is unknown. Accuracies are in percent.
    """
    if not scores:
        return None
    metric, _, label = name.partition("/")
    tasks = list(dict.fromkeys(score.task for score in scores))
    mixed = metric == "score"
    known = {
        score.task: score.stderr
        for score in scores
        if (score.metric == counted_of(score.task) if mixed else score.metric in BY_TASK.get(metric, ()))
    }
    own = averages(tasks).get(label, (label,))
    shares = score_shares(tasks).get(label, {}) if mixed else dict.fromkeys(own, 1 / len(own))
    error = _of_mean([(share, known.get(task)) for task, share in shares.items()])
    return error and error / (100 if metric == "task_perplexity" else 1)


def _of_mean(errors: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the standard error of a mean in percent, given the shares and the errors of its parts; None if one is
    unknown."""
    squares = [(share * error) ** 2 for share, error in errors if error is not None]
    if not squares or len(squares) < len(errors):
        return None
    return 100 * math.sqrt(sum(squares)) / sum(share for share, _ in errors)


METRICS = {metric.name: metric for kind in STAGE_KINDS.values() for metric in kind.metrics}
_SIGNIFICANT_DIGITS = 4  # of numbers that no kind of stage declares


def metric(name: str, kinds: Iterable[StageKind] = ()) -> Metric:
    """Return the metric called `name`, of a built-in stage or of `kinds`. Raises GpasError with the nearest name."""
    known = _declared(kinds)
    if name not in known:
        raise GpasError(f"unknown metric '{name}'; {nearest(name, known)}")
    return known[name]


def recorded_metric(name: str, kinds: Iterable[StageKind], results: Mapping[str, Result]) -> Metric:
    """Return the metric called `name`: one of `metric`, or any number that `results` have, of which none is better.

    Raises GpasError with the nearest name.
    """
    known = _declared(kinds)
    if name in known:
        return known[name]
    found = [result for result in results.values() if name in result.metrics]
    if not found:
        names = dict.fromkeys([*(n for result in results.values() for n in result.metrics), *known])
        raise GpasError(f"no metric '{name}' is recorded; {nearest(name, names)}")
    digits = _digits([result.metrics[name] for result in found])
    return Metric(name, name.replace("_", " "), better="", digits=digits, stage=found[0].stage)


def _declared(kinds: Iterable[StageKind]) -> dict[str, Metric]:
    return {**{own.name: own for kind in kinds for own in kind.metrics}, **METRICS}


def _digits(values: Iterable[float]) -> int:
    """Return the digits after the point that show SIGNIFICANT_DIGITS of the largest value; none for whole numbers."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if not largest or all(value == int(value) for value in finite):
        return 0
    return max(0, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(largest)))
