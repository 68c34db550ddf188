"""What lies in the token caches of a project, read from the folders alone: no source is opened, nothing is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS
from gpas_cli.data.shards import Shard, Totals, read_shard, sum_of
from gpas_cli.data.verify import intact, markers_in


@dataclass(frozen=True)
class CachedCorpus:
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


def list_caches(cache: Path) -> list[CachedCorpus]:
    """The token caches in `cache`, by name; those that `undescribed_caches` lists are left out."""
    return [_read(folder, spec) for folder in _folders(cache) if (spec := _spec(folder)) is not None]


def undescribed_caches(cache: Path) -> list[Path]:
    """The spec.json of each token cache in `cache` that is missing or not as it was written."""
    return [folder / "spec.json" for folder in _folders(cache) if _spec(folder) is None]


def _folders(cache: Path) -> list[Path]:
    """The folders of token caches in which something has been written."""
    found = sorted(path for path in (cache / "tokens").glob("*") if path.is_dir())
    return [folder for folder in found if (folder / "spec.json").exists() or any(map(_begun, _splits(folder)))]


def _splits(folder: Path) -> list[Path]:
    return [folder / split for split in SPLITS]


def _begun(split: Path) -> bool:
    return bool(markers_in(split))


def _spec(folder: Path) -> dict[str, Any] | None:
    """What the cache was made from, None unless it is what the folder is named after."""
    spec = disk.read_json(folder / "spec.json")
    try:
        named = spec is not None and folder.name == f"{spec.get('source')}-{disk.digest(spec)}"
    except ValueError:  # a number that is none, which JSON has no word for
        return None
    return spec if named else None


def damaged(one: CachedCorpus) -> list[Path]:
    """Return the markers of the shards whose bytes are not those that were written. Reads everything."""
    return [marker for split in SPLITS for marker in markers_in(one.folder / split) if not _sound(marker)]


def _sound(marker: Path) -> bool:
    shard = read_shard(marker.with_suffix(""))
    return shard is not None and intact(shard)


def _read(folder: Path, spec: dict[str, Any]) -> CachedCorpus:
    return CachedCorpus(
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
