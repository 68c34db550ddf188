"""The decisive result of one stage, as the tables use it. No SQLAlchemy here, so that tables can be built without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the latest done or diverged attempt of a stage reported.

    `gone` says that its run directory, and that of every other such attempt, is not there any more: the numbers are
    known, and nothing supports them. `device` is e.g. "cpu" or "cuda"; `ended` a unix time; `fingerprint` is that of
    the training text. None: the journal does not tell.
    """

    key: str
    stage: str
    outcome: str
    number: int
    directory: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""
    host: str | None = None
    device: str | None = None
    gpu: str | None = None
    precision: str | None = None
    code: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    fingerprint: str | None = None
    validation_fingerprint: str | None = None
    parameters: int | None = None
    last_step: int | None = None
    ended: float | None = None
    gone: bool = False
