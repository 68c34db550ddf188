"""The shipped experiments.yaml: its cells, their keys, which must not change, and its cells shrunk."""

import json
import re
from pathlib import Path

import pytest
import yaml
from cases import cases, tables
from grids import grid
from named_papers import published, value_of
from shipped import EXPERIMENTS, cells_of

from gpas_cli.grid import document
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.variant import _UPDATES, changes, one_seed, shrink
from gpas_cli.project import packaged
from gpas_cli.report.labels import facts
from gpas_cli.report.papers.recipes import Deviation, deviations
from gpas_cli.report.tables.grid_table import build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import shortcut_std
from gpas_cli.spec.norm import LNS, DeepNorm
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.section import Tiny

PATH = packaged("experiments.yaml")
GRIDS = {name: cells_of(name) for name in EXPERIMENTS.grids}
# Results are found by these keys, one line for each cell. A change here orphans every user's results of these cells:
# never change one to make a test pass; add a field with `omit_default_from_key` instead (gpas_cli.spec.parse.setting).
KEYS = dict(reversed(line.split()) for line in (Path(__file__).parents[1] / "golden/keys.txt").read_text().splitlines())


def named(grid: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in GRIDS[grid]}


def test_keys_are_frozen() -> None:
    everything = {entry.id: entry.key for entries in GRIDS.values() for entry in entries}
    assert len(KEYS) > 1000
    assert {name: everything.get(name) for name in KEYS} == KEYS


def test_quickstart() -> None:
    schemes = ["pre", "pre-gpas", "deepnorm", "deepnorm-gpas", "sandwich", "sandwich-gpas", "mix", "mix-gpas"]
    expected = [f"{name}-s{seed}" for name in [*schemes, "lns", "lns-gpas", "post"] for seed in (1, 2)]
    assert EXPERIMENTS.default == "quickstart"
    assert [entry.name for entry in expand(EXPERIMENTS)] == expected
    assert GRIDS["quickstart"][0].cadence == Cadence(eval_every=100, log_every=10, stats_every=50, checkpoint_every=100)
    assert all(entry.resources.gpus == 0 for entry in GRIDS["quickstart"])


def test_table2_has_every_cell_of_the_paper() -> None:
    entries = GRIDS["table2"]
    assert len(entries) == len({entry.key for entry in entries}) == 55
    assert {entry.axes["size"]: 11 for entry in entries} == dict.fromkeys(["71m", "130m", "250m", "350m", "1b"], 11)
    assert [entry.name for entry in entries if entry.cell.optim.clip_gates] == ["1b-sandwich-gpas"]
    assert sorted(entry.name for entry in entries if entry.notes) == sorted(
        ["1b-sandwich-gpas", *(f"{size}-deepnorm-gpas" for size in ("71m", "130m", "250m", "350m", "1b"))]
    )


def test_7b_differs_from_the_paper_in_what_its_code_clips() -> None:
    found = {
        name: {d.setting: (d.published, d.ours) for d in deviations([entry], published("gpas", "appendix_7b"))}
        for name, entry in named("appendix-7b").items()
    }
    means = {"optim.mean_rows": (4, 0)}
    assert found == {"pre": means, "pre-gpas": {**means, "optim.clip_over": ("others", "all")}}


# Table 1 of GPAS, and the cells on C4 that are clipped.
TABLE_1, CLIPPED = tables("grid/cases.yaml")["cells_on_c4_have_the_recipes_of_table_1"].values()
# Of other papers, with recipes of their own, and of none.
OTHERS = ("spike-", "curse-", "rivals-", "muon-", "transfer-", "lengths-", "depths-")


def test_cells_on_c4_have_the_recipes_of_table_1() -> None:
    """Documents of at most 256 tokens of T5, padded; the evaluation stops at ten million predicted tokens."""
    sizes = {EXPERIMENTS.catalogue.sizes[name]: name for name in TABLE_1}
    own = [entry for name in GRIDS if not name.startswith(OTHERS) for entry in GRIDS[name] if not entry.cell.network]
    on_c4 = {entry.id: (sizes[entry.cell.model.size], entry) for entry in own if entry.cell.data.source == "c4"}
    assert {size for size, _ in on_c4.values()} == TABLE_1.keys()
    assert CLIPPED.keys() <= on_c4.keys()
    for size, entry in on_c4.values():
        lr, warmup, steps, batch = TABLE_1[size]
        clip, clip_gates = CLIPPED.get(entry.id, (0.0, 0.0))
        assert entry.cell.optim == Optim(
            lr=lr, warmup=warmup, steps=steps, batch=batch, schedule="cosine", min_ratio=0.1, beta1=0.9, beta2=0.999,
            eps=1e-8, weight_decay=0.0, clip=clip, clip_gates=clip_gates, clip_over="all", mean_rows=0,
            stop=40_000 if entry.grid == "appendix-7b" else 0,
        ), entry.id  # fmt: skip
        data, compared = entry.cell.data, entry.grid == "table2-precision"
        text = (data.tokenizer, data.layout, data.length, data.eval_tokens, entry.cell.model.size.vocab)
        assert text == ("t5", "pad", 256, 10_000_000, 32_000), entry.id
        assert (entry.resources.micro_batch, entry.cadence.eval_every) == (0, 1000), entry.id
        axes = entry.axes if compared else {"precision": "pure_bf16", "seed": 42}
        assert (entry.cell.precision, entry.cell.seed) == (axes["precision"], axes["seed"]), entry.id


@cases("grid/cases.yaml")
def test_grids_share_their_common_cells(grid: str, other: str, number: int) -> None:
    assert len({entry.key for entry in GRIDS[grid]} & {entry.key for entry in GRIDS[other]}) == number


def test_the_multipliers_of_figure_11_make_its_standard_deviations() -> None:
    expected = {"scaled": 0.63, "std-5": 5.0, "std-50": 50.0}
    stds = {entry.name: round(shortcut_std(entry.cell.model), 2) for entry in GRIDS["spike-embed-std"]}
    assert stds == {
        f"{size}-{name}": pytest.approx(std, rel=2e-3)
        for size in ("gpt-350m", "gpt-1.7b")
        for name, std in expected.items()
    }


@cases("grid/cases.yaml")
def test_a_grid_of_later_stages_trains_nothing_twice(
    grid: str, earlier: str, prefix: str, stages: list[str], count: int
) -> None:
    """`earlier`: the grid whose trainings it goes on with; `prefix`: what their names have before its own."""
    assert len(GRIDS[grid]) == count
    for name, entry in named(grid).items():
        assert [stage.kind for stage in entry.cell.stages] == stages
        before = named(earlier)[prefix + name].cell
        trained = before.stages[: before.stages.index(before.trained) + 1]
        assert entry.cell.stages[: len(trained)] == trained


def test_the_tasks_of_grids_of_the_same_networks() -> None:
    table3 = {name: entry.cell.parameters("downstream").tasks for name, entry in named("table3").items()}
    for name, entry in named("table3-poster").items():
        assert {*entry.cell.parameters("downstream").tasks} - {*table3[name]} == {"arc_challenge", "social_iqa"}
    for name, entry in named("figure7").items():
        assert entry.cell.parameters("importance").tasks == table3[name]
    assert sorted(named("figure7")) == ["lns", "lns-gpas", "pre", "pre-gpas"]
    for entry in GRIDS["quickstart-importance"]:
        assert entry.cell.parameters("importance").tasks == ("indent", "bracket")


def test_curse_table2_scales_the_output_of_the_norms() -> None:
    curse = named("curse-table2")
    assert curse["250m-lns"].cell.model.norm == LNS(apply="scale")
    table = published("curse_of_depth", "table2_accuracy")
    printed = [value_of(table, {**facts(entry), "task": "average_paper"}) for entry in curse.values()]
    assert printed == [32.54, 35.63, 35.63, 41.34, 36.93, 43.14, 31.96, 32.67, 32.67, 31.72, 43.01, 44.87]


def test_the_deepnorm_of_the_curse_of_depth_is_that_of_its_code() -> None:
    """Its gain is (8L)^(1/4), and its skip path that of 32 layers at every depth; DeepNorm itself stands beside it."""
    curse = named("curse-table1")
    for size in ("130m", "250m", "350m", "1b"):
        own, usual = curse[f"{size}-deepnorm-as-in-its-code"], curse[f"{size}-deepnorm"]
        assert (own.cell.model.init.preset, own.cell.model.wiring(1).skip) == ("deepnorm-inverted", 64**0.25)
        table = published("curse_of_depth", "table1_perplexity")
        assert value_of(table, facts(own)) == value_of(table, facts(usual))
        found = {one.setting: one for one in deviations([usual], table)}
        assert found["init.preset"] == Deviation("init.preset", "deepnorm-inverted", "deepnorm", "code")
        assert "init.preset" not in {one.setting for one in deviations([own], table)}
        assert value_of(published("gpas", "table2_perplexity"), facts(own)) is None
    assert {DeepNorm(skip=3).wiring_beside(layer, 6, 6).skip for layer in (1, 12)} == {3}


@pytest.mark.parametrize("grid", ["quickstart-ablations", "table5-gate"])
def test_predefined_gates_come_from_the_gpas_cell_beside_them(grid: str) -> None:
    entries = GRIDS[grid]
    keys = {entry.key for entry in entries}
    teachers = [teacher for entry in entries if (teacher := entry.cell.teacher())]
    assert teachers
    assert all(teacher.key in keys for teacher in teachers)


# grid, source -> cells of the table for which the source prints no number; 0 for all others.
UNPRINTED = tables("grid/cases.yaml")["every_cell_of_a_published_table_has_its_number"]


@pytest.mark.parametrize("grid", [name for name, grid in EXPERIMENTS.grids.items() if grid.table_spec.published])
def test_every_cell_of_a_published_table_has_its_number(grid: str) -> None:
    spec = EXPERIMENTS.grids[grid].table_spec
    cells = [cell for row in build(GRIDS[grid], {}, {}, spec).rows for cell in row.cells if cell.statuses]
    bare = {pack.name: sum(pack.name not in cell.printed for cell in cells) for pack in spec.published}
    assert bare == {pack.name: UNPRINTED.get(f"{grid} {pack.name}", 0) for pack in spec.published}


def test_table_11_of_raptr_trains_nothing_besides_table_3() -> None:
    trained = {entry.cell.stages[0].key for entry in GRIDS["raptr-ul2"]}
    assert {entry.cell.stages[0].key for entry in GRIDS["raptr-ul2-tasks"]} < trained


@pytest.mark.parametrize("grid", list(GRIDS))
def test_names_are_unique_and_safe_and_every_grid_has_a_table(grid: str) -> None:
    names = [entry.name for entry in GRIDS[grid]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) for name in names)
    table = EXPERIMENTS.grids[grid].table
    for entry in GRIDS[grid]:
        absent = {"norm", "gate", "seed"} if entry.cell.network else {"network"}
        assert {*table.rows, table.over, *table.against} - absent <= entry.axes.keys()


def test_the_pure_python_parser_reads_the_file_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = document.read_document(PATH)
    monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)
    slow = document.read_document(PATH)
    assert slow.plain() == fast.plain()
    assert _marks(slow) == _marks(fast)


def _marks(node: document.Node) -> list[str]:
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    return [str(node.mark), *(mark for child in below for mark in _marks(child))]


def test_xavier_of_appendix_b_is_of_all_parameters() -> None:
    inits = {(entry.axes["embed"], entry.axes["init"]): entry.cell.model.init for entry in GRIDS["spike-xavier"]}
    assert {key for key, init in inits.items() if init.everywhere} == {("plain", "xavier"), ("scaled", "xavier")}
    table = published("spike_no_more", "table6_perplexity")
    for entry in GRIDS["spike-xavier"]:
        assert value_of(table, {**facts(entry), "text": "wikitext"}) is not None
        assert not any(d.setting.startswith("init") for d in deviations([entry], table))


TEXT = Tiny("sample/train.jsonl", "sample/validation.jsonl", "sample/records.jsonl")


def tiny_of(settings: str) -> Cell:
    """Return the tiny form of a cell with these settings beside size and data."""
    (cell,) = grid(f"    base: {{size: quickstart, data: quickstart, {settings}}}\n    axes: {{norm: [pre]}}\n")
    (tiny,) = shrink([cell], TEXT, Catalogue())
    return tiny.cell


@pytest.mark.parametrize("name", EXPERIMENTS.grids)
def test_every_shipped_cell_keeps_its_structure(name: str) -> None:
    declared = one_seed(cells_of(name))
    tiny = shrink(declared, TEXT, EXPERIMENTS.catalogue)
    for before, after in zip(declared, tiny, strict=True):
        old = before.cell
        new = after.cell
        assert (after.id, after.axes) == (before.id, before.axes)
        assert [stage.kind for stage in new.stages] == [stage.kind for stage in old.stages]
        if old.network:
            assert new.network
            assert new.network.path
            continue
        assert new.model.size.layers == old.model.size.layers
        assert (new.model.scheme, new.model.norm, new.model.gate) == (old.model.scheme, old.model.norm, old.model.gate)
        assert (new.model.embed, new.model.family) == (old.model.embed, old.model.family)
        assert (new.optim.optimizer, new.optim.schedule, new.optim.lr) == (
            old.optim.optimizer, old.optim.schedule, old.optim.lr,
        )  # fmt: skip
        assert (new.depth.kind, new.depth.stages, new.depth.fixed) == (
            old.depth.kind,
            old.depth.stages,
            old.depth.fixed,
        )
        assert new.objective == old.objective
        assert (new.precision, new.seed) == (old.precision, old.seed)
        assert new.optim.updates >= _UPDATES
        pairs = new.model.family.encoder  # sentences of an invented language, which are not cut
        assert new.model.size.hidden * new.model.size.vocab * new.data.length < (700_000 if pairs else 150_000)
        assert "hf" not in json.dumps(new.to_mapping()["data"])
        assert {part.source for part in new.data.parts} == {"languages" if pairs else "files"}
        assert new.data.names == old.data.names or not old.data.mixture
        assert after.resources.processes == 1


def test_one_seed_of_each_cell_stays() -> None:
    cells = grid("    base: {size: quickstart, data: quickstart}\n    axes: {norm: [pre, post], seed: [3, 1, 2]}\n")
    assert [entry.name for entry in one_seed(cells)] == ["pre-s3", "post-s3"]


def test_stopped_schedules_means_and_validation_batches_stay_what_they_are() -> None:
    recipe = "{steps: 100, stop: 40, warmup: 7, batch: 64, mean_rows: 16, validation_rows: 8}"
    cell = tiny_of(f"optim: {recipe}, data.layout: pad")
    optim = cell.optim
    assert (optim.steps, optim.stop, optim.warmup) == (2 * _UPDATES, _UPDATES, 1)
    assert 1 < optim.mean_rows < optim.batch
    assert optim.validation_rows
    assert cell.data.layout == "pad"


@cases("grid/cases.yaml")
def test_every_stage_of_a_depth_schedule_trains(depth: str, starts: list[int], steps: int) -> None:
    cell = tiny_of(f"depth: {depth}")
    assert ([*cell.layer_schedule.starts], cell.optim.steps) == (starts, steps)


@cases("grid/cases.yaml")
def test_schedules_of_the_rate_fit_into_the_updates(recipe: str) -> None:
    assert tiny_of(f"optim: {recipe}").optim.updates <= 3


def test_data_sets_of_later_stages_are_replaced() -> None:
    cell = tiny_of(
        "finetune: {}, downstream: {tasks: [spike], shots: 3}, importance: {tasks: [paper]}, texts: {}, "
        "quantised: {bits: [5, 2]}, layers: {}"
    )
    finetune = cell.parameters("finetune")
    assert (finetune.data, finetune.method) == (TEXT.records, "lisa")
    assert cell.parameters("downstream").tasks == ("indent", "bracket")
    assert cell.parameters("importance").tasks == ("indent", "bracket")
    assert cell.parameters("layers").eval_tokens == cell.data.eval_tokens < 1000
    assert cell.parameters("texts").texts == (f"sample={TEXT.validation}",)
    quantised = cell.parameters("quantised")
    assert (quantised.bits, quantised.eval_tokens) == ((5, 2), cell.parameters("importance").eval_tokens)
    assert quantised.eval_tokens < 1000


def test_what_was_shrunk_is_listed_once() -> None:
    cells = grid("    base: {size: quickstart, data: quickstart}\n    axes: {norm: [pre, post], gate: [none, gpas]}\n")
    found = {change.setting: change for change in changes(cells, shrink(cells, TEXT, Catalogue()))}
    assert (found["optim.steps"].before, found["optim.steps"].after) == ((600,), (_UPDATES,))
    assert (found["data.source"].before, found["data.source"].after) == (("stdlib",), ("files",))
    assert "size.layers" not in found
    assert not any(name.startswith(("norm", "gate")) for name in found)


@pytest.mark.parametrize("tasks", ["[recall]", "[triviaqa, piqa]"])
def test_a_cell_that_writes_answers_still_does(tasks: str) -> None:
    section = tiny_of(f"downstream: {{tasks: {tasks}}}").parameters("downstream")
    assert section.tasks == ("indent", "bracket", "recall")
    assert section.limit < 10


def test_jobs_on_nodes_keep_what_chooses_these_and_are_small() -> None:
    asked = "gpus: 16, nodes: 2, cpus: 64, mem: 400G, notice: 900, strategy: hsdp, partition: a100, python: py, pack: 4"
    kinds = "tokenise: {gpus: 0, nodes: 1, strategy: auto, partition: cpu}"
    (cell,) = grid(
        f"base: {{size: quickstart, data: quickstart}}\naxes: {{norm: [pre]}}\nresources: {{{asked}, {kinds}}}"
    )
    (tiny,) = shrink([cell], TEXT, Catalogue(), nodes=True)
    own, text = tiny.resources, tiny.text_resources
    assert (own.partition, own.python, own.gpus, own.nodes, own.threads, own.pack) == ("a100", "py", 1, 1, 1, 1)
    assert (own.mem, own.time, own.faults) == ("4G", "0:10:00", {})
    assert (text.partition, text.gpus, text.faults) == ("cpu", 0, {})
