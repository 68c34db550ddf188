"""An immutable copy of the package for jobs to run: later edits do not reach queued jobs.

runs/.code/<hash>/gpas_cli/...   the hash is that of every file's path and content: the recorded code version
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gpas_cli
from gpas_cli.errors import GpasError
from gpas_cli.packaged import packaged

PACKAGE = "gpas_cli"
TRAVELLING = ("migrations",)  # beside the package in a checkout, inside it when installed; a job that ingests needs it


@dataclass(frozen=True)
class Snapshot:
    """A copy of the code. `path` is put on PYTHONPATH; `git` is {commit, dirty} of the checkout it came from, or {}."""

    code: str
    path: Path
    git: Mapping[str, str | bool]


def snapshot(runs: Path, package: Path | None = None) -> Snapshot:
    """Copy the running package into `runs`, once for each content.

    Raises GpasError if the copy exists and has been changed.
    """
    package = package or Path(gpas_cli.__file__).parent
    files = read_files(package)
    code = digest(files)
    target = snapshot_path(runs, code)
    if not target.is_dir():
        _create(target, files)
    if digest(read_files(target / PACKAGE)) != code:
        raise GpasError(f"{target} has been changed and no longer holds the code that its name stands for; delete it")
    return Snapshot(code, target, git_facts(package))


def snapshot_path(runs: Path, code: str) -> Path:
    """Return the folder of the copy with the version `code`, whether it exists or not."""
    return runs / ".code" / code


def snapshot_files(runs: Path, code: str) -> dict[str, bytes] | None:
    """Return the files of the copy with the version `code` by relative path, None if there is no such copy."""
    package = snapshot_path(runs, code) / PACKAGE
    return read_files(package) if code and package.is_dir() else None


def copy_snapshot(source: Path, runs: Path, code: str) -> None:
    """Copy the version `code` of the package from the run directories `source` into `runs`, unless `runs` has it."""
    target = snapshot_path(runs, code)
    files = None if target.is_dir() else snapshot_files(source, code)
    if files is not None:
        _create(target, files)


def current_code(package: Path | None = None) -> str:
    """Return the name of the running package's content, as `snapshot` would give it. Copies nothing."""
    return digest(read_files(package or Path(gpas_cli.__file__).parent))


def read_files(package: Path) -> dict[str, bytes]:
    """Return the content of every file of a package by relative path, without byte code."""
    roots = {"": package} | {f"packaged/{name}/": packaged_in(package, name) for name in TRAVELLING}
    return {prefix + name: path.read_bytes() for prefix, root in roots.items() for name, path in _walk(root)}


def digest(files: Mapping[str, bytes]) -> str:
    """Return 16 hexadecimal digits that identify this content."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def git_facts(package: Path) -> dict[str, str | bool]:
    """Return {commit, dirty} of the checkout that tracks `package`; {} without git or such a checkout."""
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = _git(package, "rev-parse", "HEAD") if tracked is not None else None
    if not commit:
        return {}
    return {"commit": commit, "dirty": bool(_git(package, "status", "--porcelain", "--", "."))}


def packaged_in(package: Path, name: str) -> Path:
    """Return `packaged(name)` for a package that need not be the running one."""
    if package == Path(gpas_cli.__file__).parent:
        return packaged(name)
    installed = package / "packaged" / name
    return installed if installed.exists() else package.parent / name


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*")):
        hidden = any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(root).parts)
        if path.is_file() and not hidden:
            yield path.relative_to(root).as_posix(), path


def _create(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the copy to a temporary folder and rename it, so that it is complete or absent. Another process's copy is
    equal.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for name, content in files.items():
            path = aside / PACKAGE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)
        aside.chmod(0o755)
        aside.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
