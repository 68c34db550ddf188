"""Dropout, whose masks depend on seed, update, row, place, layer and site; documents that do not see each other."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from marks import release_but
from numpy.typing import NDArray
from torch import Tensor

from gpas_cli.data.loader import IGNORED, Batch, CausalReader, Draw
from gpas_cli.data.objective import reader_of
from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.dropout import Dropout
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Resources
from gpas_cli.train.assemble import assemble
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.evaluate import evaluate, evaluate_now
from gpas_cli.train.finetune import recipe_of
from gpas_cli.train.loop import Loop
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

# raised and handled inside torch.compile itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280}
OPTIM = {"lr": 3e-3, "warmup": 1, "steps": 6, "batch": 6, "clip": 1.0}
RATE, SEED, TIME = 0.25, 5, 8


def cell(**more: Any) -> Any:
    data = {"like": "quickstart", "length": TIME}
    usual = {"size": SIZE, "gate": {"like": "gpas", "init": 0.2}, "dropout": RATE, "seed": SEED}
    return cell_from({**usual, "data": data, "optim": OPTIM, **more})


class Rows:
    """The batches of a training: rows of random tokens, full, with padding, or of several documents."""

    def __init__(self, kind: str = "full"):
        self.kind = kind

    def at(self, step: int) -> Batch:
        generator = np.random.default_rng(step)
        inputs, targets = generator.integers(0, 280, (2, OPTIM["batch"], TIME))
        if self.kind == "padded":
            targets[np.arange(TIME) >= generator.integers(1, TIME, OPTIM["batch"])[:, None]] = IGNORED
        starts = generator.random(inputs.shape) < 0.3
        starts[:, 0] = True
        return Batch(inputs, targets, starts=starts if self.kind == "documents" else None)


def loop(kind: str = "full", **more: Any) -> Loop:
    micro_batch = more.pop("micro_batch", OPTIM["batch"])
    resources = Resources(micro_batch=micro_batch, compile="off", **more.pop("resources", {}))
    return assemble(cell(**more), Rows(kind), resources)


def gradients(what: Loop, updates: int = 1) -> dict[str, Tensor]:
    """Return the gradients of the last of some updates of a training."""
    for _ in range(updates):
        what.update()
    return {name: p.grad for name, p in what.network.named_parameters() if p.grad is not None}


# The same masks, written with numpy's unsigned integers.
def mixed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))


def kept(row: int, update: int, layer: int, site: int, width: int) -> NDArray[np.bool_]:
    """Return which elements of a row are kept, (TIME, width)."""
    words = np.random.PCG64(np.random.SeedSequence([0x6D6C6D03, SEED, update, row])).random_raw(TIME)
    keys = mixed(mixed((words >> np.uint64(32)).astype(np.uint32) ^ np.uint32(layer)) ^ np.uint32(site))
    bits = mixed(keys[:, None] ^ mixed(np.arange(width, dtype=np.uint32)))
    return (bits.astype(np.int64) - 2**31) % 2**32 >= RATE * 2**32


def masked(x: Tensor, layer: int, site: int, update: int = 0) -> Tensor:
    masks = np.stack([kept(row, update, layer, site, x.shape[-1]) for row in range(len(x))])
    return torch.as_tensor(masks) * x / (1 - RATE)


def reference_loss(network: Llama, batch: Batch) -> Tensor:
    """Return the loss of the first update of Pre-LN with every mask applied here."""
    decoder = network.model
    x = masked(decoder.embed_tokens(torch.as_tensor(batch.inputs)), Dropout.EMBEDDING, 0)
    positions = decoder.positions(x)
    for number, block in enumerate(decoder.blocks(), 1):
        sites = (Dropout.ATTENTION, Dropout.FEED_FORWARD)
        for site, part in zip(sites, block.sublayers(positions), strict=True):
            changed = replace(part, f=lambda h, part=part, site=site, number=number: masked(part.f(h), number, site))
            x = changed.apply(x)
    logits = network.lm_head(decoder.norm(x)).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, torch.as_tensor(batch.targets).flatten())


def test_gradients_are_those_of_autograd_with_masks_written_by_hand() -> None:
    ours = loop()
    theirs = build(cell().model, seed=SEED)
    loss = reference_loss(theirs, Rows().at(0))
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in theirs.parameters() if p.grad is not None]).norm()
    update = ours.update()
    torch.testing.assert_close(update.loss.cpu(), loss.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(update.grad_norm.cpu(), norm, rtol=1e-6, atol=0)
    bound = (1.0 / (norm + 1e-6)).clamp(max=1)
    for (name, p), q in zip(ours.network.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad * bound, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("kind", ["full", "padded", "documents"])
def test_masks_do_not_depend_on_micro_batches_or_recomputation(kind: str) -> None:
    whole = gradients(loop(kind), 2)
    split = gradients(loop(kind, micro_batch=2, resources={"activation_checkpointing": "blocks"}), 2)
    plain = gradients(loop(kind, dropout=0), 2)
    assert whole.keys() == split.keys()
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-6)
    assert any((plain[name] - whole[name]).norm() > 0.1 * whole[name].norm() for name in whole)


@pytest.mark.parametrize("kind", ["full", "padded", "documents"])
def test_a_row_has_the_same_masks_in_every_form(kind: str) -> None:
    """The keys of a token are those of its row and place, whatever else is computed with it."""
    batch = Rows(kind).at(0)
    found: list[Tensor] = []
    what = loop(kind, micro_batch=3)
    usual = Dropout.in_layer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Dropout, "in_layer", lambda own, n: (found.append(own.keys) if n == 0 else None, usual(own, n))[1]
        )
        what.update()
    expected = []
    for row in range(OPTIM["batch"]):
        words = np.random.PCG64(np.random.SeedSequence([0x6D6C6D03, SEED, 0, row])).random_raw(TIME) >> np.uint64(32)
        length = int((batch.targets[row] != IGNORED).sum())
        expected += words[:length].astype(np.uint32).view(np.int32).tolist()
    assert torch.cat([keys.flatten() for keys in found]).tolist() == expected


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_the_one_asked_for_and_the_mean_stays(rate: float) -> None:
    keys = torch.as_tensor(np.random.default_rng(0).integers(-(2**31), 2**31, (64, 128)).astype(np.int32))
    x = torch.ones(64, 128, 96)
    y = Dropout(rate, keys).in_layer(3)(x, Dropout.ATTENTION)
    count = x.numel()
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert float((y == 0).double().mean()) == pytest.approx(rate, abs=4 * deviation)
    assert y[y > 0].unique().tolist() == pytest.approx([1 / (1 - rate)])
    assert float(y.double().mean()) == pytest.approx(1, abs=4 * deviation / (1 - rate))
    # Neither a feature nor a token has a rate of its own: the means have the variance of independent draws.
    for dimension in ((0, 1), 2):
        means = (y == 0).double().mean(dimension).flatten()
        expected = rate * (1 - rate) * len(means) / count
        assert float(means.var()) == pytest.approx(expected, rel=5 * (2 / len(means)) ** 0.5)


def test_masks_of_other_layers_sites_updates_rows_and_seeds_are_others() -> None:
    def keys(seed: int, update: int, row: int) -> Tensor:
        words = Draw.dropout(seed, update).words(row, 512) >> np.uint64(32)
        return torch.as_tensor(words.astype(np.uint32).view(np.int32))[None]

    def mask(seed: int, update: int, row: int, layer: int, site: int) -> Tensor:
        return Dropout(0.5, keys(seed, update, row)).in_layer(layer)(torch.ones(1, 512, 64), site) > 0

    first = (1, 1, 1, 1, 0)
    others = [(2, 1, 1, 1, 0), (1, 2, 1, 1, 0), (1, 1, 2, 1, 0), (1, 1, 1, 2, 0), (1, 1, 1, 1, 1), (1, 1, 1, 0, 1)]
    assert torch.equal(mask(*first), mask(*first))
    for other in others:
        agreement = float((mask(*first) == mask(*other)).double().mean())
        assert agreement == pytest.approx(0.5, abs=4 * 0.5 / (512 * 64) ** 0.5), other


def test_a_compiled_network_has_the_same_masks_and_one_graph(counter: Any) -> None:
    compiled, plain = loop(), loop()
    compile_layers(compiled.network, counter)
    torch.testing.assert_close(gradients(compiled, 2), gradients(plain, 2), rtol=1e-5, atol=1e-8)
    assert counter.frame_count == 2  # of all layers, and of the final norm


@pytest.mark.release
def test_inductor_computes_the_same_masks() -> None:
    torch._dynamo.reset()
    keys = torch.as_tensor(np.random.default_rng(0).integers(-(2**31), 2**31, (8, 40)).astype(np.int32))
    x = torch.ones(8, 40, 33)
    apply = torch.compile(lambda x, keys: Dropout(0.3, keys)(x, 1), fullgraph=True)
    assert torch.equal(apply(x, keys), Dropout(0.3, keys)(x, 1))


def test_an_evaluation_has_no_dropout() -> None:
    dropping, plain = loop(), loop(dropout=0)
    batches = [Rows().at(100)]
    assert evaluate_now(dropping, batches, 1.0) == evaluate_now(plain, batches, 1.0)


@pytest.mark.parametrize("norm", release_but(SCHEMES, "sandwich"))
def test_every_scheme_trains_with_dropout(norm: str) -> None:
    what, plain = loop(norm=norm), loop(norm=norm, dropout=0)
    one, two = float(what.update().loss), float(plain.update().loss)
    assert np.isfinite(one)
    assert one != two


def test_no_dropout_leaves_the_key_and_a_rate_changes_it() -> None:
    plain = {"size": SIZE, "data": "quickstart", "optim": OPTIM, "finetune": {}}
    assert cell_from(plain).key == cell_from({**plain, "dropout": 0}).key
    finetuned = {**plain, "finetune": {"dropout": 0.0}}
    assert cell_from(plain).key == cell_from(finetuned).key
    keys = {cell_from({**plain, "dropout": rate}).stages[0].key for rate in (0, 0.1, 0.2)}
    assert len(keys) == 3
    dropping = cell_from({**plain, "finetune": {"dropout": 0.1}})
    assert dropping.stages[0] == cell_from(plain).stages[0]
    assert dropping.key != cell_from(plain).key


def test_finetuning_has_a_rate_of_its_own() -> None:
    plain = {"size": SIZE, "data": "quickstart", "optim": OPTIM, "dropout": 0.3}
    assert recipe_of(cell_from({**plain, "finetune": {}}), 64).dropout == 0
    assert recipe_of(cell_from({**plain, "finetune": {"dropout": 0.1}}), 64).dropout == 0.1


END = 0
CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)
DOCUMENT_SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
READER = CausalReader(END)
FAMILIES = [{}, {"positions": "learned", "context": 16}, {"qk_norm": "head"}]


def batch(step: int = 0) -> Batch:
    """Rows of 12 tokens to predict: of three documents, of one, of two, and with a document of its end alone."""
    tokens = np.random.default_rng(step).integers(1, 50, (4, 13))
    for row, place in ((0, 3), (0, 8), (2, 10), (3, 0), (3, 5)):
        tokens[row, place] = END
    return READER.batch(tokens, np.full(4, 13), np.arange(4), Draw.training(0, step))


def network(family: dict[str, object]) -> Llama:
    return build(parse_model({"size": DOCUMENT_SIZE, "gate": {"init": 0.2}, "family": family}), dtype=torch.float64)


def logits(made: Llama, own: Batch) -> Tensor:
    """Return the logits of all rows, (rows * time, vocab)."""
    rows = DeviceRows.of(own.inputs, own.targets, CPU, own.prefix, own.starts)
    return made(rows.inputs, rows.packing)[0].detach()  # type: ignore[no-any-return]


def documents(own: Batch) -> list[slice]:
    """Return the places of each document in the flattened rows."""
    first = [*np.flatnonzero(own.starts).tolist(), own.starts.size]
    return [slice(*pair) for pair in itertools.pairwise(first)]


def test_documents_begin_after_an_end_and_with_a_row() -> None:
    found = [(place.start // 12, place.start % 12, place.stop - place.start) for place in documents(batch())]
    assert found == [
        (0, 0, 4), (0, 4, 5), (0, 9, 3), (1, 0, 12), (2, 0, 11), (2, 11, 1), (3, 0, 1), (3, 1, 5), (3, 6, 6),
    ]  # fmt: skip


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
    assert (whole["loss"], whole["tokens"]) == (pytest.approx(parts["loss"], rel=1e-12), 2 * 4 * 12)
    joined = [Batch(b.inputs, b.targets) for b in (batch(0), batch(1))]
    assert evaluate(made, joined, FP32, 4.0)["loss"] != pytest.approx(whole["loss"], rel=1e-6)


VALUES = {
    "size": {**DOCUMENT_SIZE, "vocab": 300}, "gate": "gpas", "precision": "fp32",
    "optim": {"lr": 1e-2, "warmup": 1, "steps": 4, "batch": 4},
    "data": {"source": "stdlib", "tokenizer": "bpe", "layout": "pack", "length": 12, "documents": "separate"},
}  # fmt: skip


def document_cell(**data: object) -> Cell:
    return cell_from({**VALUES, "data": {**VALUES["data"], **data}})  # type: ignore[dict-item]


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_every_batch_has_the_same_graphs(counter: Any) -> None:
    made = build(parse_model({"size": DOCUMENT_SIZE}))
    compile_layers(made, counter)
    rows = np.random.default_rng(0).integers(1, 50, (4, 13))  # of one document each
    whole = READER.batch(rows, np.full(4, 13), np.arange(4), Draw.training(0, 0))
    for own in (batch(0), whole, batch(1).part(slice(0, 3))):
        summed_loss(made, DeviceRows.of_batch(own, slice(None), CPU), FP32).backward()
    assert counter.frame_count == 2


def test_the_setting_selects_the_reader_and_changes_the_key() -> None:
    assert isinstance(reader_of(document_cell()), CausalReader)
    assert (
        reader_of(document_cell()).batch(np.ones((1, 13), np.int64), np.array([13]), np.arange(1), None).starts
        is not None
    )  # type: ignore[arg-type]
    assert reader_of(document_cell(documents="joined")).end_id is None  # type: ignore[attr-defined]
    separate, joined = document_cell(), document_cell(documents="joined")
    unset = cell_from({**VALUES, "data": {k: v for k, v in VALUES["data"].items() if k != "documents"}})  # type: ignore[attr-defined]
    assert separate.key != joined.key == unset.key


@cases("train/cases.yaml")
def test_it_is_refused_where_it_has_no_effect(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidExperiments, match=message):
        cell_from({**VALUES, **changes})


def test_finetuning_joins_its_examples() -> None:
    made = cell_from({**VALUES, "finetune": {"data": "commonsense"}})
    assert recipe_of(made, 8).data.documents == "joined"
