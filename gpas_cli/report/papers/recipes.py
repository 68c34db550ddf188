"""The recipes by which published numbers were obtained, and where a cell differs from them.

A recipe is data in its source's YAML file: settings by their names in experiments.yaml (`optim.lr`), one value for all
columns or one for each. `settings` are stated in the paper, `code` only in the published code, and `unstated` in
neither. `exceptions` are settings of single rows, and `not_here` what no setting of ours expresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from gpas_cli.report.labels import facts
from gpas_cli.report.papers import CellLabels, PublishedTable, frozen, has_labels, load

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

RELATIVE = 1e-6  # numbers that differ by less are the same setting


@dataclass(frozen=True)
class Deviation:
    """A setting of a cell that differs from its paper's recipe, None if it has no such setting.

    origin: where the published value is from, "paper" or "code".
    """

    setting: str
    published: Any
    ours: Any
    origin: str = "paper"


@dataclass(frozen=True)
class RecipeException:
    """Settings of the rows with the labels `where`."""

    where: CellLabels
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """How some published networks were trained. stated_in: where the source says so.

    axis, columns: the labels that lists of values are by.
    """

    name: str
    stated_in: str
    settings: Mapping[str, Any]
    code: Mapping[str, Any]
    not_here: Mapping[str, Any]
    unstated: tuple[str, ...]
    exceptions: tuple[RecipeException, ...]
    axis: str
    columns: tuple[Any, ...]

    def settings_of(self, labels: CellLabels) -> dict[str, tuple[Any, str]]:
        """Return setting -> (value, origin) of the cell with these labels, of the settings that are known."""
        found = {}
        for origin, settings in (("code", self.code), ("paper", self.settings)):
            for name, values in settings.items():
                value = self._of_column(values, labels)
                if value is not None:
                    found[name] = (value, origin)
        for exception in self.exceptions:
            if has_labels(labels, exception.where):
                found |= {name: (value, "paper") for name, value in exception.settings.items()}
        return found

    def _of_column(self, values: Any, labels: CellLabels) -> Any:
        if not isinstance(values, list):
            return values
        places = [i for i, label in enumerate(self.columns) if has_labels(labels, {self.axis: label})]
        return values[places[0]] if places else None


def recipes(table: PublishedTable) -> tuple[Recipe, ...]:
    """Return the recipes of the networks of a table."""
    return tuple(recipe(table.source, name) for name in table.recipes)


@cache
def recipe(source: str, name: str) -> Recipe:
    """Return one recipe of a source; a name SOURCE/NAME is one of another source."""
    if "/" in name:
        source, _, name = name.partition("/")
    data = load(source)["recipes"][name]
    columns = data.get("columns", {})
    return Recipe(
        name=name,
        stated_in=data["stated_in"],
        settings=data.get("settings", {}),
        code=data.get("code", {}),
        not_here=data.get("not_here", {}),
        unstated=tuple(data.get("unstated", ())),
        exceptions=tuple(RecipeException(frozen(one["where"]), one["settings"]) for one in data.get("exceptions", ())),
        axis=columns.get("axis", ""),
        columns=tuple(columns.get("labels", ())),
    )


def deviations(entry: Entry, table: PublishedTable) -> tuple[Deviation, ...]:
    """Return where the entry differs from the recipe of the published number that is printed beside it.

    Empty with `as_if`, where networks of another size are compared. Settings that the source does not state, and
    sections that the entry does not have, are not compared.
    """
    if table.as_if:
        return ()
    labels = table.in_own_words(facts(entry))
    cell = entry.cell.to_mapping()
    return tuple(found for one in recipes(table) for found in _of_recipe(one, labels, cell))


def _of_recipe(one: Recipe, labels: CellLabels, cell: Mapping[str, Any]) -> Iterator[Deviation]:
    for setting, (published, origin) in one.settings_of(labels).items():
        section, _, name = setting.partition(".")
        known = cell.get(section)
        if known is None:
            continue
        ours = known.get(name) if name else known
        if not _agree(published, ours):
            yield Deviation(setting, published, ours, origin)
    for setting, published in one.not_here.items():
        yield Deviation(setting, published, None)


def _agree(published: Any, ours: Any) -> bool:
    numbers = (int, float)
    if isinstance(published, numbers) and isinstance(ours, numbers):
        return abs(published - ours) <= RELATIVE * max(abs(published), abs(ours))
    return bool(published == ours)
