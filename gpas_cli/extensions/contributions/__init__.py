"""The extension `contributions`: results that others have contributed to a paper, beside ours in its tables."""

from gpas_cli.extension import Extension

EXTENSION = Extension(name="contributions", beside=("gpas_cli.extensions.contributions.contributed:beside",))
