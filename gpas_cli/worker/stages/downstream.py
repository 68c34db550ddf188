"""Downstream tasks: the scores of the trained network, one task after the other."""

from __future__ import annotations

from pathlib import Path

from gpas_cli.checkpoints import short_name
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.downstream import score_tasks
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.events import Emit, Outcome, Stop
from gpas_cli.spec.downstream import Downstream, measure_of, metrics_of
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import Scores, ScoreSheet, ScoringProgress, checked_tokenizer, earlier_scores


def run(stage: StageContext) -> Outcome:
    """Score the trained network at each task that no earlier attempt has scored.

    A task whose questions are unavailable does not stop the others. The outcome is then `interrupted`, with the reason:
    the next `gpas run` scores what is missing.
    """
    section: Downstream = stage.parameters
    checkpoint = short_name(stage.trained_checkpoint())
    tokenizer = checked_tokenizer(stage)
    opened = stage.load_trained()
    length = stage.cell.model.family.row_length(section.max_length)
    scorer = Scorer(opened.network, opened.precision, max_length=length)
    return score_section(
        section, scorer, tokenizer, stage.root, earlier_scores(stage, checkpoint),
        checkpoint=checkpoint, emit=stage.emit, stop=stage.stop,
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
    sheet = ScoreSheet(
        noun="task", tasks=section.tasks, last_metric=measure_of, scores=scores,
        checkpoint=checkpoint, emit=emit, stop=stop,
    )  # fmt: skip
    found = score_tasks(
        section, scorer, tokenizer, root, skip=sheet.scored(), stop=sheet.stopped,
        progress=ScoringProgress(len(section.tasks), emit).report,
    )  # fmt: skip
    return sheet.record(found, scorer, lambda values: metrics_of(values, section.tasks))
