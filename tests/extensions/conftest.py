"""Fixtures of the tests of extensions, some of which have commands."""

from face import face, options

__all__ = ["face", "options"]
