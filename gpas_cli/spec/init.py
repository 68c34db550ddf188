"""The choice of initialisation. `gpas_cli.model.init` implements the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpas_cli.spec.parse import setting

PRESETS = ("normal", "scaled", "small", "xavier", "deepnorm")


@dataclass(frozen=True, kw_only=True)
class Init:
    """Initialisation preset and the two free standard deviations.

    normal: N(0, std^2). scaled: normal, with o and down divided by sqrt(2L). small: std sqrt(2/(5d)) and scaled outputs
    (Spike No More). xavier: Xavier normal. deepnorm: Xavier, gain (8L)^(-1/4) on v, o, gate, up, down.
    `embed_std` defaults to sqrt(2/5), the "Scaled Embed" of the GPAS experiments: with it every preset has a large
    shortcut, `small` too. The vanilla of Spike No More needs a tied head, as `gpt` has, or `embed_std: sqrt(2/(5d))`.
    `everywhere`: Xavier for embedding, head and learned positions as well, as in Spike No More. `zero_last_row`: keep
    vocabulary row V-1 at zero without gradient, like the reference, whose padding index is -1. It defaults to false if
    the text or the objective may have that id, and with a head tied to the embedding: a row of text that begins with it
    would be exactly 0, where each norm multiplies gradients by 1/sqrt(eps). With a tied head, `embed_std` defaults to
    the std of the matrices. Learned positions start like the matrices, with `std` in xavier and deepnorm; biases start
    at 0.
    """

    preset: str = setting("normal", choices=PRESETS)
    std: float = setting(0.02, above=0, high=10)
    embed_std: float = setting(math.sqrt(0.4), above=0, high=100)
    zero_last_row: bool = setting(True)
    everywhere: bool = setting(False, omit_default_from_key=True)


def small_std(hidden: int) -> float:
    """Return sqrt(2/(5d)), the standard deviation of the preset `small` (Spike No More)."""
    return math.sqrt(2 / (5 * hidden))


def usual_embed_std(preset: str, std: float, hidden: int, *, tied: bool) -> float:
    """Return the default of `embed_std`: that of the matrices if the embedding is also the head, else sqrt(2/5)."""
    if not tied:
        return Init().embed_std
    return small_std(hidden) if preset == "small" else std
