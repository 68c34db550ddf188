"""Figures: curves of cells as data, and their drawings.

    curves        the curve of a cell, from the database
    series        curves of cells -> one series per method: mean and band, colour, style
    figure        a plot as data; the ticks of axes
    paper_figures the figures of the papers, from their declarations
    scaling       loss over parameters and FLOPs, with power laws
    plot          a figure as PDF, SVG or PNG; `heat_map` draws maps
    terminal_plot a figure in a terminal

Only `plot` and its parts need matplotlib (the extra `figures`).
"""
