"""Training an encoder and a decoder on pairs: resumption, the layers that are watched, and what a cell may not be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from together import run

from gpas_cli.checkpoints import newest_first, path_of, step_of
from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.model.llama import build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.assemble import load_trained
from gpas_cli.train.parallel import ALONE

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 300}


def averaging(**section: Any) -> dict[str, Any]:
    return {"translation": {"tests": ["mine=v.{en,de}"], **section}}


SHALLOW = {**SIZE, "layers": 2}


def values(**more: Any) -> dict[str, Any]:
    return {
        "size": SIZE,
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
    declared = values(size=SHALLOW)
    declared["data"] |= {"batches": batches}
    declared["optim"] |= {"label_smoothing": 0.1, "steps": 4}
    declared["objective"] = {"like": "translation", "word_dropout": 0.1}
    straight = run(pairs, ["straight", declared, {"micro_batch": 3}, [], 10**6], ALONE)
    run(pairs, ["first", declared, {"micro_batch": 3}, [], 2], ALONE)
    second = run(pairs, ["second", declared, {"micro_batch": 3}, ["first"], 10**6], ALONE)
    other = run(pairs, ["other", declared, {"micro_batch": 5}, [], 10**6], ALONE)
    assert [e["loss"] for e in other["step"]] == pytest.approx([e["loss"] for e in straight["step"]], rel=1e-5)
    assert [(e["loss"], e["grad_norm"]) for e in second["step"]] == [
        (e["loss"], e["grad_norm"]) for e in straight["step"][2:]
    ]
    assert second["evaluation"][-1] == straight["evaluation"][-1]
    assert straight["evaluation"][-1]["translation_loss"] > 0
    assert straight["outcome"]["metrics"].keys() >= {"translation_loss", "translation_perplexity"}


def test_the_mean_of_the_last_weights_is_that_of_their_files_and_the_same_after_a_resumption(pairs: Path) -> None:
    """In float64, rounded once. The checkpoints are written and kept where the training keeps two, of even updates."""
    declared = values(size=SHALLOW, **averaging(average=3, average_every=1))
    cell = cell_from(declared)
    averaged = cell.parameters("translation").averaged(6)
    assert averaged == (4, 5, 6)
    run(pairs, ["straight", declared, {"keep": averaged}, [], 10**6], ALONE)
    run(pairs, ["first", declared, {"keep": averaged}, [], 5], ALONE)
    run(pairs, ["second", declared, {"keep": averaged}, ["first"], 10**6], ALONE)
    left = {name: sorted(map(step_of, newest_first([pairs / name]))) for name in ("straight", "first", "second")}
    assert left == {"straight": [4, 5, 6], "first": [4, 5], "second": [6]}
    straight = [path_of(pairs / "straight", update) for update in averaged]
    pieces = [path_of(pairs / "first", 4), path_of(pairs / "first", 5), path_of(pairs / "second", 6)]
    files = [load_file(path / "00000.safetensors") for path in straight]
    found, again = (load_trained(cell, paths) for paths in (straight, pieces))
    assert (found.position.step, again.position.step) == (6, 6)
    for name, weight in found.network.state_dict().items():
        mean = np.mean([file[f"network/{name}"].astype(np.float64) for file in files], 0)
        assert np.array_equal(weight.numpy(), mean.astype(np.float32)), name
        assert torch.equal(weight, again.network.state_dict()[name]), name
    last = load_trained(cell, straight[-1]).network.state_dict()
    assert not torch.equal(last["model.norm.weight"], found.network.state_dict()["model.norm.weight"])


def test_how_weights_are_averaged_belongs_to_the_key_of_the_translations_alone() -> None:
    def keys(**section: Any) -> list[str]:
        two = {"tests": ["a=t.{en,de}", "b=v.{en,de}"], **section}
        return [stage.key for stage in cell_from(values(translation=two)).stages]

    usual, averaged = keys(), keys(average=2)
    assert usual[0] == averaged[0]
    assert len({usual[1], averaged[1], keys(average=2, average_every=2)[1], keys(length_penalty=[0.6, 1])[1]}) == 4
    assert averaged == keys(average=2, average_every=1), "a hundredth of six updates"
    assert usual == keys(average_every=5) == keys(length_penalty=[0.6, 0.6])


def test_every_layer_of_both_stacks_is_watched(pairs: Path) -> None:
    events = run(pairs, ["watched", values(), {}, [], 1], ALONE)
    series = events["layers"][0]["values"]
    assert len(series["activation_variance"]) == 5, "what enters each layer and the last norm"
    assert len(series["gate"]) == len(series["grad_norm"]) == 4
    assert None not in series["block_cosine"]
    assert len(series["block_cosine"]) == 4


def test_compiled_layers_are_refused(pairs: Path) -> None:
    with pytest.raises(GpasError, match="compile: on is not for encoder-decoder"):
        run(pairs, ["compiled", values(), {"compile": "on"}, [], 10**6], ALONE)


def test_parameters_are_counted() -> None:
    """Matrices and tables as `spec.cost` counts them, and with a decoder of another depth."""
    assert_counted(cell_from(values()))
    assert_counted(cell_from(values(size={**SIZE, "layers": 7, "decoder_layers": 2})))


def assert_counted(cell: Cell) -> None:
    named = build(cell.model).named_parameters()
    matrices = [p for name, p in named if p.dim() == 2]
    assert sum(p.numel() for p in matrices) == parameters(cell)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "causal"}, "objective: causal is not for encoder-decoder; write objective: translation"),
        ({"family": "gpt"}, "translation needs family: encoder-decoder"),
        ({"data": "quickstart"}, "data.source: translation needs pairs"),
        ({"size": {**SIZE, "layers": 3}}, "3 layers cannot be half"),
        ({"size": {**SIZE, "decoder_layers": 4}}, "4 of 4 layers leave none for the encoder; at most 3"),
        ({"size": {**SIZE, "decoder_layers": 2}, "family": "gpt"}, "decoder_layers: needs family: encoder-decoder"),
        (
            averaging(average=3, average_every=3),
            "3 with average_every: 3 needs 7 updates, and the training has 6; at most 2",
        ),
        (averaging(average=7), "at most 6, or a smaller average_every"),
        (averaging(length_penalty=[1, 2, 3]), "has 3 values for 1 test sets; write one for all, or one for each"),
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
