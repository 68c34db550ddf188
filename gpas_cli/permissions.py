"""Explain errors of files: what is full or read-only, who owns the file, how several users can share a project."""

import errno
import os
import pwd
import stat
from pathlib import Path

_SHARING = (
    "to share a project, give all its users one group: `chgrp -R GROUP DIR; chmod -R g+rwX DIR; "
    "find DIR -type d -exec chmod g+s {} +`, and each of them sets `umask 002` and runs `gpas doctor --trust DIR`"
)
# What to do where nothing can be written or started.
_REMEDIES = {
    errno.EAGAIN: "no further process or thread can be started; raise the limit (`ulimit -u`) or end others",
    errno.ENOSPC: "free space on that file system; `gpas gc` shows what can be deleted",
    errno.EDQUOT: "the disk quota is used up; `gpas gc` shows what can be deleted",
    errno.EROFS: "name a file elsewhere; GPAS_RUNS_DIR, GPAS_CACHE and GPAS_DB do so for runs, cache and database",
}

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def no_disk(error: BaseException | None) -> bool:
    """Return whether a disk is full, read-only or failing. That is a fault of the machine, so the job is retried."""
    return isinstance(error, OSError) and error.errno in _DISK


def explain(error: Exception) -> str:
    """Return the message of `error`, without its number, with the whole path of the file or folder.

    For a permission error, return the owner and mode of what denies access.
    """
    if not isinstance(error, PermissionError) or not error.filename:
        return _plain(error)
    path = Path(os.fsdecode(error.filename)).absolute()
    obstacle = _obstacle(path)
    try:
        found = obstacle.stat()
    except OSError:
        return _plain(error)
    what = "it" if obstacle == path else str(obstacle)
    whose = f"{what} belongs to {user_name(found.st_uid)} and is {stat.filemode(found.st_mode)}"
    return f"no permission for {path} as {user_name(os.geteuid())}: {whose}"


def advise(error: Exception) -> str:
    """Return `explain(error)`, followed for a permission error by how to share a project.

    A full or read-only file system is followed by what to do, and so is a limit on processes and threads.
    """
    message = explain(error)
    explained = isinstance(error, PermissionError) and message != _plain(error)
    number = errno.EAGAIN if message == "can't start new thread" else getattr(error, "errno", None)
    remedy = _SHARING if explained else _REMEDIES.get(number or 0, "")
    return f"{message}; {remedy}" if remedy else message


def _plain(error: Exception) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if not isinstance(error.filename, str | bytes):
        gone = error.errno == errno.ENOENT  # of no file: of `os.getcwd`
        return "the working directory was deleted; change to another" if gone else error.strerror
    return f"{Path(os.fsdecode(error.filename)).absolute()}: {error.strerror}"


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
