"""Fixtures of the tests of extensions, some of which have commands; a folder for exports."""

from exporting import room
from face import face, options

__all__ = ["face", "options", "room"]
