"""Another user than the owner of the files: one whom permissions bind, as they do not bind root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def drop_privileges() -> None:
    """Become an ordinary user, if this process is root's; `unprivileged` ends it."""
    if os.getuid() == 0:
        os.seteuid(NOBODY)


@contextmanager
def ordinary() -> Iterator[None]:
    """Be an ordinary user during the block."""
    drop_privileges()
    try:
        yield
    finally:
        os.seteuid(os.getuid())


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Yield a world-readable folder; afterwards restore root's permissions, if the test dropped them."""
    folder = Path(tempfile.mkdtemp(prefix="gpas-"))
    folder.chmod(0o755)
    yield folder
    os.seteuid(os.getuid())
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)
