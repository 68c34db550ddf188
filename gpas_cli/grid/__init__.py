"""experiments.yaml -> cells.

    document   YAML text -> a tree of nodes, each with its line and column
    load       that tree -> `Experiments`: named sizes, corpora, recipes, resources and declared grids
    trust      whose plugin files are run
    ranges     values of an axis by rule: `{range: [1, 5]}`
    expand     a declared grid -> a list of `Entry`: a checked cell with its name and labels
    variant    cells that settings on the command line make of declared ones
    select     which entries a command means: `--where` conditions, names, key prefixes

Whatever is wrong in a file is reported at once, each problem at the line and column it comes from.
"""

from gpas_cli.grid.declared import Experiments, Grid, TableSpec
from gpas_cli.grid.entry import Entry

__all__ = ["Entry", "Experiments", "Grid", "TableSpec"]
