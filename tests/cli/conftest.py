"""Fixtures of the tests of the face."""

from face import face, options

__all__ = ["face", "options"]
