"""The origin of a number of a table, and scores at tasks, as text for the terminal and for JSON."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from rich.text import Text

from gpas_cli.cli.console import say, say_fact
from gpas_cli.cli.views.columns import Columns
from gpas_cli.events import Score
from gpas_cli.origin.provenance import Code, NumberOrigin, PublishedNumber, SeedOrigin, environments
from gpas_cli.report.tables.cell_text import cell_text
from gpas_cli.report.tables.sheet import PLAIN
from gpas_cli.spec.downstream import BY_TEXT, SKIPPED, skipped_note
from gpas_cli.spec.extensions import metrics
from gpas_cli.state.usage import Usage
from gpas_cli.structure import Document, Number
from gpas_cli.words import count, date_and_time, fixed, listed

_NAMED = 6  # seeds in one line


class ScoreJson(Document):
    """One metric of one task."""

    task: str
    metric: Annotated[str, "acc, acc_norm, perplexity, word_perplexity, ..., skipped (a number of questions)"]
    value: Annotated[Number, "accuracies are fractions"]
    stderr: Annotated[Number | None, "the standard error, null if unknown"]
    examples: Annotated[int, "how many questions were scored"]
    shots: Annotated[int, "answered examples before each question"]
    task_version: str
    harness: Annotated[str, "the program that scored the task, its version and, of a text, how"]

    @classmethod
    def of(cls, score: Score) -> Self:
        """Return the document of a score."""
        return cls(
            task=score.task, metric=score.metric, value=score.value, stderr=score.stderr, examples=score.examples,
            shots=score.shots, task_version=score.task_version, harness=score.harness,
        )  # fmt: skip


class _SeedOriginJson(Document):
    """One run of a number in a table."""

    seed: Any
    cell: Annotated[str, "grid/name"]
    key: str
    state: str
    value: Number | None
    base: Annotated[Number | None, "the number of the same seed in the base row"]
    attempt: int | None
    directory: Annotated[str | None, "in the folder of run directories"]
    host: str | None
    device: str | None
    ended: Annotated[float | None, "unix time"]
    environment: Mapping[str, Any]


class _PairedJson(Document):
    """The mean of the paired differences from the base."""

    mean: Number
    n: int
    p: Number | None


class _ComparedNumberJson(Document):
    """A number with the metric that published tables print."""

    metric: str
    mean: Number | None


class TableNumberJson(Document):
    """A number of a table, and what it was computed from."""

    grid: str
    cell: Annotated[str, "the words that name it: ROW,COLUMN"]
    row: Mapping[str, Any]
    column: Mapping[str, Any]
    metric: str
    title: Annotated[str, "what the metric is"]
    mean: Number | None
    std: Number | None
    n: int
    status: Annotated[str, "why numbers are missing, empty if none is"]
    delta: _PairedJson | None
    base: Annotated[str | None, "the words that name the base"]
    compared: Annotated[_ComparedNumberJson, "our number to compare with the published ones"]
    published: Sequence[PublishedNumber]
    seeds: Sequence[_SeedOriginJson]
    code: Sequence[Code]
    hours: Annotated[Usage, "of all attempts at its cells"]
    command: Annotated[Sequence[str], "the words of the command that makes the number in an empty project"]
    other_cells: Annotated[int, "further cells that this command runs"]


def number_json(origin: NumberOrigin) -> TableNumberJson:
    """Return the origin of a number of a table for `--json`."""
    place, cell = origin.place, origin.place.cell
    compared = origin.compared.cell.summary
    return TableNumberJson(
        grid=origin.grid, cell=place.words, row=place.row_labels, column=place.column_labels,
        metric=place.metric.name, title=place.metric.title, mean=cell.summary.mean if cell.summary else None,
        std=cell.summary.std if cell.summary else None, n=cell.n, status=cell.status,
        delta=_PairedJson(mean=cell.delta.mean, n=cell.delta.n, p=cell.delta.p) if cell.delta else None,
        base=place.base.words if place.base else None,
        compared=_ComparedNumberJson(metric=origin.compared.metric.name, mean=compared.mean if compared else None),
        published=origin.published, seeds=list(map(_seed_json, origin.seeds)), code=origin.codes, hours=origin.spent,
        command=origin.command, other_cells=origin.others,
    )  # fmt: skip


def _seed_json(seed: SeedOrigin) -> _SeedOriginJson:
    found = seed.result
    return _SeedOriginJson(
        seed=seed.seed, cell=seed.entry.id, key=seed.key, state=seed.state, value=seed.value, base=seed.base,
        attempt=found.number if found else None, directory=(found.directory or None) if found else None,
        host=(found.host or None) if found else None, device=(found.hardware or None) if found else None,
        ended=found.ended if found else None, environment=seed.environment,
    )  # fmt: skip


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
    if origin.published and origin.compared.metric != origin.place.metric:
        metric = origin.compared.metric
        number = cell_text(origin.compared.cell, metric.digits, PLAIN)
        yield "to compare", f"{number}: {metric.name}, which is averaged like the published number"
    for published in origin.published:
        delta = f" ({published.delta:+g})" if published.delta is not None else ""
        column = f", its {published.as_if}" if published.as_if else ""
        text = f"{published.value:g}{delta}: {published.short}, {published.table}{column}: {published.what}"
        yield "published", text
    for code in origin.codes:
        yield "code", _code(code, len(origin.seeds))
    same, differing = environments(origin.seeds)
    if same:
        yield "environment", ", ".join(f"{name} {value}" for name, value in same.items())
    for name, values in differing.items():
        yield "", f"{name} differs: {listed([str(value) for value in values], _NAMED)}"
    yield from _texts(origin.seeds)
    yield origin.spent.unit, origin.spent.hours(origin.spent.unit)
    yield from _again(origin)


def _again(origin: NumberOrigin) -> Iterator[tuple[str, str]]:
    """Yield the commands that make the number again, and how to run them with the recorded code."""
    also = f"; it runs {count(origin.others, 'other cell')} too" if origin.others else ""
    yield "make again", f"{shlex.join(origin.command)}   # in an empty project{also}"
    if any(seed.result for seed in origin.seeds):
        yield (
            "",
            f"{shlex.join(['gpas', 'retry', '--done', *(seed.entry.id for seed in origin.seeds)])}   # in this project",
        )
    for code in origin.codes:
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


def _texts(seeds: Sequence[SeedOrigin]) -> Iterator[tuple[str, str]]:
    results = [seed.result for seed in seeds if seed.result]
    for name, found in (
        ("train text", [result.fingerprint for result in results]),
        ("validation", [result.validation_fingerprint for result in results]),
    ):
        if known := list(dict.fromkeys(text for text in found if text)):
            yield name, listed(known, _NAMED)


def _seed_rows(origin: NumberOrigin) -> Any:
    over, metric = origin.place.table.spec.over, origin.place.metric
    digits = metric.digits + 2
    headers = [over, metric.name, "from base", "cell", "attempt", "where", "ended", "run directory"]
    rows = []
    for seed in origin.seeds:
        result = seed.result
        difference = "" if seed.value is None or seed.base is None else fixed(seed.value - seed.base, digits, "+")
        rows.append([
            str(seed.seed),
            seed.state if seed.value is None else fixed(seed.value, digits),
            difference,
            seed.entry.id,
            str(result.number) if result else "",
            ", ".join(filter(None, (result.host, result.hardware))) if result else "",
            date_and_time(result.ended) if result and result.ended else "",
            result.directory if result else "",
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
