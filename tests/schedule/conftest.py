"""Fixtures for tests that start fake jobs."""

from projects import _quick, project

__all__ = ["_quick", "project"]
