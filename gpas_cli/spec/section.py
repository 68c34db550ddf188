"""What the engine asks of the parameters of a stage after pretraining, and of a network that was not trained here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from gpas_cli.errors import Problem
from gpas_cli.spec.cost import CellParts
from gpas_cli.spec.run import Resources
from gpas_cli.structure import Frozen


class Tiny(Frozen):
    """What the tiny forms of cells read, with the paths as in experiments.yaml, and how much of it."""

    training: str
    validation: str
    records: str
    """A few records to finetune on."""
    batch: int = 4
    row: int = 16
    """Tokens of a row of text."""
    eval_tokens: int = 256


class Input(Frozen):
    """Something that a cell reads, such as files or a task. Equal inputs are looked up once."""

    value: Hashable
    reason: str
    """The function, "module:function" of (value, cache, root), that returns why the value cannot be read, "" if it can.
    The text begins with the name of the setting. root: the folder of experiments.yaml."""
    needed: bool = True
    """Whether the cell cannot run without it; else the job skips it, and the plan warns."""


class Section:
    """The parameters of a stage after pretraining, a section of a cell. A kind of stage overrides what it needs.

    A static method `completed(values)` may complete the values of the YAML before they are read.
    """

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong with the section as a whole."""
        return ()

    def problems_in(self, cell: CellParts) -> Iterable[Problem]:
        """Yield what contradicts the cell."""
        return ()

    def in_cell(self, cell: CellParts) -> Self:
        """Return the canonical spelling: defaults that depend on the cell filled in, fields without effect unset."""
        return self

    def inputs(self) -> Iterable[Input]:
        """Yield what the stage reads besides the cell's text and network."""
        return ()

    def uses(self) -> tuple[str, ...]:
        """Return the parts of other extensions (`Extension.parts`) that the stage uses."""
        return ()

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return what `metric` is measured on, one column of a table each: tasks, texts, numbers of bits."""
        return ()

    def split_fault(self, processes: int) -> str:
        """Return why the rows of an update cannot be split evenly among the processes of a training, or ""."""
        return ""

    def strategy_fault(self, resources: Resources) -> str:
        """Return why a job with these resources cannot run the stage, or ""."""
        return ""

    def keeps(self, updates: int) -> tuple[int, ...]:
        """Return after which updates of a training of `updates` the stage needs a checkpoint besides the last one."""
        return ()

    def shrunk(self, cell: CellParts, tiny: Tiny) -> Mapping[str, Any]:
        """Return the settings that differ in the section's tiny form, which runs in seconds."""
        return {}


class Network(Protocol):
    """A network in place of a cell's training, read from a section of the cell: a frozen dataclass.

    layers, parameters: their numbers, 0 if unknown.
    """

    source: str  # what messages call it
    name: str  # what events call it
    path: str  # its folder, "" if its files are downloaded
    precision: str | None  # of its weights, None if that depends on how they are stored
    layers: int
    parameters: int
    tokenizer: str  # the path of its tokenizer.json

    def identity(self) -> Mapping[str, str]:
        """Return what identifies the network's numbers, for keys."""

    def described(self) -> dict[str, Any]:
        """Return the parts of a cell that stand for the network in estimates of the cost."""

    def declared(self, root: Path, pack: Path | None) -> tuple[Self, list[Problem]]:
        """Return the network as it is declared in the folder `root` or in that of a pack, and what is wrong with it."""

    def folder(self, root: Path) -> Path:
        """Return the folder of its files on this machine, which may not exist yet."""

    def inputs(self) -> Iterable[Input]:
        """Yield what must be there to open it."""

    def warnings(self, parameters: int) -> Iterable[str]:
        """Yield warnings about an estimate of its cost, which is for this number of parameters."""

    def open(self, stage: Any) -> Any:
        """Return the network of a StageContext as `evaluate.foreign.Opened`, and record what it is."""
