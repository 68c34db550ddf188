"""Trainings that start from the weights of a network, and the networks of transformers that ours equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exporting import Room, needs_transformers
from safetensors.torch import load_file, save_file

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.events import Evaluation, Event, Phase, Warned
from gpas_cli.extensions.export.files import llama_files, write_folder
from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of
from gpas_cli.extensions.networks.start import absence
from gpas_cli.extensions.networks.start_weights import put_into
from gpas_cli.model.llama import Llama, build
from gpas_cli.origin.provenance import _start
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Cadence
from gpas_cli.train.training import Execution, RunPaths, train

SIZE = {"hidden": 64, "ffn": 160, "heads": 8, "layers": 3, "vocab": 512}
SHAPE = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8, "num_hidden_layers": 3, "vocab_size": 512,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 5e5}  # fmt: skip
# What transformers calls a network, its configuration, and ours.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "smollm2": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1e5},
                {"kv_heads": 2, "rope_theta": 1e5}, {"tied": True}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True},
              {"kv_heads": 4}, {"tied": True, "qkv_bias": True}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False},
              {"kv_heads": 2}, {"qk_norm": "head"}),
    "llama3": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": False, "rope_parameters": ROPE},
               {"kv_heads": 2, "rope_theta": 5e5, "rope_factor": 8, "rope_context": 64}, {}),
    "linear": ("Llama", {"num_key_value_heads": 8, "tie_word_embeddings": False,
                         "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
               {"rope_factor": 4}, {}),
}  # fmt: skip


def folder_of(kind: str, folder: Path) -> tuple[PinnedNetwork, Any]:
    """Return a network of transformers with random weights and biases, and how it is declared."""
    import transformers

    name, more, _, _ = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**SHAPE, **more)
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
    _, _, size, family = KINDS[kind]
    return parse_model({"size": {**SIZE, **size}, "family": family, **more})


def started(pinned: PinnedNetwork, model: Any, events: list[Event] | None = None) -> Llama:
    network = build(model, seed=7)
    put_into(pinned, network, Path(), (events if events is not None else []).append)
    return network


IDS = torch.randint(512, (2, 200), generator=torch.Generator().manual_seed(1))


def difference(ours: Any, theirs: Any) -> float:
    with torch.no_grad():
        a, b = (getattr(out, "logits", out) for out in (ours(IDS), theirs(IDS)))
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


SAME = {
    "gates": {"gate": "gpas"},
    "formula": {"gate": {"activation": "alpha / (1 + abs(alpha))", "share": "sublayer", "site": "after-module"}},
    "lns": {"norm": {"scheme": "lns", "apply": "scale"}, "gate": "gpas"},
    "layerscale": {"norm": {"scheme": "layerscale", "start": 1e-3}},
    "scalars": {"norm": "scalars"},
    "branches": {"norm": "scaled-branches", "gate": "gpas"},
    "mup": {"parametrisation": {"like": "mup", "base_hidden": 16, "base_heads": 2}},
    "embedding": {"embed": "scaled"},
}
OTHER = {
    "sandwich": {"norm": "sandwich"},
    "values": {"norm": "value-residual"},
    "alpha": {"gate": {"init": 0.5}},
    "rmsnorm": {"embed": "rmsnorm"},
}


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
    config = json.loads((Path(network.path) / "config.json").read_text())
    write_folder(
        folder, load_file(Path(network.path) / "model.safetensors"), {"config.json": json.dumps(config | values)}
    )
    return replace(network, path=str(folder), sha256=pin_of(*digests(folder)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt_neox"}, "its model_type is gpt_neox; a training starts from llama, qwen2, qwen3, mistral"),
        ({"hidden_act": "gelu"}, "its hidden_act is gelu, not silu"),
        ({"head_dim": 32}, "its heads have another width than hidden / heads"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
            "its rotary positions are scaled by yarn; valid: linear, ",
        ),
        ({"attention_bias": True}, "not all of its projections have biases"),
        ({"model_type": "mistral", "sliding_window": 32}, "its tokens attend only to the last 32"),
        ({"num_key_value_heads": 4}, "has kv_heads 4, not 2; write size: {name: other, hidden: 64, ffn: 160, heads: 8"),
        ({"model_type": "qwen2"}, "has qkv_bias True, not False; write size: "),
        ({"rms_norm_eps": 1e-5}, "has eps 1e-05, not 1e-06"),
        ({"intermediate_size": None}, "has ffn None, not 160"),
    ],
)
def test_networks_of_another_kind_or_shape_are_refused(
    change: dict[str, Any], reason: str, small: PinnedNetwork, tmp_path: Path
) -> None:
    other = changed_config(small, tmp_path / "other", **change)
    assert reason in absence((other, parse_model({"size": {**SIZE, "kv_heads": 2}})), tmp_path, tmp_path)


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


def cell_of(network: PinnedNetwork, room: Room, **more: Any) -> Cell:
    data = {
        "source": "files",
        "path": "*.txt",
        "tokenizer": "start",
        "layout": "pack",
        "length": 16,
        "eval_tokens": 500,
    }
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
    cell = cell_of(small, room)
    again = cell_from(json.loads(json.dumps(cell.to_mapping())))
    assert (again, again.key) == (cell, cell.key)
    assert cell_of(replace(small, path="elsewhere"), room).key == cell.key
    assert cell_of(replace(small, sha256="cd" * 32), room).key != cell.key
    scratch = cell_from({**cell.to_mapping(), "start": "none", "data": {**plain(cell.data), "tokenizer": "bpe"}})
    assert scratch.key != cell.key
    assert scratch.start is None
    assert of_cell(cell) == ("networks",)
    assert of_cell(scratch) == ()
    assert small.sha256 in _start(cell.to_mapping()["start"])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"init": {"preset": "scaled"}}, "init: has no effect: the weights are those of"),
        ({"start": "none"}, "data.tokenizer: start is for a training with the setting start"),
        ({"start": "nothing"}, "start: unknown start 'nothing'"),
    ],
)
def test_settings_that_contradict_a_start_are_refused(
    more: dict[str, Any], problem: str, small: PinnedNetwork, room: Room
) -> None:
    with pytest.raises(InvalidExperiments, match=problem):
        cell_of(small, room, **more)


def test_a_training_starts_with_its_loss_and_resumes(small: PinnedNetwork, room: Room, tmp_path: Path) -> None:
    pinned = with_tokenizer(small, room, tmp_path / "net")
    losses = {}
    for gate in ("none", "gpas"):
        cell = cell_of(pinned, room, gate=gate, norm={"scheme": "lns", "apply": "scale"})
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
