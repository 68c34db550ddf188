"""The extension `theory`: what the papers derive for networks at initialisation, beside measured values."""

from gpas_cli.extension import Command, Extension

_ABOUT = "Compute the papers' theoretical results and show them beside the printed ones."

EXTENSION = Extension(
    name="theory",
    requires=("figures",),
    commands={"theory": Command("Inspect", "gpas_cli.extensions.theory.command", _ABOUT)},
    curves={"identity_bounds": "gpas_cli.extensions.theory.initialisation:identity_bounds"},
)
