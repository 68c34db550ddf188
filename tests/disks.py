"""A small file system, and one without a byte left, for tests of what a disk does to runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """`folder` as a file system of 4 MB; the test is skipped where only root may mount one."""
    if not mount(folder, 4):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        unmount(folder)


def mount(folder: Path, megabytes: int) -> bool:
    """Make `folder`, as a file system of that size in memory; False where only root may mount one."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Undo `mount`, also while files on it are open."""
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path, leaving: int = 0) -> Iterator[None]:
    """`leaving` bytes are left on the file system of `folder`, which others may be writing to."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        while (left := shutil.disk_usage(folder).free) > 0:
            try:
                file.write(bytes(left))
            except OSError:  # someone else was faster
                break
        file.truncate(max(0, file.tell() - leaving))
    try:
        yield
    finally:
        filler.unlink()
