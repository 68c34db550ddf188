"""Paths of checkpoints: `step-00000100/` in an attempt's folder. Lists them without torch.

`train.checkpoint` reads and writes their contents. Files named `step-*.safetensors` are checkpoints of versions before
0.2: they are listed, so that reading one fails with an explanation, and never deleted.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

_KEPT_CHECKPOINTS = 2
SUPERSEDED, FINISHED, FAILED = RULES = ("superseded", "finished", "failed")  # of `gpas gc`, see `state.cleanup`
_NAME = re.compile(r"step-(\d{8,})(\.safetensors)?")


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of update `step` in `folder`."""
    return folder / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the number of updates of a checkpoint. Raises ValueError if the path does not name one."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"not a checkpoint: {checkpoint}")
    return int(match[1])


def newest_first(folders: Iterable[Path]) -> list[Path]:
    """Return every complete checkpoint in `folders`, the one with the most updates first."""
    paths = [path for folder in folders for path in _inside(folder)]
    found = [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: pair[0], reverse=True)]


def short_name(checkpoint: Path) -> str:
    """Return a checkpoint's path from its stage's folder on, which is the same on every machine and names no user."""
    return "/".join(checkpoint.parts[-5:])


def outdated(folder: Path, keep: Collection[int] = ()) -> list[Path]:
    """Return the checkpoints that may be deleted: all but the newest KEPT_CHECKPOINTS and those after `keep`."""
    found = [path for path in newest_first([folder]) if not path.suffix][_KEPT_CHECKPOINTS:]
    return [path for path in found if step_of(path) not in keep]


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
