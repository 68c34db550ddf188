"""Shrink cells to a smoke test: the structure of each stays, its size, text and number of updates become tiny.

What stays: the number of layers, scheme, gate, embedding, initialisation, family, objective, depth schedule, optimizer,
learning rate and its schedule, precision, seed and the stages. What shrinks: widths and vocabulary, the text and the
length of its rows, the batch, the number of updates, and what later stages read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.grid.entry import Entry
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.objective import Masked
from gpas_cli.spec.optim import InverseSqrt, WarmupStableDecay
from gpas_cli.spec.parse import flat
from gpas_cli.spec.parse_cell import Catalogue, parse_cell
from gpas_cli.spec.run import Cadence, Monitoring, Resources

UPDATES = 2
BATCH_ROWS = 4
ROW_TOKENS = 16
EVAL_TOKENS = 256
SIZE = {"hidden": 16, "ffn": 24, "heads": 2}
VOCABULARY = 300  # of the tokenizer; an objective may reserve further ids
EMBEDDED = {"tasks": ["embedded"], "max_length": 64, "limit": 4}
CADENCE = Cadence(log_every=1, stats_every=1, eval_every=1, checkpoint_every=1)


@dataclass(frozen=True)
class TinyText:
    """The paths of a tiny text and a few finetuning records, as in experiments.yaml."""

    training: str
    validation: str
    records: str


@dataclass(frozen=True)
class ShrunkSetting:
    """A setting of the cells of a smoke test."""

    setting: str
    before: Annotated[tuple[Any, ...], "its values in the declared cells"]
    after: Annotated[tuple[Any, ...], "its values in their tiny forms"]


def shrink(entries: Sequence[Entry], text: TinyText, catalogue: Catalogue) -> list[Entry]:
    """Return the entries with shrunk cells, for jobs of one core.

    Raises InvalidExperiments if the tiny form of a cell breaks a rule.
    """
    problems: list[Problem] = []
    found = [_shrunk(entry, text, catalogue, problems) for entry in entries]
    if problems:
        raise InvalidExperiments(problems)
    return [entry for entry in found if entry is not None]


def one_seed(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first of the entries that differ only in the seed."""
    families: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        axes = tuple((axis, label) for axis, label in entry.axes.items() if axis != "seed")
        families.setdefault((entry.grid, axes), entry)
    return list(families.values())


def changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[ShrunkSetting]:
    """Return the settings in which shrunk cells differ from the original ones, in the order of a cell."""
    pairs: dict[str, list[tuple[Any, Any]]] = {}
    for old, new in zip(before, after, strict=True):
        small = flat(new.cell.to_mapping())
        for name, value in flat(old.cell.to_mapping()).items():
            pairs.setdefault(name, []).append((value, small.get(name)))
    return [
        ShrunkSetting(name, _distinct(old for old, _ in values), _distinct(new for _, new in values))
        for name, values in pairs.items()
        if any(old != new for old, new in values)
    ]


def _shrunk(entry: Entry, text: TinyText, catalogue: Catalogue, problems: list[Problem]) -> Entry | None:
    found: list[Problem] = []
    cell = parse_cell(shrunk_mapping(entry.cell, text), found, catalogue)
    problems.extend(replace(problem, where=f"{entry.id}, shrunk") for problem in found)
    if cell is None:
        return None
    return replace(
        entry,
        cell=cell,
        cadence=CADENCE,
        watch=Monitoring(),
        resources=Resources(compile="off"),
        kind_resources={},
        declared=None,
    )


def shrunk_mapping(cell: Cell, text: TinyText) -> dict[str, Any]:
    """Return the settings of a cell's tiny form, for `parse_cell`."""
    values = cell.to_mapping()
    tiny = {
        **values,
        "size": {**values["size"], **SIZE, "vocab": VOCABULARY + cell.objective.reserved},
        "objective": {**values["objective"], **_objective(cell)},
        "data": {**values["data"], **_data(text)},
        "optim": {**values["optim"], **_optim(cell)},
        "depth": {**values["depth"], **_depth(cell.depth)},
    }
    if cell.data.tokenizer != "bpe":
        # The reference keeps the last row at zero because no token of T5's is there; a BPE uses the whole vocabulary.
        tiny["init"] = {**values["init"], "zero_last_row": False}
    if cell.parameters("finetune") is not None:
        tiny["finetune"] = {**values["finetune"], **_finetune(text)}
    if cell.parameters("texts") is not None:
        tiny["texts"] = {**values["texts"], "texts": [f"sample={text.validation}"], "max_length": 0, "limit": 2}
    if cell.parameters("downstream") is not None:
        tiny["downstream"] = {**values["downstream"], **EMBEDDED, "shots": 0}
    if cell.parameters("importance") is not None:
        tasks = EMBEDDED if cell.parameters("importance").tasks else {}
        tiny["importance"] = {**values["importance"], "eval_tokens": EVAL_TOKENS, **tasks}
    return tiny


def _objective(cell: Cell) -> dict[str, Any]:
    """Return the settings of an objective for a BPE, which has no mask token of its own."""
    return {"mask_token": ""} if isinstance(cell.objective, Masked) else {}


def _data(text: TinyText) -> dict[str, Any]:
    paths = {"source": "files", "path": text.training, "validation": text.validation, "text_field": "text"}
    return {**paths, "tokenizer": "bpe", "length": ROW_TOKENS, "eval_tokens": EVAL_TOKENS}


def _optim(cell: Cell) -> dict[str, Any]:
    """Return the settings of a recipe of few updates; one that stops early also stops early here."""
    optim = cell.optim
    updates = _updates(cell)
    found = {
        "steps": 2 * updates if optim.stop else updates,
        "stop": updates if optim.stop else 0,
        "warmup": min(1, optim.warmup),
        "batch": BATCH_ROWS,
        "mean_rows": BATCH_ROWS // 2 if optim.mean_rows else 0,
        "validation_rows": BATCH_ROWS // 2 if optim.validation_rows else 0,
    }
    if isinstance(optim.decay_of_rate, WarmupStableDecay):
        found["decay"] = 1
    elif isinstance(optim.decay_of_rate, InverseSqrt) and optim.decay_of_rate.timescale:
        found["timescale"] = 1
    return found


def _updates(cell: Cell) -> int:
    """Return how many updates a cell trains for: `UPDATES`, or as many as its stages and its schedule need."""
    stages = len(cell.depth.sizes())
    shortest = stages * (stages + 1) // 2 if cell.depth.lengths == "proportional" else stages
    needed = 2 * shortest if cell.depth.full_steps else shortest
    flat = 1 + min(1, cell.optim.warmup)
    decays = isinstance(cell.optim.decay_of_rate, WarmupStableDecay)
    return max(UPDATES, needed, flat + 1 if decays else 0)


def _depth(depth: Depth) -> dict[str, Any]:
    """Return the lengths of stages, equal ones for given ones, and at most one update of the whole network first."""
    if not depth.stages:
        return {}
    lengths = depth.lengths if isinstance(depth.lengths, str) else "equal"
    return {"lengths": lengths} | ({"full_steps": 1} if depth.full_steps else {})


def _finetune(text: TinyText) -> dict[str, Any]:
    return {
        "data": text.records,
        "validation": "",
        "length": 4 * ROW_TOKENS,
        "epochs": 1,
        "batch": BATCH_ROWS,
        "warmup": 0,
    }


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)
