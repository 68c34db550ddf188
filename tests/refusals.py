"""Errors that a test expects by their words."""

import re
from typing import Any

import pytest

from gpas_cli.errors import GpasError, InvalidExperiments


def refused(message: str, kind: type[GpasError] = InvalidExperiments) -> Any:
    """Return a context in which an error is raised that has these words, not read as a pattern."""
    return pytest.raises(kind, match=re.escape(message))
