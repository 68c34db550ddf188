"""`gpas evaluate`: score a network that transformers loads at downstream tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say, warn, working
from gpas_cli.cli.options import AsJson, offer_list
from gpas_cli.cli.selection import project
from gpas_cli.cli.views.events import line
from gpas_cli.cli.views.number import scores_table, skipped_notes
from gpas_cli.errors import Exit, InvalidExperiments, Problem
from gpas_cli.events import Event, Outcome, Score, Scoring
from gpas_cli.spec.downstream import AVERAGE_TITLES, GROUPS, KNOWN_TASKS, Downstream, metrics_of
from gpas_cli.spec.parse import build
from gpas_cli.store.refresh import ingest
from gpas_cli.structure import DocumentJson, Number

_DEFAULT_TASKS = "poster"


class EvaluatedJson(DocumentJson):
    """`gpas evaluate --json`."""

    name: str
    key: Annotated[str, "content key: 16 hex digits"]
    directory: Annotated[Path, "the run directory of the newest attempt"]
    origin: Annotated[Mapping[str, str], "source, revision, digests of the weights and other files, architecture"]
    new: Annotated[bool, "false if every score was recorded earlier"]
    missing: Annotated[str, "why tasks have no score, empty if all have one"]
    scores: Sequence[Score]
    metrics: Annotated[Mapping[str, Number], "accuracies in percent, averages, perplexities, as tables name them"]


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="PATH|HUB_NAME", help="A folder that transformers loads, or a name on the hub.")
    ],
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            help=f"Tasks, or groups of them ({', '.join(GROUPS)}), separated by commas.",
            autocompletion=offer_list([*GROUPS, *KNOWN_TASKS]),
        ),
    ] = _DEFAULT_TASKS,
    shots: Annotated[int, typer.Option("--shots", help="Answered examples before each question.")] = 0,
    limit: Annotated[int, typer.Option("--limit", help="Score only the first questions of each task; 0: all.")] = 0,
    max_length: Annotated[
        int, typer.Option("--max-length", help="Tokens of a question with a choice; longer ones lose their beginning.")
    ] = 1024,
    revision: Annotated[str, typer.Option("--revision", help="A branch, tag or commit of the hub's repository.")] = "",
    name: Annotated[str, typer.Option("--name", help="Its name; by default the folder's.")] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the code that comes with the network (read it first).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a network of others, and record it with its origin.

    The scores are recorded in a run directory, with digests of the network's files and the versions of the libraries.
    Tasks that have been scored are not scored again. A cell's own network is scored by the section downstream in
    experiments.yaml.

    Exit code 0 if every task has a score, 3 if not.

    Example: gpas evaluate exported/pre-gpas --tasks arc_easy,piqa
    """
    section = _section({"tasks": tasks.split(","), "shots": shots, "limit": limit, "max_length": max_length})
    here = project()
    from gpas_cli.extensions.networks.opening import find_model
    from gpas_cli.extensions.networks.scoring import score_external

    with working("reading the network") as say:
        found = find_model(model, revision)
        label = name or (Path(found.source).resolve().name if not found.revision else found.source)
        say(f"loading {label}")
        done = score_external(
            here, found, section, name=label, trust_code=trust_code, watch=lambda event: _say(event, say)
        )
    problem = ingest(here)
    metrics = metrics_of({(score.task, score.metric): float(score.value) for score in done.scores}, section.tasks)
    unfinished = done.outcome if done.outcome and done.outcome.outcome != "done" else None
    document = EvaluatedJson(
        name=done.name, key=done.key, directory=done.directory, origin=found.provenance(),
        new=done.outcome is not None, missing=unfinished.cause or unfinished.outcome if unfinished else "",
        scores=done.scores, metrics=metrics,
    )  # fmt: skip
    if as_json:
        print_json(document)
    else:
        _print(document, several=len(section.tasks) > 1)
    warn(problem)
    if unfinished:
        raise typer.Exit(Exit.INCOMPLETE)


def _section(values: dict[str, object]) -> Downstream:
    """Return the settings of the scoring. Raises InvalidExperiments with everything that is wrong with them."""
    problems: list[Problem] = []
    section = build(Downstream, values, (), problems)
    problems += section.problems() if section else ()
    if section is None or problems:
        raise InvalidExperiments([replace(one, path=(f"--{one.path[0]}".replace("_", "-"),)) for one in problems])
    return section


def _say(event: Event, say: Callable[[str], None]) -> None:
    if isinstance(event, Scoring):
        say(f"{event.task} ({event.place} of {event.tasks}) {100 * event.done // max(1, event.total)} %")
    elif not isinstance(event, Outcome) and (text := line(event)):
        say(text)


def _print(done: EvaluatedJson, *, several: bool) -> None:
    """Print the scores, with their averages if they are of `several` tasks."""
    averages = {AVERAGE_TITLES[name]: float(percent) for metric, percent in done.metrics.items()
                if several and (name := metric.removeprefix("accuracy/")) in AVERAGE_TITLES}  # fmt: skip
    say(scores_table(done.scores, averages, done.name))
    for text in skipped_notes(done.scores):
        say(text, style="yellow")
    each = ", each question in samples/" if (done.directory / "samples").is_dir() else ""
    say(f"recorded in {done.directory}{each}" if done.new else "all were recorded earlier", style="dim")
    if done.missing:
        say(done.missing, style="yellow")
