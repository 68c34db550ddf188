"""Cells: round trip, keys, canonical spellings, every problem at once; networks that were not trained here."""

import itertools
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.network import Network, digests, pin_of, shape_in
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import Catalogue, cell_from

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
    assert "optim.batch: True is not a whole number" in found


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
        ({"size": {"like": "quickstart", "heads": 32}}, "even head dimension"),
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


COMMIT, PIN = "0123456789abcdef" * 2 + "01234567", "ab" * 32
HUB = Network(hf="org/name", revision=COMMIT)
FOLDER = Network(path="nets/mine", sha256=PIN)
OPTIM = {"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}
STAGE = {"importance": {"text": "stdlib"}}


def cell_of(network: Network, **more: object) -> Cell:
    return cell_from({"network": plain(network), **STAGE, **more})


@pytest.mark.parametrize("network", [HUB, FOLDER])
def test_a_cell_survives_its_record(network: Network) -> None:
    cell = cell_of(network, downstream={"tasks": ["indent"]})
    again = cell_from(json.loads(json.dumps(cell.to_mapping())))
    assert again == cell
    assert again.key == cell.key
    assert [stage.kind for stage in cell.stages] == ["downstream", "importance"]
    assert all(stage.parents == () for stage in cell.stages)


def test_only_what_identifies_the_numbers_is_in_the_key() -> None:
    for network in (HUB, FOLDER):
        other = replace(network, trust_code=True, layers=9, hidden=32, ffn=64, vocab=500)
        assert cell_of(other).key == cell_of(network).key
    assert cell_of(replace(FOLDER, path="elsewhere")).key == cell_of(FOLDER).key


@pytest.mark.parametrize(
    ("network", "change"),
    [
        (HUB, {"hf": "org/other"}),
        (HUB, {"revision": "f" * 40}),
        (HUB, {"dtype": "bf16"}),
        (FOLDER, {"sha256": "cd" * 32}),
    ],
)
def test_every_other_change_is_another_network(network: Network, change: dict[str, object]) -> None:
    other = replace(network, **change)
    assert cell_of(other).key != cell_of(network).key
    assert other.name != network.name


def test_no_setting_is_forgotten() -> None:
    known = {"hf", "revision", "path", "sha256", "dtype", "trust_code"}
    assert {own.name for own in fields(Network)} - known == {"layers", "hidden", "ffn", "vocab", "parameters", "tied"}


def test_a_record_of_an_earlier_version_is_read() -> None:
    """It has settings of networks that were made at run time, which no longer exist."""
    earlier = {"made": "", "seed": 42, "updates": 600, "heads": 0}
    assert cell_from({"network": {**plain(HUB), **earlier}, **STAGE}).key == cell_of(HUB).key
    with pytest.raises(InvalidExperiments, match=r"network\.made: unknown key"):
        cell_from({"network": {**plain(HUB), **earlier, "made": "gpt2"}, **STAGE})


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (Network(), "needs one of hf"),
        (replace(HUB, path="nets/mine"), "needs one of hf"),
        (Network(hf="org/name"), "revision: is required"),
        (replace(FOLDER, revision=COMMIT), "revision: has no effect on nets/mine"),
        (replace(HUB, sha256=PIN), "sha256: has no effect on org/name"),
    ],
)
def test_what_is_wrong_with_a_network_is_named(network: Network, problem: str) -> None:
    assert problem in "\n".join(map(str, network.problems()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "needs a stage that measures it: downstream, texts, importance, layers"),
        ({"finetune": {}, **STAGE}, "finetune: is not for networks that were not trained here"),
        ({"importance": {}}, "importance.text: is required: the text on which the network is measured"),
        ({"network": {"hf": "a/b", "revision": "main"}, **STAGE}, "'main' is not a commit (40 hex digits)"),
        ({"network": "thiers", **STAGE}, "unknown network 'thiers'; did you mean 'theirs'?"),
    ],
)
def test_bad_cells_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidExperiments) as error:
        cell_from({"network": plain(FOLDER), **values}, Catalogue(networks={"theirs": HUB}))
    assert message in str(error.value)


def test_a_cell_that_is_trained_here_has_no_text_for_importance() -> None:
    with pytest.raises(InvalidExperiments, match=r"importance.text: is for networks that were not trained here"):
        cell_from({"size": "quickstart", "data": "quickstart", "optim": OPTIM, **STAGE})


def test_a_network_has_no_checkpoint() -> None:
    with pytest.raises(GpasError, match="nets/mine was not trained here"):
        _ = cell_of(FOLDER).trained


def test_the_pin_changes_with_every_byte_and_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    pins = {pin_of(*digests(tmp_path))}
    (tmp_path / "README.md").write_text("not read by transformers")
    assert pin_of(*digests(tmp_path)) in pins
    (tmp_path / "config.json").write_text("{ }")
    pins.add(pin_of(*digests(tmp_path)))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    pins.add(pin_of(*digests(tmp_path)))
    assert len(pins) == 3


def test_the_shape_is_read_under_the_names_of_several_architectures(tmp_path: Path) -> None:
    gpt2 = {"n_layer": 3, "n_embd": 32, "n_inner": None, "vocab_size": 99}
    assert shape_in(gpt2) == {"layers": 3, "hidden": 32, "vocab": 99}
    llama = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(llama))
    found = Network(path=".", sha256=PIN, layers=9).with_shape(tmp_path)
    assert (found.layers, found.hidden, found.ffn, found.vocab) == (9, 64, 128, 7)
    assert FOLDER.with_shape(tmp_path) == FOLDER


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_in_the_weights(tmp_path: Path, tied: bool) -> None:
    """Of a network with grouped-query attention, in two files, as `transformers` writes large ones."""
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 1000}')
    layer = {"q": [64, 64], "k": [16, 64], "v": [16, 64], "o": [64, 64], "up": [128, 64], "down": [64, 128]}
    tables = {"embed": [1000, 64], **({} if tied else {"head": [1000, 64]})}
    for number, tensors in enumerate((layer, tables), start=1):
        header = json.dumps({name: {"shape": shape} for name, shape in tensors.items()} | {"__metadata__": {}}).encode()
        (tmp_path / f"model-{number}-of-2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0")
    found = Network(path=".", sha256=PIN).with_shape(tmp_path)
    number = 26_624 + 64_000 * len(tables)
    assert (found.parameters, found.tied) == (number, tied)
    assert parameters(cell_of(found)) == pytest.approx(number, rel=0.01)
    (tmp_path / "model-1-of-2.safetensors").write_bytes(b"not a header")
    assert Network(path=".", sha256=PIN).with_shape(tmp_path).parameters == 0
