"""The files of a checkpoint, as a storage back end of torch.distributed.checkpoint (DCP): safetensors and a manifest.

    step-00000100/
      manifest.json              {"facts", "files": {name: sha256}, "tensors": {name: dtype, shape, chunks}, "sha256"}
      00000.safetensors ...      written by process 0, 1, ...: its shards, and its part of the replicated tensors

DCP plans which process writes and reads which part, so a checkpoint can be read by another number of processes and
under another layout. Its own file writer keeps the plan in a pickle, and its safetensors writer holds every file in
memory twice; here nothing is unpickled, and every byte has a checksum.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from gpas_cli.files import fsync, parse_json, replace_file

_MANIFEST = "manifest.json"
_FORMAT = 1
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


class DamagedCheckpoint(Exception):
    """A checkpoint that is torn, altered, of another format, or belongs to another stage."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint: facts of the run, sha256 of each file, and where each tensor is stored."""

    facts: Mapping[str, Any]
    files: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, Any]]


class Writer(StorageWriter):
    """Writes a checkpoint to a temporary folder, and renames it to `path` when it is complete and on disk."""

    def __init__(self, path: Path, facts: Mapping[str, Any]):
        self.path = path
        self.facts = facts
        self.aside = path.with_name(f".writing-{path.name}")

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        if is_coordinator:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            discard(self.path.parent)
            self.aside.mkdir()

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=f"{number:05d}.safetensors") for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the part of this process. Raises OSError."""
        future: Future[list[WriteResult]] = Future()
        file = self.aside / plan.storage_data
        tensors: dict[str, Any] = {i.index.fqn: planner.resolve_data(i).detach() for i in plan.items}
        assert len(tensors) == len(plan.items)
        digest = _write(file, tensors) if tensors else ""
        future.set_result([WriteResult(i.index, 0, (file.name, digest)) for i in plan.items])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest, then rename the folder. Raises OSError."""
        written = [result for part in results for result in part]
        content = {
            "format": _FORMAT,
            "facts": dict(self.facts),
            "files": dict(sorted({result.storage_data for result in written})),
            "tensors": _tensors(metadata, {result.index: result.storage_data[0] for result in written}),
        }
        text = json.dumps({**content, "sha256": _digest_of(content)})
        replace_file(self.aside / _MANIFEST, text)
        fsync(self.aside)
        if self.path.exists():  # damaged, and written again by a later attempt
            shutil.rmtree(self.path)
        self.aside.rename(self.path)
        fsync(self.path.parent)

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return False


class Reader(StorageReader):
    """Reads the checkpoint in `path`, whose files must have been verified."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        storage: dict[MetadataIndex, str] = {}
        for name, entry in self.manifest.tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(c["offsets"]), torch.Size(c["sizes"])) for c in entry["chunks"]]
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, entry["dtype"])), torch.Size(entry["shape"]), chunks
            )
            storage |= {MetadataIndex(name, torch.Size(c["offsets"])): c["file"] for c in entry["chunks"]}
        return Metadata(state_dict_metadata=tensors, storage_data=storage)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        self._storage: Mapping[MetadataIndex, str] = metadata.storage_data

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors of the plan."""
        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self._storage[item.storage_index], []).append(item)
        for name, items in by_file.items():
            with safe_open(self.path / name, framework="pt") as file:
                for item in items:
                    source = file.get_tensor(item.storage_index.fqn)
                    for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                        source = source.narrow(dimension, start, length)
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(source)
                    planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return False


def discard(folder: Path) -> None:
    """Delete what interrupted writes left in `folder`."""
    for left in folder.glob(".writing-*"):
        shutil.rmtree(left, ignore_errors=True)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint `path`. Raises DamagedCheckpoint."""
    if path.suffix == ".safetensors":
        raise DamagedCheckpoint(f"{path} is a checkpoint in one file, as older versions wrote them; it cannot be read")
    try:
        content = parse_json((path / _MANIFEST).read_bytes())
        recorded = content.pop("sha256")
        if content["format"] != _FORMAT:
            raise DamagedCheckpoint(f"{path} has format {content['format']}, but this version reads format {_FORMAT}")
        manifest = Manifest(content["facts"], content["files"], content["tensors"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if recorded != _digest_of(content):
        raise DamagedCheckpoint(f"{path}: {_MANIFEST} does not have the checksum it was written with")
    return manifest


def verify(path: Path, name: str, digest: str) -> None:
    """Raise DamagedCheckpoint unless the file `name` of the checkpoint has the sha256 `digest`."""
    try:
        found = _sha256(path / name)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if found != digest:
        raise DamagedCheckpoint(f"{path}: {name} does not have the checksum it was written with")


def _tensors(metadata: Metadata, file_of: Mapping[MetadataIndex, str]) -> dict[str, Any]:
    """Return the manifest's entry of every tensor: dtype, shape, and which file holds which part."""
    tensors: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), name
        chunks = [
            {
                "file": file_of[MetadataIndex(name, chunk.offsets)],
                "offsets": list(chunk.offsets),
                "sizes": list(chunk.sizes),
            }
            for chunk in entry.chunks
        ]
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "shape": list(entry.size), "chunks": chunks}
    return tensors


def _write(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write one shard through to the disk, in the bytes of `safetensors.torch.save`; its sha256. Raises OSError.

    A thread hashes each tensor while it is written: 0.73 of the time of writing first and reading the file for its hash
    (1 GB in memory; on a busy disk no gain was shown). Tensors come to the host one by one.
    """
    # safetensors' order: the widest types first, which keeps every tensor aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    ends = [0, *accumulate(tensors[name].nbytes for name in names)]
    header = json.dumps(
        {
            name: {"dtype": _DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape), "data_offsets": offsets}
            for name, *offsets in zip(names, ends, ends[1:], strict=False)
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file, ThreadPoolExecutor(1) as hasher:
            for piece in chain((struct.pack("<Q", len(header)), header), (_bytes(tensors[name]) for name in names)):
                hashed = hasher.submit(digest.update, piece)
                file.write(piece)
                hashed.result()
        fsync(path)
    except OSError as error:
        error.filename = str(path)  # `write` does not set it
        raise
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor in the host's memory, without a copy if it is there."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
