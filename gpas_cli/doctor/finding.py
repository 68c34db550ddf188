"""One finding of `gpas doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `status` is ok, note (works, but know this) or problem (with what to do about it)."""

    what: str
    status: str
    detail: str
    remedy: str = ""
