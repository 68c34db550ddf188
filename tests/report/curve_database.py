"""A stand-in for the database of curves: functions that return the curves of a stage."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gpas_cli.report import query

Of = Callable[[str, str], list[Any]]  # (stage key, name of the curve) -> points


def stand_in(monkeypatch: pytest.MonkeyPatch, curve: Of, layers: Of) -> None:
    """Read curves from these functions."""

    def reader(points: Of) -> Callable[..., dict[str, list[Any]]]:
        def read(engine: object, keys: Iterable[str], name: str, until: int | None = None) -> dict[str, list[Any]]:
            found = {key: points(key, name)[None if until is None else -1 :] for key in keys}
            return {key: own for key, own in found.items() if own}

        return read

    monkeypatch.setattr(query, "curves", reader(curve))
    monkeypatch.setattr(query, "layer_curves", reader(layers))
