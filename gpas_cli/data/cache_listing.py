"""List the token caches of a project from their folders alone: no source is opened and nothing is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS
from gpas_cli.data.shards import Shard, Totals, intact, markers_in, read_shard, sum_of


@dataclass(frozen=True)
class CachedCorpus:
    """One token cache. `limit`: ids kept per document, None if documents are whole. `splits`: totals of the shards
    before the first missing one. `size`: bytes on disk of everything in the folder."""

    folder: Path
    source: str
    fingerprint: str
    tokenizer: str
    vocab: int
    limit: int | None
    splits: dict[str, Totals]
    size: int


def list_caches(cache: Path) -> list[CachedCorpus]:
    """Return the token caches in `cache`, sorted by name, except those that `undescribed_caches` returns."""
    return [_read(folder, spec) for folder in _folders(cache) if (spec := _spec(folder)) is not None]


def undescribed_caches(cache: Path) -> list[Path]:
    """Return the path of every spec.json of a token cache that is missing or was altered after it was written."""
    return [folder / "spec.json" for folder in _folders(cache) if _spec(folder) is None]


def _folders(cache: Path) -> list[Path]:
    """Return the folders of token caches that contain a spec or a shard."""
    found = sorted(path for path in (cache / "tokens").glob("*") if path.is_dir())
    return [folder for folder in found if (folder / "spec.json").exists() or _has_shard(folder)]


def _has_shard(folder: Path) -> bool:
    return any(markers_in(folder / split) for split in SPLITS)


def _spec(folder: Path) -> dict[str, Any] | None:
    """Return the specification of a cache, or None unless it matches the digest in the folder's name."""
    spec = disk.read_json(folder / "spec.json")
    try:
        named = spec is not None and folder.name == f"{spec.get('source')}-{disk.digest(spec)}"
    except ValueError:  # NaN, which canonical JSON cannot express
        return None
    return spec if named else None


def damaged(corpus: CachedCorpus) -> list[Path]:
    """Return the markers of the shards whose bytes differ from those that were written. Reads all of the cache."""
    return [marker for split in SPLITS for marker in markers_in(corpus.folder / split) if not _is_intact(marker)]


def _is_intact(marker: Path) -> bool:
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
    """Return the bytes of a file, 0 if another process has just removed it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
