"""The mask token of a tokenizer.json: found among its pieces and added tokens, or refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpas_cli.data.objective import reader_of
from gpas_cli.data.tokenizer import MaskToken, Tokenizer, absent_reason, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.spec.parse_cell import cell_from

DEFINITIONS = {
    "pieces": {"model": {"vocab": {"a": 0, "[MASK]": 1}}},
    "scored pieces": {"model": {"vocab": [["a", 0.0], ["[MASK]", -1.0]]}},
    "added": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "[MASK]"}]},
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_token_is_found_wherever_a_definition_has_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "own.json").write_text(json.dumps(DEFINITIONS[name]))
    assert absent_reason(MaskToken("own.json", "[MASK]"), tmp_path) == ""
    reason = absent_reason(MaskToken("own.json", "<mask>"), tmp_path)
    assert reason.startswith("objective.mask_token: own.json has no token '<mask>'; leave the setting out")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": []}'])
def test_other_faults_of_a_tokenizer_are_reported_elsewhere(tmp_path: Path, content: str) -> None:
    (tmp_path / "own.json").write_text(content)
    assert absent_reason(MaskToken("own.json", "[MASK]"), tmp_path) == ""
    assert absent_reason(MaskToken("t5", "[MASK]"), tmp_path) == ""


def test_the_reader_masks_with_the_named_token() -> None:
    backend = train_bpe(["some text about masks and other words"], 280)
    backend.add_special_tokens(["[MASK]"])
    size = backend.get_vocab_size(with_added_tokens=True)
    tokenizer = Tokenizer(backend, size, origin="own.json")

    def reader(**objective: object) -> object:
        values = {
            "size": {"like": "quickstart", "vocab": size},
            "data": {"like": "quickstart", "tokenizer": "own.json"},
        }
        optim = {"lr": 1e-3, "warmup": 1, "steps": 9}
        return reader_of(cell_from({**values, "optim": optim, "objective": {"like": "mlm", **objective}}), tokenizer)

    made = reader(mask_token="[MASK]")
    assert made.mask_id == backend.token_to_id("[MASK]")
    assert made.ids == size
    assert made.end_id == tokenizer.eos_id
    assert reader().mask_id == size - 1
    with pytest.raises(DataError, match=r"own\.json has no token '<mask>' below"):
        reader(mask_token="<mask>")
