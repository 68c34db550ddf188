"""Downstream tasks: the scores of the trained network, one task after the other."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpas_cli.checkpoints import short_name
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.downstream import score_tasks
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.events import Emit, Outcome, Phase, Stop, Warned
from gpas_cli.spec.downstream import Downstream, measure_of, metrics_of
from gpas_cli.state import rerun
from gpas_cli.state.outputs import scores_of
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import all_attempts
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import Scores, ScoreSheet, ScoringProgress, checked_tokenizer, earlier_scores


def run(stage: StageContext) -> Outcome:
    """Score the trained network at each task that no earlier attempt has scored.

    Scores that another stage measured with the same settings are taken over: grids may share some of their tasks.
    A task whose questions are unavailable does not stop the others. The outcome is then `interrupted`, with the reason:
    the next `gpas run` scores what is missing.
    """
    section: Downstream = stage.parameters
    trained = stage.trained_checkpoint()
    checkpoint = short_name(trained)
    tokenizer = checked_tokenizer(stage)
    opened = stage.load_trained()
    length = stage.cell.model.family.row_length(section.max_length)
    scorer = Scorer(opened.network, opened.precision, max_length=length)
    scores = earlier_scores(stage, checkpoint)
    sheet = _sheet(section, scores, checkpoint, stage.emit, stage.stop)
    _take_over(stage, sheet, trained)
    return score_section(
        section, scorer, tokenizer, stage.root, scores, checkpoint=checkpoint, emit=stage.emit, stop=stage.stop
    )


def _take_over(stage: StageContext, sheet: ScoreSheet, trained: Path) -> None:
    """Take over the scores of other stages, unless this one is run again to measure its scores anew."""
    if rerun.superseded(stage.runs, stage.attempt.key):
        return
    for key in _alike(stage):
        try:
            found = scores_of(stage.runs, [key], trained)
        except (OSError, GpasError) as error:
            stage.emit(Warned(f"the scores of stage {key} cannot be read and are not taken over: {error}"))
            continue
        if taken := sheet.take_over(found):
            stage.emit(Phase("taking over scores", f"{', '.join(taken)} from stage {key}"))


def _alike(stage: StageContext) -> list[str]:
    """Return the keys of the stages that differ from this one in their tasks alone."""
    own = stage.attempt
    found = set[str]()
    for attempt in all_attempts(stage.runs):
        if attempt.key == own.key or attempt.key in found:
            continue
        with suppress(OSError, GpasError):  # a damaged attempt has no scores to take over
            record = attempt.read_attempt()
            if (record.stage, record.parents, _settings(record)) == (own.stage, own.parents, _settings(own)):
                found.add(attempt.key)
    return sorted(found)


def _settings(record: AttemptRecord) -> dict[str, Any]:
    section = record.cell.get(record.stage)
    return {name: value for name, value in section.items() if name != "tasks"} if isinstance(section, Mapping) else {}


def _sheet(section: Downstream, scores: Scores, checkpoint: str, emit: Emit, stop: Stop) -> ScoreSheet:
    return ScoreSheet(
        noun="task", tasks=section.tasks, last_metric=measure_of, scores=scores,
        checkpoint=checkpoint, emit=emit, stop=stop,
    )  # fmt: skip


def score_section(
    section: Downstream,
    scorer: Scorer,
    tokenizer: Tokenizer,
    root: Path,
    scores: Scores,
    *,
    checkpoint: str,
    emit: Emit,
    stop: Stop,
) -> Outcome:
    """Score the tasks of the section that `scores` does not have yet, add them to it, and return the outcome.

    `checkpoint` names the network in the events. `root`: the folder of experiments.yaml.
    """
    sheet = _sheet(section, scores, checkpoint, emit, stop)
    found = score_tasks(
        section, scorer, tokenizer, root, skip=sheet.scored(), stop=sheet.stopped,
        progress=ScoringProgress(len(section.tasks), emit).report,
    )  # fmt: skip
    return sheet.record(found, scorer, lambda values: metrics_of(values, section.tasks))
