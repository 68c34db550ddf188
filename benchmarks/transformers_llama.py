"""The other side of comparisons: `transformers`' LlamaForCausalLM, on the batches of the bundled trainer."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpas_cli.data.loader import IGNORED, Batch, PrefetchedBatches
from gpas_cli.spec.cell import Cell
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import BatchSource
from gpas_cli.train.precision import Precision


class TransformersTraining:
    """Training of the network of `cell` by `transformers`, not compiled: scaled dot product attention and fused AdamW.

    `masked`: whether it gets an attention mask. Padding is on the right, where causal attention does not see it, so the
    loss and its gradients are the same without one; a mask is what users of `transformers` pass.
    """

    def __init__(self, cell: Cell, batches: BatchSource, *, masked: bool):
        size = cell.model.size
        config = LlamaConfig(
            vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.ffn, num_hidden_layers=size.layers,
            num_attention_heads=size.heads, max_position_embeddings=cell.data.length, attn_implementation="sdpa",
            use_cache=False,
        )  # fmt: skip
        self.network = LlamaForCausalLM(config).to(choose_device())
        self.adam = torch.optim.AdamW(self.network.parameters(), fused=True)
        self._precision = Precision(cell.precision, choose_device())
        self._batches = batches
        self.masked = masked
        self._step = 0

    def updates(self, number: int, rows_at_once: int) -> None:
        """Do `number` updates, with batches made in advance."""
        with PrefetchedBatches(self._batches.at, self._step, self._step + number) as ahead:
            for _ in range(number):
                self._do(ahead.at(self._step), rows_at_once)

    def update(self, rows_at_once: int = 0) -> None:
        """Do the next update, in micro-batches of `rows_at_once` rows (0: all), without waiting for the device."""
        self._do(self._batches.at(self._step), rows_at_once)

    def _do(self, batch: Batch, rows_at_once: int) -> None:
        """Do an update. Deterministic kernels are not asked for, as by default; afterwards they are as before."""
        strict, lenient = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        torch.use_deterministic_algorithms(False)
        try:
            self._update(batch, rows_at_once)
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=lenient)

    def _update(self, batch: Batch, rows_at_once: int) -> None:
        device = self._precision.device
        self.adam.zero_grad(set_to_none=True)
        rows = len(batch.inputs)
        at_once = rows_at_once or rows
        for start in range(0, rows, at_once):
            inputs = torch.from_numpy(batch.inputs[start : start + at_once]).to(device)
            labels = torch.from_numpy(batch.targets[start : start + at_once]).to(device)
            mask = (labels != IGNORED).long() if self.masked else None
            with self._precision.compute():
                # shift_labels: the targets are shifted already, as ours are.
                loss = self.network(input_ids=inputs, attention_mask=mask, labels=labels, shift_labels=labels).loss
            (loss * (len(inputs) / rows)).backward()
        self.adam.step()
        self._step += 1
