"""Figures as text: no line is too wide, and lines have keys that the legend explains."""

import pytest
from report_cells import entry
from rich.console import Console

from gpas_cli.extensions.curves.series import CellCurve, make_series
from gpas_cli.extensions.figures.figure import Figure, Line
from gpas_cli.extensions.figures.terminal_plot import Plot

pytest.importorskip("plotille", reason="plotille is not installed")


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
