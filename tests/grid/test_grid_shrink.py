"""Shrunk cells: the structure of every shipped cell stays, and its size, text and updates are tiny."""

import json

import pytest
from grids import grid
from shipped import EXPERIMENTS, cells_of

from gpas_cli.grid.variant import _UPDATES, changes, one_seed, shrink
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.spec.section import Tiny

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


@pytest.mark.parametrize(
    ("depth", "starts", "steps"),
    [
        ("{like: raptr, stages: 6-8-10-12}", (1, 2, 3, 4), 4),
        ("{like: stacking, stages: 6-12}", (1, 2), 2),
        ("{like: raptr, stages: 6-9-12, lengths: proportional}", (1, 2, 4), 6),
        ("{like: raptr, stages: 6-9-12, average: 9.5, full_steps: 20}", (2, 4, 6), 6),
        ("{like: layerdrop, keep: 0.5}", (1,), 2),
    ],
)
def test_every_stage_of_a_depth_schedule_trains(depth: str, starts: tuple[int, ...], steps: int) -> None:
    cell = tiny_of(f"depth: {depth}")
    assert (cell.layer_schedule.starts, cell.optim.steps) == (starts, steps)


@pytest.mark.parametrize(
    "recipe",
    [
        "{schedule: wsd, decay: 0.75, min_ratio: 0}",
        "{schedule: wsd, decay: 0.1, decay_shape: exponential, warmup: 0}",
        "{schedule: inverse-sqrt, timescale: 100}",
    ],
)
def test_schedules_of_the_rate_fit_into_the_updates(recipe: str) -> None:
    assert tiny_of(f"optim: {recipe}").optim.updates <= 3


def test_data_sets_of_later_stages_are_replaced() -> None:
    cell = tiny_of(
        "finetune: {}, downstream: {tasks: [spike], shots: 3}, importance: {tasks: [paper]}, texts: {}, "
        "quantised: {bits: [5, 2]}, layers: {}"
    )
    finetune = cell.parameters("finetune")
    assert isinstance(finetune, Finetune)
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
