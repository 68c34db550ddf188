"""Fixtures of the tests of extensions, some of which have commands; a folder for exports."""

from typing import Any

import pytest
from exporting import room
from face import face, options

__all__ = ["face", "options", "room"]


@pytest.fixture
def matplotlib() -> Any:
    """Return matplotlib; a test that needs it is skipped without it."""
    return pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
