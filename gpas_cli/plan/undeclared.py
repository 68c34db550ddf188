"""Cells in the run directories that no grid declares.

Such cells exist after a grid was edited, or a cell was varied on the command line. They are read from their attempts,
or from the submissions that claim them.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gpas_cli.errors import GpasError, StoreError, UnknownCell
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.select import MIN_PREFIX_DIGITS
from gpas_cli.plan.stage_jobs import stage_jobs, stage_keys
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.spec.stage import EXTERNAL, TOKENISE
from gpas_cli.state.claims import claim_path
from gpas_cli.state.view import SchedulerView, facts_of
from gpas_cli.store.rundir import all_keys
from gpas_cli.structure import from_mapping

_T = TypeVar("_T")


def undeclared(
    runs: Path, declared: Iterable[Entry], catalogue: Catalogue, *, claimed: bool = False, shown: Iterable[Entry] = ()
) -> list[Entry]:
    """Return the cells of the stages under `runs` that none of the `declared` cells needs.

    With `claimed`, return only those that may be queued or running. Stages whose cell this version cannot read are
    skipped. `declared` is read only if there are stages that none of the `shown` cells, which are some of them, needs.
    """
    known = stage_keys(shown)
    unknown = [key for key in all_keys(runs) if key not in known and (not claimed or claim_path(runs, key).exists())]
    known = stage_keys(declared) if unknown else set()
    view = SchedulerView(runs)
    found = []
    for key in (key for key in unknown if key not in known):
        facts = facts_of(view, key)
        if _of_cell(facts):
            with suppress(UnknownCell):
                found.append(_read(facts, key, catalogue))
    return _distinct(found)


def with_key(runs: Path, prefix: str, catalogue: Catalogue) -> list[Entry]:
    """Return the cells with a stage under `runs` whose key begins with `prefix`.

    The list is empty if `prefix` is not a key or a prefix of at least MIN_PREFIX_DIGITS digits. Raises UnknownCell if
    there is such a stage and its cell cannot be read.
    """
    prefix = prefix.lower()
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX_DIGITS},16}}", prefix):
        return []
    keys = [key for key in all_keys(runs) if key.startswith(prefix)]
    view = SchedulerView(runs)
    recorded = {key: facts_of(view, key) for key in keys}
    of_cells = {key: facts for key, facts in recorded.items() if _of_cell(facts)}
    return _distinct(_read(facts, key, catalogue) for key, facts in of_cells.items())


def _of_cell(facts: Mapping[str, Any]) -> bool:
    """Return whether a stage belongs to a cell, and neither prepares a text nor comes from `gpas evaluate`."""
    return facts.get("stage") not in (TOKENISE, EXTERNAL) and facts.get("grid") != EXTERNAL


def _read(facts: Mapping[str, Any], key: str, catalogue: Catalogue) -> Entry:
    """Return the cell that a stage's facts describe, with its grid and name.

    Raises UnknownCell if they describe no cell, or a cell without the stage `key`.
    """
    try:
        cell = cell_from(facts["cell"], catalogue)
        axes = dict(facts["axes"])
    except (GpasError, KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UnknownCell(f"{key}: no grid declares it, and its cell cannot be read: {reason}") from error
    if key not in stage_jobs([Entry(cell, "", "", {})]):
        raise UnknownCell(f"{key}: no grid declares it, and this version gives its cell another key")
    return Entry(
        cell=cell,
        grid=str(facts["grid"]),
        name=str(facts["name"]),
        axes=axes,
        cadence=_built(Cadence, facts.get("cadence")),
        resources=_built(Resources, facts.get("resources")),
        watch=_built(Monitoring, facts.get("watch")),
    )


def _built(kind: type[_T], values: Any) -> _T:
    """Return the recorded instance, or one with default values if this version cannot read the record."""
    with suppress(StoreError):
        return from_mapping(kind, values, "")
    return kind()


def _distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Return each cell once, even if several of its stages were found."""
    return list({entry.cell.key: entry for entry in entries}.values())
