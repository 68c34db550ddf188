"""Write a checkpoint at once."""

from pathlib import Path
from typing import Any

from gpas_cli.train.checkpoint import begin


def save(*what: Any, **more: Any) -> Path:
    """Write the checkpoint of `begin`, delete outdated ones and return its path."""
    writing = begin(*what, **more)
    writing.finish()
    return writing.path
