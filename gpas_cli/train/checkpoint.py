"""Checkpoints: a folder of shards and a manifest (`train.checkpoint_files`), written atomically and verified when read.

A checkpoint holds the network, the optimizer's state and the number of updates done. Batches, schedules and
initialisation are pure functions of (seed, step), so a run resumes bit for bit from these alone. Any number of
processes can read a checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpas_cli.checkpoints import outdated, path_of
from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import ADAM, OptimizerKind, role
from gpas_cli.train.checkpoint_files import DamagedCheckpoint, Manifest, Writing, read, read_manifest, verify, write
from gpas_cli.train.optim import zeros
from gpas_cli.train.parallel import ALONE, World

__all__ = ["DamagedCheckpoint", "Position", "load", "load_gates", "save"]

_NETWORK = "network/"


@dataclass(frozen=True)
class Position:
    """The progress of a run, and what a resumed run needs to round exactly as an uninterrupted one.

    `step`: updates done, of `steps` (0 in checkpoints that do not record it); `tokens`: target tokens seen; `seconds`:
    time spent in updates. `micro_batch` rows at once in
    each of `processes`, and the float32 matrix product `gemm` (`train.precision`), are kept for a resumed run.
    `text`: what it reads (`data.prepare.Corpus.identity`), "" in checkpoints that do not record it. `codes`: the
    versions of the code that made the updates, oldest first, separated by blanks. `rounding`: the fields of
    `train.rounding.Rounding`, {} in checkpoints that do not record them. `loss_scale` and `good_updates`: those of
    `train.precision.LossScale`, 0 before the first update and in precisions without one.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    micro_batch: int = 0
    processes: int = 1
    gemm: str = ""
    text: str = ""
    codes: str = ""
    steps: int = 0
    rounding: Mapping[str, Any] = field(default_factory=dict)
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
    """Begin to write the checkpoint of `position`, in the background or not, for `finish`. Collective.

    Raises OSError in every process if it cannot be written; older checkpoints are then untouched. Raises ValueError if
    the optimizer keeps state that `kind` does not declare.
    """
    tensors = {**_network_tensors(network), **_optimizer_tensors(network, optimizer, kind)}
    facts = {"key": key, **asdict(position)}
    return write(path_of(folder, position.step), facts, tensors, world, background=background)


def finish(writing: Writing, keep: Collection[int] = ()) -> float:
    """Finish a checkpoint and delete outdated ones but those after `keep`. Return the seconds that writing took.

    Collective. Raises OSError as `begin`.
    """
    seconds = writing.finish()
    if writing.world.leads:
        for old in outdated(writing.path.parent, keep):
            shutil.rmtree(old, ignore_errors=True)
    return seconds


def save(
    folder: Path,
    key: str,
    network: Llama,
    optimizer: torch.optim.Optimizer,
    position: Position,
    world: World = ALONE,
    kind: OptimizerKind = ADAM,
) -> Path:
    """Write the checkpoint of `position`, delete outdated ones and return its path. Collective. Raises as `begin`."""
    writing = begin(folder, key, network, optimizer, position, world, kind)
    finish(writing)
    return writing.path


def load(
    path: Path,
    key: str,
    network: Llama,
    optimizer: torch.optim.Optimizer | None,
    world: World = ALONE,
    kind: OptimizerKind = ADAM,
) -> Position:
    """Load `network` (and `optimizer`, if given) from the checkpoint and return its position. Collective.

    Raises DamagedCheckpoint in every process, with nothing changed, unless all checksums and the stage's key match.
    """
    manifest = _verified(path, world)
    if manifest.facts["key"] != key:
        raise DamagedCheckpoint(f"{path} belongs to stage {manifest.facts['key']}, not {key}")
    wanted = _network_tensors(network)
    state = _empty_state(network, manifest, optimizer, kind) if optimizer is not None else {}
    wanted |= {_state_name(kind, part, name): t for name, parts in state.items() for part, t in parts.items()}
    _check_tensors(path, manifest, wanted, complete=optimizer is not None)
    read(path, manifest, wanted, world)
    if optimizer is not None:
        optimizer.state.update({network.get_parameter(name): parts for name, parts in state.items()})
    return Position(**{name: manifest.facts.get(name, default) for name, default in asdict(Position()).items()})


def load_gates(path: Path, network: Llama) -> None:
    """Copy the gates of another cell's checkpoint into `network`'s. Raises DamagedCheckpoint if one is missing."""
    manifest = _verified(path, ALONE)
    ours = {name: t for name, t in network.state_dict().items() if name.endswith(".alpha")}
    theirs = {name for name in manifest.tensors if name.startswith(_NETWORK) and name.endswith(".alpha")}
    if theirs != {_NETWORK + name for name in ours}:
        raise DamagedCheckpoint(f"{path} does not hold the gates of this network")
    read(path, manifest, {_NETWORK + name: tensor for name, tensor in ours.items()})


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
    """Raise DamagedCheckpoint unless the checkpoint has every wanted tensor, in its dtype and shape, and no other
    tensor of the network; if `complete`, no other tensor at all."""
    if missing := sorted(wanted.keys() - manifest.tensors.keys()):
        raise DamagedCheckpoint(f"{path} has no {missing[0]}")
    others = sorted(n for n in manifest.tensors.keys() - wanted.keys() if complete or n.startswith(_NETWORK))
    if others:
        part = "network" if others[0].startswith(_NETWORK) else "optimizer"
        raise DamagedCheckpoint(f"{path} has {others[0]}, which is not part of this {part}")
    for name, tensor in wanted.items():
        stored = manifest.tensors[name]
        if list(tensor.shape) != stored["shape"] or str(tensor.dtype) != f"torch.{stored['dtype']}":
            raise DamagedCheckpoint(
                f"{path}: {name} is {stored['dtype']} {stored['shape']}, but this network needs "
                f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            )
