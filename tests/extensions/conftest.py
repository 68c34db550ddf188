"""Fixtures of the tests of extensions, some of which have commands; a folder for exports."""

from typing import Any

import pytest
from exporting import Room
from face import face, options

__all__ = ["face", "options"]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("export"))


@pytest.fixture
def matplotlib() -> Any:
    """Return matplotlib; a test that needs it is skipped without it."""
    return pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
