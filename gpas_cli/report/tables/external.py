"""Networks that were not trained here, as rows below the cells of a table with a column for each task.

They have scores only: no rank, no difference from a base, no mean over seeds, and no published number beside them.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError, nearest
from gpas_cli.events import Score
from gpas_cli.report.recorded import SCORING, ExternalNetwork, standard_error
from gpas_cli.spec.downstream import AVERAGE_TITLES, GROUPS, Downstream, metrics_of, task_title
from gpas_cli.words import listed

ALL = "all"  # selects every network
_DIGEST_SHOWN = 12  # hex digits
_NAMED = 12  # tasks in one note


@dataclass(frozen=True)
class ExternalCell:
    """One number. Without a value, `status` says why."""

    value: float | None = None
    stderr: float | None = None
    status: str = ""


@dataclass(frozen=True)
class ExternalRow:
    """One network, with a cell for each column of the table and the scores at the tasks of the table's cells."""

    title: str
    network: ExternalNetwork
    cells: tuple[ExternalCell, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Externals:
    """The rows of networks, and notes: where each comes from, or why it is not shown."""

    rows: tuple[ExternalRow, ...] = ()
    notes: tuple[str, ...] = ()


def select_networks(networks: Sequence[ExternalNetwork], names: Sequence[str]) -> list[ExternalNetwork]:
    """Return the networks with these names; ALL names every one.

    Raises GpasError with the nearest name if a name is unknown.
    """
    known = list(dict.fromkeys(network.name for network in networks))
    for name in names:
        if name != ALL and name not in known:
            hint = nearest(name, known) if known else "none has been scored (`gpas evaluate`)"
            raise GpasError(f"--external: no scored network is called '{name}'; {hint}")
    return [network for network in networks if ALL in names or network.name in names]


def external_rows(
    networks: Sequence[ExternalNetwork], sections: Sequence[Downstream], numbers: Sequence[str]
) -> Externals:
    """Return the rows of the networks scored with the settings of `sections`, and notes about all networks.

    sections: of the table's cells, with the effective `max_length`. numbers: the name under which a cell reports
    the number of each column, METRIC/TASK.
    """
    wanted = {name: sorted({getattr(section, name) for section in sections}) for name in SCORING}
    alike = [network for network in networks if all(wanted[name] == [network.settings[name]] for name in SCORING)]
    lists = list(dict.fromkeys(section.tasks for section in sections))
    tasks = tuple(dict.fromkeys(task for one in lists for task in one))
    rows = []
    notes = [] if networks else ["no network that was not trained here has scores; `gpas evaluate` scores one"]
    for network in alike:
        same_name = sum(other.name == network.name for other in alike) > 1
        title = f"{network.name} ({network.key[:8]})" if same_name else network.name
        row = _row(title, network, tasks, numbers, averaged=len(lists) == 1)
        if row.scores:
            rows.append(row)
        notes.append(_origin(row) if row.scores else f"{title} is not shown: it has no score at these tasks")
        unscored = [task for task in tasks if all(score.task != task for score in row.scores)]
        if unscored:
            titles = listed([task_title(task) for task in unscored], _NAMED)
            notes.append(f"{title}: not scored at {titles}; to score: `{_command(network, unscored, wanted)}`")
    # A network with comparable scores needs no note about its other ones.
    known = {_identity(network) for network in alike}
    notes += [_mismatch(network, tasks, wanted) for network in networks if _identity(network) not in known]
    return Externals(tuple(rows), tuple(notes))


def _identity(network: ExternalNetwork) -> tuple[str, str]:
    return network.name, network.origin.get("weights") or network.origin.get("files") or network.key


def _row(
    title: str, network: ExternalNetwork, tasks: Sequence[str], numbers: Sequence[str], *, averaged: bool
) -> ExternalRow:
    """Return a row; unless `averaged`, without averages, because the table's cells average different tasks."""
    scores = tuple(score for score in network.scores if score.task in tasks)
    metrics = metrics_of({(score.task, score.metric): score.value for score in scores}, tasks)
    cells = []
    for name in numbers:
        label = name.partition("/")[2]
        if label in AVERAGE_TITLES and not averaged:
            cells.append(ExternalCell(status="tasks differ"))
        elif name in metrics:
            cells.append(ExternalCell(metrics[name], standard_error(scores, name)))
        else:
            cells.append(ExternalCell(status="not scored"))
    return ExternalRow(title, network, tuple(cells), scores)


def _origin(row: ExternalRow) -> str:
    """Return where a network comes from, and how it was scored."""
    network = row.network
    origin = network.origin
    revision = origin.get("revision")
    what, digest = ("weights", origin["weights"]) if origin.get("weights") else ("files", origin.get("files"))
    source = origin.get("source", "unknown origin") + (f" at {revision[:_DIGEST_SHOWN]}" if revision else "")
    limit = network.settings["limit"]
    facts = [
        source,
        *([f"{what} {digest[:_DIGEST_SHOWN]}"] if digest else []),
        network.precision or "precision unknown",
        "scored by " + ", ".join(dict.fromkeys(score.harness for score in row.scores)),
        f"{network.settings['shots']}-shot",
        *([f"the first {limit} questions of each task"] if limit else []),
    ]
    return f"{row.title}: {', '.join(facts)}"


def _mismatch(network: ExternalNetwork, tasks: Sequence[str], wanted: Mapping[str, Sequence[int]]) -> str:
    """Return why a network that was scored with other settings is not shown, and how to score it with the cells'."""
    differing = [name for name in SCORING if wanted[name] != [network.settings[name]]]
    parts = [f"{name} {network.settings[name]}, cells {' and '.join(map(str, wanted[name]))}" for name in differing]
    text = f"{network.name} is not shown, because it was scored with other settings: {'; '.join(parts)}"
    if any(len(values) > 1 for values in wanted.values()):
        return text
    length = network.settings["max_length"]
    learned = f" (no effect if it has only {length} positions)" if length < wanted["max_length"][0] else ""
    return f"{text}; to score it like the cells: `{_command(network, tasks, wanted)}`{learned}"


def _command(network: ExternalNetwork, tasks: Sequence[str], wanted: Mapping[str, Sequence[int]]) -> str:
    """Return the command that scores a network at `tasks` with the settings of the cells."""
    source, revision = network.origin.get("source", ""), network.origin.get("revision", "")
    group = next((name for name, members in GROUPS.items() if set(members) == set(tasks)), ",".join(tasks))
    words = ["gpas", "evaluate", source, "--tasks", group]
    usual = Downstream()
    for name in SCORING:
        if wanted[name] != [getattr(usual, name)]:
            words += [f"--{name.replace('_', '-')}", str(wanted[name][0])]
    words += ["--revision", revision] if revision else []
    words += [] if network.name in (source, Path(source).name) else ["--name", network.name]
    return shlex.join(words)
