"""Read activations: what is computed of the residual stream, where x enters a layer and y leaves it, token by token:

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

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.llama import Block, Llama

RANK = "effective_rank"
_MEASURED_TOKENS = 1024  # of a forward pass: enough for a mean, and a small part of an update's time
_SORTED_TOKENS = 128  # of these: their features are sorted, and the rank of their matrix takes its eigenvalues


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
    return {"block_cosine": F.cosine_similarity(x, y, dim=-1), "block_update": (y - x).norm(dim=-1) / x.norm(dim=-1)}


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


def observed_inputs(
    modules: Iterable[nn.Module], observe: Callable[[nn.Module, Tensor], None]
) -> AbstractContextManager[None]:
    """Call `observe` with each of `modules` and its detached input in every forward pass inside the context."""
    return hooked(modules, lambda module, given: observe(module, given[0].detach()))


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[[Any, tuple[Any, ...]], object]) -> Iterator[None]:
    """Call `hook` with each of `modules` and its arguments before every forward pass inside the context.

    What it returns, unless None, replaces the arguments.
    """
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def stream_statistics(network: Llama, *, wanted: bool = True) -> Iterator[list[dict[str, Tensor]]]:
    """Collect the means over tokens of what `model.stream` defines, of the residual stream entering every layer and the
    final norm, and of `Attention.first_token_share`: layers + 1 dictionaries of scalars for each forward pass inside
    the context, with the `gram` of the stream in place of its effective rank. Without `wanted`, collect nothing.

    Variance and share cover all tokens, everything else the first ones. The last stream enters no layer, and has no
    `of_block` and no share.
    """
    ends = network.model.stack_ends
    seen: list[dict[str, Tensor]] = []
    before: list[Tensor] = []

    def observe(module: nn.Module, given: tuple[Any, ...]) -> None:
        x = given[0].detach()
        few = x.flatten(0, 1)[:_MEASURED_TOKENS].float()
        if before:
            seen[-1] |= {name: mean_of_finite(values) for name, values in of_block(before.pop(), few).items()}
        if module in ends:  # where a stack ends that is not the last one
            return
        fewer = few[:_SORTED_TOKENS]
        values = of_stream(few) | {"max_to_median": max_to_median(fewer)}
        if isinstance(module, Block):
            values["first_token_share"] = module.first_token_share(*given)
        means = {name: mean_of_finite(value) for name, value in values.items()}
        seen.append(means | {"activation_variance": x.float().var(-1, correction=0).mean(), RANK: gram(fewer)})
        if module is not network.model.norm:
            before.append(few)

    with hooked([*network.model.layers, *ends, network.model.norm] if wanted else [], observe):
        yield seen
