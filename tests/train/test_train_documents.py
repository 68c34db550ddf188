"""With `data.documents: separate` the tokens of a packed row attend only to their own document."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpas_cli.data.loader import Batch, CausalReader, Draw
from gpas_cli.data.objective import untokenised_reader
from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.finetune import recipe_of
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

END = 0
CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
READER = CausalReader(END)
FAMILIES = [{}, {"positions": "learned", "context": 16}, {"qk_norm": "head"}]


def batch(step: int = 0) -> Batch:
    """Rows of 12 tokens to predict: of three documents, of one, of two, and with a document of its end alone."""
    tokens = np.random.default_rng(step).integers(1, 50, (4, 13))
    for row, place in ((0, 3), (0, 8), (2, 10), (3, 0), (3, 5)):
        tokens[row, place] = END
    return READER.batch(tokens, np.full(4, 13), np.arange(4), Draw.training(0, step))


def network(family: dict[str, object]) -> Llama:
    return build(parse_model({"size": SIZE, "gate": {"init": 0.2}, "family": family}), dtype=torch.float64)


def logits(made: Llama, own: Batch) -> Tensor:
    """Return the logits of all rows, (rows * time, vocab)."""
    rows = DeviceRows.of(own.inputs, own.targets, CPU, own.prefix, own.starts)
    return made(rows.inputs, rows.packing)[0].detach()  # type: ignore[no-any-return]


def documents(own: Batch) -> list[slice]:
    """Return the places of each document in the flattened rows."""
    assert own.starts is not None
    first = [*np.flatnonzero(own.starts).tolist(), own.starts.size]
    return [slice(*pair) for pair in itertools.pairwise(first)]


def test_documents_begin_after_an_end_and_with_a_row() -> None:
    found = [(place.start // 12, place.start % 12, place.stop - place.start) for place in documents(batch())]
    assert found == [
        (0, 0, 4),
        (0, 4, 5),
        (0, 9, 3),
        (1, 0, 12),
        (2, 0, 11),
        (2, 11, 1),
        (3, 0, 1),
        (3, 1, 5),
        (3, 6, 6),
    ]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_logits_of_a_document_are_those_of_the_document_alone(family: dict[str, object]) -> None:
    made = network(family)
    together = logits(made, batch())
    inputs = torch.from_numpy(batch().inputs.ravel())
    for place in documents(batch()):
        alone = made(inputs[None, place])[0]
        torch.testing.assert_close(together[place], alone.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_change_in_a_document_moves_no_logit_of_another(family: dict[str, object]) -> None:
    made = network(family)
    own = batch()
    for place in documents(own):
        inputs = own.inputs.copy()
        flat = inputs.ravel()
        flat[place] = np.where(flat[place] == END, END, 1 + flat[place] % 49)
        moved = (logits(made, Batch(inputs, own.targets, starts=own.starts)) != logits(made, own)).any(1).numpy()
        assert not np.delete(moved, place).any()
        assert moved[place][: (flat[place] != END).sum()].all()


def test_the_loss_and_its_gradients_are_those_of_the_documents_one_by_one() -> None:
    made = network({})
    own = batch()
    summed_loss(made, DeviceRows.of_batch(own, slice(None), CPU), FP32).backward()
    together = {name: p.grad for name, p in made.named_parameters()}
    made.zero_grad()
    flat = own.inputs.ravel(), own.targets.ravel()
    for place in documents(own):
        summed_loss(made, DeviceRows.of(*(a[None, place] for a in flat), CPU), FP32).backward()
    for name, p in made.named_parameters():
        torch.testing.assert_close(together[name], p.grad, rtol=1e-9, atol=1e-12)


def test_micro_batches_and_evaluations_give_the_same_loss() -> None:
    made = network({})
    whole, parts = (evaluate(made, [batch(0), batch(1)], FP32, 4.0, micro_batch=rows) for rows in (0, 3))
    assert whole["loss"] == pytest.approx(parts["loss"], rel=1e-12)
    assert whole["tokens"] == 2 * 4 * 12
    joined = [Batch(b.inputs, b.targets) for b in (batch(0), batch(1))]
    assert evaluate(made, joined, FP32, 4.0)["loss"] != pytest.approx(whole["loss"], rel=1e-6)


VALUES = {
    "size": {**SIZE, "vocab": 300}, "gate": "gpas", "precision": "fp32",
    "optim": {"lr": 1e-2, "warmup": 1, "steps": 4, "batch": 4},
    "data": {"source": "stdlib", "tokenizer": "bpe", "layout": "pack", "length": 12, "documents": "separate"},
}  # fmt: skip


def cell(**data: object) -> Cell:
    return cell_from({**VALUES, "data": {**VALUES["data"], **data}})  # type: ignore[dict-item]


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_every_batch_has_the_same_graphs(counter: Any) -> None:
    made = build(parse_model({"size": SIZE}))
    compile_layers(made, counter)
    rows = np.random.default_rng(0).integers(1, 50, (4, 13))  # of one document each
    whole = READER.batch(rows, np.full(4, 13), np.arange(4), Draw.training(0, 0))
    for own in (batch(0), whole, batch(1).part(slice(0, 3))):
        summed_loss(made, DeviceRows.of_batch(own, slice(None), CPU), FP32).backward()
    assert counter.frame_count == 2


def test_the_setting_selects_the_reader_and_changes_the_key() -> None:
    assert isinstance(untokenised_reader(cell()), CausalReader)
    assert (
        untokenised_reader(cell()).batch(np.ones((1, 13), np.int64), np.array([13]), np.arange(1), None).starts
        is not None
    )  # type: ignore[arg-type]
    assert untokenised_reader(cell(documents="joined")).end_id is None  # type: ignore[attr-defined]
    separate, joined = cell(), cell(documents="joined")
    unset = cell_from({**VALUES, "data": {k: v for k, v in VALUES["data"].items() if k != "documents"}})  # type: ignore[attr-defined]
    assert separate.key != joined.key == unset.key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {**VALUES["data"], "layout": "pad"}}, "a row is one document already"),  # type: ignore[dict-item]
        ({"objective": "mlm"}, "needs objective: causal"),
        ({"data": {**VALUES["data"], "documents": "seperate"}}, "separate"),  # type: ignore[dict-item]
    ],
)
def test_it_is_refused_where_it_has_no_effect(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidExperiments, match=message):
        cell_from({**VALUES, **changes})


def test_finetuning_joins_its_examples() -> None:
    made = cell_from({**VALUES, "finetune": {"data": "commonsense"}})
    assert recipe_of(made, 8).data.documents == "joined"
