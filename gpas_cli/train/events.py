"""The interface of training to its surroundings: events, requests to stop, and outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Emit(Protocol):
    """Accepts one event: its kind and its JSON-ready fields. Must not raise when the disk is full."""

    def __call__(self, kind: str, **fields: object) -> None: ...


def silent(kind: str, **fields: object) -> None:
    """Discard the event: the `Emit` of every process but the first."""


Stop = Callable[[], str | None]
"""Called between updates. Returns None to continue, or the outcome to stop with: "interrupted" or "cancelled"."""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: done, diverged, interrupted or cancelled, at which update, and why."""

    outcome: str
    step: int
    cause: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
