"""Averages of a validation: over tokens, over batches, and as the published code reports it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.train import evaluate as room
from gpas_cli.train.evaluate import evaluate


def batch(counted: int, width: int = 4) -> Batch:
    targets = np.full((2, width), IGNORED)
    targets.flat[:counted] = 1
    return Batch(np.zeros((2, width), np.int64), targets)


def test_a_batch_that_counts_nothing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last batch of a rank that has no row of it."""
    losses = {8: 16.0, 2: 1.0, 0: 0.0}  # summed, by the targets that count
    monkeypatch.setattr(
        room, "summed_loss", lambda network, inputs, targets, precision: torch.tensor(losses[int((targets >= 0).sum())])
    )
    network, precision = SimpleNamespace(eval=int, train=int), SimpleNamespace(device=torch.device("cpu"))
    wanted = evaluate(network, [batch(8), batch(2)], precision, 2.0)  # type: ignore[arg-type]
    assert evaluate(network, [batch(8), batch(2), batch(0)], precision, 2.0) == wanted  # type: ignore[arg-type]
    assert wanted["loss"] == 17 / 10
    assert wanted["loss_batch_mean"] == (2 + 0.5) / 2
    assert wanted["loss_reference"] == (2 + 0.5) / 3
    assert wanted["tokens"] == 10
