"""Data files that are installed with the program: the default experiments.yaml and the database migrations."""

from __future__ import annotations

from pathlib import Path


def packaged(name: str) -> Path:
    """Return the path of `experiments.yaml` or `migrations`, in the installed package or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "packaged" / name
    return installed if installed.exists() else package.parent / name
