"""What expansion produces: a cell with the name and labels by which people and tables refer to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpas_cli.grid.scalar import Label
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.run import Cadence, Resources, Watch


@dataclass(frozen=True)
class Entry:
    """One cell of one grid.

    axes: the label of every axis, and of `size`, `norm`, `gate`, `seed` also where the grid does not vary them.
    text_resources: what a job that tokenises the cell's text asks for.
    notes: why a declared override changed this cell, one sentence each.
    """

    cell: Cell
    grid: str
    name: str
    axes: dict[str, Label]
    cadence: Cadence = field(default_factory=Cadence)
    resources: Resources = field(default_factory=Resources)
    text_resources: Resources = field(default_factory=Resources)
    watch: Watch = field(default_factory=Watch)
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """How a command line names this cell."""
        return f"{self.grid}/{self.name}"

    @property
    def key(self) -> str:
        """The content key of the cell's last stage."""
        return self.cell.key
