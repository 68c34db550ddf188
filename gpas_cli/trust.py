"""Decide which Python files of a project may be executed: plugins, and the copies of the package that jobs import.

experiments.yaml is searched upwards from the working directory, and the plugins it names are Python. Without a check,
`gpas status` in another user's folder would execute that user's code (Git had this problem: CVE-2022-24765), and so
would `gpas run` with the copy in runs/.code/. A file is executed only if no other user owns, or can write to,
experiments.yaml, the file itself, and every folder between them.

    owner      The user who runs the command, or root. For root, also under sudo, every user's folder is another user's.
    writable   By all users: refused. By a group: refused, unless it is root's or the user's private group (a group with
               the user's name and no other members), which many systems assign to every new file. A folder with the
               sticky bit (/tmp) may be writable, because other users cannot replace files in it. An access list (ACL)
               that lets someone write counts as a group with members.

A file that fails this check is executed nevertheless if it is in a trusted folder. `gpas doctor --trust FOLDER` adds
one to the user's list ($XDG_CONFIG_HOME/gpas/trusted, one folder per line); the environment variable GPAS_TRUSTED names
more, separated like PATH. A list that another user can write to is ignored.

Shell completion never executes plugin files. Schemes of installed packages are always loaded, because installing a
package already means trusting it.
"""

import grp
import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gpas_cli.errors import GpasError, user_name
from gpas_cli.files import replace_file

_TRUSTED_VARIABLE = "GPAS_TRUSTED"
_ROOT_ID = 0


def suspicion(config: Path, plugin: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return why the file `plugin`, named in the file `config`, must not be executed, with the remedy, or "".

    Raises OSError if the file does not exist.
    """
    config, plugin = config.resolve(), plugin.resolve(strict=True)
    root = config.parent
    inside = [folder for folder in plugin.parents if folder.is_relative_to(root)]
    found = first_fault((root, config, *(inside or [plugin.parent]), plugin), environ)
    if found is None:
        return ""
    folder = root if found[0].is_relative_to(root) else plugin.parent
    return f"{' '.join(map(str, found))}; read the plugin, then allow it with `{allowing(folder)}`"


def first_fault(paths: Iterable[Path], environ: Mapping[str, str] = os.environ) -> tuple[Path, str] | None:
    """Return the first path outside the trusted folders that another user owns or can write to, and which user.

    The paths have been resolved. Raises OSError if one does not exist.
    """
    trusted = trusted_folders(environ)
    for path in dict.fromkeys(paths):
        reason = _fault(path)
        if reason and not any(path.is_relative_to(folder) for folder in trusted):
            return path, reason
    return None


def allowing(folder: Path) -> str:
    """Return the command that allows what is in a folder."""
    return f"gpas doctor --trust {shlex.quote(str(folder))}"


def _fault(path: Path) -> str:
    """Return which other user owns the file or folder or can write to it, or ""."""
    facts = path.stat()
    if facts.st_uid not in (os.geteuid(), _ROOT_ID):
        return f"belongs to {user_name(facts.st_uid)}, and you are {user_name(os.geteuid())}"
    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX:
        return ""
    if facts.st_mode & stat.S_IWOTH:
        return "is writable by every user"
    if facts.st_mode & stat.S_IWGRP and _has_access_list(path):
        return "is writable by others through its access list"
    if facts.st_mode & stat.S_IWGRP and not _private(facts.st_gid):
        return f"is writable by the group {_group(facts.st_gid)}"
    return ""


def _has_access_list(path: Path) -> bool:
    """Return whether a file has an access list. Its mode then shows as the group's what the list grants anyone."""
    with suppress(OSError, AttributeError):  # a file system, or a system, without such lists
        return "system.posix_acl_access" in os.listxattr(path)
    return False


def _group(number: int) -> str:
    with suppress(KeyError):
        return grp.getgrgid(number).gr_name
    return str(number)


def _private(number: int) -> bool:
    """Return whether a group is root's, or has no members but the user who runs the command."""
    if number == _ROOT_ID:
        return True
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return False
    me = user_name(os.geteuid())
    return group.gr_name == me and set(group.gr_mem) <= {me}


def trusted_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders of GPAS_TRUSTED and of the user's list, unless another user can write to the list."""
    named = [Path(path) for path in environ.get(_TRUSTED_VARIABLE, "").split(os.pathsep) if path]
    return tuple(folder.expanduser().resolve() for folder in (*named, *listed(environ)))


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's settings."""
    home = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The XDG specification says to ignore relative paths.
    return (home if home.is_absolute() else Path.home() / ".config") / "gpas"


def list_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's list of trusted folders."""
    return config_folder(environ) / "trusted"


def listed(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the folders of the user's list in the order in which they were added."""
    path = list_path(environ)
    try:
        if _fault(path.parent) or _fault(path):
            return []
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [Path(line) for line in lines if line.startswith("/")]


def trust(folder: Path) -> None:
    """Add a folder to the user's list. Raises GpasError if it does not exist, or if the list would be ignored."""
    resolved = folder.expanduser().resolve()
    if not resolved.is_dir():
        raise GpasError(f"{folder} is not a folder")
    if "\n" in str(resolved):
        raise GpasError(f"the path {str(resolved)!r} has a line break; rename the folder")
    path, folders = list_path(), [*(known for known in listed() if known != resolved), resolved]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for existing in (path.parent, *([path] if path.exists() else [])):
        if reason := _fault(existing):
            raise GpasError(f"{existing} {reason}; a list of trusted folders there would be ignored")
    replace_file(path, "".join(f"{folder}\n" for folder in folders), durable=False, mode=0o600)
