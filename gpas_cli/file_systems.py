"""The file system that a path is on: its type, whether other hosts may share it, and the bytes that are free on it."""

import shutil
import subprocess
from pathlib import Path

from gpas_cli.structure import Frozen

# Those known to keep their locks in the kernel that mounts them.
LOCAL = frozenset(
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay", "apfs", "hfs"]
)
# Those that other hosts may have mounted too.
_NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.glusterfs",
     "panfs", "afs", "9p", "fuse.sshfs"]
)  # fmt: skip


def type_of(path: Path) -> str:
    """Return the type of the file system that `path` is on, such as "ext4"; "" if it cannot be determined."""
    import psutil  # here, because a database that is there already is opened without it

    try:
        resolved = path.resolve()
        mounts = [mount for mount in psutil.disk_partitions(all=True) if resolved.is_relative_to(mount.mountpoint)]
    except (OSError, psutil.Error):
        return ""
    # Of several mounts on one folder, the last one is visible.
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def network_type(path: Path) -> str:
    """Return the type of the file system that `path` is on if other hosts may share it, such as "nfs4"; else ""."""
    kind = type_of(path)
    return kind if kind in _NETWORK else ""


class Free(Frozen):
    """The bytes that this user can still write below `folder`, which exists; `quota`: whether a quota limits them."""

    folder: Path
    bytes: int
    quota: bool = False


def free(path: Path) -> Free:
    """Return what this user can still write to the file system of `path`, which need not exist yet.

    Quotas count where statvfs has them, as on XFS projects, or `quota` reports them; those of Lustre do not.
    """
    folder = existing(path)
    left = [shutil.disk_usage(folder).free, *_left_in_quotas(folder)]
    return Free(folder, min(left), quota=min(left) < left[0])


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _left_in_quotas(folder: Path) -> list[int]:
    """Return what each quota of the user on the file system of `folder` leaves, nothing if none is reported."""
    mount = str(next(above for above in (folder.resolve(), *folder.resolve().parents) if above.is_mount()))
    command = ["quota", "-ugw", "--show-mntpoint", "--hide-device"]
    try:  # the exit code of a quota that is used up is not 0
        said = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    # MOUNT USED SOFT HARD ... in units of 1,024 bytes, with * after a number over its limit; a limit of 0 is none.
    rows = (line.replace("*", "").split()[:4] for line in said.splitlines())
    sizes = (map(int, row[1:]) for row in rows if row[:1] == [mount] and all(map(str.isdigit, row[1:])))
    return [1024 * max(0, (hard or soft) - used) for used, soft, hard in sizes if hard or soft]
