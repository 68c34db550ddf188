"""What to say where a file or folder may not be used: whose it is, and how several users share a project."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

SHARING = (
    "to share a project, give all its users one group: `chgrp -R GROUP DIR; chmod -R g+rwX DIR; "
    "find DIR -type d -exec chmod g+s {} +`, and each of them sets `umask 002`"
)


def explain(error: Exception) -> str:
    """The message of `error`; of one for want of permission, with the owner of what is in the way."""
    if not isinstance(error, PermissionError) or not error.filename:
        return str(error)
    path = Path(os.fsdecode(error.filename)).absolute()
    obstacle = _obstacle(path)
    try:
        found = obstacle.stat()
    except OSError:
        return str(error)
    what = "it" if obstacle == path else str(obstacle)
    whose = f"{what} belongs to {user(found.st_uid)} and is {stat.filemode(found.st_mode)}"
    return f"no permission for {path} as user {user(os.geteuid())}: {whose}"


def advise(error: Exception) -> str:
    """`explain`, and where another user's file is in the way, how to share a project."""
    said = explain(error)
    return f"{said}; {SHARING}" if isinstance(error, PermissionError) and said != str(error) else said


def user(number: int) -> str:
    """The name of a user, its number where it has no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _obstacle(path: Path) -> Path:
    """The first folder on the way to `path` that may not be entered, else `path`, or its folder if there is none."""
    for folder in reversed(path.parents):
        if not _may(folder, os.X_OK):
            return folder
    return path if path.exists() and not _may(path, os.R_OK | os.W_OK) else path.parent


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
