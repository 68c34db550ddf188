"""Deterministic parameters and token ids of the golden outputs: a value depends on its parameter's number and index.

The rule: element n (row-major) of parameter number k is u = sin(1 + 0.7 k + 1.3 n + 0.01 n^2); projections and head
hold 0.25 u, the embedding 0.9 u with a zero last row, norm weights 1 + 0.1 u, gates 0.3 sin(layer + 1).
"""

import numpy as np

SLOTS = (
    "attn.q attn.k attn.v attn.o mlp.gate mlp.up mlp.down norm.attn_pre norm.attn_post norm.ffn_pre norm.ffn_post gate"
).split()
NUMBERS = {"embed": 1, "final_norm": 2, "lm_head": 3, "embed_norm": 4, "embed_norm_bias": 5}


def value(name: str, shape: tuple[int, ...], *, lns: bool = False, zero_gates: bool = False) -> np.ndarray:
    """The float64 value of the parameter `name`; `lns` divides a layer's norm weights by sqrt(layer + 1)."""
    layer, slot = (int(name.split(".")[1]), name.split(".", 2)[2]) if name.startswith("layers.") else (None, name)
    if slot == "gate":
        return np.full(shape, 0.0 if zero_gates else 0.3 * np.sin(layer + 1.0))
    number = NUMBERS[name] if layer is None else 10 + 20 * layer + SLOTS.index(slot)
    n = np.arange(int(np.prod(shape)), dtype=np.float64)
    u = np.sin(1 + 0.7 * number + 1.3 * n + 0.01 * n * n).reshape(shape)
    if slot == "embed_norm_bias":
        return 0.1 * u
    if slot in ("final_norm", "embed_norm"):
        return 1 + 0.1 * u
    if slot.startswith("norm."):
        return (1 + 0.1 * u) / (np.sqrt(layer + 1.0) if lns else 1.0)
    if slot == "embed":
        u[-1] = 0
        return 0.9 * u
    return 0.25 * u


def token_ids(shift: int = 0) -> np.ndarray:
    """(2, 16) ids in 1..95."""
    b, t = np.arange(2)[:, None], np.arange(16)[None, :]
    return 1 + (7 * b + 5 * t + 3 * t * t + 2 * b * t + 11 + shift) % 95


def pad_second_row(ids: np.ndarray) -> np.ndarray:
    """End the second row early: end of text (1), then padding (0)."""
    ids = ids.copy()
    ids[1, 12], ids[1, 13:] = 1, 0
    return ids


def forward_case(case: str) -> np.ndarray:
    """Return the ids of the case `plain` or `padded`; the latter also visits the zeroed row 96."""
    ids = token_ids()
    if case == "padded":
        ids = pad_second_row(ids)
        ids[0, [5, 10]] = 96
    return ids


def train_batch(m: int) -> np.ndarray:
    """Micro-batch m of the training goldens; odd ones are padded."""
    ids = token_ids(13 * m)
    return pad_second_row(ids) if m % 2 else ids


def probe(array: np.ndarray) -> float:
    """sum_n a[n] sin(n + 1): catches transposes and signs."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    return float(flat @ np.sin(np.arange(flat.size) + 1.0))
