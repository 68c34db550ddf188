"""Checkpoints: one safetensors file each, written aside and renamed, with a checksum of its tensors inside.

A checkpoint holds the network, Adam's state and the update it was taken after. Batches, schedules and initialisation
are pure functions of (seed, step), so nothing else is needed to go on bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpas_cli.model.llama import Llama

KEPT = 2
_NETWORK, _ADAM = "network/", "adam/"


class DamagedCheckpoint(Exception):
    """A file that is torn, altered, or belongs to another stage."""


@dataclass(frozen=True)
class Position:
    """Where a run stands: updates done, target tokens seen, seconds spent in updates."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def save(folder: Path, key: str, network: Llama, optimizer: torch.optim.Optimizer, position: Position) -> Path:
    """Write the checkpoint of `position` and drop all but the newest two.

    Raises OSError when it cannot be written; older checkpoints are then untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, aside = path_of(folder, position.step), folder / f".writing-{os.getpid()}"
    tensors = dict(_tensors(network, optimizer))
    facts = {"key": key, **position.__dict__, "sha256": _checksum(tensors)}
    try:
        save_file(tensors, aside, metadata={"gpas": json.dumps(facts)})
        _fsync(aside)
        aside.replace(path)
        _fsync(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        aside.unlink(missing_ok=True)
    for old in list_newest_first([folder])[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def list_newest_first(folders: Iterable[Path]) -> list[Path]:
    """Every checkpoint in `folders`, the one with the most updates first."""
    found = [path for folder in folders for path in folder.glob("step-*.safetensors")]
    return sorted(found, key=lambda path: path.name, reverse=True)


def load(path: Path, key: str, network: Llama, optimizer: torch.optim.Optimizer | None) -> Position:
    """Fill `network` (and `optimizer`) from the file.

    Raises DamagedCheckpoint, with nothing changed, unless the checksum and the stage's key fit.
    """
    facts, tensors = _read(path)
    if facts["key"] != key:
        raise DamagedCheckpoint(f"{path} belongs to stage {facts['key']}, not {key}")
    network.load_state_dict(dict(_under(_NETWORK, tensors)))
    if optimizer is not None:
        _load_adam(network, optimizer, dict(_under(_ADAM, tensors)))
    return Position(step=facts["step"], tokens=facts["tokens"], seconds=facts["seconds"])


def load_gates(path: Path, network: Llama) -> None:
    """Copy the gates of another cell's checkpoint into `network`'s. Raises DamagedCheckpoint if one is missing."""
    _, tensors = _read(path)
    gates = {name: t for name, t in _under(_NETWORK, tensors) if name.endswith(".alpha")}
    ours = {name: t for name, t in network.state_dict().items() if name.endswith(".alpha")}
    if gates.keys() != ours.keys():
        raise DamagedCheckpoint(f"{path} does not hold the gates of this network")
    for name, tensor in ours.items():
        tensor.copy_(gates[name])


def _tensors(network: Llama, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in network.state_dict().items():
        yield _NETWORK + name, tensor.detach().cpu().contiguous()
    for name, parameter in network.named_parameters():
        for part, value in optimizer.state.get(parameter, {}).items():
            yield f"{_ADAM}{part}/{name}", value.detach().cpu().contiguous()


def _load_adam(network: Llama, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    # Adam keeps its step count in float32 on the parameter's device, whatever the parameter's dtype.
    for name, tensor in tensors.items():
        part, parameter_name = name.split("/", 1)
        parameter = network.get_parameter(parameter_name)
        optimizer.state[parameter][part] = tensor.to(parameter.device)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), t) for name, t in tensors.items() if name.startswith(prefix))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["gpas"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if _checksum(tensors) != facts["sha256"]:
        raise DamagedCheckpoint(f"{path} does not have the checksum it was written with")
    return facts, tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
