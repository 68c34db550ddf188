"""A cell as the network that another training starts with: `start: {cell: GRID/CELL}`.

The cell is that network's identity, so that the training starts where its last training stage ends, whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.events import Emit
from gpas_cli.extensions.networks.start import unfit
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Model
from gpas_cli.spec.section import Input
from gpas_cli.structure import Frozen

_TEXT = ("source", "path", "text_field", "validation")  # what of a text decides on the tokenizer that is made of it


class TrainedCell(Frozen):
    """The network of a cell, a `spec.cell.Start`. source: the name of the cell, as in experiments.yaml."""

    cell: Cell
    source: str = field(compare=False)

    def __post_init__(self) -> None:
        later = tuple(stage for stage in self.cell.later if stage.kind.trains)
        object.__setattr__(self, "cell", replace(self.cell, later=later))

    @property
    def name(self) -> str:
        """Its name in events: the key of its last training."""
        return self.cell.key

    @property
    def tokenizer(self) -> str:
        """The tokenizer of its text."""
        return self.cell.data.tokenizer

    def identity(self) -> Mapping[str, str]:
        """Return the key of its last training."""
        return {"cell": self.cell.key}

    def to_mapping(self) -> dict[str, Any]:
        """Return its settings and its name."""
        return {"cell": self.cell.to_mapping(), "source": self.source}

    def problems_in(self, cell: Cell) -> Iterator[Problem]:
        """Yield why a cell cannot start from it: another shape, tensors without a place, or another tokenizer."""
        own = self.cell
        if cell.model.gate and cell.model.gate.from_trained:
            yield Problem(("gate", "from_trained"), f"has no effect: the gates are those of {self.source}")
        if reason := unfit(cell.model, own.model, self.source):
            yield Problem(("start", "cell"), reason)
        origins = {own.model.norm.origin, *(stage.kind.origin for stage in own.later)}
        if others := [one.name for one in origins - {cell.model.norm.origin} if one]:
            yield Problem(("start", "cell"), f"{self.source} needs {others[0]}, which this training does not use")
        if cell.data.tokenizer != own.data.tokenizer:
            yield Problem(("data", "tokenizer"), f"is not that of {self.source}; write tokenizer: start")
        elif own.data.tokenizer == "bpe" and _tokenized(cell) != _tokenized(own):
            message = f"trains a tokenizer on another text than that of {self.source}, or of another size"
            yield Problem(("data",), f"{message}; train both with the same tokenizer.json")

    def start_inputs(self, model: Model) -> tuple[Input, ...]:
        """Return nothing: its training comes first."""
        return ()

    def put_into(self, network: Any, place: Path, emit: Emit) -> None:
        """Replace the weights of an initialised network by those of a checkpoint of its last training."""
        # This module imports torch.
        resolve_name("gpas_cli.extensions.networks.start_weights:put_trained")(self, network, place, emit)


def _tokenized(cell: Cell) -> tuple[object, ...]:
    return cell.text_vocab, *(getattr(cell.data.parts[0], name) for name in _TEXT)
