"""Every printed table of every paper: the cells of the shipped grids beside its numbers, and how they were trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.grid import Entry
from gpas_cli.grid.declared import Grid
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.papers import SOURCES, PublishedTable
from gpas_cli.report.papers.layouts import PrintedPart, numbers, printed
from gpas_cli.report.papers.recipes import deviations, recipes
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.paper_table import Place, Serving, paper_table, serving
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import CORPORA

Declared = dict[str, tuple[Grid, list[Entry]]]

TABLES = [f"{source}:{number}" for source in SOURCES for number in numbers(source)]
# How the shipped cells differ from the papers' recipes; each is a note below the table.
DIFFERING = {
    "gpas": {"optim.mean_rows", "optim.clip_over"},
    "poster": {"optim.mean_rows"},
    "curse_of_depth": {"optim.mean_rows", "optim.warmup", "init.embed_std"},
    "spike_no_more": {"precision", "dropout"},
    "raptr": {"optim.lr"},
}
# Numbers without a cell: their published tables, and why.
UNSERVED = {
    "spike_no_more table3_accuracy": "no grid scores the 13B networks at these tasks",
    "spike_no_more table9_bleu": "translation with an encoder and a decoder is not implemented",
    **{f"raptr table{i}_accuracy": "BERT is not finetuned on GLUE here" for i in (1, 5, 6, 7)},
    **{f"raptr table{i}_scores": "no grid scores UL2's networks at tasks" for i in (3, 4, 8)},
    **{f"raptr table11_{i}shot": "no grid scores UL2's networks at tasks" for i in (1, 5)},
    # the baselines with a square-root decay, in Table 4
    **{f"raptr table4_{what}": "no grid declares such a cell" for what in ("flops", "loss")},
    **{f"raptr table{i}_speed": "the speed of the paper's machines is not measured here" for i in (9, 10)},
}


@pytest.fixture(scope="module")
def declared() -> Declared:
    """Return the grids of the project's own experiments.yaml with their cells."""
    experiments = load(Path(__file__).parents[3] / "experiments.yaml")
    return {name: (grid, expand(experiments, [name])) for name, grid in experiments.grids.items()}


def parts(name: str) -> tuple[PrintedPart, ...]:
    source, _, number = name.partition(":")
    return tuple(part for part in printed(source, number) if part.tables)


def printed_numbers(part: PrintedPart) -> Iterator[tuple[Place, PublishedTable]]:
    for line in part.lines:
        for cell in line.cells:
            if cell.table and cell.value is not None:
                yield (cell.table.name, cell.row, cell.column), cell.table


def beside(served: Serving) -> Iterator[tuple[PublishedTable, list[Entry]]]:
    """Yield the cells beside each number, the same cells of a table once."""
    tables = {table.name: table for table in served.part.tables}
    found = {(place[0], *(one.id for one in entries)): (place, entries) for place, entries in served.places.items()}
    yield from ((tables[place[0]], list(entries)) for place, entries in found.values())


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_cells_of_its_recipe_or_a_reason(declared: Declared, name: str) -> None:
    for part in parts(name):
        served = serving(part, declared)
        places = served.places if served else {}
        for place, table in printed_numbers(part):
            if place in places:
                differing = {one.setting for one in deviations(places[place], table)}
                assert differing <= DIFFERING[table.source], (place, differing)
            else:
                kept = table.name not in ("table4_flops", "table4_loss")
                assert kept or table.rows[place[1]].labels["schedule"] == "inverse-sqrt", place
                assert table.no_cells == UNSERVED[f"{table.source} {table.name}"], place
        if served is not None:
            texts = [note.text for note in notes(paper_table(served, {}, {}))]
            noted = {one.setting for table, entries in beside(served) for one in deviations(entries, table)}
            assert all(any(text.startswith(f"{setting}: ") for text in texts) for setting in noted)
            reasons = {table.no_cells for place, table in printed_numbers(part) if place not in places}
            assert all(any(text.startswith("no cell here") and why in text for text in texts) for why in reasons)
            assert served.unclear == {}


@pytest.mark.parametrize("name", TABLES)
def test_no_other_grid_has_a_cell_for_a_number_without_one(declared: Declared, name: str) -> None:
    for part in parts(name):
        served = serving(part, declared)
        missing = {place for place, _ in printed_numbers(part)} - set(served.places if served else ())
        others = [serving(part, {name: one}) for name, one in declared.items()] if missing else []
        assert not missing & {place for other in others if other for place in {**other.places, **other.unclear}}


def with_optim(setting: str, factor: float) -> Callable[[Cell], Cell]:
    def change(cell: Cell) -> Cell:
        value = getattr(cell.optim, setting) * factor
        return replace(cell, optim=replace(cell.optim, **{setting: type(getattr(cell.optim, setting))(value)}))

    return change


def with_data(**changes: Any) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, data=replace(cell.data, **changes))


def with_layer(cell: Cell) -> Cell:
    return replace(cell, model=replace(cell.model, size=replace(cell.model.size, layers=cell.model.size.layers + 2)))


CHANGES: dict[str, Callable[[Cell], Cell]] = {
    "optim.steps": with_optim("steps", 0.5),
    "optim.lr": with_optim("lr", 3),
    "optim.warmup": with_optim("warmup", 2),
    "optim.batch": with_optim("batch", 2),
    "data": with_data(source=CORPORA["quickstart"].source),
    "data.length": with_data(length=77),
    "size": with_layer,
}


@pytest.mark.parametrize("setting", CHANGES)
@pytest.mark.parametrize("name", TABLES)
def test_a_run_of_another_length_size_data_or_recipe_has_a_note(declared: Declared, name: str, setting: str) -> None:
    for part in parts(name):
        served = serving(part, declared)
        for table, entries in beside(served) if served else ():
            if any(setting in one.unstated and setting not in {**one.settings, **one.code} for one in recipes(table)):
                continue
            changed = [replace(one, cell=CHANGES[setting](one.cell)) for one in entries]
            if setting == "data":  # RaPTr's is known by its name under `corpora`
                changed = [replace(one, declared=None) for one in changed]
            alone = serving(part, {"changed": (declared["table2"][0], changed[:1])})
            for _, found in beside(alone) if alone else ():
                noted = set(deviations(found, table)) - set(deviations(entries, table))
                assert setting in {one.setting for one in noted}, (table.name, found[0].id)
