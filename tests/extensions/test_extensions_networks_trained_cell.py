"""Trainings that start from the network of a cell: how they are declared and planned, and with which function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases, file_text
from exporting import Room

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.events import Evaluation, Event, Phase, Warned
from gpas_cli.extensions.networks.trained_cell import TrainedCell
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import parse_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret
from gpas_cli.grid.select import select
from gpas_cli.grid.variant import changes, shrink
from gpas_cli.model.llama import Llama, build
from gpas_cli.origin.provenance import _start
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.plan.trunks import unshared
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.parse import flat
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.section import Tiny
from gpas_cli.train import checkpoint
from gpas_cli.train.training import Execution, RunPaths, train

HEAD = file_text("experiments/trained_cell.yaml")


def entries(text: str, *names: str) -> list[Entry]:
    return expand(interpret(parse_document(HEAD + text, "e.yaml"), Path("e.yaml")), names)


def declared(settings: str) -> list[Entry]:
    base = f"{{size: tiny, data: {{like: quickstart, tokenizer: start}}, {settings}}}"
    return entries(f"  later: {{base: {base}, axes: {{norm: [pre, scalars], seed: [1, 2]}}}}", "later")


def test_a_cell_is_named_with_its_seed_or_has_that_of_the_training() -> None:
    first = {entry.name: entry.cell for entry in entries("", "first")}
    for name, seeds in {"first/pre": (1, 2), "first/pre-s2": (2, 2)}.items():
        found = declared(f"start: {{cell: {name}}}")
        assert [entry.cell.start.cell for entry in found if entry.cell.start] == [first[f"pre-s{n}"] for n in seeds * 2]
        assert [entry.cell.stages[0].parents for entry in found] == [(first[f"pre-s{n}"].key,) for n in seeds * 2]
        assert len({entry.key for entry in found}) == 4


def test_its_training_comes_first_as_it_is_declared() -> None:
    jobs = list(stage_jobs(declared("start: {cell: first/pre-s1}")).values())
    assert [job.id for job in jobs][:2] == ["first/pre-s1", "later/pre-s1"]
    assert [job.resources.cpus for job in jobs] == [3, *4 * [jobs[1].resources.cpus]]
    assert [job.parents for job in jobs] == [(), *4 * [(jobs[0].key,)]]
    chain = """
  second: {base: {size: tiny, data: quickstart, start: {cell: first/pre-s1}, downstream: {tasks: [indent]}}}
  third: {base: {size: tiny, data: quickstart, start: {cell: second/none}}}
"""
    one, two, three = stage_jobs(entries(chain, "third")).values()
    assert [one.id, two.id, three.id] == ["first/pre-s1", "second/none", "third/none"]
    assert (two.parents, three.parents) == ((one.key,), (two.key,))


def test_its_key_is_in_the_key_and_its_name_is_not() -> None:
    cell = declared("start: {cell: first/pre-s1}")[0].cell
    again = cell_from(json.loads(json.dumps(cell.to_mapping())))
    assert (again, again.key) == (cell, cell.key)
    assert cell.start
    assert cell.start.cell
    renamed = cell_from({**cell.to_mapping(), "start": TrainedCell(cell.start.cell, "b/c").to_mapping()})
    assert (renamed, renamed.key) == (cell, cell.key)
    longer = cell_from({**cell.start.cell.to_mapping(), "seed": 9})
    other = cell_from({**cell.to_mapping(), "start": TrainedCell(longer, "first/pre-s9").to_mapping()})
    assert other.key != cell.key
    assert of_cell(cell) == ("networks",)
    assert _start(cell.to_mapping()["start"]) == "first/pre-s1"
    shown = {name: value for name, value in flat(cell.settings).items() if name.startswith("start")}
    assert shown == {"start.cell": "first/pre-s1", "start.key": cell.start.cell.key}
    constant = cell_from(
        {**cell.to_mapping(), "optim": {"lr": 1e-3, "warmup": 0, "steps": 3, "batch": 4, "schedule": "constant"}}
    )
    assert unshared(constant) == "it starts from another training"


def test_cells_are_selected_and_shrunk_by_its_name() -> None:
    found = declared("start: {cell: first/pre}")
    assert [entry.name for entry in select(found, ["start.cell=first/pre-s1"])] == ["pre-s1", "scalars-s1"]
    tiny = shrink(found, Tiny("a.jsonl", "b.jsonl", "c.jsonl"), Catalogue())
    names = [change.setting for change in changes(found, tiny) if change.setting.startswith("start")]
    assert names == ["start.cell", "start.key"]


def test_a_finetuned_cell_is_one_to_start_from_and_later_measurements_are_not() -> None:
    base = {"size": {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 300}, "data": "quickstart"}
    optim = {"lr": 0.01, "warmup": 1, "steps": 2, "batch": 4}
    cell = cell_from({**base, "optim": optim, "finetune": {}, "downstream": {"tasks": ["indent"]}})
    found = TrainedCell(cell, "g/c")
    assert [stage.kind for stage in found.cell.stages] == ["pretrain", "finetune"]
    assert found.name == cell.trained.key == found.cell.key


@cases("extensions/cases.yaml")
def test_what_does_not_fit_is_refused_where_it_is_written(settings: str, message: str) -> None:
    usual = {"size": "tiny", "data": "quickstart"}
    rest = "".join(f", {name}: {value}" for name, value in usual.items() if f", {name}:" not in settings)
    with pytest.raises(InvalidExperiments) as caught:
        entries(f"  g: {{base: {{{settings}{rest}}}}}", "g")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("e.yaml:15:")
    assert message in line


@pytest.mark.parametrize("grids", ["gh", "hg"])
def test_two_grids_do_not_start_from_each_other(grids: str) -> None:
    one, other = grids
    with pytest.raises(InvalidExperiments) as caught:
        entries(
            f"  g: {{base: {{size: tiny, data: quickstart, start: {{cell: {one}/none}}}}}}\n"
            f"  h: {{base: {{size: tiny, data: quickstart, start: {{cell: {other}/none}}}}}}",
            "g", "h",
        )  # fmt: skip
    assert "cannot start from one of" in str(caught.value)


def started(room: Room, before: Cell, **more: Any) -> tuple[Cell, Llama, list[Event]]:
    """Return a cell that starts from a checkpoint of another, with its network."""
    values = {name: value for name, value in before.to_mapping().items() if name != "init"}
    cell = cell_from({**values, **more, "start": TrainedCell(before, "g/before").to_mapping()})
    network, events = build(cell.model, seed=7), list[Event]()
    assert cell.start
    cell.start.put_into(network, room.checkpoint(before), events.append)
    return cell, network.eval(), events


IDS = torch.randint(280, (2, 12), generator=torch.Generator().manual_seed(1))


@cases("extensions/cases.yaml", settings={}, more={}, new=0)
@torch.no_grad()
def test_the_function_is_that_of_the_cell(room: Room, settings: dict[str, Any], more: dict[str, Any], new: int) -> None:
    """`settings`: of the cell, `more`: of the training. `new`: how many tensors are new."""
    before = room.cell(**{"norm": "pre", **settings})
    _, network, events = started(room, before, **more)
    ours, theirs = network(IDS), room.opened(before)[0].eval()(IDS)
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    (phase,) = events
    assert isinstance(phase, Phase)
    assert phase.detail
    assert phase.detail.endswith(f"tensors of g/before, {before.key}; {new} are new")


def test_another_function_is_said(room: Room) -> None:
    for more in ({"gate": {"init": 0.5}}, {"norm": "sandwich"}):
        _, _, events = started(room, room.cell(norm="pre"), **more)
        (warning,) = (event.message for event in events if isinstance(event, Warned))
        assert "does not start with the function of g/before" in warning


def test_a_training_starts_with_the_loss_of_the_cell_and_resumes(room: Room, tmp_path: Path) -> None:
    before = room.cell()
    cell, _, _ = started(room, before, gate="gpas", optim={"lr": 0.01, "warmup": 1, "steps": 4, "batch": 4})
    how = Execution(Cadence(eval_every=2, checkpoint_every=2), lambda: None)
    losses = []
    for own, teacher in ((cell, room.checkpoint(before)), (cell, None)):
        paths = RunPaths(tmp_path / "run", [], cache=room.folder / "cache", root=room.folder)
        events: list[Event] = []
        assert train(own, paths, events.append, how, teacher or room.checkpoint(before)).outcome == "done"
        losses.append({event.step: event.loss for event in events if isinstance(event, Evaluation)})
    assert losses[0].keys() == {0, 2, 4}
    assert losses[1] == {4: losses[0][4]}
    with pytest.raises(GpasError, match="was pretrained with the tokenizer other, and this machine has"):
        train(cell, RunPaths(tmp_path / "x", [], cache=room.folder / "cache", root=room.folder), events.append, how,
              room.checkpoint(before), "other")  # fmt: skip


def test_a_checkpoint_of_another_network_is_refused(room: Room) -> None:
    before = room.cell(norm="pre")
    start = TrainedCell(before, "g/before")
    for other, reason in {
        room.cell(norm="sandwich"): "g/before has model.layers.0",
        room.cell(
            size={"hidden": 16, "ffn": 32, "heads": 2, "layers": 4, "vocab": 280}
        ): r"is \[32, 16\], not \[24, 16\]",
        room.cell(
            size={"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 280}
        ): "does not have model.layers.3",
    }.items():
        with pytest.raises((GpasError, checkpoint.DamagedCheckpoint), match=reason):
            start.put_into(build(before.model), room.checkpoint(other), lambda event: None)
