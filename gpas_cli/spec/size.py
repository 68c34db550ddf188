"""Shapes of networks. Parameter count = 2 V d + L (4 d^2 + 3 d f + norms d) + d, without gates."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.parse import setting


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shape of a LLaMA-style decoder: no biases, SwiGLU, rotary positions, untied head."""

    hidden: int = setting(low=2, high=65_536)
    ffn: int = setting(low=1, high=262_144)
    heads: int = setting(low=1, high=1024)
    layers: int = setting(low=1, high=1024)
    vocab: int = setting(32_000, low=8, high=65_536)
    eps: float = setting(1e-6, above=0, high=0.1)
    rope_theta: float = setting(10_000.0, above=0)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def _size(hidden: int, ffn: int, heads: int, layers: int, vocab: int = 32_000, eps: float = 1e-6) -> Size:
    return Size(hidden=hidden, ffn=ffn, heads=heads, layers=layers, vocab=vocab, eps=eps)


SIZES: dict[str, Size] = {
    "9m": _size(128, 352, 4, 4),
    "20m": _size(256, 688, 4, 4),
    "35m": _size(384, 1024, 8, 6),
    "40m": _size(416, 1024, 8, 8),
    "60m": _size(512, 1376, 8, 8),
    "71m": _size(512, 1368, 8, 12),
    "100m": _size(640, 1708, 10, 12, vocab=32_100),
    "130m": _size(768, 2048, 12, 12),
    "250m": _size(768, 2560, 16, 24),
    "350m": _size(1024, 2736, 16, 24),
    "1b": _size(2048, 5461, 32, 24),
    "3b": _size(2560, 6848, 32, 32),
    "7b": _size(4096, 11008, 32, 32),
    "bert-base": _size(768, 3072, 12, 12, vocab=30_522, eps=1e-12),
    "bert-large": _size(1024, 4096, 16, 24, vocab=30_522, eps=1e-12),
    # RaPTr states 1.6B parameters and 24 layers. The vocabulary is T5's, which has 100 ids for sentinels.
    "ul2": _size(2048, 7168, 16, 24, vocab=32_128),
    "quickstart": _size(32, 88, 2, 12, vocab=512),
}

# Rows of a validation batch in the published scripts, over all their GPUs. The published average is sum / (n + 1), so
# the number of batches n decides by how much it is too low.
_REFERENCE_ROWS = {
    SIZES[name]: rows for name, rows in {"71m": 256, "130m": 256, "250m": 256, "350m": 512, "1b": 128, "7b": 32}.items()
}


def usual_validation_rows(size: Size, batch: int) -> int:
    """Return the rows of a validation batch: the reference's for its sizes, else those of a training batch."""
    return _REFERENCE_ROWS.get(size, batch)
