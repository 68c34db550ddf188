"""Build everything that a training needs from its cell: device, network, optimizer, micro-batch, matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import flops_per_token
from gpas_cli.spec.run import Resources
from gpas_cli.train.compiling import worth_compiling
from gpas_cli.train.depth import DepthTraining
from gpas_cli.train.lisa import LayerSelection
from gpas_cli.train.loop import BatchSource, Loop
from gpas_cli.train.memory import micro_batch_rows
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import MatmulChoice, Precision, choose_device, choose_matmul
from gpas_cli.train.strategy import choose_layout

DEFAULT_RESOURCES = Resources()

Start = Callable[[Llama], None]


def leave(network: Llama) -> None:
    """Leave the initialised network unchanged: the default of `start`."""


def assemble(
    cell: Cell,
    batches: BatchSource,
    resources: Resources = DEFAULT_RESOURCES,
    world: World = ALONE,
    start: Start = leave,
    selection: LayerSelection | None = None,
) -> Loop:
    """Return the cell's network, distributed over `world`, with its optimizer, at update 0. Collective.

    `start` changes the initialised network before the optimizer is built for the parameters that then require
    gradients; its exceptions propagate. `selection`: the layers that train in each update.
    """
    precision = Precision(cell.precision, choose_device())
    compiled = _compiled(cell, resources, precision, world)
    layout = choose_layout(cell, resources, precision, world, compiled=compiled)
    network = layout.build(cell.model, cell.seed, precision)
    start(network)
    rows = micro_batch_rows(
        cell, precision, resources.micro_batch, processes=world.size, strategy=layout.strategy,
        recompute=layout.recompute, reserved=layout.unallocated_bytes(network),
    )  # fmt: skip
    rows = world.min(rows)  # sharded networks need as many micro-batches in all processes
    return Loop(
        network, make_optimizer(network, cell.optim), cell.optim, batches, precision, rows,
        layout=layout, selection=selection, depth=DepthTraining.of(cell),
    )  # fmt: skip


def _compiled(cell: Cell, resources: Resources, precision: Precision, world: World) -> bool:
    if resources.compile != "auto":
        return resources.compile == "on"
    flops = cell.optim.trained_rows * cell.data.length * flops_per_token(cell)
    return world.broadcast(worth_compiling(precision.device, flops))


def settle_matmul(cell: Cell, loop: Loop) -> MatmulChoice | None:
    """Choose the float32 matrix product, if the cell uses one, and return the choice. Collective.

    All processes use the same product.
    """
    if cell.precision != "fp32":
        return None
    choice = choose_matmul(cell.model.size, loop.precision.device, loop.position.gemm)
    choice = loop.layout.world.broadcast(choice)
    torch.set_float32_matmul_precision(choice.path)
    loop.position = replace(loop.position, gemm=choice.path)
    return choice
