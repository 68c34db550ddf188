"""What a run reports about itself, at the cost of one device-to-host copy per interval.

Losses, gradient norms and layer statistics stay on the device until the next log line or checkpoint, and are then
fetched in one copy: the only place where the host waits for the device.

Every process of a world measures, because the norm of a sharded parameter is a sum over processes. The first process
decides whether the run has diverged, and only its events are recorded.

`profiling` profiles a few updates: a trace for chrome://tracing or ui.perfetto.dev, and a table of operators.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from gpas_cli.events import Emit, Layers, Profile, Skipped, Spike, Step, Warned
from gpas_cli.files import parse_json, read_regular, replace_file
from gpas_cli.processor import peak_flops
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import flops_per_token
from gpas_cli.spec.run import Monitoring
from gpas_cli.structure import Frozen
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.loop import Update
from gpas_cli.train.parallel import ALONE, World

_FLOORS = {"loss": 0.1, "grad_norm": math.log(3)}
_TO_SIGMA = 1.4826  # median absolute deviation -> standard deviation, for a normal distribution
_TINY = 1e-30
_SETTLE_UPDATES = 8  # before the profiler starts
_WARMUP_UPDATES = 2  # under the profiler, not recorded
_TABLE_ROWS = 30


class Divergence(Frozen):
    """The update at which a training was found to have diverged, and the reason."""

    step: int
    cause: str
    finite: bool = True  # whether its loss and gradient are
    parameter: str = ""  # the first one whose gradient is not finite, "" if none is known


@dataclass
class _Detector:
    """Detects the spikes of one series. `inside`: the last value was above the threshold."""

    of: str
    watch: Monitoring
    inside: bool = False
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.watch.window)

    def add(self, step: int, value: float) -> Spike | None:
        """Add the next value, which must be finite. Return the spike that begins with it, if any."""
        x = math.log(max(value, _TINY)) if self.of == "grad_norm" else value
        usual = self._exceeded_median(x)
        self.recent.append(x)
        was_inside = self.inside
        self.inside = usual is not None
        if usual is None or was_inside:
            return None
        return Spike(step, self.of, value, math.exp(usual) if self.of == "grad_norm" else usual)

    def _exceeded_median(self, x: float) -> float | None:
        """Return the running median if `x` is far above it, else None."""
        if self.watch.spike == 0 or len(self.recent) < self.watch.window // 4:
            return None
        median = statistics.median(self.recent)
        if x - median <= _FLOORS[self.of]:
            return None
        deviation = _TO_SIGMA * statistics.median(abs(y - median) for y in self.recent)
        return median if x - median > self.watch.spike * deviation else None


class Health:
    """Checks the loss and gradient norm of every update, in order. `vocab`: the number of tokens to guess from.

    The value of update t is a spike if it is far above the running median: with m the median and
    s = 1.4826 median(|x - m|) of the `window` updates before t, x_t - m > max(`spike` * s, floor), where `window` and
    `spike` are fields of `Monitoring`. For the loss, x is the loss and the floor 0.1 nats; for the gradient norm, which
    varies by factors, x is its logarithm and the floor ln 3. The median of a falling loss is above it, and the few
    values of a spike hardly change it. Of consecutive updates above the threshold only the first is reported, and none
    before a quarter of the window has been seen.

    A training has diverged at the first update whose loss or gradient norm is not finite, and when the loss has been
    above max(its first value, ln V) + `margin` for `patience` updates in a row. ln V is the loss of guessing uniformly;
    a network that learns nothing at all (a Post-LN plateau) stays below the threshold.

    `unlogged` are the losses since the last log line, of which it reports the mean.

    `state` holds everything that these depend on: a window of values, a count, the first and the unlogged losses. It is
    written to watch-<update>.json beside each checkpoint, so that a resumed run reports the same spikes as an
    uninterrupted one.
    """

    def __init__(self, watch: Monitoring, vocab: int) -> None:
        self.watch = watch
        self.guessing = math.log(vocab)
        self.first: float | None = None
        self.high = 0
        self.unlogged: list[float] = []
        self._detectors = {of: _Detector(of, watch) for of in _FLOORS}

    def add(self, step: int, loss: float, grad_norm: float | None) -> tuple[list[Spike], Divergence | None]:
        """Return the spikes that begin with an update, and the divergence. Add nothing after a divergence.

        grad_norm: None for an update that was skipped, whose gradients say nothing but that its scale was too large.
        """
        values = {"loss": loss, **({} if grad_norm is None else {"grad_norm": grad_norm})}
        for of, value in values.items():
            name = {"loss": "training loss", "grad_norm": "gradient norm"}[of]
            if not math.isfinite(value):
                return [], Divergence(step, f"the {name} of update {step} is {value}", finite=False)
        self.unlogged.append(loss)
        spikes = [spike for of, value in values.items() if (spike := self._detectors[of].add(step, value))]
        return spikes, self._too_high(step, loss)

    def _too_high(self, step: int, loss: float) -> Divergence | None:
        self.first = loss if self.first is None else self.first
        bound = max(self.first, self.guessing) + self.watch.margin
        self.high = self.high + 1 if loss > bound else 0
        if self.high < self.watch.patience:
            return None
        past = f"it began at {self.first:.3f}, and uniform guessing has {self.guessing:.3f}"
        return Divergence(
            step,
            f"the training loss of update {step}, {loss:.3f}, was above {bound:.3f} for {self.high} updates; {past}",
        )

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, JSON-ready."""
        series = {of: {"recent": list(d.recent), "inside": d.inside} for of, d in self._detectors.items()}
        return {"first": self.first, "high": self.high, "unlogged": list(self.unlogged), "series": series}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`, whose window may have had another length."""
        self.first = state["first"]
        self.high = state["high"]
        self.unlogged = list(state.get("unlogged", ()))  # states of earlier versions have none
        for of, detector in self._detectors.items():
            detector.recent.extend(state["series"][of]["recent"])
            detector.inside = state["series"][of]["inside"]

    def save(self, folder: Path, step: int, state: dict[str, Any] | None = None) -> None:
        """Write the `state` after update `step`, by default the present one, to the folder of its checkpoint, and
        delete those of deleted checkpoints.

        Raises OSError.
        """
        replace_file(_path(folder, step), json.dumps(state or self.state()), durable=False)
        for path in folder.glob("watch-*.json"):
            if not any(folder.glob(f"step-{path.stem.removeprefix('watch-')}*")):
                path.unlink(missing_ok=True)


def _read_state(folders: Iterable[Path], step: int) -> dict[str, Any] | None:
    """Return the state after update `step`, or None if no folder has a readable one."""
    for folder in folders:
        try:
            state = parse_json(read_regular(_path(folder, step))[0])
            Health(Monitoring(), 2).restore(state)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return dict(state)
    return None


def _path(folder: Path, step: int) -> Path:
    return folder / f"watch-{step:08d}.json"


def fetch(tensors: Iterable[Tensor]) -> list[list[float]]:
    """Return the numbers of each tensor, flattened, fetched in one transfer as float64."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    numbers = iter(torch.cat([tensor.double() for tensor in flat]).tolist() if flat else [])
    return [[next(numbers) for _ in range(len(tensor))] for tensor in flat]


class _SpeedMeter:
    """Measures speed and memory of a training of `cell` on `devices` devices like `device` since the last mark.

    Tokens are targets; FLOPs are counted as in `spec.cost`. No MFU is reported if the peak of the devices is unknown.
    """

    def __init__(self, cell: Cell, device: torch.device, devices: int = 1):
        self._cell = cell
        self._device = device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"  # whether float32 products may use tensor cores
        self.peak = (peak_flops(name, cell.precision, tf32=tf32) or 0.0) * devices
        self.mark(Position())

    def mark(self, position: Position) -> None:
        """Start measuring anew at `position`."""
        self.since = (time.perf_counter(), position)

    def read(self, position: Position) -> dict[str, Any]:
        """Return the rates since the last mark and the bytes in use, fields of `Step`, and mark `position`."""
        began, before = self.since
        self.mark(position)
        seconds = max(self.since[0] - began, 1e-9)
        speed = (position.tokens - before.tokens) / seconds
        updates = position.step - before.step
        flops = self.flops(before.step + 1, position.step) if updates else 0.0
        measured = {
            "tokens_per_second": speed,
            "seconds_per_step": seconds / max(1, updates),
            "flops_per_second": speed * flops,
            "memory": _memory(self._device),
        }
        if self.peak:
            measured["mfu"] = speed * flops / self.peak
        return measured

    def flops(self, first: int, last: int) -> float:
        """Return the mean FLOPs per token of updates `first` to `last`."""
        cell = self._cell
        return flops_per_token(cell, cell.layer_schedule.drawn(cell.seed, first, last))


def _memory(device: torch.device) -> int:
    """Return bytes: the peak that PyTorch has allocated on the GPU, or on a CPU the process's resident set now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


class Observer:
    """Collects updates, checks them for spikes and divergence, and reports them. Only `settle` waits for the device."""

    def __init__(self, cell: Cell, watch: Monitoring, device: torch.device, emit: Emit, world: World = ALONE) -> None:
        self.steps = cell.optim.updates
        self.emit = emit
        self.world = world
        self.health = Health(watch, cell.model.size.vocab)
        self.meter = _SpeedMeter(cell, device, world.size)
        self._pending: list[Update] = []
        self._last = Step(0)  # the last settled update

    def resume(self, folders: Sequence[Path], position: Position) -> None:
        """Continue after the checkpoint of `position`, which is in one of `folders`. Collective."""
        self.meter.mark(position)
        if not position.step:
            return
        state = self.world.broadcast(_read_state(folders, position.step))
        if state is not None:
            self.health.restore(state)
        else:
            message = (
                f"there is no record of the updates before {position.step}: a spike shortly after it is not detected"
            )
            self.emit(Warned(message))

    def add(self, update: Update) -> None:
        """Collect an update, in order."""
        self._pending.append(update)

    def settle(self) -> Divergence | None:
        """Fetch the pending updates, report their statistics and spikes; return the divergence, if any. Collective."""
        pending = self._pending
        self._pending = []
        layers = [update.layers.numbers for update in pending if update.layers]
        losses = torch.stack([update.loss for update in pending]) if pending else torch.zeros(0)
        norms = torch.stack([update.grad_norm for update in pending]) if pending else torch.zeros(0)
        fetched_losses, fetched_norms, *series = fetch([losses, norms, *layers])
        numbers = iter(series)
        divergence = None
        for update, loss, norm in zip(pending, fetched_losses, fetched_norms, strict=True):
            if update.layers:
                self.emit(Layers(update.step, update.layers.series(next(numbers))))
            self._last = Step(update.step, loss=loss, lr=update.rate, grad_norm=norm, loss_scale=update.loss_scale)
            if update.skipped and update.loss_scale:
                self.emit(Skipped(update.step, update.loss_scale))
            divergence = divergence or self._check(update.step, loss, None if update.skipped else norm)
        found = self.world.broadcast(divergence)  # all processes stop, or none
        if found is None or found.finite:
            return found
        gradients = next(update.gradients for update in pending if update.step == found.step)
        parameter = gradients.first_fault(self.world) if gradients else ""
        first = f", first in the gradient of {parameter}" if parameter else ""
        return replace(found, cause=f"{found.cause}{first}", parameter=parameter)

    def _check(self, step: int, loss: float, norm: float | None) -> Divergence | None:
        spikes, divergence = self.health.add(step, loss, norm)
        for spike in spikes:
            self.emit(spike)
        return divergence

    def log(self, position: Position) -> None:
        """Report the last settled update, and the mean loss and the speed since the last line."""
        losses, self.health.unlogged = self.health.unlogged, []
        mean = statistics.fmean(losses) if losses else None
        rates = self.meter.read(position)
        self.emit(replace(self._last, mean_loss=mean, steps=self.steps, tokens=position.tokens, **rates))

    def record(self, folder: Path, position: Position) -> Callable[[], None]:
        """Return what writes the present state, which a run resumed from the checkpoint of `position` in `folder`
        needs."""
        return partial(self._save, folder, position, self.health.state())

    def _save(self, folder: Path, position: Position, state: dict[str, Any]) -> None:
        if not self.world.leads:
            return
        try:
            self.health.save(folder, position.step, state)
        except OSError as error:
            self.emit(Warned(f"the record of the updates until {position.step} was not written: {error}"))


@contextmanager
def profiling(updates: int, folder: Path, emit: Emit) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of each update done.

    After the first _SETTLE_UPDATES + _WARMUP_UPDATES, `updates` of them (0: none) are profiled, trace.json and
    operators.txt are written to `folder`, and their paths are reported by an event `profile`. A failure is a warning.
    """
    if updates == 0:
        yield lambda step: None
        return
    done = {"step": 0, "written": 0}

    def write(profiler: profile) -> None:
        done["written"] = 1
        try:
            paths = _write(profiler, folder)
        except (OSError, RuntimeError) as error:
            emit(Warned(f"the profile was not written: {error}"))
            return
        emit(Profile(done["step"], updates, trace=str(paths["trace"]), operators=str(paths["operators"])))

    plan = schedule(wait=_SETTLE_UPDATES, warmup=_WARMUP_UPDATES, active=updates, repeat=1)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, schedule=plan, on_trace_ready=write, record_shapes=True) as profiler:

        def count(step: int) -> None:
            done["step"] = step
            profiler.step()

        yield count
    if not done["written"]:
        needed = _SETTLE_UPDATES + _WARMUP_UPDATES + updates
        emit(Warned(f"no profile was written: it takes {needed} updates, and the run ended before that"))


def _write(profiler: profile, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"trace": folder / "trace.json", "operators": folder / "operators.txt"}
    for path in paths.values():
        path.unlink(missing_ok=True)  # torch would follow a link
    profiler.export_chrome_trace(str(paths["trace"]))
    order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    paths["operators"].write_text(profiler.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS) + "\n")
    return paths
