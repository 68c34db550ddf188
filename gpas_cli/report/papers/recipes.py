"""The recipes by which published numbers were obtained, and where a cell differs from them.

A recipe is data in its paper's numbers.yaml: settings by their names in experiments.yaml (`optim.lr`), one value for
all columns or one for each; {best_of: [...]} where the number is from the best of several runs. `settings` are stated
in the paper, `code` only in the published code, and `unstated` in neither. `exceptions` are settings of single rows,
null where a setting does not apply, and `not_here` is what none of our settings expresses.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache
from typing import Annotated, Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.packs import Pack, known_packs, pack_named
from gpas_cli.report.labels import facts
from gpas_cli.report.papers import CellLabels, PublishedTable, frozen, has_labels, load
from gpas_cli.spec.cell import Cell
from gpas_cli.structure import Frozen

_RELATIVE = 1e-6  # numbers that differ by less are the same setting
_BEST_OF = "best_of"
OBJECTIVE = "objective.kind"  # without it losses cannot be compared


class Deviation(Frozen):
    """A setting of a cell that differs from the recipe of the number printed beside it."""

    setting: str
    published: Any
    ours: Annotated[Any, "null if cells have no such setting"]
    origin: Annotated[str, "where the published value is from: paper or code"] = "paper"


class _Recipe(Frozen):
    """How some published networks were trained, as in the file."""

    stated_in: str  # where the source says so
    settings: Mapping[str, Any]
    code: Mapping[str, Any] = field(default_factory=dict)
    not_here: Mapping[str, Any] = field(default_factory=dict)
    unstated: Sequence[str] = ()
    exceptions: Sequence[Mapping[str, Any]] = ()
    """`settings` of the rows with the labels `where`, stated in the paper, or in its code if `origin` says so."""
    columns: Mapping[str, Any] = field(default_factory=dict)  # the `axis` and the `labels` that lists of values are by

    def settings_of(self, labels: CellLabels) -> dict[str, tuple[Any, str]]:
        """Return setting -> (value, origin) of the cell with these labels, of the settings that are known."""
        found: dict[str, tuple[Any, str]] = {}
        for origin, settings in (("code", self.code), ("paper", self.settings)):
            for name, values in settings.items():
                value = self._of_column(values, labels) if isinstance(values, list) else values
                if value is not None:
                    found[name] = (value, origin)
        for exception in self.exceptions:
            if has_labels(labels, frozen(exception["where"])):
                found |= {name: (own, exception.get("origin", "paper")) for name, own in exception["settings"].items()}
        return {name: (value, origin) for name, (value, origin) in found.items() if value is not None}

    def _of_column(self, values: Any, labels: CellLabels) -> Any:
        axis, columns = self.columns["axis"], self.columns["labels"]
        return next((value for value, at in zip(values, columns, strict=True) if has_labels(labels, {axis: at})), None)


def recipes(table: PublishedTable) -> list[_Recipe]:
    """Return the recipes of the networks of a table."""
    return [recipe(table.pack, name) for name in table.recipes]


@cache
def recipe(pack: Pack, name: str) -> _Recipe:
    """Return one recipe of a paper; a name PAPER/NAME is one of another paper."""
    if "/" in name:
        paper, _, name = name.partition("/")
        pack = pack_named(paper, known_packs())
    known = load(pack).get("recipes", {})
    if name not in known:
        raise GpasError(f"'{pack.name}' has no recipe '{name}'; {nearest(name, known)}")
    return _Recipe(**known[name])


class _Compared(Frozen):
    """A setting of the recipe and of cells. stated: one value, or the values of which the best is published."""

    setting: str
    stated: tuple[Any, ...]
    ours: tuple[Any, ...]
    origin: str

    @property
    def strays(self) -> bool:
        """Whether a cell has none of the stated values; of the seeds of a mean one is enough."""
        enough = any if self.setting == "seed" else all
        return not enough(any(_agree(one, own) for one in self.stated) for own in self.ours)

    @property
    def agrees(self) -> bool:
        """Whether the cells have all of the stated values and no other; further seeds are no other."""
        return not self.strays and all(any(_agree(one, own) for own in self.ours) for one in self.stated)


def deviations(entries: Sequence[Entry], table: PublishedTable) -> tuple[Deviation, ...]:
    """Return where the entries differ from the recipe of the published number that is printed beside the best of them.

    With `as_if`, where networks of another size are compared, only the objective counts. Settings that the source does
    not state, and sections that the entries do not have, are not compared.
    """
    settings = [
        Deviation(one.setting, _one_of(one.stated, "the best of "), _one_of(one.ours), one.origin)
        for one in _compared(entries, table)
        if not one.agrees and (not table.as_if or one.setting == OBJECTIVE)
    ]
    if table.as_if:
        return tuple(settings)
    absent = [Deviation(name, value, None) for one in recipes(table) for name, value in one.not_here.items()]
    return (*settings, *absent)


def fit(entry: Entry, table: PublishedTable) -> tuple[int, Hashable]:
    """Return how many settings the entry has that the recipe lacks, and its values of the settings whose best is
    published."""
    found = list(_compared([entry], table))
    return sum(one.strays for one in found), tuple(str(one.ours) for one in found if len(one.stated) > 1)


def _compared(entries: Sequence[Entry], table: PublishedTable) -> Iterator[_Compared]:
    entries = [entry for entry in entries if not entry.cell.network]  # others have trained those
    if not entries:
        return
    labels = table.in_own_words(facts(entries[0]))
    cells = [_settings(entry.cell) for entry in entries]
    for setting, (published, origin) in (item for one in recipes(table) for item in one.settings_of(labels).items()):
        section, _, name = setting.partition(".")
        known = [cell[section] for cell in cells if cell.get(section) is not None]
        ours = {str(value): value for value in (one.get(name) if name else one for one in known)}
        if ours:
            stated = published[_BEST_OF] if isinstance(published, Mapping) else [published]
            yield _Compared(setting, tuple(stated), tuple(ours.values()), origin)


@lru_cache(maxsize=4096)
def _settings(cell: Cell) -> Mapping[str, Any]:
    """Return the cell's settings; the same cell is compared with the recipes of many tables."""
    return cell.to_mapping()


def _one_of(values: Sequence[Any], several: str = "") -> Any:
    return values[0] if len(values) == 1 else several + ", ".join(map(str, values))


def _agree(published: Any, ours: Any) -> bool:
    numbers = (int, float)
    if isinstance(published, numbers) and isinstance(ours, numbers):
        return abs(published - ours) <= _RELATIVE * max(abs(published), abs(ours))
    return bool(published == ours)
