"""Networks that were not trained here: their cells, their pins, and the shapes that are read from their files."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of, shape_in
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import Catalogue, cell_from

COMMIT, PIN = "0123456789abcdef" * 2 + "01234567", "ab" * 32
HUB = PinnedNetwork(hf="org/name", revision=COMMIT)
FOLDER = PinnedNetwork(path="nets/mine", sha256=PIN)
OPTIM = {"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}
STAGE = {"importance": {"text": "stdlib"}}


def cell_of(network: PinnedNetwork, **more: object) -> Cell:
    return cell_from({"network": plain(network), **STAGE, **more})


@pytest.mark.parametrize("network", [HUB, FOLDER])
def test_a_cell_survives_its_record(network: PinnedNetwork) -> None:
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
def test_every_other_change_is_another_network(network: PinnedNetwork, change: dict[str, object]) -> None:
    other = replace(network, **change)
    assert cell_of(other).key != cell_of(network).key
    assert other.name != network.name


def test_no_setting_is_forgotten() -> None:
    known = {"hf", "revision", "path", "sha256", "dtype", "trust_code"}
    shape = {"layers", "hidden", "ffn", "vocab", "parameters", "tied"}
    assert {own.name for own in fields(PinnedNetwork)} - known == shape


def test_a_record_of_an_earlier_version_is_read() -> None:
    """It has settings of networks that were made at run time, which no longer exist."""
    earlier = {"made": "", "seed": 42, "updates": 600, "heads": 0}
    assert cell_from({"network": {**plain(HUB), **earlier}, **STAGE}).key == cell_of(HUB).key
    with pytest.raises(InvalidExperiments, match=r"network\.made: unknown key"):
        cell_from({"network": {**plain(HUB), **earlier, "made": "gpt2"}, **STAGE})


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (PinnedNetwork(), "needs one of hf"),
        (replace(HUB, path="nets/mine"), "needs one of hf"),
        (PinnedNetwork(hf="org/name"), "revision: is required"),
        (replace(FOLDER, revision=COMMIT), "revision: has no effect on nets/mine"),
        (replace(HUB, sha256=PIN), "sha256: has no effect on org/name"),
    ],
)
def test_what_is_wrong_with_a_network_is_named(network: PinnedNetwork, problem: str) -> None:
    assert problem in "\n".join(map(str, network.declared(Path(), None)[1]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "needs a stage that measures it: downstream, texts, importance, quantised, layers"),
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
    found = PinnedNetwork(path=".", sha256=PIN, layers=9).with_shape(tmp_path)
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
    found = PinnedNetwork(path=".", sha256=PIN).with_shape(tmp_path)
    number = 26_624 + 64_000 * len(tables)
    assert (found.parameters, found.tied) == (number, tied)
    assert parameters(cell_of(found)) == pytest.approx(number, rel=0.01)
    (tmp_path / "model-1-of-2.safetensors").write_bytes(b"not a header")
    assert PinnedNetwork(path=".", sha256=PIN).with_shape(tmp_path).parameters == 0


def test_a_cell_uses_the_extensions_of_its_network_and_its_tasks() -> None:
    """So that the code of its jobs has them, and is no other if one that it does not use changes."""
    own = {"size": "quickstart", "data": "quickstart", "optim": OPTIM}
    both = {"tasks": ["indent", "piqa"]}
    assert of_cell(cell_of(HUB)) == ("layers", "networks")
    assert of_cell(cell_of(HUB, downstream=both)) == ("harness", "layers", "networks")
    assert of_cell(cell_from({**own, "importance": both})) == ("harness", "layers")
    assert of_cell(cell_from({**own, "downstream": {"tasks": ["indent"]}, "texts": {"texts": ["stdlib"]}})) == ()
