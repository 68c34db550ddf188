"""The origin of a number of a table, and scores at tasks, as text for the terminal."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from gpas_cli.cli.console import say, say_fact
from gpas_cli.cli.views.columns import Columns
from gpas_cli.events import Score
from gpas_cli.origin.provenance import Code, NumberOrigin
from gpas_cli.report.tables.cell_text import cell_text
from gpas_cli.report.tables.sheet import PLAIN
from gpas_cli.spec.downstream import BY_TEXT, SKIPPED, skipped_note
from gpas_cli.spec.extensions import metrics
from gpas_cli.words import count, date_and_time, fixed, listed

_NAMED = 6  # seeds in one line


def print_number(origin: NumberOrigin) -> None:
    """Print the origin of a number of a table."""
    place = origin.place
    table = place.table
    title = f"{place.row.full_title}, {table.columns[place.column].title}"
    say(Text.assemble((f"{origin.grid}[{place.words}]", "bold"), f"  {title}"))
    for name, text in _lines(origin):
        say_fact(name, text)
    say(_seed_rows(origin))


def _lines(origin: NumberOrigin) -> Iterator[tuple[str, str]]:
    """Yield what is printed of the number, as (name, text)."""
    yield origin.place.metric.name, _number(origin)
    if metrics().get(origin.place.metric.name) != origin.place.metric:
        yield "", origin.place.metric.title
    if origin.place.base is not None:
        yield "from base", _difference(origin)
    if origin.published and origin.comparison.metric != origin.place.metric:
        metric = origin.comparison.metric
        number = cell_text(origin.comparison.cell, metric.digits, PLAIN)
        yield "to compare", f"{number}: {metric.name}, which is averaged like the published number"
    for published in origin.published:
        delta = f" ({published.delta:+g})" if published.delta is not None else ""
        column = f", its {published.as_if}" if published.as_if else ""
        text = f"{published.value:g}{delta}: {published.short}, {published.table}{column}: {published.what}"
        yield "published", text
    for code in origin.code:
        yield "code", _code(code, len(origin.seeds))
    yield origin.hours.unit, origin.hours.hours(origin.hours.unit)
    yield from _again(origin)


def _again(origin: NumberOrigin) -> Iterator[tuple[str, str]]:
    """Yield the commands that make the number again, and how to run them with the recorded code."""
    also = f"; it runs {count(origin.other_cells, 'other cell')} too" if origin.other_cells else ""
    yield "make again", f"{shlex.join(origin.command)}   # in an empty project{also}"
    if any(seed.attempt for seed in origin.seeds):
        yield "", f"gpas retry --done {shlex.join(seed.cell for seed in origin.seeds)}   # in this project"
    for code in origin.code:
        ways = [f"PYTHONPATH={shlex.quote(str(code.snapshot))} before the command"] if code.snapshot else []
        ways += [f"git checkout {code.commit[:12]}"] if code.commit and not code.dirty else []
        if ways:
            yield "with its code", " or ".join(ways)


def _number(origin: NumberOrigin) -> str:
    cell, metric = origin.place.cell, origin.place.metric
    over = origin.place.table.spec.over
    text = cell_text(cell, metric.digits, PLAIN)
    if cell.summary is None:
        return f"no number: {text}"
    of = f"the number of one {over}"
    if cell.summary.n > 1:
        of = f"mean ± sample standard deviation over {count(cell.summary.n, over)}"
    return f"{text}: {of}; {metric.better} is better"


def _difference(origin: NumberOrigin) -> str:
    place = origin.place
    base, delta = place.base, place.cell.delta
    assert base is not None  # checked by the caller
    theirs = f"{base.row.title} ({base.words}): {cell_text(base.cell, place.metric.digits, PLAIN)}"
    if delta is None:
        return f"no {place.table.spec.over} has both numbers; {theirs}"
    digits = place.metric.digits
    test = f", p = {delta.p:.2g} (paired t test)" if delta.p is not None else ""
    if bounds := delta.interval:
        test = f", 95 % interval {fixed(bounds[0], digits, '+')} to {fixed(bounds[1], digits, '+')}{test}"
    return f"{fixed(delta.mean, digits, '+')} over {count(delta.n, 'pair')}{test}; {theirs}"


def _code(code: Code, seeds: int) -> str:
    commit = f"commit {code.commit[:12]}{' with local changes' if code.dirty else ''}" if code.commit else "no git"
    copy = f"copy in {code.snapshot}" if code.snapshot else "its copy is gone"
    of = f" (seed {listed([str(label) for label in code.seeds], _NAMED)})" if len(code.seeds) < seeds else ""
    return f"{code.code or 'not recorded'}, {commit}, {copy}{of}"


def _seed_rows(origin: NumberOrigin) -> Any:
    over, metric = origin.place.table.spec.over, origin.place.metric
    digits = metric.digits + 2
    headers = [over, metric.name, "from base", "cell", "attempt", "where", "ended", "run directory"]
    rows = []
    for seed in origin.seeds:
        difference = "" if seed.value is None or seed.base is None else fixed(seed.value - seed.base, digits, "+")
        rows.append([
            str(seed.seed),
            seed.state if seed.value is None else fixed(seed.value, digits),
            difference,
            seed.cell,
            str(seed.attempt or ""),
            ", ".join(filter(None, (seed.host, seed.device))),
            date_and_time(seed.ended) if seed.ended else "",
            seed.directory or "",
        ])  # fmt: skip
    right = frozenset((over, metric.name, "from base", "attempt"))
    return Columns(headers, rows, right=right, droppable=("ended", "where", "from base"))


def scores_table(scores: Sequence[Score], averages: Mapping[str, float] | None = None, title: str = "") -> Columns:
    """Return a table with a row for each score, accuracies in percent, and what scored the task; then averages."""
    rows: list[Sequence[str]] = [
        (one.task, one.metric, _shown(one, one.value), _shown(one, one.stderr), f"{one.examples:,}", str(one.shots),
         one.task_version, one.harness)
        for one in scores
    ]  # fmt: skip
    rows += [(name, "acc", f"{percent:.2f} %", *[""] * 5) for name, percent in (averages or {}).items()]
    examples = "documents" if any(one.metric in BY_TEXT for one in scores) else "questions"
    headers = ("task", "score", "value", "±", examples, "shots", "version", "scored by")
    return Columns(headers, rows, title, right=frozenset(headers[2:5]))


def skipped_notes(scores: Sequence[Score]) -> list[str]:
    """Return a sentence for each task with skipped questions."""
    return [skipped_note(one.task, float(one.value), one.examples) for one in scores if one.metric == SKIPPED]


def _shown(score: Score, number: float | None) -> str:
    """Return a score or its standard error as text: an accuracy as a percentage."""
    if number is None:
        return ""
    return f"{100 * number:.2f} %" if score.metric.startswith("acc") else f"{number:.4g}"
