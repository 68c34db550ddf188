"""Whose plugin files are run.

experiments.yaml is searched upwards from the working directory, and the plugins it names are Python. Without a check,
`gpas status` in a folder of someone else would run their code (Git had this problem: CVE-2022-24765). So a plugin file
is run only if none of these belongs to, or can be changed by, another user: experiments.yaml, the file itself, and
every folder from the file up to that of experiments.yaml.

    owner      the user who runs the command, or root. Root in the folder of a user is another user, also under sudo.
    writable   by others: refused. By a group: refused, unless it is root's or the user's private group (the group of
               the user's own name, without further members), which many systems give to every new file. A folder with
               the sticky bit (/tmp) may be writable, because nobody else can replace what lies in it.

What fails this is run nevertheless if it lies in a trusted folder: those in the user's list, which `gpas trust FOLDER`
writes ($XDG_CONFIG_HOME/gpas_cli/trusted, one folder per line), and those that the environment variable GPAS_TRUSTED
names, separated like PATH. A list that another user could change is ignored.

The shell's completion never runs plugin files. Schemes of installed packages are always loaded: whoever installs a
package lets it run.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file

ENVIRONMENT = "GPAS_TRUSTED"
_ROOT = 0


def suspicion(config: Path, plugin: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Why the file `plugin`, named in the file `config`, must not be run, with the remedy; "" if it may be.

    Raises OSError for a file that is not there.
    """
    config, plugin = config.resolve(), plugin.resolve(strict=True)
    trusted = trusted_folders(environ)
    for path in _decisive(config, plugin):
        reason = _fault(path)
        if reason and not any(path.is_relative_to(folder) for folder in trusted):
            folder = config.parent if path.is_relative_to(config.parent) else plugin.parent
            return f"{path} {reason}; read the plugin, then `gpas trust {shlex.quote(str(folder))}` allows it"
    return ""


def _decisive(config: Path, plugin: Path) -> Iterable[Path]:
    """Everything by which another user could decide what is run."""
    root = config.parent
    inside = [folder for folder in plugin.parents if folder.is_relative_to(root)]
    return dict.fromkeys((root, config, *(inside or [plugin.parent]), plugin))


def _fault(path: Path) -> str:
    """Whose the file or folder is, or who can change it, if that is another user; else ""."""
    facts = path.stat()
    if facts.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to {user_name(facts.st_uid)}, and you are {user_name(os.geteuid())}"
    if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX:
        return ""
    if facts.st_mode & stat.S_IWOTH:
        return "can be changed by every user"
    if facts.st_mode & stat.S_IWGRP and not _private(facts.st_gid):
        return f"can be changed by the group {_group(facts.st_gid)}"
    return ""


def user_name(number: int) -> str:
    """The name of the user with that number, or words for one without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _private(number: int) -> bool:
    """Whether a group has no members but the user who runs the command, or is root's."""
    if number == _ROOT:
        return True
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return False
    me = user_name(os.geteuid())
    return group.gr_name == me and set(group.gr_mem) <= {me}


def trusted_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The folders of GPAS_TRUSTED and of the user's list; nothing of a list that another user could change."""
    named = [Path(word) for word in environ.get(ENVIRONMENT, "").split(os.pathsep) if word]
    return tuple(folder.expanduser().resolve() for folder in (*named, *listed(environ)))


def list_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's list of trusted folders."""
    home = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (home if home.is_absolute() else Path.home() / ".config") / "gpas_cli" / "trusted"


def listed(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of the user's list, in the order in which they were added."""
    path = list_path(environ)
    try:
        if _fault(path.parent) or _fault(path):
            return []
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [Path(line) for line in lines if line.startswith("/")]


def trust(folder: Path) -> None:
    """Add a folder to the user's list. Raises GpasError if there is no such folder, or the list would be ignored."""
    resolved = folder.expanduser().resolve()
    if not resolved.is_dir():
        raise GpasError(f"{folder} is not a folder")
    if "\n" in str(resolved):
        raise GpasError(f"the name of {str(resolved)!r} has a line break; rename the folder")
    _write([*(known for known in listed() if known != resolved), resolved])


def distrust(folder: Path) -> None:
    """Remove a folder from the user's list. Raises GpasError if it is not in it."""
    resolved = folder.expanduser().resolve()
    known = listed()
    if resolved not in known:
        raise GpasError(f"{resolved} is not in {list_path()}; `gpas trust --list` shows what is")
    _write([other for other in known if other != resolved])


def _write(folders: Iterable[Path]) -> None:
    path = list_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for existing in (path.parent, *([path] if path.exists() else [])):
        if reason := _fault(existing):
            raise GpasError(f"{existing} {reason}: a list of trusted folders there would be ignored")
    replace_file(path, "".join(f"{folder}\n" for folder in folders), durable=False, mode=0o600)
