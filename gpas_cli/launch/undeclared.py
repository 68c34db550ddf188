"""Cells whose jobs are queued or running although experiments.yaml does not declare them any more."""

from __future__ import annotations

import re
from pathlib import Path

from gpas_cli.errors import GpasError, UnknownCell
from gpas_cli.grid.entry import Entry
from gpas_cli.launch.submitters import CLAIM, read_claim
from gpas_cli.launch.told import told_of
from gpas_cli.spec.cell import Catalogue, cell_from

_PREFIX = re.compile(r"[0-9a-f]{4,16}")


def claimed_cell(runs: Path, word: str, catalogue: Catalogue) -> Entry | None:
    """The cell of the claimed stage whose key begins with `word` (at least 4 digits), as it was submitted; else None.

    Raises UnknownCell when several stages fit, or the cell that was submitted cannot be read.
    """
    if not _PREFIX.fullmatch(word.lower()):
        return None
    keys = sorted(path.parent.name for path in runs.glob(f"{word[:2].lower()}/{word.lower()}*/{CLAIM}"))
    if len(keys) > 1:
        raise UnknownCell(f"'{word}' fits {len(keys)} stages: {', '.join(keys[:6])}")
    return _as_submitted(runs, keys[0], catalogue) if keys else None


def _as_submitted(runs: Path, key: str, catalogue: Catalogue) -> Entry:
    facts = told_of(runs, key)
    try:
        cell = cell_from(facts["cell"], catalogue)
        if key in {stage.key for stage in cell.stages}:
            return Entry(cell=cell, grid=str(facts["grid"]), name=str(facts["name"]), axes=dict(facts["axes"]))
        problem = "this version gives it another key"
    except (GpasError, KeyError, TypeError, ValueError) as error:
        problem = str(error)
    claim = read_claim(runs, key)
    raise UnknownCell(f"{key} is claimed by {claim}, and its cell cannot be read: {problem}")
