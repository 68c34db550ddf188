"""Files that travel with the program but are not code: the default experiments.yaml and the migrations."""

from __future__ import annotations

from pathlib import Path


def packaged(name: str) -> Path:
    """The path of `experiments.yaml` or `migrations`: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "packaged" / name
    return installed if installed.exists() else package.parent / name
