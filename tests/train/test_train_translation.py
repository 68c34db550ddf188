"""Training an encoder and a decoder on pairs: resumption, the layers that are watched, and what a cell may not be."""

from pathlib import Path
from typing import Any

import pytest
from together import run

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.model.llama import build
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.parallel import ALONE


def values(**more: Any) -> dict[str, Any]:
    return {
        "size": {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 300},
        "family": "encoder-decoder",
        "objective": "translation",
        "norm": "deepnorm",
        "gate": "gpas",
        "embed": "scaled",
        "dropout": 0.1,
        "data": {"source": "pairs", "path": "t.{en,de}", "validation": "v.{en,de}", "length": 48, "eval_tokens": 300},
        "optim": {"lr": 1e-2, "warmup": 1, "steps": 6, "batch": 8, "schedule": "inverse-sqrt"},
        **more,
    }


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    words = ["ab", "cde", "f", "ghij"]
    for name, count in (("t", 40), ("v", 9)):
        rows = [[words[(n * k + k) % 4] for k in range(1, 2 + n % 4)] for n in range(count)]
        (tmp_path / f"{name}.en").write_text("".join(" ".join(row) + "\n" for row in rows))
        (tmp_path / f"{name}.de").write_text("".join(" ".join(reversed(row)).upper() + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("batches", ["rows", "tokens"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(pairs: Path, batches: str) -> None:
    declared = values()
    declared["data"] |= {"batches": batches}
    declared["optim"] |= {"label_smoothing": 0.1}
    declared["objective"] = {"like": "translation", "word_dropout": 0.1}
    straight = run(pairs, ["straight", declared, {"micro_batch": 3}, [], 10**6], ALONE)
    run(pairs, ["first", declared, {"micro_batch": 3}, [], 3], ALONE)
    second = run(pairs, ["second", declared, {"micro_batch": 3}, ["first"], 10**6], ALONE)
    other = run(pairs, ["other", declared, {"micro_batch": 5}, [], 10**6], ALONE)
    assert [e["loss"] for e in other["step"]] == pytest.approx([e["loss"] for e in straight["step"]], rel=1e-5)
    assert [(e["loss"], e["grad_norm"]) for e in second["step"]] == [
        (e["loss"], e["grad_norm"]) for e in straight["step"][3:]
    ]
    assert second["evaluation"][-1] == straight["evaluation"][-1]
    assert straight["evaluation"][-1]["translation_loss"] > 0
    assert straight["outcome"]["metrics"].keys() >= {"translation_loss", "translation_perplexity"}


def test_every_layer_of_both_stacks_is_watched(pairs: Path) -> None:
    events = run(pairs, ["watched", values(), {}, [], 10**6], ALONE)
    series = events["layers"][0]["values"]
    assert len(series["activation_variance"]) == 5, "what enters each layer and the last norm"
    assert len(series["gate"]) == len(series["grad_norm"]) == 4
    assert None not in series["block_cosine"]
    assert len(series["block_cosine"]) == 4


def test_compiled_layers_are_refused(pairs: Path) -> None:
    with pytest.raises(GpasError, match="compile: on is not for encoder-decoder"):
        run(pairs, ["compiled", values(), {"compile": "on"}, [], 10**6], ALONE)


def test_parameters_are_counted() -> None:
    """Matrices and tables as `spec.cost` counts them."""
    cell = cell_from(values())
    named = build(cell.model).named_parameters()
    matrices = [p for name, p in named if p.dim() == 2]
    assert sum(p.numel() for p in matrices) == parameters(cell)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "causal"}, "objective: causal is not for encoder-decoder; write objective: translation"),
        ({"family": "gpt"}, "translation needs family: encoder-decoder"),
        ({"data": "quickstart"}, "data.source: translation needs pairs"),
        ({"size": {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 300}}, "3 layers cannot be half"),
        ({"depth": {"like": "raptr", "stages": "2-4"}}, "raptr is not for encoder-decoder"),
        ({"parametrisation": {"like": "mup", "base_hidden": 8}}, "has no rule for an encoder"),
        ({"data": {"source": "pairs", "path": "t.en"}}, "'t.en' does not name both languages"),
        ({"data": {"source": "languages", "tokenizer": "t5"}}, "t5 has no line end"),
        ({"data": {"source": "languages", "layout": "pack"}}, "layout: translation needs layout: pad"),
        ({"data": {"source": "languages", "path": "x"}}, "data.path: has no effect with source: languages"),
        ({"importance": {}}, "importance: is not for encoder-decoder"),
        ({"downstream": {}}, "downstream: is not for encoder-decoder"),
        ({"translation": {"tests": ["newstest2017"]}}, "unknown test set 'newstest2017'; did you mean 'newstest2016'"),
        ({"translation": {"tests": ["mine=t.en"]}}, "'t.en' names no reference"),
        ({"translation": {"tests": ["languages"]}}, "languages has other languages than t.{en,de}"),
        ({"translation": {"tests": ["a=t.{x,y}", "a=u.{x,y}"]}}, "names 'a' more than once"),
    ],
)
def test_what_a_cell_may_not_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments) as error:
        cell_from(values(**changes))
    assert message in str(error.value)


def test_translation_with_a_network_that_reads_both_ways_is_refused() -> None:
    plain = {name: own for name, own in values().items() if name in ("size", "optim")}
    bert = {**plain, "data": "quickstart", "family": "bert", "objective": "mlm", "translation": {}}
    with pytest.raises(InvalidExperiments, match="this network reads the whole row and writes nothing"):
        cell_from(bert)
    with pytest.raises(InvalidExperiments, match="this network has no encoder"):
        cell_from({**plain, "data": "quickstart", "translation": {}})
