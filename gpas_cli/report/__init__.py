"""Tables, made from database rows, and the curves that figures draw.

    recorded     the recorded states and results of some cells, where everything here starts
    query        attempts, stages, and curves, from the database
    quantities   the metrics and curves that are recorded, and the numbers that claims take from them
    labels       what a cell is called: in row titles, and in the papers
    papers/      published numbers, recipes and layouts, as data
    tables/      entries + results -> a table, and the table as text
    series       the curves of cells -> one series per method: mean and band, colour, style
    convergence  how soon a network reaches the final loss of its base, as metrics
    checks       whether the tables that experiments.yaml declares name what exists

The arithmetic of means, intervals and tests is in `gpas_cli.statistics`. `gpas_cli.origin`, which says where a number
comes from, and the extensions `claims`, `figures`, `laws` and `page` build on this room. Nothing here imports torch.
"""
