"""The progress of a job, from the last events of its journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]


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
    share: float | None = None  # the completed fraction of a stage that scores tasks; None of others

    @property
    def counted(self) -> str:
        """What is done: "340/600"; of a stage that scores tasks, the task and its share: "piqa (3 of 7) 45 %"."""
        if self.share is None:
            return f"{self.step}/{self.steps}"
        return f"{self.phase} {math.floor(100 * (self.step or 0) / (self.steps or 1))} %"


def progress(events: Sequence[Event]) -> Progress | None:
    """Return the progress from the last events of a journal since its last start, None if they contain none."""
    events = _since_start(events)
    lines = [event for event in events if event.get("kind") == "step"]
    phases = [str(event.get("name", "")) for event in events if event.get("kind") == "phase"]
    scoring = [event for event in events if event.get("kind") == "scoring"]
    if scoring:
        return _scoring(scoring)
    if not lines:
        return Progress(phase=phases[-1], saved=checkpoint_step(events)) if phases else None
    last = lines[-1]
    return Progress(
        phase=phases[-1] if phases else "training",
        step=_whole(last.get("step")),
        steps=_whole(last.get("steps")),
        loss=number(last.get("loss")),
        lr=number(last.get("lr")),
        tokens_per_second=number(last.get("tokens_per_second")),
        losses=tuple(loss for line in lines if (loss := number(line.get("loss"))) is not None),
        eta=_eta(lines),
        grad_norm=number(last.get("grad_norm")),
        mfu=number(last.get("mfu")),
        memory=number(last.get("memory")),
        spikes=sum(event.get("kind") == "spike" for event in events),
        saved=checkpoint_step(events),
    )


def _scoring(events: Sequence[Event]) -> Progress:
    """Return the progress of a stage that scores tasks, from its last events of kind `scoring`."""
    last = events[-1]
    share = _share(last)
    return Progress(
        phase=f"{last.get('task')} ({last.get('place')} of {last.get('tasks')})",
        step=_whole(last.get("done")),
        steps=_whole(last.get("total")),
        share=share,
        eta=_eta_of_share(events),
    )


def _share(event: Event) -> float | None:
    """Return the fraction of all tasks that is done, if each takes as long as the others."""
    place, tasks, done, total = (number(event.get(name)) for name in ("place", "tasks", "done", "total"))
    if place is None or tasks is None or done is None or not tasks or not total:
        return None
    return (place - 1 + done / total) / tasks


def _eta_of_share(events: Sequence[Event]) -> float | None:
    (first, last), times = (
        [_share(event) for event in (events[0], events[-1])],
        [number(events[i].get("t")) for i in (0, -1)],
    )
    if first is None or last is None or times[0] is None or times[1] is None or last <= first:
        return None
    return (1 - last) * (times[1] - times[0]) / (last - first)


def number(value: Any) -> float | None:
    """Return a journalled number, including "nan" and "inf"; None for anything else."""
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def checkpoint_step(events: Sequence[Event]) -> int | None:
    """Return the step of the newest checkpoint in the events, None if there is none."""
    steps = [_whole(event.get("step")) for event in events if event.get("kind") == "checkpoint"]
    return next((step for step in reversed(steps) if step is not None), None)


def _since_start(events: Sequence[Event]) -> Sequence[Event]:
    starts = [i for i, event in enumerate(events) if event.get("kind") == "start"]
    return events[starts[-1] :] if starts else events


def _eta(lines: Sequence[Event]) -> float | None:
    """Return the seconds to the last step, at the rate between the first and the last log line; None if unknown."""
    first, last = lines[0], lines[-1]
    values = [number(event.get(name)) for event in (first, last) for name in ("step", "t")]
    steps = number(last.get("steps"))
    if steps is None or None in values:
        return None
    step0, t0, step1, t1 = (float(value) for value in values if value is not None)
    pace = (t1 - t0) / (step1 - step0) if step1 > step0 and t1 > t0 else math.nan
    return None if math.isnan(pace) else max(0.0, steps - step1) * pace


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
