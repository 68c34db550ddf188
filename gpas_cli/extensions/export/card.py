"""Write the model card of an exported network: a README.md for the Hugging Face hub. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import yaml
from jinja2 import Template

from gpas_cli import __version__
from gpas_cli.events import TextFacts
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.equation import description
from gpas_cli.spec.parse import flat, plain
from gpas_cli.spec.stage import TRAINING_PARTS
from gpas_cli.structure import Frozen
from gpas_cli.words import one_line

_CARD = Path(__file__).parent / "assets" / "card.md"


class TrainingOrigin(Frozen, kw_only=True):
    """What is recorded about the weights: the cell's name, and the version of the code and the git commit of the last
    training."""

    name: str = ""
    code: str = ""
    commit: str = ""
    dirty: bool = False
    text: TextFacts = field(default_factory=TextFacts)  # the journalled facts about the text of the last training


class Comparison(Frozen, kw_only=True):
    """The exported network compared with the cell's, both in float32.

    The errors are max |difference| / max |logit|; None without held-out text, or if the network is exported unchanged.
    A perplexity is None without held-out text, or if it is not finite.
    """

    random_error: float | None = None
    held_out_error: float | None = None
    held_out_tokens: int = 0
    perplexity: float | None = None
    exported_perplexity: float | None = None


class ExportReport(Frozen, kw_only=True):
    """What was written, of a network after `step` of `steps` updates."""

    form: Annotated[str, ("llama", "bundled")]
    reason: Annotated[str, "why in this form"]
    folded: Annotated[bool, "whether the gates are folded into the weights"] = False
    checkpoint: Path
    step: int
    steps: int
    parameters: int
    dtype: str
    measured: Comparison
    notes: tuple[str, ...]


def card(cell: Cell, origin: TrainingOrigin, written: ExportReport, folder: Path, *, tokenizer: bool) -> str:
    """Return the text of README.md for the export of `cell` to `folder`; `tokenizer`: whether the folder has one."""
    own_code, measured = written.form == "bundled", written.measured
    tags = [re.sub(r"[^a-z0-9]+", "-", cell.model.norm.title.lower()).strip("-")]
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags + ["gpas"] * bool(cell.model.gate) + ["custom_code"] * own_code,
    }
    facts = {**_trainings(cell), "weights": _weights(cell, origin, written)}
    text: str = Template(_CARD.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True).render(
        head=yaml.safe_dump(head, sort_keys=False),
        version=__version__,
        cell=cell,
        written=written,
        name=one_line(origin.name),
        own_code=own_code,
        trust=", trust_remote_code=True" if own_code else "",
        folder=json.dumps(folder.name),
        tokenizer=tokenizer,
        equations="\n".join(description(cell.model)),
        sections={name.capitalize(): _bullets(own) for name, own in facts.items()},
        perplexity=measured.perplexity if measured.exported_perplexity is None else measured.exported_perplexity,
    )
    return text


def _trainings(cell: Cell) -> dict[str, dict[str, Any]]:
    """Return the settings of pretraining and of each later training."""
    own = {**cell.to_mapping(), "start": f"{cell.start.source}, {cell.start.name}" if cell.start else None}
    pretraining = {name: own[name] for name in ("start", *TRAINING_PARTS)}
    later = {stage.kind.name: plain(stage.parameters) for stage in cell.later if stage.kind.trains}
    return {"pretraining": flat(pretraining), **{name: flat(settings) for name, settings in later.items()}}


def _weights(cell: Cell, origin: TrainingOrigin, written: ExportReport) -> dict[str, str]:
    """Return the facts about the last training, which made the weights."""
    return {
        "updates": f"{written.step:,} of {written.steps:,}",
        "precision": f"{cell.trained_precision}; these weights are {written.dtype}",
        "text fingerprint": origin.text.fingerprint or "",
        "validation fingerprint": origin.text.validation_fingerprint or "",
        "tokenizer": origin.text.tokenizer or "",
        "code version": origin.code,
        "git commit": f"{origin.commit}{' with local changes' if origin.dirty else ''}" if origin.commit else "",
    }


def _bullets(facts: Mapping[str, Any]) -> str:
    """Return a list of the facts; those that are empty, zero or off are left out."""
    return "\n".join(f"- {name}: `{one_line(str(value))}`" for name, value in facts.items() if value)
