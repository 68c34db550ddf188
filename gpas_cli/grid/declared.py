"""experiments.yaml as declared, before expansion: frozen data whose values keep their place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from gpas_cli.grid.document import Mark, Node
from gpas_cli.grid.scalar import Label, same
from gpas_cli.spec.cell import Catalogue
from gpas_cli.spec.run import Cadence, Monitoring, Resources


@dataclass(frozen=True)
class Value:
    """One value of an axis: what a table calls it, and what it sets."""

    label: Label
    setting: Node


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid: one name, or several that vary together (`zip`). A point has one value per name."""

    names: tuple[str, ...]
    points: tuple[tuple[Value, ...], ...]

    def labels(self, name: str) -> tuple[Label, ...]:
        """The labels of axis `name`, in declared order."""
        index = self.names.index(name)
        return tuple(point[index].label for point in self.points)


@dataclass(frozen=True)
class Where:
    """A condition on labels: every axis named has one of the labels given. Empty: every cell."""

    mark: Mark
    terms: tuple[tuple[str, tuple[Node, ...], tuple[Label, ...]], ...] = ()

    def matches(self, labels: Mapping[str, Label]) -> bool:
        """Whether a cell with these labels is meant."""
        return all(
            name in labels and any(same(labels[name], label) for label in wanted) for name, _, wanted in self.terms
        )


@dataclass(frozen=True)
class When:
    """Axes that only the matching cells have."""

    where: Where
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Override:
    """Settings that the matching cells get last, and the reason."""

    where: Where
    settings: Node
    why: str


@dataclass(frozen=True)
class Include:
    """The cells of another grid, or those of them that match."""

    grid: str
    where: Where
    mark: Mark


@dataclass(frozen=True)
class TableSpec:
    """How a grid's results become a table.

    rows: the axes that make a row. columns: the axis across the page, or `task` for one column per downstream task.
    value: the metric shown. over: the axis averaged over. against: the labels of the row that deltas refer to.
    published: source -> name of that source's table, printed beside ours.
    """

    title: str
    rows: tuple[str, ...] = ("norm", "gate")
    columns: str = "size"
    value: str = "perplexity"
    over: str = "seed"
    against: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """One declared grid."""

    name: str
    title: str
    mark: Mark
    base: Node
    axes: tuple[Axis, ...] = ()
    when: tuple[When, ...] = ()
    exclude: tuple[Where, ...] = ()
    override: tuple[Override, ...] = ()
    include: tuple[Include, ...] = ()
    cadence: Cadence = field(default_factory=Cadence)
    watch: Monitoring = field(default_factory=Monitoring)
    resources: dict[str, object] = field(default_factory=dict)
    resources_node: Node | None = None
    table: TableSpec | None = None
    table_node: Node | None = None

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Declared axes, conditional ones last: the order of labels in a cell's name."""
        return (*self.axes, *(axis for when in self.when for axis in when.axes))

    @property
    def has_own_cells(self) -> bool:
        """False for a grid that only includes others."""
        return bool(self.all_axes or self.base.value)

    def bound(self) -> int:
        """At least as many cells as the grid's own axes can give."""
        return prod(len(axis.points) for axis in self.all_axes) if self.has_own_cells else 0


@dataclass(frozen=True)
class Experiments:
    """A whole experiments.yaml. `resources` are by size; `text_resources` what is said of jobs that tokenise; `corpora`
    the nodes of the texts that `catalogue` has."""

    path: Path
    default: str
    grids: Mapping[str, Grid]
    catalogue: Catalogue = field(default_factory=Catalogue)
    recipes: Mapping[str, Node] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    text_resources: Mapping[str, object] = field(default_factory=dict)
    corpora: Mapping[str, Node] = field(default_factory=dict)
