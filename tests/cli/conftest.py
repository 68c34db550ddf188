"""Fixtures of the tests of the face."""

from collections.abc import Iterator

import pytest
from face import face

from gpas_cli.cli import console

__all__ = ["face"]


@pytest.fixture(autouse=True)
def options() -> Iterator[None]:
    """Restore the global options after each test."""
    yield
    console.STATE.config = None
    console.STATE.as_json = False
