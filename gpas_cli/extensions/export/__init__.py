"""What leaves a project: networks for `transformers`, archives of tables, records of cells for papers.

command       `gpas export`
network       a checkpoint -> a folder for `transformers`, after the error of folding is measured
files         the files of such a folder, among them one with the code that the network needs
fold          gates, scales and other factors folded into the weights of a network
remote        that code as `transformers` runs it; nothing imports it here
card          the model card
archive       tables with everything behind their numbers, in one file
ro_crate      what an archive says of itself to machines
contribution  the record of a cell that others may show in the tables of a paper
"""

from gpas_cli.extension import Command, Extension

_ABOUT = "Write a cell for transformers, or the evidence of tables."

EXTENSION = Extension(
    name="export",
    requires=("contributions",),
    commands={"export": Command("More to read", "gpas_cli.extensions.export.command", _ABOUT, shows_results=True)},
)
