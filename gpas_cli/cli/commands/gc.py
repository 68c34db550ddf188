"""`gpas gc`: what grids occupy on disk, and the deletion of checkpoints that no longer serve a purpose."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from gpas_cli.checkpoints import RULES
from gpas_cli.cli.console import confirm, print_json, say
from gpas_cli.cli.options import AsJson, CellsOrGrids, Where, Yes, offer_list
from gpas_cli.cli.selection import cells_or_grids, entries, experiments, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.trunks import needed_trunks
from gpas_cli.plan.undeclared import undeclared
from gpas_cli.state.cleanup import StageUse, needed_by, remove, size_of, stage_use
from gpas_cli.state.observe import statuses
from gpas_cli.structure import DocumentJson
from gpas_cli.words import byte_size, count, listed

_UNDECLARED = "(declared by no grid)"
_NOTHING = ("0 B", "0 B", "0 B")  # of checkpoints, of other files, to delete


class OccupiedJson(DocumentJson):
    """`gpas gc --json`."""

    deleted: Annotated[bool, "whether the checkpoints were to be deleted"]
    rules: Sequence[str]
    stages: Sequence[StageUse]


def gc(
    words: CellsOrGrids = None,
    where: Where = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", help=f"{', '.join(RULES)}; repeat for several.", autocompletion=offer_list(RULES)),
    ] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", help="Only checkpoints at least this many days old.", min=0)
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the checkpoints; without it, only list.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show what each grid occupies; --delete frees checkpoints.

    Without --delete nothing is deleted.

    The default rule, superseded, selects all but the last checkpoint of stages with a result, and all checkpoints of
    diverged and forgotten runs. finished selects the last one too, unless a declared stage without a result builds on
    it or starts from it. failed selects all checkpoints of failed and cancelled stages, which `gpas retry` then starts
    at the first update.

    Results, journals and logs are never deleted, nor what a run may resume from.

    Example: gpas gc table2 --rule superseded --rule finished --older-than 30 --delete
    """
    rules = rule or ["superseded"]
    for name in rules:
        if name not in RULES:
            raise GpasError(f"unknown rule '{name}'; {nearest(name, RULES)}")
    chosen = cells_or_grids(words, where)
    if not words and not where:
        chosen = [*chosen, *undeclared(project().runs, chosen, experiments().catalogue)]
    uses, started = _uses(chosen, rules, older_than)
    selected = [use for use in uses.values() if use.removable]
    say(_table(chosen, uses, started))
    say("\n".join(_totals(uses, rules)))
    if delete and selected:
        number = sum(len(use.removable) for use in selected)
        confirm(f"Delete {count(number, 'checkpoint')} ({byte_size(_removable(selected))})?", yes)
        freed = sum(remove(project().runs, use) for use in selected)
        say(f"Deleted {byte_size(freed)}.")
    if as_json:
        print_json(OccupiedJson(deleted=delete, rules=rules, stages=list(uses.values())))


def _uses(
    chosen: Sequence[Entry], rules: Sequence[str], older_than: float | None
) -> tuple[dict[str, StageUse], dict[str, str]]:
    """Return what the stages of the cells occupy, and the grids for which they were started, both by key."""
    runs = project().runs
    declared = entries(list(experiments().grids))
    seen = statuses(runs, [*declared, *chosen])
    needed = needed_by(declared, seen) | needed_trunks(runs, declared)
    keys = dict.fromkeys(stage.key for entry in chosen for stage in entry.cell.stages)
    before = time.time() - (older_than or 0) * 86400
    uses = {key: stage_use(runs, key, seen[key].state, needed=needed, rules=rules, before=before) for key in keys}
    return uses, {key: seen[key].grid for key in keys}


def _table(chosen: Sequence[Entry], uses: dict[str, StageUse], started: dict[str, str]) -> Columns:
    """Return a table with a row per grid, where a stage of several grids counts in the one that started it."""
    declared = {entry.id for entry in entries(list(experiments().grids))}
    grids: dict[str, list[str]] = {}  # of each stage, the one that it counts in first
    cells: Counter[str] = Counter()
    for entry in chosen:
        name = entry.grid if entry.id in declared else _UNDECLARED
        cells[name] += 1
        for key in (stage.key for stage in entry.cell.stages):
            own = grids.setdefault(key, [])
            if name not in own:
                own.insert(0 if name == started[key] else len(own), name)
    headers = ("grid", "cells", "checkpoints", "other files", "can be deleted", "shared with")
    rows: list[tuple[str, ...]] = []
    for name in cells:
        keys = [key for key, own in grids.items() if own[0] == name]
        others = dict.fromkeys(other for key in keys for other in grids[key][1:] if uses[key].checkpoint_bytes)
        own_uses = [uses[key] for key in keys]
        sizes = map(byte_size, (*_sums(own_uses), _removable(own_uses)))
        rows.append((name, f"{cells[name]:,}", *sizes, listed(list(others), 2)))
    return Columns(headers, [row for row in rows if row[2:5] != _NOTHING], right=frozenset(headers[1:5]))


def _totals(uses: dict[str, StageUse], rules: Sequence[str]) -> Iterator[str]:
    every = list(uses.values())
    checkpoints, others = _sums(every)
    number = sum(len(use.removable) for use in every)
    yield (
        f"{byte_size(checkpoints)} of checkpoints and {byte_size(others)} of other files; by rule {', '.join(rules)}, "
        f"{count(number, 'checkpoint')} ({byte_size(_removable(every))}) can be deleted"
    )
    here = project()
    code, cache = (byte_size(size_of(folder)) for folder in (here.runs / ".code", here.cache))
    yield f"copies of the code: {code}; token cache: {cache}"


def _sums(uses: Sequence[StageUse]) -> tuple[int, int]:
    return sum(use.checkpoint_bytes for use in uses), sum(use.other_bytes for use in uses)


def _removable(uses: Sequence[StageUse]) -> int:
    return sum(one.bytes for use in uses for one in use.removable)
