"""What expansion produces: a cell with the name and labels by which people and tables refer to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpas_cli.grid.document import Node
from gpas_cli.grid.scalar import Label
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.words import count, verb


@dataclass(frozen=True)
class Declared:
    """Where a cell comes from: the grid that declares it, which another may include, its settings, and the named texts
    of the file."""

    grid: str
    settings: Node
    corpora: Mapping[str, Node] = field(default_factory=dict)

    def place(self, path: Sequence[str]) -> str:
        """Where in the file the setting stands, or the nearest one above it: "experiments.yaml:12:7"."""
        node = self.settings
        for part in path:
            node = self._below(node, part)
        return str(node.mark)

    def _below(self, node: Node, part: str) -> Node:
        """The entry `part` of a mapping, or of the text under `corpora` that a word names; the node itself if none."""
        entries = node.value if isinstance(node.value, dict) else {"like": node}
        if part in entries:
            return entries[part]
        start = entries["like"].value if "like" in entries else None
        return self._below(self.corpora[start], part) if isinstance(start, str) and start in self.corpora else node


@dataclass(frozen=True)
class Entry:
    """One cell of one grid.

    axes: the label of every axis, and of `size`, `norm`, `gate`, `seed` also where the grid does not vary them.
    text_resources: what a job that tokenises the cell's text asks for.
    notes: why a declared override changed this cell, one sentence each.
    declared: what the cell was made of; None for one that no grid declares.
    """

    cell: Cell
    grid: str
    name: str
    axes: dict[str, Label]
    cadence: Cadence = field(default_factory=Cadence)
    resources: Resources = field(default_factory=Resources)
    text_resources: Resources = field(default_factory=Resources)
    watch: Monitoring = field(default_factory=Monitoring)
    notes: tuple[str, ...] = ()
    declared: Declared | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """How a command line names this cell."""
        return f"{self.grid}/{self.name}"

    @property
    def key(self) -> str:
        """The content key of the cell's last stage."""
        return self.cell.key


def counted(entries: Iterable[Entry]) -> str:
    """How many different cells there are: "155 cells", "139 cells, 16 of which belong to several grids"."""
    grids: dict[str, set[str]] = {}
    for entry in entries:
        grids.setdefault(entry.key, set()).add(entry.grid)
    shared = sum(len(names) > 1 for names in grids.values())
    also = f", {shared} of which {verb(shared, 'belongs', 'belong')} to several grids" if shared else ""
    return f"{count(len(grids), 'cell')}{also}"
