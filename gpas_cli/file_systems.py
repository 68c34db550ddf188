"""The type of the file system a path is on: whether other hosts may share it, and who keeps its locks."""

from pathlib import Path

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
