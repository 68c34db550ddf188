"""`gpas db`: maintain the results database, which can always be rebuilt from the run directories."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import confirm, print_json, say, warn, working
from gpas_cli.cli.options import AsJson, Yes
from gpas_cli.cli.selection import project
from gpas_cli.errors import Exit
from gpas_cli.state.merging import Merge, MergedStage, run_directories
from gpas_cli.store import maintenance, session
from gpas_cli.store.ingest import Ingested
from gpas_cli.store.ingest import sync as read_new
from gpas_cli.store.refresh import ingest
from gpas_cli.structure import FLAT, DocumentJson
from gpas_cli.words import count, grouped, listed, verb

_NAMED = 5


def _merge_lines(stages: Sequence[MergedStage], dry_run: bool) -> Iterator[str]:
    """Yield a line for each kind of result of the merge."""
    if not stages:
        yield "There is no result to copy."
    groups = grouped((stage.what, stage) for stage in stages)
    if copied := groups.get("copied"):
        attempts = count(sum(stage.attempts for stage in copied), "attempt")
        yield f"{'Would copy' if dry_run else 'Copied'} {count(len(copied), 'stage')} with {attempts}: {_names(copied)}"
    if known := groups.get("known"):
        yield f"Copied before: {count(len(known), 'stage')}"
    yield from _kept(groups.get("kept", ()))
    if busy := groups.get("busy"):
        yield f"Not copied, because they are queued or running here: {_names(busy)}"
    yield from (f"Cannot be read: {stage.key}: {stage.problem}" for stage in groups.get("unreadable", ()))


def _kept(kept: Sequence[MergedStage]) -> Iterator[str]:
    equal = [stage for stage in kept if stage.differs is None]
    if equal:
        yield f"Have the same result here: {_names(equal)}"
    for stage in kept:
        if stage.differs:
            name, here, there = stage.differs
            yield f"{stage.name}: kept the result here, {name} {here:.6g}; the other one has {there:.6g}"


def _names(stages: Sequence[MergedStage]) -> str:
    return listed([stage.name for stage in stages], _NAMED)


app = typer.Typer(help="Read new results; check, rebuild, merge the database.", no_args_is_help=True)


class CheckedDatabaseJson(DocumentJson):
    """`gpas db check --json`."""

    findings: Sequence[str]


class RebuiltJson(DocumentJson):
    """`gpas db rebuild --json`."""

    attempts: int
    problems: Sequence[str]


class BackedUpJson(DocumentJson):
    """`gpas db backup --json` and `gpas db upgrade --json`."""

    backup: Annotated[Path | None, "the copy that was made; null when the schema was up to date"]


class MergedJson(DocumentJson):
    """`gpas db merge --json`."""

    stages: Sequence[MergedStage]


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Upgrade the schema of the database to this version; make a backup first.

    Example: gpas db upgrade
    """
    backup = maintenance.upgrade(project().database)
    say(f"The database is up to date{f'; backup: {backup}' if backup else ''}.")
    if as_json:
        print_json(BackedUpJson(backup=backup))


@app.command()
def check(as_json: AsJson = False) -> None:
    """Read new journal events, and compare the database with the run directories. Exit code 4 if they disagree.

    Example: gpas db check
    """
    began = time.time()
    problem = ingest(project())
    findings = maintenance.check(project().database, project().runs, began)
    if not any(finding.message in problem for finding in findings):
        warn(problem)
    if as_json:
        print_json(CheckedDatabaseJson(findings=[*map(str, findings)]))
    else:
        for finding in findings:
            say(f"- {finding}")
        if not findings:
            say("The database agrees with the run directories.")
    if findings:
        raise typer.Exit(Exit.FAILED)


@app.command()
def rebuild(yes: Yes = False, as_json: AsJson = False) -> None:
    """Rebuild the database from the run directories. The old database is replaced once the new one is complete.

    Example: gpas db rebuild --yes
    """
    confirm(f"Replace {session.name_of(project().database)} by one built from {project().runs}?", yes)
    result = maintenance.rebuild(project().database, project().runs)
    say(f"Rebuilt from {count(result.attempts, 'attempt')} in {project().runs}.")
    for problem in result.problems:
        say(f"- {problem}", style="yellow")
    if as_json:
        print_json(RebuiltJson(attempts=result.attempts, problems=result.problems))


@app.command()
def backup(as_json: AsJson = False) -> None:
    """Copy the database to a file beside it, even while it is in use.

    Example: gpas db backup
    """
    made = maintenance.backup(project().database)
    say(f"Backup: {made}")
    if as_json:
        print_json(BackedUpJson(backup=made))


@app.command()
def merge(
    source: Annotated[Path, typer.Argument(help="The folder of the other project, or its run directories.")],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Copy checkpoints, too; stages after a training need them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Copy nothing; say what would be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the results of another project into this one, for example from another cluster.

    A stage that has a result there and none here is copied with all its attempts, journals and logs, under new
    numbers; `gpas why` shows where each comes from. A result that is here already is kept, and compared with the
    other. Merging twice copies nothing. Exit code 4 if a run directory cannot be read.

    Example: gpas db merge /mnt/other-cluster/gpas
    """
    asked = Merge(project().runs, run_directories(source), checkpoints, dry_run)
    stages: list[MergedStage] = []
    problem = ""
    with working("comparing the stages") as show:
        for stage in asked.stages():
            stages.append(stage)
            show(f"{count(len(stages), 'stage')} compared, the last {stage.name or stage.key}")
        if not dry_run:
            show("reading the journals into the database")
            problem = ingest(project())
    for line in _merge_lines(stages, dry_run):
        say(line)
    warn(problem)
    if as_json:
        print_json(MergedJson(stages=stages))
    if any(stage.problem for stage in stages):
        raise typer.Exit(Exit.FAILED)


class SyncedJson(DocumentJson):
    """`gpas db sync --json`."""

    read: Ingested = field(metadata=FLAT)


@app.command()
def sync(as_json: AsJson = False) -> None:
    """Read new journal events from run directories into the database. Other commands do so automatically.

    Example: gpas db sync
    """
    here = project()
    with session.opened(here.database) as engine:
        result = read_new(engine, here.runs)
    if as_json:
        print_json(SyncedJson(read=result))
        return
    parts = (result.attempts, "attempt"), (result.events, "new event"), (result.damaged, "damaged line")
    say(", ".join(count(number, noun) for number, noun in parts))
    if result.gone:
        what = f"{count(result.gone, 'run directory', 'run directories')} {verb(result.gone, 'is', 'are')} gone"
        say(f"{what}: their numbers are kept but not shown as results", style="yellow")
    for problem in result.problems:
        say(f"- {problem}", style="yellow")
