"""The model card: its front matter, its facts, the code in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gpas_cli.events import TextFacts
from gpas_cli.extensions.export.card import Comparison, ExportReport, TrainingOrigin, card
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from

OPTIM = {"lr": 0.01, "warmup": 3, "steps": 24, "batch": 4}
TEXT = TextFacts(fingerprint="f00d", validation_fingerprint="beef", tokenizer="70ce")
ORIGIN = TrainingOrigin(name="small/mix-gpas-s1", code="c0de", commit="a" * 40, dirty=True, text=TEXT)
WRITTEN = ExportReport(
    form="bundled", reason="", checkpoint=Path(), step=24, steps=24, parameters=12345, dtype="float32", notes=(),
    measured=Comparison(perplexity=12.5, held_out_tokens=500),
)  # fmt: skip


def cell(**values: Any) -> Cell:
    usual = {"size": "quickstart", "data": "quickstart", "norm": "mix", "gate": "gpas", "optim": OPTIM}
    return cell_from({**usual, **values})


def test_the_card_has_cell_equation_numbers_and_origin() -> None:
    own = cell()
    text = card(own, ORIGIN, WRITTEN, Path("out/mix"), tokenizer=True)
    libraries = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    assert yaml.safe_load(text.split("---\n", 2)[1]) == {**libraries, "tags": ["mix-ln", "gpas", "custom_code"]}
    for fact in (
        "small/mix-gpas-s1", own.trained.key, "x <- N(G(x) + f(x))", "G(x) = x - silu(alpha) sg(x)",
        "12,345 parameters", "Perplexity 12.5 on the first 500 tokens", "`f00d`", "`beef`", "`70ce`", "`c0de`",
        f"{'a' * 40} with local changes",
        'folder = "mix"', "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)",
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=True)",
    ):  # fmt: skip
        assert fact in text


def test_the_card_of_a_finetuned_network_separates_both_trainings() -> None:
    finetune = {"data": "records.jsonl", "lisa_layers": 1, "epochs": 1, "length": 32, "lr": 2e-4, "precision": "bf16"}
    own = cell(finetune=finetune)
    text = TextFacts(fingerprint="add5")
    written = replace(WRITTEN, step=60, steps=63)
    origin = replace(ORIGIN, text=text)
    card_text = card(own, origin, written, Path("x"), tokenizer=True)
    pretraining, _, finetuning = card_text.partition("## Pretraining\n")[2].partition("## Finetune\n")
    assert "- optim.steps: `24`\n- optim.batch: `4`" in pretraining
    assert "- precision: `fp32`\n" in pretraining
    assert "fingerprint" not in pretraining
    for fact in (
        "- data: `records.jsonl`", "- lisa_layers: `1`", "- lr: `0.0002`", "- updates: `60 of 63`",
        "- precision: `bf16; these weights are float32`", "- text fingerprint: `add5`", "- code version: `c0de`",
    ):  # fmt: skip
        assert fact in finetuning


def test_unknown_facts_are_omitted() -> None:
    written = replace(WRITTEN, form="llama", step=3, parameters=1, measured=Comparison())
    text = card(cell(norm="pre", gate=None), TrainingOrigin(), written, Path("x"), tokenizer=False)
    assert "Not evaluated" in text
    assert "3 of 24" in text
    assert "None" not in text
    assert "AutoTokenizer" not in text
    assert "plain LLaMA: scales, gates and embedding stages are folded" in text
    assert "trust_remote_code" not in text
