"""Short names of parameters, the same for every scheme, as the golden files use them."""

from torch import nn

_LAYER_NAMES = {
    "self_attn.q_proj.weight": "attn.q",
    "self_attn.k_proj.weight": "attn.k",
    "self_attn.v_proj.weight": "attn.v",
    "self_attn.o_proj.weight": "attn.o",
    "self_attn.q_norm.weight": "attn.q_norm",
    "self_attn.k_norm.weight": "attn.k_norm",
    "self_attn.v_norm.weight": "attn.v_norm",
    "self_attn.value.weight": "attn.value",
    "self_attn.first_value.weight": "attn.first_value",
    "mlp.gate_proj.weight": "mlp.gate",
    "mlp.up_proj.weight": "mlp.up",
    "mlp.down_proj.weight": "mlp.down",
    "input_layernorm.weight": "norm.attn_pre",
    "post_attention_layernorm.weight": "norm.ffn_pre",
    "attn_branch_norm.weight": "norm.attn_post",
    "attn_out_norm.weight": "norm.attn_post",
    "mlp_branch_norm.weight": "norm.ffn_post",
    "mlp_out_norm.weight": "norm.ffn_post",
    "factor.weight": "factor",
    **{f"{part}_{name}.weight": f"{name}.{part}" for part in ("attn", "mlp") for name in ("factor", "skip_factor")},
    "gate.alpha": "gate",
    "attn_gate.alpha": "gate.attn",
    "mlp_gate.alpha": "gate.mlp",
}
_NAMES = {
    "model.embed_tokens.weight": "embed",
    "model.embed_positions.weight": "positions",
    "model.embed_types.weight": "types",
    "model.embed_norm.weight": "input_norm",
    "model.embed_norm.bias": "input_norm_bias",
    "head_transform.dense_proj.weight": "head_transform",
    "head_transform.dense_proj.bias": "head_transform_bias",
    "head_transform.norm.weight": "head_norm",
    "head_transform.norm.bias": "head_norm_bias",
    "model.embed_stages.layernorm.weight": "embed_norm",
    "model.embed_stages.layernorm.bias": "embed_norm_bias",
    "model.embed_stages.rmsnorm.weight": "embed_norm",
    "model.norm.weight": "final_norm",
    "model.norm.bias": "final_norm_bias",
    "model.norm.slope": "final_norm_slope",
    "lm_head.weight": "lm_head",
}


def canonical_name(name: str) -> str:
    """Return `layers.0.attn.q` for `model.layers.0.self_attn.q_proj.weight`, and `layers.0.attn.q_bias` for its bias;
    layers count from 0, as in the state dict."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    if rest.endswith((".bias", ".slope")):
        module, _, part = rest.rpartition(".")
        return f"layers.{layer}.{_LAYER_NAMES[f'{module}.weight']}_{part}"
    return f"layers.{layer}.{_LAYER_NAMES[rest]}"


def canonical_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter of a network under its canonical name."""
    return {canonical_name(name): parameter for name, parameter in network.named_parameters()}
