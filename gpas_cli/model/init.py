"""Initialisation as an ordered table of rules: the first match wins; a parameter without a rule is an error.

Every matrix is a normal draw times a standard deviation. The draw of a parameter depends only on the seed and its
name, so two schemes with the same seed start from the same matrices, whatever other parameters they have.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import fill
from gpas_cli.model.layers import DyT, GpasGate, LayerNorm, LearnedFactor, RMSNorm
from gpas_cli.spec.model import Model, small_std

_Std = Callable[[Tensor], float]
# Patterns of parameter names.
_OUTPUTS = r"(o_proj|down_proj)\.weight$"
_PROJECTIONS = r"_proj\.weight$"
_QUERY_KEY = r"[qk]_proj\.weight$"
_HEAD_WEIGHT = r"^lm_head\.weight$"
_EMBEDDING_WEIGHT = r"embed_tokens\.weight$"
_POSITIONS = r"embed_(positions|types)\.weight$"  # what is added to the embedding
_BIASES = r"_proj\.bias$"


def _constant(std: float) -> _Std:
    return lambda _: std


def _xavier(gain: float, extra: int = 0) -> _Std:
    """Xavier normal: gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010). `extra` features do not count."""
    return lambda weight: gain * math.sqrt(2 / (sum(weight.shape) - extra))


def _scaled(rule: tuple[str, _Std], factor: float) -> tuple[str, _Std]:
    pattern, std = rule
    return pattern, lambda weight: factor * std(weight)


def _matrix_rules(model: Model) -> list[tuple[str, _Std]]:
    """Return (pattern of the parameter's name, standard deviation) for every matrix and bias, first match first.

    Constants belong to the base's width and depth, which `spec.parametrisation` scales for the hidden matrices.
    Xavier's for these have their width already.
    """
    init, layers = model.init, model.base_layers
    small = small_std(model.base_hidden)
    residual = math.sqrt(2 * layers)
    encoder = rf"layers\.({'|'.join(map(str, range(model.encoder_layers)))})\..*" if model.encoder_layers else ""

    def outputs(std: float) -> list[tuple[str, _Std]]:
        own = [(encoder + _OUTPUTS, _constant(std / math.sqrt(2 * model.encoder_layers)))] if encoder else []
        return [*own, (_OUTPUTS, _constant(std / residual))]

    hidden = model.parametrisation.width(model.size.hidden) ** -0.5
    body: dict[str, list[tuple[str, _Std]]] = {
        "normal": [(_PROJECTIONS, _constant(init.std))],
        "scaled": [*outputs(init.std), (_PROJECTIONS, _constant(init.std))],
        "small": [
            *outputs(small),
            *((pattern, _constant(small)) for pattern in (_PROJECTIONS, _HEAD_WEIGHT, _POSITIONS)),
        ],
        "xavier": [(_PROJECTIONS, _xavier(1.0))],
        "deepnorm": [(_QUERY_KEY, _xavier(1.0)), (_PROJECTIONS, _xavier((8 * layers) ** -0.25))],
        "deepnorm-inverted": [(_QUERY_KEY, _xavier(1.0)), (_PROJECTIONS, _xavier((8 * layers) ** 0.25))],
    }
    if init.everywhere:
        extra = model.size.hidden - model.base_hidden
        ends = [(pattern, _xavier(1.0, extra)) for pattern in (_HEAD_WEIGHT, _POSITIONS, _EMBEDDING_WEIGHT)]
    else:
        stds = [(_HEAD_WEIGHT, init.std), (_POSITIONS, init.std), (_EMBEDDING_WEIGHT, init.embed_std)]
        ends = [(pattern, _constant(std)) for pattern, std in stds]
    if encoder:  # Wang et al. 2022, Table 1, of N and M layers
        gain = 0.87 * (model.encoder_layers**4 * layers) ** (-1 / 16)
        own = [(encoder + _PROJECTIONS, _xavier(gain)), (_PROJECTIONS, _xavier((12 * layers) ** -0.25))]
        body["deepnorm"] = [(_QUERY_KEY, _xavier(1.0)), *own]
    rules = body[init.preset]
    if init.preset in ("normal", "scaled", "small"):
        rules = [_scaled(rule, hidden) if rule[0] in (_OUTPUTS, _PROJECTIONS) else rule for rule in rules]
    return [*rules, (_BIASES, _constant(0.0)), *ends]


def initialise(network: nn.Module, model: Model, seed: int) -> None:
    """Initialise every parameter and buffer of `network` in place, except parameters on the device "meta".

    Raises LookupError for a parameter that neither a rule nor a module initialises.
    """
    rules = _matrix_rules(model)
    started = _start_modules(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name not in started and not parameter.is_meta:
                values = draw(parameter.shape, seed, name) * _std(rules, name, parameter)
                if model.init.zero_last_row and name == "model.embed_tokens.weight":
                    values[-1] = 0
                fill(parameter, values)


def standard_deviations(network: nn.Module, model: Model) -> dict[str, float]:
    """Return the standard deviation that each matrix of `network` is drawn with, by name."""
    rules = _matrix_rules(model)
    return {name: _std(rules, name, matrix) for name, matrix in network.named_parameters() if matrix.dim() == 2}


def _std(rules: list[tuple[str, _Std]], name: str, parameter: Tensor) -> float:
    for pattern, std in rules:
        if re.search(pattern, name):
            return std(parameter)
    raise LookupError(f"no initialisation rule matches {name}")


def draw(shape: torch.Size, seed: int, name: str) -> Tensor:
    """Return the standard normal numbers of the parameter `name`, for the same seed and shape always the same."""
    # Always in float32 on the CPU, so that every device and dtype gets the same numbers.
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _start_modules(network: nn.Module) -> set[str]:
    """Set norms, learned factors and gates to their own initial values; return the names of their parameters."""
    started = set()
    with torch.no_grad():
        for prefix, module in network.named_modules():
            if isinstance(module, RMSNorm | LayerNorm | DyT | LearnedFactor):
                module.weight.fill_(module.start)
                started.add(f"{prefix}.weight")
                if isinstance(module, LayerNorm | DyT):
                    module.bias.zero_()
                    started.add(f"{prefix}.bias")
                if isinstance(module, DyT):
                    module.slope.fill_(module.slope_start)
                    started.add(f"{prefix}.slope")
            if isinstance(module, GpasGate):
                module.alpha.fill_(module.start)
                started.add(f"{prefix}.alpha")
    return started
