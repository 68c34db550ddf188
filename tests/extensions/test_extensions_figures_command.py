"""`gpas figure`: curves, ratios and the papers' figures, in files, JSON and the terminal."""

from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_at
from cases import cases, file_text
from face import Face, end
from goldens import compare_command, golden_cases

from gpas_cli.events import Layers, Outcome, Started

GRIDS = file_text("experiments/figures.yaml")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """Return a grid of eight cells, of which the last is missing."""
    return trained(tmp_path_factory.mktemp("figure"))


def trained(folder: Path) -> Face:
    made = Face(folder / "project", GRIDS)
    for i, entry in enumerate(made.cells()[:-1]):
        made.trained(entry, 30 + i)
    return made


@pytest.mark.parametrize("title", golden_cases("commands/figures"))
def test_what_is_said_is_that_of_the_golden_file(project: Face, title: str) -> None:
    compare_command("commands/figures", title, project)
    assert not list(project.folder.glob("*.svg"))


def test_heat_maps_have_the_means_over_seeds_of_every_distance(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", GRIDS.replace("[pre, lns]", "[pre]"))
    for entry in project.cells():
        seed = entry.cell.seed
        rows = {"angular_distance": [0.1, 0.2, 0.3], "angular_distance/2": [0.4, 0.5], "angular_distance/3": [0.6]}
        values = {name: [seed * value for value in row] for name, row in rows.items()}
        attempt_at(project.runs, entry, [Started(), Layers(40, values), Outcome("done", 40)])
    document = project("figure", "--what", "angular_distances", "--json").json
    assert (document["x"], document["y"]) == ("first layer (at update 40)", "number of layers")
    for series in document["series"]:
        matrix = [[round(value, 9) for value in row] for row in series["matrix"]]
        assert matrix == [[0.15, 0.3, 0.45], [0.6, 0.75], [0.9]]
    line = project("figure", "--what", "angular_distance", "--json").json["series"][0]
    assert [round(point["mean"], 9) for point in line["points"]] == [0.15, 0.3, 0.45]
    assert line["matrix"] is None


def test_a_file_for_each_suffix(project: Face, matplotlib: Any) -> None:
    done = project("figure", "g", "-o", "out/a.pdf", "-o", "out/b")
    assert done.out == (
        "Wrote out/a.pdf and out/b.svg and out/b.png: 4 lines from 7 runs; 1 of 8 cells have no such curve yet.\n"
    )
    assert sorted(path.name for path in (project.folder / "out").iterdir()) == ["a.pdf", "b.png", "b.svg"]
    assert (project.folder / "out/a.pdf").read_bytes().startswith(b"%PDF-")
    assert ">Training loss, g<" in (project.folder / "out/b.svg").read_text()


def test_each_run_is_a_line_and_cells_without_gates_are_not_missing(tmp_path: Path, matplotlib: Any) -> None:
    project = Face(tmp_path / "project", GRIDS.replace("[pre, lns]", "[pre]"))
    for i, entry in enumerate(project.cells()):
        values = {"gate": [0.1 * i, 0.2, 0.3]} if entry.cell.model.gate else {"grad_norm": [1.0, 2.0, 3.0]}
        attempt_at(project.runs, entry, [Started(), Layers(40, values), Outcome("done", 40)])
    done = project("figure", "--what", "gate", "--every-run", "-o", "a.svg")
    assert done.out == "Wrote a.svg: 2 lines from 2 runs; 2 cells without gates.\n", done.err
    text = (project.folder / "a.svg").read_text()
    assert ">Pre-LN + GPAS, seed 1, 2<" in text
    assert ">a line for each seed, the first the darkest<" in text
    assert "stroke-opacity: 0.6" in text
    assert project("figure", "--what", "gate", "--json").json["missing"] == []


@cases("extensions/cases.yaml")
def test_options_of_gpas_figure_with_a_mistake_are_refused(project: Face, words: tuple[str, ...], message: str) -> None:
    assert message in " ".join(project("figure", *words, expect=2).err.split())


def test_files_of_figures_of_papers(project: Face, matplotlib: Any) -> None:
    project("figure", "paper", "gpas-4", "--grid", "g", "-o", "papers")
    drawn = {path.name: path.read_bytes() for path in (project.folder / "papers").iterdir()}
    assert drawn.keys() == {"gpas-4.pdf", "gpas-4.png", "gpas-4.svg"}
    assert b">GPAS, Figure 4: Activation variance by layer (size: tiny, grid g)<" in drawn["gpas-4.svg"]


def test_a_figure_in_the_terminal(project: Face) -> None:
    done = project("figure", "--terminal", "--where", "norm=pre")
    assert "2 Pre-LN + GPAS" in done.out
    assert not (project.folder / "figure.svg").exists()


def test_too_few_sizes_for_a_power_law(project: Face, matplotlib: Any) -> None:
    said = project("figure", "scaling", "g", "-o", "s.svg")
    assert "Wrote s.svg." in said.out
    assert "too few points" in said.out
    assert "1 cell of 8 without a result." in said.out


def test_before_any_run_the_command_is_named(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", GRIDS)
    said = project("figure", "g", "--where", "norm=pre", expect=2).err
    none = "Training loss, g: no such curve has been recorded"
    assert said == f"gpas: {none}; `gpas run grid g --where norm=pre` runs the cells\n"


def test_cells_that_were_cancelled_are_retried(tmp_path: Path) -> None:
    face = trained(tmp_path)
    (missing,) = [entry for entry in face.entries("g") if entry.name == "lns-gpas-s2"]
    words = ("figure", "paper", "gpas-3a", "--grid", "g", "--json")
    assert face(*words, expect=None).json["figures"][0]["command"].startswith("gpas run grid g")
    face.recorded(missing, ("outcome", end("cancelled")))
    assert face(*words, expect=None).json["figures"][0]["command"] == "gpas retry g/lns-gpas-s2"
