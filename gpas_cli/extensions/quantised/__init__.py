"""The extension `quantised`: the perplexity with weights rounded to integers."""

from gpas_cli.extension import Extension

EXTENSION = Extension(
    name="quantised", requires=("layers",), stages={"quantised": "gpas_cli.extensions.quantised.stage:QUANTISED"}
)
