"""The papers' figures: every one can be drawn from its grids, with the panels and lines that the paper has."""

import pytest
from cases import cases
from curve_database import stand_in
from goldens import compare_text
from named_papers import PACKS
from shipped import EXPERIMENTS, cells_of, everything

from gpas_cli.extensions.figures.figure import as_json
from gpas_cli.extensions.figures.paper_figures import FigureSpec, PaperFigure, declared_figures, make, named, request
from gpas_cli.report import query
from gpas_cli.report.recorded import Recorded

FIGURES = declared_figures(PACKS)
STEPS = {stage.key: entry.cell.optim.steps for entry in everything() for stage in entry.cell.stages}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a stand-in for a database in which every cell has recorded everything, at eleven updates."""

    def updates(key: str) -> list[int]:
        return [i * STEPS[key] // 10 for i in range(11)]

    def layers(key: str, name: str) -> list[tuple[int, dict[int, float]]]:
        return [(step, {i: 1.0 + i + step / 1e6 for i in range(12)}) for step in updates(key)]

    def curve(key: str, name: str) -> list[tuple[int, float]]:
        return [] if name.startswith("spike") else [(step, 5 - step / 1e6) for step in updates(key)]

    stand_in(monkeypatch, curve, layers)
    return object()


def drawn(name: str, database: object, grid: str = "") -> PaperFigure:
    asked = request(FIGURES[name], EXPERIMENTS, grid)
    return make(asked, Recorded(asked.entries, engine=database), lambda entry: [3.0, 2.0])


@pytest.mark.parametrize(
    ("spec", "toy"),
    [(spec, toy) for spec in FIGURES.values() for toy in (False, True) if spec.toy or not toy],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_figure_has_cells_and_panels_in_both_of_its_grids(spec: FigureSpec, toy: bool, database: object) -> None:
    made = drawn(spec.name, database, spec.toy if toy else "")
    assert made.problem == ""
    assert made.missing == made.unrecorded == ()
    assert all(panel.drawn for panel in made.panels)
    assert bool(made.note) == toy
    assert ("toy size: quickstart" in made.heading) == toy
    assert [as_json(panel).frame.y for panel in made.panels]


def described(name: str, database: object, toy: bool) -> str:
    """Return a figure's name and heading, and its panels with their axis, level and lines."""
    made = drawn(name, database, FIGURES[name].toy if toy else "")
    panels = [(one, "; ".join(line.title for line in one.drawn)) for one in made.panels]
    lines = [f"  {one.title} | {one.x} | {one.level} | {drawn}" for one, drawn in panels]
    return "\n".join([f"{name}: {made.heading}", *lines])


def test_panels_and_lines_are_those_of_the_golden_file(database: object) -> None:
    found = [
        described(name, database, toy) for name, spec in FIGURES.items() for toy in (False, True) if spec.toy or not toy
    ]
    compare_text("figures.txt", "\n".join(found) + "\n")


def test_gates_of_earlier_versions_are_drawn_as_recorded(database: object, monkeypatch: pytest.MonkeyPatch) -> None:
    known = query.layer_curves
    monkeypatch.setattr(query, "layer_curves", lambda *of, **how: {} if of[2] == "alpha" else known(*of, **how))
    (panel,) = drawn("gpas-3a", database).panels
    assert panel.y == "gate value act(\N{GREEK SMALL LETTER ALPHA})"


def test_without_results_the_cells_and_the_command_are_named() -> None:
    asked = request(FIGURES["gpas-2"], EXPERIMENTS)
    made = make(asked, Recorded(asked.entries))
    assert made.problem == "no cell has recorded it"
    assert made.missing == ("table2/1b-pre", "table2/1b-pre-gpas")
    assert made.command == "gpas run grid table2 --where norm=pre --where size=1b"


def test_a_grid_that_is_not_declared_or_has_no_such_cell() -> None:
    assert "no grid 'mine'" in request(FIGURES["gpas-2"], EXPERIMENTS, "mine").problem
    assert "no cell that this figure draws" in request(FIGURES["spike-3"], EXPERIMENTS, "quickstart").problem


def test_all_figures_at_once_leave_out_what_needs_torch(database: object) -> None:
    entries = [entry for name in EXPERIMENTS.grids for entry in cells_of(name)]
    known = Recorded(tuple(entries), engine=database)
    made = [make(request(spec, EXPERIMENTS, spec.toy or spec.grid), known) for spec in FIGURES.values()]
    assert [figure.name for figure in made if figure.problem] == ["spike-2"]


@cases("extensions/cases.yaml")
def test_names_of_figures(words: list[str], names: list[str]) -> None:
    assert [spec.name for spec in named(words, PACKS)] == names
