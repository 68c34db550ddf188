"""Checkpoints: a folder of shards and a manifest (`train.dcp_storage`), written aside, renamed, verified when read.

A checkpoint holds the network, Adam's state and the update it was taken after. Batches, schedules and initialisation
are pure functions of (seed, step), so nothing else is needed to go on bit for bit. torch.distributed.checkpoint plans
the parts: any number of processes, under any layout, reads what any other has written.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from gpas_cli.checkpoints import outdated, path_of
from gpas_cli.model.llama import Llama
from gpas_cli.train.dcp_storage import DamagedCheckpoint, Manifest, Reader, Writer, read_manifest, verify
from gpas_cli.train.parallel import ALONE, World

__all__ = ["DamagedCheckpoint", "Position", "load", "load_gates", "save"]

_NETWORK, _ADAM = "network/", "adam/"


@dataclass(frozen=True)
class Position:
    """The progress of a run, and what a resumed run needs to round exactly as an uninterrupted one.

    `step`: updates done; `tokens`: target tokens seen; `seconds`: time spent in updates. `micro_batch` rows at once in
    each of `processes`, and the float32 matrix product `gemm` (`train.matmul_precision`), are kept for a resumed run.
    `text`: what it reads (`data.prepare.Corpus.identity`), "" in checkpoints that do not record it. `codes`: the
    versions of the code that made the updates, oldest first, separated by blanks.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    micro_batch: int = 0
    processes: int = 1
    gemm: str = ""
    text: str = ""
    codes: str = ""

    def made_by(self, code: str) -> Position:
        """The position with `code` as the version that makes the next updates; unchanged where `code` is unknown."""
        if not code or self.codes.split()[-1:] == [code]:
            return self
        return replace(self, codes=f"{self.codes} {code}".strip())


def save(
    folder: Path, key: str, network: Llama, optimizer: torch.optim.Optimizer, position: Position, world: World = ALONE
) -> Path:
    """Write the checkpoint of `position` and drop old ones. Collective.

    Raises OSError, in every process, when it cannot be written; older checkpoints are then untouched.
    """
    path = path_of(folder, position.step)
    tensors = {**_network_tensors(network), **_adam_tensors(network, optimizer)}
    with _own_errors(), _without_warning():
        save_parts(
            dict(tensors), storage_writer=Writer(path, {"key": key, **asdict(position)}), no_dist=world.alone,
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )  # fmt: skip
    if world.leads:
        for old in outdated(folder):
            shutil.rmtree(old, ignore_errors=True)
    return path


def load(
    path: Path, key: str, network: Llama, optimizer: torch.optim.Optimizer | None, world: World = ALONE
) -> Position:
    """Fill `network` (and `optimizer`) from the checkpoint. Collective.

    Raises DamagedCheckpoint, in every process and with nothing changed, unless all checksums and the stage's key fit.
    """
    manifest = _verified(path, world)
    if manifest.facts["key"] != key:
        raise DamagedCheckpoint(f"{path} belongs to stage {manifest.facts['key']}, not {key}")
    wanted = _network_tensors(network)
    state = _empty_adam(network, manifest, optimizer) if optimizer is not None else {}
    wanted |= {_adam_name(part, name): t for name, parts in state.items() for part, t in parts.items()}
    _refuse_others(path, manifest, wanted)
    with _own_errors(), _without_warning(), torch.no_grad():
        load_parts(
            wanted, storage_reader=Reader(path, manifest), no_dist=world.alone,
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )  # fmt: skip
    if optimizer is not None:
        optimizer.state.update({network.get_parameter(name): parts for name, parts in state.items()})
    return Position(**{name: manifest.facts.get(name, usual) for name, usual in asdict(Position()).items()})


def load_gates(path: Path, network: Llama) -> None:
    """Copy the gates of another cell's checkpoint into `network`'s. Raises DamagedCheckpoint if one is missing."""
    manifest = _verified(path, ALONE)
    ours = {name: t for name, t in network.state_dict().items() if name.endswith(".alpha")}
    if {name for name in manifest.tensors if _is_gate(name)} != {_NETWORK + name for name in ours}:
        raise DamagedCheckpoint(f"{path} does not hold the gates of this network")
    for name, tensor in ours.items():
        tensor.copy_(_one(path, manifest, _NETWORK + name))


def _is_gate(name: str) -> bool:
    return name.startswith(_NETWORK) and name.endswith(".alpha")


def _one(path: Path, manifest: Manifest, name: str) -> Tensor:
    """One whole tensor of a checkpoint, which all processes had whole."""
    (chunk,) = manifest.tensors[name]["chunks"]
    try:
        with safe_open(path / chunk["file"], framework="pt") as file:
            return file.get_tensor(name)  # type: ignore[no-any-return]
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


def _network_tensors(network: Llama) -> dict[str, Tensor]:
    return {_NETWORK + name: tensor.detach() for name, tensor in network.state_dict().items()}


def _adam_name(part: str, parameter: str) -> str:
    return f"{_ADAM}{part}/{parameter}"


def _adam_tensors(network: Llama, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    named = ((name, optimizer.state.get(parameter, {})) for name, parameter in network.named_parameters())
    return {_adam_name(part, name): value for name, parts in named for part, value in parts.items()}


def _empty_adam(network: Llama, manifest: Manifest, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Room for the parts of Adam's state that the checkpoint has: parameter's name -> part -> tensor."""
    state: dict[str, dict[str, Tensor]] = {}
    for full in manifest.tensors:
        if full.startswith(_ADAM):
            part, name = full.removeprefix(_ADAM).split("/", 1)
            try:
                parameter = network.get_parameter(name).detach()
            except AttributeError:
                continue  # _refuse_others names it
            # Adam counts its steps in float32, whatever the parameter's dtype: the fused one where the parameter is.
            counts = parameter.device if optimizer.defaults["fused"] else "cpu"
            empty = torch.zeros((), device=counts) if part == "step" else torch.zeros_like(parameter)
            state.setdefault(name, {})[part] = empty
    return state


def _verified(path: Path, world: World) -> Manifest:
    """The manifest, when every file is as it was written; each process looks at some. Collective."""
    problem = ""
    try:
        manifest = read_manifest(path)
        for name, digest in sorted(manifest.files.items())[world.rank :: world.size]:
            verify(path, name, digest)
    except DamagedCheckpoint as error:
        problem = str(error)
    if world.any(bool(problem)):
        raise DamagedCheckpoint(problem or f"{path}: another process found it damaged")
    return manifest


def _refuse_others(path: Path, manifest: Manifest, wanted: Mapping[str, Tensor]) -> None:
    """Raise DamagedCheckpoint unless the checkpoint has the tensors that are wanted, and the network's no others."""
    if missing := sorted(wanted.keys() - manifest.tensors.keys()):
        raise DamagedCheckpoint(f"{path} lacks {missing[0]}")
    if unknown := sorted(n for n in manifest.tensors.keys() - wanted.keys() if n.startswith(_NETWORK)):
        raise DamagedCheckpoint(f"{path} has {unknown[0]}, which this network lacks")
    for name, tensor in wanted.items():
        told = manifest.tensors[name]
        if list(tensor.shape) != told["shape"] or str(tensor.dtype) != f"torch.{told['dtype']}":
            raise DamagedCheckpoint(f"{path}: {name} is {told['dtype']} {told['shape']} there")


@contextmanager
def _own_errors() -> Iterator[None]:
    """DCP's collected failures as the first of them: an OSError stays one."""
    try:
        yield
    except CheckpointException as error:
        cause = next((failure[0] for failure in error.failures.values()), error)
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror or str(cause), cause.filename) from error
        raise RuntimeError(f"{type(cause).__name__}: {cause}") from error


@contextmanager
def _without_warning() -> Iterator[None]:
    """DCP warns that a single process is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
