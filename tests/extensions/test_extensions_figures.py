"""Figures in files and as text: what they show, that they fit, and that the same data gives the same file.

Values that grow over layers have the law that fits them better. As text, no line is too wide, and lines have keys.
"""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from disks import full
from report_cells import entry
from rich.console import Console

from gpas_cli.errors import GpasError
from gpas_cli.extensions.curves.series import CellCurve, Selection, Series, make_series
from gpas_cli.extensions.figures.figure import Figure, Line, log_ticks, make_figure, readable, with_growth
from gpas_cli.extensions.figures.plot import COLOURS, MARKERS, STYLE, Sheet, draw, look, save
from gpas_cli.extensions.figures.terminal_plot import Plot
from gpas_cli.grid.document import Label
from gpas_cli.report.quantities import QUANTITIES, quantity
from gpas_cli.spec.norm import SCHEMES

NORMS = ("pre", "post", "deepnorm", "sandwich", "mix", "lns")
HOSTILE = "_a $\\frac{1}{2}$ & <b> label that is far too long for one line of any legend beside a plot"


def figure(label: str = "gpas", layers: int = 0, norms: Sequence[str] = NORMS, **more: object) -> Figure:
    """Schemes with and without a gate, two seeds each."""
    runs = [
        CellCurve(
            entry(norm, gate, seed, axes={"gate": label if gate == "gpas" else gate}),
            "seed",
            tuple((float(x), 5.0 / x + seed + i) for x in range(1, 5)),
            final_norm=7.0 if layers else None,
        )
        for i, norm in enumerate(norms)
        for gate in ("none", "gpas")
        for seed in (1, 2)
    ]
    usual: dict[str, object] = {"title": "Title", "x": "update", "y": "loss (nats per token)", "layers": layers}
    return Figure(series=make_series(runs), **(usual | more))


def test_layers_of_one_network_of_others_are_shaded_with_a_bar(tmp_path: Path) -> None:
    """Also beside the normal distribution, which the legend names."""
    theirs = replace(entry("pre"), axes={"network": "smol", "size": "network"})
    runs = [CellCurve(theirs, "seed", ((0.0, 1.0), (1.0, 2.0)), variant=(("layer", n),)) for n in range(1, 31)]
    found = make_series(runs)
    assert [found[0].shade, found[-1].shade] == [0.0, 1.0]
    line = Line("normal distribution", ((0.0, 1.0), (1.0, 1.0)))
    text = drawn(Figure("Title", "output", "density", found, lines=(line,)), tmp_path)
    assert ("normal distribution" in text, "layer 17" in text) == (True, False)


def alike(*cells: tuple[str, str, Label]) -> tuple[Series, ...]:
    """Series that lie on each other, of schemes, gates and a third label."""
    points = tuple((float(x), 5.0 / x) for x in range(1, 60))
    runs = [CellCurve(entry(norm, gate), "seed", points, variant=(("part", own),)) for norm, gate, own in cells]
    return make_series(runs)


@pytest.mark.parametrize(
    "cells",
    [
        [("pre", gate, f"word {n}") for n in range(15) for gate in ("none", "gpas")],
        [(norm, gate, 1) for norm in list(SCHEMES)[:14] for gate in ("none", "gpas")],
        [(norm, gate, n) for norm in NORMS[:4] for gate in ("none", "gpas") for n in range(8)],
        [(norm, gate, n) for norm in NORMS for gate in ("none", "gpas") for n in range(2)],
        [("pre", "none", n) for n in range(30)],
    ],
)
def test_no_two_of_many_lines_look_alike(cells: list[tuple[str, str, Label]], matplotlib: Any) -> None:
    found = [look(one, 100) for one in alike(*cells)]
    assert len({repr([one[name] for name in ("color", "linestyle", "marker")]) for one in found}) == len(cells)


@pytest.mark.parametrize("second", [("pre", "gpas", 1), ("lns", "none", 1)])
def test_a_line_that_lies_under_another_is_seen(tmp_path: Path, second: tuple[str, str, Label]) -> None:
    image = pytest.importorskip("matplotlib.image", reason="the extra `figures` is not installed")
    series = alike(("pre", "none", 1), second)
    save(Sheet((Figure("", "update", "loss", series),)), [tmp_path / "x.png"])
    pixels = (255 * image.imread(tmp_path / "x.png") + 0.5).astype(int).tolist()
    for one in series:
        colour = [*bytes.fromhex(look(one, 0)["color"][1:]), 255]
        assert sum(row.count(colour) for row in pixels) > 1500  # in the legend it has fewer


def sheet(**more: object) -> Sheet:
    return Sheet((figure(**more),))


def drawn(made: Figure, folder: Path) -> str:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    save(Sheet((made,)), [folder / "x.svg"])
    return (folder / "x.svg").read_text()


def test_the_legend_names_methods_and_says_what_the_bands_are(tmp_path: Path) -> None:
    text = drawn(figure(), tmp_path)
    for words in ("Pre-LN + GPAS", "Sandwich-LN", "loss (nats per token)", "mean ± standard deviation over 2 seeds"):
        assert f">{words}<" in text
    assert "demo-" not in text
    for colour in COLOURS[:6]:
        assert text.count(colour.lower()) >= 4  # line, band and legend of a scheme with and without the gate


def test_panels_with_legends_of_their_own_have_one_explanation(tmp_path: Path, matplotlib: Any) -> None:
    points = ((1.0, 1.0), (2.0, 2.0))
    panels = [
        Figure(f"({n})", "layer", "variance", lines=(Line(f"law {n}", points, style=1),), note="dashed: a law")
        for n in (1, 2)
    ]
    save(Sheet(tuple(panels), "Title"), [tmp_path / "x.svg"])
    text = (tmp_path / "x.svg").read_text()
    assert [text.count(f">{words}<") for words in ("dashed: a law", "law 1", "law 2")] == [1, 1, 1]


def test_triangles_mark_spikes_alone() -> None:
    assert not set(MARKERS) & set("^v<>")


def test_runs_are_drawn_separately_on_request(tmp_path: Path) -> None:
    def lines(text: str) -> int:
        return len(re.findall(r'<g id="line2d_', text))

    every = drawn(figure(every_run=True), tmp_path)
    assert "a line for each seed" in every
    assert lines(every) == lines(drawn(figure(), tmp_path)) + 12


def test_the_final_norm_is_labelled_and_layers_are_whole_numbers(tmp_path: Path) -> None:
    text = drawn(figure(norms=["pre"], layers=4, x="layer"), tmp_path)
    assert re.findall(r">(\d+|final|norm|2\.5)<", text)[:6] == ["1", "2", "3", "4", "final", "norm"]
    assert "norm<" not in drawn(figure(norms=["pre"], x="layer"), tmp_path)


def test_titles_of_y_axes_fit_the_height_of_a_figure() -> None:
    assert {name: own.axis for name, own in QUANTITIES.items() if len(own.axis) > 52} == {}


def test_losses_of_different_objectives_have_a_warning() -> None:
    runs = [
        CellCurve(entry(data="quickstart", objective={"kind": kind}), "seed", ((1.0, 5.0),))
        for kind in ("causal", "span")
    ]
    warned = make_figure(runs, Selection(QUANTITIES["loss"]), "Title")
    assert warned.note == "losses of different objectives (causal, span) cannot be compared"
    assert make_figure(runs[:1], Selection(QUANTITIES["loss"]), "Title").note == ""
    assert make_figure(runs, Selection(QUANTITIES["lr"]), "Title").note == ""


def importance(matrix: tuple[tuple[float, ...], ...] = (), columns: tuple[float, ...] = (), **more: object) -> Figure:
    """Pre-LN with and without a gate, two seeds each, over three layers."""
    runs = [
        CellCurve(
            entry("pre", gate, seed),
            "seed",
            () if matrix else tuple((float(x), 0.1 * seed / x) for x in range(1, 4)),
            matrix=tuple(tuple(value * seed for value in row) for row in matrix),
            columns=columns,
        )
        for gate in ("none", "gpas")
        for seed in (1, 2)
    ]
    return Figure("Title", "layer", "rise", make_series(runs), layers=0 if matrix else 3, **more)


def test_bars_of_one_scheme_have_two_colours_and_weights(tmp_path: Path) -> None:
    text = drawn(importance(bars=True), tmp_path)
    # Three bars and one in the legend for each series; the series without a gate is lighter.
    assert len(re.findall(r"fill: #d55e00; opacity: 0.45", text)) == 4
    assert len(re.findall(r"fill: #0072b2; stroke-linejoin|fill: #0072b2\"", text)) == 4
    assert "mean ± standard deviation" in text
    curves, many = ([run for one in each.series for run in one.runs] for each in (importance(), figure()))
    shown = Selection(quantity("importance"))
    assert make_figure(curves, shown, "").bars
    assert not make_figure(curves, shown, "", every_run=True).bars
    assert not make_figure(many, shown, "").bars  # twelve series are lines


def test_heat_maps_have_a_panel_for_each_series_and_common_colours(tmp_path: Path) -> None:
    made = importance(((0.1, 0.2, 0.3), (0.3, 0.4), (0.5,)), heat_map="distance (pi)")
    assert [round(value, 6) for row in made.series[0].matrix() for value in row] == [0.15, 0.3, 0.45, 0.45, 0.6, 0.75]
    text = drawn(made, tmp_path)
    for words in ("Pre-LN", "Pre-LN + GPAS", "distance (pi)", "layer", "rise", "Title"):
        assert f">{words}<" in text
    assert len(re.findall(r'<g id="axes_', text)) == 3  # two maps and the colour bar
    assert text == drawn(made, tmp_path)


@pytest.mark.parametrize(("width", "rows"), [(None, 1), (2.0, 2)])
def test_heat_maps_are_high_enough_and_their_numbers_do_not_overlap(
    width: float | None, rows: int, matplotlib: Any
) -> None:
    from matplotlib.figure import Figure as Canvas

    row = tuple(1.0 + n for n in range(51))
    updates = tuple(2_000.0 * n for n in range(51))
    made = importance((row,) * 24, updates, heat_map="norm", log=True)
    sheet = Sheet((made,))
    canvas = Canvas(layout="constrained", dpi=100)
    with matplotlib.rc_context(STYLE):
        draw(canvas, sheet, (width, 2.4) if width else sheet.usual_size)
    canvas.draw_without_rendering()
    assert tuple(canvas.get_size_inches()) == (width or 6.8, 2.4 * rows)
    for axes in canvas.axes:
        assert axes.get_window_extent().height > 100  # an inch
        for axis in (axes.xaxis, axes.yaxis):
            boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
            assert not any(a.overlaps(b) for a, b in pairwise(boxes))


@pytest.mark.parametrize("size", [(3.3, 2.4), (10.0, 3.0)])
def test_everything_is_inside_the_canvas(tmp_path: Path, size: tuple[float, float], matplotlib: Any) -> None:
    from matplotlib.figure import Figure as Canvas

    made = figure(HOSTILE, title=HOSTILE * 3)
    canvas = Canvas(layout="constrained")
    with matplotlib.rc_context(STYLE):
        draw(canvas, Sheet((made,)), size)
    canvas.draw_without_rendering()
    inside = canvas.bbox
    (axes,), (legend,) = canvas.axes, canvas.legends
    plot, words = axes.get_window_extent(), legend.get_window_extent()
    for box in (words, axes.get_tightbbox()):
        assert box.x0 >= inside.x0 - 1
        assert box.x1 <= inside.x1 + 1
        assert box.y0 >= inside.y0 - 1
        assert box.y1 <= inside.y1 + 1
    assert words.x0 >= plot.x1 or words.y1 <= plot.y0
    assert plot.width > 0.35 * inside.width


def test_user_text_is_neither_formula_nor_hidden(tmp_path: Path) -> None:
    text = drawn(figure("_$x^2$", norms=["pre"], title="$\\frac"), tmp_path)
    assert ">Pre-LN + _$x^2$<" in text
    assert ">$\\frac<" in text


def test_the_suffix_names_the_format_and_the_same_data_gives_the_same_files(tmp_path: Path, matplotlib: Any) -> None:
    paths = [tmp_path / "new" / f"x{suffix}" for suffix in (".pdf", ".svg", ".PNG")]
    save(Sheet((importance(log=True),)), paths)
    first = [path.read_bytes() for path in paths]
    assert [content[:5] for content in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    assert b"/Type3" not in first[0]
    save(Sheet((importance(log=True),)), paths)
    assert [path.read_bytes() for path in paths] == first
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["x.PNG", "x.pdf", "x.svg"]


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match=r"unknown format '.pgn'; did you mean '.png'"):
        save(sheet(), [tmp_path / "x.svg", tmp_path / "x.pgn"])
    assert not list(tmp_path.iterdir())


def test_a_figure_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match="Title: no such curve has been recorded"):
        save(Sheet((Figure("Title", "x", "y", ()),)), [tmp_path / "x.svg"])


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(GpasError, match=r"pip install 'gpas-cli\[figures\]'"):
        save(sheet(), [tmp_path / "x.svg"])


def test_a_full_disk_is_an_error_of_the_system(small_disk: Path) -> None:
    with full(small_disk), pytest.raises(OSError, match=r"No space left on device: .*/x\."):
        save(sheet(), [small_disk / "x.svg"])
    assert not list(small_disk.iterdir())


@cases("extensions/cases.yaml")
def test_logarithmic_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    found = log_ticks(low, high)
    assert found == ticks or (len(ticks) < 4 and set(ticks) <= set(found))
    assert 4 <= len(found) <= 12


@cases("extensions/cases.yaml")
def test_ticks_are_readable(value: float, text: str) -> None:
    assert readable(value) == text


def growing(*values: list[float], layers: int = 6) -> Figure:
    """Return a figure with a series of two equal seeds for each list of values by layer."""
    schemes = ["pre", "lns", "post"]
    runs = [
        CellCurve(entry(scheme, seed=seed), "seed", tuple(enumerate(own, 1)))
        for scheme, own in zip(schemes, values, strict=False)
        for seed in (1, 2)
    ]
    return Figure("", "layer", "variance", make_series(runs), log=True, layers=layers)


def test_each_series_has_the_law_that_fits_it_better_in_its_colour() -> None:
    depth = range(1, 7)
    made = with_growth(growing([2 * math.exp(0.2 * n) for n in depth], [3 * n**1.5 for n in depth]))
    assert [line.title for line in made.lines] == [
        "Pre-LN: exponential, \N{MULTIPLICATION SIGN} 1.22 per layer, R² 1.00",
        "LNS: power law, exponent 1.5, R² 1.00",
    ]
    assert [line.colour for line in made.lines] == [series.colour for series in made.series]
    for line, series in zip(made.lines, made.series, strict=True):
        assert [y for _, y in line.points] == pytest.approx([y for _, y in series.runs[0].points])
    assert "lower AIC" in made.note


def test_values_without_a_law() -> None:
    made = with_growth(growing([1.0, 0.0, 1.0, 2.0, 3.0, 4.0]))
    assert made.lines == ()
    assert made.note.startswith("no law of growth")
    assert with_growth(growing([1.0, 2.0, 3.0])).lines == ()


def test_over_updates_there_is_no_depth() -> None:
    with pytest.raises(GpasError, match="--growth fits a law over layers"):
        with_growth(growing([1.0, 2.0, 3.0, 4.0], layers=0))


def shown(figure: Figure, width: int = 80) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(Plot(figure))
    return captured.get()


def losses(**more: object) -> Figure:
    runs = [
        CellCurve(entry(norm, gate, seed), "seed", tuple((10.0 * i, (5 + n) / i) for i in range(1, 60)))
        for n, norm in enumerate(("pre", "lns"))
        for gate in ("none", "gpas")
        for seed in (1, 2)
    ]
    return Figure("Title", "update", "loss (nats)", series=make_series(runs), **more)


@pytest.mark.parametrize("width", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(losses(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[:2] == ["Title", "loss (nats)"]
    assert any(line.endswith(" update") for line in lines)


def test_lines_have_keys_that_the_legend_explains() -> None:
    text = shown(losses())
    for words in ("── 1 Pre-LN ", "── 2 Pre-LN + GPAS", "── 3 LNS ", "── 4 LNS + GPAS"):
        assert words in text
    plot = text.split("└")[0]
    assert all(plot.count(key) >= 3 for key in "24")


def test_a_logarithmic_axis_has_round_ticks() -> None:
    ticks = [line.split(" ┤")[0].strip() for line in shown(losses(log=True)).splitlines() if " ┤" in line]
    assert ticks == ["3", "1", "0.3", "0.1"]


def test_points_and_a_single_line_need_no_legend() -> None:
    figure = Figure(
        "", "parameters", "loss", lines=(Line("ours", ((1e6, 4.0), (1e9, 2.0)), form="points"),), log_x=True
    )
    text = shown(figure)
    assert text.count("o") >= 2
    assert "10⁶" in text
    assert "ours" not in text


def test_a_map_is_drawn_in_a_file() -> None:
    run = CellCurve(entry(), "seed", (), matrix=((0.0, 1.0), (2.0, 4.0)), columns=(10.0, 20.0))
    text = shown(Figure("Title", "update", "layer", make_series([run]), heat_map="variance"))
    assert text == "Title\nA heat map is drawn in a file: -o map.png\n"
