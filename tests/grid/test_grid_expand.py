"""Axes -> cells: order, names, labels, precedence, conditions, includes, values by rule."""

import re
from dataclasses import replace

import pytest
from cases import cases, file_text
from grids import HEAD, cells, complaints, grid, read, whole
from shipped import EXPERIMENTS, cells_of

from gpas_cli.errors import GpasError
from gpas_cli.grid.expand import expand
from gpas_cli.grid.select import select
from gpas_cli.spec.optim import InverseSqrt, WarmupStableDecay
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources

BASE = "base: {size: quickstart, data: quickstart}\n"


def test_the_product_is_in_declared_order_with_the_last_axis_fastest() -> None:
    entries = grid(
        cells(norm="[post, pre]", gate="[none, gpas]", seed="[1, 2]") + "\nexclude: [{norm: post, gate: gpas}]"
    )
    assert [entry.name for entry in entries] == ["post-s1", "post-s2", "pre-s1", "pre-s2", "pre-gpas-s1", "pre-gpas-s2"]
    assert entries[-1].id == "g/pre-gpas-s2"


def test_every_cell_has_labels_of_fixed_settings_too() -> None:
    (entry,) = grid(BASE + "title: one")
    assert entry.axes == {"norm": "pre", "gate": "none", "seed": 42, "size": "quickstart", "data": "quickstart"}


def test_an_expanded_cell_is_the_cell_written_out() -> None:
    entries = grid(cells(gate="[{name: t, like: gpas, activation: tanh}]", **{"optim.lr": "[3e-3]"}, seed="[7]"))
    by_hand = cell_from(
        {
            "size": "quickstart", "data": "quickstart", "gate": {"activation": "tanh"},
            "optim": {"lr": 0.003, "warmup": 60, "steps": 600, "batch": 16}, "seed": 7,
        }
    )  # fmt: skip
    assert (entries[0].cell, entries[0].key) == (by_hand, by_hand.key)


def test_cells_that_differ_in_the_seed_alone_are_the_cells_written_out() -> None:
    axes = {"gate.activation": "[tanh, silu]", "gate": "[gpas]", "optim.lr": "[1e-3, 2e-3]", "seed": "[5, 1, 9]"}
    entries = grid(cells(**axes) + "\noverride: [{where: {seed: 9}, set: {seed: 4}, why: to see}]")
    assert len(entries) == 12
    for entry in entries:
        by_hand = cell_from(entry.cell.to_mapping())
        assert (entry.cell, entry.key) == (by_hand, by_hand.key)
        assert entry.cell.seed == {5: 5, 1: 1, 9: 4}[entry.axes["seed"]]
        assert (entry.cell.model.gate.activation, entry.cell.optim.lr) == (
            entry.axes["gate.activation"],
            entry.axes["optim.lr"],
        )


def test_a_stage_that_takes_its_seed_from_the_cell_gets_each_seed() -> None:
    entries = grid("base: {size: quickstart, data: quickstart, finetune: {}}\naxes: {seed: [5, 1]}")
    assert [entry.cell.parameters("finetune").seed for entry in entries] == [5, 1]


def test_a_wrong_seed_is_refused_after_valid_ones() -> None:
    with pytest.raises(GpasError, match=re.escape("-1 is too small; at least 0")):
        grid(cells(seed="[5, -1]"))


@cases("grid/cases.yaml")
def test_names(axes: dict[str, str], names: list[str]) -> None:
    found = [entry.name for entry in grid(cells(**axes))]
    assert found == names
    assert all(re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*", name) for name in found)


def test_precedence_recipe_base_axes_when_override() -> None:
    body = """
base: {size: quickstart, data: quickstart, optim: {lr: 2e-3, warmup: 50}}
axes: {norm: [pre, lns], seed: [1]}
when: [{where: {norm: lns}, axes: {optim.lr: [4e-3]}}]
override: [{where: {norm: lns}, set: {optim: {warmup: 10}}, why: to see}]
"""
    pre, lns = (entry.cell.optim for entry in grid(body))
    assert (pre.batch, pre.warmup, pre.lr) == (16, 50, 2e-3)  # recipe, base, base
    assert (lns.batch, lns.warmup, lns.lr) == (16, 10, 4e-3)  # recipe, override, when


def test_another_schedule_or_optimizer_than_the_recipes_does_not_have_its_settings() -> None:
    recipe = "batch: 16, optimizer: adafactor, update_clip: 2, schedule: wsd, decay: 0.4, decay_shape: cosine}"
    text = whole(cells(optim="[{name: same, decay: 0.2}, {name: other, schedule: inverse-sqrt, optimizer: adam}]"))
    same, other = (entry.cell.optim for entry in expand(read(text.replace("batch: 16}", recipe))))
    assert (same.decay_of_rate, same.optimizer) == (WarmupStableDecay(decay=0.2, decay_shape="cosine"), "adafactor")
    assert (other.decay_of_rate, other.optimizer, other.lr) == (InverseSqrt(), "adam", 1.5e-3)
    assert other.optimizer_settings is None


def test_a_word_replaces_a_section_and_a_mapping_refines_it() -> None:
    base = "base: {size: quickstart, data: quickstart, gate: {like: gpas, activation: tanh, share: sublayer}}\n"
    replaced = grid(base + "axes: {gate: [gpas, {name: x, like: gpas, share: sublayer}]}")
    assert [(e.cell.model.gate.activation, e.cell.model.gate.share) for e in replaced if e.cell.model.gate] == [
        ("silu", "layer"),
        ("silu", "sublayer"),
    ]
    override = "override: [{where: {}, set: {gate: {share: layer}}, why: to see}]"
    (refined,) = grid(base + override)
    assert (refined.cell.model.gate.activation, refined.cell.model.gate.share) == ("tanh", "layer")


def test_a_mapping_merged_over_a_word_extends_it() -> None:
    entries = grid(
        cells(norm="[mix, deepnorm]") + "\noverride: [{where: {norm: mix}, set: {norm: {post_fraction: 0.5}}, why: x}]"
    )
    assert entries[0].cell == cell_from(
        {**entries[0].cell.to_mapping(), "norm": {"scheme": "mix", "post_fraction": 0.5}}
    )
    (normal,) = grid(BASE + "axes: {norm: [deepnorm]}\noverride: [{where: {}, set: {init.preset: normal}, why: x}]")
    assert (entries[1].cell.model.init.preset, normal.cell.model.init.preset) == ("deepnorm", "normal")


def test_zip_varies_axes_together() -> None:
    entries = grid(BASE + "axes: {zip: {seed: [1, 2], optim.lr: [1e-3, 2e-3]}, norm: [pre, lns]}")
    assert [entry.name for entry in entries] == ["s1-lr0.001-pre", "s1-lr0.001-lns", "s2-lr0.002-pre", "s2-lr0.002-lns"]


def test_when_adds_axes_to_the_matching_cells_only() -> None:
    entries = grid(
        cells(gate="[none, gpas]") + "\nwhen: [{where: {gate: gpas}, axes: {gate.activation: [silu, tanh]}}]\n"
        "exclude: [{gate.activation: silu}]"
    )
    assert [entry.name for entry in entries] == ["none", "gpas-tanh"]


def test_conditions_take_lists_and_compare_numbers_as_numbers() -> None:
    entries = grid(
        cells(seed="[1, 2, 3]", **{"optim.lr": "[1e-3, 2e-3]"}) + "\nexclude: [{seed: [1, 3], optim.lr: 0.001}]"
    )
    assert [entry.name for entry in entries] == ["s1-lr0.002", "s2-lr0.001", "s2-lr0.002", "s3-lr0.002"]


def test_overrides_record_their_reason() -> None:
    body = cells(norm="[pre, lns]") + "\noverride: [{where: {norm: lns}, set: {optim.clip: 1.0}, why: because}]"
    assert [entry.notes for entry in grid(body)] == [(), ("because",)]


def test_notes_and_tags_leave_the_cells_as_they_are() -> None:
    body = cells(norm="[pre, lns]", seed="[1, 2]")
    notes = """
notes:
  - {where: {norm: lns}, text: "for the\n  appendix", tags: [appendix, ours]}
  - {where: {seed: 2}, tags: late}
"""
    plain, noted = grid(body), grid(body + notes)
    assert [entry.key for entry in noted] == [entry.key for entry in plain]
    assert [entry.notes for entry in noted] == [(), (), ("for the appendix",), ("for the appendix",)]
    assert [entry.tags for entry in noted] == [(), ("late",), ("appendix", "ours"), ("appendix", "ours", "late")]
    assert [entry.name for entry in select(noted, ["tag=late", "tag!=ours"])] == ["pre-s2"]
    with pytest.raises(GpasError, match="no cell has tag 'lat'; did you mean 'late'"):
        select(noted, ["tag=lat"])


@pytest.mark.parametrize("stages", ["[pretrain]", "[pretrain, downstream]", "[pretrain, finetune, downstream]"])
def test_stages_have_defaults(stages: str) -> None:
    (entry,) = grid(BASE + f"stages: {stages}")
    assert [stage.kind for stage in entry.cell.stages] == stages.strip("[]").split(", ")


def test_stages_may_be_settings_and_an_axis() -> None:
    entries = grid(cells(finetune="[none, {name: short, epochs: 1}]") + "\nstages: [pretrain, downstream]")
    assert [[stage.kind for stage in entry.cell.stages] for entry in entries] == [
        ["pretrain", "downstream"],
        ["pretrain", "finetune", "downstream"],
    ]
    assert len({entry.cell.stages[0].key for entry in entries}) == 1


def test_sizes_and_corpora_of_the_file() -> None:
    text = file_text("experiments/own_size_and_corpus.yaml")
    (entry,) = expand(read(text))
    assert (entry.cell.model.size.layers, entry.cell.model.size.hidden, entry.cell.data.length) == (24, 32, 128)
    assert entry.resources == Resources(cpus=3, mem="2G")


def test_a_kind_of_job_has_its_own_resources() -> None:
    text = file_text("experiments/own_resources.yaml")
    experiments = read(text)
    (plain,) = expand(experiments, ["plain"])
    (own,) = expand(experiments, ["own"])
    training = Resources(gpus=4, cpus=8, time="1-00:00:00", mem="9G")
    assert {stage.kind: plain.resources_of(stage) for stage in plain.cell.stages} == {
        "pretrain": training,
        "finetune": replace(training, gpus=2),
        "importance": Resources(gpus=1, cpus=2, ranks=1, time="2:00:00", mem="3G"),
    }
    pretrain, importance = (own.resources_of(stage) for stage in own.cell.stages)
    assert pretrain == replace(training, partition="big")
    assert (importance.partition, importance.mem, importance.time, importance.gpus) == ("small", "2G", "2:00:00", 1)
    assert (own.text_resources.cpus, own.text_resources.gpus, plain.text_resources.cpus) == (32, 0, 8)
    assert own.cell.key == expand(read(text.replace("  importance: {time", "  downstream: {time")), ["own"])[0].cell.key


def test_a_changed_size_has_the_recipe_and_resources_of_its_base() -> None:
    (entry,) = grid(BASE + "axes: {size: [{name: shallow, like: quickstart, layers: 4}]}")
    assert (entry.name, entry.cell.optim.steps, entry.cell.model.size.layers) == ("shallow", 600, 4)
    assert entry.resources == Resources(mem="2G", time="0:30:00")


def test_a_file_replaces_the_recipe_of_a_built_in_size_and_single_settings_of_its_resources() -> None:
    text = "version: 1\n{}grids: {{g: {{base: {{size: 7b, data: c4}}, axes: {{norm: [pre]}}}}}}\n"
    (entry,) = expand(read(text.format("")))
    assert (entry.cell.optim.lr, entry.cell.optim.clip) == (3e-4, 1)
    assert entry.resources == Resources(gpus=8, cpus=64, mem="400G", time="1-00:00:00")
    own = "recipes: {7b: {lr: 1e-3, warmup: 1, steps: 9}}\nresources: {all: {mem: 9G}, 7b: {cpus: 8}}\n"
    (entry,) = expand(read(text.format(own)))
    assert (entry.cell.optim.lr, entry.cell.optim.clip) == (1e-3, 0)
    assert entry.resources == Resources(gpus=8, cpus=8, mem="9G", time="1-00:00:00")
    assert complaints(text.format("resources: {all: {notice: 3600}}\n")) == []  # the quickstart's limit is 0:30:00
    assert complaints(text.format("include: [spike]\nresources: {all: {gpus: 0}}\n")) == []  # gpt-13b has 8 nodes
    read_all = read(text.format("include: [raptr, {pack: spike, as: s}]\nresources: {s.gpt-350m: {gpus: 2}}\n"))
    assert {entry.resources.gpus for entry in expand(read_all, ["s.spike-length"])} == {2}
    (entry,) = expand(read(text.replace("data: c4", "data: c4, optim: {{lr: 1e-3, warmup: 1, steps: 9}}").format("")))
    assert (entry.cell.optim.steps, entry.cell.optim.clip) == (9, 0)  # the whole recipe is the grid's own
    wrong = text.replace("data: c4", "data: c4, optim: {{steps: 9}}").format("")
    assert complaints(wrong) == ["e.yaml:2:26: optim.warmup: 10000 is not shorter than the 9 steps"]


INCLUDING = file_text("experiments/including.yaml")


def test_included_cells_come_after_own_ones_and_equal_cells_once() -> None:
    experiments = read(HEAD + INCLUDING)
    assert [entry.id for entry in expand(experiments, ["b"])] == ["b/s1", "b/tanh-s1", "b/gpas-s1"]
    everything = expand(experiments, ["c"])
    assert len({entry.key for entry in everything}) == len(everything) == 5
    assert {entry.grid for entry in everything} == {"c"}


def test_included_cells_of_the_same_name_get_distinct_names() -> None:
    text = HEAD + (
        "  a: {base: {size: quickstart, data: quickstart}, axes: {seed: [1]}}\n"
        "  b: {base: {size: quickstart, data: quickstart, optim.lr: 0.1}, axes: {seed: [1]}, include: [a]}\n"
        "  c: {include: [a, b]}\n"
    )
    assert [entry.name for entry in expand(read(text), ["b"])] == ["s1", "a-s1"]
    assert [entry.name for entry in expand(read(text), ["c"])] == ["s1", "b-s1"]


def test_several_grids_and_the_default_one() -> None:
    experiments = read(HEAD + INCLUDING)
    assert {entry.grid for entry in expand(experiments)} == {"a"}
    assert [entry.grid for entry in expand(experiments, ["b", "a", "b"])] == ["b"] * 3 + ["a"] * 4
    with pytest.raises(GpasError, match=r"no grid 'd' in e.yaml; valid: a, b, c"):
        expand(experiments, ["d"])


def test_absurd_grids_are_refused_before_they_are_built() -> None:
    numbers = "[" + ", ".join(map(str, range(50))) + "]"
    text = whole(cells(seed=numbers, **{"optim.steps": numbers, "optim.warmup": numbers, "optim.batch": numbers}))
    with pytest.raises(GpasError, match=r"e.yaml:4:3: grids.g: up to 6,250,000 cells; at most 100,000"):
        read(text)


@cases("grid/cases.yaml")
def test_a_rule_expands_to_its_values(axis: str, values: str, found: list[float]) -> None:
    entries = grid(cells(**{axis: values}))
    assert [entry.axes[axis] for entry in entries] == found
    assert [type(entry.axes[axis]) for entry in entries] == [type(value) for value in found]


def test_a_rule_and_the_values_it_stands_for_give_the_same_cells() -> None:
    ruled = grid(cells(**{"optim.lr": "{log: [1e-4, 1e-2], n: 3}", "seed": "{range: [1, 2]}"}))
    listed = grid(cells(**{"optim.lr": "[1e-4, 1e-3, 1e-2]", "seed": "[1, 2]"}))
    assert [(entry.name, entry.key) for entry in ruled] == [(entry.name, entry.key) for entry in listed]
    assert ruled[2].name == "lr0.001-s1"


def test_rules_can_be_zipped_and_conditions_name_their_values() -> None:
    zipped = grid(BASE + "axes: {zip: {seed: {range: [1, 3]}, optim.lr: {log: [1, 4], n: 3}}}")
    assert [(entry.axes["seed"], entry.axes["optim.lr"]) for entry in zipped] == [(1, 1), (2, 2), (3, 4)]
    left = grid(cells(**{"optim.lr": "{log: [1e-4, 1e-2], n: 5}"}) + "\nexclude: [{optim.lr: 3.16228e-4}]")
    assert len(left) == 4


@cases("grid/cases.yaml")
def test_a_wrong_rule_is_one_message(values: str, message: str) -> None:
    found = complaints(whole(cells(seed=values)))
    assert found[0].startswith("e.yaml:6:"), found
    assert message in found[0]
    assert len(set(found)) == len(found) <= 2


GRIDS = {name: [entry for entry in cells_of(name) if not entry.cell.network] for name in EXPERIMENTS.grids}


def test_the_papers_clipping_for_7b_is_one_setting() -> None:
    """0.01 on gates and 1.0 on other parameters (appendix A); the code clips all gradients at 1.0 first."""
    cell = next(entry.cell for entry in GRIDS["appendix-7b"] if entry.name == "pre-gpas")
    assert replace(cell, optim=replace(cell.optim, clip_over="others")).key != cell.key


def test_figure_4_of_the_curse_of_depth_is_the_pretraining_of_its_table_2() -> None:
    table2 = {stage.key for entry in GRIDS["curse-table2"] for stage in entry.cell.stages}
    assert {entry.key for entry in GRIDS["curse-figure4"]} <= table2
    assert {entry.cell.optim.steps for entry in GRIDS["curse-figure1"]} == {10_000}
    assert {entry.name: len(GRIDS["curse-lns-scaled"]) for entry in GRIDS["curse-figure1"]} == dict.fromkeys(
        ("pre-normal", "pre-scaled", "lns-normal"), 4
    )
