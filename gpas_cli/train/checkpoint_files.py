"""The files of a checkpoint: safetensors and a manifest.

    step-00000100/
      manifest.json              {"facts", "files": {name: sha256}, "tensors": {name: dtype, shape, chunks}, "sha256"}
      00000.safetensors ...      written by process 0, 1, ...: its shards, and its part of the replicated tensors

A checkpoint can be read by another number of processes. torch.distributed.checkpoint, which plans the parts of any
layout, takes as many lines to adapt to these files, and imports half a second of torch into every job.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from gpas_cli.files import fsync, parse_json, replace_file
from gpas_cli.model.dtensors import copy_of, first_row, is_shard, local
from gpas_cli.train.parallel import ALONE, World

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


@dataclass
class Writing:
    """A checkpoint that is being written to a temporary folder. `part`: the file of this process, with the result of
    writing it: its sha256, and the seconds until it was on disk."""

    path: Path
    world: World
    facts: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Any]]
    chunks: Mapping[str, Mapping[str, Any]]
    part: Future[tuple[str, float]]

    @property
    def done(self) -> bool:
        """Whether this process has written its part."""
        return self.part.done()

    def finish(self) -> float:
        """Rename the folder to `path` when it is complete and on disk. Return the seconds that writing took here.

        Collective. Raises OSError in every process.
        """
        aside = _aside(self.path)
        own = _file_of(self.world)
        written = self.world.together(lambda: ({own: self.part.result()[0]} if self.chunks else {}, self.chunks))
        tensors = {name: {**about, "chunks": []} for name, about in self.tensors.items()}
        for name, chunk in (part for _, parts in written for part in parts.items()):
            tensors[name]["chunks"].append(chunk)
        files = {name: digest for found, _ in written for name, digest in found.items()}
        content = {"format": _FORMAT, "facts": dict(self.facts), "files": files, "tensors": tensors}
        self.world.together(lambda: _finish(aside, self.path, content) if self.world.leads else None)
        return self.part.result()[1]


def write(
    path: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    world: World = ALONE,
    *,
    background: bool = False,
) -> Writing:
    """Begin to write a checkpoint, which exists once the result is finished. Collective.

    A process writes its shards and its part of the replicated tensors: in a thread if `background`, from copies in the
    host's memory, so that updates may change the tensors meanwhile. Raises OSError in every process.
    """
    began = time.perf_counter()
    world.together(lambda: _make(_aside(path)) if world.leads else None)
    own = _own(tensors, world)
    file = _file_of(world)
    chunks = dict[str, dict[str, Any]]()
    for name, part in own.items():
        offsets = [first_row(tensors[name]), *(0 for _ in part.shape)][: part.dim()]
        chunks[name] = {"file": file, "offsets": offsets, "sizes": list(part.shape)}
    if background:
        own = {name: part.to("cpu", copy=True) for name, part in own.items()}
    about = {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in tensors.items()
    }
    writer = ThreadPoolExecutor(1)
    written = writer.submit(_timed, began, _aside(path) / file, own)
    writer.shutdown(wait=not background)
    return Writing(path, world, facts, about, chunks, written)


def _aside(path: Path) -> Path:
    return path.with_name(f".writing-{path.name}")


def _file_of(world: World) -> str:
    return f"{world.rank:05d}.safetensors"


def _timed(began: float, path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, float]:
    """Write tensors, if there are any. Return the sha256 of the file, and the seconds since `began`."""
    return _write(path, tensors) if tensors else "", time.perf_counter() - began


def _make(aside: Path) -> None:
    aside.parent.mkdir(parents=True, exist_ok=True)
    discard(aside.parent)
    aside.mkdir()


def _own(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return what this process writes: of equal copies, of sharded tensors of its rows, those that fall to it, so that
    every process writes about as many bytes."""
    loads = dict[int, list[int]]()  # bytes of each copy, by the number of copies
    found = dict[str, Tensor]()
    for name, tensor in tensors.items():
        copy, copies = copy_of(tensor) if is_shard(tensor) else (world.rank, world.size)
        load = loads.setdefault(copies, [0] * copies)
        writer = load.index(min(load))
        load[writer] += tensor.nbytes
        if writer == copy and local(tensor).numel():  # FSDP leaves the last processes without rows if there are few
            found[name] = local(tensor).detach()
    return found


def _finish(aside: Path, path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest, then rename the folder."""
    replace_file(aside / _MANIFEST, json.dumps({**content, "sha256": _digest_of(content)}))
    fsync(aside)
    if path.exists():  # damaged, and written again by a later attempt
        shutil.rmtree(path)
    aside.rename(path)
    fsync(path.parent)


def read(path: Path, manifest: Manifest, wanted: Mapping[str, Tensor], world: World = ALONE) -> None:
    """Fill the tensors of `wanted`, or this process's rows of them, from the checkpoint. Collective.

    Its files must have been verified, and it must have every tensor in its shape. The number of processes that wrote it
    may be another.
    """
    world.together(lambda: _fill(path, manifest, wanted))


@torch.no_grad()
def _fill(path: Path, manifest: Manifest, wanted: Mapping[str, Tensor]) -> None:
    with ExitStack() as opened:
        files = {name: opened.enter_context(safe_open(path / name, framework="pt")) for name in manifest.files}
        for name, tensor in wanted.items():
            part, first = local(tensor), first_row(tensor)
            for chunk in manifest.tensors[name]["chunks"]:
                file = files[chunk["file"]]
                if not part.dim():
                    part.copy_(file.get_tensor(name))
                    continue
                begin, end = chunk["offsets"][0], chunk["offsets"][0] + chunk["sizes"][0]
                start, stop = max(first, begin), min(first + len(part), end)
                if start < stop:
                    part[start - first : stop - first].copy_(file.get_slice(name)[start - begin : stop - begin])


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


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
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


def _bytes(tensor: Tensor) -> Any:
    """Return the bytes of a tensor in the host's memory, without a copy if it is there."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
