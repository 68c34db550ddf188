"""Verdicts on claims for a terminal."""

from gpas_cli.statistics.sequential import CONTRADICTED, SUPPORTED, UNDECIDED

_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", UNDECIDED: "yellow"}


def styled(verdict: str) -> tuple[str, str]:
    """Return a verdict and its colour."""
    return verdict, _STYLES[verdict]
