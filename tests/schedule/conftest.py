"""Fixtures for tests that start fake jobs."""

from face import face
from projects import _quick, project

__all__ = ["_quick", "face", "project"]
