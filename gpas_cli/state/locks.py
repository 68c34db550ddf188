"""flock as evidence: a held lock proves that a process lives, and the kernel releases it however the process ends.

The lock belongs to the open file, so a child that inherits the descriptor keeps the lock after its parent has died.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from gpas_cli import file_systems, files
from gpas_cli.errors import GpasError

# The last one comes from some FUSE file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock(Enum):
    """The state of a lock file, as far as it can be determined without waiting."""

    HELD = "held"
    FREE = "free"
    ABSENT = "absent"
    UNKNOWABLE = "unknowable"


def probe(path: Path) -> Lock:
    """Return whether a process holds a lock on `path`. Probes take shared locks, so they never block each other."""
    try:
        fd = files.open_descriptor(path)
    except FileNotFoundError:
        return Lock.ABSENT
    except OSError:
        return Lock.UNKNOWABLE
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Lock.HELD
    except OSError:
        return Lock.UNKNOWABLE
    finally:
        os.close(fd)
    return Lock.FREE


def boot_id() -> str:
    """Return the boot id of the running kernel, which its containers share; "" if the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def seen_from_here(path: Path, boot: str) -> bool:
    """Return whether this process can see locks on `path` that processes of the kernel `boot` hold.

    That requires that the kernel is this one and that the file system is local. Host names are irrelevant: a container
    has its own host name and process ids, but shares the kernel and its locks.
    """
    return bool(boot) and boot == boot_id() and file_systems.type_of(path) in file_systems.LOCAL


def hold(path: Path, *, patience: float = 5.0) -> int:
    """Lock `path` and return the descriptor that holds the lock, until every copy of it is closed.

    Waits up to `patience` seconds for another holder. Raises GpasError if that does not release the lock or if the file
    system has no locks, OSError if the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    while (fd := try_hold(path)) is None:
        if time.monotonic() > deadline:
            raise GpasError(
                f"{path} has been locked by another process for {patience:.0f} s; check whether it is suspended"
            )
        time.sleep(0.01)
    return fd


def try_hold(path: Path) -> int | None:
    """Lock `path` like `hold` but without waiting. Return None if another process holds the lock."""
    fd = files.open_descriptor(path, os.O_RDWR | os.O_CREAT)
    try:
        taken = _try(fd, path)
    except BaseException:
        os.close(fd)
        raise
    if taken:
        return fd
    os.close(fd)
    return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on `path` within a with block."""
    fd = hold(path, patience=60.0)
    try:
        yield
    finally:
        os.close(fd)


def _try(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise GpasError(
                f"{path}: this file system has no file locks, so runs could be started twice; "
                "set GPAS_RUNS_DIR to a folder on another file system"
            ) from error
        raise OSError(error.errno, f"cannot be locked: {error.strerror}", str(path)) from error
    return True
