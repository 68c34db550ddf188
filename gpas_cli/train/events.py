"""All that training knows of the outside: somewhere to emit events, and a wish to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Emit(Protocol):
    """Takes one event: its kind and its JSON-ready fields. Must not raise for want of disk space."""

    def __call__(self, kind: str, **fields: object) -> None: ...


def silent(kind: str, **fields: object) -> None:
    """The `Emit` of processes that do not speak for all."""


Stop = Callable[[], str | None]
"""Polled between updates: None to go on, or the outcome to leave with, "interrupted" or "cancelled"."""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: done, diverged, interrupted or cancelled, at which update, and why."""

    outcome: str
    step: int
    cause: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
