"""A journal in memory and requests to stop, for tests that run a stage in this process."""

import itertools
from collections.abc import Callable
from typing import Any

from gpas_cli.events import Event, fields_of


class Recorder:
    """A journal that keeps the events of a run."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: Event) -> None:
        self.events.append((event.kind, fields_of(event)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the fields of the events of this kind, in their order."""
        return [fields for name, fields in self.events if name == kind]


def stop_after(answers: int | None) -> Callable[[], str | None]:
    """Return a function that asks a stage to stop, after it has answered so often that it may continue; None: never."""
    asked = itertools.count()
    return lambda: "interrupted" if answers is not None and next(asked) >= answers else None
