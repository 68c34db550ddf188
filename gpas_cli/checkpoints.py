"""Where checkpoints lie, for every room: `step-00000100/` in an attempt's folder, listed without torch.

What is in one is `train.checkpoint`'s affair. Files called `step-*.safetensors` are checkpoints of versions before
0.2: they are listed, so that reading one says what it is, and never deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

KEPT = 2
_NAME = re.compile(r"step-(\d{8,})(\.safetensors)?")


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of update `step` in `folder`."""
    return folder / f"step-{step:08d}"


def newest_first(folders: Iterable[Path]) -> list[Path]:
    """Every checkpoint in `folders`, the one with the most updates first; what is being written is not one."""
    found = [(int(match[1]), path) for folder in folders for path in _inside(folder) if (match := _named(path))]
    return [path for _, path in sorted(found, key=lambda pair: pair[0], reverse=True)]


def outdated(folder: Path) -> list[Path]:
    """The checkpoints that may be deleted: all but the newest KEPT."""
    return [path for path in newest_first([folder]) if not path.suffix][KEPT:]


def _named(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
