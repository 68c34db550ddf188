"""The other sides of comparisons: the same LLaMA as others train it, on the batches of the bundled trainer.

Each side has its best settings for one device: scaled dot product attention, `torch.compile` where its name says so,
fused AdamW, and the cell's precision (bf16: autocast, as torchtitan does on one GPU). None asks for deterministic
kernels. Padding is on the right, where causal attention does not see it, so none needs a mask; only `masked` sides get
one. Deviations from the bundled network are the start weights, and in `litgpt` q, k and v in one matrix.

    transformers                    LlamaForCausalLM, as it is
    transformers, compiled          the whole of it, with its loss
    transformers, compiled, Liger   the same with Liger's norm, SwiGLU, rotation, and head with the loss in chunks
    litgpt, compiled                litgpt's GPT, the whole of it; cross entropy compiled
    torchtitan, compiled            torchtitan's Transformer, by block as torchtitan does it; cross entropy compiled.
                                    torchtitan 0.2; version 0.3 has no scaled dot product attention for language models
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpas_cli.data.loader import IGNORED, Batch, PrefetchedBatches
from gpas_cli.spec.cell import Cell
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import BatchSource
from gpas_cli.train.precision import Precision

_EPS = 1e-6
Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Network:
    """A network, and the function of token ids, targets and mask that returns the mean loss of their targets."""

    module: nn.Module
    loss: Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _transformers(cell: Cell, compiled: Compile) -> Network:
    from transformers import LlamaConfig, LlamaForCausalLM

    size = cell.model.size
    config = LlamaConfig(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.ffn, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, max_position_embeddings=cell.data.length, attn_implementation="sdpa",
        rms_norm_eps=_EPS, use_cache=False,
    )  # fmt: skip
    module = LlamaForCausalLM(config)
    network = compiled(module)

    def loss(ids: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
        # shift_labels: the targets are shifted already, as ours are.
        found = network(input_ids=ids, attention_mask=mask, labels=targets, shift_labels=targets).loss
        assert isinstance(found, Tensor)
        return found

    return Network(module, loss)


def _liger(cell: Cell, compiled: Compile) -> Network:
    """Return `transformers`' network with Liger's kernels, and leave `transformers` itself as it was.

    Liger replaces the rotation in the module of `transformers`, for all networks; here it does so while this one runs.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama, liger_rotary_pos_emb
    from transformers.models.llama import modeling_llama as theirs

    plain = _transformers(cell, compiled)
    rotated = partial(patch.object, theirs, "apply_rotary_pos_emb", liger_rotary_pos_emb)
    with rotated(), patch.multiple(theirs, LlamaRMSNorm=theirs.LlamaRMSNorm, LlamaMLP=theirs.LlamaMLP):
        apply_liger_kernel_to_llama(model=plain.module)

    def loss(ids: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
        with rotated():
            return plain.loss(ids, targets, mask)

    return Network(plain.module, loss)


def _litgpt(cell: Cell, compiled: Compile) -> Network:
    from litgpt import GPT, Config

    size = cell.model.size
    module = GPT(
        Config(
            block_size=cell.data.length, vocab_size=size.vocab, padded_vocab_size=size.vocab, n_layer=size.layers,
            n_head=size.heads, n_embd=size.hidden, rotary_percentage=1.0, parallel_residual=False, bias=False,
            norm_class_name="RMSNorm", norm_eps=_EPS, mlp_class_name="LLaMAMLP", intermediate_size=size.ffn,
        )
    )  # fmt: skip
    return _of_logits(module, compiled(module), compiled)


def _torchtitan(cell: Cell, compiled: Compile) -> Network:
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    size = cell.model.size
    # Its width is int(factor * int(8 / 3 of the hidden size)).
    factor = (size.ffn + 0.5) / int(8 * size.hidden / 3)
    module = Transformer(
        TransformerModelArgs(
            dim=size.hidden, n_layers=size.layers, n_heads=size.heads, vocab_size=size.vocab, multiple_of=1,
            ffn_dim_multiplier=factor, norm_eps=_EPS, max_seq_len=cell.data.length, attn_type="sdpa",
        )
    )  # fmt: skip
    with torch.no_grad():
        module.init_weights()
    for name, block in module.layers.named_children():
        module.layers.register_module(name, compiled(block))
    return _of_logits(module, module, compiled)


def _of_logits(module: nn.Module, network: Callable[[Tensor], Tensor], compiled: Compile) -> Network:
    """Return a network that returns logits, without a mask."""

    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    of_logits = compiled(cross_entropy)

    def loss(ids: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            raise ValueError("only transformers takes a mask")
        found: Tensor = of_logits(network(ids), targets)
        return found

    return Network(module, loss)


# Name -> what makes its network.
RIVALS: dict[str, Callable[[Cell, Compile], Network]] = {
    "transformers": lambda cell, compiled: _transformers(cell, lambda network: network),
    "transformers, compiled": _transformers,
    "transformers, compiled, Liger": _liger,
    "litgpt, compiled": _litgpt,
    "torchtitan, compiled": _torchtitan,
}


class Rival:
    """Training of the network of `cell` by another: a name in RIVALS. Raises ImportError where it is not installed.

    `masked`: whether it gets an attention mask, as users of `transformers` pass one. `backend`: that of torch.compile.
    """

    def __init__(
        self, name: str, cell: Cell, batches: BatchSource, *, masked: bool = False, backend: str = "inductor"
    ) -> None:
        # Not dynamic: rows at once that do not fit are halved, and kernels for any number of rows are slower.
        self._network = RIVALS[name](cell, partial(torch.compile, dynamic=False, backend=backend))
        self._network.module.to(choose_device())
        self._adam = torch.optim.AdamW(self._network.module.parameters(), fused=True)
        self._precision = Precision(cell.precision, choose_device())
        self._step = 0
        self.batches = batches
        self.masked = masked

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self._network.module

    def updates(self, number: int, rows_at_once: int) -> None:
        """Do `number` updates, with batches made in advance."""
        with PrefetchedBatches(self.batches.at, self._step, self._step + number) as ahead:
            for _ in range(number):
                self._do(ahead.at(self._step), rows_at_once)

    def update(self, rows_at_once: int = 0) -> float:
        """Do the next update, in micro-batches of `rows_at_once` rows (0: all), and return its loss."""
        return float(self._do(self.batches.at(self._step), rows_at_once))

    def clear(self) -> None:
        """Forget the gradients, as after an update that did not fit the device."""
        self._adam.zero_grad(set_to_none=True)

    def _do(self, batch: Batch, rows_at_once: int) -> Tensor:
        """Do an update. Deterministic kernels are not asked for, as by default; afterwards they are as before."""
        strict, lenient = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        torch.use_deterministic_algorithms(False)
        try:
            return self._update(batch, rows_at_once)
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=lenient)

    def _update(self, batch: Batch, rows_at_once: int) -> Tensor:
        device = self._precision.device
        self.clear()
        rows = len(batch.inputs)
        at_once = rows_at_once or rows
        total = torch.zeros((), device=device)
        for start in range(0, rows, at_once):
            ids = torch.from_numpy(batch.inputs[start : start + at_once]).to(device)
            targets = torch.from_numpy(batch.targets[start : start + at_once]).to(device)
            mask = (targets != IGNORED).long() if self.masked else None
            with self._precision.compute():
                loss = self._network.loss(ids, targets, mask) * (len(ids) / rows)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._adam.step()
        self._step += 1
        return total
