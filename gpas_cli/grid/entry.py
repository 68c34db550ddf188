"""The result of expansion: a cell with its name and its labels for tables and conditions."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpas_cli.grid.document import Label, Node, identity
from gpas_cli.spec.cell import Cell, Stage
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.words import count, verb


@dataclass(frozen=True)
class Declared:
    """The declaration of a cell: the grid that declares it (others may include it), its settings, and the named corpora
    of the file. `added`: its seed is one of those added beside the file."""

    grid: str
    settings: Node
    corpora: Mapping[str, Node] = field(default_factory=dict)
    added: bool = False

    def place(self, path: Sequence[str]) -> str:
        """Return the position of a setting in the file, or of its nearest parent: "experiments.yaml:12:7"."""
        node = self.settings
        for part in path:
            node = self._below(node, part)
        return str(node.mark)

    def _below(self, node: Node, part: str) -> Node:
        """Return the entry `part` of a mapping or of the corpus that a string names, else the node itself."""
        entries = node.value if isinstance(node.value, dict) else {"like": node}
        if part in entries:
            return entries[part]
        start = entries["like"].value if "like" in entries else None
        return self._below(self.corpora[start], part) if isinstance(start, str) and start in self.corpora else node


@dataclass(frozen=True)
class Entry:
    """One cell of one grid.

    axes: the label of every axis, and of `size`, `norm`, `gate` and `seed` even if the grid does not vary them.
    resources: a training's. kind_resources: declared for other kinds of job.
    notes: the reasons of the overrides that changed this cell, one sentence each.
    declared: the declaration; None for a recorded cell that no grid declares.
    """

    cell: Cell
    grid: str
    name: str
    axes: dict[str, Label]
    cadence: Cadence = field(default_factory=Cadence)
    resources: Resources = field(default_factory=Resources)
    kind_resources: Mapping[str, Resources] = field(default_factory=dict)
    watch: Monitoring = field(default_factory=Monitoring)
    notes: tuple[str, ...] = ()
    declared: Declared | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The name of this cell on the command line: grid/name."""
        return f"{self.grid}/{self.name}"

    @property
    def key(self) -> str:
        """The content key of the cell's last stage."""
        return self.cell.key

    def labels_without(self, *axes: str) -> Hashable:
        """Return its labels on the other axes: cells that differ only in `axes` have the same."""
        return frozenset((axis, identity(label)) for axis, label in self.axes.items() if axis not in axes)

    def resources_of(self, stage: Stage) -> Resources:
        """Return the resources of a stage's job, by default the training's.

        A stage that does not train has one process of them by default.
        """
        default = self.resources if stage.declared.trains else self.resources.single_process
        return self.kind_resources.get(stage.kind, default)

    @property
    def text_resources(self) -> Resources:
        """The resources of a job that tokenises the cell's text."""
        return self.kind_resources.get(TOKENISE) or self.resources.for_tokenising


def counted(entries: Iterable[Entry]) -> str:
    """Return the number of different cells: "155 cells", "139 cells, 16 of which belong to several grids"."""
    grids: dict[str, set[str]] = {}
    for entry in entries:
        grids.setdefault(entry.key, set()).add(entry.grid)
    shared = sum(len(names) > 1 for names in grids.values())
    also = f", {shared} of which {verb(shared, 'belongs', 'belong')} to several grids" if shared else ""
    return f"{count(len(grids), 'cell')}{also}"
