"""Put the weights of a network into one that is to be trained."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpas_cli.errors import GpasError
from gpas_cli.events import Emit, Phase, Warned
from gpas_cli.extensions.networks.network import PinnedNetwork, weight_files
from gpas_cli.extensions.networks.opening import find_network
from gpas_cli.extensions.networks.start import absence, changed, multiplier, opened, same_but_gates
from gpas_cli.extensions.networks.trained_cell import TrainedCell
from gpas_cli.model.dtensors import fill
from gpas_cli.model.llama import Llama
from gpas_cli.train.checkpoint import load_common
from gpas_cli.words import listed


@torch.no_grad()
def put_into(pinned: PinnedNetwork, network: Llama, root: Path, emit: Emit) -> None:
    """Replace the weights of an initialised network, or of this process's part of it, by those of `pinned`.

    Raises GpasError if the files are not those that are pinned, or do not have exactly the tensors of the network
    besides its gates, factors and further norms.
    """
    model = network.spec
    found = find_network(pinned, root, lambda what: emit(Phase(what)))
    if fault := absence((pinned, model), root, root):
        raise GpasError(fault)
    ours = network.state_dict()
    given = set[str]()
    for path in weight_files(found.folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    if name in ours:
                        _put(ours[name], file.get_tensor(name), multiplier(model, name))
                    given.add(name)
        except (OSError, SafetensorError) as error:
            raise GpasError(f"{path} cannot be read: {error}") from error
    _check(network, given, pinned.source)
    _report(network, given, pinned.name, changed(model), emit)


@torch.no_grad()
def put_trained(trained: TrainedCell, network: Llama, checkpoint: Path, emit: Emit) -> None:
    """Replace the weights of an initialised network, or of this process's part of it, by those of a cell's checkpoint.

    Raises DamagedCheckpoint, and GpasError as `put_into`.
    """
    before, model = trained.cell.model, network.spec
    ours = network.state_dict()
    given = load_common(checkpoint, ours)
    _check(network, given, trained.source)
    same = same_but_gates(model, before)
    for name in () if same else given:
        if (ratio := multiplier(before, name) / multiplier(model, name)) != 1:
            ours[name].mul_(ratio)
    difference = opened(model) if same and not before.gate else "" if same else changed(model)
    _report(network, given, f"{trained.source}, {trained.name}", difference, emit)


def _check(network: Llama, given: Set[str], source: str) -> None:
    """Raise GpasError unless these are the tensors of a network besides its gates, factors and further norms."""
    ours, model = network.state_dict(), network.spec
    tied = {"lm_head.weight"} if model.family.tied else set[str]()
    if others := sorted(given - ours.keys() - tied):
        raise GpasError(f"start: {source} has {listed(others)}, for which norm: {model.scheme} has no place")
    if matrices := [name for name in sorted(ours.keys() - given) if ours[name].dim() > 1]:
        raise GpasError(f"start: {source} does not have {listed(matrices)}")


def _report(network: Llama, given: Set[str], name: str, difference: str, emit: Emit) -> None:
    new = len(network.state_dict().keys() - given)
    emit(Phase("starts from a network", f"{len(given)} tensors of {name}; {new} are new"))
    if difference:
        emit(Warned(f"the training does not start with the function of {name}: {difference}"))


def _put(ours: Tensor, theirs: Tensor, multiplier: float) -> None:
    if ours.shape != theirs.shape:
        raise GpasError(f"start: a tensor is {list(theirs.shape)} and not {list(ours.shape)}")
    fill(ours, (theirs.double() / multiplier).to(ours.dtype))
