"""Muon for the matrices of the layers and AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import fill, is_shard
from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import MATRIX, MuonSettings, Optim, role
from gpas_cli.train.optim import RATE_FACTOR, adam_of

ADJUSTMENTS = {"adamw": "match_rms_adamw", "original": "original"}


def make_muon(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return torch's Muon for the trainable matrices of the layers, and AdamW for the other parameters."""
    own = spec.optimizer_settings or MuonSettings()
    assert isinstance(own, MuonSettings)
    trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
    matrices = [p for name, p in trainable.items() if role(name, p.dim()) == MATRIX]
    others = [p for name, p in trainable.items() if role(name, p.dim()) != MATRIX]
    settings = {
        "weight_decay": spec.weight_decay,
        "momentum": own.momentum,
        "nesterov": own.nesterov,
        "ns_steps": own.newton_steps,
        "adjust_lr_fn": ADJUSTMENTS[own.matrix_scale],
    }
    return MuonAndAdam(matrices, settings, own.matrix_lr, adam_of(others, spec))


class MuonAndAdam(torch.optim.Optimizer):
    """Muon and AdamW behind the interface of one optimizer. `step` is collective if a matrix is sharded."""

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        settings: dict[str, Any],
        rate_factor: float,
        adam: torch.optim.Optimizer,
    ):
        self._settings = settings
        self._muon = torch.optim.Muon(matrices, lr=0.0, **settings)
        self._muon.param_groups[0][RATE_FACTOR] = rate_factor
        self._adam = adam
        super().__init__([*matrices, *(p for group in adam.param_groups for p in group["params"])], adam.defaults)
        self.param_groups = [*self._muon.param_groups, *adam.param_groups]
        self._muon.state = adam.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        group = self._muon.param_groups[0]
        if any(is_shard(matrix) for matrix in group["params"]):
            for matrix in group["params"]:
                self._update_shards(matrix, group["lr"])
        else:
            self._muon.step()  # type: ignore[no-untyped-call]
        self._adam.step()

    def _update_shards(self, matrix: Any, rate: float) -> None:
        """Update a sharded matrix: every process gathers it, orthogonalises the whole update and keeps its part."""
        if matrix.grad is None:
            return
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        whole = nn.Parameter(matrix.detach().full_tensor())
        whole.grad = matrix.grad.full_tensor()
        muon = torch.optim.Muon([whole], lr=rate, **self._settings)
        momentum: Tensor = state["momentum_buffer"].full_tensor()
        muon.state[whole] = {"momentum_buffer": momentum}
        muon.step()  # type: ignore[no-untyped-call]
        fill(matrix, whole.detach())
        fill(state["momentum_buffer"], momentum)
