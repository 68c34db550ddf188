"""Fixtures for tests that start fake jobs."""

from face import face
from pbs_package import gpas_pbs
from projects import _quick, lab, project

__all__ = ["_quick", "face", "gpas_pbs", "lab", "project"]
