"""Shared by the tests of exports: untrained networks, their exports, and processes that load them."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import write_documents
from learned_factors import open_factors
from saving import save

from gpas_cli.data.loader import validation_batches
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.events import TextFacts
from gpas_cli.extensions.export.card import ExportReport, TrainingOrigin
from gpas_cli.extensions.export.network import Export
from gpas_cli.model.layers import GpasGate, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.optim import make_adam
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import prepare_text

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed (the extra `export`)"
)
needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed (the extra `downstream`)"
)
CPU = Precision("fp32", torch.device("cpu"))
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280, "rope_theta": 500.0}


class Room:
    """A folder with text, checkpoints of untrained networks with changed parameters, and their exports."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_documents(folder)

    def cell(self, **values: object) -> Cell:
        data = {
            "source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 500,
        }  # fmt: skip
        optim = {"lr": 0.01, "warmup": 3, "steps": 24, "batch": 4}
        return cell_from({"size": SIZE, "init": {"std": 0.2}, "data": data, "optim": optim, **values})

    def checkpoint(self, cell: Cell, alphas: tuple[float, ...] = (-0.2, 0.1, 0.3, 0.15)) -> Path:
        """Return a checkpoint with gates at `alphas` and norms that differ from channel to channel."""
        precision = Precision(cell.precision, torch.device("cpu"))
        network = open_factors(build(cell.model, seed=3, dtype=precision.weights))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, RMSNorm):
                    module.weight *= 1 + 0.3 * torch.randn(module.weight.shape, generator=generator)
            for gate, alpha in zip(network.gates(), alphas, strict=False):
                assert isinstance(gate, GpasGate)
                gate.alpha.fill_(alpha)
        folder = self.folder / "checkpoints" / cell.key
        return save(folder, cell.key, network, make_adam(network, cell.optim), Position(step=24))

    def opened(self, cell: Cell) -> tuple[Llama, Tokenizer]:
        """Return the network of a new checkpoint, and the tokenizer of its text."""
        network = build(cell.model)
        checkpoint.load(self.checkpoint(cell), cell.key, network, None)
        return network, prepare_text(cell, self.folder / "cache", self.folder, lambda _: None).tokenizer

    def export(
        self, cell: Cell, name: str, alphas: tuple[float, ...] = (-0.2, 0.1, 0.3, 0.15), *, trained: Path | None = None,
        tokenizer: str | None = None, notify: Callable[[str], object] = lambda _: None, **options: Any,
    ) -> ExportReport:  # fmt: skip
        """Export a checkpoint, by default a new one with gates at `alphas`."""
        origin = TrainingOrigin(text=TextFacts(tokenizer=tokenizer))
        return Export(
            cell=cell, folder=self.folder / "out" / name, cache=self.folder / "cache", root=self.folder, origin=origin,
            notify=notify, **options,
        ).write(trained or self.checkpoint(cell, alphas))  # fmt: skip

    def perplexity(self, cell: Cell) -> tuple[float, list[list[int]]]:
        """Return our perplexity on the held-out rows, and those rows."""
        network, _ = self.opened(cell)
        corpus = prepare_text(cell, self.folder / "cache", self.folder, lambda _: None)
        batches = list(validation_batches(corpus.validation, 64, 10**9))
        rows = [[*inputs, targets[-1]] for batch in batches for inputs, targets in _rows(batch)]
        return evaluate(network, batches, CPU, 1.0)["perplexity"], rows


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("export"))


def _rows(batch: Any) -> Any:
    return zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)


def run_alone(folder: Path, script: str, *arguments: object) -> Any:
    """Run `script` in a process without network and without gpas_cli on PYTHONPATH; what it
    printed, as JSON. Its arguments are `arguments`."""
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
