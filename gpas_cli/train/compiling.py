"""Compile a network layer by layer: layers with the same wiring share one graph, which is the same for every batch."""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED
from gpas_cli.errors import first_line
from gpas_cli.model.attention import Positions
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision
from gpas_cli.trust import first_fault

# From this many FLOPs on, compiling pays on a CPU: such trainings take hours, of which it saves 5 to 10 %, and it costs
# half a minute at the start of each attempt.
_WORTHWHILE_FLOPS = 1e15
# All layers share one code object, with a graph for each kind of layer, for full and for packed rows, for a single row,
# for rows with a mask, with and without gradients. PyTorch's own limit is 8; one more graph is an error.
_MAX_GRAPHS = 64
# Of a compiled network's gradients, relative to the norm of a parameter's: roundings in another order.
TOLERANCES = {"fp32": 1e-3, "bf16": 0.1}

_KERNELS = "TORCHINDUCTOR_CACHE_DIR"

Forward = Callable[..., Tensor]


def compile_layers(network: Llama, backend: Any = "inductor") -> None:
    """Compile every layer, what follows the embedding lookup, the final norm and the head's transform, each in full: a
    graph break is an error.

    The number of rows, or of tokens in packed rows, is dynamic from the first batch on, and every other size is
    constant. So the graph of a batch does not depend on the batches before it, and a resumed run has the graphs of an
    uninterrupted one. Inductor chooses kernels, and so the order of sums, by the sizes of the first batch that a graph
    is compiled for: `Loop.compile_for_first_update` and `reuse_kernels_of` make these the same.
    Whatever wraps a module stays outside its graph: probes, gathering of shards, recomputation of activations.
    """
    import torch._dynamo  # takes a second to import

    _keep_kernels_private()
    torch._dynamo.config.recompile_limit = max(_MAX_GRAPHS, torch._dynamo.config.recompile_limit)
    # Since torch 2.10 this also keeps the compiler from choosing kernels by their measured time, which another attempt
    # could measure otherwise.
    torch.use_deterministic_algorithms(
        torch.are_deterministic_algorithms_enabled(), warn_only=torch.is_deterministic_algorithms_warn_only_enabled()
    )

    def compiled(forward: Forward) -> Forward:
        return torch.compile(forward, backend=backend, fullgraph=True, dynamic=False)

    decoder = network.model
    for layer in decoder.layers:
        layer.forward = _with_dynamic_sizes(compiled(layer.forward))
    if decoder.changes_lookup:
        decoder.after_lookup = _with_dynamic_sizes(compiled(decoder.after_lookup))  # type: ignore[method-assign]
    for module in (decoder.norm, network.head_transform):
        if not isinstance(module, nn.Identity):
            module.forward = _with_dynamic_sizes(compiled(module.forward))


def _keep_kernels_private() -> None:
    """Have torch keep compiled kernels where no other user can write, unless TORCHINDUCTOR_CACHE_DIR is set.

    torch executes what it finds there, and its default is a name in /tmp that another user may have taken before.
    """
    if _KERNELS in os.environ:
        return
    folder = Path(tempfile.gettempdir(), f"gpas-kernels-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    own = not folder.is_symlink() and first_fault([folder]) is None
    os.environ[_KERNELS] = str(folder if own else tempfile.mkdtemp(prefix="gpas-kernels-"))


def reuse_kernels_of(training: str) -> None:
    """Take kernels from PyTorch's cache only if the same `training` has compiled them.

    The cache does not distinguish graphs by the batch that they were compiled for, if its sizes are dynamic.
    """
    import torch.compiler.config

    torch.compiler.config.cache_key_tag = training


def _with_dynamic_sizes(forward: Forward) -> Forward:
    """Return `forward` of a stream x, perhaps with its packing or its positions, which marks what differs between
    batches: the number of rows, or of tokens in packed rows."""

    def marking(x: Tensor, *place: Any) -> Tensor:
        given = place[0] if place else None
        positions = given if isinstance(given, Positions) else Positions(packing=given)
        packing = positions.packing
        _mark(x, 1 if packing is not None or (not place and len(x) == 1) else 0)
        if positions.first is not None and positions.first.values is not None:
            _mark(positions.first.values, 0 if packing is None else 1)
        visible = positions.visible
        sized: list[Tensor | None] = [visible.mask if visible else None]
        if packing is not None:
            # A single row has a graph of its own, in which only the number of its tokens differs.
            by_row = (packing.token, packing.occupied, packing.bounds) if packing.rows > 1 else ()
            sized += [packing.index, *by_row]
        for tensor in sized:
            if tensor is not None:
                _mark(tensor, 0)
        if positions.dropout is not None:
            _mark(positions.dropout.keys, 0 if packing is None else 1)
        return forward(x, *place)

    return marking


def _mark(tensor: Tensor, dimension: int) -> None:
    """Make a dimension of `tensor` dynamic in the graph that is compiled for it, unless it is 1, which has a graph of
    its own."""
    if tensor.shape[dimension] > 1:
        torch._dynamo.mark_dynamic(tensor, dimension)


def worth_compiling(device: torch.device, flops: float) -> bool:
    """Return whether a training of `flops` should compile its layers on `device`.

    On a CPU only a long training should; the machine must be able to, which takes a C++ compiler and Python's headers;
    and this version of torch must compute the same gradients. Warns with the reason if one of these two is not so.
    """
    return (device.type != "cpu" or flops >= _WORTHWHILE_FLOPS) and _can_compile(device)


@functools.cache
def _can_compile(device: torch.device) -> bool:
    _keep_kernels_private()
    try:
        torch.compile(torch.square)(torch.ones(2, device=device))
        errors = {name: _error(Precision(name, device)) for name in TOLERANCES}
    except Exception as error:  # its class depends on what is missing
        warnings.warn(f"layers are not compiled, which makes training slower: {first_line(error)}", stacklevel=2)
        return False
    for name, worst in errors.items():
        if not worst <= TOLERANCES[name]:  # true for NaN, too
            reason = f"torch {torch.__version__} compiles gradients that are off by {worst:.2g} in {name}"
            warnings.warn(f"layers are not compiled, which makes training slower: {reason}", stacklevel=2)
            return False
    return True


@torch.enable_grad()
def _error(precision: Precision) -> float:
    """Return the largest difference between the gradients of a small network, captured as for compiling, and those of
    the network itself; NaN if one of them is NaN.

    Under bf16, GPUs take other kernels. torch 2.11 computes zeros for some functions with a backward pass of their own,
    without an error.
    """
    size = {"hidden": 32, "ffn": 40, "heads": 2, "layers": 2, "vocab": 64}
    model = parse_model({"size": size, "norm": "sandwich", "gate": "gpas"})
    tokens = np.random.default_rng(0).integers(0, 64, (3, 8))
    targets = np.where(np.arange(8) < np.array([[8], [5], [2]]), tokens, IGNORED)
    plain, captured = (build(model, device=precision.device) for _ in range(2))
    compile_layers(captured, "aot_eager")
    for network in (plain, captured):
        rows = DeviceRows.of(tokens, targets, precision.device)
        summed_loss(network, rows, precision, float(targets.size)).backward()  # type: ignore[no-untyped-call]
    torch._dynamo.reset()
    # In bfloat16 a gate's gradient is the difference of large sums.
    numbers = 0 if precision.name == "fp32" else 1
    parameters = zip(plain.parameters(), captured.parameters(), strict=True)
    pairs = [(a.grad, b.grad) for a, b in parameters if a.numel() > numbers]
    worst = [(a - b).norm() / a.norm() for a, b in pairs if a is not None and b is not None]
    return float(torch.stack(worst).max()) if len(worst) == len(pairs) else float("nan")
