"""The extension `campaigns`: as many runs as a claim or a comparison needs, chosen by the results so far."""

from gpas_cli.extension import Command, Extension

_PLACE = "gpas_cli.extensions.campaigns"

EXTENSION = Extension(
    name="campaigns",
    requires=(
        "claims",
        "figures",
    ),
    commands={
        "run claims": Command(
            heading="Run",
            about="Run seeds where they decide most, until each claim is supported or contradicted or has --max-seeds.",
            module=f"{_PLACE}.run_claims",
            shows_results=True,
        ),
        "run tuned": Command(
            heading="Run",
            about="Find the best learning rate of each method with the same effort, and declare a grid with them.",
            module=f"{_PLACE}.run_tuned",
        ),
    },
    documents={"run claims": f"{_PLACE}.run_claims:RunClaimsJson", "run tuned": f"{_PLACE}.tuning:RunTunedJson"},
)
