"""Masked language models and translation: what the loss counts, what tokens see, resuming, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from documents import write_documents
from safetensors.numpy import load_file
from test_train_run import final_tensors, go, paths_in
from together import run
from torch import Tensor
from wide_tokenizer import VOCAB, write

from gpas_cli.checkpoints import newest_first, path_of, step_of
from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.data.prepare import cached
from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.train.assemble import load_trained
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import micro_batches
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import RunPaths

STEPS = 12
CADENCE = Cadence(log_every=1, stats_every=5, eval_every=5, checkpoint_every=5)
CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)
UL2 = {"like": "ul2", "sentinels": 8}
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 280}
ROWS, TIME = 5, 12
LENGTHS = np.array([12, 3, 7, 1, 12])


@pytest.fixture(scope="module", params=["llama", "gpt"])
def network(request: pytest.FixtureRequest) -> Llama:
    return build(parse_model({"size": SIZE, "family": request.param, "gate": "gpas"}), seed=3)


def corrupted(lengths: np.ndarray, seed: int = 0) -> Batch:
    """Return a batch of rows of these lengths with a few targets."""
    draws = np.random.default_rng(seed)
    inputs = draws.integers(0, 280, (len(lengths), TIME))
    chosen = (draws.random(inputs.shape) < 0.3) & (np.arange(TIME) < lengths[:, None])
    chosen[0, 0] = True
    return Batch(inputs, np.where(chosen, draws.integers(0, 280, inputs.shape), IGNORED), prefix=lengths)


def loss_of(network: Llama, batch: Batch, micro_batch: int = 100, size: int = 1) -> Tensor:
    """Return the sum of the losses of all parts that `size` processes would compute."""
    total = torch.zeros(())
    for rank in range(size):
        for part, weight in micro_batches(batch.targets, micro_batch, world=World(rank, size, rank)):
            rows = DeviceRows.of_batch(batch, part, CPU)
            total = total + summed_loss(network, rows, FP32, weight)
    return total


def by_hand(network: Llama, batch: Batch) -> Tensor:
    """Return the mean loss of the targets, row by row without padding, from the logits of whole rows."""
    losses = []
    for inputs, targets, length in zip(batch.inputs, batch.targets, batch.prefix, strict=True):  # type: ignore[arg-type]
        alone = Batch(inputs[None, :length], targets[None, :length], prefix=np.array([length]))
        rows = DeviceRows.of(alone.inputs, alone.targets, CPU, alone.prefix)
        logits = network(rows.inputs, rows.packing, visible=rows.visible)[0]
        wanted = torch.from_numpy(targets[:length])
        counts = wanted != IGNORED
        losses.append(torch.nn.functional.cross_entropy(logits[counts], wanted[counts], reduction="sum"))
    return torch.stack(losses).sum() / batch.predicted


@pytest.mark.parametrize("lengths", [np.full(ROWS, TIME), LENGTHS], ids=["packed", "padded"])
def test_the_loss_is_that_of_the_chosen_places(network: Llama, lengths: np.ndarray) -> None:
    batch = corrupted(lengths)
    ours = loss_of(network, batch)
    assert ours.item() == pytest.approx(by_hand(network, batch).item(), rel=1e-5)
    elsewhere = Batch(batch.inputs, np.where(batch.targets == IGNORED, IGNORED, 5), prefix=lengths)
    assert loss_of(network, elsewhere).item() != ours.item()


@pytest.mark.parametrize("lengths", [np.full(ROWS, TIME), LENGTHS], ids=["packed", "padded"])
@pytest.mark.parametrize(("micro_batch", "size"), [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_the_split_changes_no_gradient(network: Llama, lengths: np.ndarray, micro_batch: int, size: int) -> None:
    batch = corrupted(lengths)
    network.zero_grad()
    whole = loss_of(network, batch)
    whole.backward()  # type: ignore[no-untyped-call]
    expected = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    split = loss_of(network, batch, micro_batch, size)
    split.backward()  # type: ignore[no-untyped-call]
    assert split.item() == pytest.approx(whole.item(), rel=1e-5)
    found = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


@torch.no_grad()
def test_a_later_token_moves_an_earlier_logit_only_when_masked(network: Llama) -> None:
    batch = corrupted(np.full(ROWS, TIME))
    changed = batch.inputs.copy()
    changed[:, -1] = (changed[:, -1] + 1) % 280
    for prefix, moved in ((batch.prefix, True), (None, False)):
        rows, others = (
            DeviceRows.of(inputs, np.zeros_like(batch.targets), CPU, prefix) for inputs in (batch.inputs, changed)
        )
        before, after = (network(own.inputs, own.packing, visible=own.visible) for own in (rows, others))
        difference = (before - after)[:, :-1].abs().amax((1, 2))
        assert (difference > 1e-6).all() if moved else (difference == 0).all()


@torch.no_grad()
def test_padding_is_not_seen(network: Llama) -> None:
    batch = corrupted(LENGTHS)
    inputs = batch.inputs.copy()
    inputs[np.arange(TIME) >= LENGTHS[:, None]] = 7
    assert loss_of(network, Batch(inputs, batch.targets, LENGTHS)).item() == loss_of(network, batch).item()


@torch.no_grad()
def test_inputs_see_each_other_and_targets_only_what_precedes_them(network: Llama) -> None:
    """Prefix attention: row 0 has inputs up to 5 and targets after them."""
    prefix = np.array([5, 12])
    tokens = np.random.default_rng(0).integers(0, 280, (2, TIME))

    def logits(inputs: np.ndarray) -> Tensor:
        rows = DeviceRows.of(inputs, np.zeros_like(inputs), CPU, prefix)
        return network(rows.inputs, rows.packing, visible=rows.visible)[0]

    def moved(place: int) -> list[int]:
        changed = tokens.copy()
        changed[:, place] = (changed[:, place] + 1) % 280
        return (logits(changed) - logits(tokens)).abs().amax(1).gt(1e-9).nonzero().flatten().tolist()

    assert moved(4) == moved(0) == list(range(TIME))
    assert moved(5) == list(range(5, TIME))
    assert moved(9) == list(range(9, TIME))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    make_deterministic(1)
    write_documents(folder := tmp_path_factory.mktemp("text"), [5 + 7 * (i % 30) for i in range(60)])
    return paths_in(folder)


def cell(layout: str, seed: int = 1, **values: Any) -> Cell:
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": layout, "length": 16, "eval_tokens": 400}
    optim = {"lr": 0.01, "warmup": 3, "steps": STEPS, "batch": 4}
    fixed = {"size": SIZE, "data": data, "optim": optim, "seed": seed}
    return cell_from({**fixed, "objective": "mlm", "gate": "gpas", **values})


@pytest.mark.parametrize("wide", [False, True], ids=["two bytes", "four bytes"])
@pytest.mark.parametrize(
    ("layout", "objective", "metric"), [("pack", "mlm", "masked_"), ("pad", UL2, "denoising_"), ("pack", "causal", "")]
)
def test_resumed_bits_are_equal(
    paths: RunPaths, tmp_path: Path, layout: str, objective: Any, metric: str, wide: bool
) -> None:
    what = cell(layout, objective=objective)
    if wide:
        data = replace(what.data, tokenizer=str(write(tmp_path)))
        what = cell(layout, objective=objective, size={**SIZE, "vocab": VOCAB}, data=plain(data))
    straight, events = go(paths, tmp_path / "straight", what, cadence=CADENCE)
    go(paths, tmp_path / "first", what, 7)
    resumed, rest = go(paths, tmp_path / "second", what, earlier=[tmp_path / "first"], cadence=CADENCE)
    assert straight.outcome == resumed.outcome == "done"
    ours, theirs = final_tensors(tmp_path / "straight"), final_tensors(tmp_path / "second")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    names = (f"{metric}loss", f"{metric}perplexity", "train_tokens")
    assert [straight.metrics[name] for name in names] == [resumed.metrics[name] for name in names]
    losses = {event["step"]: event["loss"] for event in events.of("step")}
    assert all(event["loss"] == losses[event["step"]] for event in rest.of("step"))
    assert losses[STEPS] < losses[1] - 0.5
    (shards,) = cached(what.data, what.text_vocab, paths.cache, root=paths.root, rows=1) or ()
    assert {shard.kind.itemsize for shard in shards["train"]} == {4 if wide else 2}


def test_a_masked_network_reports_masked_numbers_only(paths: RunPaths, tmp_path: Path) -> None:
    outcome, events = go(paths, tmp_path, cell("pack"), cadence=CADENCE)
    assert {"masked_loss", "masked_perplexity"} <= outcome.metrics.keys()
    assert not {"loss", "perplexity", "bits_per_byte", "loss_reference"} & outcome.metrics.keys()
    evaluations = events.of("evaluation")
    assert [event["step"] for event in evaluations] == [5, 10, 12]
    assert all(event["masked_loss"] and not {"loss", "perplexity"} & event.keys() for event in evaluations)
    assert outcome.metrics["train_tokens"] == STEPS * 4 * 16


def test_evaluations_corrupt_the_text_in_the_same_way_in_every_training(paths: RunPaths, tmp_path: Path) -> None:
    """Two seeds and two processes' worth of micro-batches are scored at the same places."""
    few = {"lr": 0.01, "warmup": 1, "steps": 3, "batch": 4}
    first, second = (
        go(paths, tmp_path / str(seed), cell("pad", seed, optim=few), resources=Resources(micro_batch=seed))[0]
        for seed in (1, 3)
    )
    assert first.metrics["tokens"] == second.metrics["tokens"] > 10
    assert first.metrics["masked_loss"] != second.metrics["masked_loss"]


TRANSLATOR = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 300}


def averaging(**section: Any) -> dict[str, Any]:
    return {"translation": {"tests": ["mine=v.{en,de}"], **section}}


SHALLOW = {**TRANSLATOR, "layers": 2}


def values(**more: Any) -> dict[str, Any]:
    return {
        "size": TRANSLATOR, "family": "encoder-decoder", "objective": "translation", "norm": "deepnorm", "gate": "gpas",
        "embed": "scaled", "dropout": 0.1,
        "data": {"source": "pairs", "path": "t.{en,de}", "validation": "v.{en,de}", "length": 48, "eval_tokens": 300},
        "optim": {"lr": 1e-2, "warmup": 1, "steps": 6, "batch": 8, "schedule": "inverse-sqrt"}, **more,
    }  # fmt: skip


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
    assert_counted(cell_from(values(size={**TRANSLATOR, "layers": 7, "decoder_layers": 2})))


def assert_counted(cell: Cell) -> None:
    named = build(cell.model).named_parameters()
    matrices = [p for name, p in named if p.dim() == 2]
    assert sum(p.numel() for p in matrices) == parameters(cell)


@cases("train/cases.yaml")
def test_what_a_cell_may_not_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments) as error:
        cell_from(values(**changes))
    assert message in str(error.value)
