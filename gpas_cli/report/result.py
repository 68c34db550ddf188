"""The result of one stage that tables show. Without SQLAlchemy, so that tables can be built without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the latest done or diverged attempt of a stage reported.

    gone: the run directories of this and every other such attempt are gone, so nothing confirms the numbers. device:
    e.g. "cpu" or "cuda". ended: unix time. fingerprint: that of the training text. None means not recorded.
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
