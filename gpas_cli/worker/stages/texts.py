"""Further texts: the perplexities of the trained network, one text after the other."""

from __future__ import annotations

from gpas_cli.checkpoints import short_name
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.texts import score_texts
from gpas_cli.events import Outcome
from gpas_cli.spec.downstream import Texts
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import Scores, ScoreSheet, ScoringProgress, checked_tokenizer, earlier_scores

LAST_METRIC = "text_perplexity"  # of a text: with it the text counts as scored


def run(stage: StageContext) -> Outcome:
    """Score the trained network on each text that no earlier attempt has scored.

    A text that cannot be read does not stop the others. The outcome is then `interrupted`, with the reason: the next
    `gpas run` scores what is missing.
    """
    section: Texts = stage.parameters
    checkpoint = short_name(stage.trained_checkpoint())
    tokenizer = checked_tokenizer(stage)
    opened = stage.load_trained()
    length = stage.cell.model.family.row_length(section.max_length or stage.cell.data.length)
    scorer = Scorer(opened.network, opened.precision, max_length=length)
    sheet = ScoreSheet(
        noun="text", tasks=section.names, last_metric=lambda _: LAST_METRIC, scores=earlier_scores(stage, checkpoint),
        checkpoint=checkpoint, emit=stage.emit, stop=stage.stop,
    )  # fmt: skip
    found = score_texts(
        section, scorer, tokenizer, stage.root, skip=sheet.scored(), stop=sheet.stopped,
        progress=ScoringProgress(len(section.texts), stage.emit).report,
    )  # fmt: skip
    return sheet.record(found, scorer, _metrics)


def _metrics(scores: Scores) -> dict[str, float]:
    return {f"{metric}/{text}": float(value) for (text, metric), value in scores.items()}
