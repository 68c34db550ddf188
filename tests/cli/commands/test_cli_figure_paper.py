"""`gpas figure`: layers, ratios, and the papers' figures, in files, JSON and the terminal."""

import pytest
from face import Face, end, tiny
from test_cli_figure import GRIDS


@pytest.fixture
def face(face: Face) -> Face:
    """Return a project with a grid of eight cells, of which the last is missing."""
    face.declare(tiny(GRIDS))
    for i, entry in enumerate(face.entries("g")[:-1]):
        face.trained(entry, 30 + i)
    return face


def test_layers_over_updates_at_updates_and_as_maps(face: Face) -> None:
    def series(*words: str) -> list[dict[str, object]]:
        said = face("figure", "--what", "activation_variance", "--where", "norm=pre", "--json", *words)
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


def test_ratios_of_cells_with_and_without_a_gate(face: Face) -> None:
    done = face("figure", "--what", "activation_variance", "--against", "gate=none", "--json")
    document = done.json
    assert document["y"] == "activation variance at the input, ratio to gate none"
    assert document["level"] == 1
    assert [one["title"] for one in document["series"]] == ["Pre-LN + GPAS", "LNS + GPAS"]
    pre = document["series"][0]
    assert [run["name"] for run in pre["runs"]] == ["g/pre-gpas-s1", "g/pre-gpas-s2"]
    assert pre["points"][0]["mean"] == pytest.approx((32 / 30 + 33 / 31) / 2)
    assert document["missing"] == ["g/lns-gpas-s2"]


def test_a_figure_of_a_paper_from_another_grid(face: Face) -> None:
    done = face("figure", "--paper", "gpas-4", "--grid", "g", "--json")
    (figure,) = done.json["figures"]
    assert (figure["number"], figure["note"]) == ("4", "size: tiny, grid g")
    assert [panel["title"] for panel in figure["panels"]] == ["(a) Pre-LN", "(b) Pre-LN + GPAS"]


def test_files_of_figures_of_papers(face: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    face("figure", "--paper", "gpas-4", "--grid", "g", "-o", "papers")
    assert sorted(path.name for path in (face.folder / "papers").iterdir()) == [
        "gpas-4.pdf",
        "gpas-4.png",
        "gpas-4.svg",
    ]
    assert (
        ">GPAS, Figure 4: Activation variance by layer (size: tiny, grid g)<"
        in (face.folder / "papers/gpas-4.svg").read_text()
    )


def test_a_figure_that_cannot_be_drawn_names_its_cells_and_the_command(face: Face) -> None:
    missing = face("figure", "--paper", "gpas-7", "--grid", "g", expect=3)
    assert "1 cell without a result: g/lns-gpas-s2." in missing.out
    assert "gpas run grid g --where norm=lns --where gate=gpas --where seed=2" in missing.out
    undeclared = face("figure", "--paper", "gpas-2", expect=3)
    assert "experiments.yaml declares no grid 'table2'" in undeclared.out
    assert "At quickstart size: gpas figure --paper gpas-2 --toy" in undeclared.out


def test_a_figure_in_the_terminal(face: Face) -> None:
    pytest.importorskip("plotille", reason="plotille is not installed")
    done = face("figure", "--terminal", "--where", "norm=pre")
    assert "2 Pre-LN + GPAS" in done.out
    assert not (face.folder / "figure.svg").exists()


def test_too_few_sizes_for_a_power_law(face: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    said = face("figure", "g", "--scaling", "-o", "s.svg")
    assert "Wrote s.svg." in said.out
    assert "too few sizes" in said.out
    assert "1 cell of 8 without a result." in said.out
    document = face("figure", "g", "--scaling", "--json").json
    assert [panel["x"] for panel in document["panels"]] == ["parameters N", "training FLOPs C"]
    assert document["laws"][0]["words"] == "1 size; a power law needs 3"
    assert (
        "nothing to draw"
        in face(
            "figure", "g", "--scaling", "--where", "norm=lns", "--where", "gate=gpas", "--where", "seed=2", expect=2
        ).err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layers", "one"), "--layers one: 'one' is not a number"),
        (("--layers", "1"), "'loss' is not recorded by layer over updates"),
        (("--at", "1", "--map"), "--at, --layers and --map exclude each other"),
        (("--against", "gate"), "--against gate is not AXIS=LABEL"),
        (("--paper", "gpas-9"), "no paper has a figure 'gpas-9'"),
        (("--paper", "gpas-2", "--grid", "h"), "no grid 'h'"),
        (("--paper", "gpas-2", "g"), "to draw it from other cells, name a grid with --grid"),
        (("--paper", "gpas", "-o", "a.pdf"), "a.pdf is one file, and 8 figures are drawn: name a folder"),
        (("--toy",), "add --paper NAME"),
        (("--paper", "spike-9", "--toy"), "no grid at quickstart size has the cells of spike-9; leave out --toy"),
    ],
)
def test_mistakes_with_options(face: Face, words: tuple[str, ...], message: str) -> None:
    assert message in " ".join(face("figure", *words, expect=2).err.split())


def test_cells_that_were_cancelled_are_retried(face: Face) -> None:
    (missing,) = [entry for entry in face.entries("g") if entry.name == "lns-gpas-s2"]
    words = ("figure", "--paper", "gpas-3a", "--grid", "g", "--json")
    assert face(*words, expect=None).json["figures"][0]["command"].startswith("gpas run grid g")
    face.recorded(missing, ("outcome", end("cancelled")))
    assert face(*words, expect=None).json["figures"][0]["command"] == "gpas retry g/lns-gpas-s2"
