"""Write files so that a reader, or a machine that lost its power, finds the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(
    path: Path, content: bytes | str, *, durable: bool = True, mode: int | None = None, prefix: str = ""
) -> None:
    """Replace the content of `path` in one step: write a file beside it, fsync it, rename it.

    Text is encoded as UTF-8. Without `durable` there is no fsync: other processes still see the old or the new content,
    but a power cut may lose both. `mode` is the file's permissions, whatever the umask. The file beside `path` is
    called `.NAME.HEX`, or PREFIX followed by digits where the caller sweeps what killed writers left.
    Raises OSError, and then leaves `path` as it was.
    """
    aside = path.with_name(f"{prefix or f'.{path.name}.'}{os.urandom(8).hex()}")
    try:
        with aside.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def fsync(path: Path) -> None:
    """Fsync a file that is written already, or a folder whose entries have changed. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
