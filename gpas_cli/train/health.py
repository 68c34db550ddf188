"""Whether a training is well: spikes of loss and gradient, and divergence, as pure functions of the series of updates.

A spike (of value v at update t) exceeds what was usual: with m the median and s = 1.4826 median(|x - m|) of the
`window` updates before t, x_t - m > max(`spike` * s, floor), where `window` and `spike` are fields of `Monitoring`. For
the loss x = v and the floor is 0.1 nats; for the gradient norm, whose size varies by factors, x = ln v and the floor is
ln 3. The median follows a falling loss from above, and the few values of a spike hardly move it. Of consecutive updates
that exceed it, the first is told; nothing is told before a quarter of the window has been seen.

A training has diverged at the first update whose loss or gradient norm is not finite, and at the first with which the
loss has been above max(its first value, ln V) + `margin` for `patience` updates in a row: ln V is the loss of guessing,
and a network that learns nothing at all (a Post-LN plateau) stays below it.

What a verdict depends on is a window of values, a count and the first loss: `Health.state`, which lies in
watch-<update>.json beside each checkpoint, so that a resumed run tells the same spikes as one that was not interrupted.
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

from gpas_cli.files import replace_file
from gpas_cli.spec.run import Monitoring

FLOORS = {"loss": 0.1, "grad_norm": math.log(3)}
TO_SIGMA = 1.4826  # median absolute deviation -> standard deviation, for a normal distribution
TINY = 1e-30


@dataclass(frozen=True)
class Spike:
    """A value far above the usual one (the running median): `of` loss or grad_norm."""

    step: int
    of: str
    value: float
    usual: float


@dataclass(frozen=True)
class Divergence:
    """The update at which a training proved to have diverged, and how."""

    step: int
    cause: str


@dataclass
class Detector:
    """Spikes of one series. `inside`: the last value exceeded the usual."""

    of: str
    watch: Monitoring
    inside: bool = False
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.watch.window)

    def add(self, step: int, value: float) -> Spike | None:
        """Take the next value, finite; the spike that begins with it, if one does."""
        x = math.log(max(value, TINY)) if self.of == "grad_norm" else value
        usual = self._exceeds(x)
        self.recent.append(x)
        begins, self.inside = usual is not None and not self.inside, usual is not None
        if usual is None or not begins:
            return None
        return Spike(step, self.of, value, math.exp(usual) if self.of == "grad_norm" else usual)

    def _exceeds(self, x: float) -> float | None:
        """The running median if `x` is far above it."""
        if self.watch.spike == 0 or len(self.recent) < self.watch.window // 4:
            return None
        median = statistics.median(self.recent)
        if x - median <= FLOORS[self.of]:
            return None
        deviation = TO_SIGMA * statistics.median(abs(y - median) for y in self.recent)
        return median if x - median > self.watch.spike * deviation else None


class Health:
    """Takes every update's loss and gradient norm, in order. `vocab`: how many tokens a guess is among."""

    def __init__(self, watch: Monitoring, vocab: int) -> None:
        self.watch, self.guessing = watch, math.log(vocab)
        self.first: float | None = None
        self.high = 0
        self._detectors = {of: Detector(of, watch) for of in FLOORS}

    def add(self, step: int, loss: float, grad_norm: float) -> tuple[list[Spike], Divergence | None]:
        """What the update shows. Nothing is to be added after a divergence."""
        for name, value in (("training loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                return [], Divergence(step, f"the {name} of update {step} is {value}")
        values = {"loss": loss, "grad_norm": grad_norm}
        spikes = [spike for of, value in values.items() if (spike := self._detectors[of].add(step, value))]
        return spikes, self._too_high(step, loss)

    def _too_high(self, step: int, loss: float) -> Divergence | None:
        self.first = loss if self.first is None else self.first
        bound = max(self.first, self.guessing) + self.watch.margin
        self.high = self.high + 1 if loss > bound else 0
        if self.high < self.watch.patience:
            return None
        past = f"it began at {self.first:.3f}, and guessing costs {self.guessing:.3f}"
        return Divergence(
            step,
            f"the training loss of update {step}, {loss:.3f}, was above {bound:.3f} for {self.high} updates; {past}",
        )

    def state(self) -> dict[str, Any]:
        """What `restore` needs, JSON-ready."""
        series = {of: {"recent": list(d.recent), "inside": d.inside} for of, d in self._detectors.items()}
        return {"first": self.first, "high": self.high, "series": series}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; its window may have had another length."""
        self.first, self.high = state["first"], state["high"]
        for of, detector in self._detectors.items():
            detector.recent.extend(state["series"][of]["recent"])
            detector.inside = state["series"][of]["inside"]

    def save(self, folder: Path, step: int) -> None:
        """Write the state after update `step` into the folder of its checkpoint, and drop those of checkpoints that
        are gone. Raises OSError."""
        replace_file(_path(folder, step), json.dumps(self.state()), durable=False)
        for path in folder.glob("watch-*.json"):
            if not any(folder.glob(f"step-{path.stem.removeprefix('watch-')}*")):
                path.unlink(missing_ok=True)


def read_state(folders: Iterable[Path], step: int) -> dict[str, Any] | None:
    """The state after update `step`, None where none of the folders has one that can be read."""
    for folder in folders:
        try:
            state = json.loads(_path(folder, step).read_text())
            Health(Monitoring(), 2).restore(state)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return dict(state)
    return None


def _path(folder: Path, step: int) -> Path:
    return folder / f"watch-{step:08d}.json"
