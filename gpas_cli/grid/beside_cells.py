"""Read the parts of a declared grid that leave its cells as they are: a mistake in one hides none in the cells."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from gpas_cli.errors import Problem
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.document import Node
from gpas_cli.grid.readers import (
    read_dataclass,
    read_mapping,
    read_sentence,
    read_text,
    read_text_mapping,
    read_texts,
)
from gpas_cli.grid.settings import children
from gpas_cli.spec.parse import SettingPath
from gpas_cli.spec.run import Cadence, Monitoring

BESIDE_CELLS = ("title", "cadence", "watch", "resources", "table")


def may_lack_cells(node: Node, known: Collection[str]) -> bool:
    """Return whether a key of a grid that is not `known` may be a misspelt part of its cells."""
    return any(not get_close_matches(key, BESIDE_CELLS) for key in children(node) if key not in known)


def read_cadence(node: Node | None, path: SettingPath, problems: list[Problem]) -> Cadence:
    """Return how often a training evaluates and writes checkpoints."""
    return (read_dataclass(Cadence, node, path, problems) if node else None) or Cadence()


def read_watch(node: Node | None, path: SettingPath, problems: list[Problem]) -> Monitoring:
    """Return when a training counts as diverged."""
    return (read_dataclass(Monitoring, node, path, problems) if node else None) or Monitoring()


def read_table(node: Node | None, path: SettingPath, title: str, problems: list[Problem]) -> TableSpec | None:
    """Return the table, or None if there is none or after adding to `problems`."""
    if node is None:
        return None
    before = len(problems)
    known = ("title", "rows", "columns", "value", "over", "against", "published")
    parts = read_mapping(node, path, problems, known)
    table = TableSpec(
        title=read_sentence(parts.get("title"), (*path, "title"), problems, title),
        rows=read_texts(parts.get("rows"), (*path, "rows"), problems) or TableSpec.rows,
        columns=read_text(parts.get("columns"), (*path, "columns"), problems, TableSpec.columns),
        value=read_text(parts.get("value"), (*path, "value"), problems, TableSpec.value),
        over=read_text(parts.get("over"), (*path, "over"), problems, TableSpec.over),
        against=read_text_mapping(parts.get("against"), (*path, "against"), problems),
        published=read_text_mapping(parts.get("published"), (*path, "published"), problems),
    )
    return table if len(problems) == before else None
