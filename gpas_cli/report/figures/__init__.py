"""Figures: curves of cells as data, and their drawings.

    quantities    what can be drawn, with titles and units
    curves        the curve of a cell, from the database
    series        curves of cells -> one series per method: mean and band over seeds, colour, style
    figure        a plot as data
    paper_figures the figures of the papers, from their declarations
    scaling       loss over parameters and FLOPs; `power_law` fits
    plot          a figure as PDF, SVG or PNG; `plot_lines`, `plot_legend`, `heat_map` and `ticks` are its parts
    terminal_plot a figure in a terminal

Only `plot` and its parts need matplotlib (the extra `figures`).
"""
