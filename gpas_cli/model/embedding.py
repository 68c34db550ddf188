"""What precedes the first layer: the table's lookup, the stages after it, token types and learned positions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpas_cli.model.attention import Packing
from gpas_cli.model.layers import LayerNorm, RMSNorm
from gpas_cli.spec.model import EMBED_STAGES, Model, Size


class Scale(nn.Module):
    """factor * x. With factor sqrt(d), "Scaled Embed" of Spike No More."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Detach(nn.Module):
    """gamma x + (1 - gamma) sg(x): the same value, gamma times the gradient ("Embed Detach", Zeng et al. 2023)."""

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * x + (1 - self.gamma) * x.detach()


_STAGES: dict[str, Callable[[Model], nn.Module]] = {
    "scale": lambda model: Scale(model.embed.factor(model.base_hidden)),
    "layernorm": lambda model: LayerNorm(model.size.hidden),
    "rmsnorm": lambda model: RMSNorm(model.size.hidden, model.size.eps),
    "detach": lambda model: Detach(model.embed.detach_gamma),
}
assert _STAGES.keys() == set(EMBED_STAGES)


def embed_stages(model: Model) -> nn.Sequential:
    """Return the stages after the lookup, in order, each under its name in the specification."""
    return nn.Sequential(OrderedDict((name, _STAGES[name](model)) for name in model.embed.stages))


def lookup(size: Size, zero_last_row: bool) -> nn.Embedding:
    """Return the uninitialised table E, shape (vocab, hidden). With `zero_last_row` the last row gets no gradient."""
    padding = size.vocab - 1 if zero_last_row else None
    weight = torch.empty(size.vocab, size.hidden)
    return nn.Embedding(size.vocab, size.hidden, padding_idx=padding, _weight=weight)


class TokenTypes(nn.Module):
    """A vector for each of `types` token types, added to the embedding; weight (types, d). All tokens have the first:
    text is one segment."""

    def __init__(self, types: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return x + self.weight[0]


class LearnedPositions(nn.Module):
    """One vector for each of `context` positions, added to the embedding (Radford et al. 2018); weight (context, d)."""

    def __init__(self, context: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, hidden))

    def forward(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """x: (batch, time, hidden) -> same shape. Raises ValueError if `time` exceeds the number of positions."""
        context = len(self.weight)
        time = packing.time if packing else x.shape[1]
        if time > context:
            raise ValueError(f"{time} tokens in a row, but the network has {context} learned positions")
        # The gradient of a lookup would be a sort on GPUs with deterministic algorithms.
        rows = self.weight[:time]
        # The tokens that decoding reads are no whole row.
        return x + (packing.join(rows.expand(max(1, packing.rows), -1, -1)) if packing else rows)
