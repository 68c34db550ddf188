"""The extension `quantised`: the perplexity with weights rounded to integers."""

from gpas_cli.extension import Extension

EXTENSION = Extension(
    name="quantised",
    about="the perplexity with weights rounded to integers",
    requires=("layers",),
    page="how-to/quantisation.md",
    stages={"quantised": "gpas_cli.extensions.quantised.stage:QUANTISED"},
)
