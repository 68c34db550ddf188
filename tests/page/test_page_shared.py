"""What cells have in common is on the page once, and curves are thinned without losing their shape."""

from __future__ import annotations

import math

from gpas_cli.page.charts import thinned
from gpas_cli.page.document import without_repetition


def details(seed: int, torch: str) -> dict[str, object]:
    return {"settings": {"lr": 0.1, "gate": None, "seed": seed}, "attempts": [{"environment": {"torch": torch}}]}


def test_settings_and_environments_are_there_once() -> None:
    found = without_repetition({"a": details(1, "2.8"), "b": details(2, "2.9"), "c": details(3, "2.8")})
    assert found["settings"] == {"lr": 0.1, "gate": None}
    assert found["environments"] == [{"torch": "2.8"}, {"torch": "2.9"}]
    assert found["cells"]["c"] == {"settings": {"seed": 3}, "attempts": [{"environment": 0}]}


def test_a_single_cell_keeps_its_settings() -> None:
    found = without_repetition({"a": details(1, "2.8")})
    assert found["cells"]["a"]["settings"] == {"lr": 0.1, "gate": None, "seed": 1}
    assert without_repetition({}) == {"settings": {}, "environments": [], "cells": {}}


def test_a_short_curve_is_kept_and_a_long_one_keeps_its_ends_and_peaks() -> None:
    curve = [(float(x), math.sin(x / 50)) for x in range(1000)]
    assert thinned(curve, 1000) == curve
    curve[333] = (333.0, 40.0)
    few = thinned(curve, 50)
    assert len(few) == 50
    assert (few[0], few[-1]) == (curve[0], curve[-1])
    assert curve[333] in few
    assert few == sorted(few)
