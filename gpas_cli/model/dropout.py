"""Dropout whose masks are a pure function of (seed, update, row, place in the row, layer, site, feature).

They come from no generator: they do not depend on micro-batches, processes, recomputation of activations or restarts,
and are the same, bit for bit, on every device, compiled or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gpas_cli.structure import Frozen

_WORDS = 2**30  # mixed with a token's key it is a key for the whole token


class Dropout(Frozen):
    """Set each element to 0 with probability `rate` and divide the others by 1 - rate (Srivastava et al. 2014).

    Elements are dropped from what enters the first layer, and from the output of every sub-layer before its branch norm
    and the sum, as in Megatron-LM. Attention probabilities keep all their elements: the kernels of fused attention draw
    masks of their own, and no paper states that it drops them.
    """

    rate: float
    keys: Tensor  # a random number for each token of the stream, int32, (batch, time), or (1, n) with a packing
    words: float = 0.0
    """The probability that an encoder or a decoder beside it reads the zero vector in place of a token's embedding (Gal
    and Ghahramani 2016; Takase and Kiyono 2021)."""
    EMBEDDING: ClassVar[int] = 0  # the layer number of the stream that enters the first layer
    ATTENTION: ClassVar[int] = 0  # the sites of a layer
    FEED_FORWARD: ClassVar[int] = 1

    def in_layer(self, number: int) -> Dropout:
        """Return the dropout of layer `number` = 1, 2, ..., or `EMBEDDING`."""
        return replace(self, keys=_mixed(self.keys ^ number))

    def __call__(self, x: Tensor, site: int) -> Tensor:
        """x: (batch, time, d) -> same shape and dtype. A site is a number below 2^31."""
        features = _mixed(torch.arange(x.shape[-1], dtype=torch.int32, device=x.device))
        bits = _mixed(_mixed(self.keys ^ site)[..., None] ^ features)
        kept = bits >= _threshold(self.rate)
        return torch.where(kept, x * (1 / (1 - self.rate)), 0.0)

    def without_words(self, x: Tensor) -> Tensor:
        """Return the embeddings x (batch, time, d) with zeros for dropped words."""
        return torch.where((_mixed(self.keys ^ _WORDS) >= _threshold(self.words))[..., None], x, 0.0)


def _threshold(rate: float) -> int:
    """Return the number that a random int32 is below with probability `rate`."""
    return round(rate * 2**32) - 2**31


def dropped(x: Tensor, dropout: Dropout | None, site: int) -> Tensor:
    """Return x after the dropout of a site, x itself without dropout."""
    return x if dropout is None else dropout(x, site)


def _mixed(words: Tensor) -> Tensor:
    """Apply the finalizer of MurmurHash3: every output bit depends on every bit of the word; int32 -> int32.

    Products wrap around. The masks make the shifts logical: int32's copy the sign.
    """
    words = (words ^ ((words >> 16) & 0xFFFF)) * -0x7A143595  # 0x85EBCA6B
    words = (words ^ ((words >> 13) & 0x7FFFF)) * -0x3D4D51CB  # 0xC2B2AE35
    return words ^ ((words >> 16) & 0xFFFF)
