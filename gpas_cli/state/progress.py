"""The progress of a job, from the last events of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.events import Checkpoint, Phase, Spike, Started, Step
from gpas_cli.store.journal import Line


@dataclass(frozen=True)
class Progress:
    """The newest value of each quantity in a journal; None if it has none.

    `losses` are the training losses of the last log lines, oldest first; `spikes` counts the spikes among the same
    events. `eta` is in seconds.
    """

    phase: str = ""
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    lr: float | None = None
    tokens_per_second: float | None = None
    losses: tuple[float, ...] = ()
    eta: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    spikes: int = 0
    memory: float | None = None  # bytes
    saved: int | None = None  # the update of the newest checkpoint


def progress(lines: Sequence[Line]) -> Progress | None:
    """Return the progress from the last lines of a journal since its last start, None if they contain none."""
    lines = _since_start(lines)
    events = [line.event for line in lines]
    phases = [event.name for event in events if isinstance(event, Phase)]
    steps = [(line.t, line.event) for line in lines if isinstance(line.event, Step)]
    if not steps:
        return Progress(phase=phases[-1], saved=checkpoint_step(lines)) if phases else None
    last = steps[-1][1]
    return Progress(
        phase=phases[-1] if phases else "training",
        step=last.step,
        steps=last.steps,
        loss=last.loss,
        lr=last.lr,
        tokens_per_second=last.tokens_per_second,
        losses=tuple(step.loss for _, step in steps if step.loss is not None),
        eta=_eta(steps),
        grad_norm=last.grad_norm,
        mfu=last.mfu,
        memory=last.memory,
        spikes=sum(isinstance(event, Spike) for event in events),
        saved=checkpoint_step(lines),
    )


def checkpoint_step(lines: Sequence[Line]) -> int | None:
    """Return the step of the newest checkpoint in the lines, None if there is none."""
    newest = (line.event for line in reversed(lines))
    return next((event.step for event in newest if isinstance(event, Checkpoint)), None)


def _since_start(lines: Sequence[Line]) -> Sequence[Line]:
    starts = [i for i, line in enumerate(lines) if isinstance(line.event, Started)]
    return lines[starts[-1] :] if starts else lines


def _eta(steps: Sequence[tuple[float, Step]]) -> float | None:
    """Return the seconds to the last step, at the rate between the first and the last log line; None if unknown."""
    began, first = steps[0]
    now, last = steps[-1]
    if last.steps is None or last.step <= first.step or now <= began:
        return None
    return max(0, last.steps - last.step) * (now - began) / (last.step - first.step)
