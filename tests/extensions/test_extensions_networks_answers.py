"""Encoders: answers to questions about a passage, the task, and the loss on masked tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from exporting import needs_transformers
from stage_runs import new_attempt, run
from torch.nn import functional

from gpas_cli.data.loader import IGNORED
from gpas_cli.data.text_documents import read_text
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate.foreign import Opened
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.tasks.forms import SpanQuestion
from gpas_cli.evaluate.tasks.local import direct_task, import_task
from gpas_cli.events import Layers
from gpas_cli.extensions.layers.removal import masked_batches
from gpas_cli.extensions.networks import answers
from gpas_cli.extensions.networks.answers import answers_scorer
from gpas_cli.extensions.networks.network import PinnedNetwork, digests, pin_of
from gpas_cli.extensions.networks.opening import find_model, open_model
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.state.outputs import recorded_events

PASSAGE = (
    "The gate of a layer is one number. Ada trained forty layers in Lausanne, and the last ten of them learned nothing "
    "until she scaled the stream. In 1843 the engine had no layers at all; it had wheels, and a mill, and a store."
)
QUESTIONS = [
    SpanQuestion("Where did Ada train?", PASSAGE, ("Lausanne", "in Lausanne")),
    SpanQuestion("When did the engine have no layers?", PASSAGE, ("1843",)),
    SpanQuestion("What is one number?", PASSAGE[:34], ("The gate of a layer", "gate")),
    SpanQuestion("What did the engine have, " + "if anything, " * 30 + "then?", PASSAGE * 4, ("wheels",)),
]
WORDS = sorted({word.strip(".,;?").lower() for one in QUESTIONS for word in f"{one.question} {one.passage}".split()})
PUNCTUATION = [".", ",", ";", "?"]


def folder_of(kind: str, folder: Path) -> Path:
    import transformers
    from tokenizers import BertWordPieceTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *PUNCTUATION, *WORDS]))
    words = transformers.BertTokenizerFast(tokenizer_object=BertWordPieceTokenizer(str(folder / "vocab.txt")))
    kinds = {"bert": "BertFor", "distilbert": "DistilBertFor", "llama": "LlamaFor"}
    made = "BertForMaskedLM" if kind == "masked" else f"{kinds[kind]}QuestionAnswering"
    shape = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        "bert" if kind == "masked" else kind,
        vocab_size=100,
        max_position_embeddings=128,
        num_key_value_heads=2,
        **shape,
    )
    network = getattr(transformers, made)(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    network.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def opened_in(folder: Path) -> Opened:
    return open_model(find_model(str(folder)))


def expected_answer(opened: Opened, folder: Path, asked: SpanQuestion, window: int, stride: int) -> str:
    """The best span, found by loops over each window alone, with the tokenizer and the network of transformers."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    device = opened.precision.device
    network = AutoModelForQuestionAnswering.from_pretrained(folder).eval().to(device)
    words = AutoTokenizer.from_pretrained(folder)
    tokens = words(asked.question, add_special_tokens=False).input_ids[: min(64, window // 4)]
    passage = words(asked.passage, add_special_tokens=False, return_offsets_mapping=True)
    room = window - len(tokens) - 3
    best, answer = -float("inf"), ""
    for start in range(0, len(passage.input_ids), stride):
        own = passage.input_ids[start : start + room]
        ids = [words.cls_token_id, *tokens, words.sep_token_id, *own, words.sep_token_id]
        types = [0] * (len(tokens) + 2) + [1] * (len(own) + 1)
        more = {"token_type_ids": torch.tensor([types], device=device)} if network.config.model_type == "bert" else {}
        with torch.no_grad():
            found = network(input_ids=torch.tensor([ids], device=device), **more)
        for first in range(len(own)):
            for last in range(first, min(first + 30, len(own))):
                at = len(tokens) + 2
                score = float(found.start_logits[0, at + first] + found.end_logits[0, at + last])
                if score > best:
                    spans = passage.offset_mapping
                    best, answer = score, asked.passage[spans[start + first][0] : spans[start + last][1]]
        if start + room >= len(passage.input_ids):
            break
    return answer


@needs_transformers
@pytest.mark.parametrize(("kind", "tokens_at_once"), [("bert", 400), ("distilbert", 1)])
def test_the_answer_is_the_best_span_of_all_windows(
    kind: str, tokens_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against loops over single windows; padding in a batch changes nothing."""
    monkeypatch.setattr(answers, "_STRIDE", 16)
    folder = folder_of(kind, tmp_path / kind)
    opened = opened_in(folder)
    scorer = Scorer(opened.network, opened.precision, max_length=64, tokens_at_once=tokens_at_once)
    texts = [expected_answer(opened, folder, asked, 64, 16) for asked in QUESTIONS]
    assert len(set(texts)) == len(texts)
    expected = [
        SpanQuestion(asked.question, asked.passage, (text,)) for asked, text in zip(QUESTIONS, texts, strict=True)
    ]
    found = {score.metric: score for score in answers_scorer("squad", expected, scorer, opened.tokenizer)()}
    assert found["exact_match"].value == found["f1"].value == 1.0
    assert found["f1"].examples == len(QUESTIONS)
    wrong = {score.metric: score for score in answers_scorer("squad", QUESTIONS, scorer, opened.tokenizer)()}
    assert wrong["exact_match"].value < 1
    assert wrong["f1"].task_version != found["f1"].task_version


@needs_transformers
def test_a_head_that_a_task_needs_must_be_there(tmp_path: Path) -> None:
    answering = opened_in(folder_of("bert", tmp_path / "bert")).network
    masked = opened_in(folder_of("masked", tmp_path / "masked")).network
    answering.require_head(["squad", "squad@0123456789ab"])
    with pytest.raises(GpasError, match=r"bracket needs a head that predicts the next token.*it can be asked squad"):
        answering.require_head(["bracket"])
    with pytest.raises(GpasError, match=r"squad needs a head for answers.*ForQuestionAnswering.*has none"):
        masked.require_head(["squad"])
    with pytest.raises(GpasError, match=r"bracket needs a head that predicts the next token.*has none$"):
        masked.require_head(["bracket"])


@needs_transformers
def test_what_a_masked_network_loses_without_a_layer_is_its_loss_on_masked_tokens(tmp_path: Path) -> None:
    import transformers

    folder = folder_of("masked", tmp_path / "masked")
    (tmp_path / "notes.txt").write_text(" ".join(WORDS * 4))
    network = PinnedNetwork(path="masked", sha256=pin_of(*digests(folder)))
    text = {"text": "notes.txt", "eval_tokens": 60, "max_length": 24}
    cell = cell_from({"network": plain(network), "importance": text})
    outcome = run(cell, new_attempt(tmp_path, cell, "importance"), lambda: None)
    (layers,) = recorded_events(tmp_path / "runs", cell.key, Layers)

    opened = opened_in(folder)
    mask_id = opened.network.mask_id
    assert mask_id is not None
    batches, _ = masked_batches(read_text("notes.txt", tmp_path), opened.tokenizer, mask_id, 24, 60)
    rows = [torch.from_numpy(batch.inputs) for batch in batches]
    assert [row[0, [0, -1]].tolist() for row in rows] == [[2, 3]] * len(rows)  # [CLS] and [SEP]
    inputs, targets = (np.concatenate([getattr(one, name)[0] for one in batches]) for name in ("inputs", "targets"))
    chosen = targets != IGNORED
    assert (inputs[chosen] == mask_id).any()
    assert not (inputs[~chosen] == mask_id).any()
    theirs = transformers.BertForMaskedLM.from_pretrained(folder).eval()

    def loss() -> float:
        with torch.no_grad():
            logits = torch.cat([theirs(input_ids=row).logits[0] for row in rows])
        return float(functional.cross_entropy(logits[chosen], torch.from_numpy(targets[chosen])))

    whole = loss()
    assert outcome.metrics["masked_loss"] == pytest.approx(whole, rel=1e-5)
    blocks = list(theirs.bert.encoder.layer)
    rises = []
    for number in range(len(blocks)):
        theirs.bert.encoder.layer = torch.nn.ModuleList(blocks[:number] + blocks[number + 1 :])
        rises.append(loss() - whole)
    assert layers.values["importance"] == pytest.approx(rises, abs=1e-5)


@needs_transformers
def test_a_masked_network_needs_a_mask_token(tmp_path: Path) -> None:
    folder = folder_of("masked", tmp_path / "masked")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token": None}))
    with pytest.raises(GpasError, match="it predicts masked tokens, and its tokenizer has no mask_token"):
        opened_in(folder)


@needs_transformers
def test_a_network_that_sees_later_tokens_is_no_language_model(tmp_path: Path) -> None:
    """BertLMHeadModel without is_decoder: transformers loads it, and its log-likelihoods would mean nothing."""
    folder = folder_of("masked", tmp_path / "masked")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertLMHeadModel"]}))
    with pytest.raises(GpasError, match="its states depend on later tokens, so it does not predict the next token"):
        opened_in(folder)
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertLMHeadModel"], "is_decoder": True})
    )
    opened_in(folder)


def squad_file(folder: Path, **more: Any) -> Path:
    """A file in the form in which the authors of SQuAD publish it."""
    qas = [
        {
            "answers": [{"answer_start": PASSAGE.index(text), "text": text} for text in asked.answers],
            "question": asked.question,
            "id": str(place),
            **more,
        }
        for place, asked in enumerate(QUESTIONS[:2])
    ]
    path = folder / "dev-v1.1.json"
    data = [{"title": "Layers", "paragraphs": [{"context": PASSAGE, "qas": qas}]}]
    path.write_text(json.dumps({"data": data, "version": "1.1"}, indent=1))
    return path


def test_the_file_of_the_authors_and_rows_of_the_hub_are_the_same_task(tmp_path: Path) -> None:
    made = import_task(squad_file(tmp_path), "squad", tmp_path)
    task = direct_task(made.name, tmp_path)
    assert list(task.questions()) == QUESTIONS[:2]
    rows = tmp_path / "rows.jsonl"
    lines = [
        {"question": one.question, "context": one.passage, "answers": {"text": list(one.answers)}}
        for one in QUESTIONS[:2]
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert import_task(rows, "squad", tmp_path).name == made.name


@cases("extensions/cases.yaml")
def test_rows_that_are_not_of_squad_are_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {"question": "Where?", "context": PASSAGE, "answers": {"text": ["Lausanne"]}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**good, **row}))
    with pytest.raises(DataError, match=message):
        import_task(path, "squad", tmp_path)
    assert not (tmp_path / "tasks").exists()
