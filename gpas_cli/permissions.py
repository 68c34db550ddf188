"""Explain permission errors: who owns the file or folder, and how several users can share a project."""

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
    """Return the message of `error`; for a permission error, with the owner and mode of the file or folder."""
    if not isinstance(error, PermissionError) or not error.filename:
        return str(error)
    path = Path(os.fsdecode(error.filename)).absolute()
    obstacle = _obstacle(path)
    try:
        found = obstacle.stat()
    except OSError:
        return str(error)
    what = "it" if obstacle == path else str(obstacle)
    whose = f"{what} belongs to {user_name(found.st_uid)} and is {stat.filemode(found.st_mode)}"
    return f"no permission for {path} as {user_name(os.geteuid())}: {whose}"


def advise(error: Exception) -> str:
    """Return `explain(error)`, followed for a permission error by how to share a project."""
    message = explain(error)
    explained = isinstance(error, PermissionError) and message != str(error)
    return f"{message}; {SHARING}" if explained else message


def user_name(number: int) -> str:
    """Return the name of the user with this number, or the number if it has no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _obstacle(path: Path) -> Path:
    """Return what denies access: the first folder above `path` that may not be entered, else `path` or its folder."""
    for folder in reversed(path.parents):
        if not _may(folder, os.X_OK):
            return folder
    return path if path.exists() and not _may(path, os.R_OK | os.W_OK) else path.parent


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
