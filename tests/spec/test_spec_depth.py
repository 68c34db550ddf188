"""Training of part of the depth, and objectives."""

import math
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from cases import cases, tables
from refusals import refused

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import computed_flops, flops_per_token, relative_flops, whole_flops_per_token
from gpas_cli.spec.depth import LayerSchedule, copies, factors_of
from gpas_cli.spec.equation import depth_lines
from gpas_cli.spec.extensions import main_result
from gpas_cli.spec.objective import CAUSAL, Masked
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.stage import _pretraining_tokens

STEPS = 400_000
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 24, "vocab": 280}


def cell(depth: object, layers: int = 24, steps: int = STEPS, **values: object) -> Cell:
    optim = {"lr": 1e-3, "warmup": 1, "steps": steps, "batch": 8, **values.pop("optim", {})}
    return cell_from(
        {"size": {**SIZE, "layers": layers}, "data": "quickstart", "optim": optim, "depth": depth, **values}
    )


def problems(depth: object, **values: object) -> list[str]:
    with pytest.raises(InvalidExperiments) as caught:
        cell(depth, **values)
    return [str(problem) for problem in caught.value.problems]


def schedule(depth: object, layers: int = 24, steps: int = STEPS) -> LayerSchedule:
    return cell(depth, layers, steps).layer_schedule


def boundaries(found: LayerSchedule) -> list[int]:
    """Return the last update of every stage but the last."""
    return [start - 1 for start in found.starts[1:]]


def test_sqrt_factors_of_the_papers_example() -> None:
    squares = [factor**2 for factor in factors_of("sqrt", (1, 4, 5, 9, 12), 12, ())]
    assert squares == pytest.approx([3, 1, 4, 3, 1], rel=1e-15)
    assert factors_of("linear", (1, 4, 5, 9, 12), 12, ()) == (3, 1, 4, 3, 1)
    assert factors_of("inverse", (1, 3), 3, (1.0, 0.5, 0.25)) == (1, 4)
    assert factors_of("none", (2, 7), 8, ()) == (1, 1)
    assert factors_of("sqrt", (), 8, ()) == ()


@pytest.mark.parametrize("kind", ["raptr", "stacking"])
def test_schedules_of_appendix_c(kind: str) -> None:
    """6-12-18-24 to an average of 20: printed as 17k, 74k, 172k. 12-16-20-24: printed as 40k, 120k, 240k."""
    shifted = schedule({"like": kind, "stages": "6-12-18-24", "average": 20})
    assert boundaries(shifted) == [17_778, 75_556, 173_333]
    assert shifted.average() == pytest.approx(20, abs=1e-4)
    proportional = schedule({"like": kind, "stages": "12-16-20-24", "lengths": "proportional"})
    assert boundaries(proportional) == [40_000, 120_000, 240_000]
    assert proportional.average() == 20
    assert schedule({"like": kind, "stages": "12-16-20-24"}).average() == 18
    assert boundaries(schedule({"like": kind, "stages": "6-8-10-12"}, 12, 100_000)) == [25_000, 50_000, 75_000]


def test_full_steps_shift_the_boundaries_and_keep_the_average() -> None:
    depth = {"like": "raptr", "stages": "12-16-20-24", "lengths": "proportional", "full_steps": 30_000}
    found = schedule(depth)
    assert found.starts == (30_001, 70_001, 150_001, 270_001)
    assert found.average() == 20
    assert [sum(found.kept(update)) for update in (1, 30_000)] == [24, 24]
    sizes = [sum(found.kept(update)) for update in (30_001, 70_000, 70_001, 270_000, 270_001)]
    assert sizes == pytest.approx([12, 12, 16, 20, 24])
    assert found.average(1, 60_000) == pytest.approx((24 + 12) / 2)


@pytest.mark.parametrize(("stages", "average"), [("3-6-9-12", 9), ("4-8-12", 9), ("6-9-12", 9), ("6-8-10-12", 9)])
def test_the_schedules_of_table_5_can_have_the_printed_average(stages: str, average: float) -> None:
    found = schedule({"like": "raptr", "stages": stages, "average": average}, 12, 675_000)
    assert found.average() == pytest.approx(average, abs=1e-4)


@pytest.mark.parametrize("average", [9, 10])
def test_layer_drop_keeps_fewer_layers_the_later_and_the_deeper(average: float) -> None:
    found = schedule({"like": "layerdrop", "average": average}, 12, 20_000)
    sums = [sum(found.kept(update)) for update in range(1, 20_001)]
    assert sum(sums) / len(sums) == pytest.approx(average, rel=1e-9)
    assert found.average(101, 300) == pytest.approx(sum(sums[100:300]) / 200, rel=1e-9)
    assert sums == sorted(sums, reverse=True)
    kept = found.kept(20_000)
    assert list(kept) == sorted(kept, reverse=True)
    assert kept[-1] == pytest.approx(found.depth.keep, abs=1e-6)
    assert found.kept(1)[-1] > 0.99
    active = found.at(1, 20_000)
    assert active.factors == tuple(1 / kept[layer - 1] for layer in active.layers)


def test_layer_drop_keeps_a_layer_with_the_probability_of_zhang_and_he() -> None:
    """After a hundredth of the updates theta is 0.5 exp(-1) + 0.5 = 0.684; layer l has 1 - (l / 12)(1 - theta)."""
    kept = schedule({"like": "layerdrop", "keep": 0.5, "gamma": 100}, 12, 1000).kept(10)
    assert [kept[layer - 1] for layer in (1, 6, 12)] == pytest.approx([0.97366, 0.84197, 0.68394], abs=1e-5)


@cases("spec/cases.yaml")
def test_the_lengths_of_4000_paths(depth: object, fixed: list[int]) -> None:
    """Within three standard errors of what is expected, over all paths and for every layer."""
    found = schedule(depth, 12, 4000)
    probabilities = [found.kept(update) for update in range(1, 4001)]
    paths = [found.at(7, update) for update in range(1, 4001)]
    assert all({*fixed} <= set(path.layers) for path in paths)
    difference = sum(len(path.layers) for path in paths) - sum(map(sum, probabilities))
    variance = sum(p * (1 - p) for kept in probabilities for p in kept)
    assert abs(difference) < 3 * math.sqrt(variance)
    for layer in range(1, 13):
        counted = sum(layer in path.layers for path in paths)
        expected = [kept[layer - 1] for kept in probabilities]
        # Twelve layers: four standard errors.
        assert abs(counted - sum(expected)) <= 4 * math.sqrt(sum(p * (1 - p) for p in expected))


@pytest.mark.parametrize(("stages", "layers", "fixed"), [("23", 24, "none"), ("6-8-10-12", 12, "first,last")])
def test_paths_may_have_exactly_the_layers_of_their_stage(stages: str, layers: int, fixed: str) -> None:
    found = schedule({"like": "raptr", "stages": stages, "fixed": fixed, "drawn": "exactly"}, layers, 4800)
    paths = [found.at(7, update).layers for update in range(1, 4801)]
    assert [len(path) for path in paths] == [found.size(update) for update in range(1, 4801)]
    assert all(found.depth.fixed_layers() <= set(path) for path in paths)
    left_out = Counter(layer for path in paths for layer in set(range(1, layers + 1)) - set(path))
    free = layers - len(found.depth.fixed_layers())
    share = sum(left_out.values()) / free
    assert len(left_out) == free
    assert all(abs(count - share) < 4 * math.sqrt(share) for count in left_out.values())


def test_layers_depend_on_seed_and_update_alone() -> None:
    found = schedule({"like": "raptr", "stages": "6-8-10-12"}, 12, 1000)
    drawn = [found.at(42, update) for update in range(1, 1001)]
    assert drawn == [found.at(42, update) for update in range(1, 1001)]
    assert drawn != [found.at(43, update) for update in range(1, 1001)]
    assert all(path.layers == tuple(range(1, 13)) and path.plain for path in drawn[750:])
    assert found.at(42, 3).layers == (1, 2, 9, 12)  # another version of the code must draw the same
    code = "from gpas_cli.spec.depth import draw; print(draw(42, 3, [1, *[0.4] * 10, 1]))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.split() == "(1, 2, 9, 12)".split()


def test_stacking_grows_at_the_boundaries() -> None:
    found = schedule({"like": "stacking", "stages": "6-9-12"}, 12, 300)
    assert [len(found.at(1, update).layers) for update in (1, 100, 101, 200, 201)] == [6, 6, 9, 9, 12]
    assert [len(found.evaluated(update).layers) for update in (0, 100, 101, 300)] == [6, 6, 9, 12]
    assert found.copies(101) == ((7, 4), (8, 5), (9, 6))
    assert found.copies(201) == ((10, 7), (11, 8), (12, 9))
    assert [found.copies(update) for update in (1, 100, 102, 300)] == [()] * 4
    assert copies(6, 9, "whole") == ((7, 1), (8, 2), (9, 3))
    assert copies(6, 12, "whole") == copies(6, 12, "last")
    assert [source for _, source in copies(2, 7, "last")] == [1, 2, 1, 2, 1]


@cases("spec/cases.yaml")
def test_two_spellings_of_one_schedule_have_one_key(one: object, other: object) -> None:
    assert cell(one) == cell(other)
    assert cell(one).key == cell(other).key
    assert cell_from(cell(one).to_mapping()) == cell(one)


def test_the_key_of_full_depth_is_the_one_before_there_was_depth() -> None:
    plain = cell("full")
    without = {name: part for name, part in plain.to_mapping().items() if name != "depth"}
    assert cell_from(without).key == plain.key


def test_a_baseline_of_equal_work_is_a_plain_cell() -> None:
    depth = {"like": "full", "work_of": "6-8-10-12"}
    assert cell(depth, 12, 675_000) == cell("full", 12, 506_250)
    assert cell({"work_of": "12-16-20-24", "average": 20}) == cell("full", steps=333_333)
    assert cell({"work_of": "12-16-20-24", "lengths": "proportional"}) == cell("full", steps=333_333)


@cases("spec/cases.yaml")
def test_mistakes(depth: object, message: str) -> None:
    (problem,) = problems(depth)
    assert message in problem


@cases("spec/cases.yaml")
def test_mistakes_across_sections(depth: object, values: dict[str, Any], message: str) -> None:
    assert message in problems(depth, **values)[0]
    assert cell({"like": "stacking", "stages": "12-18-24"}, norm="mix")


def test_stages_boundaries_average_and_factors_in_words() -> None:
    depth = {"like": "raptr", "stages": "6-8-10-12", "full_steps": 1000}
    lines = depth_lines(cell(depth, 12, 100_000))
    assert lines[:-1] == tables("spec/cases.yaml")["stages_boundaries_average_and_factors_in_words"]
    assert lines[-1].startswith("average: 9 of 12 layers, 0.75 of the work of full depth, ")


def test_gates_that_autograd_trains_are_named() -> None:
    def named(**depth: object) -> bool:
        lines = depth_lines(cell({"stages": "6-12", **depth}, 12, 300, norm="pre", gate="gpas"))
        return any("autograd computes the gradients of gates" in line for line in lines)

    assert named(like="raptr")
    assert not named(like="raptr", scale="none")
    assert not named(like="stacking")


def test_copies_and_layer_drop_in_words() -> None:
    stacking = depth_lines(cell({"like": "stacking", "stages": "6-9-12", "moments": "fresh"}, 12, 300))
    assert "updates 101-200: the first 9 layers; layers copied: 7 from 4, 8 from 5, 9 from 6" in stacking
    assert "the optimizer's state of copied layers is fresh" in stacking
    dropped = depth_lines(cell({"like": "layerdrop", "skipped": "zero"}, 12, 300))
    assert any("theta from 1 to 0.5 as exp(-100 t / 300): layer 12 with 0.5 in the end" in line for line in dropped)
    assert "the optimizer sees a gradient of zero for a skipped layer" in dropped
    assert depth_lines(cell("full")) == []


def test_skipped_layers_cost_nothing_in_flops_and_estimates() -> None:
    full = cell("full", 12, 1000)
    raptr = cell({"like": "raptr", "stages": "6-8-10-12"}, 12, 1000)
    assert relative_flops(full) == computed_flops(full) == 1
    assert relative_flops(raptr) == 0.75
    head = flops_per_token(full, 0)
    assert head == 6 * 280 * 16
    layers = whole_flops_per_token(full) - head
    assert flops_per_token(raptr) == pytest.approx(head + 0.75 * layers)
    assert computed_flops(raptr, 1, 250) == pytest.approx((head + 0.5 * layers) / (head + layers))
    cadence = Cadence(eval_every=10**6)
    evaluation = _pretraining_tokens(full, cadence, 1000)
    tokens = [_pretraining_tokens(what, cadence, 0) - evaluation for what in (raptr, full)]
    assert tokens[0] == pytest.approx(computed_flops(raptr) * tokens[1])
    # The last stage is the whole network.
    assert _pretraining_tokens(raptr, cadence, 750) == pytest.approx(_pretraining_tokens(full, cadence, 750))


OPTIM = {"lr": 1e-3, "warmup": 2, "steps": 10, "batch": 4}


def trained_by(**values: Any) -> Cell:
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": OPTIM, **values})


def test_the_key_of_a_causal_cell_is_older_than_objectives() -> None:
    init = {"zero_last_row": True}
    keys = {trained_by(init=init, objective=value).key for value in ("causal", {"kind": "causal"})}
    assert {trained_by(init=init).key, *keys} == {"68543e75d0af92bf"}
    assert trained_by().objective == CAUSAL


def test_the_usual_rate_of_mlm_may_be_left_out() -> None:
    assert trained_by(objective="mlm").key == trained_by(objective={"kind": "mlm", "rate": 0.15}).key


def test_a_cell_recorded_before_objectives_is_causal() -> None:
    recorded = trained_by().to_mapping()
    del recorded["objective"]
    assert cell_from(recorded).objective == CAUSAL


def test_the_mask_token_is_an_id_that_the_tokenizer_does_not_have() -> None:
    assert (trained_by().text_vocab, trained_by(objective="mlm").text_vocab) == (512, 511)
    named = {"like": "mlm", "mask_token": "[MASK]"}
    assert trained_by(objective=named, data={"like": "quickstart", "tokenizer": "own.json"}).text_vocab == 512


def test_the_row_of_the_mask_token_is_trained() -> None:
    assert not trained_by(objective="mlm").model.init.zero_last_row
    assert trained_by(objective="mlm", init="xavier").model.init.preset == "xavier"


@cases("spec/cases.yaml")
def test_mistakes_get_one_clear_message(values: dict[str, Any], said: str) -> None:
    with refused(said):
        trained_by(**values)


def test_importance_by_loss_needs_no_next_token() -> None:
    assert [stage.kind for stage in trained_by(objective="mlm", importance={}).stages] == ["pretrain", "importance"]


def test_scores_of_masked_tokens_never_stand_beside_those_of_the_next_token() -> None:
    scores = {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 1.0, "tokens": 10, "loss_reference": 1.9}
    assert CAUSAL.named(scores) == scores
    named = Masked().named(scores)
    assert named == {"masked_loss": 2.0, "masked_perplexity": 7.4, "tokens": 10}
    assert main_result(named)[0].name == "masked_perplexity"


def test_the_line_of_explain_names_the_mask_token() -> None:
    assert Masked().describe(512) == (
        "15 % of the tokens are predicted from the whole row: 80 % of them are masked (id 511), 10 % random, "
        "10 % unchanged"
    )


def test_ul2_is_span_corruption_with_seven_denoisers_and_modes() -> None:
    """Tay et al. 2022, Table 1: spans of 3 and 8 at 15 %, a prefix, and the extreme ones."""
    ul2 = trained_by(objective="ul2")
    assert (ul2.objective.kind, ul2.text_vocab) == ("span", 512 - 103)
    assert ul2.key != trained_by(objective="span").key
    assert ul2.key == trained_by(objective=ul2.to_mapping()["objective"]).key
    named = ul2.objective.named({"loss": 2.0, "perplexity": 7.4, "tokens": 10})
    assert named == {"denoising_loss": 2.0, "denoising_perplexity": 7.4, "tokens": 10}
    assert 0.3 < ul2.objective.target_share() < 0.4
    assert 0.5 < ul2.objective.attended_share() < 1
