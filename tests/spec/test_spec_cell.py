"""Cells: round trip, keys, canonical spellings, every problem at once."""

import itertools
import json
import math
from typing import Any

import pytest
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import cell_from

RECIPE = {"lr": 1.5e-3, "warmup": 60, "steps": 600, "batch": 16}
PADDED = {"like": "quickstart", "layout": "pad"}
XAVIER_ALL = {"preset": "xavier", "everywhere": True}
FILES = {"source": "files", "path": "text/*.txt", "tokenizer": "bpe", "length": 64, "eval_tokens": 2000}


def cell(**values: object) -> Cell:
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": RECIPE, **values})


def problems(**values: object) -> list[str]:
    with pytest.raises(InvalidExperiments) as caught:
        cell(**values)
    return [str(problem) for problem in caught.value.problems]


def test_round_trip_through_json() -> None:
    activations = itertools.cycle(ALL_ACTIVATIONS)
    for (scheme, site), activation in zip(itertools.product(SCHEMES, _SITES), activations, strict=False):
        gate = {"activation": activation, "site": site, "init": 0.1, "share": "sublayer"}
        original = cell(norm=scheme, gate=gate, seed=7)
        again = cell_from(json.loads(json.dumps(original.to_mapping())))
        assert again == original, (scheme, site, activation)
        assert again.key == original.key, (scheme, site, activation)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"norm": "pre", "gate": {"site": "home"}}, {"norm": "pre", "gate": {"site": "after-sublayer"}}),
        ({"norm": "sandwich", "gate": {"site": "home"}}, {"norm": "sandwich", "gate": {"site": "after-sublayer"}}),
        ({"norm": "post", "gate": "gpas"}, {"norm": "post", "gate": {"site": "before-sublayer-shortcut"}}),
        ({"norm": {"scheme": "mix"}}, {"norm": {"scheme": "mix", "post_fraction": 0.25}}),
        ({"gate": {"init": 0.1}}, {"gate": {"init": [0.1] * 12}}),
        ({"gate": {"init": 0.1, "learnable": False}}, {"gate": {"init": 0.1, "learnable": False, "share": "sublayer"}}),
        ({"gate": "none"}, {"gate": None, "optim": {**RECIPE, "clip_gates": 0.01}}),
        ({"embed": "plain"}, {"embed": {"detach_gamma": 0.5}}),
        ({"embed": "scaled"}, {"embed": {"like": "scaled", "multiplier": math.sqrt(32)}}),
        ({"init": XAVIER_ALL}, {"init": {**XAVIER_ALL, "std": 0.5, "embed_std": 0.1}}),
        ({"gate": "gpas"}, {"gate": "gpas", "optim": {**RECIPE, "clip_over": "others"}}),
        ({"optim": {**RECIPE, "clip": 1}}, {"optim": {**RECIPE, "clip": 1, "clip_over": "others"}}),
        ({"data": PADDED}, {"data": PADDED, "optim": {**RECIPE, "mean_rows": 16}}),
        ({}, {"optim": {**RECIPE, "stop": 600}}),
        ({}, {"optim": {**RECIPE, "validation_rows": 16}}),
        ({"seed": 42}, {}),
        ({"init": "normal"}, {"init": {"preset": "normal", "std": 0.02}}),
    ],
)
def test_two_spellings_of_one_network_have_one_key(one: dict, other: dict) -> None:
    assert cell(**one).key == cell(**other).key


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "lns"},
        {"norm": {"scheme": "lns", "apply": "scale"}},
        {"gate": "gpas"},
        {"gate": {"activation": "tanh"}},
        {"gate": {"site": "after-module"}},
        {"gate": {"stop_gradient": False}},
        {"gate": {"share": "sublayer"}},
        {"seed": 1},
        {"precision": "bf16"},
        {"embed": "scaled"},
        {"embed": {"like": "scaled", "multiplier": 5}},
        {"init": {"preset": "xavier", "everywhere": True}},
        {"init": {"std": 0.08}},
        {"size": {"like": "quickstart", "layers": 6}},
        {"data": {"like": "quickstart", "length": 32}},
        {"optim": {**RECIPE, "lr": 1e-3}},
        {"gate": "gpas", "optim": {**RECIPE, "clip": 1, "clip_over": "others"}},
        {"data": PADDED, "optim": {**RECIPE, "mean_rows": 8}},
        {"optim": {**RECIPE, "stop": 599}},
        {"optim": {**RECIPE, "validation_rows": 8}},
    ],
)
def test_every_setting_that_can_change_the_result_changes_the_key(change: dict) -> None:
    assert cell(**change).key != cell().key
    if "optim" in change and len(change) > 1:
        assert cell(**change).key != cell(**{**change, "optim": RECIPE}).key


def test_a_scheme_sets_the_default_initialisation() -> None:
    assert cell(norm="deepnorm").model.init.preset == "deepnorm"
    assert cell(norm="deepnorm", init="normal").model.init.preset == "normal"
    assert cell(norm="pre").model.init.preset == "normal"


def test_every_problem_is_reported_at_once() -> None:
    found = problems(size="quickstrt", gate={"activation": "rely"}, sede=1, optim={**RECIPE, "lr": 0, "batch": True})
    assert "size: unknown size 'quickstrt'; did you mean 'quickstart'?" in found
    assert "gate.activation: unknown value 'rely'; did you mean 'relu'?" in found
    assert "sede: unknown key 'sede'; did you mean 'seed'?" in found
    assert any(line.startswith("optim.lr: 0.0 is too small") for line in found)
    assert "optim.batch: true is not a whole number" in found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gate": {"activation": "relu"}}, "never changes"),
        ({"norm": "deepnorm", "gate": {"site": "after-sublayer"}}, "removes any scale"),
        ({"gate": {"init": [0.1, 0.2]}}, "2 values for 12 layers"),
        ({"gate": {"activation": "relu", "init": []}}, "0 values for 12 layers"),
        ({"gate": "nome"}, "did you mean 'none'?"),
        ({"gate": {"like": "none", "activation": "tanh"}}, "has no effect"),
        ({"norm": {"scheme": "mix", "post_fraction": 0.01}}, "which is the scheme 'pre'"),
        ({"norm": {"scheme": "mix", "post_fraction": 1}}, "which is the scheme 'post'"),
        (
            {"norm": {"scheme": "mix", "post_fraction": 0.15}, "family": "encoder-decoder", "objective": "translation"},
            "0.15 of 6 and 6 layers is 0 Post-LN layers",
        ),
        ({"size": {"like": "quickstart", "heads": 5}}, "not divisible"),
        (
            {"size": {"like": "quickstart", "heads": 32}},
            "size.heads: rotary positions need an even head dimension, not 1",
        ),
        (
            {"size": {"like": "quickstart", "heads": 5}},
            "32 is not divisible by 5 heads; name the features of a head with",
        ),
        (
            {"size": {"like": "quickstart", "head_dim": 9}},
            "size.head_dim: rotary positions need an even head dimension",
        ),
        ({"size": {"like": "quickstart", "head_dim": 0}}, "size.head_dim: 0 is too small"),
        ({"size": {"like": "quickstart", "head_dim": "wide"}}, "size.head_dim: 'wide' is not a whole number"),
        ({"size": {"like": "quickstart", "vocab": 10_000_001}}, "size.vocab: 10000001 is too large"),
        ({"optim": {**RECIPE, "warmup": 600}}, "not shorter than the 600 steps"),
        ({"optim": {**RECIPE, "lr": float("nan")}}, "not a finite number"),
        ({"optim": {**RECIPE, "stop": 601}}, "601 is after the last of the 600 steps"),
        ({"data": PADDED, "optim": {**RECIPE, "mean_rows": 5}}, "5 does not divide the batch of 16"),
        ({"optim": {**RECIPE, "mean_rows": 8}}, "has no effect with data.layout: pack"),
        ({"data": {"source": "files"}}, "is required with source: files"),
        ({"data": {"source": "hf-files", "path": "owner/texts"}}, "'owner/texts' is not OWNER/NAME:GLOB, such as"),
        ({"data": {"like": "quickstart", "tokenizer": "t5"}}, "pieces; set size.vocab: 32000 or data.tokenizer: bpe"),
        ({"data": "c4"}, "unless set, data is c4 and its tokenizer t5"),
        (
            {"data": {"like": "quickstart", "tokenizer": "gpt2"}},
            "GPT-2's 50257 ids; set size.vocab: 50257 or data.tokenizer: bpe",
        ),
        ({"data": {"like": "quickstart", "validation": "held-out.txt"}}, "needs source: files"),
        ({"data": {**FILES, "validation": "text/*.txt"}}, "names the training text"),
        ({"embed": {"stages": ["scale", "scale"]}}, "names a stage twice"),
        ({"embed": {"multiplier": 5}}, "has no effect without the stage 'scale'"),
        ({"embed": {"like": "scaled", "multiplier": 1}}, "1 has no effect"),
        ({"embed": {"like": "scaled", "multiplier": 0}}, "must be greater than 0"),
        ({"init": {"preset": "small", "everywhere": True}}, "is for preset: xavier"),
        ({"seed": -1}, "too small"),
    ],
)
def test_dead_contradictory_and_absurd_choices_are_refused(values: dict, message: str) -> None:
    assert any(message in line for line in problems(**values))


def test_files_are_packed_by_default() -> None:
    assert cell(data=FILES).data.layout == "pack"
    init = {"zero_last_row": True}
    assert (
        cell(data=FILES, init=init).key == cell(data={**FILES, "layout": "pack"}, init=init).key == "3d78929119f6dcad"
    )
    assert cell(data={**FILES, "layout": "pad"}, init=init).key == "cc87a4c7aad9a85a"
    assert cell(data={"like": "c4", "tokenizer": "bpe"}).data.layout == "pad"


@pytest.mark.parametrize(("tokenizer", "zero"), [("t5", True), ("bpe", False), ("gpt2", False), ("own.json", False)])
def test_the_last_row_is_kept_at_zero_only_where_no_text_has_its_id(tokenizer: str, zero: bool) -> None:
    def own(**init: Any) -> Cell:
        size = {"like": "quickstart", "vocab": 50257}
        return cell(size=size, data={"like": "c4", "tokenizer": tokenizer}, init=init)

    assert own().model.init.zero_last_row == own(preset="xavier").model.init.zero_last_row == zero
    assert own().key == own(zero_last_row=zero).key != own(zero_last_row=not zero).key
    assert cell_from(own(zero_last_row=True).to_mapping()).model.init.zero_last_row


def test_a_validation_text_is_part_of_the_key_only_if_it_is_set() -> None:
    held_out = cell(data={**FILES, "validation": "held-out/*.txt"})
    assert held_out.data.validation == "held-out/*.txt"
    assert cell(data={**FILES, "validation": ""}).key == cell(data=FILES).key != held_out.key
    assert cell_from(held_out.to_mapping()) == held_out


def test_stages_chain_and_share_their_pretraining() -> None:
    plain, scored = cell(), cell(finetune={}, downstream={})
    assert [stage.kind for stage in scored.stages] == ["pretrain", "finetune", "downstream"]
    assert scored.stages[0] == plain.stages[0]
    assert scored.stages[1].parents == (scored.stages[0].key,)
    assert scored.key != plain.key
    assert cell(finetune={"epochs": 1}, downstream={}).stages[2].key != scored.stages[2].key


def test_predefined_gates_depend_on_the_cell_that_trained_them() -> None:
    child = cell(gate={"learnable": False, "from_trained": True}, seed=3)
    teacher = child.teacher()
    assert teacher == cell(gate="gpas", seed=3)
    assert child.stages[0].parents == (teacher.key,)


def test_only_the_seed_makes_no_difference_to_what_is_seedless() -> None:
    same = [cell(seed=3), cell(seed=4), cell(seed=9)]
    others = [cell(gate="gpas"), cell(finetune={}), cell(finetune={"epochs": 1}), cell(precision="bf16")]
    assert len({each.seedless for each in same}) == 1
    assert len({each.seedless for each in [same[0], *others]}) == 5
    assert distinct([*same, *others, *same]) == [same[0], *others]


@pytest.mark.parametrize(
    ("mean_rows", "processes", "said"),
    [
        (0, 4, ""),
        (6, 3, ""),
        (4, 3, ""),  # each process has one of the three means
        (1, 12, ""),
        (0, 5, "12 rows cannot be shared evenly by 5 processes; nearest: 4"),
        (6, 4, "6 rows cannot be shared evenly by 4 processes; nearest: 3"),
    ],
)
def test_rows_of_a_mean_are_shared_evenly(mean_rows: int, processes: int, said: str) -> None:
    assert Optim(lr=1e-3, warmup=1, steps=2, batch=12, mean_rows=mean_rows).split_fault(processes) == said
