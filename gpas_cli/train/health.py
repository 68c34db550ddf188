"""Detect spikes and divergence of a training, as pure functions of the series of losses and gradient norms.

The value of update t is a spike if it is far above the running median: with m the median and
s = 1.4826 median(|x - m|) of the `window` updates before t, x_t - m > max(`spike` * s, floor), where `window` and
`spike` are fields of `Monitoring`. For the loss, x is the loss and the floor 0.1 nats; for the gradient norm, which
varies by factors, x is its logarithm and the floor ln 3. The median of a falling loss is above it, and the few values
of a spike hardly change it. Of consecutive updates above the threshold only the first is reported, and none before a
quarter of the window has been seen.

A training has diverged at the first update whose loss or gradient norm is not finite, and when the loss has been above
max(its first value, ln V) + `margin` for `patience` updates in a row. ln V is the loss of guessing uniformly; a network
that learns nothing at all (a Post-LN plateau) stays below the threshold.

`Health.state` holds everything that these decisions depend on: a window of values, a count and the first loss. It is
written to watch-<update>.json beside each checkpoint, so that a resumed run reports the same spikes as an uninterrupted
one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpas_cli.events import Spike
from gpas_cli.files import parse_json, replace_file
from gpas_cli.spec.run import Monitoring

FLOORS = {"loss": 0.1, "grad_norm": math.log(3)}
TO_SIGMA = 1.4826  # median absolute deviation -> standard deviation, for a normal distribution
TINY = 1e-30


@dataclass(frozen=True)
class Divergence:
    """The update at which a training was found to have diverged, and the reason.

    `finite`: whether its loss and gradient are. `parameter`: the first one whose gradient is not, "" if none is known.
    """

    step: int
    cause: str
    finite: bool = True
    parameter: str = ""


@dataclass
class Detector:
    """Detects the spikes of one series. `inside`: the last value was above the threshold."""

    of: str
    watch: Monitoring
    inside: bool = False
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.watch.window)

    def add(self, step: int, value: float) -> Spike | None:
        """Add the next value, which must be finite. Return the spike that begins with it, if any."""
        x = math.log(max(value, TINY)) if self.of == "grad_norm" else value
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
        if x - median <= FLOORS[self.of]:
            return None
        deviation = TO_SIGMA * statistics.median(abs(y - median) for y in self.recent)
        return median if x - median > self.watch.spike * deviation else None


class Health:
    """Checks the loss and gradient norm of every update, in order. `vocab`: the number of tokens to guess from."""

    def __init__(self, watch: Monitoring, vocab: int) -> None:
        self.watch = watch
        self.guessing = math.log(vocab)
        self.first: float | None = None
        self.high = 0
        self._detectors = {of: Detector(of, watch) for of in FLOORS}

    def add(self, step: int, loss: float, grad_norm: float) -> tuple[list[Spike], Divergence | None]:
        """Return the spikes that begin with an update, and the divergence. Add nothing after a divergence."""
        for name, value in (("training loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                return [], Divergence(step, f"the {name} of update {step} is {value}", finite=False)
        values = {"loss": loss, "grad_norm": grad_norm}
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
        return {"first": self.first, "high": self.high, "series": series}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`, whose window may have had another length."""
        self.first = state["first"]
        self.high = state["high"]
        for of, detector in self._detectors.items():
            detector.recent.extend(state["series"][of]["recent"])
            detector.inside = state["series"][of]["inside"]

    def save(self, folder: Path, step: int) -> None:
        """Write the state after update `step` to the folder of its checkpoint, and delete those of deleted checkpoints.

        Raises OSError.
        """
        replace_file(_path(folder, step), json.dumps(self.state()), durable=False)
        for path in folder.glob("watch-*.json"):
            if not any(folder.glob(f"step-{path.stem.removeprefix('watch-')}*")):
                path.unlink(missing_ok=True)


def read_state(folders: Iterable[Path], step: int) -> dict[str, Any] | None:
    """Return the state after update `step`, or None if no folder has a readable one."""
    for folder in folders:
        try:
            state = parse_json(_path(folder, step).read_text())
            Health(Monitoring(), 2).restore(state)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return dict(state)
    return None


def _path(folder: Path, step: int) -> Path:
    return folder / f"watch-{step:08d}.json"
