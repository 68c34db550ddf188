"""A finding of `gpas doctor`, about this machine, a scheduler, the project's files or its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    status: Annotated[str, ("ok", "note", "problem")]
    detail: str
    remedy: str = ""
