"""Cells: round trip, keys, canonical spellings, every problem at once; what is said of their networks."""

import itertools
import json
import math
from typing import Any

import pytest
import torch
from cases import cases, tables
from gate_activations import ALL_ACTIVATIONS, FORMULAS, SOFTSIGN
from golden_networks import GOLDEN

from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.llama import build
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.equation import _embedding, description, equation, equations, family
from gpas_cli.spec.gate import _SAMPLES, _SITES, ACTIVATIONS, _activation_fault, activation, canonical
from gpas_cli.spec.model import FAMILIES, conditions, has_large_shortcut, has_small_sublayers, remark, shortcut_std
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import cell_from, parse_model

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
    for (scheme, site), act in zip(itertools.product(SCHEMES, _SITES), activations, strict=False):
        gate = {"activation": act, "site": site, "init": 0.1, "share": "sublayer"}
        original = cell(norm=scheme, gate=gate, seed=7)
        again = cell_from(json.loads(json.dumps(original.to_mapping())))
        assert again == original, (scheme, site, act)
        assert again.key == original.key, (scheme, site, act)


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


def gated(act: str, **gate: object) -> Cell:
    return cell(gate={"activation": act, **gate})


@pytest.mark.parametrize("act", ALL_ACTIVATIONS)
def test_the_slope_is_the_limit_of_differences(act: str) -> None:
    for alpha in (0.37 * step + 0.01 for step in range(-9, 10)):
        above, below = (activation(act, alpha + h)[0] for h in (1e-6, -1e-6))
        assert activation(act, alpha)[1] == pytest.approx((above - below) / 2e-6, abs=1e-5)


@cases("spec/cases.yaml")
def test_a_formula_that_is_none_is_refused_with_the_reason(text: str, message: str) -> None:
    assert message in _activation_fault(text)
    with pytest.raises(InvalidExperiments, match=r"gate\.activation: "):
        gated(text)


@pytest.mark.parametrize("text", FORMULAS)
def test_spaces_and_parentheses_change_no_key_and_numbers_do(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
    spread = gated(f"  ({text.replace('(', '( ').replace('+', '  +  ')})", init=0.1)
    assert spread == gated(text, init=0.1)
    assert spread.model.gate.activation == canonical(text)
    assert cell_from(spread.to_mapping()).key == spread.key
    keys = {gated(one, init=0.1).key for one in (text, f"0.5 * ({text})", *ACTIVATIONS)}
    assert len(keys) == 2 + len(ACTIVATIONS)
    assert [activation(canonical(text), a) for a in _SAMPLES] == [activation(text, a) for a in _SAMPLES]


def test_the_equation_has_the_formula() -> None:
    (line,) = (line for line in description(gated(SOFTSIGN).model) if line.startswith("G(x)"))
    assert line == "G(x) = x - (alpha / (1 + abs(alpha))) sg(x); alpha learnable, one per layer, starts at 0"


@cases("spec/cases.yaml")
def test_a_start_without_effect_is_refused(text: str, gate: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        gated(text, **gate)
    assert message in str(caught.value)


def test_a_formula_that_is_not_defined_has_no_number() -> None:
    for text, alpha in (("1 / alpha", 0.0), ("sqrt(alpha)", -1.0), ("exp(alpha)", 1e4), ("alpha ** 0.5", -1.0)):
        assert math.isnan(activation(text, alpha)[0])


SIZE = {"hidden": 64, "ffn": 128, "heads": 2, "layers": 2, "vocab": 3000}


def model(**parts: object) -> object:
    return parse_model({"size": SIZE, "norm": "pre", **parts})


@cases("spec/cases.yaml")
def test_table_5(parts: dict, small: bool, large: bool) -> None:
    spec = model(family="gpt", **parts)
    assert (has_small_sublayers(spec), has_large_shortcut(spec)) == (small, large)
    assert f"({'large' if large else 'small'} shortcut)" in conditions(spec)
    assert not remark(spec)


STARTS = tables("spec/cases.yaml")["the_std_is_that_of_the_stream"]


@pytest.mark.parametrize("parts", [*(parts for parts, _, _ in tables("spec/cases.yaml")["table_5"]), *STARTS])
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_std_is_that_of_the_stream(parts: dict, family: str) -> None:
    spec = model(family=family, **parts)
    decoder = build(spec, seed=3).model
    row = torch.arange(0, 2048).reshape(1, -1)
    streams = []
    decoder.layers[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    with torch.no_grad():
        decoder(row)
    assert streams[0].std().item() == pytest.approx(shortcut_std(spec), rel=0.02)


def test_small_outside_gpt_has_a_large_shortcut_and_says_so() -> None:
    spec = model(init="small")
    assert shortcut_std(spec) == pytest.approx(math.sqrt(2 / 5))
    assert "init: small starts the embedding at std 0.632, a large shortcut" in remark(spec)
    assert not remark(model(init={"preset": "small", "embed_std": math.sqrt(2 / 320)}))
    assert not remark(model(init="normal"))


def test_scaled_on_top_of_a_large_embedding_says_so() -> None:
    spec = parse_model({"size": {**SIZE, "hidden": 1024}, "init": "small", "embed": "scaled"})
    assert "so the stream starts at 20.2" in remark(spec)
    assert not remark(model(init="small", embed="scaled", family="gpt"))


SCHEDULES = json.loads((GOLDEN / "lr_schedule.json").read_text())["sizes"]


@cases("spec/cases.yaml")
def test_equation_of_a_layer(norm: str, site: str, expected: str) -> None:
    assert (
        equation(parse_model({"size": "quickstart", "norm": norm, "gate": {"site": site, "init": 0.1}}), 3) == expected
    )


def test_mix_changes_its_equation_once() -> None:
    model = parse_model({"size": "quickstart", "norm": "mix", "gate": "gpas"})
    assert equations(model) == [(1, 3, "N(G(x) + f(x))"), (4, 12, "G(x + f(N(x)))")]


@cases("spec/cases.yaml")
def test_the_input_of_the_first_layer(values: dict, expected: str) -> None:
    assert _embedding(parse_model({"size": "quickstart", **values})) == expected


def test_families_in_words() -> None:
    assert family(parse_model({"size": "quickstart"})) == ""
    assert family(parse_model({"size": "quickstart", "family": "gpt"})) == (
        "N is LayerNorm; FFN(x) = W_down gelu(W_up x); P has 2048 learned positions; projections have biases; "
        "the head is E"
    )
    qk_norm = {"like": "llama", "qk_norm": "head"}
    assert family(parse_model({"size": "quickstart", "family": qk_norm})) == "q = N(W_q x) and k = N(W_k x), each head"


@pytest.mark.parametrize("size", SCHEDULES)
def test_learning_rates_are_the_references(size: str) -> None:
    golden = SCHEDULES[size]
    optim = Optim(lr=golden["base_lr"], warmup=golden["warmup"], steps=golden["steps"])
    for update, rate in golden["lr_of_update_u"].items():
        assert optim.learning_rate(int(update)) == pytest.approx(rate, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("family", "tokens", "given"), [("llama", 4096, 4096), ("gpt", 4096, 2048), ("gpt", 64, 64)])
def test_a_row_has_no_more_tokens_than_there_are_learned_positions(family: str, tokens: int, given: int) -> None:
    assert FAMILIES[family].row_length(tokens) == given
