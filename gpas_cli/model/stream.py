"""What is read off the residual stream, token by token: x is the stream entering a layer, y the one leaving it.

    activation_variance  s^2 = mean_i (x_i - m)^2 over the d features, m their mean
    kurtosis             mean_i (x_i - m)^4 / s^4: 3 for a normal distribution, up to d - 2 + 1/(d - 1) for one outlier
                         (Bondarenko et al., 2023: Quantizable Transformers, which use it as a measure of outliers)
    max_to_rms           max_i |x_i| / sqrt(mean_i x_i^2), at most sqrt(d)
    max_to_median        max_i |x_i| / median_i |x_i| (Sun et al., 2024: Massive Activations in Large Language Models)
    block_cosine         x . y / (|x| |y|) (Men et al., 2024: ShortGPT, whose block influence is 1 - cosine)
    block_update         |y - x| / |x|

and of all tokens' streams together, the rows of a matrix (tokens, d):

    effective_rank       exp(-sum_i p_i log p_i), p_i = sigma_i / sum_j sigma_j, for its singular values sigma (Roy &
                         Vetterli, 2007: The Effective Rank); nothing is centred

The median of an even number of features is the lower of the two in the middle. A token at which a number is not finite,
such as the cosine of a zero vector, is left out of means over tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RANK = "effective_rank"


def one_stream(x: Tensor) -> Tensor:
    """Return the stream that the head reads, (batch, time, d), for x of that shape or copies (batch, time, n, d)."""
    return x if x.dim() < 4 else x.sum(-2)


def of_stream(x: Tensor) -> dict[str, Tensor]:
    """Return variance, kurtosis and max-to-rms of each token; x: (..., d), float32 or float64 -> (...) each."""
    squared = (x - x.mean(-1, keepdim=True)).square()
    variance = squared.mean(-1)
    return {
        "activation_variance": variance,
        "kurtosis": squared.square().mean(-1) / variance.square(),
        "max_to_rms": x.abs().amax(-1) / x.square().mean(-1).sqrt(),
    }


def of_block(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return cosine and relative update of each token; x, y: (..., d), float32 or float64 -> (...) each."""
    return {
        "block_cosine": F.cosine_similarity(x, y, dim=-1),
        "block_update": (y - x).norm(dim=-1) / x.norm(dim=-1),
    }


def max_to_median(x: Tensor) -> Tensor:
    """Return the max-to-median of each token; x: (..., d) -> (...).

    It sorts, because a median has no deterministic kernel on GPUs.
    """
    size = x.abs().sort(-1).values
    return size[..., -1] / size[..., (x.shape[-1] - 1) // 2]


def mean_of_finite(values: Tensor) -> Tensor:
    """Return the mean of the finite values, NaN if there are none; any shape -> ()."""
    finite = values.isfinite()
    return torch.where(finite, values, 0.0).sum() / finite.sum()


def gram(x: Tensor) -> Tensor:
    """Return X^T X or X X^T, whichever is smaller, in float64. x: X, (tokens, d)."""
    wide = x.double()
    return wide @ wide.T if len(wide) < wide.shape[1] else wide.T @ wide


def effective_rank(gram: Tensor) -> float:
    """Return the effective rank of a matrix X, given X^T X or X X^T in float64; NaN if that is not finite.

    Eigenvalues below the rounding error of the largest count as zero.
    """
    if not bool(gram.isfinite().all()):
        return float("nan")
    eigenvalues = torch.linalg.eigvalsh(gram)
    noise = eigenvalues[-1] * len(gram) * torch.finfo(gram.dtype).eps
    singular = torch.where(eigenvalues > noise, eigenvalues, 0.0).sqrt()
    return float(torch.special.entr(singular / singular.sum()).sum().exp())
