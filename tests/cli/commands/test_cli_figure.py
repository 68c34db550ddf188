"""`gpas figure`: files as asked for, and the numbers behind them."""

from pathlib import Path

import launching
import pytest
from attempts import attempt_at
from face import Face, tiny

from gpas_cli.cli.commands.figure import _require_comparable
from gpas_cli.errors import GpasError
from gpas_cli.events import Layers, Outcome, Started
from gpas_cli.report.figures.series import CellCurve, Selection
from gpas_cli.report.quantities import quantity

GRIDS = """
  g:
    title: My grid
    base: BASE
    axes: {norm: [pre, lns], gate: [none, gpas], seed: [1, 2]}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """Return a grid of eight cells, of which the last is missing."""
    made = Face(tmp_path_factory.mktemp("figure") / "project", tiny(GRIDS))
    for i, entry in enumerate(made.cells()[:-1]):
        made.trained(entry, 30 + i)
    return made


def test_the_numbers_of_a_figure_as_json(project: Face) -> None:
    document = project("figure", "--what", "activation_variance", "--json").json
    assert (document["schema"], document["what"], document["files"]) == (1, "activation_variance", [])
    assert (document["x"], document["title"], document["log"]) == (
        "layer (at update 40)",
        "Activation variance at the input, g",
        True,
    )
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
        assert [[round(value, 9) for value in row] for row in series["matrix"]] == [
            [0.15, 0.3, 0.45],
            [0.6, 0.75],
            [0.9],
        ]
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "a.pfd"), "a.pfd: unknown format '.pfd'; did you mean '.pdf'?"),
        (("--what", "los"), "unknown curve 'los'; did you mean 'loss'?"),
        (
            ("--what", "importance"),
            "Rise of the loss without the layer, g: no such curve has been recorded; recorded: loss, lr,",
        ),
        (("--what", "gate", "--layers", "1,99"), "--layers 99: the cells have the layers 1 to 3"),
        (("--what", "grad_norm", "--at", "999"), "no curve reaches update 999; the cells train for 40 updates"),
        (("--against", "gate=nope"), "--against gate=nope: no cell has gate 'nope'; did you mean 'none'?"),
        (("--against", "gat=none"), "--against gat=none: no axis 'gat'; did you mean 'gate'?"),
        (("--where", "gate=none", "--against", "gate=none"), "no recorded curve differs from one with gate none in"),
    ],
)
def test_mistakes(project: Face, words: tuple[str, ...], message: str) -> None:
    assert message in project("figure", *words, expect=2).err


def test_training_losses_of_different_objectives_are_not_drawn_together() -> None:
    runs = [CellCurve(launching.entry(objective=objective), "seed", ()) for objective in ("causal", "mlm")]
    _require_comparable(runs, Selection(quantity("lr")))
    _require_comparable(runs[1:], Selection(quantity("loss")))
    with pytest.raises(GpasError, match=r"objectives causal, mlm cannot be compared; choose .* objective\.kind=causal"):
        _require_comparable(runs, Selection(quantity("loss")))
