"""Names of cells: the labels of a grid's axes in declared order, safe for file names and shells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from gpas_cli.grid.scalar import Label
from gpas_cli.grid.settings import short

_GRID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
MAX_NAME_LENGTH = 100  # characters of a grid's name, which is part of file names
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def cell_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """Return the labels of `axes`, joined: "pre-gpas-s1". `none` is omitted unless it is the only label."""
    parts = [_part(axis, labels[axis]) for axis in dict.fromkeys(axes) if axis in labels]
    return "-".join([part for part in parts if part]) or "none"


@lru_cache(maxsize=65536, typed=True)  # 1, 1.0 and True are equal, and have different names
def _part(axis: str, label: Label) -> str:
    """Return the part of a cell's name for a label, "" for `none`."""
    part = short(axis, label)
    return "" if part == "none" else safe(part)


def family_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """Return the name of a cell without its seed: "pre-gpas"."""
    return cell_name((axis for axis in axes if axis != "seed"), labels)


def safe(text: str) -> str:
    """Replace all but letters, digits and . _ + - by underscores, and remove leading dots and dashes."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "_"


def name_fault(grid: str) -> str:
    """Return what is wrong with the name of a grid, or "". It is part of cell names, file names and commands."""
    if _GRID.fullmatch(grid) and len(grid) <= MAX_NAME_LENGTH:
        return ""
    allowed = f"at most {MAX_NAME_LENGTH} letters, digits and . _ + -, and starts with a letter, a digit or _"
    return f"a grid's name has {allowed}; write {safe(grid)[:MAX_NAME_LENGTH]}"
