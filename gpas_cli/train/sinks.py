"""Optional listeners to a run's events: TensorBoard and Weights & Biases. The journal never depends on them.

A sink is one more `Emit`. What it raises costs a warning in the journal and the rest of that sink, nothing else. The
libraries are imported when a sink is opened; `schedule.extras` refuses a run that asks for one which is not installed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpas_cli.spec.run import Monitoring
from gpas_cli.train.events import Emit

CLOSING = 30.0  # seconds that a sink may take to close
# Kind of event -> what its numbers are filed under.
FILED = {"step": "train", "evaluation": "eval", "layers": "layers", "spike": "spike"}


class Sink(Protocol):
    """Takes events as `Emit` does, and is closed once. It may raise anything."""

    def __call__(self, kind: str, **fields: Any) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Subject:
    """What a run is called outside. `folder` is its run directory, `cell` what it computes."""

    grid: str
    name: str
    key: str
    number: int
    folder: Path
    cell: Mapping[str, Any]


def scalars(kind: str, fields: Mapping[str, Any]) -> tuple[int, dict[str, float]] | None:
    """An event as (update, numbers by name), None for events without numbers: train/loss, eval/perplexity,
    layers/gate/03 (layers count from 1), spike/loss."""
    if kind not in FILED:
        return None
    if kind == "layers":
        named = {f"{name}/{i:02d}": v for name, vs in fields["values"].items() for i, v in enumerate(vs, 1)}
    elif kind == "spike":
        named = {str(fields["of"]): fields["value"]}
    else:
        named = {name: value for name, value in fields.items() if name not in ("step", "steps")}
    numbers = {f"{FILED[kind]}/{name}": float(v) for name, v in named.items() if isinstance(v, int | float)}
    return int(fields["step"]), numbers


class TensorBoard:
    """Event files below `folder`/grid/name-key. An update that is done again after a resume replaces the first."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the extra `tensorboard`

        self._open: Callable[..., Any] = SummaryWriter
        self._folder = folder / subject.grid / f"{subject.name}-{subject.key[:8]}"
        self._writer: Any = None

    def __call__(self, kind: str, **fields: Any) -> None:
        found = scalars(kind, fields)
        if self._writer is None and (found or "resumed_from" in fields):
            resumed = fields.get("resumed_from") or 0
            self._writer = self._open(str(self._folder), purge_step=resumed + 1 if resumed else None)
        if found:
            step, numbers = found
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """One W&B run for each attempt, so that nothing is lost of any; those of a cell are a group."""

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

    def __call__(self, kind: str, **fields: Any) -> None:
        found = scalars(kind, fields)
        if found:
            step, numbers = found
            self._run.log({name: number for name, number in numbers.items() if math.isfinite(number)}, step=step)

    def close(self) -> None:
        self._run.finish()


@dataclass
class Fanout:
    """An `Emit` that tells the journal first, and then each sink for as long as it takes events."""

    journal: Emit
    sinks: dict[str, Sink] = field(default_factory=dict)

    def __call__(self, kind: str, **fields: Any) -> None:
        self.journal(kind, **fields)
        for name, sink in list(self.sinks.items()):
            self._guard(name, partial(sink, kind, **fields))

    def open(self, name: str, make: Callable[[], Sink]) -> None:
        """Add the sink that `make` gives; a warning if it raises."""
        self._guard(name, lambda: self.sinks.update({name: make()}))

    def close(self) -> None:
        for name, sink in list(self.sinks.items()):
            self._guard(name, partial(_within, CLOSING, sink.close))

    def _guard(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self.sinks.pop(name, None)
            told = f"{type(error).__name__}: {error}"
            self.journal("warning", message=f"{name} is told nothing from here on: {told}")


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Do `act`, or raise TimeoutError and leave it behind: a run that waits for a network has not ended for anybody."""
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
    """`journal`, and the sinks that `watch` asks for beside it, in the process that `leads`. Relative folders start
    from `root`."""
    wanted: Sequence[tuple[str, str, Callable[[], Sink]]] = (
        ("TensorBoard", watch.tensorboard, lambda: TensorBoard(root / watch.tensorboard, subject)),
        ("Weights & Biases", watch.wandb, lambda: WeightsAndBiases(watch.wandb, subject)),
    )
    fanout = Fanout(journal)
    for name, setting, make in wanted:
        if setting and leads:
            fanout.open(name, make)
    try:
        yield fanout if fanout.sinks else journal
    finally:
        fanout.close()
