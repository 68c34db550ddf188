"""Details of many cells without what they have in common, so that a page stays small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def without_repetition(details: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return details by cell as `cells`, without the `settings` that all of them share, which are there once.

    Each environment is there once too, in the list `environments`; attempts have its place in the list.
    """
    settings = _common([one["settings"] for one in details.values()])
    places: dict[str, int] = {}
    environments: list[Any] = []
    cells = {}
    for name, one in details.items():
        own = {key: value for key, value in one["settings"].items() if key not in settings}
        attempts = []
        for attempt in one["attempts"]:
            spelled = json.dumps(attempt["environment"], sort_keys=True, default=str)
            if spelled not in places:
                places[spelled] = len(environments)
                environments.append(attempt["environment"])
            attempts.append({**attempt, "environment": places[spelled]})
        cells[name] = {**one, "settings": own, "attempts": attempts}
    return {"settings": settings, "environments": environments, "cells": cells}


def _common(settings: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that are the same in all cells; {} for a single cell."""
    if len(settings) < 2:
        return {}
    first, *others = settings
    return {key: value for key, value in first.items() if all(key in s and s[key] == value for s in others)}
