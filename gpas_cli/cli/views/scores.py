"""Scores at tasks, as a table for the terminal and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpas_cli.spec.downstream import SKIPPED, skipped_note

if TYPE_CHECKING:
    from rich.table import Table

    from gpas_cli.events import Score
    from gpas_cli.report.result import TaskResult


def scores_table(scores: Sequence[Score | TaskResult]) -> Table:
    """Return a table with a row for each score: accuracies in percent, and what scored the task."""
    from rich.table import Table

    drawn = Table(box=None, title_justify="left")
    for title in ("task", "score"):
        drawn.add_column(title)
    for title in ("value", "±", "questions"):
        drawn.add_column(title, justify="right")
    for title in ("shots", "version", "scored by"):
        drawn.add_column(title)
    for score in scores:
        numbers = (_shown(score, number) for number in (score.value, score.stderr))
        facts = (f"{score.examples:,}", str(score.shots), score.task_version, score.harness)
        drawn.add_row(score.task, score.metric, *numbers, *facts)
    return drawn


def skipped_notes(scores: Sequence[Score | TaskResult]) -> list[str]:
    """Return a sentence for each task of which questions were skipped."""
    return [skipped_note(one.task, float(one.value), one.examples) for one in scores if one.metric == SKIPPED]


def _shown(score: Score | TaskResult, number: float | None) -> str:
    """Return a score or its standard error as text: an accuracy as a percentage."""
    if number is None:
        return ""
    return f"{100 * number:.2f} %" if score.metric.startswith("acc") else f"{number:.4g}"
