"""Names of cells: the labels of a grid's axes in declared order, safe in file names and shells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpas_cli.grid.scalar import Label
from gpas_cli.grid.settings import short

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def cell_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """The labels of `axes`, joined: "pre-gpas-s1". `none` is left out unless nothing else is left."""
    parts = [short(axis, labels[axis]) for axis in dict.fromkeys(axes) if axis in labels]
    return "-".join(safe(part) for part in parts if part != "none") or "none"


def safe(text: str) -> str:
    """`text` with all but letters, digits, dot, plus, minus and underscore replaced, and no leading dot or minus."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "_"
