"""Names of cells: the labels of a grid's axes in declared order, safe in file names and shells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpas_cli.grid.scalar import Label
from gpas_cli.grid.settings import short

_GRID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
LONGEST = 100  # characters of a grid's name, which becomes a part of file names
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def cell_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """The labels of `axes`, joined: "pre-gpas-s1". `none` is left out unless nothing else is left."""
    parts = [short(axis, labels[axis]) for axis in dict.fromkeys(axes) if axis in labels]
    return "-".join(safe(part) for part in parts if part != "none") or "none"


def safe(text: str) -> str:
    """`text` with all but letters, digits, dot, plus, minus and underscore replaced, and no leading dot or minus."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "_"


def name_fault(grid: str) -> str:
    """What is wrong with the name of a grid, "" if nothing is. Names are parts of cell names, files and commands."""
    if _GRID.fullmatch(grid) and len(grid) <= LONGEST:
        return ""
    allowed = f"a grid's name has at most {LONGEST} letters, digits and . _ + -, and starts with a letter, a digit or _"
    return f"{allowed}; write {safe(grid)[:LONGEST]}"
