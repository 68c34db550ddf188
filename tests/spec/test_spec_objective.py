"""Objectives: parsing, keys, reserved ids, and what the stages after pretraining refuse."""

from __future__ import annotations

from typing import Any

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.objective import CAUSAL, Masked
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.stage import main_result

OPTIM = {"lr": 1e-3, "warmup": 2, "steps": 10, "batch": 4}


def cell(**values: Any) -> Cell:
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": OPTIM, **values})


def fault(**values: Any) -> str:
    with pytest.raises(InvalidExperiments) as raised:
        cell(**values)
    return str(raised.value)


def test_the_key_of_a_causal_cell_is_older_than_objectives() -> None:
    init = {"zero_last_row": True}
    keys = {cell(init=init, objective=value).key for value in ("causal", {"kind": "causal"})}
    assert {cell(init=init).key, *keys} == {"68543e75d0af92bf"}
    assert cell().objective == CAUSAL


def test_every_setting_of_mlm_changes_the_key() -> None:
    variants: list[Any] = [
        "mlm",
        {"like": "mlm", "rate": 0.3},
        {"like": "mlm", "mask": 0.5},
        {"like": "mlm", "random": 0.0},
        "causal",
    ]
    assert len({cell(objective=value).key for value in variants}) == len(variants)
    assert cell(objective="mlm").key == cell(objective={"kind": "mlm", "rate": 0.15}).key


@pytest.mark.parametrize("value", ["mlm", {"like": "mlm", "rate": 0.3, "mask": 0.5}, "span", "ul2"])
def test_a_recorded_cell_is_read_back(value: Any) -> None:
    made = cell(objective=value)
    assert cell_from(made.to_mapping()) == made


def test_a_cell_recorded_before_objectives_is_causal() -> None:
    recorded = cell().to_mapping()
    del recorded["objective"]
    assert cell_from(recorded).objective == CAUSAL


def test_the_mask_token_is_an_id_that_the_tokenizer_does_not_have() -> None:
    assert (cell().text_vocab, cell(objective="mlm").text_vocab) == (512, 511)
    named = {"like": "mlm", "mask_token": "[MASK]"}
    assert cell(objective=named, data={"like": "quickstart", "tokenizer": "own.json"}).text_vocab == 512


def test_the_row_of_the_mask_token_is_trained() -> None:
    assert not cell(objective="mlm").model.init.zero_last_row
    assert "which objective mlm uses" in fault(objective="mlm", init={"zero_last_row": True})
    assert cell(objective="mlm", init="xavier").model.init.preset == "xavier"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"objective": "mlmm"}, "unknown objective 'mlmm'; did you mean 'mlm'?"),
        ({"objective": {"kind": "bert"}}, "objective.kind: unknown objective 'bert'"),
        ({"objective": 3}, "unknown objective 3"),
        ({"objective": {"like": "mlm", "rate": 0}}, "objective.rate: 0.0 is too small"),
        ({"objective": {"like": "mlm", "mask": 0.95}}, "mask 0.95 and random 0.1 add up to more than 1"),
        ({"objective": {"like": "mlm", "rat": 0.1}}, "unknown key 'rat'; did you mean 'rate'?"),
        ({"objective": {"like": "causal", "rate": 0.1}}, "unknown key 'rate'"),
        ({"objective": "mlm", "size": {"like": "quickstart", "vocab": 260}}, "259, without the 1 that the objective"),
        ({"objective": "mlm", "size": "71m", "data": "c4"}, "set size.vocab: 32001"),
        (
            {"objective": {"like": "span", "denoisers": ["r 3"]}},
            "'r 3' is not 'r MEAN RATE', 'x MEAN RATE' or 's RATE'",
        ),
        ({"objective": {"like": "span", "denoisers": ["s 1.5"]}}, "RATE between 0 and 1"),
        ({"objective": {"like": "span", "denoisers": []}}, "names no denoiser"),
        ({"objective": {"like": "ul2", "sentinels": 4}}, "4 are fewer than the 8 spans of a row of 64 tokens"),
        ({"objective": "span", "data": {"like": "quickstart", "length": 7}}, "needs rows of at least 8 tokens"),
        ({"objective": "ul2", "size": {"like": "quickstart", "vocab": 300}}, "197, without the 103 that the objective"),
        ({"objective": "ul2", "size": "71m", "data": "c4"}, "set size.vocab: 32103"),
        ({"objective": "ul2", "downstream": {}}, "not one of objective span; remove it"),
        ({"objective": {"like": "mlm", "mask_token": "[MASK]"}}, "trained on the text has no mask token; leave the"),
        ({"objective": "mlm", "downstream": {}}, "downstream: the stage downstream needs a network that predicts the"),
        ({"objective": "mlm", "finetune": {}}, "not one of objective mlm; remove it"),
        ({"objective": "mlm", "importance": {"tasks": ["embedded"]}}, "importance.tasks: scoring tasks needs"),
    ],
)
def test_mistakes_get_one_clear_message(values: dict[str, Any], said: str) -> None:
    assert said in fault(**values)


def test_importance_by_loss_needs_no_next_token() -> None:
    assert [stage.kind for stage in cell(objective="mlm", importance={}).stages] == ["pretrain", "importance"]


def test_scores_of_masked_tokens_never_stand_beside_those_of_the_next_token() -> None:
    scores = {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 1.0, "tokens": 10, "loss_reference": 1.9}
    assert CAUSAL.named(scores) == scores
    named = Masked().named(scores)
    assert named == {"masked_loss": 2.0, "masked_perplexity": 7.4, "tokens": 10}
    found = main_result(named)
    assert found is not None
    assert found[0].name == "masked_perplexity"


def test_the_line_of_explain_names_the_mask_token() -> None:
    assert Masked().describe(512) == (
        "15 % of the tokens are predicted from the whole row: 80 % of them are masked (id 511), 10 % random, "
        "10 % unchanged"
    )


def test_ul2_is_span_corruption_with_seven_denoisers_and_modes() -> None:
    """Tay et al. 2022, Table 1: spans of 3 and 8 at 15 %, a prefix, and the extreme ones."""
    ul2 = cell(objective="ul2")
    assert ul2.objective.kind == "span"
    assert ul2.text_vocab == 512 - 103
    assert ul2.key != cell(objective="span").key
    assert ul2.key == cell(objective=ul2.to_mapping()["objective"]).key
    named = ul2.objective.named({"loss": 2.0, "perplexity": 7.4, "tokens": 10})
    assert named == {"denoising_loss": 2.0, "denoising_perplexity": 7.4, "tokens": 10}
    assert 0.3 < ul2.objective.target_share() < 0.4
    assert 0.5 < ul2.objective.attended_share() < 1
