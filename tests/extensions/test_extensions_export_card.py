"""The model card, letter by letter: its front matter, its facts, the code in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from goldens import compare_text

from gpas_cli import __version__
from gpas_cli.events import TextFacts
from gpas_cli.extensions.export.card import Comparison, ExportReport, TrainingOrigin, card
from gpas_cli.extensions.networks.trained_cell import TrainedCell
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from

OPTIM = {"lr": 0.01, "warmup": 3, "steps": 24, "batch": 4}
TEXT = TextFacts(fingerprint="f00d", validation_fingerprint="beef", tokenizer="70ce")
ADDED = TextFacts(fingerprint="add5")
ORIGIN = TrainingOrigin(name="small/mix-gpas-s1", code="c0de", commit="a" * 40, dirty=True, text=TEXT)
WRITTEN = ExportReport(
    form="bundled", reason="", checkpoint=Path(), step=24, steps=24, parameters=12345, dtype="float32", notes=(),
    measured=Comparison(perplexity=12.5, held_out_tokens=500),
)  # fmt: skip


def cell(**values: Any) -> Cell:
    usual = {"size": "quickstart", "data": "quickstart", "norm": "mix", "gate": "gpas", "optim": OPTIM}
    return cell_from({**usual, **values})


FINETUNE = {"data": "records.jsonl", "lisa_layers": 1, "epochs": 1, "length": 32, "lr": 2e-4, "precision": "bf16"}
PLAIN = replace(WRITTEN, form="llama", step=3, parameters=1, measured=Comparison())
CARDS = {
    "bundled": (cell(), ORIGIN, WRITTEN, True),
    "finetuned": (cell(finetune=FINETUNE), replace(ORIGIN, text=ADDED), replace(WRITTEN, step=60, steps=63), True),
    "plain": (cell(norm="pre", gate=None), TrainingOrigin(), PLAIN, False),  # unknown facts are omitted
}


@pytest.mark.parametrize("name", CARDS)
def test_the_card_is_that_of_the_golden_file(name: str) -> None:
    own, origin, written, tokenizer = CARDS[name]
    text = card(own, origin, written, Path(f"out/{name}"), tokenizer=tokenizer)
    compare_text(f"cards/{name}.md", text.replace(__version__, "VERSION"))
    yaml.safe_load(text.split("---\n", 2)[1])


def test_the_card_names_what_the_training_started_from() -> None:
    before = TrainedCell(cell(gate=None), "first/mix")
    text = card(replace(cell(), start=before), ORIGIN, WRITTEN, Path("out"), tokenizer=False)
    assert f"- start: `first/mix, {before.cell.key}`\n" in text
