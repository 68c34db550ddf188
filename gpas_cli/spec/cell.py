"""A cell: one resolved configuration. Frozen data; its key is a hash of exactly what can change its result.

`gpas_cli.spec.parse_cell` reads one from plain data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gpas_cli.errors import GpasError, Problem
from gpas_cli.spec import parse
from gpas_cli.spec.check import canonical_model
from gpas_cli.spec.cost import CellParts
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.model import Model
from gpas_cli.spec.objective import CAUSAL
from gpas_cli.spec.section import Input, Network, Section
from gpas_cli.spec.stage import PRETRAIN, STAGE_KINDS, TRAINING_PARTS, StageKind
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped

_KEY_VERSION = "gpas-cell-1"
_SEED = "\0"  # stands for the seed in the text of a key; no setting may have this character
# Parts that were added after keys were published: the key omits them while they have these values.
_USUAL_PARTS: dict[str, Any] = {"objective": CAUSAL, "depth": Depth(), "dropout": 0.0}
NETWORK = "network"  # the setting of a cell that names a network that was not trained here
# The setting that names such a network, or a cell, for a training to start from, and the tokenizer of its text.
START = "start"
MODEL_PARTS = ("size", "norm", "gate", "embed", "init", "family", "parametrisation")


def _text_of(spec: Mapping[str, Any]) -> str:
    """Return the text of which `_digest` is the key of a specification."""
    return json.dumps([_KEY_VERSION, spec], sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _digest(text: str) -> str:
    """Return a key: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Stage(Frozen):
    """One stage of a cell's chain. Cells whose stages have the same key share the result."""

    declared: StageKind
    key: str
    parents: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the stage's kind."""
        return self.declared.name


class LaterStage(Frozen):
    """A stage after pretraining: its kind, and its parameters, an instance of the kind's dataclass."""

    kind: StageKind
    parameters: Section


class Start(Protocol):
    """The network that a training starts with: one that was not trained here, or that of a cell."""

    source: str  # what messages call it
    name: str  # what events call it
    tokenizer: str  # `data.tokenizer` of its text
    cell: Cell | None  # the one that trains it, with its trainings alone; None of a network that was not trained here

    def identity(self) -> Mapping[str, str]:
        """Return what identifies its weights, for keys."""

    def to_mapping(self) -> dict[str, Any]:
        """Return it as the setting `start`, as JSON-ready data."""

    def problems_in(self, cell: Cell) -> Iterable[Problem]:
        """Yield why a cell cannot start from it, as far as this is known without its files."""

    def start_inputs(self, model: Model) -> Iterable[Input]:
        """Yield what must be there for a training of `model` to start from it."""

    def put_into(self, network: Any, place: Path, emit: Callable[[Any], None]) -> None:
        """Replace the weights of an initialised network (`model.llama.Llama`), and record what they are.

        place: the checkpoint of a cell, else the folder of experiments.yaml.
        """


class Cell(CellParts, kw_only=True):
    """Everything that can change a result: network, text, objective, recipe, depth, dropout, precision, seed, and later
    stages."""

    later: tuple[LaterStage, ...] = ()  # the stages after pretraining in the order in which they run, trainings first
    network: Network | None = None
    """A network that was not trained here. Then there is no training, and the other parts only stand for its shape
    (`Network.described`)."""
    start: Start | None = None  # the network whose weights the training starts with

    @property
    def is_external(self) -> bool:
        """Whether the network was not trained here."""
        return self.network is not None

    @property
    def key(self) -> str:
        """The key of the last stage: 16 hexadecimal digits."""
        return self.stages[-1].key

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The chain, first to last. Each key hashes the stage's own spec and the key of the training before it, or
        the identity of a network that was not trained here."""
        chain: list[Stage] = []
        identity = self.network.identity() if self.network else {}
        if self.network is None:
            teacher = self.teacher()
            first = _digest(str(self.seed).join(self._around_seed))
            chain.append(Stage(STAGE_KINDS[PRETRAIN], first, (teacher.trained.key,) if teacher else ()))
        for stage in self.later:
            parents = (_last_training(chain).key,) if self.network is None else ()
            parent = "".join(parents) or _digest(_text_of(identity))
            spec = {"stage": stage.kind.name, "parent": parent, "spec": parse.plain(stage.parameters, for_key=True)}
            chain.append(Stage(stage.kind, _digest(_text_of(spec)), parents))
        return tuple(chain)

    @cached_property
    def _around_seed(self) -> list[str]:
        """The text that the key of pretraining hashes, before and after the seed."""
        return _text_of({**self._without_later(for_key=True), "seed": _SEED}).split(json.dumps(_SEED))

    def with_seed(self, seed: int) -> Cell:
        """Return the cell with another seed. What keys hash is not made again, nor may a later stage read the seed."""
        other = replace(self, seed=seed)
        vars(other)["_around_seed"] = self._around_seed
        return other

    @property
    def reads_seed(self) -> bool:
        """Whether more than pretraining's seed may depend on the seed: settings of a later stage, where it starts."""
        later = any(type(stage.parameters).in_cell is not Section.in_cell for stage in self.later)
        return later or bool(self.start and self.start.cell)

    @cached_property
    def seedless(self) -> Cell:
        """The cell with the seed 0, as a cache key: two cells with the same value differ at most in their seed."""
        return replace(self, seed=0)

    @property
    def text_vocab(self) -> int:
        """The number of ids that the tokenizer has: the network's without the objective's own."""
        return self.model.size.vocab - self.objective.reserved

    @property
    def trained(self) -> Stage:
        """The last stage that trains. Its checkpoint is the cell's network. Raises GpasError without a training."""
        if self.network:
            raise GpasError(f"{self.network.source} was not trained here, so it has no checkpoint")
        return _last_training(self.stages)

    @property
    def trained_precision(self) -> str:
        """The precision of the last training: its own if its parameters have one, else pretraining's."""
        own = getattr(self.parameters(self.trained.kind), "precision", None)
        return own or self.precision

    def before(self, kind: str) -> Cell:
        """Return the cell with only those stages that its stage `kind` builds on."""
        names = [stage.kind.name for stage in self.later]
        earlier = self.later[: names.index(kind)]
        return replace(self, later=tuple(stage for stage in earlier if stage.kind.trains))

    def needed_by(self, kind: str) -> Cell:
        """Return the cell with only its stage `kind` and those that this one builds on: what its job reads."""
        own = tuple(stage for stage in self.later if stage.kind.name == kind)
        return replace(self, later=(*self.before(kind).later, *own) if own else ())

    def teacher(self) -> Cell | None:
        """Return the cell with whose trained network this one starts, or with whose trained gates: same seed, text and
        recipe. None without one."""
        if self.start and self.start.cell:
            return self.start.cell
        gate = self.model.gate
        if gate is None or not gate.from_trained:
            return None
        model = canonical_model(replace(self.model, gate=gate.teacher()))
        return replace(self, model=model, later=())

    def parameters(self, kind: str) -> Any:
        return next((stage.parameters for stage in self.later if stage.kind.name == kind), None)

    def to_mapping(self) -> dict[str, Any]:
        """Return the cell as JSON-ready data, which `parse_cell` turns into an equal cell."""
        later = {stage.kind.name: parse.plain(stage.parameters) for stage in self.later}
        network = {NETWORK: parse.plain(self.network)} if self.network else {}
        return {**self._without_later(), **later, **network}

    @property
    def settings(self) -> dict[str, Any]:
        """The cell as it is shown: of the cell that it starts from, the name and the key in place of the settings."""
        start = self.start if self.start and self.start.cell else None
        return {**self.to_mapping(), **({START: {"cell": start.source, "key": start.name}} if start else {})}

    def _without_later(self, *, for_key: bool = False) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in TRAINING_PARTS}
        for name, usual in _USUAL_PARTS.items() if for_key else ():
            if parts[name] == usual:
                del parts[name]
        plain = {name: parse.plain(part, for_key=for_key) for name, part in parts.items()}
        if "depth" in plain:
            plain["depth"] = self.depth.to_mapping(for_key=for_key)
        if self.start:
            plain[START] = self.start.identity() if for_key else self.start.to_mapping()
            if for_key and self.data.tokenizer == self.start.tokenizer:  # which may lie in another place elsewhere
                plain["data"] = {**plain["data"], "tokenizer": START}
        return {**self.model.to_mapping(for_key=for_key), **plain}


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without those that differ from an earlier one only in the seed."""
    return [same[0] for same in grouped((cell.seedless, cell) for cell in cells).values()]


def _last_training(chain: Sequence[Stage]) -> Stage:
    return next(stage for stage in reversed(chain) if stage.declared.trains)
