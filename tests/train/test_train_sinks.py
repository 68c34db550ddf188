"""TensorBoard and W&B receive the events of a run, and their failures only cause a warning."""

import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Evaluation, Event, Layers, Phase, Skipped, Spike, Step, silent
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.schedule import process
from gpas_cli.schedule.process import require_libraries
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.train import sinks
from gpas_cli.train.sinks import Subject, opened, scalars


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject("small", "pre-s1", "0123456789abcdef", 2, tmp_path / "run", {"seed": 1})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Return a stand-in for the library that records the arguments of its functions, and raises `fail` if set."""
    recorded = types.SimpleNamespace(init={}, logged=[], finished=0, fail=None, answers=threading.Event())
    recorded.answers.set()

    class Run:
        def log(self, numbers: dict[str, float], step: int) -> None:
            if recorded.fail:
                raise recorded.fail
            recorded.logged.append((step, numbers))

        def finish(self) -> None:
            recorded.answers.wait()
            recorded.finished += 1

    def init(**fields: Any) -> Run:
        if recorded.fail:
            raise recorded.fail
        recorded.init = fields
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return recorded


def test_events_become_named_numbers() -> None:
    step = scalars(Step(3, steps=9, loss=2.5, lr=0.1))
    assert step == (3, {"train/loss": 2.5, "train/lr": 0.1})
    layers = scalars(Layers(4, {"gate": [0.5, None, 0.25]}))
    assert layers == (4, {"layers/gate/01": 0.5, "layers/gate/03": 0.25})
    spike = scalars(Spike(5, "loss", 9.0, usual=3.0))
    assert spike == (5, {"spike/loss": 9.0})
    assert scalars(Skipped(5, 512.0)) == (5, {"skipped/loss_scale": 512.0})
    assert scalars(Checkpoint(5, "x")) is None


def test_without_sinks_events_go_to_the_journal_directly(subject: Subject, tmp_path: Path) -> None:
    with opened(Monitoring(), subject, tmp_path, silent) as emit:
        assert emit is silent


def test_wandb_receives_the_events(subject: Subject, tmp_path: Path, wandb: types.SimpleNamespace) -> None:
    journal: list[Event] = []
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Phase(name="training", resumed_from=0))
        emit(Step(step=1, steps=2, loss=2.0))
        emit(Evaluation(step=2, loss=1.5, perplexity=float("inf")))
    assert [event.kind for event in journal] == ["phase", "step", "evaluation"]
    assert wandb.logged == [(1, {"train/loss": 2.0}), (2, {"eval/loss": 1.5})]
    assert wandb.init["project"] == "norms"
    assert wandb.init["id"] == "0123456789abcdef-002"
    assert wandb.finished == 1


def test_a_failing_sink_is_only_a_warning(subject: Subject, tmp_path: Path, wandb: types.SimpleNamespace) -> None:
    journal: list[Event] = []
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Step(step=1, steps=2, loss=2.0))
        wandb.fail = ConnectionError("no route")
        emit(Step(step=2, steps=2, loss=2.0))
        emit(Step(step=3, steps=2, loss=2.0))
    assert [event.kind for event in journal] == ["step", "step", "warning", "step"]
    assert journal[2].message == ("Weights & Biases receives no further events: ConnectionError: no route")


def test_a_sink_that_fails_is_only_a_warning(subject: Subject, tmp_path: Path, wandb: types.SimpleNamespace) -> None:
    journal: list[Event] = []
    wandb.fail = RuntimeError("no key")
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Step(step=1, steps=2, loss=2.0))
    assert [event.kind for event in journal] == ["warning", "step"]


def test_a_sink_that_does_not_close_is_abandoned(
    subject: Subject, tmp_path: Path, wandb: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_CLOSE_SECONDS", 0.05)
    journal: list[Event] = []
    wandb.answers.clear()
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append):
        pass
    wandb.answers.set()
    assert journal[0].message.endswith("TimeoutError: not closed within 0.05 s")


def test_tensorboard_has_a_folder_by_cell(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            self.folder = folder
            self.purge_step = purge_step
            self.scalars = []
            self.closed = False
            made.append(self)

        def add_scalar(self, name: str, number: float, step: int) -> None:
            self.scalars.append((name, number, step))

        def close(self) -> None:
            self.closed = True

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with opened(Monitoring(tensorboard="board"), subject, tmp_path, silent) as emit:
        emit(Phase(name="training", resumed_from=40))
        emit(Step(step=41, steps=50, loss=2.0))
    (writer,) = made
    assert writer.folder == str(tmp_path / "board/small/pre-s1-01234567")
    assert (writer.purge_step, writer.scalars, writer.closed) == (41, [("train/loss", 2.0, 41)], True)


def test_real_tensorboard_reads_what_was_written(subject: Subject, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with opened(Monitoring(tensorboard=str(tmp_path / "board")), subject, tmp_path, silent) as emit:
        emit(Phase(name="training", resumed_from=0))
        for step in (1, 2):
            emit(Step(step=step, steps=2, loss=2.0 / step))
    (folder,) = (tmp_path / "board/small").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 2.0), (2, 1.0)]


def test_a_missing_library_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    size = {"hidden": 16, "ffn": 16, "heads": 2, "layers": 1, "vocab": 280}
    optim = {"lr": 1e-3, "warmup": 1, "steps": 2, "batch": 2}

    def job(name: str, watch: Monitoring, precision: str = "bf16") -> StageJob:
        cell = cell_from({"size": size, "optim": optim, "data": "quickstart", "precision": precision})
        return StageJob(
            kind="pretrain", key=cell.key, parents=(), cell=cell, grid="g", name=name, axes={}, cadence=Cadence(),
            watch=watch, resources=Resources(),
        )  # fmt: skip

    require_libraries([job("a", Monitoring())])
    both = Monitoring(tensorboard="x", wandb="y")
    with pytest.raises(GpasError) as caught:
        require_libraries([job("a", both), job("b", both), job("c", Monitoring(), "fp8")])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "g/a and 1 more: watch.tensorboard asks for TensorBoard" in lines[0]
    assert "pip install 'gpas-cli[wandb]'" in lines[1]
    assert lines[2].endswith("precision: fp8 asks for torchao, which is not installed: pip install 'gpas-cli[fp8]'")
