"""The extension `figures`: plots of what runs record, and the papers' figures, in files and in the terminal.

figure         a plot as data; the ticks of axes
paper_figures  the figures of the papers, from their declarations
plot           a figure as PDF, SVG or PNG; needs matplotlib (the extra `figures`)
terminal_plot  a figure in a terminal
drawing        where figures go, and what else the commands that draw have in common
"""

from gpas_cli.extension import Command, Extension

_PLACE = "gpas_cli.extensions.figures"
ABOUT = "Plot curves of a grid's cells, or a paper's figures."

EXTENSION = Extension(
    name="figures",
    requires=("curves",),
    commands={"figure": Command("Every day", f"{_PLACE}.command", ABOUT, shows_results=True)},
    checks={"figures": f"{_PLACE}.paper_figures:figures_of"},
)
