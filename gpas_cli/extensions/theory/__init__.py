"""The extension `theory`: what the papers derive for networks at initialisation, beside measured values."""

from gpas_cli.extension import Command, Extension

_ABOUT = "Compute the papers' theorems beside their printed values."

EXTENSION = Extension(
    name="theory",
    requires=("figures",),
    commands={"theory": Command("More to read", "gpas_cli.extensions.theory.command", _ABOUT)},
    parts={"identity_bounds": "gpas_cli.extensions.theory.initialisation:identity_bounds"},
)
