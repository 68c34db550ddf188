"""What each of several processes that compute together finds out, for tests/train/test_train_parallel.py."""

import math
from hashlib import sha256
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from gpas_cli.model.dtensors import is_shard, joint_norm, local
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train import assemble, loss, parallel
from gpas_cli.train import loop as training
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.loop import GradientNorms, measure_layers
from gpas_cli.train.observe import fetch
from gpas_cli.train.parallel import World
from gpas_cli.train.precision import Precision

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280}
OPTIM = {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 4}
CELL_OF_EIGHT = cell_from(
    {"size": SIZE, "gate": "gpas", "data": {"like": "quickstart", "layout": "pad"}, "optim": {**OPTIM, "batch": 8}}
)
CELL = cell_from({"size": SIZE, "gate": "gpas", "data": {"like": "quickstart", "layout": "pad"}, "optim": OPTIM})


def chosen_kernels(world: World) -> dict[str, Any]:
    """Return what decides how a training rounds, and the kernels used, of a process that would choose others."""
    leads = world.rank == 0
    works = {"triton": leads, "ragged": leads, "wider": not leads}
    kernels = {name: lambda device, one=one: one for name, one in works.items()}
    with (
        mock.patch.object(torch, "__version__", "2.10.0" if leads else "2.11.0"),
        mock.patch.multiple(assemble, KERNELS=kernels, worth_compiling=lambda *_: not leads),
        mock.patch.object(loss, "KERNELS", kernels),
    ):
        loop = assemble.assemble(CELL, SyntheticBatches(CELL, padded=True), world=world)
        used = {name: loss._uses(name, loop.precision.device) for name in works}
    return {"rounding": loop.position.rounding, "used": used}


def sharded_series(world: World) -> dict[str, Any]:
    """Return the series of a network sharded by FSDP and of the whole one, and where its damaged gradient is found."""
    network = build(CELL.model, seed=1)
    parallel._shard(network, Precision("fp32", torch.device("cpu")))
    _compute_gradients(network)
    for parameter in network.parameters():
        if is_shard(parameter.grad):  # the sum over processes, which all compute the same here
            parameter.grad /= world.size
    whole = build(CELL.model, seed=1)
    _compute_gradients(whole)
    found = {"sharded": _measured(network), "whole": _measured(whole)}
    table, held = network.model.embed_tokens.weight, tuple(p.grad is not None for p in network.parameters())
    if world.rank == 1:  # the other process has no damage in its part
        local(table.grad)[2] = math.inf
    _, norms = joint_norm(p.grad for p in network.parameters() if p.grad is not None)
    fault = GradientNorms(network, held, norms).first_fault(world)
    return {**found, "fault": fault}


def overflow_in_one(world: World) -> dict[str, Any]:
    """Return what a process does with an update in float16 that overflows in the other one alone, and with the next."""
    cell = cell_from({**CELL.to_mapping(), "precision": "fp16"})
    loop = assemble.assemble(cell, SyntheticBatches(cell, padded=True), world=world)
    usual, factor = training.summed_loss, 1e30 if world.rank == 1 else 1.0
    with mock.patch.object(training, "summed_loss", lambda *given: usual(*given) * factor):
        first = loop.update()
    then = loop.update()
    weights = torch.cat([p.detach().flatten() for p in loop.network.parameters()])
    scales = [first.loss_scale, then.loss_scale, loop.position.loss_scale]
    return {"skipped": [first.skipped, then.skipped], "scales": scales, "weights": float(weights.double().sum())}


def copies_on_nodes(world: World) -> dict[str, Any]:
    """Return a hash of this process's shards after two updates on two nodes, and how many micro-batches and sums
    between nodes one update takes."""
    resources = Resources(ranks=4, nodes=2, strategy="hsdp", micro_batch=1)
    loop = assemble.assemble(CELL_OF_EIGHT, SyntheticBatches(CELL_OF_EIGHT, padded=True), resources, world)
    loop.update()
    with (
        mock.patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as sums,
        mock.patch.object(training, "summed_loss", side_effect=training.summed_loss) as passes,
    ):
        loop.update()
    between = [call for call in sums.call_args_list if "group" in call.kwargs]  # the others are over all processes
    parts = b"".join(local(p.detach()).numpy().tobytes() for p in loop.network.parameters() if is_shard(p))
    return {"weights": sha256(parts).hexdigest(), "micro_batches": passes.call_count, "sums": len(between)}


def _compute_gradients(network: Llama) -> None:
    network(torch.arange(16).reshape(2, 8)).logsumexp(-1).sum().backward()


def _measured(network: Llama) -> dict[str, list[float]]:
    layers = measure_layers(network, [])
    return layers.series(*fetch([layers.numbers]))
