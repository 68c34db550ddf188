"""The parts of a decoder other than the wiring of its norms: those of LLaMA (the GPAS experiments), GPT or BERT."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.parse import setting

NORMS = ("rmsnorm", "layernorm")
FFNS = ("swiglu", "gelu", "relu", "silu")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The parts of every layer, the positions and the head.

    norm: every norm N of the scheme, and the one before the head: RMSNorm (weight) or LayerNorm (weight and bias).
    ffn: `swiglu` is W_down(silu(W_gate x) * W_up x); the others are W_down(act(W_up x)) (Spike No More, equation 3 and
    appendix E), with `gelu` in the tanh form of GPT-2 and Megatron-LM. positions: `rotary` in every attention, or a
    `learned` table of `context` rows, added to the embedding after its stages. bias: on every projection of attention
    and FFN, never on the head. tied: the head is the embedding table.

    qk_norm: queries and keys are normalised, by the family's norm and before rotary positions: each `head` by itself,
    with one weight for all heads (Dehghani et al. 2023; Qwen3), or the `width` of all heads together (OLMo 2).

    input_norm: the norm N once more on the input of the first layer, after embedding, positions and token types.
    token_types: rows of a learned table of token types (segments), 0 for none. Text here has one segment, so that all
    tokens have the first type: the same vector is added to all of them. head_transform: N(gelu(W x)) between the final
    norm and the head, the transform of BERT's head.

    `bert` is the network of Devlin et al. 2018; the place of its norms is that of the scheme (`norm: post` in the
    paper, `pre` in Megatron-LM). As with all schemes, a final norm follows the last layer. Its head has no bias, and
    dropout is not implemented. BERT's eps is `size: {eps: 1e-12}`.

    `gpt` is the network of Spike No More. The paper names the GPT series and Megatron-LM, shows biases (footnote 2),
    W_1 and W_2, and its 350M network (24 layers of 1024, ffn 4096) has 350M parameters only if head and embedding are
    tied. It does not state the positions; those of GPT and Megatron-LM are learned. Its dropout of 0.1 is not
    implemented. GPT's eps is `size: {eps: 1e-5}`.
    """

    norm: str = setting("rmsnorm", choices=NORMS, omit_default_from_key=True)
    ffn: str = setting("swiglu", choices=FFNS, omit_default_from_key=True)
    positions: str = setting("rotary", choices=("rotary", "learned"), omit_default_from_key=True)
    context: int = setting(2048, low=1, high=1_048_576, omit_default_from_key=True)
    bias: bool = setting(False, omit_default_from_key=True)
    tied: bool = setting(False, omit_default_from_key=True)
    qk_norm: str = setting("none", choices=("none", "head", "width"), omit_default_from_key=True)
    input_norm: bool = setting(False, omit_default_from_key=True)
    token_types: int = setting(0, low=0, high=1024, omit_default_from_key=True)
    head_transform: bool = setting(False, omit_default_from_key=True)

    def row_length(self, tokens: int) -> int:
        """Return how many of `tokens` a network can be given at once: no more than its learned positions."""
        return min(tokens, self.context) if self.positions == "learned" else tokens


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "gpt": Family(norm="layernorm", ffn="gelu", positions="learned", bias=True, tied=True),
    "bert": Family(
        norm="layernorm",
        ffn="gelu",
        positions="learned",
        context=512,
        bias=True,
        tied=True,
        input_norm=True,
        token_types=2,
        head_transform=True,
    ),
}
