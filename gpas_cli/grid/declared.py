"""experiments.yaml as declared: frozen data whose values know their position in the file; and the result of expansion,
an `Entry`: a cell with its name and its labels for tables and conditions.

Claims are statements about recorded numbers that `gpas claims` checks. A claim has one or more comparisons. A
comparison gives one effect for each seed:

    difference   value of the subject - value of the base      lower: below 0, higher: above 0
    ratio        value of the subject / value of the base      lower: below 1, higher: above 1
    value        value of the subject                          negative: below 0, positive: above 0

With `across`, the effect at the second label is subtracted from the effect at the first: the interaction. The claim
says that the mean effect lies between `low` and `high`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from gpas_cli.extension import absent, missing
from gpas_cli.grid.document import Label, Mark, Node, identity
from gpas_cli.grid.packs import Pack, known_packs
from gpas_cli.grid.resources import ResourceSettings
from gpas_cli.grid.settings import children
from gpas_cli.spec.cell import Cell, Stage
from gpas_cli.spec.parse import setting
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.structure import Frozen
from gpas_cli.words import count, grouped, verb

PAIRED_T = "t"
EACH_RUN = "each-run"
SPREAD = "spread"

_TAKES = (
    *("mean", "max", "min", "first", "last", "slope", "log-slope", "exponential-aic", "early-change"),
    *("share-positive", "count", "exponent", "offset"),
)
FITTED = ("exponent", "offset")  # of a law through several cells
_FITTED_OVER = ("parameters", "flops", "tokens", "layers", "length")
_LAYER_GROUPS = ("all", "first", "later", "shallower", "deeper", "pre", "post")

_NOWHERE = Mark("", 0, 0)

_Labels = Mapping[str, tuple[Label, ...]]


class Source(Frozen):
    """Where a claim is made: a source of published numbers (`gpas`), the place in it, and its words."""

    paper: str = ""
    where: str = setting("", lines=True)
    quote: str = setting("", lines=True)


class Feature(Frozen):
    """The number that one run contributes: a metric, or a number taken from a curve."""

    metric: str = ""
    curve: str = ""
    take: str = setting("mean", choices=_TAKES)
    """One of mean, max, min, first, last, slope (per layer or update), log-slope (of the logarithm), exponential-aic
    (the AIC of a power law through the points minus an exponential's), early-change (share of the movement in the first
    fifth of the updates), share-positive or count."""
    layers: tuple[str | int, ...] = setting(("all",), choices=_LAYER_GROUPS, low=1)
    """Which layers: all, first, later (all but the first), shallower, deeper (halves), pre, post (kinds of layer), or
    numbers; a list is a conjunction."""
    updates: str | int = setting("last", choices=("last", "all"), low=0)
    """Which updates: last, all, or the update at or before which a value was recorded."""
    along: tuple[str, ...] = ()
    """Axes along which a law is fitted to the metric, for each seed by itself: y = A x^-b has the `exponent` b, and
    y = E + A x^-b the `offset` E."""
    x: str = setting("parameters", choices=_FITTED_OVER)  # over what the law is fitted

    @property
    def title(self) -> str:
        """The number in words: "perplexity", "max of activation_variance over layers"."""
        if self.along:
            return f"{self.take} of {self.metric} over {self.x}"
        if self.metric:
            return self.metric
        layers = "" if self.layers == ("all",) else f", layers {' and '.join(map(str, self.layers))}"
        when = {"last": "", "all": ", all updates"}.get(str(self.updates), f", update {self.updates}")
        return f"{self.take} of {self.curve}{layers}{when}"


class Comparison(Frozen):
    """One comparison of a claim; it is made for every combination of labels on the axes `by`.

    low, high: the open interval in which the claim places the effect.
    """

    says: str
    grids: tuple[str, ...]
    subject: _Labels  # conditions on labels
    value: Feature
    against: Mapping[str, Label] = field(default_factory=dict)
    """The labels in which the base differs from the subject, {} if values themselves are compared."""
    compare: str = "difference"
    low: float = -math.inf
    high: float = math.inf
    by: tuple[str, ...] = ()
    over: str = "seed"
    best: str = ""  # an axis; for the subject and for the base, its label with the best number counts; "" for none
    across: tuple[str, Label, Label] | None = None  # an axis and two of its labels
    test: str = PAIRED_T
    published: Mapping[Pack, str] = field(default_factory=dict)
    """Paper -> table whose numbers give the published effect."""
    printed: float | None = None  # an effect that the text of the source states
    mark: Mark = _NOWHERE
    marks: Mapping[str, Mark] = field(default_factory=dict)  # the places of its settings in the file

    @property
    def logarithmic(self) -> bool:
        """Whether effects are tested as logarithms: ratios are, and ratios of two ratios."""
        return self.compare == "ratio"

    def is_subject(self, labels: Mapping[str, Label]) -> bool:
        """Return whether a cell with these labels is a subject."""
        return _matches(labels, self.subject)

    def is_base(self, labels: Mapping[str, Label]) -> bool:
        """Return whether a cell with these labels can be the base of a subject."""
        same = {axis: wanted for axis, wanted in self.subject.items() if axis not in self.against}
        return _matches(labels, {**same, **{axis: (label,) for axis, label in self.against.items()}})


class Claim(Frozen):
    """One claim, at the size of a paper or at toy size (`toy`). `tuned`: each method is at its own best rate."""

    name: str
    statement: str
    comparisons: tuple[Comparison, ...]
    source: Source = field(default_factory=Source)
    toy: bool = False
    mark: Mark = _NOWHERE
    tuned: bool = False

    @property
    def grids(self) -> tuple[str, ...]:
        """The grids whose cells the claim compares."""
        return tuple(dict.fromkeys(grid for comparison in self.comparisons for grid in comparison.grids))


def _matches(labels: Mapping[str, Label], wanted: _Labels) -> bool:
    return all(
        axis in labels and identity(labels[axis]) in {identity(label) for label in options}
        for axis, options in wanted.items()
    )


AddedSeeds = Mapping[str, tuple[Node, ...]]  # name of a cell without its seed -> seeds


class Value(Frozen):
    """One value of an axis: its label, and the setting it stands for."""

    label: Label
    setting: Node


class Axis(Frozen):
    """One dimension of a grid: one name, or several that vary together (`zip`). A point has one value per name."""

    names: tuple[str, ...]
    points: tuple[tuple[Value, ...], ...]

    def labels(self, name: str) -> tuple[Label, ...]:
        """Return the labels of axis `name` in declared order."""
        index = self.names.index(name)
        return tuple(point[index].label for point in self.points)


class Condition(Frozen):
    """A condition on labels: each named axis has one of the given labels. An empty condition matches every cell."""

    mark: Mark
    terms: tuple[tuple[str, tuple[Node, ...], tuple[Label, ...]], ...] = ()

    @property
    def labels(self) -> dict[str, tuple[Label, ...]]:
        """The labels that each named axis may have."""
        return {name: wanted for name, _, wanted in self.terms}

    def matches(self, labels: Mapping[str, Label]) -> bool:
        """Return whether a cell with these labels matches."""
        return _matches(labels, self.labels)


class ConditionalAxes(Frozen):
    """Further axes of the matching cells (`when`)."""

    where: Condition
    axes: tuple[Axis, ...]


class Override(Frozen):
    """Settings applied to the matching cells after all others, and the reason; or a note on them, and tags."""

    where: Condition
    settings: Node
    why: str
    tags: tuple[str, ...] = ()


class Include(Frozen):
    """The cells of another grid that match a condition."""

    grid: str
    where: Condition
    mark: Mark


class Line(Frozen):
    """A row, column or band that a table lists: its title, the labels of its cells, and the band of a row."""

    title: str
    labels: _Labels
    band: str = ""


class TableSpec(Frozen):
    """The table of a grid's results."""

    title: str
    rows: tuple[str, ...] = ("norm", "gate")  # the axes of the rows
    columns: str = "size"
    """The axis of the columns, `task` for one column per downstream task, or `text` for one per text."""
    value: str = "perplexity"  # the metric
    over: str = "seed"  # the axis to average over
    best: str = ""  # an axis; each table cell shows its label with the best mean over the seeds; "" for none
    against: dict[str, Label] = field(default_factory=dict)  # the labels of the row that differences refer to
    published: dict[Pack, str] = field(default_factory=dict)
    """Paper -> name of that paper's table, printed beside our numbers."""
    lines: tuple[Line, ...] = ()
    """The rows that the table lists, in their order; a line without a title stands for every row of its band."""
    headings: tuple[Line, ...] = ()  # the columns that the table lists, in their order
    corner: str = ""  # the heading of the row titles, "" for the metric's
    digits: int | None = None  # after the point, None for the metric's

    def tuned(self, axis: str) -> TableSpec:
        """Return the table in which each cell is the best of `axis`, which is not in the rows or columns then."""
        columns = TableSpec.columns if self.columns == axis else self.columns
        return replace(self, best=axis, rows=tuple(name for name in self.rows if name != axis), columns=columns)


class Scope(Frozen):
    """What the settings of a file's grids may refer to, and what they have by default."""

    catalogue: Catalogue = field(default_factory=Catalogue)
    recipes: Mapping[str, Node] = field(default_factory=dict)  # by size
    resources: Mapping[str, Resources] = field(default_factory=dict)  # by size
    kind_resources: ResourceSettings = field(default_factory=ResourceSettings)  # by kind of job
    corpora: Mapping[str, Node] = field(default_factory=dict)  # the nodes of the corpora in `catalogue`
    grids: Mapping[str, str] = field(default_factory=dict)  # the names that the file may use with those in all files


class Grid(Frozen):
    """One declared grid."""

    name: str
    title: str
    mark: Mark
    base: Node
    axes: tuple[Axis, ...] = ()
    when: tuple[ConditionalAxes, ...] = ()
    exclude: tuple[Condition, ...] = ()
    override: tuple[Override, ...] = ()
    include: tuple[Include, ...] = ()
    tuned: Mapping[str, Node] = field(default_factory=dict)
    """Settings of cells by their names without a seed, applied after all others; unless it is empty, the grid has only
    these cells (`grid.companions`)."""
    cadence: Cadence = field(default_factory=Cadence)
    watch: Monitoring = field(default_factory=Monitoring)
    resources: ResourceSettings = field(default_factory=ResourceSettings)
    table: TableSpec | None = None
    table_node: Node | None = None
    scope: Scope = field(default_factory=Scope, compare=False, repr=False)  # what its file declares

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """All axes, conditional ones last, in the order of the labels in a cell's name."""
        return (*self.axes, *(axis for when in self.when for axis in when.axes))

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """The names of all axes, in the same order."""
        return tuple(name for axis in self.all_axes for name in axis.names)

    @property
    def table_spec(self) -> TableSpec:
        """The declared table, or one with the usual rows and columns."""
        return self.table or TableSpec(title=self.title or self.name)

    @property
    def has_own_cells(self) -> bool:
        """False if the grid only includes other grids."""
        return bool(self.all_axes or self.base.value)


class Experiments(Frozen):
    """An experiments.yaml with the packs that it includes."""

    path: Path
    default: str
    grids: Mapping[str, Grid]
    scope: Scope = field(default_factory=Scope)  # of its own grids
    packs: Mapping[str, Pack] = field(default_factory=known_packs)  # the papers that are known, by name
    included: tuple[Pack, ...] = ()  # the packs whose grids belong to it
    site: Mapping[str, Node] = field(default_factory=dict)  # the sections of resources in the site's profile
    seeds: Mapping[str, AddedSeeds] = field(default_factory=dict)  # added beside the file, by grid
    claims: Mapping[str, tuple[Claim, ...]] = field(default_factory=dict)
    """The file's own by name, each at the sizes that it is declared for."""
    expanded: dict[str, list[Entry]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Caches the cells of valid grids by name (`grid.expand`)."""

    @property
    def catalogue(self) -> Catalogue:
        """The named parts that the file's own grids may refer to, and the schemes and stages of all."""
        return self.scope.catalogue

    @property
    def available(self) -> list[str]:
        """The names of the grids whose cells need no extension that is missing."""
        return [name for name in self.grids if not lacking(self.grids, self.grids[name])]


def sections_of(grids: Mapping[str, Grid], grid: Grid) -> set[str]:
    """Return the sections that a grid and its included grids set; they include the stages of its cells."""
    settings = [grid.base, *(override.settings for override in grid.override)]
    names = {name for node in settings for name in children(node)}
    names |= {name.partition(".")[0] for axis in grid.all_axes for name in axis.names}
    return names.union(*(sections_of(grids, grids[include.grid]) for include in grid.include))


def lacking(grids: Mapping[str, Grid], grid: Grid) -> str:
    """Return which missing extension the cells of a grid need, as a sentence; "" if none."""
    return next(filter(None, map(missing, sections_of(grids, grid))), "") if absent() else ""


class Declared(Frozen):
    """The declaration of a cell: the grid that declares it (others may include it), its settings, and the named corpora
    of the file. `added`: its seed was added beside the file."""

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


class Entry(Frozen):
    """One cell of one grid."""

    cell: Cell
    grid: str
    name: str
    axes: dict[str, Label]
    """The label of every axis, and of `size`, `norm`, `gate` and `seed` even if the grid does not vary them."""
    cadence: Cadence = field(default_factory=Cadence)
    resources: Resources = field(default_factory=Resources)  # of the training
    kind_resources: Mapping[str, Resources] = field(default_factory=dict)  # declared for other kinds of job
    watch: Monitoring = field(default_factory=Monitoring)
    notes: tuple[str, ...] = ()
    """The reasons of the overrides that changed this cell, and the grid's notes on it, one sentence each."""
    tags: tuple[str, ...] = ()  # the grid's words for it, by which it is selected
    start: Entry | None = field(default=None, compare=False, repr=False)
    """The cell that its training starts from, as it is declared."""
    declared: Declared | None = field(default=None, compare=False, repr=False)
    """The declaration; None for a recorded cell that no grid declares."""

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
    grids = grouped((entry.key, entry.grid) for entry in entries)
    shared = sum(len(set(names)) > 1 for names in grids.values())
    also = f", {shared} of which {verb(shared, 'belongs', 'belong')} to several grids" if shared else ""
    return f"{count(len(grids), 'cell')}{also}"
