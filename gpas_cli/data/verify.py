"""Verify the token cache: compare shards with their recorded checksums."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gpas_cli.data import disk
from gpas_cli.data.shards import Shard, read_shard
from gpas_cli.errors import DataError


def intact(shard: Shard) -> bool:
    """Return whether a shard matches its checksum. Reads all of it. Raises DataError if it cannot be read."""
    found = hashlib.sha256()
    for suffix in (".bin", ".len"):
        path = shard.stem.with_suffix(suffix)
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: found)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return shard.sha256 == found.hexdigest()


def verify(shard: Shard) -> None:
    """Raise DataError unless a shard matches its checksum. Reads all of it."""
    if not intact(shard):
        raise DataError(
            f"{shard.stem}: the tokens on disk are not those that were written (their sha256 differs from the one in "
            f"{shard.name}.json); `gpas data check` lists every damaged shard, `gpas data prepare` rebuilds them, and "
            "`gpas retry` then continues"
        )


def discard_damaged(folder: Path) -> list[Path]:
    """Remove the marker of every damaged shard in `folder`, a split of a token cache, and return their stems.

    Holds the folder's lock, so that no shard is checked while it is being written. Reads all shards. Raises DataError.
    """
    if not folder.is_dir():
        return []
    with disk.locked(folder):
        found = (read_shard(marker.with_suffix("")) for marker in markers_in(folder))
        damaged = [shard.stem for shard in found if shard and not intact(shard)]
        for stem in damaged:
            stem.with_suffix(".json").unlink(missing_ok=True)
    return damaged


def markers_in(folder: Path) -> list[Path]:
    """Return the markers of complete shards in `folder`, a split of a token cache, by number."""
    return sorted(folder.glob("[0-9]*.json"))
