"""The extension `laws`: what a grid shows along an axis, as plots and numbers.

scaling      loss over parameters and FLOPs, with power laws
convergence  how soon a network reaches the final loss of its base
envelope     a metric over an axis of numbers, with the best value of each method
"""

from gpas_cli.extension import Command, Extension

_COMMAND = "gpas_cli.extensions.laws.command"

EXTENSION = Extension(
    name="laws",
    requires=("curves", "figures"),
    commands=dict.fromkeys(("figure envelope", "figure convergence", "figure scaling"), Command("Every day", _COMMAND)),
)
