"""The two conditions of Spike No More for a stable network at initialisation: large shortcut and small sub-layers.

The shortcut is the stream x that enters the first layer; the paper wants its standard deviation close to 1 (section 4).
Sub-layers are small if their output matrices start at 1/sqrt(2L) of the others (Table 5). No torch.
"""

from __future__ import annotations

import math

from gpas_cli.spec.init import small_std
from gpas_cli.spec.model import Model

# In the paper Scaled Embed, at sqrt(2/5) = 0.63, and Embed LN, at 1, have a large shortcut; vanilla has 0.02 to 0.013.
LARGE = 0.5
TOO_LARGE = 2.0  # the paper's networks with 5 and 50 are worse than with 1 (Figure 11)
SMALL_PRESETS = ("scaled", "small")


def embedding_std(model: Model) -> float:
    """Return the standard deviation of the embedding table's elements at initialisation."""
    return _xavier(model.size.vocab, model.size.hidden) if model.init.everywhere else model.init.embed_std


def shortcut_std(model: Model) -> float:
    """Return the standard deviation of the stream that enters the first layer, after the stages and with positions."""
    if model.family.input_norm:
        return 1.0
    std = embedding_std(model)
    for stage in model.embed.stages:
        if stage == "scale":
            std *= model.embed.factor(model.size.hidden)
        elif stage in ("layernorm", "rmsnorm"):
            std = 1.0
    return math.hypot(std, _positions_std(model))


def has_large_shortcut(model: Model) -> bool:
    """Return whether the stream starts with a standard deviation of about 1, or more."""
    return shortcut_std(model) >= LARGE


def has_small_sublayers(model: Model) -> bool:
    """Return whether the initialisation scales the output matrices of sub-layers by 1/sqrt(2L)."""
    return model.init.preset in SMALL_PRESETS


def conditions(model: Model) -> str:
    """Return both conditions in words: "stream starts at std 0.632 (large shortcut), ..."."""
    shortcut = "large" if has_large_shortcut(model) else "small"
    sublayers = "small sub-layers" if has_small_sublayers(model) else "sub-layers not scaled by 1/sqrt(2L)"
    return f"stream starts at std {shortcut_std(model):.3g} ({shortcut} shortcut), {sublayers}"


def remark(model: Model) -> str:
    """Return how the shortcut differs from what the names of the settings suggest, "" if it does not."""
    std = shortcut_std(model)
    if "scale" in model.embed.stages and model.embed.multiplier is None and std > TOO_LARGE:
        return (
            f"embed: scaled multiplies an embedding of std {embedding_std(model):.3g}, so the stream starts at "
            f"{std:.3g}; Scaled Embed of Spike No More starts at 0.632: set init.embed_std or embed.multiplier"
        )
    if model.init.preset == "small" and model.embed.stages in ((), ("detach",)) and std >= LARGE:
        small = small_std(model.size.hidden)
        return (
            f"init: small starts the embedding at std {embedding_std(model):.3g}, a large shortcut; the vanilla of "
            f"Spike No More starts at sqrt(2/(5d)) = {small:.3g}: set init.embed_std or use family: gpt"
        )
    return ""


def _positions_std(model: Model) -> float:
    if model.family.positions == "rotary":
        return 0.0
    if model.init.everywhere:
        return _xavier(model.family.context, model.size.hidden)
    return small_std(model.size.hidden) if model.init.preset == "small" else model.init.std


def _xavier(rows: int, columns: int) -> float:
    return math.sqrt(2 / (rows + columns))
