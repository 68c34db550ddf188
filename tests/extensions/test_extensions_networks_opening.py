"""Networks of transformers as the scorer sees them: the same likelihoods as their own logits."""

import base64
import importlib.util
import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from exporting import Room, needs_transformers
from goldens import golden_cases
from tokenizers import Tokenizer as Backend

from gpas_cli.data.text_documents import TextDocument
from gpas_cli.data.tokenizer import train_bpe
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.downstream import requests as text_requests
from gpas_cli.evaluate.foreign import Opened
from gpas_cli.evaluate.likelihood import Request, Scorer
from gpas_cli.extensions.networks.network import PinnedNetwork
from gpas_cli.extensions.networks.opening import find_model, find_network, open_model

pytestmark = needs_transformers


def saved(folder: Path, config: Any, bos: bool = False) -> Path:
    """Return a folder with an untrained network of transformers and a tokenizer, which begins texts with <s> or not."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    backend = train_bpe(["the cat sat on the mat </s>"] * 9, 299)
    special = {"eos_token": "</s>", "pad_token": "<pad>"}
    if bos:
        backend.add_special_tokens(["<s>"])
        start = backend.token_to_id("<s>")
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
        special["bos_token"] = "<s>"
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return folder


CONFIGURATIONS = golden_cases("networks")["configurations"]


def configuration(kind: str = "Llama", **more: Any) -> Any:
    import transformers

    return getattr(transformers, f"{kind}Config")(**CONFIGURATIONS[kind], **more)


def requests() -> list[Request]:
    chooser = random.Random(3)

    def ids(most: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(3, 300) for _ in range(chooser.randint(1, most)))

    return [Request(ids(20), ids(5)) for _ in range(30)]


def plain(opened: Opened, request: Request) -> float:
    row = torch.tensor([request.context + request.continuation], device=opened.precision.device)
    with torch.no_grad():
        logs = torch.log_softmax(opened.network.inner(input_ids=row[:, :-1]).logits[0].float(), -1)
    count = len(request.continuation)
    return float(logs[-count:].gather(1, row[0, -count:, None]).sum())


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_likelihoods_are_those_of_the_networks_own_logits(tmp_path: Path, kind: str) -> None:
    opened = open_model(find_model(str(saved(tmp_path / "model", configuration(kind)))))
    scorer = Scorer(opened.network, opened.precision, max_length=48, tokens_at_once=90)
    asked = requests()
    found = scorer.score(asked)
    assert [one.total for one in found] == pytest.approx([plain(opened, one) for one in asked], abs=1e-4)
    assert opened.parameters > 1000


def test_a_cell_and_its_export_have_the_same_likelihoods(room: Room) -> None:
    cell = room.cell(norm="mix", gate="gpas")
    assert room.export(cell, "own").form == "bundled"
    network, _ = room.opened(cell)
    found = find_model(str(room.folder / "out/own"))
    with pytest.raises(GpasError, match="--trust-code"):
        open_model(found)
    opened = open_model(found, trust_code=True)
    asked = [Request(one.context, tuple(token % 280 for token in one.continuation)) for one in requests()]
    asked = [Request(tuple(token % 280 for token in one.context), one.continuation) for one in asked]
    own, theirs = (
        [one.total for one in Scorer(module, opened.precision, max_length=64).score(asked)]
        for module in (network.to(opened.precision.device), opened.network)
    )
    assert theirs == pytest.approx(own, abs=1e-4)
    assert opened.tokenizer.start == ()
    assert found.positions is None


def test_bfloat16_weights_stay_so(tmp_path: Path) -> None:
    opened = open_model(find_model(str(saved(tmp_path / "model", configuration(dtype="bfloat16")))))
    assert opened.precision.name in ("pure_bf16", "fp32")  # transformers 4 loads float32 by default
    found = Scorer(opened.network, opened.precision, max_length=48).score(requests())
    assert [one.total for one in found] == pytest.approx([plain(opened, one) for one in requests()], abs=0.3)


class _Command:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_contains_code_is_not_executed_and_nobody_is_told_how_to(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", configuration())
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": _Command(tmp_path / "made")}, folder / "pytorch_model.bin")
    with pytest.raises(GpasError, match="its weights are a pickle with code, which is not executed; ask for them as"):
        open_model(find_model(str(folder)))
    assert not (tmp_path / "made").exists()


def test_a_start_token_stands_before_every_text(tmp_path: Path) -> None:
    opened = open_model(find_model(str(saved(tmp_path / "model", configuration(), bos=True))))
    start = opened.tokenizer.backend.token_to_id("<s>")
    ids = opened.tokenizer.encode("the cat")
    assert opened.tokenizer.start == (start,)
    assert Request.of_text(opened.tokenizer, "the cat", " sat").context == (start, *ids)
    assert Request.of_text(opened.tokenizer, "", "the cat") == Request((start,), tuple(ids))


# A stranger's names, and the token that is known by its name, which is neither.
@pytest.mark.parametrize(("begin", "end"), [("<|im_start|>", "<|im_end|>"), (None, "<end_of_sentence>"), ("<a>", None)])
def test_first_and_end_token_are_those_of_the_files(tmp_path: Path, begin: str | None, end: str | None) -> None:
    folder = saved(tmp_path / "model", configuration())
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([one for one in (begin, end) if one])
    backend.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    declared = {"bos_token": begin, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | declared))
    tokenizer = open_model(find_model(str(folder))).tokenizer
    eos = backend.token_to_id(end or "</s>")
    first = backend.token_to_id(begin) if begin else eos
    assert (tokenizer.first_id, tokenizer.eos_id, tokenizer.start) == (first, eos, ())
    assert Request.of_text(tokenizer, "", "the cat").context == (first,)
    document = TextDocument("", "the cat", 2, 7)
    assert [one.context for one in text_requests(document, tokenizer, 64)] == [(first,)]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | declared | {"add_bos_token": True}))
    assert open_model(find_model(str(folder))).tokenizer.start == ((first,) if begin else ())


def test_a_tokenizer_without_first_and_end_token_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", configuration())
    definition = (folder / "tokenizer.json").read_text().replace("</s>", "<over>")
    (folder / "tokenizer.json").write_text(definition)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(GpasError, match=r'declares no end token, .*: \{"eos_token": "\.\.\."\}'):
        open_model(find_model(str(folder)))


def without_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


def test_a_tokenizer_of_sentencepiece_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    folder = without_tokenizer(saved(tmp_path / "model", configuration()))
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog lay on the rug\n" * 9)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=290, model_type="bpe", byte_fallback=True,
        minloglevel=2,
    )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = open_model(find_model(str(folder))).tokenizer
    own = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    assert tokenizer.encode("the cat lay here") == own.encode("the cat lay here")
    assert (tokenizer.first_id, tokenizer.eos_id) == (own.bos_id(), own.eos_id())


# As Qwen-7B's: ranks in a file of tiktoken, code of its own, and no token in tokenizer_config.json.
TIKTOKEN = """
import base64, tiktoken
from transformers import PreTrainedTokenizer

class WordTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "own.tiktoken"}

    def __init__(self, vocab_file, **more):
        with open(vocab_file, "rb") as file:
            self.ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file)}
        special = {"<|endoftext|>": 260}
        self.own = tiktoken.Encoding("own", pat_str=r" ?\\S+", mergeable_ranks=self.ranks, special_tokens=special)
        super().__init__(**more)

    def __len__(self): return self.own.n_vocab
    @property
    def vocab_size(self): return self.own.n_vocab
    def get_vocab(self): return dict(self.ranks)
    def _tokenize(self, text, **more): return [self.own.decode_single_token_bytes(i) for i in self.own.encode(text)]
    def _convert_token_to_id(self, token): return 260 if token == "<|endoftext|>" else self.ranks.get(token, 0)
    def _convert_id_to_token(self, i): return "<|endoftext|>" if i == 260 else self.own.decode_single_token_bytes(i)
    def convert_tokens_to_string(self, tokens): return b"".join(tokens).decode()
"""


def test_a_tokenizer_of_python_code_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    folder = without_tokenizer(saved(tmp_path / "model", configuration()))
    pieces = [*(bytes([i]) for i in range(256)), b"th", b"the", b" c", b" ca"]
    ranks = "".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    (folder / "own.tiktoken").write_text(ranks)
    (folder / "own_words.py").write_text(TIKTOKEN)
    config = {"tokenizer_class": "WordTokenizer", "auto_map": {"AutoTokenizer": ["own_words.WordTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = find_model(str(folder))
    with pytest.raises(GpasError, match="--trust-code"):
        open_model(found)
    tokenizer = open_model(found, trust_code=True).tokenizer
    assert tokenizer.encode("the cat") == [257, 259, ord("t")]
    assert tokenizer.decode([257, 259, ord("t")]) == "the cat"
    assert (tokenizer.first, tokenizer.eos_id, tokenizer.start) == ("<|endoftext|> (260)", 260, ())
    before = found.files
    (folder / "own.tiktoken").write_text(ranks.replace(" 0", " 0 "))
    assert find_model(str(folder)).files != before  # a pin covers the ranks


def test_a_folder_without_a_tokenizer_says_what_is_read(tmp_path: Path) -> None:
    folder = without_tokenizer(saved(tmp_path / "model", configuration()))
    with pytest.raises(GpasError, match=r"cannot load the tokenizer of .*; it reads tokenizer\.json, with "):
        open_model(find_model(str(folder)))


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
@pytest.mark.parametrize("bos", [False, True])
def test_the_harness_gets_the_same_tokens_as_our_own_scoring(tmp_path: Path, bos: bool) -> None:
    from lm_eval.api.instance import Instance

    from gpas_cli.extensions.harness.model import HarnessModel

    opened = open_model(find_model(str(saved(tmp_path / "model", configuration(), bos=bos))))
    scorer = Scorer(opened.network, opened.precision, max_length=48)
    pairs = [("the cat", " sat"), ("", "the mat"), ("the cat ", "sat")]
    harness = HarnessModel(scorer, opened.tokenizer)
    found = harness.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
    expected = scorer.score([Request.of_text(opened.tokenizer, *pair) for pair in pairs])
    assert [total for total, _ in found] == [one.total for one in expected]
    (whole,) = harness.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("the mat",), 0)])
    assert whole == pytest.approx(expected[1].total, abs=1e-5)


def test_only_learned_positions_bound_the_context(tmp_path: Path) -> None:
    assert find_model(str(saved(tmp_path / "gpt2", configuration("GPT2")))).positions == 48
    assert find_model(str(saved(tmp_path / "llama", configuration()))).positions is None
    config = json.loads((tmp_path / "gpt2/config.json").read_text())
    (tmp_path / "gpt2/config.json").write_text(json.dumps({**config, "_name_or_path": "europe"}))
    assert find_model(str(tmp_path / "gpt2")).positions == 48


def test_the_digests_change_with_the_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", configuration())
    before = find_model(str(folder))
    (folder / "notes.md").write_text("nothing that is loaded")
    assert find_model(str(folder)) == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    changed = find_model(str(folder))
    assert changed.weights == before.weights
    assert changed.files != before.files
    assert set(before.provenance()) == {"source", "revision", "weights", "files", "architecture"}
    assert before.provenance()["architecture"] == "LlamaForCausalLM"


HOSTILE = {
    "a list": (b"[1]", "not the configuration of a network but a list"),
    "nested deeply": (b"[" * 200_000, "nested too deeply"),
    "UTF-16": (b"\xff\xfe{", "invalid start byte"),
}


@pytest.mark.parametrize("content", HOSTILE)
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_bytes(HOSTILE[content][0])
    with pytest.raises(GpasError, match=rf"config\.json: .*{HOSTILE[content][1]}"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("content", [content for content, _ in HOSTILE.values()])
@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_other_files_that_cannot_be_read_are_refused_or_not_needed(tmp_path: Path, name: str, content: bytes) -> None:
    (saved(tmp_path / "model", configuration()) / name).write_bytes(content)
    with suppress(GpasError):
        open_model(find_model(str(tmp_path / "model")))


def test_a_network_with_missing_weights_is_not_scored_with_random_ones(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = saved(tmp_path / "model", configuration()) / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(GpasError, match=r"its weights lack model\.layers\.1\.mlp\.up_proj\.weight"):
        open_model(find_model(str(tmp_path / "model")))


def test_a_wrong_setting_is_one_message(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", configuration("GPT2")) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_head": -1}))
    with pytest.raises(GpasError, match=r"transformers cannot load .*: RuntimeError"):
        open_model(find_model(str(tmp_path / "model")))


@cases("extensions/cases.yaml", name="", revision="")
def test_folders_without_a_network_are_refused(
    tmp_path: Path, files: dict[str, str], name: str, revision: str, message: str
) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(GpasError, match=message):
        open_model(find_model(str(tmp_path / name), revision))


def test_a_name_that_is_neither_and_a_missing_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpasError, match="neither a folder nor a repository"):
        find_model("not//a name")
    monkeypatch.setattr("gpas_cli.extensions.networks.opening.find_spec", lambda _: None)
    with pytest.raises(GpasError, match=r"pip install 'gpas-cli\[export\]'"):
        find_model(".")


class Hub:
    """A repository of the hub: `snapshot_download` copies the files that match the patterns into a cache."""

    def __init__(self, files: Path, cache: Path):
        self.files, self.cache = files, cache

    def __call__(self, _name: str, *, revision: str, allow_patterns: list[str]) -> str:
        folder = self.cache / revision
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.files.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, folder)
        return str(folder)


@pytest.mark.parametrize(("twice", "weights"), [(True, {"model.safetensors"}), (False, {"pytorch_model.bin"})])
def test_weights_that_a_repository_has_twice_are_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool, weights: set[str]
) -> None:
    files = saved(tmp_path / "files", configuration())
    (files / "pytorch_model.bin").write_bytes((files / "model.safetensors").read_bytes())
    if not twice:
        (files / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", Hub(files, tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/name").mkdir(parents=True)  # a folder of that name is not the repository
    network = PinnedNetwork(hf="org/name", revision="0" * 40)
    found = find_network(network, tmp_path, lambda _: None)
    assert {path.name for path in found.folder.iterdir() if path.suffix in (".bin", ".safetensors")} == weights
    assert (found.source, found.revision) == ("org/name", "0" * 40)


def test_the_cache_of_an_unreachable_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.data.hub._reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    saved(tmp_path / "hub/models--org--name/snapshots" / ("0" * 40), configuration())
    network = PinnedNetwork(hf="org/name", revision="0" * 40)
    found = find_network(network, tmp_path, lambda _: None)
    assert (found.architecture, found.revision) == ("LlamaForCausalLM", "0" * 40)
    with pytest.raises(GpasError, match="hub: the hub cannot be reached; it is not in the local hub cache either"):
        find_network(PinnedNetwork(hf="org/name", revision="1" * 40), tmp_path, lambda _: None)


def test_a_gated_repository_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GatedRepoError(Exception):
        pass

    def refused(*_: object, **__: object) -> None:
        raise GatedRepoError("403")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    with pytest.raises(GpasError, match="accept its licence on its page, and set HF_TOKEN"):
        find_network(PinnedNetwork(hf="org/name", revision="0" * 40), tmp_path, lambda _: None)
