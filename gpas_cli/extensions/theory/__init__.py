"""The extension `theory`: what the papers derive for networks at initialisation, beside measured values."""

from gpas_cli.extension import Command, Extension

_COMMAND = "gpas_cli.extensions.theory.command"

EXTENSION = Extension(
    name="theory",
    requires=("figures",),
    commands={
        "theory": Command(
            heading="Inspect",
            about="Compute the papers' theoretical results and show them beside the printed ones.",
            module=_COMMAND,
        )
    },
    documents={
        "theory bounds": f"{_COMMAND}:BoundsJson",
        "theory stability": f"{_COMMAND}:StabilityJson",
        "theory norms": f"{_COMMAND}:NormsJson",
        "theory depth": f"{_COMMAND}:DepthJson",
        "theory length": f"{_COMMAND}:LengthJson",
        "theory coordinates": f"{_COMMAND}:CoordinatesJson",
    },
    curves={"identity_bounds": "gpas_cli.extensions.theory.initialisation:identity_bounds"},
)
