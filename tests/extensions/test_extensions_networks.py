"""Networks that were not trained here: their cells, their pins, and the shapes that are read from their files.

Trainings that start from the weights of a network, and the networks of transformers that ours equal.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from exporting import Room, needs_transformers
from goldens import golden_cases
from safetensors.torch import load_file, save_file

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.events import Evaluation, Event, Phase, Warned
from gpas_cli.extensions.export.files import llama_files, write_folder
from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of, shape_in
from gpas_cli.extensions.networks.start import _shapes, absence, shape_of
from gpas_cli.extensions.networks.start_weights import put_into
from gpas_cli.model.llama import Llama, build
from gpas_cli.origin.provenance import _start
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Cadence
from gpas_cli.train.training import Execution, RunPaths, train

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


@cases("extensions/cases.yaml")
def test_every_other_change_is_another_network(network: str, change: dict[str, Any]) -> None:
    known = {"hub": HUB, "folder": FOLDER}[network]
    other = replace(known, **change)
    assert cell_of(other).key != cell_of(known).key
    assert other.name != known.name


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


@cases("extensions/cases.yaml")
def test_what_is_wrong_with_a_network_is_named(network: dict[str, str], problem: str) -> None:
    assert problem in "\n".join(map(str, PinnedNetwork(**network).declared(Path(), None)[1]))


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


DELETED = "deleted"  # stands for no value
SIZE = {"hidden": 64, "ffn": 160, "heads": 8, "layers": 3, "vocab": 512}
NETWORKS = golden_cases("networks")
KINDS = NETWORKS["kinds"]


def folder_of(kind: str, folder: Path) -> tuple[PinnedNetwork, Any]:
    """Return a network of transformers with random weights and biases, and how it is declared."""
    import transformers

    name = KINDS[kind]["name"]
    config = getattr(transformers, f"{name}Config")(**{**NETWORKS["shape of kinds"], **KINDS[kind]["config"]})
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(float("norm" in str(parameter.shape)), 0.1) if parameter.dim() > 1 else parameter.add_(
                0.2 * torch.randn(parameter.shape)
            )
    made.save_pretrained(folder)
    return PinnedNetwork(path=str(folder), sha256=pin_of(*digests(folder))), made


def model_of(kind: str, **more: Any) -> Any:
    own = KINDS[kind]
    return parse_model({"size": {**SIZE, **own["size"]}, "family": own["family"], **more})


def started(pinned: PinnedNetwork, model: Any, events: list[Event] | None = None) -> Llama:
    network = build(model, seed=7)
    put_into(pinned, network, Path(), (events if events is not None else []).append)
    return network


IDS = torch.randint(512, (2, 200), generator=torch.Generator().manual_seed(1))


def difference(ours: Any, theirs: Any) -> float:
    ids = IDS * (theirs.config.vocab_size // 512)
    with torch.no_grad():
        a, b = (getattr(out, "logits", out) for out in (ours(ids), theirs(ids)))
    return float((a - b).abs().max() / b.abs().max())


@needs_transformers
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_and_the_export_is_read_again(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    pinned, theirs = folder_of(kind, tmp_path / "theirs")
    network = started(pinned, model_of(kind))
    assert difference(network, theirs) < 1e-5
    write_folder(tmp_path / "ours", network.state_dict(), llama_files(network, {"max_position_embeddings": 1024}))
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert difference(again, theirs) < 1e-5
    own = replace(pinned, path=str(tmp_path / "ours"), sha256=pin_of(*digests(tmp_path / "ours")))
    assert difference(started(own, model_of(kind)), theirs) < 1e-5
    assert absence((own, model_of(kind)), tmp_path, tmp_path) == ""


SAME, OTHER = NETWORKS["same function"], NETWORKS["other function"]


@needs_transformers
def test_the_function_is_the_same_where_the_algebra_allows_it(tmp_path: Path) -> None:
    pinned, theirs = folder_of("llama3", tmp_path)
    for name, more in {**SAME, **OTHER}.items():
        events: list[Event] = []
        found = difference(started(pinned, model_of("llama3", **more), events), theirs)
        warned = [event.message for event in events if isinstance(event, Warned)]
        assert (found < 1e-5) == (name in SAME), (name, found)
        assert bool(warned) == (name in OTHER), (name, warned)
        assert any(isinstance(event, Phase) and event.name == "starts from a network" for event in events)


@needs_transformers
def test_queries_with_norms_have_the_factor_there(tmp_path: Path) -> None:
    pinned, theirs = folder_of("qwen3", tmp_path)
    assert difference(started(pinned, model_of("qwen3", **SAME["mup"])), theirs) < 1e-5


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PinnedNetwork:
    """A network that was exported, with the tokenizer of the text in its folder."""
    folder = tmp_path_factory.mktemp("small")
    network = build(parse_model({"size": {**SIZE, "kv_heads": 2}}))
    write_folder(folder / "net", network.state_dict(), llama_files(network, {"max_position_embeddings": 64}))
    return PinnedNetwork(path=str(folder / "net"), sha256=pin_of(*digests(folder / "net")))


def changed_config(network: PinnedNetwork, folder: Path, **values: Any) -> PinnedNetwork:
    config = json.loads((Path(network.path) / "config.json").read_text()) | values
    config = {name: value for name, value in config.items() if value != DELETED}
    write_folder(folder, load_file(Path(network.path) / "model.safetensors"), {"config.json": json.dumps(config)})
    return replace(network, path=str(folder), sha256=pin_of(*digests(folder)))


@cases("extensions/cases.yaml")
def test_networks_of_another_kind_or_shape_are_refused(
    change: dict[str, Any], reason: str, small: PinnedNetwork, tmp_path: Path
) -> None:
    other = changed_config(small, tmp_path / "other", **change)
    assert reason in absence((other, parse_model({"size": {**SIZE, "kv_heads": 2}})), tmp_path, tmp_path)


def test_numbers_that_were_float32_are_equal(small: PinnedNetwork, tmp_path: Path) -> None:
    """As in a configuration that was converted from GGUF."""
    for kept, size in {9.999999974752427e-07: 1e-6, 9.999999747378752e-06: 1e-5}.items():
        other = changed_config(small, tmp_path / str(kept), rms_norm_eps=kept)
        assert absence((other, parse_model({"size": {**SIZE, "kv_heads": 2, "eps": size}})), tmp_path, tmp_path) == ""


# What the repositories have: the values of a config.json that are read, and the number of parameters.
REAL = NETWORKS["real"]


@pytest.mark.parametrize("name", REAL)
def test_real_networks_have_their_number_of_parameters(name: str) -> None:
    config, number = REAL[name].values()
    size, family = shape_of(config)
    model = parse_model({"size": size, "family": {"like": "llama", **family}})
    assert model.size.head_dim == (128 if "Qwen3" in name else None)
    with torch.device("meta"):
        network = Llama(model)
    assert sum(parameter.numel() for parameter in network.parameters()) == number
    found = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    assert dict(_shapes(model)).items() <= found.items()
    text = {"source": "stdlib", "tokenizer": "start", "layout": "pack", "length": 64}
    cell = cell_from(
        {"size": size, "family": {"like": "llama", **family}, "data": text, "optim": OPTIM, "start": plain(HUB)}
    )
    assert parameters(cell) == pytest.approx(number, rel=1e-3)


def test_tensors_that_do_not_fit_are_named_with_their_sizes(small: PinnedNetwork, tmp_path: Path) -> None:
    model = parse_model({"size": {**SIZE, "kv_heads": 2, "ffn": 96}})
    other = changed_config(small, tmp_path / "other", intermediate_size=96)
    wanted = "model.layers.0.mlp.gate_proj.weight is [160, 64], not [96, 64]"
    assert wanted in absence((other, model), tmp_path, tmp_path)
    with pytest.raises(GpasError, match="does not describe its weights"):
        started(other, model)


def test_schemes_without_a_place_for_its_norms_are_refused(small: PinnedNetwork, tmp_path: Path) -> None:
    size = {**SIZE, "kv_heads": 2}
    for norm, reason in {
        "post": "has no norm before each sub-layer",
        "lns": "replace the first values by which",
    }.items():
        assert reason in absence((small, parse_model({"size": size, "norm": norm})), tmp_path, tmp_path)


def test_weights_that_are_missing_or_left_over_are_refused(small: PinnedNetwork, tmp_path: Path) -> None:
    weights = load_file(Path(small.path) / "model.safetensors")
    del weights["lm_head.weight"]
    for name, more, reason in [
        ("less", {}, "does not have lm_head"),
        ("more", {"model.extra": torch.ones(2)}, "model.extra"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text((Path(small.path) / "config.json").read_text())
        save_file({**weights, **more}, folder / "model.safetensors")
        other = replace(small, path=str(folder), sha256=pin_of(*digests(folder)))
        with pytest.raises(GpasError, match=reason):
            started(other, parse_model({"size": {**SIZE, "kv_heads": 2}}))


def test_other_files_than_those_that_are_pinned_are_refused(small: PinnedNetwork) -> None:
    with pytest.raises(GpasError, match="are not those of the network"):
        started(replace(small, sha256="ab" * 32), parse_model({"size": {**SIZE, "kv_heads": 2}}))


def started_cell(network: PinnedNetwork, room: Room, **more: Any) -> Cell:
    text = {"source": "files", "path": "*.txt", "layout": "pack", "length": 16, "eval_tokens": 500}
    data = {**text, "tokenizer": "start"}
    optim = {"lr": 1e-2, "warmup": 1, "steps": 4, "batch": 4}
    base = {"size": {**SIZE, "kv_heads": 2}, "data": data, "optim": optim, "start": plain(network)}
    return cell_from({**base, **more})


def with_tokenizer(network: PinnedNetwork, room: Room, folder: Path) -> PinnedNetwork:
    """Return the network with a tokenizer of the room's text."""
    _, tokenizer = room.opened(room.cell())
    own = changed_config(network, folder)
    for name, text in tokenizer.transformers_files(64).items():
        (folder / name).write_text(text)
    return replace(own, sha256=pin_of(*digests(folder)))


def test_a_cell_survives_its_record_and_its_key_does_not_have_the_place(small: PinnedNetwork, room: Room) -> None:
    cell = started_cell(small, room)
    again = cell_from(json.loads(json.dumps(cell.to_mapping())))
    assert (again, again.key) == (cell, cell.key)
    assert started_cell(replace(small, path="elsewhere"), room).key == cell.key
    assert started_cell(replace(small, sha256="cd" * 32), room).key != cell.key
    scratch = cell_from({**cell.to_mapping(), "start": "none", "data": {**plain(cell.data), "tokenizer": "bpe"}})
    assert scratch.key != cell.key
    assert scratch.start is None
    assert of_cell(cell) == ("networks",)
    assert of_cell(scratch) == ()
    assert small.sha256 in _start(cell.to_mapping()["start"])


@cases("extensions/cases.yaml")
def test_settings_that_contradict_a_start_are_refused(
    more: dict[str, Any], problem: str, small: PinnedNetwork, room: Room
) -> None:
    with pytest.raises(InvalidExperiments, match=problem):
        started_cell(small, room, **more)


def test_a_training_starts_with_its_loss_and_resumes(small: PinnedNetwork, room: Room, tmp_path: Path) -> None:
    pinned = with_tokenizer(small, room, tmp_path / "net")
    losses = {}
    for gate in ("none", "gpas"):
        cell = started_cell(pinned, room, gate=gate, norm={"scheme": "lns", "apply": "scale"})
        events: list[Event] = []
        paths = RunPaths(tmp_path / gate, [], cache=tmp_path / "cache", root=room.folder)
        how = Execution(Cadence(eval_every=2, checkpoint_every=2), lambda: None)
        assert train(cell, paths, events.append, how).outcome == "done"
        losses[gate] = {event.step: event.loss for event in events if isinstance(event, Evaluation)}
        assert losses[gate].keys() == {0, 2, 4}
        again: list[Event] = []
        assert train(cell, paths, again.append, how).outcome == "done"
        assert [event.step for event in again if isinstance(event, Evaluation)] == [4]
    assert losses["gpas"][0] == pytest.approx(losses["none"][0], rel=1e-6)
    assert losses["gpas"][4] != losses["none"][4]
