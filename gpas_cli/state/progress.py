"""The progress of a job, from the last events of its journal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.events import Checkpoint, Phase, Scoring, Spike, Started, Step
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
    share: float | None = None  # the completed fraction of a stage that scores tasks; None for other stages

    @property
    def counted(self) -> str:
        """The progress as text: "340/600", or for a stage that scores tasks "piqa (3 of 7) 45 %"."""
        if self.share is None:
            return f"{self.step}/{self.steps}"
        return f"{self.phase} {math.floor(100 * (self.step or 0) / (self.steps or 1))} %"


def progress(lines: Sequence[Line]) -> Progress | None:
    """Return the progress from the last lines of a journal since its last start, None if they contain none."""
    lines = _since_start(lines)
    events = [line.event for line in lines]
    phases = [event.name for event in events if isinstance(event, Phase)]
    steps = [(line.t, line.event) for line in lines if isinstance(line.event, Step)]
    scoring = [(line.t, line.event) for line in lines if isinstance(line.event, Scoring)]
    if scoring:
        return _scoring(scoring)
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


def _scoring(events: Sequence[tuple[float, Scoring]]) -> Progress:
    """Return the progress of a stage that scores tasks, from its last events of that kind with their times."""
    last = events[-1][1]
    return Progress(
        phase=f"{last.task} ({last.place} of {last.tasks})",
        step=last.done,
        steps=last.total,
        share=_share(last),
        eta=_eta_of_share(events),
    )


def _share(event: Scoring) -> float | None:
    """Return the fraction of all tasks that is done, if each takes as long as the others."""
    if not event.tasks or not event.total:
        return None
    return (event.place - 1 + event.done / event.total) / event.tasks


def _eta_of_share(events: Sequence[tuple[float, Scoring]]) -> float | None:
    began, first = events[0]
    now, last = events[-1]
    before = _share(first)
    after = _share(last)
    if before is None or after is None or after <= before:
        return None
    return (1 - after) * (now - began) / (after - before)


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
