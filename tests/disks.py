"""Small and full file systems, for tests of runs on a bad disk."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount a file system of 8 MB on `folder`; skip the test if that needs root.

    A snapshot of the code takes 2 MB of it, and the checkpoints of two small cells as much.
    """
    if not mount(folder, 8):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        unmount(folder)


def mount(folder: Path, megabytes: int) -> bool:
    """Make `folder` and mount a file system of that size in memory on it; return False if that needs root."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Undo `mount`, even while files on it are open."""
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path, leaving: int = 0) -> Iterator[None]:
    """Fill the file system of `folder` up to `leaving` bytes, even while others write to it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        while (left := shutil.disk_usage(folder).free) > 0:
            try:
                file.write(bytes(left))
            except OSError:  # another process took the space first
                break
        file.truncate(max(0, file.tell() - leaving))
    try:
        yield
    finally:
        filler.unlink()
