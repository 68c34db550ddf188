"""What lies in the token caches of a project, read from the folders alone: no source is opened, nothing is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS
from gpas_cli.data.shards import Shard, Totals, read_shard, sum_of
from gpas_cli.data.verify import intact, markers_in


@dataclass(frozen=True)
class Stored:
    """One token cache. `limit`: ids kept per document, None for whole ones. `splits`: the shards from the first on,
    up to the first missing one; `size`: bytes on disk, of everything in the folder."""

    folder: Path
    source: str
    fingerprint: str
    tokenizer: str
    vocab: int
    limit: int | None
    splits: dict[str, Totals]
    size: int


def stored(cache: Path) -> list[Stored]:
    """The token caches in `cache`, by name. A folder without a whole spec.json is none."""
    found = (_read(folder) for folder in sorted((cache / "tokens").glob("*")))
    return [one for one in found if one is not None]


def damaged(one: Stored) -> list[Path]:
    """Return the markers of the shards whose bytes are not those that were written. Reads everything."""
    return [marker for split in SPLITS for marker in markers_in(one.folder / split) if not _sound(marker)]


def _sound(marker: Path) -> bool:
    shard = read_shard(marker.with_suffix(""))
    return shard is not None and intact(shard)


def _read(folder: Path) -> Stored | None:
    spec = disk.read_json(folder / "spec.json")
    if spec is None:
        return None
    return Stored(
        folder=folder,
        source=str(spec["source"]),
        fingerprint=str(spec["fingerprint"]),
        tokenizer=str(spec["tokenizer"]),
        vocab=int(spec["vocab"]),
        limit=spec["max_doc_tokens"],
        splits={split: sum_of(list(_shards(folder / split))) for split in SPLITS},
        size=sum(_size(path) for path in folder.rglob("*")),
    )


def _shards(folder: Path) -> Iterator[Shard]:
    number = 0
    while (shard := read_shard(folder / f"{number:05d}")) is not None:
        yield shard
        number += 1


def _size(path: Path) -> int:
    """Bytes of a file; none where another process has just removed it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
