"""Initialisation as an ordered table of rules: first match wins, and a parameter that no rule claims is an error.

Every matrix is a normal draw times a standard deviation. The draw of a parameter depends only on the seed and its
name, so that two schemes with one seed start from the same matrices, whatever else they contain.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpas_cli.model.gate import Gate
from gpas_cli.model.norm import LayerNorm, RMSNorm
from gpas_cli.model.shards import fill
from gpas_cli.spec.init import Init
from gpas_cli.spec.model import Model

Std = Callable[[Tensor], float]


def _constant(std: float) -> Std:
    return lambda _: std


def _xavier(gain: float) -> Std:
    """Xavier normal: gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""
    return lambda weight: gain * math.sqrt(2 / sum(weight.shape))


def matrix_rules(init: Init, hidden: int, layers: int) -> list[tuple[str, Std]]:
    """(pattern of the parameter's name, standard deviation) for every matrix and bias of the network."""
    outputs, inputs, head = r"(o_proj|down_proj)\.weight$", r"_proj\.weight$", r"^lm_head\.weight$"
    positions, biases = r"embed_positions\.weight$", r"_proj\.bias$"
    small = math.sqrt(2 / (5 * hidden))
    residual = math.sqrt(2 * layers)
    body: dict[str, list[tuple[str, Std]]] = {
        "normal": [(inputs, _constant(init.std))],
        "scaled": [(outputs, _constant(init.std / residual)), (inputs, _constant(init.std))],
        "small": [
            (outputs, _constant(small / residual)),
            *((pattern, _constant(small)) for pattern in (inputs, head, positions)),
        ],
        "xavier": [(inputs, _xavier(1.0))],
        "deepnorm": [(r"[qk]_proj\.weight$", _xavier(1.0)), (inputs, _xavier((8 * layers) ** -0.25))],
    }
    rest = [(head, init.std), (positions, init.std), (biases, 0.0), (r"embed_tokens\.weight$", init.embed_std)]
    return [*body[init.preset], *((pattern, _constant(std)) for pattern, std in rest)]


def initialise(network: nn.Module, model: Model, seed: int) -> None:
    """Fill every parameter and buffer of `network` in place.

    Raises LookupError naming a parameter that neither a rule nor a module claims.
    """
    rules = matrix_rules(model.init, model.size.hidden, model.size.layers)
    claimed = _start_modules(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name not in claimed:
                values = _draw(parameter.shape, seed, name) * _std(rules, name, parameter)
                if model.init.zero_last_row and name == "model.embed_tokens.weight":
                    values[-1] = 0
                fill(parameter, values)


def _std(rules: list[tuple[str, Std]], name: str, parameter: Tensor) -> float:
    for pattern, std in rules:
        if re.search(pattern, name):
            return std(parameter)
    raise LookupError(f"no initialisation rule claims {name}")


def _draw(shape: torch.Size, seed: int, name: str) -> Tensor:
    # Always in float32 on the CPU: the same numbers for every device and dtype.
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _start_modules(network: nn.Module) -> set[str]:
    """Fill norms and gates with the start they carry; the names of their parameters."""
    claimed = set()
    with torch.no_grad():
        for prefix, module in network.named_modules():
            if isinstance(module, RMSNorm | LayerNorm):
                module.weight.fill_(module.start)
                claimed.add(f"{prefix}.weight")
                if isinstance(module, LayerNorm):
                    module.bias.zero_()
                    claimed.add(f"{prefix}.bias")
            if isinstance(module, Gate):
                module.alpha.fill_(module.start)
                claimed.add(f"{prefix}.alpha")
    return claimed
