"""Turn experiments.yaml into cells.

    document   YAML text -> a tree of nodes, each with its line and column
    load       tree -> `Experiments`: named sizes, corpora, recipes, resources and declared grids
    readers    values of the file by type: mappings, lists, texts, dataclasses
    read       one grid: its axes, labels, conditions and settings
    ranges     values of an axis by rule: `{range: [1, 5]}`
    validate   rules across grids: includes, and the labels that conditions and tables name
    settings   layers of settings: merging, labels, positions of problems
    draft      cells during expansion: merged settings, and the product of axes
    expand     declared grid -> a list of `Entry`: a checked cell with its name and labels
    variant    variants of declared cells from settings on the command line
    seeds      seeds added beside the file, and the file that has them
    select     entries by `--where` conditions, names and key prefixes

All problems of a file are reported at once, each at its line and column.
"""

from gpas_cli.grid.declared import Experiments, Grid, TableSpec
from gpas_cli.grid.entry import Entry

__all__ = ["Entry", "Experiments", "Grid", "TableSpec"]
