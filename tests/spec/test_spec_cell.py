"""Cells: round trip, keys, canonical spellings, every problem at once."""

import itertools
import json
from typing import Any

import pytest
from cases import cases, tables
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import cell_from

RECIPE = {"lr": 1.5e-3, "warmup": 60, "steps": 600, "batch": 16}
FILES = {"source": "files", "path": "text/*.txt", "tokenizer": "bpe", "length": 64, "eval_tokens": 2000}


def cell(**values: Any) -> Cell:
    optim = {**RECIPE, **values.pop("optim", {})}
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": optim, **values})


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


@cases("spec/cases.yaml")
def test_two_spellings_of_one_network_have_one_key(one: dict, other: dict) -> None:
    assert cell(**one).key == cell(**other).key


@cases("spec/cases.yaml")
def test_every_setting_that_can_change_the_result_changes_the_key_and_is_recorded(change: dict) -> None:
    made = cell(**change)
    assert made.key != cell().key
    assert cell_from(made.to_mapping()) == made
    if "optim" in change and len(change) > 1:
        assert made.key != cell(**{**change, "optim": {}}).key


def test_no_two_of_these_settings_have_one_key() -> None:
    table = tables("spec/cases.yaml")["every_setting_that_can_change_the_result_changes_the_key_and_is_recorded"]
    assert len({cell(**change).key for (change,) in table}) == len(table)


def test_a_scheme_sets_the_default_initialisation() -> None:
    assert cell(norm="deepnorm").model.init.preset == "deepnorm"
    assert cell(norm="deepnorm", init="normal").model.init.preset == "normal"
    assert cell(norm="pre").model.init.preset == "normal"


def test_every_problem_is_reported_at_once() -> None:
    found = problems(size="quickstrt", gate={"activation": "rely"}, sede=1, optim={"lr": 0, "batch": True})
    assert "size: unknown size 'quickstrt'; did you mean 'quickstart'?" in found
    assert "gate.activation: unknown value 'rely'; did you mean 'relu'?" in found
    assert "sede: unknown key 'sede'; did you mean 'seed'?" in found
    assert any(line.startswith("optim.lr: 0.0 is too small") for line in found)
    assert "optim.batch: true is not a whole number" in found


@cases("spec/cases.yaml")
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


@cases("spec/cases.yaml")
def test_rows_of_a_mean_are_shared_evenly(mean_rows: int, processes: int, said: str) -> None:
    assert Optim(lr=1e-3, warmup=1, steps=2, batch=12, mean_rows=mean_rows).split_fault(processes) == said
