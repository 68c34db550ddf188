"""Figures: curves of cells as data, and their drawings.

    series        the curves of cells, from the database -> one series per method: mean and band, colour, style
    figure        a plot as data; the ticks of axes
    paper_figures the figures of the papers, from their declarations
    scaling       loss over parameters and FLOPs, with power laws
    convergence   how soon a network reaches the final loss of its base, as metrics and as a plot
    envelope      a metric over an axis of numbers
    plot          a figure as PDF, SVG or PNG
    terminal_plot a figure in a terminal

Only `plot` and its parts need matplotlib (the extra `figures`).
"""
