"""Optional recipients of a run's events: TensorBoard and Weights & Biases. The journal does not depend on them.

If a sink raises an exception, the journal gets a warning and the sink no further events; the run continues. The
libraries are imported when a sink is opened; `schedule.process` refuses a run that asks for one which is not installed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpas_cli.events import Emit, Evaluation, Event, Layers, Phase, Skipped, Spike, Step, Warned, fields_of
from gpas_cli.spec.run import Monitoring
from gpas_cli.structure import Frozen

_CLOSE_SECONDS = 30.0  # time limit for closing a sink
_PREFIXES = {Step: "train", Evaluation: "eval"}  # of the names of an event's numbers


class _Sink(Protocol):
    """Receives a run's events. Both methods may raise any exception."""

    def emit(self, event: Event) -> None:
        """Receive one event, as `Emit`."""
        ...

    def close(self) -> None:
        """Finish. Called once, after the last event."""
        ...


class Subject(Frozen):
    """How a run is identified in a sink."""

    grid: str
    name: str
    key: str
    number: int
    folder: Path  # its run directory
    cell: Mapping[str, Any]  # its resolved configuration


def scalars(event: Event) -> tuple[int, dict[str, float]] | None:
    """Return an event as (update, numbers by name), or None for events without numbers.

    Names are e.g. train/loss, eval/perplexity, spike/loss and layers/gate/03 (layers count from 1).
    """
    match event:
        case Layers(step, values):
            named = {f"layers/{name}/{i:02d}": v for name, vs in values.items() for i, v in enumerate(vs, 1)}
        case Spike(step, of, value):
            named = {f"spike/{of}": value}
        case Skipped(step, scale):
            named = {"skipped/loss_scale": scale}
        case Step(step) | Evaluation(step):
            fields = fields_of(event).items()
            named = {f"{_PREFIXES[type(event)]}/{name}": v for name, v in fields if name not in ("step", "steps")}
        case _:
            return None
    return step, {name: float(v) for name, v in named.items() if isinstance(v, int | float)}


class TensorBoard:
    """Writes event files below `folder`/grid/name-key. An update repeated after a resume replaces the earlier one."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the extra `tensorboard`

        self._open: Callable[..., Any] = SummaryWriter
        self._folder = folder / subject.grid / f"{subject.name}-{subject.key[:8]}"
        self._writer: Any = None

    def emit(self, event: Event) -> None:
        found = scalars(event)
        resumed = event.resumed_from if isinstance(event, Phase) else None
        if self._writer is None and (found or resumed is not None):
            self._writer = self._open(str(self._folder), purge_step=resumed + 1 if resumed else None)
        if found:
            step, numbers = found
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _WeightsAndBiases:
    """Logs to one W&B run per attempt, so that no attempt overwrites another; the runs of a cell form a group."""

    def __init__(self, project: str, subject: Subject) -> None:
        import wandb  # the extra `wandb`

        self._run: Any = wandb.init(
            project=project,
            id=f"{subject.key}-{subject.number:03d}",
            name=f"{subject.name}-{subject.number}",
            group=f"{subject.grid}/{subject.name}",
            config=dict(subject.cell),
            dir=str(subject.folder),
            resume="allow",
        )

    def emit(self, event: Event) -> None:
        found = scalars(event)
        if found:
            step, numbers = found
            self._run.log({name: number for name, number in numbers.items() if math.isfinite(number)}, step=step)

    def close(self) -> None:
        self._run.finish()


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Call `act`; after `seconds`, abandon it and raise TimeoutError: a slow network must not delay the run's end."""
    raised: list[Exception] = []

    def work() -> None:
        try:
            act()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"not closed within {seconds:g} s")
    if raised:
        raise raised[0]


@contextmanager
def opened(watch: Monitoring, subject: Subject, root: Path, journal: Emit, *, leads: bool = True) -> Iterator[Emit]:
    """Yield an `Emit` for the journal and, in the process that `leads`, the sinks of `watch`.

    Relative folders start from `root`. Sinks are closed at the end, waiting at most _CLOSE_SECONDS for each.
    """
    wanted: Sequence[tuple[str, str, Callable[[], _Sink]]] = (
        ("TensorBoard", watch.tensorboard, lambda: TensorBoard(root / watch.tensorboard, subject)),
        ("Weights & Biases", watch.wandb, lambda: _WeightsAndBiases(watch.wandb, subject)),
    )
    sinks: dict[str, _Sink] = {}

    def guard(name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            sinks.pop(name, None)
            journal(Warned(f"{name} receives no further events: {type(error).__name__}: {error}"))

    def emit(event: Event) -> None:
        journal(event)
        for name, sink in list(sinks.items()):
            guard(name, partial(sink.emit, event))

    for name, setting, make in wanted:
        if setting and leads:
            guard(name, lambda name=name, make=make: sinks.update({name: make()}))  # type: ignore[misc]
    try:
        yield emit if sinks else journal
    finally:
        for name, sink in list(sinks.items()):
            guard(name, partial(_within, _CLOSE_SECONDS, sink.close))
