"""A finding of `gpas doctor`, about this machine, a scheduler, the project's files or its database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check. `status` is "ok", "note" (works, with a limitation) or "problem" (see `remedy`)."""

    what: str
    status: str
    detail: str
    remedy: str = ""
