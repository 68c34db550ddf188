"""The extension `campaigns`: as many runs as a claim or a comparison needs, chosen by the results so far."""

from gpas_cli.extension import Command, Extension

_PLACE = "gpas_cli.extensions.campaigns"

EXTENSION = Extension(
    name="campaigns",
    requires=("claims",),
    commands={
        "run claims": Command("Every day", f"{_PLACE}.run_claims", shows_results=True),
        "run tuned": Command("Every day", f"{_PLACE}.run_tuned"),
    },
)
