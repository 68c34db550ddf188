"""Turn experiments.yaml into cells.

    document   YAML text -> a tree of nodes, each with its line and column
    load       tree -> `Experiments`: named sizes, corpora, recipes, resources and declared grids; rules across grids
    declared   what is declared, grids and claims, as frozen data; `Entry`, the result of expansion
    read       one grid: its axes (values by rule, too), labels, conditions and settings
    resources  resources of jobs by size, grid and kind of job, over the site's and those of sizes.yaml
    settings   values of the file by type; layers of settings: merging, labels, names of cells, positions of problems
    expand     declared grid -> a list of `Entry`: a checked cell with its name and labels
    variant    variants of declared cells: settings on the command line, cells shrunk to a smoke test
    companions seeds added and the best settings of methods, in files beside the experiments file
    select     entries by `--where` conditions, names and key prefixes

All problems of a file are reported at once, each at its line and column.
"""

from gpas_cli.grid.declared import Entry, Experiments, Grid, TableSpec

__all__ = ["Entry", "Experiments", "Grid", "TableSpec"]
