"""FLOPs of a training update and the peak FLOP/s of known accelerators, for MFU and estimates.

FLOPs per token = 6 (N - V d) + 6 L T d, as in PaLM, appendix B, but with causal attention: N parameters in matrices,
without the V x d of the input table, which needs no arithmetic (a tied head does); L layers of width d attend to T / 2
positions on average, or to more of the row if attention is not causal. The head reads only tokens with a target.
Forward and backward passes count, recomputation does not. Only tokens that the network reads count, padding does not.
Layers that an update skips do not count.
"""

from __future__ import annotations

from gpas_cli.spec.parts import CellParts

# CUDA's name of the device -> dense peak in TFLOP/s: bfloat16 with float32 sums, TensorFloat-32, float32 without
# tensor cores (NVIDIA's data sheets, without sparsity). The first match counts, so longer names come first.
PEAK_TFLOPS: dict[str, tuple[float, float, float]] = {
    "B200": (2250.0, 1125.0, 80.0),
    "GH200": (989.5, 494.7, 67.0),
    "H200": (989.5, 494.7, 67.0),
    "H100 PCIe": (756.0, 378.0, 51.0),
    "H100 NVL": (835.5, 417.7, 60.0),
    "H100": (989.5, 494.7, 67.0),
    "H800": (989.5, 494.7, 67.0),
    "H20": (148.0, 74.0, 44.0),
    "A100": (312.0, 156.0, 19.5),
    "A800": (312.0, 156.0, 19.5),
    "L40S": (362.0, 183.0, 91.6),
    "L40": (181.0, 90.5, 90.5),
    "L4": (121.0, 60.0, 30.3),
    "A40": (149.7, 74.8, 37.4),
    "A10G": (70.0, 35.0, 35.0),
    "A10": (125.0, 62.5, 31.2),
    "RTX A6000": (154.8, 77.4, 38.7),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71.0, 35.6, 35.6),
}


def flops_per_token(cell: CellParts, layers: float | None = None) -> float:
    """Return the FLOPs of a training update with `layers` layers, per token that the network reads; by default the
    average of all updates."""
    size = cell.model.size
    trained = cell.layer_schedule.average() if layers is None else layers
    attended = cell.objective.attended_share() * cell.data.length
    attention = 12 * trained * attended * size.hidden
    head = cell.objective.target_share() * size.vocab * size.hidden
    return 6.0 * (head + trained * _per_layer(cell)) + attention


def whole_flops_per_token(cell: CellParts) -> float:
    """Return the FLOPs of a training update of all layers, per token."""
    return flops_per_token(cell, cell.model.size.layers)


def relative_flops(cell: CellParts, first: int = 1, last: int = 0) -> float:
    """Return the cost of the updates first..last (by default all) as a share of that of as many with all layers.

    Counted as RaPTr counts it, by the expected number of layers alone (appendix C): without the head.
    """
    return cell.layer_schedule.average(first, last) / cell.model.size.layers


def computed_flops(cell: CellParts, first: int = 1, last: int = 0) -> float:
    """Return the FLOPs of the updates first..last (by default all) as a share of those of as many with all layers."""
    return flops_per_token(cell, cell.layer_schedule.average(first, last)) / whole_flops_per_token(cell)


def parameters(cell: CellParts) -> int:
    """Return the number of parameters without norms, gates, biases and learned positions (2 % at 71M)."""
    size = cell.model.size
    tables = 1 if cell.model.family.tied else 2
    return tables * size.vocab * size.hidden + size.layers * _per_layer(cell)


def _per_layer(cell: CellParts) -> int:
    """Return the number of parameters in the matrices of a layer."""
    size = cell.model.size
    matrices = 3 if cell.model.family.ffn == "swiglu" else 2
    return 4 * size.hidden**2 + matrices * size.hidden * size.ffn


def peak_flops(gpu: str, precision: str, *, tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of a device called `gpu` in a precision, None if unknown.

    `tf32`: float32 products may use tensor cores. MIG slices and laptop chips are unknown: they are slower than the
    device whose name they contain.
    """
    words = f" {gpu} ".replace("-", " ")
    found = next((peaks for name, peaks in PEAK_TFLOPS.items() if f" {name} " in words), None)
    if found is None or any(lesser in words for lesser in (" MIG ", " Laptop ", " D ")):
        return None
    bf16, tensor, plain = found
    return 1e12 * (bf16 if precision != "fp32" else tensor if tf32 else plain)
