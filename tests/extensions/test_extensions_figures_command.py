"""`gpas figure`: curves, ratios and the papers' figures, in files, JSON and the terminal."""

from pathlib import Path

import pytest
from attempts import attempt_at
from cases import cases
from face import Face, end, tiny

from gpas_cli.events import Layers, Outcome, Started

GRIDS = """
  g:
    title: My grid
    base: BASE
    axes: {norm: [pre, lns], gate: [none, gpas], seed: [1, 2]}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """Return a grid of eight cells, of which the last is missing."""
    return trained(tmp_path_factory.mktemp("figure"))


def trained(folder: Path) -> Face:
    made = Face(folder / "project", tiny(GRIDS))
    for i, entry in enumerate(made.cells()[:-1]):
        made.trained(entry, 30 + i)
    return made


def test_the_numbers_of_a_figure_as_json(project: Face) -> None:
    document = project("figure", "--what", "activation_variance", "--json").json
    assert (document["schema"], document["what"], document["files"]) == (1, "activation_variance", [])
    assert (document["x"], document["log"]) == ("layer (at update 40)", True)
    assert document["title"] == "Activation variance at the input, g"
    assert document["missing"] == ["g/lns-gpas-s2"]
    assert [series["title"] for series in document["series"]] == ["Pre-LN", "Pre-LN + GPAS", "LNS", "LNS + GPAS"]
    first = document["series"][0]
    assert [(point["x"], point["n"]) for point in first["points"]] == [(1, 2), (2, 2), (3, 2)]
    assert first["points"][0]["mean"] == pytest.approx(0.1 * 30.5)
    assert first["final_norm"]["mean"] == pytest.approx(0.4 * 30.5)
    assert [(run["name"], run["over"]) for run in first["runs"]] == [("g/pre-s1", 1), ("g/pre-s2", 2)]
    assert document["series"][3]["points"][0]["std"] is None
    assert not list(project.folder.glob("*.svg"))


def test_heat_maps_have_the_means_over_seeds_of_every_distance(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", tiny(GRIDS.replace("[pre, lns]", "[pre]")))
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


def test_units_are_those_of_the_axis(project: Face) -> None:
    document = project("figure", "--what", "memory", "--json").json
    assert document["y"] == "memory (GB)"
    assert document["series"][0]["points"][0]["mean"] == pytest.approx(0.4)


def test_a_file_for_each_suffix(project: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    done = project("figure", "g", "-o", "out/a.pdf", "-o", "out/b")
    assert done.out == (
        "Wrote out/a.pdf and out/b.svg and out/b.png: 4 lines from 7 runs; 1 of 8 cells have no such curve yet.\n"
    )
    assert sorted(path.name for path in (project.folder / "out").iterdir()) == ["a.pdf", "b.png", "b.svg"]
    assert (project.folder / "out/a.pdf").read_bytes().startswith(b"%PDF-")
    assert ">Training loss, g<" in (project.folder / "out/b.svg").read_text()


def test_each_run_is_a_line_and_cells_without_gates_are_not_missing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    project = Face(tmp_path / "project", tiny(GRIDS.replace("[pre, lns]", "[pre]")))
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


def test_curves_are_smoothed_and_what_was_recorded_is_faint(project: Face) -> None:
    recorded = project("figure", "--where", "norm=pre", "--json").json["series"][0]["runs"][0]["points"]
    document = project("figure", "--where", "norm=pre", "--smooth", "0.5", "--json").json
    (x, first), (_, second) = document["series"][0]["runs"][0]["points"][:2]
    assert [x, first] == recorded[0]
    assert second == pytest.approx((0.5 * recorded[0][1] + recorded[1][1]) / 1.5)
    assert document["note"] == "exponential moving averages, weight 0.5; faint: as recorded"


def test_layers_over_updates_at_updates_and_as_maps(project: Face) -> None:
    def series(*words: str) -> list[dict[str, object]]:
        said = project("figure", "--what", "activation_variance", "--where", "norm=pre", "--json", *words)
        return list(said.json["series"])

    over = series("--layers", "1,3", "--where", "gate=none")
    assert [one["title"] for one in over] == ["layer 1", "layer 3"]
    assert [point["x"] for point in over[0]["points"]] == [1, 10, 20, 30, 40]  # type: ignore[attr-defined]
    later = series("--layers", "1", "--from", "20")
    assert [point["x"] for point in later[0]["points"]] == [20, 30, 40]  # type: ignore[attr-defined]
    assert [one["title"] for one in series("--at", "10,40", "--where", "gate=none")] == ["update 10", "update 40"]
    (shown,) = series("--map", "--where", "gate=none")
    assert shown["columns"] == [1, 10, 20, 30, 40]
    assert len(shown["matrix"]) == 3  # type: ignore[arg-type]


def test_ratios_of_cells_with_and_without_a_gate(project: Face) -> None:
    done = project("figure", "--what", "activation_variance", "--against", "gate=none", "--json")
    document = done.json
    assert document["y"] == "activation variance at the input, ratio to gate none"
    assert document["level"] == 1
    assert [one["title"] for one in document["series"]] == ["Pre-LN + GPAS", "LNS + GPAS"]
    pre = document["series"][0]
    assert [run["name"] for run in pre["runs"]] == ["g/pre-gpas-s1", "g/pre-gpas-s2"]
    assert pre["points"][0]["mean"] == pytest.approx((32 / 30 + 33 / 31) / 2)
    assert document["missing"] == ["g/lns-gpas-s2"]


def test_a_figure_of_a_paper_from_another_grid(project: Face) -> None:
    done = project("figure", "paper", "gpas-4", "--grid", "g", "--json")
    (figure,) = done.json["figures"]
    assert (figure["number"], figure["note"]) == ("4", "size: tiny, grid g")
    assert [panel["title"] for panel in figure["panels"]] == ["(a) Pre-LN", "(b) Pre-LN + GPAS"]


def test_files_of_figures_of_papers(project: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    project("figure", "paper", "gpas-4", "--grid", "g", "-o", "papers")
    drawn = {path.name: path.read_bytes() for path in (project.folder / "papers").iterdir()}
    assert drawn.keys() == {"gpas-4.pdf", "gpas-4.png", "gpas-4.svg"}
    assert b">GPAS, Figure 4: Activation variance by layer (size: tiny, grid g)<" in drawn["gpas-4.svg"]


def test_a_figure_that_cannot_be_drawn_names_its_cells_and_the_command(project: Face) -> None:
    missing = project("figure", "paper", "gpas-7", "--grid", "g", expect=3)
    assert "1 cell without a result: g/lns-gpas-s2." in missing.out
    assert "gpas run grid g --where norm=lns --where gate=gpas --where seed=2" in missing.out
    undeclared = project("figure", "paper", "gpas-2", expect=3)
    assert "experiments.yaml declares no grid 'table2'" in undeclared.out
    assert "At quickstart size: gpas figure paper gpas-2 --toy" in undeclared.out


def test_a_figure_in_the_terminal(project: Face) -> None:
    pytest.importorskip("plotille", reason="plotille is not installed")
    done = project("figure", "--terminal", "--where", "norm=pre")
    assert "2 Pre-LN + GPAS" in done.out
    assert not (project.folder / "figure.svg").exists()


def test_too_few_sizes_for_a_power_law(project: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    said = project("figure", "scaling", "g", "-o", "s.svg")
    assert "Wrote s.svg." in said.out
    assert "too few points" in said.out
    assert "1 cell of 8 without a result." in said.out
    document = project("figure", "scaling", "g", "--json").json
    assert [panel["x"] for panel in document["panels"]] == ["parameters N", "training FLOPs C"]
    assert document["laws"][0]["words"] == "1 point; a power law needs 3"
    missing = ("--where", "norm=lns", "--where", "gate=gpas", "--where", "seed=2")
    assert "nothing to draw" in project("figure", "scaling", "g", *missing, expect=2).err


def test_before_any_run_the_command_is_named(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", tiny(GRIDS))
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
