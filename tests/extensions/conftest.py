"""Fixtures of the tests of extensions, some of which have commands; a folder for exports."""

import pytest
from exporting import Room
from face import face, options

__all__ = ["face", "options"]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("export"))
