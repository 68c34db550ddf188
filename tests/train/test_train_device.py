"""An update runs on the device, without the host; sinks receive its events, and their failures only warn."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from cases import cases, tables
from gate_placements import two_layers
from launching import entry
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Evaluation, Event, Layers, Phase, Skipped, Spike, Step, silent
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.schedule import process
from gpas_cli.schedule.process import require_libraries
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Family
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Monitoring, Resources
from gpas_cli.train import assemble, optim, sinks
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.depth import LayerSelection, freeze_gates
from gpas_cli.train.loop import Loop
from gpas_cli.train.observe import Observer
from gpas_cli.train.sinks import Subject, opened, scalars

NEEDS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
COPIES = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class Operations(TorchDispatchMode):
    """Collects the operations that make the host wait, except those on numbers already `on_host`."""

    def __init__(self, found: list[str], on_host: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.found = found
        self.on_host = {tensor.data_ptr() for tensor in on_host}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if NEEDS_NUMBERS & set(function.tags) and args[0].data_ptr() not in self.on_host:
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Collects the methods that copy numbers to the host without dispatching an operation."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in COPIES:
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


@contextmanager
def reads(on_host: Iterable[torch.Tensor] = ()) -> Iterator[list[str]]:
    found: list[str] = []
    with Operations(found, on_host), Copies(found):
        yield found


EAGER = Resources(compile="off")  # a compiled layer has no operations that Python could see


@cases("train/cases.yaml")
def test_an_update_and_its_observation(precision: str, padded: bool, gate: object, norm: str) -> None:
    """The rows have every pair of two values at least once."""
    made = cell(precision=precision, gate=gate, norm=norm, optim={"mean_rows": 3})
    loop = synthetic_loop(made, EAGER, padded=padded)
    observer = Observer(made, Monitoring(), loop.precision.device, lambda *_, **__: None)
    loop.update()  # the first update creates Adam's states
    fused = loop.optimizer.defaults["fused"]
    counts = [] if fused else [state["step"] for state in loop.optimizer.state.values()]
    with reads(counts) as found:
        observer.add(loop.update(observe=True))
        observer.add(loop.update())
    assert found == []
    with reads() as found:
        observer.settle()
    assert len(found) >= 1


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.nonzero, *sorted(COPIES, key=str), bool, float])
def test_reading_is_noticed(read: Callable[[torch.Tensor], object]) -> None:
    with reads() as found:
        read(torch.ones(1))
    assert found


# They have no deterministic kernel on GPUs, or one that sorts. (So has the gradient of an embedding's lookup, which is
# left: it sorts the tokens' numbers alone.)
INEXACT = {
    "bincount", "cumprod", "cumsum", "histc", "index_add", "index_copy", "index_put", "_index_put_impl", "index_reduce",
    "kthvalue", "logcumsumexp", "median", "put", "scatter", "scatter_add", "scatter_reduce", "sort", "topk",
}  # fmt: skip
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 1, "vocab": 280}
DEEP = {**SIZE, "layers": 4}


class Inexact(TorchDispatchMode):
    """Collects such operations on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1].rstrip("_")
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        on_device = any(tensor.device.type == "meta" for tensor in tensors)
        by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        # The compiler makes a sort of the gradient of a lookup; the tokens' is outside its graphs.
        by_place = name == "embedding_dense_backward" and args[2] == Family().context
        for_median = name == "sort" and args[0].is_floating_point()  # of a few tokens that are observed
        inexact = name in INEXACT and not for_median
        if on_device and (inexact or by_mask or by_place or NEEDS_NUMBERS & set(function.tags)):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    adam = optim._AdamW
    monkeypatch.setattr(assemble, "choose_device", lambda: torch.device("meta"))
    monkeypatch.setattr(assemble, "worth_compiling", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # unsupported here, as is fused Adam
    monkeypatch.setattr(optim, "_AdamW", lambda *a, **k: adam(*a, **{**k, "fused": False, "foreach": True}))


def cell(**values: Any) -> Cell:
    optim = {"lr": 0.01, "warmup": 1, "steps": 40, "batch": 6, "clip": 1.0, "clip_gates": 0.01}
    data = {"like": "quickstart", "layout": "pad"}
    return cell_from({"size": SIZE, "data": data, "optim": {**optim, **values.pop("optim", {})}, **values})


def inexact(loop: Loop) -> list[str]:
    """Return the operations of an observed update."""
    with Inexact() as seen:
        loop.update(observe=True)
    return seen.found


@pytest.mark.parametrize("norm", SCHEMES)
def test_every_scheme(norm: str, on_meta: None) -> None:
    """The meta device has shapes but no numbers: there every operation with a tensor of the host fails."""
    layers = 2 if norm in ("mix", "value-residual") else 1  # all are alike in other schemes
    loop = synthetic_loop(cell(norm=two_layers(norm), gate="gpas", size={**SIZE, "layers": layers}), padded=True)
    with Inexact() as seen:
        done = loop.update(observe=True)
    assert seen.found == []
    gradients = [p.grad for p in loop.network.parameters() if p.grad is not None]
    assert {t.device.type for t in (*gradients, done.loss, done.grad_norm, done.layers.numbers)} == {"meta"}


# Several settings at once where they do not meet in the same code.
CASES = tables("train/cases.yaml")["every_kind_of_training"]


@pytest.mark.parametrize(
    ("case", "padded"),
    [
        *((case, True) for case in CASES), ("no gates", False), ("masked", False), ("denoising", False),
        ("dropout, learned positions", False),
    ],
)  # fmt: skip
def test_every_kind_of_training(case: str, padded: bool, on_meta: None) -> None:
    made = cell(**{"gate": "gpas", **CASES[case]})
    assert inexact(synthetic_loop(made, padded=padded)) == []


def test_drawn_layers(on_meta: None) -> None:
    loop = synthetic_loop(cell(gate="gpas", size=DEEP), padded=True)
    freeze_gates(loop.network)
    loop.selection = LayerSelection(seed=1, layers=4, count=2, interval=1)
    assert inexact(loop) == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.cumsum(0),
        lambda x: x.index_add(0, torch.zeros(1, dtype=torch.int64, device="meta"), x[:1]),
        lambda x: x.scatter_add_(0, torch.zeros(2, dtype=torch.int64, device="meta"), x),
        lambda x: x.index_put_((torch.zeros(2, dtype=torch.int64, device="meta"),), x, accumulate=True),
        lambda x: x.long().sort(),
        partial(torch.median, dim=0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")
def test_such_operations_are_noticed(operation: Any) -> None:
    with Inexact() as seen:
        operation(torch.ones(2, device="meta"))
    assert len(seen.found) == 1


def test_an_index_select_and_a_lookup_of_the_table_by_index_are_noticed_in_the_backward_pass() -> None:
    index = torch.zeros(3, dtype=torch.int64, device="meta")
    table = torch.ones(4, 2, device="meta", requires_grad=True)
    for read in (table[index], table.index_select(0, index), table.gather(0, index[:, None])):
        with Inexact() as seen:
            read.sum().backward()
        assert seen.found


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject("small", "pre-s1", "0123456789abcdef", 2, tmp_path / "run", {"seed": 1})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a stand-in for the library."""
    monkeypatch.setitem(sys.modules, "wandb", made := Mock())
    return made


def test_events_become_named_numbers() -> None:
    assert scalars(Step(3, steps=9, loss=2.5, lr=0.1)) == (3, {"train/loss": 2.5, "train/lr": 0.1})
    layers = scalars(Layers(4, {"gate": [0.5, None, 0.25]}))
    assert layers == (4, {"layers/gate/01": 0.5, "layers/gate/03": 0.25})
    assert scalars(Spike(5, "loss", 9.0, usual=3.0)) == (5, {"spike/loss": 9.0})
    assert scalars(Skipped(5, 512.0)) == (5, {"skipped/loss_scale": 512.0})
    assert scalars(Checkpoint(5, "x")) is None


def test_without_sinks_events_go_to_the_journal_directly(subject: Subject, tmp_path: Path) -> None:
    with opened(Monitoring(), subject, tmp_path, silent) as emit:
        assert emit is silent


def test_wandb_receives_the_events(subject: Subject, tmp_path: Path, wandb: Mock) -> None:
    journal: list[Event] = []
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Phase(name="training", resumed_from=0))
        emit(Step(step=1, steps=2, loss=2.0))
        emit(Evaluation(step=2, loss=1.5, perplexity=float("inf")))
    assert [event.kind for event in journal] == ["phase", "step", "evaluation"]
    asked, run = wandb.init.call_args.kwargs, wandb.init.return_value
    assert (asked["project"], asked["id"]) == ("norms", "0123456789abcdef-002")
    assert run.log.call_args_list == [call({"train/loss": 2.0}, step=1), call({"eval/loss": 1.5}, step=2)]
    run.finish.assert_called_once_with()


def test_a_sink_that_fails_is_only_a_warning(subject: Subject, tmp_path: Path, wandb: Mock) -> None:
    journal: list[Event] = []
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Step(step=1, steps=2, loss=2.0))
        wandb.init.return_value.log.side_effect = ConnectionError("no route")
        emit(Step(step=2, steps=2, loss=2.0))
        emit(Step(step=3, steps=2, loss=2.0))
    assert [event.kind for event in journal] == ["step", "step", "warning", "step"]
    assert journal[2].message == ("Weights & Biases receives no further events: ConnectionError: no route")
    journal.clear()
    wandb.init.side_effect = RuntimeError("no key")
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append) as emit:
        emit(Step(step=1, steps=2, loss=2.0))
    assert [event.kind for event in journal] == ["warning", "step"]


def test_a_sink_that_does_not_close_is_abandoned(
    subject: Subject, tmp_path: Path, wandb: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_CLOSE_SECONDS", 0.05)
    journal, answers = list[Event](), threading.Event()
    wandb.init.return_value.finish = answers.wait
    with opened(Monitoring(wandb="norms"), subject, tmp_path, journal.append):
        pass
    answers.set()
    assert journal[0].message.endswith("TimeoutError: not closed within 0.05 s")


def test_tensorboard_has_a_folder_by_cell(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Mock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with opened(Monitoring(tensorboard="board"), subject, tmp_path, silent) as emit:
        emit(Phase(name="training", resumed_from=40))
        emit(Step(step=41, steps=50, loss=2.0))
    module.SummaryWriter.assert_called_once_with(str(tmp_path / "board/small/pre-s1-01234567"), purge_step=41)
    module.SummaryWriter.return_value.add_scalar.assert_called_once_with("train/loss", 2.0, 41)
    module.SummaryWriter.return_value.close.assert_called_once_with()


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

    def jobs(watch: Monitoring) -> list[StageJob]:
        return [*stage_jobs([replace(entry(seed=seed), watch=watch) for seed in (1, 2)]).values()]

    require_libraries(jobs(Monitoring()))
    with pytest.raises(GpasError) as caught:
        require_libraries(jobs(Monitoring(tensorboard="x", wandb="y")))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "g/done-1 and 1 more: watch.tensorboard asks for TensorBoard" in lines[0]
    assert "pip install 'gpas-cli[wandb]'" in lines[1]
