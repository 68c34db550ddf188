"""A training that starts where another one ends is, bit for bit, the one that it would have been alone."""

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from cases import cases
from importance_ranks import OPTIM, TEXTS, cell_of
from recorder import stop_after
from safetensors.numpy import load_file
from stage_runs import events, run, warnings

from gpas_cli.errors import GpasError
from gpas_cli.events import Evaluation, Layers, Phase, Step
from gpas_cli.plan.trunks import trunk
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.store.rundir import AttemptDir

CACHE = Path(tempfile.mkdtemp(prefix="trunks-"))  # one for all tests, which have the same texts
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
CADENCE = {"log_every": 2, "stats_every": 3, "eval_every": 4, "checkpoint_every": 3}


def lasting(steps: int, **more: Any) -> Cell:
    """Return a cell whose rate decays in its last 4 updates."""
    optim = {**OPTIM, "steps": steps, "schedule": "wsd", "decay": 4, **more.pop("optim", {})}
    return cell_of(gate="gpas", importance=None, optim=optim, **more)


def attempt(folder: Path, cell: Cell, start: Cell | None = None) -> AttemptDir:
    """Make an attempt at a training, which starts from the training of `start`."""
    folder.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    facts: dict[str, Any] = {"cache": str(CACHE), "root": str(folder), "cadence": CADENCE}
    if start:
        facts["trunk"] = {"key": start.key, "update": start.optim.steps, "name": "g/trunk"}
    return make_attempt(folder / "runs", cell.key, {"stage": PRETRAIN, "cell": cell.to_mapping(), **facts})


def trained(folder: Path, cell: Cell, start: Cell | None = None) -> AttemptDir:
    made = attempt(folder, cell, start)
    assert run(cell, made).outcome == "done"
    return made


def weights(made: AttemptDir, step: int) -> dict[str, bytes]:
    """Return the tensors of a checkpoint, the optimizer's too, as bytes."""
    tensors = load_file(made.checkpoints / f"step-{step:08d}" / "00000.safetensors")
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def numbers(made: AttemptDir) -> dict[Any, Any]:
    """Return what a training recorded of its updates, without times and speeds."""
    found: dict[Any, Any] = {("loss", e.step): (e.loss, e.lr, e.grad_norm, e.tokens) for e in events(made, Step)}
    found |= {("layers", e.step): str(e.values) for e in events(made, Layers)}
    return found | {("evaluation", e.step): (e.loss, e.tokens) for e in events(made, Evaluation)}


@cases("worker/cases.yaml")
def test_each_branch_is_what_it_would_be_alone(tmp_path: Path, more: dict[str, Any]) -> None:
    if "objective" in more:
        more = {**more, "family": "bert"}
    short, long = lasting(10, **more), lasting(16, **more)
    first, second = trunk(short, 6), trunk(long, 12)
    assert first == trunk(long, 6)
    alone = {cell.optim.steps: trained(tmp_path / "alone", cell) for cell in (short, long)}
    together = tmp_path / "together"
    trained(together, first)
    trained(together, second, first)
    for cell, start in ((short, first), (long, second)):
        steps = cell.optim.steps
        branch = trained(together, cell, start)
        assert [event.resumed_from for event in events(branch, Phase) if event.name == "training"] == [steps - 4]
        assert weights(branch, steps) == weights(alone[steps], steps)
        assert numbers(alone[steps]).items() <= numbers(branch).items()
        assert not warnings(branch)


def test_a_branch_that_was_interrupted_goes_on_by_itself(tmp_path: Path) -> None:
    cell = lasting(16)
    alone = trained(tmp_path / "alone", cell)
    start = trunk(cell, 6)
    stopped = attempt(tmp_path, start)
    assert run(start, stopped, stop_after(4)).outcome == "interrupted"
    trained(tmp_path, start)
    branch = attempt(tmp_path, cell, start)
    assert run(cell, branch, stop_after(3)).outcome == "interrupted"
    shutil.rmtree(tmp_path / "runs" / start.key[:2])
    with pytest.raises(GpasError, match="which this stage builds on, is not done"):
        run(cell, attempt(tmp_path, lasting(20), start))
    last = trained(tmp_path, cell)
    assert weights(last, 16) == weights(alone, 16)
    assert numbers(alone).items() <= (numbers(branch) | numbers(last)).items()


def test_a_trunk_of_another_text_is_refused(tmp_path: Path) -> None:
    cell = lasting(10)
    start = trunk(cell, 6)
    trained(tmp_path, start)
    branch = attempt(tmp_path, cell, start)
    (tmp_path / "t00.txt").write_text("another text\n")
    with pytest.raises(GpasError, match="was trained on another text"):
        run(cell, branch)


def test_a_training_starts_from_the_network_of_a_cell(tmp_path: Path) -> None:
    before = lasting(8)
    start = {"start": {"cell": before.to_mapping(), "source": "g/before"}}
    settings = {name: value for name, value in before.to_mapping().items() if name != "init"}
    cell = cell_from({**settings, **start, "norm": "scalars"})
    assert cell.stages[0].parents == (before.key,)
    with pytest.raises(GpasError, match=f"the training {before.key}, which this stage builds on, is not done"):
        run(cell, attempt(tmp_path, cell))
    first, whole = trained(tmp_path, before), trained(tmp_path, cell)
    (same,) = (event.loss for event in events(first, Evaluation) if event.step == 8)
    assert [event.loss == same for event in events(whole, Evaluation)] == [True, False, False]
    again = tmp_path / "again"
    trained(again, before)
    assert run(cell, attempt(again, cell), stop_after(4)).outcome == "interrupted"
    assert weights(trained(again, cell), 8) == weights(whole, 8)
    last = attempt(again, cell)
    (again / "t00.txt").write_text("another text\n" * 99)
    with pytest.raises(GpasError, match="was pretrained with the tokenizer"):
        run(cell, last)
