"""An immutable copy of the package for jobs to run: later edits do not reach queued jobs.

runs/.code/<hash>/gpas_cli/...   the hash of every file's path and content: the recorded code version
runs/.code/<hash>/NAME/...       the extensions of other packages that the jobs use

A version has the engine and the extensions that a job uses, so that a change in another extension, or in a paper, makes
no other version.

Jobs execute what is there, so it is compared with the running package, file by file, before each use, and no other user
may be able to change it afterwards (`gpas_cli.trust`). An empty file `__pycache__` in each folder keeps Python from
writing byte code there, or reading it: byte code can be made to differ from its source.
"""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import gpas_cli
from gpas_cli.errors import GpasError
from gpas_cli.extension import IN_WHEEL, folder_of
from gpas_cli.files import digest_of
from gpas_cli.project import packaged
from gpas_cli.structure import Frozen
from gpas_cli.trust import allowing, first_fault

PACKAGE = "gpas_cli"
_BYTE_CODE = "__pycache__"
_DATA = "papers"  # what papers declare and have published is no code: with a comment in it, jobs still resume
_TRAVELLING = ("migrations",)  # beside the package in a checkout, inside it when installed; a job that ingests needs it


class Snapshot(Frozen):
    """A copy of the code. `path` is put on PYTHONPATH; `git` is {commit, dirty} of the checkout it came from, or {}."""

    code: str
    path: Path
    git: Mapping[str, str | bool]


def snapshot(
    runs: Path, package: Path | None = None, project: Path | None = None, uses: Collection[str] = ()
) -> Snapshot:
    """Copy the running package into `runs`, with the extensions `uses`, once for each content.

    `project` is the folder of experiments.yaml.

    Raises GpasError if the copy exists and has been changed, or if another user can change it.
    """
    package = package or Path(gpas_cli.__file__).parent
    files = _read_files(package, uses)
    code = digest_of(files)
    target = snapshot_path(runs, code)
    if not os.path.lexists(target):
        _create(target, files)
    _require_unchanged(target, files)
    _require_own(target, (project or runs).resolve())
    return Snapshot(code, target, git_facts(package))


def snapshot_path(runs: Path, code: str) -> Path:
    """Return the folder of the copy with the version `code`, whether it exists or not."""
    return runs / ".code" / code


def snapshot_files(runs: Path, code: str) -> dict[str, bytes] | None:
    """Return the files of the copy with the version `code` by relative path, None if there is no such copy."""
    root = snapshot_path(runs, code)
    if not code or not (root / PACKAGE).is_dir():
        return None
    found = _read_files(root / PACKAGE, IN_WHEEL)
    others = (path for path in root.iterdir() if path.name not in (PACKAGE, _BYTE_CODE))
    return found | {name: content for path in others for name, content in _beside(path).items()}


def copy_snapshot(source: Path, runs: Path, code: str) -> None:
    """Copy the version `code` of the package from the run directories `source` into `runs`, unless `runs` has it."""
    files = None if snapshot_path(runs, code).is_dir() else snapshot_files(source, code)
    if files is not None and digest_of(files) == code:  # what claims to be another version is left there
        _create(snapshot_path(runs, code), files)


def current_code(uses: Collection[str] = ()) -> str:
    """Return the version of the running package with the extensions `uses`, as `snapshot` gives it. Copies nothing."""
    return digest_of(_read_files(Path(gpas_cli.__file__).parent, uses))


def _read_files(package: Path, uses: Collection[str] = ()) -> dict[str, bytes]:
    """Return the content of every file of the engine and of these extensions by path relative to the package, without
    byte code and the packs of papers."""
    roots = {"": package} | {f"packaged/{name}/": _packaged_in(package, name) for name in _TRAVELLING}
    paths = {prefix + name: path for prefix, root in roots.items() for name, path in _walk(root)}
    left_out = (f"{_DATA}/", *(f"extensions/{name}/" for name in IN_WHEEL if name not in uses))
    found = {name: path.read_bytes() for name, path in paths.items() if not name.startswith(left_out)}
    others = (folder_of(name) for name in uses if name not in IN_WHEEL)
    return found | {name: content for place in others for name, content in _beside(place).items()}


def _beside(place: Path) -> dict[str, bytes]:
    """Return the content of a package or a module by path relative to this package, beside which it lies in a copy."""
    paths = [place] if place.is_file() else [path for _, path in _walk(place)]
    return {f"../{path.relative_to(place.parent).as_posix()}": path.read_bytes() for path in paths}


def git_facts(package: Path) -> dict[str, str | bool]:
    """Return {commit, dirty} of the checkout that tracks `package`; {} without git or such a checkout."""
    tracked = git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = git(package, "rev-parse", "HEAD") if tracked is not None else None
    if not commit:
        return {}
    return {"commit": commit, "dirty": bool(git(package, "status", "--porcelain", "--", "."))}


def _packaged_in(package: Path, name: str) -> Path:
    """Return `packaged(name)` for a package that need not be the running one."""
    if package == Path(gpas_cli.__file__).parent:
        return packaged(name)
    installed = package / "packaged" / name
    return installed if installed.exists() else package.parent / name


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*")):
        hidden = any(part == _BYTE_CODE or part.startswith(".") for part in path.relative_to(root).parts)
        if path.is_file() and not hidden:
            yield path.relative_to(root).as_posix(), path


def _layout(files: Mapping[str, bytes]) -> dict[Path, bytes | None]:
    """Return the content of every file of a copy by relative path, None for a folder. Folders come first."""
    layout: dict[Path, bytes | None] = {
        Path(os.path.normpath(Path(PACKAGE, name))): content for name, content in files.items()
    }
    for folder in {folder for path in layout for folder in path.parents}:
        layout |= {folder: None, folder / _BYTE_CODE: b""}
    return dict(sorted(layout.items()))


def _require_unchanged(target: Path, files: Mapping[str, bytes]) -> None:
    """Raise GpasError unless the copy has exactly these files, all of them regular."""
    layout = _layout(files)
    found = {Path(folder, name) for folder, below, names in os.walk(target) for name in (*below, *names)}
    found = {path for path in found if target / PACKAGE / _DATA not in (path, *path.parents)}  # as archives have them
    if more := found - {target / path for path in layout}:
        raise GpasError(f"{min(more)} is not part of the code that jobs execute from its folder; delete it")
    for path, content in layout.items():
        here = target / path
        if path.name == _BYTE_CODE and not os.path.lexists(here):
            with suppress(OSError):  # the copy comes from an archive, which leaves these files out
                here.touch()
        elif not _has(here, content):
            raise GpasError(f"{here} has been changed since it was copied; delete {target}, and it is copied again")


def _has(path: Path, content: bytes | None) -> bool:
    """Return whether a file with this content is there, or a folder for None. A link is neither."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(mode) if content is None else stat.S_ISREG(mode) and path.read_bytes() == content


def _require_own(target: Path, root: Path) -> None:
    """Raise GpasError if another user can change the copy, through a file of it or a folder between it and `root`."""
    place = target.resolve()
    inside = [folder for folder in place.parents if folder.is_relative_to(root)] or place.parents[:2]
    found = first_fault((*reversed(inside), place, *place.rglob("*")))
    if found:
        fault = found[0] if found[0].is_dir() else found[0].parent
        folder = root if fault.is_relative_to(root) else fault
        raise GpasError(
            f"{' '.join(map(str, found))}, and jobs execute the code in {target} as you; "
            f"if you trust its users, allow it with `{allowing(folder)}`"
        )


def _create(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the copy to a temporary folder and rename it, so that it is complete or absent. Another process's copy is
    equal.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for path, content in _layout(files).items():
            if content is None:
                (aside / path).mkdir(exist_ok=True)
            else:
                (aside / path).write_bytes(content)
            (aside / path).chmod(0o755 if content is None else 0o444)
        aside.rename(target)
    except OSError as error:
        if not target.is_dir():
            error.filename = str(target)  # not the folder beside it, nor none, as `write` says it
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
