"""Checkpoints: a folder of shards of safetensors and a manifest, written atomically and verified when read.

A checkpoint holds the network, the optimizer's state and the number of updates done. Batches, schedules and
initialisation are pure functions of (seed, step), so a run resumes bit for bit from these alone. Any number of
processes can read a checkpoint.

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
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from gpas_cli.checkpoints import outdated, path_of
from gpas_cli.files import fsync, open_regular, parse_json, read_regular, replace_file
from gpas_cli.model.dtensors import copy_of, first_row, is_shard, local
from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import ADAM, OptimizerKind, role
from gpas_cli.structure import Frozen
from gpas_cli.train.optim import zeros
from gpas_cli.train.parallel import ALONE, World

_MANIFEST = "manifest.json"
_FORMAT = 1
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
_NETWORK = "network/"


class DamagedCheckpoint(Exception):
    """A checkpoint that is torn, altered, of another format, or belongs to another stage."""


class Manifest(Frozen):
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

    def finish(self, keep: Collection[int] = ()) -> float:
        """Rename the folder to `path` when it is complete and on disk, and delete outdated checkpoints but those after
        `keep`. Return the seconds that writing took here.

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
        for old in outdated(self.path.parent, keep) if self.world.leads else ():
            shutil.rmtree(old, ignore_errors=True)
        return self.part.result()[1]


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


@torch.no_grad()
def _fill(path: Path, manifest: Manifest, wanted: Mapping[str, Tensor]) -> None:
    """Fill the tensors of `wanted`, or this process's rows of them, from the checkpoint.

    Its files must have been verified, and it must have every tensor in its shape. The number of processes that wrote it
    may be another.
    """
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
        content = parse_json(read_regular(path / _MANIFEST)[0])
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
        with open_regular(path / name) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
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


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Position(Frozen):
    """The progress of a run, and what a resumed run needs to round exactly as an uninterrupted one.

    `micro_batch` rows at once in each of `processes`, and the float32 matrix product `gemm` (`train.precision`), are
    kept for a resumed run. `loss_scale` and `good_updates`: those of `train.precision.LossScale`, 0 before the first
    update and in precisions without one.
    """

    step: int = 0  # updates done
    tokens: int = 0  # target tokens seen
    seconds: float = 0.0  # time spent in updates
    micro_batch: int = 0
    processes: int = 1
    gemm: str = ""
    text: str = ""  # what it reads (`data.prepare.Corpus.identity`), "" in checkpoints that do not record it
    codes: str = ""  # the versions of the code that made the updates, oldest first, separated by blanks
    steps: int = 0  # updates in all, 0 in checkpoints that do not record it
    rounding: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `train.assemble.Rounding`, {} in checkpoints that do not record them."""
    loss_scale: float = 0.0
    good_updates: int = 0

    def made_by(self, code: str) -> Position:
        """Return the position with `code` as the version that makes the next updates; itself if `code` is unknown."""
        if not code or self.codes.split()[-1:] == [code]:
            return self
        return replace(self, codes=f"{self.codes} {code}".strip())


def begin(
    folder: Path,
    key: str,
    network: Llama,
    optimizer: torch.optim.Optimizer,
    position: Position,
    world: World = ALONE,
    kind: OptimizerKind = ADAM,
    *,
    background: bool = False,
) -> Writing:
    """Begin to write the checkpoint of `position`, which exists once the result is finished. Collective.

    A process writes its shards and its part of the replicated tensors: in a thread if `background`, from copies in the
    host's memory, so that updates may change the tensors meanwhile.

    Raises OSError in every process if it cannot be written; older checkpoints are then untouched. Raises ValueError if
    the optimizer keeps state that `kind` does not declare.
    """
    began = time.perf_counter()
    path, file = path_of(folder, position.step), _file_of(world)
    tensors = {**_network_tensors(network), **_optimizer_tensors(network, optimizer, kind)}
    world.together(lambda: _make(_aside(path)) if world.leads else None)
    own = _own(tensors, world)
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
    return Writing(path, world, {"key": key, **asdict(position)}, about, chunks, written)


def load(
    path: Path,
    key: str,
    network: Llama,
    optimizer: torch.optim.Optimizer | None,
    world: World = ALONE,
    kind: OptimizerKind = ADAM,
) -> Position:
    """Load `network` (and `optimizer`, if given) from the checkpoint and return its position. Collective.

    Without the optimizer, weights of another dtype are converted.

    Raises DamagedCheckpoint in every process, with nothing changed, unless all checksums and the stage's key match.
    """
    manifest = _verified(path, world)
    if manifest.facts["key"] != key:
        raise DamagedCheckpoint(f"{path} belongs to stage {manifest.facts['key']}, not {key}")
    wanted = _network_tensors(network)
    state = _empty_state(network, manifest, optimizer, kind) if optimizer is not None else {}
    wanted |= {_state_name(kind, part, name): t for name, parts in state.items() for part, t in parts.items()}
    _check_tensors(path, manifest, wanted, complete=optimizer is not None)
    world.together(lambda: _fill(path, manifest, wanted))
    if optimizer is not None:
        optimizer.state.update({network.get_parameter(name): parts for name, parts in state.items()})
    return Position(**{name: manifest.facts.get(name, default) for name, default in asdict(Position()).items()})


def load_gates(path: Path, network: Llama) -> None:
    """Copy the gates of another cell's checkpoint into `network`'s. Raises DamagedCheckpoint if one is missing."""
    ours = {name: t for name, t in network.state_dict().items() if name.endswith(".alpha")}
    if {name for name in load_common(path, ours) if name.endswith(".alpha")} != ours.keys():
        raise DamagedCheckpoint(f"{path} does not hold the gates of this network")


def load_common(path: Path, wanted: Mapping[str, Tensor]) -> set[str]:
    """Fill those of the tensors, by name, that the network of a checkpoint has. Return the names of all that it has.

    Raises DamagedCheckpoint, also if a tensor has another shape.
    """
    manifest = _verified(path, ALONE)
    theirs = {name.removeprefix(_NETWORK) for name in manifest.tensors if name.startswith(_NETWORK)}
    common = {_NETWORK + name: tensor for name, tensor in wanted.items() if name in theirs}
    for name, tensor in common.items():
        if manifest.tensors[name]["shape"] != list(tensor.shape):
            raise DamagedCheckpoint(f"{path}: {name} is {manifest.tensors[name]['shape']}, not {list(tensor.shape)}")
    _fill(path, manifest, common)
    return theirs


def _network_tensors(network: Llama) -> dict[str, Tensor]:
    return {_NETWORK + name: tensor.detach() for name, tensor in network.state_dict().items()}


def _state_name(kind: OptimizerKind, part: str, parameter: str) -> str:
    return f"{kind.prefix}{part}/{parameter}"


def _optimizer_tensors(network: Llama, optimizer: torch.optim.Optimizer, kind: OptimizerKind) -> dict[str, Tensor]:
    """Return the optimizer's state by its name in a checkpoint. Raises ValueError for state that is not declared."""
    found: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        declared = (*kind.tensors_of(role(name, parameter.dim())), *kind.counters)
        for part, value in optimizer.state.get(parameter, {}).items():
            if part not in declared:
                raise ValueError(
                    f"the optimizer '{kind.name}' has the state '{part}', which its entry does not declare"
                )
            found[_state_name(kind, part, name)] = value
    return found


def _empty_state(
    network: Llama, manifest: Manifest, optimizer: torch.optim.Optimizer, kind: OptimizerKind
) -> dict[str, dict[str, Tensor]]:
    """Allocate the optimizer state that the checkpoint has: parameter's name -> part -> tensor."""
    parameters = dict(network.named_parameters())
    state: dict[str, dict[str, Tensor]] = {}
    for full in manifest.tensors:
        part, _, name = full.removeprefix(kind.prefix).partition("/")
        if not full.startswith(kind.prefix) or name not in parameters:
            continue  # _check_tensors reports it
        parameter = parameters[name].detach()
        tensors = kind.tensors_of(role(name, parameter.dim()))
        if part in tensors:
            state.setdefault(name, {})[part] = zeros(parameter, tensors[part])
        elif part in kind.counters:
            # float32 whatever the parameter's dtype; fused kernels keep it on the parameter's device.
            device = parameter.device if optimizer.defaults.get("fused") else "cpu"
            state.setdefault(name, {})[part] = torch.zeros((), device=device)
    return state


def _verified(path: Path, world: World) -> Manifest:
    """Return the manifest if every file matches its checksum; each process verifies some of them. Collective."""
    problem = ""
    try:
        manifest = read_manifest(path)
        for name, digest in sorted(manifest.files.items())[world.rank :: world.size]:
            verify(path, name, digest)
    except DamagedCheckpoint as error:
        problem = str(error)
    if world.any(bool(problem)):
        raise DamagedCheckpoint(problem or f"{path} is damaged, as another process found")
    return manifest


def _check_tensors(path: Path, manifest: Manifest, wanted: Mapping[str, Tensor], *, complete: bool) -> None:
    """Raise DamagedCheckpoint unless the checkpoint has every wanted tensor, in its shape, and no other tensor of the
    network; if `complete`, each in its dtype, and no other tensor at all."""
    if missing := sorted(wanted.keys() - manifest.tensors.keys()):
        raise DamagedCheckpoint(f"{path} has no {missing[0]}")
    others = sorted(n for n in manifest.tensors.keys() - wanted.keys() if complete or n.startswith(_NETWORK))
    if others:
        part = "network" if others[0].startswith(_NETWORK) else "optimizer"
        raise DamagedCheckpoint(f"{path} has {others[0]}, which is not part of this {part}")
    for name, tensor in wanted.items():
        stored = manifest.tensors[name]
        converted = str(tensor.dtype) != f"torch.{stored['dtype']}"
        if list(tensor.shape) != stored["shape"] or (complete and converted):
            raise DamagedCheckpoint(
                f"{path}: {name} is {stored['dtype']} {stored['shape']}, but this network needs "
                f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            )
