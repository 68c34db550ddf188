"""`gpas forget`: retire results without erasing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

import typer

from gpas_cli.cli.console import confirm, console, print_json, warn
from gpas_cli.cli.options import AsJson, CellsOrGrids, Where, Yes
from gpas_cli.cli.selection import chosen_cells, project
from gpas_cli.cli.views.progress import result
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.entry import Entry
from gpas_cli.state.cleanup import forget as retire
from gpas_cli.state.cleanup import restore
from gpas_cli.state.observe import observe
from gpas_cli.store.history import note
from gpas_cli.store.refresh import ingest, results_of
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.words import count, listed

NAMED = 20


class _ForgottenStageJson(TypedDict):
    """A stage whose attempts were forgotten, or restored."""

    key: str
    directories: Annotated[list[str], "the folders of its attempts, under their new names"]


class ForgottenJson(DocumentJson):
    """`gpas forget --json`."""

    stages: list[_ForgottenStageJson]


def forget(
    words: CellsOrGrids = None,
    where: Where = None,
    stage: Annotated[
        str, typer.Option("--stage", help="The stage to forget, with all that build on it; by default the last one.")
    ] = "",
    why: Annotated[str, typer.Option("--why", help="The reason, which is kept with the result.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Restore forgotten results.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retire results: tables no longer show them, `gpas run` runs these cells anew. Nothing is erased.

    All attempts of the stage are set aside in the run directory, so that nothing resumes from them. Stages that build
    on a forgotten one are forgotten too, in every cell that shares it.

    Example: [bold]gpas forget pre-gpas-s1 --why "wrong tokenizer"[/bold]

    Example: [bold]gpas forget pre-gpas-s1 --undo[/bold]
    """
    chosen = chosen_cells(words, where)
    named = {_key(entry, stage): entry.id for entry in chosen}
    folders = _restore(named) if undo else _forget(named, why, yes)
    note(project().runs, "restore" if undo else "forget", [named.get(key, key) for key in folders], why)
    for key, attempts in folders.items():
        done = "restored" if undo else "forgotten"
        console().print(f"{named.get(key, key)}: {done} ({count(len(attempts), 'attempt')})", markup=False)
    if as_json:
        stages: list[_ForgottenStageJson] = [
            {"key": key, "directories": [str(attempt.path) for attempt in attempts]}
            for key, attempts in folders.items()
        ]
        print_json(ForgottenJson(schema=1, stages=stages))


def _key(entry: Entry, kind: str) -> str:
    """Return the key of the entry's stage of this kind, by default the last one."""
    kinds = {stage.kind: stage.key for stage in entry.cell.stages}
    if kind and kind not in kinds:
        raise GpasError(f"{entry.id} has no stage '{kind}'; {nearest(kind, kinds)}")
    return kinds[kind] if kind else entry.cell.key


def _forget(named: dict[str, str], why: str, yes: bool) -> dict[str, list[AttemptDir]]:
    from gpas_cli.store.rundir import attempts

    runs = project().runs
    tried = [key for key in named if attempts(runs, key)]
    if not tried:
        raise GpasError(f"nothing to forget: {listed(list(named.values()), NAMED)} has no attempt")
    stages = _with_dependents(tried)
    others = {other for built_on in stages.values() for other in built_on if attempts(runs, other)}
    for key in tried[:NAMED]:
        console().print(f"{named[key]}: {_result(key)}", markup=False)
    build = f"build{'s' if len(others) == 1 else ''} on {'it' if len(tried) == 1 else 'them'}"
    shared = f", and {count(len(others), 'stage')} that {build}" if others else ""
    confirm(f"Forget {count(len(tried), 'result')}{shared}?", yes)
    done = retire(runs, stages, why)
    _ingest()
    return done


def _restore(named: dict[str, str]) -> dict[str, list[AttemptDir]]:

    done = restore(project().runs, named)
    if not done:
        raise GpasError(f"nothing to restore: no result of {listed(list(named.values()), NAMED)} was forgotten")
    _ingest()
    return done


def _with_dependents(keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of the stages that build on each stage."""
    from gpas_cli.origin.provenance import dependents

    with results_of(project()) as (engine, _):
        return dependents(engine, keys)


def _result(key: str) -> str:

    status = observe(project().runs, key)
    return f"{status.state}{result(status)}"


def _ingest() -> None:

    warn(ingest(project()))
