"""Positions of the gate that tests go through: every scheme with the sites that differ, in networks of few layers."""

from collections.abc import Iterable
from itertools import product
from math import prod
from typing import Any

from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model


def two_layers(scheme: str) -> dict[str, object]:
    """Return the scheme such that two layers show all of it: Mix-LN has layers of two kinds."""
    return {"scheme": scheme, **({"post_fraction": 0.5} if scheme == "mix" else {})}


def _sites(scheme: str) -> Iterable[str]:
    """Return the first site of each slot; two sites of one slot are the same network, with one key."""
    size = {"hidden": 8, "ffn": 8, "heads": 1, "layers": 2, "vocab": 8}
    found: dict[object, str] = {}
    for site in _SITES:
        model = parse_model({"size": size, "norm": two_layers(scheme), "gate": {"site": site, "init": 0.2}})
        found.setdefault((model.gate_slots(1), model.gate_slots(2)), site)
    return found.values()


PLACEMENTS = [(scheme, site) for scheme in SCHEMES for site in _sites(scheme)]
# For what depends on the scheme or on the gate, but not on both: a site of each scheme, and every site of Mix-LN, whose
# two layers differ.
_ONE_EACH = {(scheme, list(_sites(scheme))[number % 4]) for number, scheme in enumerate(SCHEMES)}
FEW = [place for place in PLACEMENTS if place in _ONE_EACH or place[0] == "mix"]


def spread(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return every placement with one value of each of the `choices`, so that each site meets each combination.

    A gate is one module in one slot: what it computes and the slot it is in are independent but for pairs of the two.
    """
    lists = [list(choice) for choice in choices]
    combinations = [values[::-1] for values in product(*lists[::-1])]
    assert len(combinations) == prod(map(len, lists)) <= len(SCHEMES)
    numbers = {name: number for number, name in enumerate(SCHEMES)}
    return [
        (scheme, site, *combinations[(numbers[scheme] + _SITES.index(site)) % len(combinations)])
        for scheme, site in PLACEMENTS
    ]
