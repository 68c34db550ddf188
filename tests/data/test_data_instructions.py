"""Rows to finetune on: which tokens are targets, rows, batches and the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpas_cli.data.instructions import (
    InstructionBatches,
    InstructionRows,
    encode,
    held_out_batches,
    prepare_instructions,
)
from gpas_cli.data.loader import IGNORED
from gpas_cli.data.records import FinetuneRecord
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.spec.finetune import Finetune


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a byte-level BPE whose only merge is "ab"."""
    return Tokenizer(train_bpe(["ab", "ab"], 260), 260, origin="a test", local=True)


def spec(**values: Any) -> Finetune:
    return Finetune(**{"data": "a.json", "template": "plain", "length": 8, "seed": 0, "precision": "fp32", **values})


def words(tokenizer: Tokenizer, ids: Any) -> list[str]:
    return [tokenizer.backend.id_to_token(int(identity)) for identity in ids]


def test_only_answers_and_end_tokens_are_targets(tokenizer: Tokenizer) -> None:
    examples = encode([FinetuneRecord("xy", "", "z"), FinetuneRecord("p", "", "qr")], "plain", tokenizer, "f")
    assert words(tokenizer, examples.ids) == ["x", "y", "z", "</s>", "p", "q", "r", "</s>"]
    assert examples.answers.tolist() == [False, False, True, True, False, True, True, True]
    assert (examples.answer_tokens, len(examples)) == (5, 2)
    rows = InstructionRows(examples, spec(length=7), pad_id=0)
    batch = rows.batch(np.array([0]))
    assert words(tokenizer, batch.inputs[0]) == ["x", "y", "z", "</s>", "p", "q", "r"]
    assert [t if t == IGNORED else words(tokenizer, [t])[0] for t in batch.targets[0].tolist()] == [
        IGNORED, "z", "</s>", IGNORED, "q", "r", "</s>",
    ]  # fmt: skip
    everything = InstructionRows(examples, spec(length=7, loss_on="all"), pad_id=0).batch(np.array([0]))
    assert words(tokenizer, everything.targets[0]) == ["y", "z", "</s>", "p", "q", "r", "</s>"]


def test_a_token_across_the_end_of_the_prompt_is_a_target(tokenizer: Tokenizer) -> None:
    """Alone, the prompt ends in the token "a"; in the example "ab" is one token, of which the answer is a part."""
    assert words(tokenizer, tokenizer.encode("xa")) == ["x", "a"]
    examples = encode([FinetuneRecord("xa", "", "by")], "plain", tokenizer, "f")
    assert words(tokenizer, examples.ids) == ["x", "ab", "y", "</s>"]
    assert examples.answers.tolist() == [False, True, True, True]


def test_padded_rows_have_one_example_each(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord("x", "", "y"), FinetuneRecord("pqrstu", "", "v"), FinetuneRecord("pqr", "", "stuvw")]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad", length=5), pad_id=0)
    batch = rows.batch(np.array([2, 0, 1]))
    assert (len(rows), rows.cut_examples, batch.inputs.shape) == (3, 2, (3, 4))
    assert words(tokenizer, batch.inputs[1]) == ["x", "y", "</s>", "<pad>"]
    wanted = [[IGNORED, IGNORED, "s", "t"], ["y", "</s>", IGNORED, IGNORED], [IGNORED] * 4]
    found = [[t if t == IGNORED else words(tokenizer, [t])[0] for t in row] for row in batch.targets.tolist()]
    assert found == wanted


def test_every_row_is_read_once_in_each_epoch_in_an_order_of_the_seed(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord(chr(97 + number), "", "z") for number in range(12)]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad"), pad_id=0)

    def epoch(seed: int, number: int) -> list[int]:
        batches = InstructionBatches(rows, 5, seed)
        ids = np.concatenate([batches.at(step).inputs[:, 0] for step in range(13)])
        return ids[12 * number : 12 * number + 12].tolist()

    assert len(set(epoch(1, 0))) == len(set(epoch(1, 4))) == 12
    assert epoch(1, 0) == epoch(1, 0) != epoch(1, 1) != epoch(2, 1)
    batches = InstructionBatches(rows, 5, 1)
    assert batches.at(7).digest() == InstructionBatches(rows, 5, 1).at(7).digest() != batches.at(6).digest()


def test_held_out_rows_are_the_same_ones_up_to_the_budget(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord(chr(97 + number), "", "z") for number in range(12)]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad"), pad_id=0)
    assert sum(len(batch.inputs) for batch in held_out_batches(rows, 5, 10**6)) == 12
    first = [batch.digest() for batch in held_out_batches(rows, 4, 10)]
    assert len(first) == 2  # 8 targets a batch: a token and an end token for each of 4 rows
    assert first == [batch.digest() for batch in held_out_batches(rows, 4, 10**6)][:2]
    assert list(held_out_batches(None, 4, 10)) == []


def test_examples_are_tokenised_once_and_again_when_the_cache_is_damaged(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"instruction": "xy", "input": "", "output": "z"}] * 20))
    done: list[str] = []

    def rows(**values: Any) -> str:
        found = prepare_instructions(spec(**values), tokenizer, tmp_path / "cache", root=tmp_path, notify=done.append)
        return found.train.batch(np.arange(3)).digest()

    first = rows()
    assert done == ["tokenising the train records of a.json"]
    assert rows() == first
    assert rows(length=4, loss_on="all") != first
    assert len(done) == 1, "rows are cut from the same tokens"
    (cached,) = (tmp_path / "cache").glob("instructions/*/examples.npz")
    cached.write_bytes(cached.read_bytes()[:-30])
    assert rows() == first
    assert len(done) == 2
    path.write_text(json.dumps([{"instruction": "xy", "input": "", "output": "w"}] * 20))
    assert rows() != first


def test_too_few_records_for_a_row_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"instruction": "xy", "output": "z"}]))
    with pytest.raises(DataError, match="1 examples with 4 tokens, too few for one row of length: 8"):
        prepare_instructions(spec(), tokenizer, tmp_path / "cache", root=tmp_path)
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match=r"finetune\.data: a\.json has no records"):
        prepare_instructions(spec(), tokenizer, tmp_path / "cache", root=tmp_path)
