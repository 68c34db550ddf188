"""The extension `theory`: what the papers derive for networks at initialisation, beside measured values."""

from gpas_cli.extension import Command, Extension

_COMMAND = "gpas_cli.extensions.theory.command"
_PARTS = ("bounds", "stability", "norms", "depth", "length", "coordinates")
_ABOUT = "Compute the papers' theoretical results and show them beside the printed ones."

EXTENSION = Extension(
    name="theory",
    requires=("figures",),
    commands={"theory": Command("Inspect", _COMMAND, _ABOUT)},
    documents={f"theory {word}": f"{_COMMAND}:{word.capitalize()}Json" for word in _PARTS},
    curves={"identity_bounds": "gpas_cli.extensions.theory.initialisation:identity_bounds"},
)
